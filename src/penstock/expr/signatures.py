"""What a function is, and the rules that say which arguments it takes.

A `Rule` looks at the arguments and returns the type each must be converted to and the type of the
result, or raises `Mismatch` with what it wanted.  Rules are built from `Kind`s: a kind says in
words what it accepts and into which type it converts.

Both implementations of a function take the arguments in order.  The Arrow one gets arrays or
scalars, at least one array among them, of exactly the types of the rule; the Spark one gets the
module ``pyspark.sql.functions`` first and then columns, so that this room does not import pyspark.
Positions in ``constants`` must be literals; they reach the Arrow implementation as plain Python
values (times as their integer count) and the Spark one as literal columns.

A function without a Spark implementation is evaluated only by Arrow: the two would not agree in
every bit (the exponential function of Java and of C, for instance), and a query has one meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.expr.nodes import Expr, Literal
from penstock.expr.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    NULL,
    STRING,
    common_type,
    is_integer,
    is_numeric,
    is_temporal,
    type_name,
)
from penstock.model import TIMESTAMP
from penstock.nested.shapes import is_nested

Types: TypeAlias = tuple[pa.DataType, ...]
Rule: TypeAlias = Callable[[Sequence[Expr]], tuple[Types, pa.DataType]]


class Mismatch(Exception):  # noqa: N818 -- caught where the function's name is known
    """The arguments do not fit; the text says what was wanted."""


@dataclass(frozen=True)
class Function:
    """One row of the function table.

    ``total``: it never fails, so it may be evaluated on rows whose result is not needed.
    ``advice``: what to do when it fails on the data.
    """

    name: str
    usage: str
    rule: Rule
    arrow: Callable[..., Any]
    spark: Callable[..., Any] | None
    doc: str
    aliases: tuple[str, ...] = ()
    constants: Container[int] = ()
    total: bool = True
    advice: str = ""


def function(
    usage: str, rule: Rule, arrow: Callable[..., Any], doc: str, *aliases: str, **more: Any
) -> Function:
    """Return a row of the table; ``more`` are other fields of `Function`.

    Unless it is said otherwise, the name is what stands before the bracket, and Spark's function
    has the same one.
    """
    name: str = more.pop("name", usage.partition("(")[0])
    spark = more.pop("spark", lambda f, *columns: getattr(f, name)(*columns))
    return Function(name, usage, rule, arrow, spark, doc, aliases, **more)


def called(name: str) -> Callable[..., Any]:
    """Return the call of one of Spark's functions by its name."""
    return lambda f, *columns: f.call_function(name, *columns)


def infix(
    name: str,
    usage: str,
    rule: Rule,
    kernels: tuple[Any, Any],
    doc: str,
    *aliases: str,
    **more: Any,
) -> Function:
    """Return the row of an operator; ``kernels`` are of Arrow, and of Spark's columns alone."""
    arrow, spark = kernels
    return Function(
        name, usage, rule, arrow, lambda f, *columns: spark(*columns), doc, aliases, **more
    )


@dataclass(frozen=True)
class Kind:
    """A family of accepted arguments: in words, and the type into which each is converted."""

    words: str
    accept: Callable[[Expr], pa.DataType | None]


def _to(target: pa.DataType, *accepted: Callable[[pa.DataType], bool]) -> Callable[[Expr], Any]:
    def accept(expr: Expr) -> pa.DataType | None:
        fits = expr.type in (target, NULL) or any(test(expr.type) for test in accepted)
        return target if fits else None

    return accept


def _keep(test: Callable[[pa.DataType], bool], of_null: pa.DataType) -> Callable[[Expr], Any]:
    def accept(expr: Expr) -> pa.DataType | None:
        if expr.type == NULL:
            return of_null
        return expr.type if test(expr.type) else None

    return accept


def is_text_literal(expr: Expr) -> bool:
    """Whether the argument is quoted text, which stands for a time where a time is wanted."""
    return isinstance(expr, Literal) and expr.type == STRING


def _time(target: pa.DataType) -> Callable[[Expr], Any]:
    def accept(expr: Expr) -> pa.DataType | None:
        fits = is_temporal(expr.type) or expr.type == NULL or is_text_literal(expr)
        return target if fits else None

    return accept


