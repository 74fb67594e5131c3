"""Text to typed columns, with the rows that do not fit found column by column.

The fast paths of the readers let Arrow convert whole blocks.  When a block fails, its columns come
here as text: a regular expression finds most of the bad values at once, the few that only look
right (month 13, a number too large) are found by halving.

BINARY is text in base 64.
"""

from __future__ import annotations

import base64
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decimals import is_decimal
from penstock.expr.decimal_casts import DECIMAL_TEXT, to_decimal
from penstock.model import TIMESTAMP, Mask, one_array, to_mask
from penstock.nested.shapes import is_nested
from penstock.sources.readers.json_values import read_nested
from penstock.sources.readers.nested_columns import fit_nested

_INTEGER = r"^[+-]?[0-9]+$"
_NUMBER = r"(?i)^[+-]?([0-9]+\.?[0-9]*(e[+-]?[0-9]+)?|\.[0-9]+(e[+-]?[0-9]+)?|nan|inf|infinity)$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIMESTAMP = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([ T][0-9]{2}(:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?)?$"
)
_ZONE = r"[ T][0-9:.]+(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
_TOO_FINE = r"(\.[0-9]{6})[0-9]+"

_TEXTS = {
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.binary(): pa.binary(),
    pa.large_binary(): pa.large_binary(),
}
"""Kinds of text and bytes that may hold text, and the bytes as which they are checked."""

_BYTES = (pa.large_binary(), pa.binary_view())
_DECIMAL = f"^{DECIMAL_TEXT}$"

TRUE = ("1", "true", "True", "TRUE", "t", "T", "yes")
FALSE = ("0", "false", "False", "FALSE", "f", "F", "no")


def convert(text: pa.Array, type: pa.DataType) -> tuple[pa.Array, Mask]:
    """Return text (or bytes) as ``type``, null where it does not fit, and where that is.

    Nulls stay null and are not bad.  Nested types are read from JSON.
    """
    text, bad = _as_strings(text)
    if pa.types.is_string(type):
        return text, bad
    if is_nested(type):
        result, more = read_nested(text, type, convert)
        return result, bad | more
    text = pc.utf8_trim_whitespace(text)
    if pa.types.is_boolean(type):
        result, more = _booleans(text)
    elif pa.types.is_integer(type):
        result, more = _matched(
            text, _INTEGER, lambda t: pc.utf8_ltrim(t, characters="+").cast(type), type
        )
    elif pa.types.is_floating(type):
        result, more = _matched(
            text, _NUMBER, lambda t: pc.utf8_ltrim(t, characters="+").cast(type), type
        )
        result, more = _without_overflow(text, result, more)
    elif is_decimal(type):
        result, more = decimals_of(text, type)
    elif pa.types.is_binary(type):
        result, more = _bytes_of(text)
    elif pa.types.is_date(type):
        result, more = _matched(text, _DATE, lambda t: t.cast(type), type)
    else:
        result, more = _matched(text, _TIMESTAMP, _timestamps, type)
    return result, bad | more


def decimals_of(text: pa.Array, type: pa.DataType) -> tuple[pa.Array, Mask]:
    """Return text as a DECIMAL: digits behind the point that are too many are rounded."""
    shaped = pc.match_substring_regex(text, _DECIMAL)
    bad: Mask = np.asarray(pc.fill_null(pc.invert(shaped), False))
    result, more = to_decimal(pc.if_else(shaped, text, pa.scalar(None, pa.string())), type)
    return result, bad | more


def _bytes_of(text: pa.Array) -> tuple[pa.Array, Mask]:
    """Return the bytes that texts in base 64 stand for."""
    found = [_decoded(value) for value in text.to_pylist()]
    result = pa.array(found, pa.binary())
    return result, to_mask(result.is_null()) & to_mask(text.is_valid())


