"""Conversions between types: which are allowed, and how Arrow columns are converted.

Conversions are checked, as in Spark's ANSI mode: a value that does not fit is an error, never a
null.  Text is read by one grammar per type (`GRAMMAR`), which the Spark side applies too, so that
both accept the same texts.  Fractions are cut towards zero.  Times and counts are never mixed
silently: ``CAST(t AS BIGINT)`` is refused, because seconds, milliseconds and microseconds are all
plausible.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError, QueryError
from penstock.expr.calendar import written
from penstock.expr.decimal_casts import (
    DECIMAL_TEXT,
    from_binary,
    from_decimal,
    to_binary,
    to_decimal,
)
from penstock.expr.nested_casts import check_nested_cast, nested_text
from penstock.expr.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    NULL,
    SMALLINT,
    STRING,
    TINYINT,
    is_decimal,
    is_floating,
    is_integer,
    is_numeric,
    is_temporal,
    type_name,
)
from penstock.model import TIMESTAMP, to_mask
from penstock.nested.shapes import changed, inner_types, is_nested

_BLANK = "[ \\t\\r\\n]*"
_DATE = "[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
_CLOCK = "[0-9]{1,2}:[0-9]{1,2}(?::[0-9]{1,2}(?:\\.[0-9]{1,6})?)?"
_ZONE = "(?: ?(?:Z|[+-][0-9]{1,2}:[0-9]{2}))?"
_INTEGER = "[+-]?[0-9]+"
_DIGITS = "(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_REAL = f"[+-]?(?:{_DIGITS}|(?i:inf|infinity))|(?i:nan)"

GRAMMAR: dict[pa.DataType, str] = {
    type_: f"\\A{_BLANK}(?:{body}){_BLANK}\\z"
    for type_, body in {
        BOOLEAN: "(?i:t|true|y|yes|1|f|false|n|no|0)",
        TINYINT: _INTEGER,
        SMALLINT: _INTEGER,
        INT: _INTEGER,
        BIGINT: _INTEGER,
        FLOAT: _REAL,
        DOUBLE: _REAL,
        TIMESTAMP: f"{_DATE}(?:[ T]{_CLOCK}{_ZONE})?",
        DATE: _DATE,
    }.items()
}
"""The texts from which each type can be read, as a regular expression for RE2 and Java alike."""

_DECIMAL_GRAMMAR = f"\\A{_BLANK}(?:{DECIMAL_TEXT}){_BLANK}\\z"


def grammar_of(type_: pa.DataType) -> str | None:
    """Return the texts from which a type can be read; None if from all of them."""
    return _DECIMAL_GRAMMAR if is_decimal(type_) else GRAMMAR.get(type_)


_EXAMPLE = {
    BOOLEAN: "'true'",
    FLOAT: "'1.5'",
    DOUBLE: "'1.5'",
    TIMESTAMP: "'2024-01-31 12:00:00'",
    DATE: "'2024-01-31'",
}
_PARTS = (
    f"\\A{_BLANK}(?P<year>[0-9]{{4}})-(?P<month>[0-9]{{1,2}})-(?P<day>[0-9]{{1,2}})"
    "(?:[ T](?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{1,2})"
    "(?::(?P<second>[0-9]{1,2})(?:\\.(?P<fraction>[0-9]{1,6}))?)?"
    "(?: ?(?:Z|(?P<sign>[+-])(?P<zone_hour>[0-9]{1,2}):(?P<zone_minute>[0-9]{2})))?)?"
)
_PLAIN_TIME = (
    "\\A[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\\.[0-9]{1,6})?)?\\z"
)


def check_cast(source: pa.DataType, target: pa.DataType) -> None:
    """Raise a QueryError when values of ``source`` can never become ``target``."""
    if is_nested(source) or is_nested(target):
        check_nested_cast(source, target, check_cast, type_name)
        return
    if source == target or source in (NULL, STRING) or target == STRING:
        return
    if BINARY in (source, target):
        raise QueryError(
            f"CAST between BINARY and another type must go through STRING, got "
            f"{type_name(source)} to {type_name(target)}; write for instance "
            f"CAST(CAST(x AS STRING) AS {type_name(target)})"
        )
    if is_temporal(source) and is_temporal(target):
        return
    plain = (BOOLEAN,)
    if (is_numeric(source) or source in plain) and (is_numeric(target) or target in plain):
        return
    advice = ""
    if source == TIMESTAMP and is_numeric(target):
        advice = "; use unix_micros(x), unix_millis(x) or unix_seconds(x)"
    elif source == DATE and is_numeric(target):
        advice = "; use unix_date(x)"
    elif target == TIMESTAMP and is_numeric(source):
        advice = "; use timestamp_micros(x), timestamp_millis(x) or timestamp_seconds(x)"
    elif target == DATE and is_numeric(source):
        advice = "; use date_from_unix_date(x)"
    raise QueryError(
        f"CAST must be between types that can be converted, got {type_name(source)} to "
        f"{type_name(target)}{advice}"
    )


def never_fails(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether every value of ``source`` has a value in ``target``."""
    if is_nested(source) and is_nested(target):
        return all(map(never_fails, inner_types(source), inner_types(target)))
    if is_decimal(target):
        return _decimal_holds(source, target)
    if target == BINARY or (source == BINARY and target == STRING):
        return source in (STRING, BINARY, NULL) and target == BINARY
    if source in (target, NULL, BOOLEAN) or target in (STRING, BOOLEAN, FLOAT, DOUBLE):
        return bool(source != STRING or target == STRING)
    if is_integer(source) and is_integer(target):
        return bool(source.bit_width <= target.bit_width)
    return is_temporal(source) and is_temporal(target)


