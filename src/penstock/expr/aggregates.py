"""Typed calls of aggregates: names and arguments to `AggregateCall`.

Several names are short forms of others: ``bool_and`` is MIN of truth values, ``median`` a
percentile.  A condition of FILTER becomes part of the argument that decides whether a row counts,
which is null where the condition does not hold; so the operators know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.errors import QueryError, suggest
from penstock.expr.decimal_types import mean_of, total_of
from penstock.expr.functions import coerce, resolve_call, resolve_case
from penstock.expr.library.aggregates import (
    BITS,
    IN_ORDER,
    NAMES,
    PAIRS,
    PICKED,
    SHAPES,
    USAGE,
    VARIANCES,
)
from penstock.expr.nodes import AggregateCall, Expr, Literal
from penstock.expr.signatures import got
from penstock.expr.types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INT,
    NULL,
    STRING,
    is_decimal,
    is_integer,
    is_numeric,
    type_name,
)
from penstock.nested.shapes import is_nested

_WORDS = {(2, 2): "two", (1, 2): "one or two"}
_TRUTHS = ("bool_and", "every", "bool_or", "some", "any")


def is_aggregate(name: str) -> bool:
    """Whether the name is that of an aggregate."""
    return name.lower() in NAMES


def resolve_aggregate(
    name: str, args: Sequence[Expr], distinct: bool = False, where: Expr | None = None
) -> AggregateCall:
    """Return the typed aggregate, of the rows in which ``where`` holds.

    ``COUNT(*)`` has no arguments.  Those of `IN_ORDER` get the time of a row as second argument.
    """
    spelled = name.lower()
    key = NAMES.get(spelled)
    if key is None:
        raise QueryError(f"there is no aggregate '{name}'; {suggest(spelled, NAMES)}")
    if not args:
        if spelled != "count" or distinct:
            raise QueryError(f"aggregate {name}(x) must get an argument, got '*' or none")
        if where is None:
            return AggregateCall("count", None, BIGINT)
        args = [Literal(1, INT)]
    _check_number(spelled, args)
    if spelled == "median":
        args = [*args, Literal(0.5, DOUBLE)]
    if where is not None:
        at = 1 if key in PICKED else 0
        args = [*args[:at], resolve_case([(where, args[at])]), *args[at + 1 :]]
    if spelled == "count_if":
        args = [resolve_case([(args[0], Literal(1, INT))])]
    if spelled in _TRUTHS and args[0].type not in (BOOLEAN, NULL):
        raise QueryError(
            f"aggregate {name}(x) must get a BOOLEAN, got {type_name(args[0].type)}; compare it "
            "with something"
        )
    return _RULES[key](name, args, distinct)


def _check_number(spelled: str, args: Sequence[Expr]) -> None:
    """Refuse calls with too few or too many arguments."""
    usage, least, most = USAGE.get(spelled, ("", 1, 1))
    if spelled in IN_ORDER:
        usage, least, most = f"{spelled}(x, t)", 2, 2
    if spelled != "count" and not least <= len(args) <= most:
        number = "one argument" if most == 1 else f"{_WORDS[least, most]} arguments, {usage}"
        raise QueryError(f"{spelled.upper()} must have {number}, got {len(args)}")


def _typed(arg: Expr) -> Expr:
    """Give a bare NULL a type."""
    return coerce(arg, STRING) if arg.type == NULL else arg


def _plain(name: str, arg: Expr) -> Expr:
    """Refuse a value with others inside."""
    if is_nested(arg.type):
        raise QueryError(
            f"aggregate {name} must go by a value without others inside, got "
            f"{type_name(arg.type)}; take one of them, x.field or x[0], or to_json(x)"
        )
    return _typed(arg)


def _number(name: str, args: Sequence[Expr]) -> None:
    for arg in args:
        if not (is_numeric(arg.type) or arg.type == NULL):
            hint = "; count with COUNT_IF(x)" if arg.type == BOOLEAN else "; use CAST"
            usage = USAGE.get(name.lower(), (f"{name}(x)",))[0]
            wanted = "a number" if len(args) == 1 else "numbers"
            raise QueryError(f"aggregate {usage} must get {wanted}, got {got(args)}{hint}")


def _count(name: str, args: Sequence[Expr], distinct: bool) -> AggregateCall:
    first, *others = (_typed(arg) for arg in args)
    if distinct:
        return AggregateCall("count_distinct", first, BIGINT, tuple(others))
    if others:
        there = resolve_call("is_not_null", [others[0]])
        for other in others[1:]:
            there = resolve_call("and", [there, resolve_call("is_not_null", [other])])
        first = resolve_case([(there, first)])
    constant = isinstance(first, Literal) and first.value is not None
    return AggregateCall("count", None if constant else first, BIGINT)


def _extreme(name: str, args: Sequence[Expr], distinct: bool) -> AggregateCall:
    spelled = name.lower()
    arg = coerce(args[0], BOOLEAN) if spelled in _TRUTHS else _plain(name, args[0])
    return AggregateCall(NAMES[spelled], arg, arg.type)


def _sum(name: str, args: Sequence[Expr], distinct: bool) -> AggregateCall:
    """Aggregates of numbers: DOUBLE but for sums of integers, and sums and means of DECIMALs."""
    _number(name, args)
    key = NAMES[name.lower()]
    if key in ("sum", "avg") and is_decimal(args[0].type):
        kind = total_of(args[0].type) if key == "sum" else mean_of(args[0].type)
        return AggregateCall(key, args[0], kind, (), distinct)
    target = BIGINT if key == "sum" and is_integer(args[0].type) else DOUBLE
    first, *others = (coerce(arg, target) for arg in args)
    return AggregateCall(key, first, target, tuple(others), distinct)


def _bits(name: str, args: Sequence[Expr], distinct: bool) -> AggregateCall:
    arg = coerce(args[0], BIGINT) if args[0].type == NULL else args[0]
    if not is_integer(arg.type):
        raise QueryError(f"aggregate {name}(x) must get an integer, got {type_name(arg.type)}")
    key = NAMES[name.lower()]
    return AggregateCall(key, arg, arg.type, (), distinct and key == "bit_xor")


def _picked(name: str, args: Sequence[Expr], distinct: bool) -> AggregateCall:
    value, by = _typed(args[0]), _plain(name, args[1])
    return AggregateCall(NAMES[name.lower()], by, value.type, (value,))


def _percentile(name: str, args: Sequence[Expr], distinct: bool) -> AggregateCall:
    _number(name, args[:1])
    share = args[1]
    if not isinstance(share, Literal) or not is_numeric(share.type) or not 0 <= share.value <= 1:
        shown = repr(share.value) if isinstance(share, Literal) else "an expression"
        raise QueryError(
            f"aggregate percentile(x, p) must get a number from 0 to 1 as p, got {shown}"
        )
    more = (coerce(share, DOUBLE),)
    return AggregateCall("percentile", coerce(args[0], DOUBLE), DOUBLE, more, distinct)


def _mode(name: str, args: Sequence[Expr], distinct: bool) -> AggregateCall:
    arg = _plain(name, args[0])
    return AggregateCall("min" if distinct else "mode", arg, arg.type)


def _texts(name: str, args: Sequence[Expr], distinct: bool) -> AggregateCall:
    delimiter = args[1] if len(args) > 1 else Literal("", STRING)
    if not isinstance(delimiter, Literal) or delimiter.type not in (STRING, NULL):
        raise QueryError(
            f"aggregate {name}(x, delimiter) must get a constant text as delimiter, got "
            f"{got([delimiter])}"
        )
    between = Literal(delimiter.value or "", STRING)
    return AggregateCall("string_agg", coerce(args[0], STRING), STRING, (between,), distinct)


_RULES: dict[str, Callable[[str, Sequence[Expr], bool], AggregateCall]] = {
    "count": _count,
    "min": _extreme,
    "max": _extreme,
    **dict.fromkeys(("sum", "avg", *VARIANCES, *PAIRS, *SHAPES), _sum),
    **dict.fromkeys(BITS, _bits),
    **dict.fromkeys(PICKED, _picked),
    "percentile": _percentile,
    "mode": _mode,
    "string_agg": _texts,
}
