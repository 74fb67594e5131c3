"""Turns of a lane in tests, and a program that makes them until it is killed.

``python -m tests.lanes FOLDER TURNS SINK`` opens the journal in a folder and appends turns until
there are so many; ``PENSTOCK_FAIL`` may stop it.  With a format of sinks they are delivered too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.catalog import SinkDef
from penstock.lane.journal import Journal, Mark, Rows, Turn
from penstock.model import Field, Schema
from penstock.runs import failpoints
from penstock.runs.deliveries import Delivered
from penstock.sinks import Result, Sink, SinkRequest, open_sink, read_committed
from penstock.sinks.delivery import Delivery, Outlet, hand_over
from penstock.sinks.file_encodings import ENCODINGS
from tests.databases import Place

RUN = "a run"


def answered(*seq: int) -> Rows:
    """Return some rows of a stream, told by their arrival numbers."""
    numbers = np.array(seq, np.int64)
    return Rows(numbers, numbers * 10, np.full(len(numbers), 3, np.uint8))


def result(*values: int) -> pa.Table:
    """Return answers with one column, as operators make them: value, start, end."""
    numbers = pa.array(values, pa.int64())
    ends = pa.array([value + 5 for value in values], pa.int64())
    return pa.table({"c0": numbers, "_start": numbers, "_end": ends})


def turn(number: int, batch: int = 3, queries: tuple[str, ...] = ("q",)) -> Turn:
    """Return a turn that is not numbered yet, whose contents follow from its number."""
    tables = {query: result(*range(number * 10, number * 10 + 2)) for query in queries}
    return Turn(0, batch, {"s": answered(number, number + 100)}, tables)


def opened(folder: Path, after: Mark | None = None, batch: int = 9, **more: Any) -> Journal:
    """Open the journal of a folder."""
    return Journal.open(folder, after or Mark.start(RUN), batch, **more)


def contents(journal: Journal) -> list[tuple[Any, ...]]:
    """Return what a journal keeps as plain values."""
    return [
        (t.number, t.batch, t.chain, plain_rows(t.rows), {q: t.results[q] for q in t.results})
        for t in journal.turns()
    ]


@contextmanager
def failing(order: str) -> Iterator[None]:
    """Give an order to fail for a while."""
    failpoints.arm(order)
    try:
        yield
    finally:
        failpoints.arm("")


def plain_rows(rows: Mapping[str, Rows]) -> dict[str, tuple[Any, ...]]:
    return {
        name: (found.seq.tolist(), found.time.tolist(), found.priority.tolist())
        for name, found in rows.items()
    }


SCHEMA = Schema((Field("n", pa.int64()),))


class Life:
    """A query ``q`` whose answers come into one sink by batches and by turns.

    ``folder`` holds the checkpoint and, where it is made of files, the sink; ``called`` is what a
    callback got.
    """

    def __init__(self, folder: Path, kind: str, address: str = "", **options: str) -> None:
        self.folder = folder
        self.kind = kind
        self.address = address
        self.options = options
        self.run = RUN
        self.mark = Mark.start(RUN)
        self.known: dict[str, Delivered] = {}
        self.called: list[tuple[int, list[int]]] = []

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def definition(self) -> SinkDef:
        options = {
            "sqlite": {"path": str(self.folder / "out.db"), "table": "out"},
            "postgresql": {"url": self.address, "table": "out"},
            **{name: {"path": str(self.folder / "out")} for name in ENCODINGS},
        }
        return SinkDef("out", self.kind, options.get(self.kind, {}) | self.options)

    def open(self, outlet: str) -> Sink:
        """Open the sink for an outlet."""
        request = SinkRequest(
            outlet,
            "intervals",
            SCHEMA,
            ledger=self.checkpoint / "delivered",
            callback=self._call,
            run=self.run,
        )
        return open_sink(self.definition(), request)

    def start(self, allow_change: bool = False, lane: bool = True) -> Life:
        """Open everything as a session does: check first, then begin; give what is missing."""
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        self.delivery = Delivery(str)
        self.main = self.open("q")
        self.delivery.outlets["q"] = Outlet(SCHEMA, "intervals", False, self.main)
        if lane:
            turns = self.main.for_turns(lambda: self.open("q~lane"))
            self.delivery.lanes["q~lane"] = Outlet(SCHEMA, "intervals", False, turns)
        names = list(self.delivery.lanes)
        try:
            self.journal = opened(self.checkpoint, self.mark, told=self.known)
            anew = self.delivery.check_turns(names, self.journal, allow_change)
        except BaseException:
            self.delivery.close()
            raise
        self.journal.tell(anew)
        self.main.begin()
        self.delivery.begin(names)
        return self

    def stop(self) -> Life:
        """Close everything."""
        self.delivery.close()
        self.journal.close()
        return self

    def answer(self, *values: int) -> Turn:
        """Answer rows by the lane: into the journal, then to the sink."""
        turn = Turn(0, 3, {"s": answered(*values)}, {"q": result(*values)})
        numbered = self.journal.append(turn)
        self.delivery.deliver_turn(numbered)
        return numbered

    def batch(self, number: int, *values: int) -> None:
        """Deliver a batch."""
        table = result(*values).rename_columns(["n", "_start", "_end"])
        made = Result(
            "q", number, "intervals", SCHEMA, False, table, lineage=f"{self.run} {number}"
        )
        hand_over(self.main, made)

    def commit(self) -> None:
        """Write down what a manifest would: the rows of all turns are in batches."""
        self.mark = self.journal.settle(self.journal.last)
        self.known = self.journal.told
        self.journal.rotate()

    def copy(self, folder: Path) -> Life:
        """Return a copy of everything that is in files."""
        shutil.copytree(self.folder, folder)
        other = copy(self)
        other.folder = folder
        return other

    def _call(self, number: int, rows: pa.Table) -> None:
        self.called.append((number, rows.column("n").to_pylist()))

    def values(self) -> list[int]:
        """Return what has come into the sink, sorted."""
        if self.kind == "callback":
            return sorted(value for _, values in self.called for value in values)
        if self.kind in ("sqlite", "postgresql"):
            place = Place(self.kind, self.address or str(self.folder / "out.db"))
            return sorted(value for (value,) in place.run("SELECT n FROM out"))
        if self.kind == "memory":
            return sorted(self.main.table().column("n").to_pylist())
        return sorted(int(row["n"]) for row in read_committed(self.folder / "out"))


def run_until(folder: Path, turns: int, fail: str = "", sink: str = "") -> int:
    """Run the program of this module; return how it ended."""
    words = [sys.executable, "-m", "tests.lanes", str(folder), str(turns), sink]
    environment = {**os.environ, "PENSTOCK_FAIL": fail}
    root = Path(__file__).parent.parent
    return subprocess.run(words, env=environment, cwd=root, timeout=120).returncode


def main() -> None:
    """Append turns, and deliver them if there is a sink."""
    folder, turns, sink = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if sink:
        life = Life(folder, sink).start()
        while life.journal.last < turns:
            life.answer(life.journal.last + 1)
        return
    journal = opened(folder)
    while journal.last < turns:
        journal.append(turn(journal.last + 1))
        if journal.last % 2 == 0:
            journal.rotate()


if __name__ == "__main__":
    main()
