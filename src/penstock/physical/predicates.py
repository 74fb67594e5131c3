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
from typing import Any

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.expr.arrow import cannot_fail, evaluate
from penstock.expr.casts import never_fails
from penstock.expr.nodes import Call, Cast, Column, Expr, Literal, children, columns_of, shift
from penstock.expr.types import (
    BIGINT,
    DATE,
    DOUBLE,
    FLOAT,
    is_floating,
    is_integer,
    is_numeric,
    is_temporal,
)
from penstock.kernels.places import Anywhere, Band, Boxes, Edit, Near, Overlap, Place
from penstock.model import TIMESTAMP

_ROUNDING = Fraction(1, 2**50)
"""A few roundings of a DOUBLE, as a part of the number."""

_COARSE = Fraction(1, 2**21)
"""A few roundings of a FLOAT, as a part of the number."""

_MANY_ROUNDINGS = Fraction(1, 2**40)
"""The roundings of a distance in many dimensions, as a part of it."""

_TINY = Fraction(1, 2**500)
"""The square of a smaller number vanishes."""

_LARGEST = Fraction(2) ** 1000
"""A bound above it says nothing."""

_MOST_DIMENSIONS = 3

_SWAPPED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "ne": "eq"}
_TAME = ("add", "subtract", "multiply", "negate", "abs", "time_add", "time_diff")
"""What fails only when integers or times overflow."""

LEFT, RIGHT, BOTH, NONE = "left", "right", "both", "none"


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


@dataclass(frozen=True)
class _Sum:
    """A sum of terms and a constant.

    ``exact``: computed in integers.  ``noise`` is what its constants may be off by rounding.
    """

    terms: tuple[tuple[Expr, Fraction], ...] = ()
    constant: Fraction = Fraction(0)
    exact: bool = True
    noise: Fraction = Fraction(0)
    coarse: bool = False

    def plus(self, other: _Sum) -> _Sum | None:
        """Return the sum; None where equal terms of floating numbers would cancel."""
        exact = self.exact and other.exact
        terms = dict(self.terms)
        for atom, factor in other.terms:
            if atom in terms and not exact:
                return None
            terms[atom] = terms.get(atom, Fraction(0)) + factor
        return _Sum(
            tuple((a, f) for a, f in terms.items() if f),
            self.constant + other.constant,
            exact,
            self.noise + other.noise,
            self.coarse or other.coarse,
        )

    def times(self, factor: Fraction) -> _Sum:
        terms = tuple((atom, f * factor) for atom, f in self.terms) if factor else ()
        return replace(
            self,
            terms=terms,
            constant=self.constant * factor,
            noise=self.noise * abs(factor),
        )


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


