"""The interactive shell: statements with history and completion, answers as they come."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.asking.onetime import Snapshot
from penstock.errors import PenstockError
from penstock.expr import functions
from penstock.masking import masked, masked_script
from penstock.session import QueryHandle, Session

_KEYWORDS = """\
CREATE STREAM TABLE SINK VIEW MATERIALIZED KEEP QUERY AS OF INTO USING OPTIONS TIMESTAMP BY SLACK
IDLE AFTER PRIORITY
ON ERROR FAIL DEADLETTER LATE SELECT FROM WHERE GROUP HAVING DISTINCT ORDER LIMIT JOIN UNION ALL
INTERSECT EXCEPT ISTREAM DSTREAM RSTREAM ROWS RANGE TUMBLE HOP SLIDE PARTITION SESSION FIXED NOW
BEFORE START
UNBOUNDED SECONDS MINUTES HOURS DAYS SHOW QUERIES STREAMS TABLES VIEWS SINKS FUNCTIONS DESCRIBE
EXPLAIN PAUSE RESUME DROP"""

_HELP = """\
Statements end with ';'.  CREATE STREAM, TABLE, SINK, VIEW, QUERY · SHOW QUERIES · DESCRIBE x ·
EXPLAIN QUERY q · PAUSE, RESUME, DROP QUERY q.  CREATE MATERIALIZED VIEW v [KEEP 10 MINUTES] AS ..
keeps an answer; a SELECT of what is kept is answered at once, for the last final instant or AS OF a
time.  Any other SELECT runs as a continuous query and shows its answer live until Ctrl-C.
\\watch q shows a running query live.  \\q leaves."""


def show(result: Any, console: Console) -> None:
    """Print the result of a statement."""
    if isinstance(result, str):
        console.print(result, markup=False, highlight=False, soft_wrap=True)
    elif isinstance(result, pa.Table):
        console.print(as_table(result, 200))
    elif isinstance(result, Snapshot):
        console.print(as_table(result.to_arrow(), 200))
        console.print(result.note, markup=False, highlight=False, style="dim")


def as_table(rows: pa.Table, limit: int, title: str | None = None) -> Table:
    """Return Arrow rows as a table for the terminal."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        table.add_column(name, justify="right" if number else "left")
    for row in rows.slice(0, limit).to_pylist():
        table.add_row(*("" if v is None else str(v) for v in row.values()))
    if rows.num_rows > limit:
        table.caption = f"{rows.num_rows - limit} more"
    return table


class ShellHistory(FileHistory):
    """Lines that were typed, in a file of the user's own, without the values of secret options.

    ``before`` is what was typed of the statement so far: a line may be the middle of its options.
    """

    before = ""

    def store_string(self, string: str) -> None:
        """Write a line to the file."""
        whole = f"{self.before}\n{string}"
        super().store_string(masked(masked_script(whole)[len(self.before) + 1 :]))


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
        """Run some statements and show what they give; say so when they fail."""
        try:
            result = self.session.sql(text, one_time=True)
        except PenstockError as error:
            self.console.print("[bold red]error:[/] ", end="")
            self.console.print(str(error), markup=False, highlight=False, soft_wrap=True)
            return False
        if isinstance(result, QueryHandle):
            if result.name.startswith("select_"):
                self.watch(result)
                result.stop()
            else:
                kept = result.mode == "kept"
                what = "materialized view" if kept else "query"
                ask = "a SELECT from it is answered at once, " if kept else ""
                self.console.print(
                    f"{what} {result.name} runs; {ask}\\watch {result.name} shows it",
                    markup=False,
                    highlight=False,
                )
        else:
            show(result, self.console)
        return True

    def watch(self, handle: QueryHandle) -> None:
        """Show a query's newest answer until it ends or Ctrl-C is pressed."""
        try:
            with Live(console=self.console, auto_refresh=False) as live:
                while True:
                    self.session.check()
                    live.update(self._picture(handle), refresh=True)
                    if self.session.pipeline.ended:
                        return
                    time.sleep(0.3)
        except KeyboardInterrupt:
            return
        except PenstockError as error:
            self.console.print(str(error), style="red", markup=False)

    def _picture(self, handle: QueryHandle) -> Table | Text:
        status = handle.status()
        title = f"{handle.name}: {status['state']}, {status['rows']:,} rows delivered"
        try:
            rows = handle.rows()
        except PenstockError:
            return Text(title)
        whole = handle.mode in ("view", "kept")
        newest = rows if whole else rows.slice(max(0, rows.num_rows - 20))
        return as_table(newest, 20, title)

    def loop(self) -> None:
        """Read statements until the end of input."""
        kept = opened_history(Path.home() / ".penstock_history")
        prompt: PromptSession[str] = PromptSession(history=kept)
        self.console.print(f"Penstock shell.  {_HELP}", highlight=False)
        waiting = ""
        while True:
            try:
                mark = "      ... " if waiting else "penstock> "
                if isinstance(kept, ShellHistory):
                    kept.before = waiting
                line = prompt.prompt(mark, completer=self._completer())
            except KeyboardInterrupt:
                waiting = ""
                continue
            except EOFError:
                return
            if not waiting and line.strip().startswith("\\"):
                if self._command(line.strip()):
                    return
                continue
            waiting = f"{waiting}\n{line}" if waiting else line
            if waiting.strip().endswith(";"):
                self.run(waiting)
                waiting = ""
            elif not waiting.strip():
                waiting = ""

    def _command(self, line: str) -> bool:
        words = line.split()
        if words[0] in ("\\q", "\\quit"):
            return True
        if words[0] == "\\watch" and len(words) == 2:
            try:
                self.watch(self.session.query(words[1]))
            except PenstockError as error:
                self.console.print(str(error), style="red", markup=False)
        else:
            self.console.print(_HELP, highlight=False)
        return False

    def _completer(self) -> WordCompleter:
        catalog = self.session.catalog
        names = [
            definition.name
            for kind in ("stream", "table", "view", "sink", "query")
            for definition in catalog.of_kind(kind).values()
        ]
        columns = [c for d in catalog.streams.values() for c in d.schema.names]
        known = [f.upper() for f in functions.FUNCTIONS]
        return WordCompleter([*_KEYWORDS.split(), *names, *columns, *known], ignore_case=True)
