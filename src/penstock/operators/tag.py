"""Numbers for rows: behind its columns every row gets a number that no other row of the plan has.

A join that must know which of its rows found a partner (LEFT, ANTI and so on) follows them by these
numbers: equal rows are told apart, and one integer stands for a row of any width.  Numbers are
given in the order of arrival and, like holders, contain the node and the shard that gave them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.model import Batch, Message
from penstock.operators.base import Operator

NUMBER = pa.int64()
"""The type of the column that is added."""


class TagOperator(Operator):
    """Adds the column of numbers; told ends and heartbeats pass."""

    def receive(self, port: int, message: Message) -> Iterator[Message]:
        if isinstance(message, Batch):
            numbers = self.context.new_holders(len(message))
            message = message.with_columns((*message.columns, pa.array(numbers)))
        yield message
