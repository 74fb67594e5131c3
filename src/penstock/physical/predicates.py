"""Which order serves a join condition: the place of a parsed predicate [B 3.1].

`recognise` looks at the conjuncts of a condition without equality keys and finds the most selective
`Place` that every pair of partners satisfies, whatever the spelling.  A place only narrows, so the
condition itself is tested on the pairs that are left, and a conjunct that is not understood costs
speed, never an answer.

Every comparison is brought to ``small <= big`` and ``small - big`` to a sum of terms.  A term
is a factor and an *atom*: an expression over the columns of one side, with constants taken away.
With ``L`` the terms of the left side and ``R`` those of the right one, ``L + R + c <= 0`` bounds
the difference of the coordinates ``x = L`` and ``y = -R``.  Bounds of the same coordinates
from several conjuncts are put together:

* both ends bounded is a band; bands over two or more pairs of coordinates are points that are near;
* one end bounded is an inequality; two of opposite directions are intervals that overlap, and two
  or three such pairs are boxes.

Rounding and NaN must not lose a partner:

* Terms of integers and times are exact.  With floating numbers, each side must be one atom, and a
  bound is widened by the rounding of the constants in it.  What the rounding of a coordinate itself
  may do (a few units in its last place) is left to those who compare coordinates.
* A coordinate is ordered as a comparison orders it: NaN is greater than every number.  So an atom
  keeps its sign when it stands alone on its side of the comparison.  A comparison of a *mixed*
  floating expression is true for NaN if that expression is the greater side; such a bound counts
  only beside another one that is false for NaN, as ``ABS(a.x - b.x) <= 5`` is.

Coordinates are evaluated on every row, as keys are.  They may fail only by an overflow of integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import permutations

import pyarrow as pa

from penstock.expr.nodes import (
    Call,
    Cast,
    Column,
    Expr,
    Literal,
    columns_of,
    rewrite,
    shift,
)
from penstock.expr.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    is_decimal,
    is_numeric,
    is_temporal,
)
from penstock.kernels.join_orders import Anywhere, Band, Boxes, Edit, Near, Overlap, Place
from penstock.model import TIMESTAMP
from penstock.physical.sums import (
    BOTH,
    LEFT,
    NONE,
    RIGHT,
    ROUNDING,
    Sum,
    Sums,
    never_rounds,
    plus_constant,
    tame,
    tightened,
)

_COARSE = Fraction(1, 2**21)
"""A few roundings of a FLOAT, as a part of the number."""

_MANY_ROUNDINGS = Fraction(1, 2**40)
"""The roundings of a distance in many dimensions, as a part of it."""

_TINY = Fraction(1, 2**500)
"""The square of a smaller number vanishes."""

_LARGEST = Fraction(2) ** 1000
"""A bound above it says nothing."""

_LONGEST = 1 << 20
"""No bound of an edit distance above it is worth anything."""

_MOST_DIMENSIONS = 3

_SWAPPED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "ne": "eq"}


@dataclass(frozen=True)
class Recognised:
    """A place, and the coordinates of each side over that side's own columns."""

    place: Place
    left: tuple[Expr, ...] = ()
    right: tuple[Expr, ...] = ()
    label: str = "Join without order: every pair is tested"


def recognise(condition: Expr | None, left_width: int) -> Recognised:
    """Return the most selective place of a condition whose first columns are the left side's."""
    if condition is None:
        return Recognised(Anywhere())
    finder = _Finder(left_width)
    for part in _parts(condition):
        finder.take(part)
    return finder.best()