class _Finder:
    """Collects what the conjuncts of one condition say."""

    def __init__(self, width: int) -> None:
        self._width = width
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
        sides = [self._side_of_all(pair) for pair in pairs]
        if sides == [RIGHT, LEFT]:
            pairs.reverse()
        elif sides != [LEFT, RIGHT]:
            return
        (low, high), (other_low, other_high) = [
            (Call("least", pair, pair[0].type), Call("greatest", pair, pair[0].type))
            for pair in pairs
        ]
        if all(_tame(e) for e in args):
            self._lows.append(_Less(low, other_high))
            self._highs.append(_Less(other_low, high))

    def _side_of_all(self, exprs: tuple[Expr, ...]) -> str:
        found = {self._side(e) for e in exprs} - {NONE}
        return found.pop() if len(found) == 1 else BOTH if found else NONE

    def _side(self, expr: Expr) -> str:
        columns = columns_of(expr)
        left = any(c < self._width for c in columns)
        right = any(c >= self._width for c in columns)
        return BOTH if left and right else LEFT if left else RIGHT if right else NONE

    def _compare(self, small: Expr, big: Expr, strictly: bool) -> None:
        """Take note of ``small <= big``, of ``small < big`` if ``strictly``."""
        if not (is_numeric(small.type) or is_temporal(small.type)):
            return
        below, above = self._sum(small), self._sum(big)
        if below is None or above is None:
            return
        whole = below.plus(above.times(Fraction(-1)))
        if whole is None:
            return
        sides = self._side(small), self._side(big)
        mixed = [(a, f) for a, f in whole.terms if self._side(a) == BOTH]
        if mixed:
            if len(mixed) == len(whole.terms) and (whole.exact or sides[1] == NONE):
                self._mixed(mixed, whole, strictly)
            return
        if set(sides) == {LEFT, RIGHT} and _tame(small) and _tame(big):
            (self._lows if sides[0] == LEFT else self._highs).append(_Less(small, big))
        whole = _tightened(whole, strictly)
        if sides[1] == NONE or whole.exact:
            self._bound(whole, guarded=True)
        elif set(sides) == {LEFT, RIGHT}:
            self._bound(whole, from_left=sides[0] == LEFT)
        else:
            self._bound(whole, kept=False)

    def _mixed(self, terms: list[tuple[Expr, Fraction]], whole: _Sum, strictly: bool) -> None:
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
                inner = self._sum(arg)
                if inner is not None:
                    square = limit * limit * (1 + _MANY_ROUNDINGS)
                    both = [(a, f) for a, f in inner.terms if self._side(a) == BOTH]
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
        sides = self._side(one), self._side(other)
        if most < 0 or set(sides) != {LEFT, RIGHT} or not (_tame(one) and _tame(other)):
            return
        left, right = (one, other) if sides[0] == LEFT else (other, one)
        self._edits.append((most, left, right))

    def _within(self, expr: Expr, limit: Fraction) -> None:
        """Take note of ``-limit <= expr <= limit``; NaN is excluded."""
        found = self._sum(expr)
        if found is None or limit < 0:
            return
        limit *= 1 + (_COARSE if found.coarse else 0 if found.exact else _ROUNDING)
        for sign in (1, -1):
            self._bound(_plus_constant(found.times(Fraction(sign)), -limit), guarded=True)

    def _bound(
        self,
        whole: _Sum,
        guarded: bool = False,
        kept: bool = True,
        from_left: bool | None = None,
    ) -> None:
        """Take note of ``whole <= 0``.

        ``from_left`` says that the left side is the smaller one of a comparison of floating
        numbers: then its coordinate keeps its sign, because NaN stays the greatest.
        """
        left = sorted(((a, f) for a, f in whole.terms if self._side(a) == LEFT), key=_by_text)
        right = sorted(((a, f) for a, f in whole.terms if self._side(a) == RIGHT), key=_by_text)
        if not left or not right or len(left) + len(right) < len(whole.terms):
            return
        if not whole.exact and len(whole.terms) > 2:
            return
        if not all(_tame(atom) for atom, _ in whole.terms) or abs(whole.constant) > _LARGEST:
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

    # ---- expressions to sums

    def _sum(self, expr: Expr) -> _Sum | None:
        """Return an expression as a sum; None if it has a constant that has no value."""
        if self._side(expr) == NONE:
            value = _constant(expr)
            if value is None:
                return None
            exact = not is_floating(expr.type)
            return _Sum((), value, exact, 0 * value if exact else abs(value) * _ROUNDING)
        found = self._parts_of(expr)
        return found if found is not None else _atom(expr)

    def _parts_of(self, expr: Expr) -> _Sum | None:
        """Return the sum of an expression that is built as one, else None."""
        if isinstance(expr, Cast):
            return self._cast(expr)
        if not isinstance(expr, Call):
            return None
        if expr.type == FLOAT:
            return self._coarse(expr)
        match expr:
            case Call("add" | "time_add" | "date_add", (a, b)):
                return self._added(a, b, 1, expr)
            case Call("subtract" | "time_diff" | "date_sub" | "date_diff", (a, b)):
                return self._added(a, b, -1, expr)
            case Call("negate", (a,)):
                return self._scaled(a, Fraction(-1), expr)
            case Call("multiply", (a, b)):
                for value, other in ((a, b), (b, a)):
                    if self._side(value) == NONE and (factor := _constant(value)) is not None:
                        return self._scaled(other, factor, expr)
            case Call("divide", (a, b)) if self._side(b) == NONE:
                divisor = _constant(b)
                return self._scaled(a, 1 / divisor, expr) if divisor else None
        return None

    def _cast(self, expr: Cast) -> _Sum | None:
        source, target = expr.arg.type, expr.type
        widened = is_integer(source) and (is_integer(target) or target == DOUBLE)
        if widened and is_integer(target):
            widened = target.bit_width > source.bit_width
        if not widened and not (source == FLOAT and target == DOUBLE):
            return None
        inner = self._sum(expr.arg)
        if inner is not None and source == BIGINT and target == DOUBLE:
            noise = inner.noise + abs(inner.constant) * _ROUNDING
            return replace(inner, exact=False, noise=noise)
        return inner

    def _coarse(self, expr: Call) -> _Sum | None:
        """Of arithmetic in FLOAT only a difference between the sides is taken apart."""
        if expr.name != "subtract" or self._side(expr) != BOTH:
            return None
        if any(self._side(arg) == BOTH for arg in expr.args):
            return None
        one, other = (_atom(arg) for arg in expr.args)
        whole = one.plus(other.times(Fraction(-1)))
        return None if whole is None else replace(whole, coarse=True)

    def _added(self, a: Expr, b: Expr, sign: int, whole: Expr) -> _Sum | None:
        one, other = self._sum(a), self._sum(b)
        if one is None or other is None or not self._may_split(whole, (a, b)):
            return None
        return self._rounded(one.plus(other.times(Fraction(sign))), whole)

    def _scaled(self, a: Expr, factor: Fraction, whole: Expr) -> _Sum | None:
        inner = self._sum(a)
        if inner is None or factor == 0:
            return None
        if is_floating(whole.type):
            inner = replace(inner, exact=False)
        return self._rounded(inner.times(factor), whole)

    def _may_split(self, whole: Expr, args: tuple[Expr, Expr]) -> bool:
        """Whether a sum may be taken apart: two atoms of one side stay together."""
        return self._side(whole) == BOTH or NONE in [self._side(arg) for arg in args]

    def _rounded(self, found: _Sum | None, expr: Expr) -> _Sum | None:
        if found is None or not is_floating(expr.type):
            return found
        return replace(found, noise=found.noise + abs(found.constant) * _ROUNDING)

    # ---- choosing

    def best(self) -> Recognised:
        """Return the most selective place of all."""
        bands = []
        ones = []
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

    def _near(self, bands: list[Any]) -> Recognised:
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
        return self._recognised(Band(low, high), [x], [y], f"Join in a band: right above left {bounds}")

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


