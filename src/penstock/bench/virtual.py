"""A virtual machine for experiments: one processor and one disk, whose work takes virtual time.

Operators really run, and pages and rows are really counted; only time is computed.  So a run of
minutes is over in seconds and gives the same numbers everywhere.  A page of 4 KiB takes what it
takes on a disk of 80 MB/s, a row that is merged and a result half a microsecond and one: two
million rows and a million results in a second, of the order of what one core of today does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field

import numpy as np
import pyarrow as pa

from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Case, Column, Expr
from penstock.kernels.join_orders import Overlap
from penstock.model import INF, Batch, Heartbeat, Message
from penstock.operators.base import Context
from penstock.operators.merge_join import Budget, MergeJoin, TemporalMergeJoinSpec
from penstock.runs.merging import Merging
from penstock.runs.paged import Work
from penstock.runs.segments import SegmentStorage
from penstock.runs.state import State

PAGE_MS, ROW_MS, RESULT_MS = 0.05, 0.0005, 0.001
BATCH_MS = 200
"""Heartbeats are this far apart."""
LENGTH = 7.5
"""Length of the value intervals."""
MEMORY = 1_000_000
"""Bytes for initial runs, in all operators of a plan together."""
ROOM_FOR_RESULTS = 64 << 20
"""Bytes for sorting results, in each operator: enough, as in the paper, which sets no limit."""
FAN_IN = 8
F64 = pa.float64()
INTERVAL = (F64, F64)

Tick = Callable[[float], None]
"""Is told how much of an experiment is done, from 0 to 1."""


@dataclass(frozen=True)
class Streams:
    """Value intervals that begin at a random permutation of 1..n per stream, at times 1..n."""

    begins: tuple[np.ndarray, ...]
    window: int

    @staticmethod
    def make(rows: int, count: int, seed: int) -> Streams:
        chance = np.random.default_rng(seed)
        begins = tuple(chance.permutation(rows) + 1 for _ in range(count))
        return Streams(begins, rows // 10)

    @property
    def rows(self) -> int:
        return len(self.begins[0])

    def batch(self, stream: int, first: int, last: int, window: int | None = None) -> Batch:
        """Return the elements with the numbers ``first + 1 .. last``."""
        low = self.begins[stream][first:last].astype(np.float64)
        start = np.arange(first + 1, last + 1)
        end = start + (self.window if window is None else window)
        return Batch.of([pa.array(low), pa.array(low + LENGTH)], start, end)


@dataclass
class VirtualMachine:
    """Work is done in the order in which it comes; it is free again at ``free``, in ms."""

    free: float = 0.0

    def spend(self, at: float, pages: int, rows: int, results: int) -> float:
        """Do work that is there at a time; return when it is done."""
        cost = PAGE_MS * pages + ROW_MS * rows + RESULT_MS * results
        self.free = max(self.free, at) + cost
        return self.free


@dataclass
class Plan:
    """Operators of which each feeds the first input of the next; ``taken`` collects the results."""

    operators: Sequence[MergeJoin]
    taken: list[Batch] = field(default_factory=list)
    made: int = 0
    """Results of all operators, also those in between."""

    def inputs(self) -> Iterator[tuple[int, int]]:
        """Yield (operator, port) of each stream, in the order of the streams."""
        for at, operator in enumerate(self.operators):
            for port in range(0 if at == 0 else 1, operator.ports):
                yield at, port

    def push(self, at: int, port: int, message: Message) -> None:
        for answer in self.operators[at].receive(port, message):
            if isinstance(answer, Batch):
                self.made += len(answer)
            if at + 1 < len(self.operators):
                self.push(at + 1, 0, answer)
            elif isinstance(answer, Batch):
                self.taken.append(answer)

    def feed(self, streams: Streams, first: int, last: int) -> None:
        """Hand the next elements of all streams over, then the heartbeat that follows."""
        for stream, (at, port) in enumerate(self.inputs()):
            if last > first:
                self.push(at, port, streams.batch(stream, first, last))
        time = INF if last == first else last
        for at, port in self.inputs():
            self.push(at, port, Heartbeat(time))

    @property
    def work(self) -> Work:
        done = [astuple(operator.work) for operator in self.operators]
        return Work(*map(sum, zip(*done, strict=True)))


def four_way(memory: int, results: int) -> list[MergeJoin]:
    """One operator for four streams."""
    ends = (Column(0, F64), Column(1, F64))
    budget = Budget(memory, memory, results)
    return [TemporalMergeJoinSpec((INTERVAL,) * 4, (ends,) * 4, Overlap(), None, budget).build()]


def cascade(memory: int, results: int) -> list[MergeJoin]:
    """A left-deep cascade of three binary operators, which share the memory for runs."""
    budget = Budget(memory // 3, memory // 3, results)
    operators: list[MergeJoin] = []
    right = (Column(0, F64), Column(1, F64))
    for joined in (1, 2, 3):
        lows = [Column(2 * i, F64) for i in range(joined)]
        highs = [Column(2 * i + 1, F64) for i in range(joined)]
        left = (_extreme("ge", lows), _extreme("le", highs))
        types = (INTERVAL * joined, INTERVAL)
        operators.append(
            TemporalMergeJoinSpec(types, (left, right), Overlap(), None, budget).build()
        )
    return operators


def _extreme(comparison: str, columns: Sequence[Expr]) -> Expr:
    """Return the largest (ge) or smallest (le) of some columns."""
    best = columns[0]
    for column in columns[1:]:
        wins = resolve_call(comparison, [best, column])
        best = Case(((wins, best),), column, F64)
    return best


@contextmanager
def opened(operators: Sequence[MergeJoin], strategy: str, fan_in: int = FAN_IN) -> Iterator[Plan]:
    """Open operators on files of their own, for the whole experiment."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        SegmentStorage(folder, "run", fsync=False) as storage,
    ):
        for operator in operators:
            operator.open(Context(State(storage), merging=Merging(strategy, fan_in)))
        yield Plan(operators)
