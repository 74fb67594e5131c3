"""Where a row stands for a join predicate: the order that brings partners close together [B 3.1].

A *place* describes the part of a join condition that an order can serve.  It is plain data, part of
an operator's arguments.  The operator is given it together with expressions for each side, whose
values are the coordinates of a row.  A place only *narrows*: partners always satisfy its condition,
and the whole condition is tested on what is left.  A row with a null coordinate has no partner.

| place | coordinates of a row | partners satisfy |
|---|---|---|
| `Equal` | the keys | all keys equal |
| `EqualBand` | the keys, x | all keys equal, and the `Band` of x |
| `Band` | x | ``low <= right.x - left.x <= high``; an inequality has one infinite end |
| `Overlap` | lo, hi | ``left.lo <= right.hi and right.lo <= left.hi`` |
| `Near` | x1 .. xn | ``abs(left.xi - right.xi) <= widths[i]`` for every i |
| `Boxes` | lo1, hi1, .. | `Overlap` in every dimension |
| `Edit` | text | edit distance at most ``distance`` |
| `Anywhere` | none | nothing is known |

Coordinates of `Band`, `Overlap`, `Near` and `Boxes` are numbers: integers, floats, or times as
integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Equal:
    """Equal keys."""


@dataclass(frozen=True)
class Band:
    """Differences within bounds: ``low <= right - left <= high``."""

    low: float
    high: float


@dataclass(frozen=True)
class EqualBand:
    """Equal keys, and differences of one more coordinate within bounds."""

    band: Band


@dataclass(frozen=True)
class Overlap:
    """Intervals that meet."""


@dataclass(frozen=True)
class Near:
    """Points whose coordinates differ by at most ``widths``, each dimension its own."""

    widths: tuple[float, ...]


@dataclass(frozen=True)
class Boxes:
    """Boxes that meet in all of ``dimensions``."""

    dimensions: int


@dataclass(frozen=True)
class Edit:
    """Texts at most ``distance`` insertions, deletions and replacements of characters apart."""

    distance: int


@dataclass(frozen=True)
class Anywhere:
    """No order helps: every pair is a candidate."""


Place: TypeAlias = Equal | EqualBand | Band | Overlap | Near | Boxes | Edit | Anywhere

EQUAL = Equal()