def _decoded(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except ValueError:
        return None


def as_base64(column: pa.Array) -> pa.Array:
    """Return bytes as text in base 64, which `convert` reads."""
    found = column.to_pylist()
    texts = [None if value is None else base64.b64encode(value).decode() for value in found]
    return pa.array(texts, pa.string())


def cast_each(
    array: pa.Array, cast: Callable[[pa.Array], pa.Array], type: pa.DataType
) -> tuple[pa.Array, Mask]:
    """Apply ``cast``; where it fails, halve until the values that do not fit are alone."""
    try:
        return one_array(cast(array)), np.zeros(len(array), bool)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(array) == 1:
            return pa.nulls(1, type), np.ones(1, bool)
    middle = len(array) // 2
    left, left_bad = cast_each(array[:middle], cast, type)
    right, right_bad = cast_each(array[middle:], cast, type)
    return pa.concat_arrays([left, right]), np.concatenate([left_bad, right_bad])


def _cast_to(type: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    return lambda array: array.cast(type)


def _as_strings(text: pa.Array) -> tuple[pa.Array, Mask]:
    if pa.types.is_string(text.type):
        return text, np.zeros(len(text), bool)
    return cast_each(text, lambda t: t.cast(pa.string()), pa.string())


def _checked_strings(text: pa.Array) -> tuple[pa.Array, Mask]:
    """Return strings that may hold anything, null where they are not UTF-8, and where that is."""
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return cast_each(text.view(pa.binary()), lambda t: t.cast(pa.string()), pa.string())
    return text, np.zeros(len(text), bool)


def _matched(
    text: pa.Array,
    pattern: str,
    cast: Callable[[pa.Array], pa.Array],
    type: pa.DataType,
) -> tuple[pa.Array, Mask]:
    shaped = pc.match_substring_regex(text, pattern)
    bad: Mask = np.asarray(pc.fill_null(pc.invert(shaped), False))
    fitting = pc.if_else(shaped, text, pa.scalar(None, pa.string()))
    result, more = cast_each(fitting, cast, type)
    return result, bad | more


def _without_overflow(text: pa.Array, result: pa.Array, bad: Mask) -> tuple[pa.Array, Mask]:
    """Refuse numbers that became infinite because they are too large."""
    infinite = pc.fill_null(pc.is_inf(result), False)
    if not pc.any(infinite).as_py():
        return result, bad
    meant = pc.match_substring(text, "inf", ignore_case=True)
    too_large = pc.and_(infinite, pc.invert(pc.fill_null(meant, False)))
    missing = pa.scalar(None, result.type)
    return pc.if_else(too_large, missing, result), bad | np.asarray(too_large)


def _booleans(text: pa.Array) -> tuple[pa.Array, Mask]:
    true = pc.is_in(text, pa.array(TRUE))
    known = pc.is_in(text, pa.array(TRUE + FALSE))
    bad: Mask = np.asarray(pc.and_(pc.invert(known), text.is_valid()))
    return pc.if_else(known, true, pa.scalar(None, pa.bool_())), bad


def _timestamps(text: pa.Array) -> pa.Array:
    """Timestamps with or without a zone, cut to microseconds, as naive UTC."""
    text = pc.replace_substring_regex(text, _TOO_FINE, r"\1")
    zoned = pc.match_substring_regex(text, _ZONE)
    if not pc.any(zoned).as_py():
        return text.cast(TIMESTAMP)
    nothing = pa.scalar(None, pa.string())
    naive = pc.if_else(zoned, nothing, text).cast(TIMESTAMP)
    utc = pc.if_else(zoned, text, nothing).cast(pa.timestamp("us", "UTC"))
    return pc.coalesce(naive, naive_utc(utc))


def naive_utc(array: pa.Array) -> pa.Array:
    """Return timestamps of any unit and zone as naive UTC microseconds (finer ones are cut)."""
    array = one_array(array)
    if array.type == TIMESTAMP:
        return array
    if array.type.tz is not None:
        array = array.view(pa.timestamp(array.type.unit))
    return array.cast(TIMESTAMP, safe=array.type.unit != "ns")


def _narrowed(array: pa.Array, type: pa.DataType) -> tuple[pa.Array, Mask]:
    """Return integers as another integer type; what wraps around, or changes its sign, is bad."""
    wrapped = array.cast(type, safe=False)
    back = pc.equal(wrapped.cast(array.type, safe=False), array)
    sign = pc.equal(pc.less(wrapped, pa.scalar(0, type)), pc.less(array, pa.scalar(0, array.type)))
    bad = pc.fill_null(pc.invert(pc.and_(back, sign)), False)
    return pc.if_else(bad, pa.scalar(None, type), wrapped), np.asarray(bad)


def plain(array: pa.Array, type: pa.DataType) -> tuple[pa.Array, Mask] | None:
    """Return a typed column as the declared type with its bad places; None if types do not fit.

    Only casts that keep the meaning are made: numbers to wider or checked narrower numbers,
    any kind of text to text, timestamps to timestamps, dates to dates.
    """
    array = one_array(array)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if is_nested(type):
        return fit_nested(array, type, plain)
    given = array.type
    none_bad = np.zeros(len(array), bool)
    if given == type:
        return _checked_strings(array) if pa.types.is_string(type) else (array, none_bad)
    if pa.types.is_null(given):
        return pa.nulls(len(array), type), none_bad
    if pa.types.is_timestamp(type) and pa.types.is_timestamp(given):
        return cast_each(array, naive_utc, type)
    if is_decimal(type) and pa.types.is_decimal(given):
        wide = pa.decimal128(38, max(min(given.scale, 38), 0))
        exact = (array, none_bad) if is_decimal(given) else cast_each(array, _cast_to(wide), wide)
        found, bad = to_decimal(exact[0], type)
        return found, bad | exact[1]
    if is_decimal(type) and pa.types.is_integer(given):
        return to_decimal(array.cast(pa.decimal128(20, 0)), type)
    if pa.types.is_binary(type) and (given in _BYTES or pa.types.is_fixed_size_binary(given)):
        return array.cast(type), none_bad
    if pa.types.is_integer(type) and pa.types.is_integer(given):
        return _narrowed(array, type)
    if pa.types.is_floating(type) and (pa.types.is_integer(given) or pa.types.is_floating(given)):
        return array.cast(type, safe=False), none_bad
    if pa.types.is_date(type) and pa.types.is_date(given):
        return cast_each(array, lambda a: a.cast(type), type)
    if pa.types.is_string(type) and given in _TEXTS:
        return cast_each(array.cast(_TEXTS[given]), lambda a: a.cast(type), type)
    return None
