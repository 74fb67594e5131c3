"""Aggregates of the user's own: a class whose methods work on the states of many groups at once.

A state is a dict of NumPy arrays, one entry for each group.  The class has

* ``state``: names and types of these arrays, or pairs of a type and what it is of no rows;
* ``add(states, groups, *values)``: take in rows; ``groups`` says which entry each belongs to, and
  is sorted;
* ``merge(states, groups, others)``: take in states of other rows;
* ``remove(states, groups, others)``, which need not be there: take them away again;
* ``result(states)``: an array with one value for each group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.errors import DataError
from penstock.expr.nodes import AggregateCall
from penstock.expr.own import loaded, place_and_form, state_columns
from penstock.expr.own_calls import as_numpy, checked, shown_row, told
from penstock.expr.types import type_name
from penstock.model import I64, to_mask

States: TypeAlias = dict[str, Any]
"""The states of some groups: an array for each column."""


class OwnAggregate:
    """One aggregate of the user's own, at work; ``kept`` says that its states add up exactly."""

    def __init__(self, call: AggregateCall) -> None:
        self.place, _ = place_and_form(call.name)
        made = loaded(self.place)
        self._made = made()
        self._columns = state_columns(made, self.place)
        self._type = call.type
        self.kept = bool(call.state)

    def fresh(self, count: int) -> States:
        """Return the states of groups without rows."""
        return {c.name: np.full(count, c.start, _array_type(c.type)) for c in self._columns}

    def add(self, states: States, groups: I64, values: pa.Array) -> None:
        """Add rows, the struct of whose arguments has no nulls, to the states of their groups."""
        columns = [as_numpy(column) for column in values.flatten()]
        try:
            self._made.add(states, groups, *columns)
        except Exception as error:  # whatever the user's class raises
            raise self._failure(columns, values, error) from error
        self._settle(states, "add")

    def merge(self, states: States, groups: I64, others: States) -> None:
        """Add states to those of groups, which may come several times."""
        self._call(self._made.merge, "merge", states, groups, others)

    def remove(self, states: States, groups: I64, others: States) -> None:
        """Take states away from those of groups."""
        self._call(self._made.remove, "remove", states, groups, others)

    def results(self, states: States, count: int) -> pa.Array:
        """Return the result of each state."""
        if count == 0:
            return pa.array([], self._type)
        try:
            found = self._made.result(states)
        except Exception as error:  # whatever the user's class raises
            raise DataError(
                f"the aggregate {self.place} must give a result for every group, but result raised "
                f"{told(error)}"
            ) from error
        return checked(found, self._type, count, f"the aggregate {self.place}")

    def packed(self, states: States) -> pa.Array:
        """Return states as a column, as they are kept."""
        arrays = [pa.array(states[c.name], c.type) for c in self._columns]
        return pa.StructArray.from_arrays(arrays, [c.name for c in self._columns])

    def unpacked(self, column: pa.Array) -> States:
        """Return kept states; null is that of no rows."""
        count = len(column)
        states = self.fresh(count)
        there = np.flatnonzero(to_mask(column.is_valid()))
        if len(there):
            some = column.take(pa.array(there)) if len(there) < count else column
            for c, part in zip(self._columns, some.flatten(), strict=True):
                states[c.name][there] = as_numpy(part)
        return states

    @property
    def state_type(self) -> pa.DataType:
        """The type of a column of states."""
        return pa.struct([(c.name, c.type) for c in self._columns])

    def _call(
        self, method: Callable[..., Any], name: str, states: States, groups: I64, others: States
    ) -> None:
        try:
            method(states, groups, others)
        except Exception as error:  # whatever the user's class raises
            raise DataError(
                f"the aggregate {self.place} must work on all states, but {name} raised "
                f"{told(error)}"
            ) from error
        self._settle(states, name)

    def _settle(self, states: States, method: str) -> None:
        """Check what a method has left of the states, which it may have put in new arrays."""
        for column in self._columns:
            array = states.get(column.name)
            wanted = _array_type(column.type)
            if not isinstance(array, np.ndarray) or array.dtype != wanted or array.ndim != 1:
                got = getattr(array, "dtype", type(array).__name__)
                raise DataError(
                    f"{method} of the aggregate {self.place} must leave states['{column.name}'] an "
                    f"array of {type_name(column.type)}, got {got}; write into the array, as by "
                    f"np.add.at(states['{column.name}'], groups, ..)"
                )

    def _failure(self, columns: Sequence[Any], values: pa.Array, error: Exception) -> DataError:
        """Say which row a state could not take in, found by halving."""
        first, last = 0, len(values)
        while last - first > 1:
            middle = (first + last) // 2
            for low, high in ((first, middle), (middle, last)):
                found = self._error_of([column[low:high] for column in columns])
                if found is not None:
                    first, last, error = low, high, found
                    break
            else:
                return DataError(
                    f"add of the aggregate {self.place} must take in rows in any number, but it "
                    f"fails for {last - first} together, and for no half of them: {told(error)}"
                )
        row = shown_row([column.slice(first, 1) for column in values.flatten()])
        return DataError(
            f"the aggregate {self.place} must take in every row, but for ({row}) add raised "
            f"{told(error)}; leave such rows out with FILTER (WHERE ..)"
        )

    def _error_of(self, columns: Sequence[Any]) -> Exception | None:
        try:
            self._made.add(self.fresh(1), np.zeros(len(columns[0]), np.int64), *columns)
        except Exception as error:
            return error
        return None


def _array_type(kind: pa.DataType) -> Any:
    return np.dtype(object) if pa.types.is_string(kind) else np.dtype(kind.to_pandas_dtype())
