"""Selection: the rows for which a predicate is true; validity and holders unchanged.

No answer depends on what it keeps: what its conjuncts cost and drop, which gives their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.expr.arrow import cannot_fail
from penstock.expr.nodes import Expr, columns_of
from penstock.expr.selection import Selection
from penstock.model import Batch, Closed, Message
from penstock.operators.base import Context, Operator
from penstock.operators.spec import Spec


@dataclass(frozen=True)
class FilterSpec(Spec):
    """Keep the rows whose ``predicate`` is true.

    ``undelivered``: it leaves out what the lane has delivered; in the lane it keeps all.
    """

    predicate: Expr
    undelivered: bool = False

    key = "filter/1"
    rowwise = True
    sliced = False
    holders = "passes"

    def build(self) -> FilterOperator:
        return FilterOperator(self)

    @property
    def ends_rows(self) -> bool:
        return False

    def cannot_fail(self) -> bool:
        return cannot_fail(self.predicate)

    def reads(self, wanted: frozenset[int]) -> frozenset[int]:
        return wanted | columns_of(self.predicate)


class FilterOperator(Operator):
    """Keeps the rows whose predicate is true (neither false nor null)."""

    def __init__(self, spec: FilterSpec) -> None:
        self._predicate = spec.predicate

    def open(self, context: Context) -> None:
        super().open(context)
        adaptive = context.settings.filter_order == "adaptive"
        self._selection = Selection(self._predicate, context.state.numbers, adaptive)

    def on_rows(self, port: int, rows: Batch) -> Iterable[Message]:
        kept = rows.take(self._selection.mask(rows.columns, len(rows)))
        return (kept,) if len(kept) else ()

    def on_closed(self, port: int, closed: Closed) -> Iterable[Message]:
        return (closed,)

    def close(self) -> None:
        self._selection.store(self.context.state.numbers)
