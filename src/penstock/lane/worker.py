"""The process of the lane: it answers rows from committed state, and holds nothing of its own.

It is a child of the driver and talks with it over a pair of sockets.  Whoever kills it, or lets it
hang, loses nothing: rows that it has not answered come by the main lane.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.expr.own import allow, declared_places
from penstock.lane.answering import Answerer, Asked, Committed, Remembered
from penstock.lane.early import EarlyAnswerer, EarlyQuery
from penstock.lane.early import answered as early_answers
from penstock.lane.talk import Talk
from penstock.model import I64, Batch, one_array
from penstock.physical.plan import PhysicalPlan
from penstock.physical.split_routes import Route
from penstock.runs.segments import SegmentStorage, forget_deleted
from penstock.settings import Settings

_PROGRAM = "from penstock.lane.worker import main; main()"
"""Run like this and not as a script, the module has the classes that messages are made of."""


_LONGEST_START = 30.0
"""Seconds that the process may need at least until it has started."""
_TO_RENEW = 6
"""So many times as long as for an answer the process may need to go on from another batch."""


class WorkerLostError(Exception):
    """The process of the lane has ended, hangs, or cannot do its work."""


class WorkerFailedError(WorkerLostError):
    """The process is there, but could not do what it was asked to do."""


@dataclass(frozen=True)
class Renewal:
    """What is true after a batch, as the process of the lane is told."""

    plan: PhysicalPlan
    settings: Settings
    segments: str
    batch: int
    states: Sequence[Mapping[str, Any]]
    beats: Mapping[str, int]
    routes: Mapping[int, Route]
    memory: Sequence[Remembered] = ()
    early: Sequence[EarlyQuery] = ()
    functions: Mapping[str, str] = field(default_factory=declared_places)


@dataclass(frozen=True)
class Question:
    """Rows to be answered in one turn, by stream: values and times."""

    turn: int
    rows: Mapping[str, tuple[pa.Table, I64]]


class Worker:
    """The driver's end: starts the process, asks it, and gives it up when it does not answer."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self.started = False
        """Whether it has been told of a batch, so that it can answer."""
        mine, theirs = socket.socketpair()
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt of the terminal is the driver's business
        )
        theirs.close()
        self._talk = Talk(mine)
        self._is_there = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def await_start(self) -> None:
        """Wait until the process listens: what is told it before may be old by then."""
        if not self._is_there:
            self._hear(max(_TO_RENEW * self._patience, _LONGEST_START))
            self._is_there = True

    def renew(self, renewal: Renewal) -> None:
        """Let the process go on from another batch."""
        self.await_start()
        seconds = _TO_RENEW * self._patience
        self._ask(renewal, seconds if self.started else max(seconds, _LONGEST_START))
        self.started = True

    def answer(self, question: Question) -> dict[str, pa.Table]:
        """Return the answers to rows, by query, as result runs hold them."""
        found: dict[str, pa.Table] = self._ask(question, self._patience)
        return found

    def _ask(self, message: Renewal | Question, seconds: float) -> Any:
        return self._hear(seconds, lambda: self._talk.send(message, seconds))

    def _hear(self, seconds: float, say: Callable[[], None] = lambda: None) -> Any:
        """Say something, and return what the process says to it."""
        try:
            say()
            fine, answer = self._talk.recv(seconds)
        except TimeoutError:
            raise WorkerLostError(f"it gave no answer within {seconds:g} s") from None
        except (EOFError, OSError) as error:
            code = self._process.poll()
            what = "it was killed" if code is not None and code < 0 else "it has ended"
            raise WorkerLostError(what) from error
        if not fine:
            raise WorkerFailedError(answer)
        return answer

    def kill(self) -> None:
        """End the process whatever it does: who waits for its answer is told that it is lost."""
        self._process.kill()

    def close(self) -> None:
        """End the process, and hang up."""
        self._talk.close()
        self._process.kill()
        self._process.wait()


class _Work:
    """The process's own end."""

    def __init__(self) -> None:
        self._answerer: Answerer | None = None
        self._early: list[EarlyAnswerer] = []
        self._batch = -1

    def do(self, message: Renewal | Question) -> Any:
        if isinstance(message, Renewal):
            return self._renew(message)
        assert self._answerer is not None
        rows = {
            stream: Asked([one_array(c) for c in table.columns], time)
            for stream, (table, time) in message.rows.items()
        }
        answers = self._answerer.answer(rows, message.turn)
        answers |= early_answers(self._early, rows, self._batch)
        return {query: _result(batch) for query, batch in answers.items()}

    def _renew(self, told: Renewal) -> None:
        allow(told.functions, one_machine=True)
        answerer = Answerer(told.plan, told.settings)
        storage = SegmentStorage(told.segments, "lane", fsync=False)
        committed = Committed(told.batch, told.states, told.beats, storage, told.routes)
        answerer.renew(committed, told.memory)
        answerer.warm()
        self._early = [EarlyAnswerer(query, committed, told.settings) for query in told.early]
        self._answerer, self._batch = answerer, told.batch
        forget_deleted()


def _result(batch: Batch) -> pa.Table:
    return batch.to_table().drop_columns("_holder")


def _sentence(error: Exception) -> str:
    """Return what went wrong; of a fault of our own also where."""
    if isinstance(error, PenstockError):
        return str(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {where.name}: {error}"


def main() -> None:
    """Answer until the driver hangs up."""
    talk = Talk(socket.socket(fileno=int(sys.argv[1])))
    work = _Work()
    with suppress(OSError):
        talk.send((True, None))  # it listens
    while True:
        try:
            message = talk.recv()
        except (EOFError, OSError):
            return
        try:
            told = True, work.do(message)
        except Exception as error:  # whatever it is: the driver says it, the main lane goes on
            told = False, _sentence(error)
        try:
            talk.send(told)
        except OSError:
            return
