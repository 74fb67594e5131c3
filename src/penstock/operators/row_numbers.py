"""Numbers for rows: behind its columns every row gets a number that no other row of the plan has.

A join that must know which of its rows found a partner (LEFT, ANTI and so on) follows them by these
numbers: equal rows are told apart, and one integer stands for a row of any width.  Numbers are
given in the order of arrival and, like holders, contain the node and the shard that gave them.
With negative tuples the holder of a row is such a number already, and its negative has it too.
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

    holders = "passes"
    ends_rows = False

    def receive(self, port: int, message: Message) -> Iterator[Message]:
        if isinstance(message, Batch):
            numbers = message.holder
            if self.context.settings.lifetime == "direct":
                numbers = self.context.new_holders(len(message))
            elif (numbers == 0).any():
                numbers = numbers.copy()
                numbers[numbers == 0] = self.context.new_holders(int((numbers == 0).sum()))
            message = message.with_columns((*message.columns, pa.array(numbers)))
        yield message
