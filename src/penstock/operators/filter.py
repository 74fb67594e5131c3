"""Selection: the rows for which a predicate is true. Stateless; validity and holders unchanged."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.expr.arrow import evaluate_mask
from penstock.expr.nodes import Expr
from penstock.model import Batch, Message
from penstock.operators.base import Operator


class FilterOperator(Operator):
    """Keeps the rows whose predicate is true (neither false nor null)."""

    rowwise = True
    holders = "passes"
    ends_rows = False

    def __init__(self, predicate: Expr) -> None:
        self.predicate = predicate

    def on_rows(self, port: int, rows: Batch) -> Iterable[Message]:
        kept = rows.take(evaluate_mask(self.predicate, rows.columns, len(rows)))
        return (kept,) if len(kept) else ()
