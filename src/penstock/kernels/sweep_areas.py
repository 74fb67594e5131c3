"""SweepAreas: joins of any number of inputs that are read in one global value order [B 3.1, 6].

A predicate is seen through an order.  Every row ``u`` has a place ``u.at`` in it and a *reach*, the
largest place at which a partner can stand:

    partners(u, w)  implies  w.at <= u.reach  and  u.at <= w.reach.                         (law)

While all inputs are read in ascending order of ``at``, a row is *removable* at ``v`` when
``u.reach < v.at``.  Then every ``w`` that is read at or after ``v`` has ``w.at >= v.at > u.reach``
and is no partner of ``u``.  That is condition (1) of the paper if ``u`` is of the left input and
condition (2) if it is of the right one; both sides have their own reach.

| place | at | reach of a left row | reach of a right row |
|---|---|---|---|
| `Equal` | upper bits of the key's hash | at | at |
| `Band` | x | x + high | x - low |
| `Overlap` | lo | hi | hi |
| `Near` | first coordinate | x1 + width | x1 + width |
| `Boxes` | lo of the first dimension | its hi | its hi |
| `Edit` | length | length + distance | length + distance |
| `Anywhere` | 0 | infinite: never removed | infinite |

Places and reaches are floats.  Rounding keeps the order of what it rounds; a computed reach is
moved up by two steps of the last digit, so the law holds for the exact values.  NaN stands above
everything.

A combination of rows is again such a row: its place is the largest and its reach the smallest of
its members.  Combinations are extended input by input: the partners in an area that is sorted by
``at`` are a range, cut at its back by ``at <= reach`` and at its front by the running maximum of
the reaches.  What is left inside the range is tested pair by pair, never in a loop over rows.

Each combination is made once: in the round in which the last of its members is read, and there by
the *fresh* member of the highest input number.  Fresh are the rows that start in the slice
``[since, ..)`` that a merge step owns [B 5.3], or, without a slice, the rows of the round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decimals import integers, is_decimal, to_doubles
from penstock.errors import InternalError
from penstock.kernels.join_orders import (
    EQUAL,
    Anywhere,
    Band,
    Boxes,
    Edit,
    Equal,
    EqualBand,
    Near,
    Overlap,
    Place,
)
from penstock.kernels.keys import hash_columns
from penstock.kernels.pairs import blocks as expanded
from penstock.model import I64, U64, Batch, Mask, one_array, to_mask, to_numpy

F64: TypeAlias = npt.NDArray[np.float64]

MIXED = -1
"""The family of combinations whose members come from several families."""


@dataclass(frozen=True)
class View:
    """Where rows stand in the value order.

    ``lane`` are the other bits of a key's hash; partners must agree in them.
    """

    at: F64
    reach: F64
    lane: U64 | None = None

    def take(self, index: npt.NDArray[Any]) -> View:
        lane = None if self.lane is None else self.lane[index]
        return View(self.at[index], self.reach[index], lane)


def view_of(place: Place, port: int, coordinates: Sequence[pa.Array], rows: int) -> View:
    """Return the view of rows of an input from their coordinates, none of them null."""
    match place:
        case Equal():
            keys = hash_columns(coordinates, rows)
            upper = (keys.high >> np.uint64(11)).astype(np.float64)
            return View(upper, upper, keys.low)
        case Band(low, high):
            x = _numbers(coordinates[0])
            return View(_at(x), _reach(x, high if port == 0 else -low))
        case Near(widths):
            x = _numbers(coordinates[0])
            return View(_at(x), _reach(x, widths[0]))
        case Overlap() | Boxes():
            return View(_at(_numbers(coordinates[0])), _at(_numbers(coordinates[1])))
        case Edit(distance):
            length = to_numpy(pc.utf8_length(coordinates[0])).astype(np.float64)
            return View(length, length + distance)
        case Anywhere():
            return View(np.zeros(rows), np.full(rows, np.inf))
        case EqualBand():
            return view_of(EQUAL, port, coordinates[:-1], rows)


def usable(coordinates: Sequence[pa.Array]) -> Mask | None:
    """Return which rows have no null coordinate; None if all of them."""
    mask: Mask | None = None
    for column in coordinates:
        if column.null_count:
            valid = to_mask(column.is_valid())
            mask = valid if mask is None else mask & valid
    return mask


def check_inputs(place: Place, inputs: int) -> None:
    """A place holds between every two inputs; that of a band knows only a left and a right one."""
    if isinstance(place, Band) and inputs != 2:
        raise InternalError(f"a band must join two inputs, got {inputs}; join them one by one")


def removable(reach: Any, at: float) -> Any:
    """Whether rows have no partner at or above ``at``: the removal predicate of both sides."""
    return reach < at


def _numbers(column: pa.Array) -> F64:
    if is_decimal(column.type):
        column = one_array(column)
        return to_doubles(integers(column), column.type.scale)
    return np.asarray(to_numpy(one_array(column)).astype(np.float64))


def _at(x: F64) -> F64:
    return np.where(np.isnan(x), np.inf, x)


_ROUNDINGS = 4 * np.finfo(np.float64).eps


def _reach(x: F64, by: float) -> F64:
    """Return ``x + by`` and a little more: x may be rounded itself, as a DECIMAL is."""
    with np.errstate(invalid="ignore", over="ignore"):
        moved = x + by + _ROUNDINGS * (np.abs(x) + abs(by))
    return np.nextafter(_at(moved), np.inf)


@dataclass(frozen=True)
class Elements:
    """Rows in value order, with their view; ``family`` is a number of the caller's."""

    rows: Batch
    view: View
    family: I64

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return sum(int(c.nbytes) for c in self.rows.columns) + 48 * len(self.rows)

    def take(self, index: npt.NDArray[Any]) -> Elements:
        """Return the rows at ``index`` (or where a mask is true)."""
        if index.dtype == np.bool_:
            if index.all():
                return self
            index = np.flatnonzero(index)
        return Elements(self.rows.take(index), self.view.take(index), self.family[index])

    def split(self, count: int) -> tuple[Elements, Elements]:
        """Return the first ``count`` rows and the others, without copying."""
        rows, view = self.rows, self.view
        parts = []
        for cut in (slice(0, count), slice(count, len(rows))):
            lane = None if view.lane is None else view.lane[cut]
            part = View(view.at[cut], view.reach[cut], lane)
            sliced = rows.slice(cut.start, cut.stop)
            parts.append(Elements(sliced, part, self.family[cut]))
        return parts[0], parts[1]

    @staticmethod
    def concat(parts: Sequence[Elements]) -> Elements:
        """Put rows one after another; at least one part is needed."""
        kept = [p for p in parts if len(p)] or list(parts[:1])
        if len(kept) == 1:
            return kept[0]
        lanes = [p.view.lane for p in kept if p.view.lane is not None]
        view = View(
            np.concatenate([p.view.at for p in kept]),
            np.concatenate([p.view.reach for p in kept]),
            np.concatenate(lanes) if lanes else None,
        )
        family = np.concatenate([p.family for p in kept])
        return Elements(Batch.concat([p.rows for p in kept]), view, family)

    def sort(self) -> Elements:
        """Bring rows into the value order; equal places keep theirs."""
        at = self.view.at
        return self if (at[1:] >= at[:-1]).all() else self.take(np.argsort(at, kind="stable"))


