"""What sinks would be given, batch by batch, by an engine without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.algebra import Node
from penstock.physical.parcels import Parcel
from penstock.physical.reports import read_report
from penstock.runs.manifest import Manifest
from penstock.sinks import MemorySink, Result
from penstock.sinks.delivery import Outlet, outlet_result
from penstock.testing import LocalEngine


class DeliveringEngine(LocalEngine):
    """Runs one query, ``q``, and keeps the result of every batch as its sink gets it.

    The parts come in an order that depends on ``turn``: tasks end in any order.
    """

    def __init__(
        self,
        plan: Node,
        tables: Mapping[str, Sequence[tuple[Any, ...]]] | None = None,
        *,
        mode: str,
        turn: int = 0,
        **options: Any,
    ) -> None:
        super().__init__({"q": plan}, tables, mode=mode, **options)
        self._outlet = Outlet(plan.schema, mode, False, MemorySink(mode, plan.schema))
        self._turn = turn
        self._published = 0
        self.results: list[Result] = []

    def batch(self, rows: Mapping[str, Sequence[tuple[Any, ...]]], final: bool = False) -> None:
        super().batch(rows, final)
        self._published += 1

    def _take_reports(self, parcels: Iterable[Parcel]) -> None:
        kept = list(parcels)
        super()._take_reports(kept)
        found = [part for parcel in kept for part in read_report(parcel)["results"]]
        if found:
            at = self._turn % len(found)
            found = [*found[at:], *found[:at]]
            tables: list[pa.Table] = [self._storage.read(part["place"]) for part in found]
            told = Manifest(batch=self._published)
            self.results.append(outlet_result("q", told, self._outlet, found, tables))