def _day_or_time(expr: Expr) -> pa.DataType | None:
    if is_temporal(expr.type):
        return expr.type
    return TIMESTAMP if expr.type == NULL or is_text_literal(expr) else None


TRUTH = Kind("a BOOLEAN", _to(BOOLEAN))
NUMBER = Kind("a number", _keep(is_numeric, DOUBLE))
REAL = Kind("a number", _to(DOUBLE, is_numeric))
LONG = Kind("an integer", _to(BIGINT, is_integer))
COUNT = Kind("an INT", _to(INT, is_integer))
TEXT = Kind("a STRING", _to(STRING))
BYTES = Kind("a STRING or BINARY", _keep(lambda type_: type_ in (STRING, BINARY), STRING))
PRINTABLE = Kind("a value", lambda expr: STRING)
TIME = Kind("a TIMESTAMP or DATE", _time(TIMESTAMP))
DAY = Kind("a DATE or TIMESTAMP", _time(DATE))
DAY_OR_TIME = Kind("a TIMESTAMP or DATE", _day_or_time)
ANY = Kind("a value", lambda expr: expr.type)
PLAIN = Kind("a value that is no ARRAY, STRUCT or MAP", _keep(lambda t: not is_nested(t), NULL))
WRITTEN = Kind(
    "a value that is no ARRAY, STRUCT or MAP (of an ARRAY, array_join(x, separator))",
    lambda expr: None if is_nested(expr.type) else STRING,
)


def takes(
    *kinds: Kind,
    gives: pa.DataType | Callable[[Types], pa.DataType],
    optional: int = 0,
    more: Kind | None = None,
) -> Rule:
    """Arguments one by one; the last ``optional`` may be missing; ``more`` may follow, repeated."""

    def rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
        least = len(kinds) - optional
        if len(args) < least or (more is None and len(args) > len(kinds)):
            raise Mismatch(_number_of_arguments(least, len(kinds), more is not None))
        extra = [more] * (len(args) - len(kinds)) if more else []
        wanted = [*kinds, *extra][: len(args)]
        types = tuple(kind.accept(arg) for kind, arg in zip(wanted, args, strict=True))
        for position, (type_, kind) in enumerate(zip(types, wanted, strict=True), 1):
            if type_ is None:
                raise Mismatch(f"{kind.words} as argument {position}")
        return types, gives(types) if callable(gives) else gives

    return rule


def alike(
    words: str,
    test: Callable[[pa.DataType], bool] = lambda type_: True,
    gives: pa.DataType | None = None,
    least: int = 2,
    most: int | None = 2,
    of_null: pa.DataType = DOUBLE,
    instead: Callable[[Sequence[Expr]], str] = lambda args: "",
) -> Rule:
    """All arguments are converted to the type they have in common, which must pass ``test``.

    ``gives`` is the result's type, by default the common one.  ``instead`` may add a hint.
    """

    def rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
        if len(args) < least or (most is not None and len(args) > most):
            raise Mismatch(_number_of_arguments(least, most or least, most is None))
        shared = shared_type(args)
        if shared is None or not (shared == NULL or test(shared)):
            raise Mismatch(words + instead(args))
        if shared == NULL:
            shared = of_null
        return (shared,) * len(args), shared if gives is None else gives

    return rule


def shared_type(args: Sequence[Expr]) -> pa.DataType | None:
    """Return the type that all have in common; quoted text counts as a time beside times."""
    temporal = any(is_temporal(arg.type) for arg in args)
    shared: pa.DataType | None = NULL
    for arg in args:
        if shared is not None and not (temporal and is_text_literal(arg)):
            shared = common_type(shared, arg.type)
    return shared


def _number_of_arguments(least: int, most: int, more: bool) -> str:
    if more:
        return f"{least} or more arguments"
    if least == most:
        return f"{least} argument{'' if least == 1 else 's'}"
    return f"{least} to {most} arguments"


def got(args: Sequence[Expr]) -> str:
    """Describe the arguments by their types."""
    return ", ".join(type_name(arg.type) for arg in args) or "none"