def _decimal_holds(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a DECIMAL has room for every value of another type, perhaps rounded."""
    if source in (NULL, BOOLEAN):
        return bool(target.precision > target.scale) or source == NULL
    room = target.precision - target.scale
    if is_decimal(source):
        # what is rounded may need one digit more
        return bool(room >= source.precision - source.scale + (source.scale > target.scale))
    return is_integer(source) and bool(room >= len(str(2 ** (source.bit_width - 1))))


def same_in_spark(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether Spark converts to the very same values.

    Not so for the text of floating numbers, which depends on the version of Java.
    """
    if is_decimal(source) or is_decimal(target) or BINARY in (source, target):
        return False
    return not (is_floating(source) and target == STRING) and not is_nested(source)


def cast_array(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert a column; a value that does not fit raises a DataError."""
    source = array.type
    if source == target:
        return array
    if source == NULL:
        return pa.nulls(len(array), target)
    try:
        return _convert(array, source, target)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"CAST to {type_name(target)} must get values that fit, got {type_name(source)} with "
            f"others ({error}); use CASE to leave them out"
        ) from None


def try_cast_array(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert a column; a value that does not fit gives null."""
    if is_nested(array.type) and is_nested(target):
        return changed(array, target, try_cast_array)
    fitted = _through(array, target)
    if fitted is not None:
        return fitted[0]
    if array.type == NULL or (never_fails(array.type, target) and array.type != DATE):
        return cast_array(array, target)
    fits = _fitting(array, target)
    return cast_array(pc.if_else(fits, array, pa.scalar(None, array.type)), target)


def _fitting(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return which values have one in the target."""
    source = array.type
    if source == DATE:
        days = array.cast(INT)
        inside = pc.less_equal(pc.abs(days.cast(BIGINT)), 106_751_991)
        return pc.or_(inside, pa.scalar(target != TIMESTAMP))
    if is_floating(source):
        return _cut_fits(pc.trunc(pc.cast(array, DOUBLE)), target)
    if source != STRING:
        bits = min(source.bit_width, target.bit_width) - 1
        low, high = (pa.scalar(bound, source) for bound in (-(2**bits), 2**bits - 1))
        return pc.and_(pc.greater_equal(array, low), pc.less_equal(array, high))
    readable = pc.match_substring_regex(array, GRAMMAR[target])
    if is_temporal(target):
        return pc.and_(readable, pa.array(_time_of_parts(array)[1]))
    if is_integer(target):
        return pc.and_(readable, _digits_fit(array, target.bit_width - 1))
    return readable


def _digits_fit(array: pa.Array, bits: int) -> pa.Array:
    """Whether texts of digits are integers of so many bits: by their length, then by the digits."""
    text = pc.utf8_trim(array, " \t\r\n")
    negative = pc.starts_with(text, "-")
    digits = pc.utf8_ltrim(pc.utf8_ltrim(text, "+-"), "0")
    most = pc.if_else(negative, str(2**bits), str(2**bits - 1))
    size, largest = pc.utf8_length(digits), pc.utf8_length(most)
    as_long = pc.and_(pc.equal(size, largest), pc.less_equal(digits, most))
    return pc.or_(pc.less(size, largest), as_long)


def cast_value(value: Any, source: pa.DataType, target: pa.DataType) -> Any:
    """Convert the value of a literal; times are their integer count, as in `Literal`."""
    result = cast_array(pa.array([value], source), target)[0]
    return result.value if is_temporal(target) else result.as_py()


def _convert(array: pa.Array, source: pa.DataType, target: pa.DataType) -> pa.Array:
    if is_nested(source):
        if is_nested(target):
            return changed(array, target, cast_array)
        return nested_text(array, cast_array)
    fitted = _through(array, target)
    if fitted is not None:
        return _all_of(array, fitted, target)
    if source == STRING:
        return _read(array, target)
    if is_floating(source):
        if is_integer(target):
            return _cut(array, target)
        if target == STRING:
            return _write_floats(array)
        if target == BOOLEAN:
            return pc.not_equal(array, pa.scalar(0, source))
        return pc.cast(array, target, safe=False)
    if is_integer(source) and is_floating(target):
        return pc.cast(array, target, safe=False)
    if is_temporal(source) and target == STRING:
        return written(array)
    return pc.cast(array, target)


def _through(array: pa.Array, target: pa.DataType) -> tuple[pa.Array, Any] | None:
    """Convert from or to DECIMAL or BINARY; return also what does not fit. None for other types."""
    source = array.type
    if source in (target, NULL):
        return None
    if is_decimal(target):
        if source != STRING:
            return to_decimal(array, target)
        readable = pc.match_substring_regex(array, _DECIMAL_GRAMMAR)
        odd = to_mask(pc.invert(readable))
        found, bad = to_decimal(pc.if_else(readable, array, pa.scalar(None, STRING)), target)
        return found, odd | bad
    if is_decimal(source):
        return from_decimal(array, target)
    if source == BINARY:
        return from_binary(array)
    return (to_binary(array), np.zeros(len(array), bool)) if target == BINARY else None


def _all_of(array: pa.Array, fitted: tuple[pa.Array, Any], target: pa.DataType) -> pa.Array:
    """Return what was converted; a value that did not fit is an error."""
    found, bad = fitted
    if not bad.any():
        return found
    first = array[int(np.argmax(bad))].as_py()
    if array.type == STRING:
        raise DataError(unreadable(first, target))
    shown = f"X'{first.hex().upper()}'" if isinstance(first, bytes) else repr_of(first)
    wanted = "bytes that are UTF-8" if array.type == BINARY else "numbers that fit"
    raise DataError(
        f"CAST to {type_name(target)} must get {wanted}, got {shown}; use TRY_CAST, CASE to leave "
        "them out, or a wider type"
    )


def repr_of(value: Any) -> str:
    """Return a number as it is shown in a message."""
    return f"{value:f}" if isinstance(value, Decimal) else repr(value)


def _cut_fits(whole: pa.Array, target: pa.DataType) -> pa.Array:
    """Whether numbers without fraction fit an integer type."""
    bits = target.bit_width - 1
    # As in Spark, 2**63 itself, which is how a DOUBLE holds the largest BIGINT, is let in.
    high = 2.0**63 if target == BIGINT else 2.0**bits - 1
    return pc.and_(pc.greater_equal(whole, -(2.0**bits)), pc.less_equal(whole, high))


def _cut(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cut fractions towards zero; a number outside the target's range is an error."""
    whole = pc.trunc(pc.cast(array, DOUBLE))
    fits = _cut_fits(whole, target)
    if pc.all(fits).as_py() is False:
        bad = array.filter(pc.invert(fits))[0].as_py()
        raise DataError(
            f"CAST to {type_name(target)} must get numbers that fit, got {bad!r}; use CASE to "
            "leave them out or a wider type"
        )
    highest = pc.equal(whole, 2.0**63)
    if target == BIGINT and pc.any(highest).as_py():
        top = pa.scalar(2**63 - 1, BIGINT)
        low = pc.if_else(highest, 0.0, whole)
        return pc.if_else(highest, top, pc.cast(low, BIGINT, safe=False))
    return pc.cast(whole, target, safe=False)


def _read(array: pa.Array, target: pa.DataType) -> pa.Array:
    fits = pc.match_substring_regex(array, GRAMMAR[target])
    if pc.all(fits).as_py() is False:
        raise DataError(unreadable(array.filter(pc.invert(fits))[0].as_py(), target))
    if target == TIMESTAMP:
        return _read_time(array)
    if target == DATE:
        return pc.cast(_read_time(array), DATE)
    text = pc.utf8_trim(array, " \t\r\n")
    if target == BOOLEAN:
        letters = pc.utf8_slice_codeunits(pc.ascii_lower(text), 0, 1)
        truth = pc.is_in(letters, pa.array(["t", "y", "1"]))
        return pc.if_else(pc.is_valid(array), truth, pa.scalar(None, BOOLEAN))
    text = pc.replace_substring_regex(text, "\\A\\+", "")
    if is_integer(target):
        return pc.cast(text, target)
    return pc.cast(map_distinct(text, float, DOUBLE), target, safe=False)


def unreadable(text: str, target: pa.DataType) -> str:
    """Return the message about a text that is outside of the grammar of a type."""
    example = _EXAMPLE.get(target, "'12'")
    if is_decimal(target):
        whole = "9" * (target.precision - target.scale) or "0"
        example = f"'1.5', up to {whole}{'.' + '9' * target.scale if target.scale else ''}"
    return (
        f"CAST to {type_name(target)} must get text such as {example}, got {text!r}; correct the "
        "data or use CASE to leave such rows out"
    )


def _read_time(array: pa.Array) -> pa.Array:
    """Read timestamps: Arrow's own parser for the plain form, arithmetic on the parts otherwise."""
    if pc.all(pc.match_substring_regex(array, _PLAIN_TIME)).as_py() is not False:
        return pc.cast(array, TIMESTAMP)
    found, fits = _time_of_parts(array)
    if not fits[found.is_valid().to_numpy(zero_copy_only=False)].all():
        wrong = np.flatnonzero(~fits & found.is_valid().to_numpy(zero_copy_only=False))
        raise DataError(unreadable(array[int(wrong[0])].as_py(), TIMESTAMP))
    return found


def _time_of_parts(array: pa.Array) -> tuple[pa.Array, Any]:
    """Return timestamps by arithmetic on the parts of texts, and which of them exist."""
    parts = pc.extract_regex(array, _PARTS)

    def number(name: str) -> Any:
        text = pc.fill_null(pc.struct_field(parts, name), "")
        text = pc.if_else(pc.equal(text, ""), "0", text)
        return pc.cast(text, BIGINT).to_numpy()

    valid = pc.is_valid(array).to_numpy(zero_copy_only=False)
    month = (number("year") - 1970).astype("M8[Y]").astype("M8[M]") + (number("month") - 1)
    date = month.astype("M8[D]") + (number("day") - 1)
    fraction = pc.utf8_rpad(pc.fill_null(pc.struct_field(parts, "fraction"), ""), 6, "0")
    minus = pc.equal(pc.fill_null(pc.struct_field(parts, "sign"), ""), "-")
    zone = number("zone_hour") * 60 + number("zone_minute")
    zone = np.where(minus.to_numpy(zero_copy_only=False), -zone, zone)
    fits = (
        ((number("month") - 1) < 12)
        & (number("month") >= 1)
        & (number("day") >= 1)
        & (date.astype("M8[M]") == month)
        & (number("hour") < 24)
        & (number("minute") < 60)
        & (number("second") < 60)
        & (np.abs(zone) <= 18 * 60)
        & (number("zone_minute") < 60)
    )
    minutes = number("hour") * 60 + number("minute") - zone
    seconds = date.astype(np.int64) * 86_400 + minutes * 60 + number("second")
    micros = seconds * 1_000_000 + pc.cast(fraction, BIGINT).to_numpy()
    return pa.array(micros, BIGINT, mask=~valid).cast(TIMESTAMP), fits


def map_distinct(
    array: pa.Array, change: Callable[[Any], Any], type_: pa.DataType, numpy: bool = False
) -> pa.Array:
    """Apply a Python function to each distinct value: for what Arrow and NumPy cannot do."""
    encoded = array.dictionary_encode()
    words = encoded.dictionary
    values = words.to_numpy(zero_copy_only=False) if numpy else words.to_pylist()
    changed = pa.array([None if v is None else change(v) for v in values], type_)
    return changed.take(encoded.indices)


def _write_floats(array: pa.Array) -> pa.Array:
    """Arrow writes numbers of middle size almost as Java does; the others go one by one."""
    sizes = pc.cast(pc.abs(array), DOUBLE)
    middle = pc.and_(pc.greater_equal(sizes, 1e-3), pc.less(sizes, 1e7))
    text = pc.cast(array, STRING)
    ending = pc.if_else(pc.match_substring(text, "."), "", ".0")
    text = pc.binary_join_element_wise(text, ending, "")
    if pc.all(middle).as_py() is not False:
        return text
    others = map_distinct(array.filter(pc.invert(middle)), double_text, STRING, numpy=True)
    return pc.replace_with_mask(text, pc.fill_null(pc.invert(middle), False), others)


def double_text(value: Any) -> str:
    """Write a floating number as Java does: 1.0, 0.001, 1.0E7, 1.0E-4, NaN, -Infinity."""
    if np.isnan(value):
        return "NaN"
    sign = "-" if np.signbit(value) else ""
    if np.isinf(value):
        return f"{sign}Infinity"
    _, digits, exponent = Decimal(str(abs(value))).normalize().as_tuple()
    text = "".join(map(str, digits))
    point = len(text) + int(exponent)  # the value is 0.text times ten to the power of point
    if value == 0:
        return f"{sign}0.0"
    if -3 < point <= 7:
        if point <= 0:
            return f"{sign}0.{'0' * -point}{text}"
        whole = text[:point].ljust(point, "0")
        return f"{sign}{whole}.{text[point:] or '0'}"
    return f"{sign}{text[0]}.{text[1:] or '0'}E{point - 1}"
