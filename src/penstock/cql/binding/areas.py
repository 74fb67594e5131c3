"""Spatial windows: ``WITHIN (x, y) INSIDE area`` as a condition on what a window holds [E 6.2].

The borders of a circle and a box belong to it.  A polygon is asked by how many of its edges lie to
the right of a point, an odd number being inside: so a point on a border that two polygons share is
in exactly one of them.

An area that moves, ``INSIDE area OF item``, is read from the rows of another relation: the window
holds what is inside the area of one of them at least, so it is a semi join.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from penstock.algebra import Filter, Node
from penstock.cql.binding.chains import attach
from penstock.cql.binding.scalars import ScalarBinder
from penstock.cql.binding.scope import Scope
from penstock.cql.binding.script import Script
from penstock.cql.binding.times import check_one_kind
from penstock.cql.grammar.syntax import AreaSyntax, Scalar, span_of
from penstock.errors import DataError, suggest
from penstock.expr.arrow import evaluate
from penstock.expr.functions import coerce, resolve_call
from penstock.expr.nodes import Call, Cast, Expr, Literal, columns_of, conjuncts
from penstock.expr.types import BOOLEAN, DOUBLE, NULL, is_numeric, type_name


def inside(source: Script, node: Node, area: AreaSyntax) -> Node:
    """Return the rows of a relation that are inside an area."""
    return Filter(node, _condition(source, area, Scope.of("", node.schema), Scope(())))


def inside_of(source: Script, node: Node, area: AreaSyntax, name: str, other: Node) -> Node:
    """Return the rows of a relation that are inside the area of a row of another one."""
    assert area.item is not None
    check_one_kind(source, [node, other], area.item.span)
    theirs = Scope.of(name, other.schema, len(node.schema))
    hidden = theirs.hide(column.index for column in theirs.columns)
    own = Scope.of("", node.schema).plus(hidden)
    return attach("semi", node, other, conjuncts(_condition(source, area, own, theirs)))


def _condition(source: Script, area: AreaSyntax, own: Scope, theirs: Scope) -> Expr:
    """Return that a place is inside an area, whose numbers may read columns of ``theirs``."""
    binder = ScalarBinder(source, own, "WITHIN")
    x, y = (_number(source, binder, part) for part in area.point)
    shape = area.shape.text.upper()
    if shape not in _SHAPES:
        source.fail(
            f"there is no area '{area.shape.text}'; {suggest(shape, list(_SHAPES))}",
            area.shape.span,
        )
    given = [_given(source, theirs, part) for part in area.numbers]
    fits, form, condition = _SHAPES[shape]
    if not fits(given):
        source.fail(f"{shape} must be written {form}", area.span)
    found = condition(x, y, given)
    if area.item is not None and shape == "POLYGON":
        return _all([_around(x, y, given), found])
    return found


def _number(source: Script, binder: ScalarBinder, part: Scalar) -> Expr:
    expr = binder.bind(part)
    if not is_numeric(expr.type) and expr.type != NULL:
        source.fail(f"a place must be given by numbers, got {type_name(expr.type)}", span_of(part))
    return coerce(expr, DOUBLE)


def _given(source: Script, theirs: Scope, part: Scalar) -> Expr:
    """Return a number of an area; one that reads no columns as its value."""
    expr = _number(source, ScalarBinder(source, theirs, "an area"), part)
    if columns_of(expr):
        return expr
    try:
        value = evaluate(expr, [], 1)[0].as_py()
    except DataError as error:
        source.fail(str(error), span_of(part))
    if value is None:
        source.fail("a number of an area must not be null", span_of(part))
    return _literal(float(value))


def _constants(given: Sequence[Expr]) -> list[float] | None:
    """Return numbers that stand still; None if one of them moves."""
    values = [part.value for part in given if isinstance(part, Literal)]
    return values if len(values) == len(given) else None


def _literal(value: float) -> Expr:
    return Literal(value, DOUBLE)


def _all(parts: Sequence[Expr]) -> Expr:
    return reduce(lambda one, other: resolve_call("and", [one, other]), parts)


def _circle(x: Expr, y: Expr, given: Sequence[Expr]) -> Expr:
    return resolve_call("le", [resolve_call("distance", [x, y, *given[:2]]), given[2]])


def _box(x: Expr, y: Expr, given: Sequence[Expr]) -> Expr:
    return _all([_between(x, given[0], given[2]), _between(y, given[1], given[3])])


def _between(place: Expr, one: Expr, other: Expr) -> Expr:
    """Return that a number is between two others, whichever of them is the smaller one."""
    (base, least), (same, most) = _offset(one), _offset(other)
    if base == same:
        low, high = (one, other) if least <= most else (other, one)
        return _all([resolve_call("ge", [place, low]), resolve_call("le", [place, high])])
    return resolve_call("or", [
        _all([resolve_call("ge", [place, low]), resolve_call("le", [place, high])])
        for low, high in ((one, other), (other, one))
    ])  # fmt: skip


def _offset(expr: Expr) -> tuple[Expr | None, float]:
    """Return an expression as another one and a constant that is added; None is nothing."""
    match expr:
        case Literal(value):
            return None, float(value)
        case Cast(arg):
            return _offset(arg)
        case Call("add" | "subtract" as name, (base, Literal(value))) if value is not None:
            return base, float(value) if name == "add" else -float(value)
    return expr, 0.0


def _polygon(x: Expr, y: Expr, given: Sequence[Expr]) -> Expr:
    numbers = _constants(given) or []
    corners = list(zip(numbers[::2], numbers[1::2], strict=True))
    crossed: Expr = Literal(False, BOOLEAN)
    for first, second in zip(corners, [*corners[1:], corners[0]], strict=True):
        (ax, ay), (bx, by) = sorted((first, second))  # the same numbers for both of its sides
        if ay == by:
            continue  # no ray to the right crosses it
        sides = [resolve_call("gt", [_literal(end), y]) for end in (ay, by)]
        rise = resolve_call("subtract", [y, _literal(ay)])
        along = resolve_call("multiply", [rise, _literal((bx - ax) / (by - ay))])
        edge = resolve_call("add", [along, _literal(ax)])
        crosses = resolve_call("and", [resolve_call("ne", sides), resolve_call("lt", [x, edge])])
        crossed = resolve_call("ne", [crossed, crosses])
    return crossed


def _around(x: Expr, y: Expr, given: Sequence[Expr]) -> Expr:
    """Return that a place is in the box around a polygon, by which a join finds its partners."""
    numbers = _constants(given) or []
    sides = (numbers[::2], numbers[1::2])
    return _box(x, y, [_literal(most(side)) for most in (min, max) for side in sides])


_SHAPES: dict[
    str,
    tuple[Callable[[list[Expr]], bool], str, Callable[[Expr, Expr, Sequence[Expr]], Expr]],
] = {
    "CIRCLE": (
        lambda n: len(n) == 3 and min(_constants(n[2:]) or [0.0]) >= 0,
        "CIRCLE(x, y, radius), with a radius of 0 or more",
        _circle,
    ),
    "BOX": (lambda n: len(n) == 4, "BOX(x1, y1, x2, y2)", _box),
    "POLYGON": (
        lambda n: len(n) >= 6 and len(n) % 2 == 0 and _constants(n) is not None,
        "POLYGON((x1, y1), (x2, y2), (x3, y3), ..), with three corners or more, whose numbers are "
        "constants; one that moves with a is asked by WITHIN (x - a.x, y - a.y)",
        _polygon,
    ),
}
