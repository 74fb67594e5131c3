"""Window functions over each snapshot of a relation: every row with what they give for it.

Of the groups that a slice touches (`runs.ordered_groups`), every step is laid out as a list of the
rows that are there; the functions are computed over all lists at once (`kernels.extents`).  A row
is cut where a function changes.  So a slice costs, for each group that changes, its rows times the
steps at which it changes.  A bound such as ``ROW_NUMBER() <= 10`` costs less
(`operators.group_top`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.expr.arrow import evaluate
from penstock.expr.frames import NUMBERS, PICKS, SHIFTS, RankCall
from penstock.expr.nodes import Cast, Expr
from penstock.kernels.extents import (
    VARIANCES,
    Extent,
    Lists,
    aggregated,
    has_distance,
    number,
    picked_value,
    shifted,
)
from penstock.kernels.keys import hash_columns
from penstock.kernels.sorting import order_of_codes
from penstock.kernels.steps import ranges
from penstock.model import I64, Batch, Ends, Mask, one_array, to_mask, to_numpy
from penstock.operators.base import SlicedOperator
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec
from penstock.runs.ordered_groups import Groups, OrderBy, OrderedGroups, Runs


@dataclass(frozen=True)
class RankSpec(Spec):
    """Append one column per call to the rows of each group of equal ``partition``.

    ``partition`` are positions of columns; ``order`` lists (expression, descending, nulls first).
    """

    types: Sequence[pa.DataType]
    partition: tuple[int, ...]
    order: OrderBy
    calls: tuple[RankCall, ...]

    key = "rank/1"

    def build(self) -> RankOperator:
        return RankOperator(self)


@dataclass(frozen=True)
class _Laid:
    """The rows of lists: which ``row``, as they came, stands at each position."""

    rows: Batch
    row: I64
    arguments: dict[Expr, pa.Array]

    def argument(self, expr: Expr) -> pa.Array:
        """Return an argument at every position."""
        return self.arguments[expr].take(pa.array(self.row))

    def value(self, expr: Expr, at: I64) -> pa.Array:
        """Return any expression at some positions."""
        return one_array(evaluate(expr, self.rows.take(self.row[at]).columns, len(at)))


class RankOperator(SlicedOperator):
    """Appends one column per call to the rows of each snapshot."""

    reads_deaths = True

    def __init__(self, spec: RankSpec) -> None:
        super().__init__([spec.types])
        self._spec = spec
        self._calls = spec.calls

    def load(self) -> None:
        spec, context = self._spec, self.context
        self._groups = OrderedGroups(
            context.state, spec.types, spec.partition, spec.order, context.merging
        )

    def save(self) -> None:
        self._groups.save()

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        rows, ends = slice.rows[0], slice.ends[0]
        return self._groups.turn(rows, ends, slice.until, self, self.context.new_holders)

    def needed(self, groups: Groups) -> Mask:
        """All rows count."""
        return groups.alive

    def runs(self, groups: Groups) -> Iterator[Runs]:
        """Yield every row with what the functions give for it at which steps."""
        arguments = self._arguments(groups)
        key, null = self._key(groups)
        for low, high in self._blocks(groups):
            inside = np.flatnonzero((groups.first < high) & (groups.last > low))
            first = np.maximum(groups.first[inside], low)
            owner, step = ranges(first, np.minimum(groups.last[inside], high))
            if len(owner) == 0:
                continue
            row = inside[owner]
            order = order_of_codes(step - low, high - low)  # rows of a step stay in their order
            mine = row[order]
            lists = Lists(step[order], groups.peers[mine])
            if key is not None:
                lists = Lists(lists.list, lists.peers, key[mine], null[mine])
            place = np.empty(len(order), np.int64)
            place[order] = np.arange(len(order))
            back = pa.array(place)
            rows = _Laid(groups.rows, groups.order[row[order]], arguments)
            columns = [self._answer(call, lists, rows).take(back) for call in self._calls]
            yield _cut(row, step, columns)

    def _key(self, groups: Groups) -> tuple[I64 | None, Mask]:
        """Return by what the rows are in order, ascending, if a distance asks for it."""
        none = np.zeros(len(groups.order), bool)
        if not any(has_distance(_extent(call)) for call in self._calls):
            return None, none
        ((by, descending, _),) = self._spec.order
        rows = groups.rows
        value = one_array(evaluate(by, rows.columns, len(rows))).take(pa.array(groups.order))
        if value.null_count:
            none = to_mask(value.is_null())
        if pa.types.is_date(value.type):
            value = value.cast(pa.int32())
        key = to_numpy(value.cast(pa.int64()).fill_null(0))
        return ~key if descending else key, none

    def _blocks(self, groups: Groups) -> Iterator[tuple[int, int]]:
        """Yield ranges of steps with not too many rows; small groups are kept whole."""
        steps, block = groups.steps, self.context.block
        change = np.bincount(groups.first, minlength=len(steps) + 1)
        change -= np.bincount(groups.last, minlength=len(steps) + 1)
        total = np.cumsum(np.cumsum(change))[: len(steps)]  # rows up to and with each step
        low = 0
        while low < len(steps):
            before = total[low - 1] if low else 0
            high = int(np.searchsorted(total, before + block, "right"))
            if high < len(steps):
                edge = int(np.searchsorted(steps.begin, high, "right")) - 1
                whole = int(steps.begin[edge]) if edge >= 0 else 0
                high = whole if whole > low else max(high, low + 1)
            yield low, high
            low = high

    def _arguments(self, groups: Groups) -> dict[Expr, pa.Array]:
        """Return every argument for every row of the groups, as they came."""
        rows = groups.rows
        wanted = dict.fromkeys(_argument(call) for call in self._calls)
        return {e: one_array(evaluate(e, rows.columns, len(rows))) for e in wanted if e is not None}

    def _answer(self, call: RankCall, lists: Lists, rows: _Laid) -> pa.Array:
        argument = _argument(call)
        values = None if argument is None else rows.argument(argument)
        if call.name in NUMBERS:
            made = number(call.name, lists, call.offset)
        elif values is None:
            made = aggregated(lists, call.name, call.type, None, _extent(call))
        elif call.name in SHIFTS:
            distance = call.offset if call.name == "lead" else -call.offset
            made = shifted(lists, values, distance, lambda at: rows.value(call.args[1], at))
        elif call.name in PICKS:
            made = picked_value(lists, values, call.name, call.offset, _extent(call))
        else:
            made = aggregated(lists, call.name, call.type, values, _extent(call))
        return made if made.type == call.type else made.cast(call.type)


def _extent(call: RankCall) -> Extent:
    return call.extent.unit, call.extent.start, call.extent.end


def _argument(call: RankCall) -> Expr | None:
    """Return the argument of a function as it reads it."""
    if not call.args:
        return None
    first = call.args[0]
    if call.name in VARIANCES and not pa.types.is_floating(first.type):
        return Cast(first, pa.float64())
    return first


def _cut(row: I64, step: I64, columns: list[pa.Array]) -> Runs:
    """Put the steps of a row at which nothing changes together; they stand beside one another."""
    keys = hash_columns(columns, len(row))
    new = np.ones(len(row), bool)
    new[1:] = row[1:] != row[:-1]
    new[1:] |= (keys.high[1:] != keys.high[:-1]) | (keys.low[1:] != keys.low[:-1])
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(row)) - 1
    at = pa.array(starts)
    return Runs(row[starts], step[starts], step[ends] + 1, [c.take(at) for c in columns])
