"""Numbers for rows: behind its columns every row gets a number that no other row of the plan has.

A join that must know which of its rows found a partner (LEFT, ANTI and so on) follows them by these
numbers: equal rows are told apart, and one integer stands for a row of any width.  Numbers are
given in the order of arrival and, like holders, contain the node and the shard that gave them.
With negative tuples the holder of a row is such a number already, and its negative has it too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from penstock.model import Batch, Closed, Message
from penstock.operators.base import Operator
from penstock.operators.spec import Spec

NUMBER = pa.int64()
"""The type of the column that is added."""


@dataclass(frozen=True)
class RowNumbersSpec(Spec):
    """Add a column of numbers behind the columns of a row."""

    key = "tag/1"
    sliced = False
    holders = "passes"

    def build(self) -> TagOperator:
        return TagOperator()

    @property
    def ends_rows(self) -> bool:
        return False


class TagOperator(Operator):
    """Adds the column of numbers; told ends and heartbeats pass."""

    def on_rows(self, port: int, rows: Batch) -> Iterable[Message]:
        numbers = rows.holder
        if self.context.settings.lifetime == "direct":
            numbers = self.context.new_holders(len(rows))
        elif (numbers == 0).any():
            numbers = numbers.copy()
            numbers[numbers == 0] = self.context.new_holders(int((numbers == 0).sum()))
        return (rows.with_columns((*rows.columns, pa.array(numbers))),)

    def on_closed(self, port: int, closed: Closed) -> Iterable[Message]:
        return (closed,)
