"""Sorted runs in external memory: written and read block by block, with pages counted [B 3.2].

A sorted run is a list of blocks, each an immutable run of the state, so it stands in the manifest
and survives a crash like all state.  A block is read as a whole, without mapping it, and let go
when the cursor passes its end.  Pages have 4 KiB.

`merged` reads several cursors of several inputs together.  In every round it finds the place up to
which all of them are in memory, and hands out the rows up to there, sorted, per input.  At least
one cursor uses its block up in a round, so a round costs about a block.

`ResultSort` sorts results by ``(start, end)``; what does not fit goes to a file without a name,
which is gone when the step is over: results leave in the batch in which they are made.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.kernels.sweep_areas import Elements
from penstock.model import Batch
from penstock.runs.state import Run, State

PAGE = 4096
_RESULT_RUNS = 64
"""Runs of results that are merged at once."""


@dataclass
class Work:
    """What a join did in external memory, and how many bytes it held at most."""

    pages_read: int = 0
    pages_written: int = 0
    result_pages: int = 0
    rows_merged: int = 0
    steps: int = 0
    plain_merges: int = 0
    most_bytes: int = 0

    @property
    def pages(self) -> int:
        return self.pages_read + self.pages_written + self.result_pages


def pages_of(size: int) -> int:
    """Return the number of pages that so many bytes take."""
    return -(-size // PAGE)


class RunWriter:
    """Writes rows that come in value order as the blocks of one sorted run."""

    def __init__(
        self, state: State, name: str, stats: dict[str, int], block: int, work: Work
    ) -> None:
        self._state = state
        self._name = name
        self._stats = stats
        self._block = block
        self._work = work
        self._parts: list[Batch] = []
        self.nbytes = 0
        self.runs: list[Run] = []

    def add(self, rows: Batch) -> None:
        """Append rows; full blocks are written at once."""
        if len(rows) == 0:
            return
        self._parts.append(rows)
        self.nbytes += size_of(rows)
        if self.nbytes >= self._block:
            self._write(False)

    def close(self) -> list[Run]:
        """Write what is left and return the blocks."""
        if self._parts:
            self._write(True)
        return self.runs

    def _write(self, final: bool) -> None:
        rows = Batch.concat(self._parts)
        per_block = max(1, len(rows) * self._block // max(1, self.nbytes))
        last = len(rows) if final else len(rows) // per_block * per_block
        for first in range(0, last, per_block):
            table = table_of(rows.slice(first, min(first + per_block, last)))
            self._state.append(self._name, table, self._stats)
            run = self._state.runs(self._name)[-1]
            run.stats["bytes"] = int(run.place.get("length", table.nbytes))
            self._work.pages_written += pages_of(run.stats["bytes"])
            self.runs.append(run)
        rest = rows.slice(last, len(rows))
        self._parts = [rest] if len(rest) else []
        self.nbytes = size_of(rest)


def table_of(rows: Batch) -> pa.Table:
    """Return rows without holders as a table."""
    return rows.to_table().drop_columns(["_holder"])


def rows_of(table: pa.Table) -> Batch:
    """The inverse of `table_of`."""
    zeros = pa.array(np.zeros(table.num_rows, np.int64))
    return Batch.from_table(table.append_column("_holder", zeros))


def size_of(rows: Batch) -> int:
    """Return the bytes of rows: their values and both ends of their validity."""
    return sum(int(c.nbytes) for c in rows.columns) + 16 * len(rows)


class Cursor:
    """Reads the blocks of one sorted run in order, as many as go into ``share`` bytes at once.

    ``read`` makes rows of them; it may leave rows out, but not change their order.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        read: Callable[[pa.Table], Elements],
        share: int,
        work: Work,
    ) -> None:
        self._runs = list(reversed(runs))
        self._read = read
        self._share = share
        self._work = work
        self._held: Elements | None = None

    @staticmethod
    def of(elements: Elements) -> Cursor:
        """Return a cursor on rows that are in memory."""
        cursor = Cursor((), _nothing, 0, Work())
        cursor._held = elements
        return cursor

    @property
    def more(self) -> bool:
        """Whether blocks are left in the file."""
        return bool(self._runs)

    @property
    def nbytes(self) -> int:
        return 0 if self._held is None else self._held.nbytes

    def fill(self) -> bool:
        """Read on if nothing is held; return whether rows are held then."""
        while (self._held is None or len(self._held) == 0) and self._runs:
            tables: list[pa.Table] = []
            size = 0
            while self._runs:
                size += self._runs[-1].stats["bytes"]
                if tables and size > self._share:
                    break
                run = self._runs.pop()
                self._work.pages_read += pages_of(run.stats["bytes"])
                tables.append(run.fetch())
            self._held = self._read(pa.concat_tables(tables))
        return self._held is not None and len(self._held) > 0

    def last(self) -> float:
        assert self._held is not None
        return float(self._held.view.at[-1])

    def take(self, bound: float) -> Elements | None:
        """Return the rows that are held, up to ``bound``."""
        if self._held is None or len(self._held) == 0:
            return None
        count = int(np.searchsorted(self._held.view.at, bound, "right"))
        taken, self._held = self._held.split(count)
        return taken if count else None


