"""The interactive shell: statements with history and completion, answers as they come."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completion, WordCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from rich.console import Console, RenderableType
from rich.text import Text

from penstock.asking.onetime import Snapshot
from penstock.cli.live import in_place
from penstock.cli.stopping import Stop
from penstock.cql.binding.scope import PRIORITY
from penstock.errors import PenstockError
from penstock.expr import functions
from penstock.masking import masked, masked_script
from penstock.session import QueryHandle, Session
from penstock.session.scripts import UNNAMED
from penstock.showing import terminal_table

_KEYWORDS = """\
CREATE STREAM TABLE SINK VIEW MATERIALIZED KEEP QUERY AS OF INTO USING OPTIONS TIMESTAMP BY SLACK
IDLE AFTER PRIORITY
ON ERROR FAIL DEADLETTER LATE SELECT FROM WHERE GROUP HAVING DISTINCT ORDER LIMIT JOIN UNION ALL
INTERSECT EXCEPT ISTREAM DSTREAM RSTREAM ROWS RANGE TUMBLE HOP SLIDE PARTITION SESSION FIXED NOW
BEFORE START SHIFT UNTIL INSIDE INSERT VALUES OFFSET
UNBOUNDED SECONDS MINUTES HOURS DAYS SHOW QUERIES STREAMS TABLES VIEWS SINKS FUNCTIONS DESCRIBE
EXPLAIN ANALYZE PAUSE RESUME DROP SHOW CREATE SET WITHIN WEIGHT EARLY"""

_HELP = """\
Statements end with ';'.  CREATE STREAM, TABLE, SINK, VIEW, QUERY · SHOW QUERIES · DESCRIBE x ·
EXPLAIN QUERY q · PAUSE, RESUME, DROP QUERY q.  CREATE MATERIALIZED VIEW v [KEEP 10 MINUTES] AS ..
keeps an answer; a SELECT of what is kept is answered at once, for the last final instant or AS OF a
time.  Any other SELECT runs as a continuous query and shows its answer live until Ctrl-C.
\\watch q shows a running query live.  help shows this, quit leaves."""

_STATES = {"running": "runs", "ended": "has ended", "failed": "has failed"}

_LEAVE = ("q", "quit", "exit")
_COMMAND = re.compile(r"\s*(\\.*|(help|quit|exit)\s*;?\s*)", re.IGNORECASE | re.DOTALL)


def is_command(text: str) -> bool:
    """Whether a text is for the shell itself: ``help``, ``quit``, ``\\watch q``."""
    return _COMMAND.fullmatch(text) is not None


def is_complete(text: str) -> bool:
    """Whether what was typed can be run: a command, nothing, or statements up to a ';'."""
    return not text.strip() or is_command(text) or text.rstrip().endswith(";")


def show(result: Any, console: Console) -> None:
    """Print the result of a statement."""
    if isinstance(result, str):
        console.print(result, markup=False, highlight=False, soft_wrap=True)
    elif isinstance(result, pa.Table):
        console.print(terminal_table(result, 200))
    elif isinstance(result, Snapshot):
        console.print(terminal_table(result.to_arrow(), 200))
        console.print(result.note, markup=False, highlight=False, style="dim")


class ShellCompleter(WordCompleter):
    """Completes words that were begun; all of them only if asked for."""

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """Return the words that fit."""
        if document.get_word_before_cursor() or event.completion_requested:
            yield from super().get_completions(document, event)


class ShellHistory(FileHistory):
    """Statements that were typed, each whole, in a file of the user's own, without secrets."""

    def store_string(self, string: str) -> None:
        """Write a statement to the file, without the values of secret options."""
        super().store_string(masked(masked_script(string)))


def opened_history(path: Path) -> History:
    """Open the history of the shell; one that cannot be written is kept in memory."""
    try:
        path.touch(mode=0o600)
        path.chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return ShellHistory(str(path))


