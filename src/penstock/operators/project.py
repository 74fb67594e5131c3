"""Projection: new columns from old ones. Stateless; validity and holders unchanged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.expr.arrow import evaluate
from penstock.expr.nodes import Expr
from penstock.model import Batch, Message
from penstock.operators.base import Operator


class ProjectOperator(Operator):
    """Computes each output column as an expression over the input's columns.

    The result is a derived stream or relation, so the arrival number is dropped, unless it is to be
    kept because the elements are still those of the stream.
    """

    rowwise = True
    holders = "passes"
    ends_rows = False

    def __init__(self, exprs: tuple[Expr, ...], keep_arrival: bool = False) -> None:
        self.exprs = exprs
        self.keep_arrival = keep_arrival

    def on_rows(self, port: int, rows: Batch) -> Iterable[Message]:
        columns = tuple(evaluate(e, rows.columns, len(rows)) for e in self.exprs)
        return (replace(rows, columns=columns, seq=rows.seq if self.keep_arrival else None),)
