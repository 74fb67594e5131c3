"""The durable state of one operator in one shard: named lists of immutable runs, and numbers.

A run is an Arrow table that was written once.  A state is changed only by appending runs, by
skipping rows at a run's front, and by putting other runs in the place of some (`runs.spine` does
all of it); the file that describes it all (the manifest) is written by the driver when every task
is done.  `Storage` says where runs go:
`MemoryStorage` for tests and experiments, `runs.segments` for files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from penstock.runs.failpoints import passing


@dataclass(eq=False)
class Run:
    """A run: where it lies, how many rows it has, how many at its front are used up.

    ``stats`` are small numbers that let a reader pass over the run without opening it.
    """

    place: dict[str, Any]
    rows: int
    skipped: int = 0
    stats: dict[str, int] = field(default_factory=dict)
    _table: pa.Table | None = None
    _storage: Storage | None = None

    def table(self) -> pa.Table:
        """Return the rows that are not skipped, one chunk per column, memory-mapped if possible."""
        if self._table is None:
            assert self._storage is not None
            self._table = self._storage.read(self.place)
        return self._table.slice(self.skipped) if self.skipped else self._table

    def fetch(self) -> pa.Table:
        """Return the rows read into memory of their own; nothing but the caller keeps them."""
        assert self._storage is not None
        table = self._storage.fetch(self.place)
        return table.slice(self.skipped) if self.skipped else table

    def __len__(self) -> int:
        return self.rows - self.skipped

    def describe(self) -> dict[str, Any]:
        return {
            "place": self.place,
            "rows": self.rows,
            "skipped": self.skipped,
            "stats": self.stats,
        }


class Storage(Protocol):
    """Where runs are kept."""

    def write(self, table: pa.Table) -> dict[str, Any]:
        """Write a table and return its place, which is JSON."""

    def read(self, place: dict[str, Any]) -> pa.Table:
        """Return the table at a place."""

    def fetch(self, place: dict[str, Any]) -> pa.Table:
        """Return the table at a place, read and not mapped: memory is free when it is let go."""


class MemoryStorage:
    """Runs in memory, for unit tests and experiments."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []

    def write(self, table: pa.Table) -> dict[str, Any]:
        self.tables.append(table.combine_chunks())
        return {"index": len(self.tables) - 1}

    def read(self, place: dict[str, Any]) -> pa.Table:
        return self.tables[place["index"]]

    def fetch(self, place: dict[str, Any]) -> pa.Table:
        return self.read(place)


class State:
    """The state of one operator in one shard."""

    def __init__(self, storage: Storage, description: Mapping[str, Any] | None = None) -> None:
        description = description or {}
        self.storage = storage
        self.numbers: dict[str, int] = dict(description.get("numbers", {}))
        self._runs: dict[str, list[Run]] = {
            name: [
                Run(r["place"], r["rows"], r["skipped"], dict(r["stats"]), None, storage)
                for r in runs
            ]
            for name, runs in description.get("runs", {}).items()
        }

    def runs(self, name: str) -> tuple[Run, ...]:
        """Return the live runs of a name, oldest first."""
        return tuple(self._runs.get(name, ()))

    def append(
        self, name: str, table: pa.Table, stats: Mapping[str, int] | None = None
    ) -> Run | None:
        """Add a run and return it; an empty table adds nothing."""
        if table.num_rows == 0:
            return None
        run = self.write(table, stats)
        self._runs.setdefault(name, []).append(run)
        return run

    def replace(
        self,
        name: str,
        old: Sequence[Run],
        table: pa.Table | None,
        stats: Mapping[str, int] | None = None,
    ) -> None:
        """Put one run in the place of ``old`` (where the first of them was), or drop them."""
        runs = self._runs.get(name, [])
        gone = {id(r) for r in old}
        at = next((i for i, r in enumerate(runs) if id(r) in gone), len(runs))
        kept_before = [r for r in runs[:at] if id(r) not in gone]
        kept_after = [r for r in runs[at:] if id(r) not in gone]
        new = [self.write(table, stats)] if table is not None and table.num_rows else []
        self._runs[name] = kept_before + new + kept_after
        passing("merge-before-manifest")

    def keep(self, name: str, runs: Sequence[Run]) -> None:
        """Let these, oldest first, be the runs of a name."""
        old = self._runs.get(name, ())
        self._runs[name] = list(runs)
        if any(run not in runs for run in old):
            passing("merge-before-manifest")

    def drop(self, name: str) -> None:
        """Drop all runs of a name."""
        self._runs.pop(name, None)

    def describe(self) -> dict[str, Any]:
        """Return the state as JSON."""
        runs = {name: [r.describe() for r in rs] for name, rs in self._runs.items() if rs}
        return {"numbers": self.numbers, "runs": runs}

    def write(self, table: pa.Table, stats: Mapping[str, int] | None = None) -> Run:
        """Write a run that belongs to no name yet; `keep` gives it one."""
        place = self.storage.write(table)
        own = {k: int(v) for k, v in (stats or {}).items()}
        return Run(place, table.num_rows, 0, own, None, self.storage)
