"""Projection: new columns from old ones. Stateless; validity and holders unchanged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from penstock.expr.arrow import cannot_fail, evaluate
from penstock.expr.nodes import Column, Expr, columns_of
from penstock.model import Batch, Closed, Message
from penstock.operators.base import Operator
from penstock.operators.spec import Spec


@dataclass(frozen=True)
class ProjectSpec(Spec):
    """Compute ``exprs`` over the columns of each row.

    The result is a derived stream or relation, so the arrival number is dropped, unless it is to be
    kept because the elements are still those of the stream.
    """

    exprs: tuple[Expr, ...]
    keep_arrival: bool = False

    key = "project/1"
    rowwise = True
    sliced = False
    holders = "passes"

    def build(self) -> ProjectOperator:
        return ProjectOperator(self)

    @property
    def ends_rows(self) -> bool:
        return False

    def cannot_fail(self) -> bool:
        return all(map(cannot_fail, self.exprs))

    def reads(self, wanted: frozenset[int]) -> frozenset[int]:
        return frozenset[int]().union(*map(columns_of, self.exprs))


class ProjectOperator(Operator):
    """Computes each output column as an expression over the input's columns."""

    def __init__(self, spec: ProjectSpec) -> None:
        self.exprs = spec.exprs
        self.keep_arrival = spec.keep_arrival

    def on_rows(self, port: int, rows: Batch) -> Iterable[Message]:
        columns = tuple(evaluate(e, rows.columns, len(rows)) for e in self.exprs)
        return (replace(rows, columns=columns, seq=rows.seq if self.keep_arrival else None),)

    def on_closed(self, port: int, closed: Closed) -> Iterable[Message]:
        plain = {e.index: at for at, e in enumerate(self.exprs) if isinstance(e, Column)}
        moved = closed.moved(plain)
        return () if moved is None else (moved,)
