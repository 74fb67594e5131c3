"""Spatial windows: ``WITHIN (x, y) INSIDE area`` as a condition on what a window holds [E 6.2].

The borders of a circle and a box belong to it.  A polygon is asked by how many of its edges lie to
the right of a point, an odd number being inside: so a point on a border that two polygons share is
in exactly one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from penstock.algebra import Filter, Node
from penstock.cql.binding.scalars import ScalarBinder
from penstock.cql.binding.scope import Scope
from penstock.cql.binding.script import Script
from penstock.cql.grammar.syntax import AreaSyntax, Scalar, span_of
from penstock.errors import DataError, suggest
from penstock.expr.arrow import evaluate
from penstock.expr.functions import coerce, resolve_call
from penstock.expr.nodes import Expr, Literal
from penstock.expr.types import BOOLEAN, DOUBLE, NULL, is_numeric, type_name


def inside(source: Script, node: Node, area: AreaSyntax) -> Node:
    """Return the rows of a relation that are inside an area."""
    binder = ScalarBinder(source, Scope.of("", node.schema), "WITHIN")
    x, y = (_number(source, binder, part) for part in area.point)
    shape = area.shape.text.upper()
    if shape not in _SHAPES:
        source.fail(
            f"there is no area '{area.shape.text}'; {suggest(shape, list(_SHAPES))}",
            area.shape.span,
        )
    given = [_constant(source, part) for part in area.numbers]
    fits, form, condition = _SHAPES[shape]
    if not fits(given):
        source.fail(f"{shape} must be written {form}", area.span)
    return Filter(node, condition(x, y, given))


def _number(source: Script, binder: ScalarBinder, part: Scalar) -> Expr:
    expr = binder.bind(part)
    if not is_numeric(expr.type) and expr.type != NULL:
        source.fail(f"a place must be given by numbers, got {type_name(expr.type)}", span_of(part))
    return coerce(expr, DOUBLE)


def _constant(source: Script, part: Scalar) -> float:
    """Return a number of an area, which reads no columns."""
    expr = _number(source, ScalarBinder(source, Scope(()), "an area"), part)
    try:
        value = evaluate(expr, [], 1)[0].as_py()
    except DataError as error:
        source.fail(str(error), span_of(part))
    if value is None:
        source.fail("a number of an area must not be null", span_of(part))
    return float(value)


def _literal(value: float) -> Expr:
    return Literal(value, DOUBLE)


def _circle(x: Expr, y: Expr, given: Sequence[float]) -> Expr:
    centre = [_literal(value) for value in given[:2]]
    return resolve_call("le", [resolve_call("distance", [x, y, *centre]), _literal(given[2])])


def _box(x: Expr, y: Expr, given: Sequence[float]) -> Expr:
    parts = []
    for place, one, other in ((x, given[0], given[2]), (y, given[1], given[3])):
        parts.append(resolve_call("ge", [place, _literal(min(one, other))]))
        parts.append(resolve_call("le", [place, _literal(max(one, other))]))
    return reduce(lambda a, b: resolve_call("and", [a, b]), parts)


def _polygon(x: Expr, y: Expr, given: Sequence[float]) -> Expr:
    corners = list(zip(given[::2], given[1::2], strict=True))
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


_SHAPES: dict[
    str,
    tuple[Callable[[list[float]], bool], str, Callable[[Expr, Expr, Sequence[float]], Expr]],
] = {
    "CIRCLE": (
        lambda n: len(n) == 3 and n[2] >= 0,
        "CIRCLE(x, y, radius), with a radius of 0 or more",
        _circle,
    ),
    "BOX": (lambda n: len(n) == 4, "BOX(x1, y1, x2, y2)", _box),
    "POLYGON": (
        lambda n: len(n) >= 6 and len(n) % 2 == 0,
        "POLYGON((x1, y1), (x2, y2), (x3, y3), ..), with three corners or more",
        _polygon,
    ),
}
