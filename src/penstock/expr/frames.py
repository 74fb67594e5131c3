"""Window functions of SQL, ``f(..) OVER (PARTITION BY .. ORDER BY t frame)``, as data.

The rows of a partition are numbered in their order, by time and then by arrival.  A frame says
which of them, up to and including the current one, a function looks at.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.expr.nodes import Expr

ORDINALS = ("row_number", "rank", "dense_rank")
"""Functions of the place of a row."""

PICKS = ("first_value", "last_value", "nth_value")
"""Functions that give the argument in one row of the frame."""


@dataclass(frozen=True)
class Frame:
    """``unit BETWEEN start PRECEDING AND end PRECEDING``.

    ``unit`` is rows or range; ``start`` None is UNBOUNDED, 0 is CURRENT ROW.  Of a row with number
    i and time t, ROWS are the numbers ``[i - start, i - end]``, RANGE the rows whose time is in
    ``[t - start, t - end]``: rows with the same time are peers.
    """

    unit: str
    start: int | None
    end: int = 0


EVERYTHING = Frame("range", None)
"""The frame of SQL where none is written: everything up to the row and its peers."""


@dataclass(frozen=True)
class OverCall:
    """One window function.

    ``name`` is that of an aggregate (see `AggregateCall`), one of `PICKS`, one of `ORDINALS`, or
    lag.  ``args`` are empty for ``COUNT(*)`` and ordinals; lag has a second one, the value where
    there is no such row.  ``offset`` is the second argument of lag and nth_value.
    """

    name: str
    args: tuple[Expr, ...]
    partition: tuple[Expr, ...]
    frame: Frame
    type: pa.DataType
    offset: int = 1
    ignore_nulls: bool = False
