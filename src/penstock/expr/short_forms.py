"""Short forms: calls that stand for other expressions, by name.

Each gets the arguments and a `Resolver`, and returns the expression, or None where the arguments do
not fit.  What they are made of is in the function table, so neither evaluator knows about them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import pyarrow as pa

from penstock.errors import QueryError, suggest
from penstock.expr.nodes import Expr, Literal
from penstock.expr.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    NULL,
    SMALLINT,
    STRING,
    TINYINT,
    is_numeric,
    type_name,
)
from penstock.model import TIMESTAMP


class Resolver(Protocol):
    """What makes typed expressions: the functions of `penstock.expr.functions`."""

    def call(self, name: str, args: Sequence[Expr]) -> Expr:
        """Return a call."""

    def cast(self, expr: Expr, target: pa.DataType) -> Expr:
        """Return a conversion."""

    def case(self, branches: Sequence[tuple[Expr, Expr]], otherwise: Expr | None = None) -> Expr:
        """Return a CASE."""


Form: TypeAlias = Callable[[Resolver, Sequence[Expr]], Expr | None]


def _if(make: Resolver, args: Sequence[Expr]) -> Expr | None:
    if len(args) not in (2, 3):
        return None
    return make.case([(args[0], args[1])], args[2] if len(args) == 3 else None)


def _nvl2(make: Resolver, args: Sequence[Expr]) -> Expr | None:
    if len(args) != 3:
        return None
    return make.case([(make.call("is_not_null", args[:1]), args[1])], args[2])


def _between(make: Resolver, args: Sequence[Expr]) -> Expr | None:
    if len(args) != 3:
        return None
    value, low, high = args
    return make.call("and", (make.call("ge", (value, low)), make.call("le", (value, high))))


def _decode(make: Resolver, args: Sequence[Expr]) -> Expr | None:
    if len(args) < 3:
        return None
    value, *rest = args
    pairs = [(rest[i], rest[i + 1]) for i in range(0, len(rest) - 1, 2)]
    branches = [(make.call("eq_null_safe", (value, search)), found) for search, found in pairs]
    return make.case(branches, rest[-1] if len(rest) % 2 else None)


def _zero_if_null(make: Resolver, args: Sequence[Expr]) -> Expr | None:
    if len(args) != 1 or not (is_numeric(args[0].type) or args[0].type == NULL):
        return None
    return make.call("coalesce", (args[0], Literal(0, INT)))


def _null_if_zero(make: Resolver, args: Sequence[Expr]) -> Expr | None:
    if len(args) != 1 or not (is_numeric(args[0].type) or args[0].type == NULL):
        return None
    return make.call("nullif", (args[0], Literal(0, INT)))


def _positive(make: Resolver, args: Sequence[Expr]) -> Expr | None:
    return args[0] if len(args) == 1 and is_numeric(args[0].type) else None


def _log(make: Resolver, args: Sequence[Expr]) -> Expr | None:
    if len(args) not in (1, 2):
        return None
    return make.call("ln" if len(args) == 1 else "log_base", args)


def _type_of(make: Resolver, args: Sequence[Expr]) -> Expr | None:
    if len(args) != 1:
        return None
    name = "void" if args[0].type == NULL else type_name(args[0].type).lower()
    return Literal(name, STRING)


_PLAIN = Literal("yyyy-MM-dd HH:mm:ss", STRING)
_FIELDS = {
    "year": "year y years yr yrs",
    "quarter": "quarter qtr",
    "month": "month mon mons months",
    "weekofyear": "week w weeks",
    "day": "day d days",
    "dayofyear": "doy dayofyear",
    "dayofweek": "dayofweek dow",
    "yearofweek": "yearofweek",
    "hour": "hour h hours hr hrs",
    "minute": "minute m min mins minutes",
    "second": "second s sec seconds secs",
}
FIELDS: dict[str, str] = {word: name for name, words in _FIELDS.items() for word in words.split()}
"""The fields of EXTRACT and date_part, and the functions that they are."""
_FROM_MONDAY = ("dayofweek_iso", "dow_iso")


def _date_part(make: Resolver, args: Sequence[Expr]) -> Expr | None:
    if len(args) != 2 or not isinstance(args[0], Literal) or args[0].type != STRING:
        return None
    word = str(args[0].value).lower()
    if word in _FROM_MONDAY:
        return make.call("add", (make.call("weekday", args[1:]), Literal(1, INT)))
    if word not in FIELDS:
        raise QueryError(
            f"a field of a time must be known, got '{word}'; "
            f"{suggest(word, (*FIELDS, *_FROM_MONDAY))}"
        )
    return make.call(FIELDS[word], args[1:])


def _to_time(function: str, target: pa.DataType) -> Form:
    """Without a format a conversion, with one what the format reads."""

    def form(make: Resolver, args: Sequence[Expr]) -> Expr | None:
        if len(args) == 2:
            return make.cast(make.call(function, args), target)
        if len(args) != 1:
            return None
        if function == "parse_timestamp":
            return make.cast(args[0], target)
        return make.call("try_cast", (args[0], Literal(type_name(target), STRING)))

    return form


def _to_char(make: Resolver, args: Sequence[Expr]) -> Expr | None:
    return make.call("date_format", args) if len(args) == 2 else None


def _from_unixtime(make: Resolver, args: Sequence[Expr]) -> Expr | None:
    if len(args) not in (1, 2):
        return None
    time = make.call("timestamp_seconds", args[:1])
    return make.call("date_format", (time, args[1] if len(args) == 2 else _PLAIN))


def _unix_timestamp(make: Resolver, args: Sequence[Expr]) -> Expr | None:
    if len(args) not in (1, 2):
        return None
    if args[0].type != STRING:
        return make.call("unix_seconds", args[:1])
    read = make.call("parse_timestamp", (args[0], args[1] if len(args) == 2 else _PLAIN))
    return make.call("unix_seconds", (read,))


def _convert_timezone(make: Resolver, args: Sequence[Expr]) -> Expr | None:
    if len(args) not in (2, 3):
        return None
    *source, target, time = args
    if source:
        time = make.call("to_utc_timestamp", (time, source[0]))
    return make.call("from_utc_timestamp", (time, target))


def _by_unit(short: str, long: str) -> Form:
    """Two arguments are dates and days, three begin with a unit of time."""

    def form(make: Resolver, args: Sequence[Expr]) -> Expr | None:
        return make.call(long if len(args) == 3 else short, args)

    return form


def _space(make: Resolver, args: Sequence[Expr]) -> Expr | None:
    return make.call("repeat", (Literal(" ", STRING), args[0])) if len(args) == 1 else None


def _cast_to(target: pa.DataType) -> Form:
    return lambda make, args: make.cast(args[0], target) if len(args) == 1 else None


def _constant(value: float) -> Form:
    return lambda make, args: None if args else Literal(value, DOUBLE)


_CASTS: dict[str, pa.DataType] = {
    "boolean": BOOLEAN,
    "tinyint": TINYINT,
    "smallint": SMALLINT,
    "int": INT,
    "bigint": BIGINT,
    "float": FLOAT,
    "double": DOUBLE,
    "string": STRING,
    "date": DATE,
    "timestamp": TIMESTAMP,
}

FORMS: dict[str, tuple[str, Form, str]] = {
    "if": ("if(condition, a, b)", _if, "a where the condition holds, else b."),
    "iff": ("iff(condition, a, b)", _if, "As `if`."),
    "nvl2": ("nvl2(x, a, b)", _nvl2, "a where x is not null, else b."),
    "between": ("x BETWEEN low AND high", _between, "`x >= low AND x <= high`."),
    "decode": (
        "decode(x, search, result, .. [, otherwise])",
        _decode,
        "The result beside the first search that equals x, where two nulls are equal.",
    ),
    "zeroifnull": ("zeroifnull(x)", _zero_if_null, "`coalesce(x, 0)`."),
    "nullifzero": ("nullifzero(x)", _null_if_zero, "`nullif(x, 0)`."),
    "positive": ("positive(x)", _positive, "The number itself."),
    "log": ("log(x)", _log, "`ln(x)`."),
    "space": ("space(n)", _space, "`repeat(' ', n)`."),
    "typeof": ("typeof(x)", _type_of, "The name of the type, as text."),
    "to_date": (
        "to_date(x [, format])",
        _to_time("parse_timestamp", DATE),
        "`CAST(x AS DATE)`; with a format, the day of `to_timestamp(x, format)`.",
    ),
    "to_timestamp": (
        "to_timestamp(x)",
        _to_time("parse_timestamp", TIMESTAMP),
        "`CAST(x AS TIMESTAMP)`. Also `to_timestamp_ltz`, `to_timestamp_ntz`.",
    ),
    "try_to_date": (
        "try_to_date(x [, format])",
        _to_time("try_parse_timestamp", DATE),
        "As `to_date`, but null where x cannot be read.",
    ),
    "try_to_timestamp": (
        "try_to_timestamp(x)",
        _to_time("try_parse_timestamp", TIMESTAMP),
        "`TRY_CAST(x AS TIMESTAMP)`.",
    ),
    "to_char": (
        "to_char(t, format), to_varchar(t, format)",
        _to_char,
        "`date_format(t, format)`.",
    ),
    "from_unixtime": (
        "from_unixtime(n [, format])",
        _from_unixtime,
        "`date_format(timestamp_seconds(n), format)`, by default 'yyyy-MM-dd HH:mm:ss'.",
    ),
    "convert_timezone": (
        "convert_timezone([source, ]target, t)",
        _convert_timezone,
        "`from_utc_timestamp(to_utc_timestamp(t, source), target)`; without a source that is UTC.",
    ),
    "unix_timestamp": (
        "unix_timestamp(x [, format])",
        _unix_timestamp,
        "`unix_seconds` of a time, or of a text by `to_timestamp(x, format)`. Also "
        "`to_unix_timestamp`.",
    ),
    "date_part": (
        "date_part(field, t), datepart(field, t), EXTRACT(field FROM t)",
        _date_part,
        "The function of that name, of a constant field: YEAR, QUARTER, MONTH, WEEK, DAY, DOY, "
        "DAYOFWEEK (DOW), DAYOFWEEK_ISO, YEAROFWEEK, HOUR, MINUTE, SECOND, with Spark's other "
        "names for them. Seconds are whole.",
    ),
    "dateadd": (
        "dateadd(d, days), dateadd(unit, n, t)",
        _by_unit("date_add", "timestampadd"),
        "`date_add(d, days)` or `timestampadd(unit, n, t)`.",
    ),
    "datediff": (
        "datediff(later, earlier), datediff(unit, start, end)",
        _by_unit("date_diff", "timestampdiff"),
        "`date_diff(later, earlier)` or `timestampdiff(unit, start, end)`.",
    ),
    "pi": ("pi()", _constant(math.pi), "3.14159.."),
    "e": ("e()", _constant(math.e), "2.71828.."),
    **{
        name: (f"{name}(x)", _cast_to(type_), f"`CAST(x AS {type_name(type_)})`.")
        for name, type_ in _CASTS.items()
    },
}
"""Every short form by its name: how it is written, what it stands for, a sentence."""

_ALSO = {
    "to_timestamp_ltz": "to_timestamp",
    "to_timestamp_ntz": "to_timestamp",
    "to_varchar": "to_char",
    "to_unix_timestamp": "unix_timestamp",
    "datepart": "date_part",
}
NAMES: frozenset[str] = frozenset((*FORMS, *_ALSO))
"""Every name of a short form."""


def document() -> list[str]:
    """Return the lines of the documentation page about short forms."""
    lines = ["## Short forms", "", "| call | meaning |", "|---|---|"]
    return lines + [f"| {code(usage)} | {doc} |" for usage, _, doc in FORMS.values()]


def code(text: str) -> str:
    """Return text as code in a table of Markdown."""
    return "`" + text.replace("|", "\\|") + "`"


def resolve(make: Resolver, name: str, args: Sequence[Expr]) -> tuple[str, Expr | None]:
    """Return how a form is written, and the expression that it stands for."""
    usage, form, _ = FORMS[_ALSO.get(name, name)]
    return usage, form(make, args)