def _atom(expr: Expr) -> _Sum:
    return _Sum(((expr, Fraction(1)),), exact=not is_floating(expr.type))


def _plus_constant(whole: _Sum, value: Fraction) -> _Sum:
    return replace(whole, constant=whole.constant + value)


def _tightened(whole: _Sum, strictly: bool) -> _Sum:
    """Of integers, ``n < 0`` is ``n + 1 <= 0``."""
    integers = [whole.constant, *(f for _, f in whole.terms)]
    if strictly and whole.exact and all(f.denominator == 1 for f in integers):
        return _plus_constant(whole, Fraction(1))
    return whole


def _constant(expr: Expr) -> Fraction | None:
    """Return the value of an expression without columns, None if it has none that is finite."""
    if not (is_numeric(expr.type) or is_temporal(expr.type)):
        return None
    try:
        (value,) = evaluate(expr, [], 1)
    except PenstockError:
        return None
    value = value.value if is_temporal(expr.type) else value.as_py()
    return None if value is None or not math.isfinite(value) else Fraction(value)


def _tame(expr: Expr) -> bool:
    """Whether an expression may be evaluated on every row: it fails by overflow at most."""
    if isinstance(expr, Call) and expr.name in _TAME:
        return all(_tame(child) for child in children(expr))
    if isinstance(expr, Cast):
        known = (expr.arg.type, expr.type) == (DATE, TIMESTAMP)
        return (known or never_fails(expr.arg.type, expr.type)) and _tame(expr.arg)
    return cannot_fail(expr)


def _root_of_square(expr: Expr) -> Expr | None:
    """Return e of ``e * e`` and of ``POWER(e, 2)``."""
    match expr:
        case Call("multiply", (a, b)) if a == b:
            return a
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