class Shell:
    """Reads statements and runs them in a session."""

    def __init__(self, session: Session, console: Console) -> None:
        self.session = session
        self.console = console

    def run(self, text: str) -> bool:
        """Run some statements and show what they give; say so when they fail or are interrupted."""
        with Stop(self.session, gently=True) as stop:
            try:
                result = self.session.sql(text, one_time=True)
            except PenstockError as error:
                self.console.print("[bold red]error:[/] ", end="")
                self._say(str(error))
                self._given_up()
                return False
            except KeyboardInterrupt:
                self._say(self._interrupted())
                return False
            if isinstance(result, QueryHandle):
                self._show_query(result, stop)
            else:
                show(result, self.console)
        return True

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _interrupted(self) -> str:
        """Return what is so after a statement was interrupted."""
        waiting = self._given_up()
        told = "interrupted; all that was declared is kept"
        if self.session.is_starting_spark:
            told += ", and Spark goes on starting"
        if waiting:
            told += f". RESUME QUERY {waiting[0]} starts {', '.join(waiting)}"
        return told

    def _given_up(self) -> list[str]:
        """Drop a SELECT that could not be started; return the queries that wait for a start."""
        waiting = []
        for handle in self.session.handles():
            if handle.status()["state"] == "created":
                if handle.name.startswith(UNNAMED):
                    handle.stop()
                else:
                    waiting.append(handle.name)
        return waiting

    def _show_query(self, handle: QueryHandle, stop: Stop) -> None:
        status = handle.status()
        if handle.name.startswith(UNNAMED) and status["state"] != "paused":
            self.watch(handle, stop)
            handle.stop()
            return
        kept = handle.mode == "kept"
        what = "materialized view" if kept else "query"
        if status["state"] == "paused":
            more = f"RESUME QUERY {handle.name} goes on, with what comes from then on"
            self._say(f"{what} {handle.name} is paused; {more}")
            return
        ask = "a SELECT from it is answered at once, " if kept else ""
        state = _STATES.get(status["state"], f"is {status['state']}")
        self._say(f"{what} {handle.name} {state}; {ask}\\watch {handle.name} shows it")
        if status.get("note"):
            self._say(str(status["note"]))

    def watch(self, handle: QueryHandle, stop: Stop) -> None:
        """Show a query's newest answer until it ends or Ctrl-C is pressed."""
        with ExitStack() as drawing:
            live = in_place(self.console, Text(), drawing)
            try:
                while not stop.wanted:
                    self.session.check()
                    ended = handle.status()["state"] in ("ended", "paused")
                    if ended:
                        self.session.pipeline.await_batch()
                    live.update(self._picture(handle), refresh=True)
                    if ended:
                        return
                    time.sleep(0.3)
            except PenstockError as error:
                self.console.print(str(error), style="red", markup=False)

    def _picture(self, handle: QueryHandle) -> RenderableType:
        status = handle.status()
        title = f"{handle.name}: {status['state']}, {status['rows']:,} rows delivered"
        if status.get("note"):
            title += f"\n{status['note']}"
        try:
            rows = handle.shown_rows()
        except PenstockError:
            return Text(title)
        whole = handle.mode in ("view", "kept")
        newest = rows if whole else rows.slice(max(0, rows.num_rows - 20))
        return terminal_table(newest, 20, title)

    def loop(self) -> None:
        """Read statements until the end of input."""
        kept = opened_history(Path.home() / ".penstock_history")
        prompt: PromptSession[str] = PromptSession(
            history=kept,
            multiline=Condition(lambda: not is_complete(get_app().current_buffer.text)),
            prompt_continuation="      ... ",
        )
        self.console.print(f"Penstock shell.  {_HELP}", highlight=False)
        while True:
            try:
                text = prompt.prompt("penstock> ", completer=self._completer())
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if self.take(text):
                return

    def take(self, text: str) -> bool:
        """Do what was typed, a command or statements; True: leave."""
        if is_command(text):
            return self._command(text)
        if text.strip():
            self.run(text)
        return False

    def _command(self, line: str) -> bool:
        words = line.lower().strip(" \n\t;\\").split()
        if words and words[0] in _LEAVE:
            return True
        if words and words[0] == "watch" and len(words) == 2:
            try:
                with Stop(self.session, gently=True) as stop:
                    self.watch(self.session.query(line.strip(" ;").split()[1]), stop)
            except PenstockError as error:
                self.console.print(str(error), style="red", markup=False)
        else:
            self.console.print(_HELP, highlight=False)
        return False

    def _completer(self) -> WordCompleter:
        catalog = self.session.catalog
        names = [
            definition.name
            for kind in ("stream", "table", "view", "sink", "query", "function")
            for definition in catalog.of_kind(kind).values()
        ]
        columns = [c for d in catalog.streams.values() for c in d.schema.names]
        known = [f.upper() for f in functions.FUNCTIONS]
        words = [*_KEYWORDS.split(), *names, *columns, PRIORITY, *known]
        return ShellCompleter(words, ignore_case=True)
