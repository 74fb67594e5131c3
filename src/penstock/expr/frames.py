"""Window functions of SQL, ``f(..) OVER (PARTITION BY .. ORDER BY .. frame)``, as data.

Over a stream (`OverCall`) the rows of a partition are numbered in their order, by time and then by
arrival.  A frame says which of them, up to and including the current one, a function looks at.
Over a relation (`RankCall`) they are in any order that is asked for, at each instant anew, and an
extent may reach behind the current row too.
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


@dataclass(frozen=True)
class Extent:
    """``unit BETWEEN start AND end``, counted from the current row: -2 is 2 PRECEDING.

    None is UNBOUNDED.  ROWS counts rows.  RANGE knows the row and its peers, which are equal to it
    in all of ORDER BY; 0 is CURRENT ROW, that is all of them.
    """

    unit: str
    start: int | None
    end: int | None


UP_TO_PEERS = Extent("range", None, 0)
"""The extent of SQL where none is written; without ORDER BY all rows are peers."""

NUMBERS = (*ORDINALS, "ntile", "percent_rank", "cume_dist")
"""Functions of the place of a row in a relation."""

SHIFTS = ("lag", "lead")
"""Functions that give the argument some rows before or behind the row."""


@dataclass(frozen=True)
class RankCall:
    """One window function over the rows of a partition of a relation, which are in an order.

    ``name`` is that of an aggregate, one of `PICKS`, `NUMBERS` or `SHIFTS`.  A shift has a second
    argument, the value where there is no such row.  ``offset`` is the second argument of shifts and
    nth_value, and the argument of ntile.
    """

    name: str
    args: tuple[Expr, ...]
    extent: Extent
    type: pa.DataType
    offset: int = 1