def sharpened(condition: Expr) -> Expr:
    """Return the same condition, in which edit distances stop at the bound they are tested for."""

    def change(expr: Expr) -> Expr | None:
        match expr:
            case Call("le" | "lt" as name, (value, Literal(bound))):
                strictly = name == "lt"
            case Call("ge" | "gt" as name, (Literal(bound), value)):
                strictly = name == "gt"
            case _:
                return None
        while isinstance(value, Cast):
            value = value.arg
        if bound is None or not isinstance(value, Call) or value.name != "levenshtein":
            return None
        if len(value.args) != 2 or not 0 <= bound < _LONGEST:
            return None
        most = math.ceil(bound) - 1 if strictly else math.floor(bound)
        if most < 0:
            return None
        distance = Call("levenshtein", (*value.args, Literal(most, INT)), INT)
        return Call("ge", (distance, Literal(0, INT)), BOOLEAN)

    return rewrite(condition, change)


def _parts(expr: Expr, negated: bool = False) -> Iterator[Expr]:
    """Split at AND; NOT is pushed into comparisons."""
    match expr:
        case Call("not", (arg,)):
            yield from _parts(arg, not negated)
        case Call("and", args) if not negated:
            for arg in args:
                yield from _parts(arg)
        case Call("or", args) if negated:
            for arg in args:
                yield from _parts(arg, True)
        case Call(name, args, type_) if negated and name in _SWAPPED:
            yield Call(_SWAPPED[name], args, type_)
        case _ if not negated:
            yield expr


@dataclass
class _Bounds:
    """What is known of ``low <= y - x <= high`` for one pair of coordinates.

    A bound is ``(value, kept)``: one that is not ``kept`` counts only if the pair is ``guarded``,
    which says that NaN on either side surely makes the condition false.
    """

    lows: list[tuple[Fraction, bool]] = field(default_factory=list)
    highs: list[tuple[Fraction, bool]] = field(default_factory=list)
    guarded: bool = False
    exact: bool = True

    def low(self) -> float:
        found = [value for value, kept in self.lows if kept or self.guarded]
        return _outward(max(found), -1) if found else -math.inf

    def high(self) -> float:
        found = [value for value, kept in self.highs if kept or self.guarded]
        return _outward(min(found), 1) if found else math.inf


@dataclass(frozen=True)
class _Less:
    """One of the two comparisons of an overlap: ``small <= big``, each of one side."""

    small: Expr
    big: Expr


_Coordinates = tuple[tuple[tuple[Expr, Fraction], ...], tuple[tuple[Expr, Fraction], ...]]


_Found = tuple[Expr, Expr, float, float]
"""Coordinates of both sides and the bounds of their difference."""