@dataclass(frozen=True)
class _Index:
    """Some rows of an area, sorted by place. ``where`` are their positions in the area."""

    at: F64
    top: F64
    reach: F64
    lane: U64 | None
    start: I64
    end: I64
    family: I64
    where: I64
    carried: int

    @staticmethod
    def of(area: Elements, where: I64, carried: int) -> _Index:
        view, rows = area.view.take(where), area.rows
        return _Index(
            view.at,
            np.maximum.accumulate(view.reach),
            view.reach,
            view.lane,
            rows.start[where],
            rows.end[where],
            area.family[where],
            where,
            int(np.searchsorted(where, carried)),
        )


class SweepArea:
    """The rows of one input that can still have partners among the rows to come."""

    def __init__(self) -> None:
        self.elements: Elements | None = None
        self.carried = 0

    @property
    def nbytes(self) -> int:
        return 0 if self.elements is None else self.elements.nbytes

    def insert(self, block: Elements) -> None:
        """Add rows, none of which stands below a row that is there."""
        self.elements = block if self.elements is None else Elements.concat([self.elements, block])

    def purge(self, at: float) -> None:
        """Remove the rows that no row at or above ``at`` can be a partner of."""
        if self.elements is not None and len(self.elements):
            self.elements = self.elements.take(~removable(self.elements.view.reach, at))
        self.carried = 0 if self.elements is None else len(self.elements)


@dataclass(frozen=True)
class SweepTuples:
    """Combinations of rows: the position of each member in its area, and what they have in common.

    ``recent`` says whether some member was read in this round.
    """

    members: dict[int, I64]
    at: F64
    reach: F64
    lane: U64 | None
    start: I64
    end: I64
    family: I64
    recent: Mask

    def __len__(self) -> int:
        return len(self.at)


@dataclass
class Learned:
    """How many partners combinations that began at one input found in each other input."""

    asked: F64
    found: F64

    @staticmethod
    def nothing(inputs: int) -> Learned:
        return Learned(np.ones((inputs, inputs)), np.ones((inputs, inputs)))

    def order(self, port: int, others: Sequence[int]) -> list[int]:
        """Return the inputs to be asked, fewest partners first."""
        return sorted(others, key=lambda j: self.found[port, j] / self.asked[port, j])

    def faded(self) -> Learned:
        """Return the same with half the weight, so that what is newer counts more."""
        return Learned(self.asked / 2, self.found / 2)


