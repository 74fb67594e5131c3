"""The oracle's comparison, logic and null handling: three-valued, and lazy where SQL is."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from penstock.reference.values import NAN, compare

Thunk: TypeAlias = Callable[[], Any]
"""An argument that is evaluated when it is asked for."""


def _test(holds: Callable[[int], bool]) -> Callable[[Any, Any], bool]:
    return lambda a, b: holds(compare(a, b))


def _overlaps(a: Any, b: Any, c: Any, d: Any) -> bool:
    """SQL's definition: whichever starts later starts before the other one's end."""
    if compare(a, b) > 0:
        a, b = b, a
    if compare(c, d) > 0:
        c, d = d, c
    if compare(a, c) == 0:
        return True
    return compare(a, d) < 0 if compare(a, c) > 0 else compare(c, b) < 0


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "eq": _test(lambda c: c == 0),
    "ne": _test(lambda c: c != 0),
    "lt": _test(lambda c: c < 0),
    "le": _test(lambda c: c <= 0),
    "gt": _test(lambda c: c > 0),
    "ge": _test(lambda c: c >= 0),
    "not": operator.not_,
    "overlaps": _overlaps,
}
"""Comparisons, which are null where an argument is."""


def _and(a: Thunk, b: Thunk) -> bool | None:
    first = a()
    if first is False:
        return False
    second = b()
    return False if second is False else None if first is None or second is None else True


def _or(a: Thunk, b: Thunk) -> bool | None:
    first = a()
    if first is True:
        return True
    second = b()
    return True if second is True else None if first is None or second is None else False


def _in(value: Thunk, *options: Thunk) -> bool | None:
    found = value()
    if found is None:
        return None
    values = [option() for option in options]
    if any(v is not None and compare(found, v) == 0 for v in values):
        return True
    return None if None in values else False


def _coalesce(*args: Thunk) -> Any:
    return next((value for arg in args if (value := arg()) is not None), None)


def _null_if(a: Thunk, b: Thunk) -> Any:
    value, other = a(), b()
    equal = value is not None and other is not None and compare(value, other) == 0
    return None if equal else value


def _extreme(sign: int) -> Callable[..., Any]:
    """GREATEST and LEAST skip nulls."""

    def pick(*args: Thunk) -> Any:
        best = None
        for arg in args:
            value = arg()
            if value is not None and (best is None or compare(value, best) == sign):
                best = value
        return best

    return pick


LAZY: dict[str, Callable[..., Any]] = {
    "and": _and,
    "or": _or,
    "in": _in,
    "is_null": lambda a: a() is None,
    "is_nan": lambda a: compare(a(), NAN) == 0,
    "is_not_null": lambda a: a() is not None,
    "eq_null_safe": lambda a, b: compare(a(), b()) == 0,
    "coalesce": _coalesce,
    "nullif": _null_if,
    "greatest": _extreme(1),
    "least": _extreme(-1),
}
"""Functions that see null arguments, or do not look at all of them."""
