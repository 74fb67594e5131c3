"""Selection: the rows for which a predicate is true. Stateless; validity and holders unchanged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.expr.arrow import cannot_fail, evaluate_mask
from penstock.expr.nodes import Expr, columns_of
from penstock.model import Batch, Closed, Message
from penstock.operators.base import Operator
from penstock.operators.spec import Spec


@dataclass(frozen=True)
class FilterSpec(Spec):
    """Keep the rows whose ``predicate`` is true."""

    predicate: Expr

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
        self.predicate = spec.predicate

    def on_rows(self, port: int, rows: Batch) -> Iterable[Message]:
        kept = rows.take(evaluate_mask(self.predicate, rows.columns, len(rows)))
        return (kept,) if len(kept) else ()

    def on_closed(self, port: int, closed: Closed) -> Iterable[Message]:
        return (closed,)
