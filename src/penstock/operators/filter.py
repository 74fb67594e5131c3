"""Selection: the rows for which a predicate is true. Stateless; validity and holders unchanged."""

from __future__ import annotations

from collections.abc import Iterator

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

    def receive(self, port: int, message: Message) -> Iterator[Message]:
        if isinstance(message, Batch):
            message = message.take(evaluate_mask(self.predicate, message.columns, len(message)))
            if len(message) == 0:
                return
        yield message
