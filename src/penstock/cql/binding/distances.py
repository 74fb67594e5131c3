"""Conditions about distances that can never hold: a mistake, told where it is written."""

from __future__ import annotations

from penstock.errors import QueryError
from penstock.expr.nodes import Call, Cast, Expr, Literal

_DISTANCES = {
    "distance": "a distance",
    "distance_l1": "a distance",
    "distance_max": "a distance",
    "distance_lp": "a distance",
    "levenshtein": "an edit distance",
}
_DIFFERENCES = ("subtract", "time_diff", "date_diff")


def check_distance(comparison: Expr) -> None:
    """Refuse a comparison that wants a distance below zero."""
    match comparison:
        case Call("le" | "lt" | "eq", (value, bound)) | Call("ge" | "gt", (bound, value)):
            what = _distance(value)
            if what and isinstance(bound, Literal) and bound.value is not None and bound.value < 0:
                raise QueryError(f"{what} must be at least 0, got {bound.value}")


def _distance(expr: Expr) -> str | None:
    """Return what an expression is called if it is a distance."""
    match expr:
        case Cast(arg):
            return _distance(arg)
        case Call("abs", (arg,)):
            while isinstance(arg, Cast):
                arg = arg.arg
            difference = isinstance(arg, Call) and arg.name in _DIFFERENCES
            return "the distance of two values" if difference else None
        case Call(name, args):
            bounded = name == "levenshtein" and len(args) == 3  # then -1 is an answer
            return None if bounded else _DISTANCES.get(name)
    return None