def _nothing(table: pa.Table) -> Elements:
    raise AssertionError(f"rows in memory are not read again, got {table.num_rows}")


def merged(
    inputs: Sequence[Sequence[Cursor]], work: Work
) -> Iterator[tuple[float, list[Elements | None]]]:
    """Yield the rows of all inputs in one order: a place, and the rows up to it of each input."""
    everything = [cursor for cursors in inputs for cursor in cursors]
    while True:
        held = [cursor for cursor in everything if cursor.fill()]
        if not held:
            return
        bound = min((cursor.last() for cursor in held if cursor.more), default=np.inf)
        blocks: list[Elements | None] = []
        for cursors in inputs:
            parts = [part for cursor in cursors if (part := cursor.take(bound)) is not None]
            blocks.append(Elements.concat(parts).sort() if parts else None)
            work.rows_merged += sum(len(part) for part in parts)
        yield bound, blocks


class ResultSort:
    """Collects results and yields them sorted by ``(start, end)``, within ``memory`` bytes."""

    def __init__(self, memory: int, work: Work) -> None:
        self._memory = memory
        self._work = work
        self._parts: list[Batch] = []
        self.nbytes = 0
        self._file: tempfile.SpooledTemporaryFile[bytes] | None = None
        self._runs: list[list[tuple[int, int]]] = []

    def add(self, rows: Batch) -> None:
        """Take results in any order."""
        self._parts.append(rows)
        self.nbytes += size_of(rows)
        if self.nbytes >= self._memory:
            self._spill(iter([self._in_memory()]))
            if len(self._runs) >= _RESULT_RUNS:
                runs, self._runs = self._runs, []
                self._spill(self._merge(runs))

    def sorted(self, block: int) -> Iterator[Batch]:
        """Yield everything in order, at most ``block`` rows at a time."""
        if not self._runs:
            parts = iter([self._in_memory()]) if self._parts else iter(())
        else:
            if self._parts:
                self._spill(iter([self._in_memory()]))
            parts = self._merge(self._runs)
        for part in parts:
            for first in range(0, len(part), block):
                yield part.slice(first, min(first + block, len(part)))
        if self._file is not None:
            self._file.close()

    def _in_memory(self) -> Batch:
        rows = _by_time(self._parts)
        self._parts, self.nbytes = [], 0
        return rows

    def _spill(self, parts: Iterator[Batch]) -> None:
        """Write sorted rows as a run of blocks."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="penstock-results-")  # type: ignore[assignment]  # noqa: SIM115
        assert self._file is not None
        run = []
        for rows in parts:
            size = max(PAGE, self._memory // _RESULT_RUNS)
            per_block = max(1, len(rows) * size // max(1, size_of(rows)))
            for first in range(0, len(rows), per_block):
                table = table_of(rows.slice(first, min(first + per_block, len(rows))))
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, table.schema) as writer:
                    writer.write_table(table)
                data = sink.getvalue()
                offset = self._file.seek(0, 2)
                self._file.write(data)
                run.append((offset, data.size))
                self._work.result_pages += pages_of(data.size)
        self._runs.append(run)

    def _merge(self, runs: Sequence[list[tuple[int, int]]]) -> Iterator[Batch]:
        """Merge runs of results; a block of each is in memory."""
        waiting = [list(reversed(run)) for run in runs]
        held: list[Batch | None] = [None] * len(runs)
        while True:
            for i, places in enumerate(waiting):
                if held[i] is None and places:
                    held[i] = self._read(*places.pop())
            bounds = [
                (int(rows.start[-1]), int(rows.end[-1]))
                for rows, places in zip(held, waiting, strict=True)
                if rows is not None and places
            ]
            if not bounds and all(rows is None for rows in held):
                return
            parts = []
            for i, rows in enumerate(held):
                if rows is None:
                    continue
                count = _up_to(rows, min(bounds)) if bounds else len(rows)
                parts.append(rows.slice(0, count))
                held[i] = rows.slice(count, len(rows)) if count < len(rows) else None
            yield _by_time(parts)

    def _read(self, offset: int, size: int) -> Batch:
        assert self._file is not None
        self._file.seek(offset)
        self._work.result_pages += pages_of(size)
        return rows_of(pa.ipc.open_stream(self._file.read(size)).read_all())


def _by_time(parts: Sequence[Batch]) -> Batch:
    rows = Batch.concat(parts)
    return rows.take(np.lexsort((rows.end, rows.start)))


def _up_to(rows: Batch, bound: tuple[int, int]) -> int:
    """Return how many sorted rows are at or below ``(start, end)``."""
    start, end = bound
    first = int(np.searchsorted(rows.start, start, "left"))
    last = int(np.searchsorted(rows.start, start, "right"))
    return first + int(np.searchsorted(rows.end[first:last], end, "right"))