class Sweep:
    """One synchronised pass over all inputs.

    ``since`` is the begin of the slice that results must start in; None means all results.  With
    ``families``, combinations of one and the same family are left out: they were made before.  The
    order in which areas are asked is chosen anew in every round, by the number of partners that the
    rows of an input had so far in each other one [B 6].
    """

    def __init__(
        self,
        inputs: int,
        block: int,
        since: int | None = None,
        families: bool = False,
        learned: Learned | None = None,
    ) -> None:
        self.areas = [SweepArea() for _ in range(inputs)]
        self._block = block
        self._since = since
        self._families = families
        self.learned = learned or Learned.nothing(inputs)

    @property
    def nbytes(self) -> int:
        return sum(area.nbytes for area in self.areas)

    def advance(self, blocks: Sequence[Elements | None], at: float) -> Iterator[SweepTuples]:
        """Read the next rows of each input, up to ``at``; yield the combinations they complete.

        Positions of members are in ``areas[i].elements``, valid until the next one is asked for.
        """
        for area, block in zip(self.areas, blocks, strict=True):
            if block is not None and len(block):
                area.insert(block)
        yield from self._query()
        for area in self.areas:
            area.purge(at)

    def _query(self) -> Iterator[SweepTuples]:
        inputs = range(len(self.areas))
        everything: list[_Index] = []
        fresh: list[I64] = []
        for area in self.areas:
            rows = area.elements
            if rows is None or len(rows) == 0:
                return
            where = np.arange(len(rows))
            everything.append(_Index.of(rows, where, area.carried))
            if self._since is None:
                fresh.append(where[area.carried :])
            else:
                fresh.append(np.flatnonzero(rows.rows.start >= self._since))
        old: dict[int, _Index] = {}
        for port in inputs:
            mine = fresh[port]
            if len(mine) == 0:
                continue
            asked = [j for j in inputs if j != port]
            for j in asked:
                if j > port and j not in old:
                    rows = self.areas[j].elements
                    assert rows is not None
                    rest = np.ones(len(rows), bool)
                    rest[fresh[j]] = False
                    old[j] = _Index.of(rows, np.flatnonzero(rest), self.areas[j].carried)
            if any(j > port and len(old[j].where) == 0 for j in asked):
                continue
            asked = self.learned.order(port, asked)
            path = [(j, old[j] if j > port else everything[j]) for j in asked]
            yield from self._extend(self._single(port, everything[port], mine), port, path)

    def _single(self, port: int, index: _Index, where: I64) -> SweepTuples:
        lane = None if index.lane is None else index.lane[where]
        return SweepTuples(
            {port: where},
            index.at[where],
            index.reach[where],
            lane,
            index.start[where],
            index.end[where],
            index.family[where],
            where >= index.carried,
        )

    def _extend(
        self, tuples: SweepTuples, port: int, path: Sequence[tuple[int, _Index]]
    ) -> Iterator[SweepTuples]:
        """Ask one area after another, depth first, a block of candidates at a time."""
        (j, index), rest = path[0], path[1:]
        first = np.searchsorted(index.top, tuples.at, "left")
        last = np.searchsorted(index.at, tuples.reach, "right")
        if not rest:
            first = np.where(tuples.recent, first, np.maximum(first, index.carried))
        some = np.flatnonzero(first < last)
        self.learned.asked[port, j] += len(tuples)
        for owner, position in expanded(first[some], last[some], self._block):
            owner = some[owner]
            keep = index.reach[position] >= tuples.at[owner]
            keep &= index.start[position] < tuples.end[owner]
            keep &= tuples.start[owner] < index.end[position]
            if index.lane is not None and tuples.lane is not None:
                keep &= index.lane[position] == tuples.lane[owner]
            if self._families:
                family = tuples.family[owner]
                family = np.where(family == index.family[position], family, MIXED)
                if not rest:
                    keep &= family == MIXED
            else:
                family = tuples.family[owner]
            kept = np.flatnonzero(keep)
            if len(kept) == 0:
                continue
            owner, position, family = owner[kept], position[kept], family[kept]
            self.learned.found[port, j] += len(kept)
            members = {i: at[owner] for i, at in tuples.members.items()}
            members[j] = index.where[position]
            longer = SweepTuples(
                members,
                np.maximum(tuples.at[owner], index.at[position]),
                np.minimum(tuples.reach[owner], index.reach[position]),
                None if tuples.lane is None else tuples.lane[owner],
                np.maximum(tuples.start[owner], index.start[position]),
                np.minimum(tuples.end[owner], index.end[position]),
                family,
                tuples.recent[owner] | (position >= index.carried),
            )
            if rest:
                yield from self._extend(longer, port, rest)
            else:
                yield longer