class _Finder:
    """Collects what the conjuncts of one condition say."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._sums = Sums(width)
        self._bounds: dict[_Coordinates, _Bounds] = {}
        self._lows: list[_Less] = []  # left.lo <= right.hi
        self._highs: list[_Less] = []  # right.lo <= left.hi
        self._edits: list[tuple[int, Expr, Expr]] = []

    # ---- reading conjuncts

    def take(self, part: Expr) -> None:
        """Take note of one conjunct."""
        match part:
            case Call("lt", (small, big)) | Call("gt", (big, small)):
                self._compare(small, big, True)
            case Call("le", (small, big)) | Call("ge", (big, small)):
                self._compare(small, big, False)
            case Call("eq", (one, other)):
                self._compare(one, other, False)
                self._compare(other, one, False)
            case Call("overlaps", args):
                self._overlaps(args)

    def _overlaps(self, args: tuple[Expr, ...]) -> None:
        if not (is_numeric(args[0].type) or is_temporal(args[0].type)):
            return
        pairs = [args[:2], args[2:]]
        sides = [self._sums.side_of_all(pair) for pair in pairs]
        if sides == [RIGHT, LEFT]:
            pairs.reverse()
        elif sides != [LEFT, RIGHT]:
            return
        (low, high), (other_low, other_high) = [
            (Call("least", pair, pair[0].type), Call("greatest", pair, pair[0].type))
            for pair in pairs
        ]
        if all(tame(e) for e in args):
            self._lows.append(_Less(low, other_high))
            self._highs.append(_Less(other_low, high))

    def _compare(self, small: Expr, big: Expr, strictly: bool) -> None:
        """Take note of ``small <= big``, of ``small < big`` if ``strictly``."""
        if not (is_numeric(small.type) or is_temporal(small.type)):
            return
        below, above = self._sums.of(small), self._sums.of(big)
        if below is None or above is None:
            return
        whole = below.plus(above.times(Fraction(-1)))
        if whole is None:
            return
        sides = self._sums.side(small), self._sums.side(big)
        mixed = [(a, f) for a, f in whole.terms if self._sums.side(a) == BOTH]
        if mixed:
            if len(mixed) == len(whole.terms) and (whole.exact or sides[1] == NONE):
                self._mixed(mixed, whole, strictly)
            return
        if set(sides) == {LEFT, RIGHT} and tame(small) and tame(big):
            (self._lows if sides[0] == LEFT else self._highs).append(_Less(small, big))
        whole = tightened(whole, strictly)
        if sides[1] == NONE or whole.exact:
            self._bound(whole, guarded=True)
        elif set(sides) == {LEFT, RIGHT}:
            self._bound(whole, from_left=sides[0] == LEFT)
        else:
            self._bound(whole, kept=False)

    def _mixed(self, terms: list[tuple[Expr, Fraction]], whole: Sum, strictly: bool) -> None:
        """Take note of a sum of expressions over both sides that is at most a constant."""
        if any(factor <= 0 for _, factor in terms):
            return
        limit = -whole.constant + (0 if whole.exact else whole.noise)
        squares = [(_root_of_square(atom), factor) for atom, factor in terms]
        if all(root is not None for root, _ in squares):
            if limit >= 0:
                for root, factor in squares:
                    assert root is not None
                    self._within(root, _square_root(limit / factor))
            return
        if len(terms) > 1:
            return
        ((atom, factor),) = terms
        limit = limit / factor
        match atom:
            case Call("abs", (arg,)):
                self._within(arg, limit)
            case Call("sqrt", (arg,)) if limit >= 0:
                inner = self._sums.of(arg)
                if inner is not None:
                    square = limit * limit * (1 + _MANY_ROUNDINGS)
                    both = [(a, f) for a, f in inner.terms if self._sums.side(a) == BOTH]
                    if len(both) == len(inner.terms) > 0:
                        total = replace(inner, constant=inner.constant - square)
                        self._mixed(both, total, False)
            case Call("distance" | "distance_l1" | "distance_max", args):
                self._distance(args, limit)
            case Call("distance_lp", (_, *rest)):
                self._distance(tuple(rest), limit)
            case Call("levenshtein", (one, other)):
                self._edit(one, other, limit, strictly)

    def _distance(self, args: tuple[Expr, ...], limit: Fraction) -> None:
        half = len(args) // 2
        if limit >= 0:
            limit = limit * (1 + _MANY_ROUNDINGS) + _TINY
            for one, other in zip(args[:half], args[half:], strict=True):
                self._within(Call("subtract", (one, other), one.type), limit)

    def _edit(self, one: Expr, other: Expr, limit: Fraction, strictly: bool) -> None:
        most = math.ceil(limit) - 1 if strictly else math.floor(limit)
        sides = self._sums.side(one), self._sums.side(other)
        if most < 0 or set(sides) != {LEFT, RIGHT} or not (tame(one) and tame(other)):
            return
        left, right = (one, other) if sides[0] == LEFT else (other, one)
        self._edits.append((most, left, right))

    def _within(self, expr: Expr, limit: Fraction) -> None:
        """Take note of ``-limit <= expr <= limit``; NaN is excluded."""
        found = self._sums.of(expr)
        if found is None or limit < 0:
            return
        limit *= 1 + (_COARSE if found.coarse else 0 if found.exact else ROUNDING)
        for sign in (1, -1):
            self._bound(plus_constant(found.times(Fraction(sign)), -limit), guarded=True)

    def _bound(
        self,
        whole: Sum,
        guarded: bool = False,
        kept: bool = True,
        from_left: bool | None = None,
    ) -> None:
        """Take note of ``whole <= 0``.

        ``from_left`` says that the left side is the smaller one of a comparison of floating
        numbers: then its coordinate keeps its sign, because NaN stays the greatest.
        """
        left = sorted(((a, f) for a, f in whole.terms if self._sums.side(a) == LEFT), key=_by_text)
        right = sorted(
            ((a, f) for a, f in whole.terms if self._sums.side(a) == RIGHT), key=_by_text
        )
        if not left or not right or len(left) + len(right) < len(whole.terms):
            return
        if not whole.exact and len(whole.terms) > 2:
            return
        if not all(tame(atom) for atom, _ in whole.terms) or abs(whole.constant) > _LARGEST:
            return
        scale = _common_factor([f for _, f in (*left, *right)])
        positive = left[0][1] > 0 if from_left is None else from_left
        scale = scale if positive else -scale
        x = tuple((atom, f / scale) for atom, f in left)
        y = tuple((atom, -f / scale) for atom, f in right)
        known = self._bounds.setdefault((x, y), _Bounds())
        known.guarded |= guarded
        known.exact &= whole.exact
        slack = whole.noise / abs(scale)
        value = whole.constant / scale
        if positive:  # x - y + value <= 0
            known.lows.append((value - slack, kept))
        else:
            known.highs.append((value + slack, kept))

    # ---- choosing

    def best(self) -> Recognised:
        """Return the most selective place of all."""
        bands: list[_Found] = []
        ones: list[_Found] = []
        for (x, y), known in self._bounds.items():
            low, high = known.low(), known.high()
            ends = math.isfinite(low) + math.isfinite(high)
            if ends and low <= high:
                found = (self._coordinate(x, known.exact), self._coordinate(y, known.exact))
                (bands if ends == 2 else ones).append((*found, low, high))
        if len(bands) > 1:
            return self._near(bands)
        if self._edits:
            most, left, right = min(self._edits, key=lambda edit: edit[0])
            label = f"Join of texts at most {most} edits apart"
            return self._recognised(Edit(most), [left], [right], label)
        boxes = self._boxes()
        if len(boxes) > 1:
            return self._meeting(Boxes(len(boxes)), boxes, "Join of boxes that meet")
        if bands:
            return self._band(*min(bands, key=lambda band: band[3] - band[2]))
        if boxes:
            return self._meeting(Overlap(), boxes, "Join of intervals that meet")
        if ones:
            return self._band(*ones[0])
        return Recognised(Anywhere())

    def _near(self, bands: list[_Found]) -> Recognised:
        widths = tuple(max(abs(low), abs(high)) for _, _, low, high in bands)
        left, right = [b[0] for b in bands], [b[1] for b in bands]
        label = f"Join of points within {', '.join(f'{w:.12g}' for w in widths)} of one another"
        return self._recognised(Near(widths), left, right, label)

    def _band(self, x: Expr, y: Expr, low: float, high: float) -> Recognised:
        if low == -math.inf:
            bounds = f"by at most {high:.12g}"
        elif high == math.inf:
            bounds = f"by at least {low:.12g}"
        else:
            bounds = f"by {low:.12g} to {high:.12g}"
        return self._recognised(
            Band(low, high), [x], [y], f"Join in a band: right above left {bounds}"
        )

    def _meeting(self, place: Place, boxes: list[tuple[_Less, _Less]], label: str) -> Recognised:
        left: list[Expr] = []
        right: list[Expr] = []
        for low, high in boxes:
            left += [low.small, high.big]
            right += [high.small, low.big]
        return self._recognised(place, left, right, label)

    def _boxes(self) -> list[tuple[_Less, _Less]]:
        """Pair comparisons so that the ends of intervals belong together."""
        lows, highs = self._lows[:_MOST_DIMENSIONS], self._highs[:_MOST_DIMENSIONS]
        if len(lows) < len(highs):
            ways = ([*zip(lows, some, strict=True)] for some in permutations(highs, len(lows)))
        else:
            ways = ([*zip(some, highs, strict=True)] for some in permutations(lows, len(highs)))
        return min(ways, key=lambda way: sum(self._apart(*pair) for pair in way))

    def _apart(self, low: _Less, high: _Less) -> int:
        """Return how little two comparisons look like those of one interval."""
        left = _first_column(low.small), _first_column(high.big)
        right = _first_column(high.small) - self._width, _first_column(low.big) - self._width
        unlike = left != right
        return (left[0] - left[1]) ** 2 + (right[0] - right[1]) ** 2 + unlike

    def _recognised(
        self, place: Place, left: list[Expr], right: list[Expr], label: str
    ) -> Recognised:
        moved = {c: c - self._width for e in right for c in columns_of(e)}
        right = [shift(e, moved) for e in right]
        names = zip(left, right, strict=True)
        if isinstance(place, Overlap | Boxes):
            return Recognised(place, tuple(left), tuple(right), label)
        if all(isinstance(e, Column) for e in (*left, *right)):
            pairs = ", ".join(f"left {_plain(a)} and right {_plain(b)}" for a, b in names)
            label = f"{label} ({pairs})"
        return Recognised(place, tuple(left), tuple(right), label)

    def _coordinate(self, terms: tuple[tuple[Expr, Fraction], ...], exact: bool) -> Expr:
        """Return a sum of terms as an expression: a time, a BIGINT or a DOUBLE."""
        if len(terms) == 1 and terms[0][1] == 1:
            atom = terms[0][0]
            return atom if exact or atom.type == DOUBLE else _as(DOUBLE, atom)
        kind = BIGINT if exact else DOUBLE
        total: Expr | None = None
        for atom, factor in terms:
            value = int(factor) if exact else float(factor)
            term = _as(kind, atom)
            if factor != 1:
                term = Call("multiply", (term, Literal(value, kind)), kind)
            total = term if total is None else Call("add", (total, term), kind)
        assert total is not None
        return total


def _root_of_square(expr: Expr) -> Expr | None:
    """Return e of ``e * e`` and of ``POWER(e, 2)``."""
    match expr:
        case Call("multiply", (a, b)) if a == b:
            return a if not is_decimal(expr.type) or never_rounds(expr) else None
        case Call("power", (a, Literal(value))) if value == 2:
            return a
        case Cast(arg, type_) if is_numeric(type_):
            return _root_of_square(arg)
    return None


def _square_root(value: Fraction) -> Fraction:
    return Fraction(math.sqrt(min(value, _LARGEST))) * (1 + _MANY_ROUNDINGS) + _TINY


def _outward(value: Fraction, direction: int) -> float:
    """Return the nearest floating number that is not inside the bound."""
    nearest = float(value)
    if (Fraction(nearest) - value) * direction >= 0:
        return nearest + 0.0
    return math.nextafter(nearest, direction * math.inf)


def _common_factor(factors: list[Fraction]) -> Fraction:
    """Return the largest number of which all are whole multiples."""
    multiple = math.lcm(*(f.denominator for f in factors))
    return Fraction(math.gcd(*(int(f * multiple) for f in factors)), multiple)


def _as(kind: pa.DataType, expr: Expr) -> Expr:
    """Return a number or time as a BIGINT or DOUBLE."""
    if expr.type == TIMESTAMP:
        expr = Call("unix_micros", (expr,), BIGINT)
    elif expr.type == DATE:
        expr = Call("unix_date", (expr,), pa.int32())
    return expr if expr.type == kind else Cast(expr, kind)


def _by_text(term: tuple[Expr, Fraction]) -> str:
    return repr(term[0])


def _first_column(expr: Expr) -> int:
    return min(columns_of(expr))


def _plain(expr: Expr) -> str:
    assert isinstance(expr, Column)
    return f"#{expr.index}"
