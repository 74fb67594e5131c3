"""Text. Positions and lengths count characters (code points) from 1, as in SQL.

Arrow's text functions take one pattern for a whole column.  Where an argument such as the pattern
is itself a column, the rows are worked off in groups that share it (`grouped`).

A function that makes text longer refuses what would be too long (`penstock.expr.text_sizes`) and
needs memory in proportion to its result.

Case mapping is the full one of Unicode (``upper('ß')`` is ``SS``), which Arrow has only for ASCII;
other columns are mapped once per distinct text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expr.casts import map_distinct
from penstock.expr.nodes import Expr
from penstock.expr.signatures import (
    BYTES,
    COUNT,
    PRINTABLE,
    TEXT,
    WRITTEN,
    Rule,
    Types,
    called,
    function,
    takes,
)
from penstock.expr.text_sizes import (
    LONGEST_TEXT,
    at_most,
    bytes_of,
    check_sizes,
    check_total,
    repeated,
)
from penstock.expr.types import BINARY, BOOLEAN, INT, NULL, STRING


def grouped(kernel: Callable[..., pa.Array], gives: pa.DataType) -> Callable[..., pa.Array]:
    """Lift ``kernel(column, *plain values)`` to columns for all arguments; any null gives null."""

    def apply(text: Any, *params: Any) -> pa.Array:
        rows = next(len(v) for v in (text, *params) if isinstance(v, pa.Array))
        if not isinstance(text, pa.Array):
            text = repeated(text, rows)
        if not any(isinstance(p, pa.Array) for p in params):
            plain = [p.as_py() if isinstance(p, pa.Scalar) else p for p in params]
            if any(p is None for p in plain):
                return pa.nulls(rows, gives)
            return kernel(text, *plain)
        columns = [p if isinstance(p, pa.Array) else repeated(p, rows) for p in params]
        names = [str(i) for i in range(len(columns))]
        table = pa.table([*columns, np.arange(rows)], names=[*names, "row"])
        groups = table.group_by(names).aggregate([("row", "list")])
        order, parts = [], []
        for group in groups.to_pylist():
            index = pa.array(group["row_list"], pa.int64())
            plain = [group[name] for name in names]
            missing = any(p is None for p in plain)
            parts.append(
                pa.nulls(len(index), gives) if missing else kernel(text.take(index), *plain)
            )
            order.append(index.to_numpy())
        if not parts:
            return pa.array([], gives)
        check_total(sum(at_most(part, 0) for part in parts), "a function of texts")
        return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(order))))

    return apply


_MOST_GROWTH = 3
"""A character has at most so many times its bytes in another case."""


def _case(ascii_kernel: Any, change: Callable[[str], str]) -> Any:
    def apply(text: pa.Array) -> pa.Array:
        if pc.all(pc.string_is_ascii(text)).as_py() is not False:
            return ascii_kernel(text)
        check_total(_MOST_GROWTH * at_most(text, 0), "upper(s), lower(s)")
        return map_distinct(text, change, STRING)

    return apply


_lower = _case(pc.ascii_lower, str.lower)
_upper = _case(pc.ascii_upper, str.upper)


def _initcap_text(text: str) -> str:
    return " ".join(
        word[:1].title() + word.lower()[len(word[:1].lower()) :] for word in text.split(" ")
    )


def _initcap(text: pa.Array) -> pa.Array:
    check_total(_MOST_GROWTH * at_most(text, 0), "initcap(s)")
    return map_distinct(text, _initcap_text, STRING)


def like_to_regex(pattern: str) -> str:
    """Return the RE2 expression of a LIKE pattern; a backslash makes the next character plain."""
    result, escaped = [], False
    for char in pattern:
        if escaped or char not in "\\%_":
            if escaped and char not in "\\%_":
                raise _bad_escape(pattern)
            result.append(re.escape(char) if char.isascii() else char)
            escaped = False
        elif char == "\\":
            escaped = True
        else:
            result.append(".*" if char == "%" else ".")
    if escaped:
        raise _bad_escape(pattern)
    return f"(?s)\\A{''.join(result)}\\z"


def _bad_escape(pattern: str) -> DataError:
    return DataError(
        f"a LIKE pattern must have %, _ or \\ after a backslash, got {pattern!r}; write \\\\ for a "
        "backslash itself"
    )


def _like(text: pa.Array, pattern: str) -> pa.Array:
    if "\\" in pattern:
        return pc.match_substring_regex(text, like_to_regex(pattern))
    return pc.match_like(text, pattern)


def _check_joined(usage: str, *values: Any) -> None:
    """Check that texts may be put together, row by row."""
    rows = max((len(v) for v in values if isinstance(v, pa.Array)), default=1)
    if sum(at_most(value, rows) for value in values) > LONGEST_TEXT:
        sizes = np.zeros(rows, np.int64)
        for value in values:
            sizes += bytes_of(value, rows)
        check_sizes(sizes, usage)


def concat(*values: Any) -> Any:
    """Put texts together; null where one of them is."""
    _check_joined("concat(a, b, ..)", *values)
    between = pa.scalar(b"", BINARY) if values[0].type == BINARY else ""
    return pc.binary_join_element_wise(*values, between, null_handling="emit_null")


def _bytes_or(rule: Rule) -> Rule:
    """Return a rule that takes BINARY alone as it is."""

    def either(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
        kinds = {arg.type for arg in args}
        if BINARY in kinds and kinds <= {BINARY, NULL}:
            return (BINARY,) * len(args), BINARY
        return rule(args)

    return either


def _concat_ws(separator: Any, *values: Any) -> Any:
    _check_joined("concat_ws(separator, a, b, ..)", *values, *[separator] * (len(values) - 1))
    if len(values) > 1:
        joined = pc.binary_join_element_wise(*values, separator, null_handling="skip")
    else:  # Arrow drops the rows in which a single text is null
        joined = pc.coalesce(*values, pa.scalar("", STRING))
    return pc.if_else(pc.is_valid(separator), joined, pa.scalar(None, STRING))


def part(text: pa.Array, position: int, length: int = 2**31 - 1) -> pa.Array:
    """Cut out a part.

    Spark's rules: position 0 is 1; a negative one counts from the end and may lie before it.
    """
    if length <= 0:
        return pc.if_else(pc.is_valid(text), "", text)
    start = position - 1 if position > 0 else position
    stop = start + length
    if start < 0 and stop >= 0:
        return pc.utf8_slice_codeunits(text, start)
    return pc.utf8_slice_codeunits(text, start, stop)


def _left(text: pa.Array, length: int) -> pa.Array:
    return part(text, 1, length)


def _right(text: pa.Array, length: int) -> pa.Array:
    return part(text, -length, length) if length > 0 else _left(text, 0)


def _replace(text: pa.Array, search: str, replacement: str = "") -> pa.Array:
    if not search:  # Arrow would never end
        return text
    growth = len(replacement.encode()) - len(search.encode())
    if growth > 0:
        found = np.asarray(pc.count_substring(text, search).fill_null(0), np.int64)
        check_sizes(bytes_of(text, 0) + found * growth, "replace(s, search, replacement)")
    return pc.replace_substring(text, pattern=search, replacement=replacement)


def _pad(text: pa.Array, length: int, pad: str, left: bool) -> pa.Array:
    if length <= 0:
        return _left(text, 0)
    cut = pc.utf8_slice_codeunits(text, 0, length)
    missing = pc.subtract(pa.scalar(length, INT), pc.utf8_length(cut))
    most = pc.max(missing).as_py() or 0
    if not pad or most == 0:
        return cut
    rounds, rest = np.divmod(np.asarray(missing.fill_null(0), np.int64), len(pad))
    sizes = np.cumsum([0, *(len(character.encode()) for character in pad)])
    usage = f"{'lpad' if left else 'rpad'}(s, length, pad)"
    check_sizes(bytes_of(cut, 0) + rounds * sizes[-1] + sizes[rest], usage)
    long = pad * (most // len(pad) + 1)
    lengths = missing.dictionary_encode()
    paddings = pa.array([long[:n] for n in lengths.dictionary.to_pylist()], STRING)
    padding = paddings.take(lengths.indices)
    return concat(padding, cut) if left else concat(cut, padding)


def _lpad(text: pa.Array, length: int, pad: str = " ") -> pa.Array:
    return _pad(text, length, pad, left=True)


def _rpad(text: pa.Array, length: int, pad: str = " ") -> pa.Array:
    return _pad(text, length, pad, left=False)


def _repeat(text: Any, times: Any) -> pa.Array:
    times = pc.max_element_wise(times, pa.scalar(0, INT), skip_nulls=False)
    rows = max(len(v) for v in (text, times) if isinstance(v, pa.Array))
    counts = pc.fill_null(times, 0)
    counts = np.asarray(counts, np.int64) if isinstance(counts, pa.Array) else counts.as_py()
    check_sizes(bytes_of(text, rows) * counts, "repeat(s, times)")
    return pc.binary_repeat(text, times)


def find(text: pa.Array, search: str) -> pa.Array:
    """Return the position of a part of the text in characters, 0 if it is not there."""
    return in_characters(text, pc.find_substring(text, search))


def in_characters(text: pa.Array, found: pa.Array) -> pa.Array:
    """Turn places that Arrow found, in bytes from 0 or -1, into positions of characters from 1."""
    if pc.all(pc.string_is_ascii(text)).as_py() is not False:
        return pc.add(found, pa.scalar(1, INT))
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text)]
    data = np.frombuffer(text.buffers()[2], np.uint8)
    starts = np.concatenate([[0], np.cumsum((data & 0xC0) != 0x80)])
    position = pc.fill_null(found, -1).to_numpy()
    end = offsets + np.maximum(position, 0)
    characters = starts[end] - starts[offsets]
    result = np.where(position < 0, 0, characters + 1).astype(np.int32)
    return pa.array(result, INT, mask=pc.is_null(text).to_numpy(zero_copy_only=False))


def _split_part(text: pa.Array, separator: str, number: int) -> pa.Array:
    if number == 0 and text.null_count < len(text):
        raise DataError(
            "split_part(s, separator, n) must get n from 1, or from -1 at the end, got 0"
        )
    if not separator:
        return text if number in (1, -1) else _left(text, 0)
    parts = pc.split_pattern(text, pattern=separator)
    offsets = parts.offsets.to_numpy()
    first, last = offsets[:-1], offsets[1:]
    index = first + number - 1 if number > 0 else last + number
    inside = (index >= first) & (index < last)
    chosen = parts.values.take(pa.array(np.where(inside, index, 0), mask=~inside))
    return pc.if_else(pc.is_valid(text), pc.fill_null(chosen, ""), pa.scalar(None, STRING))


def _contains(kernel: Any) -> Any:
    return grouped(lambda text, pattern: kernel(text, pattern=pattern), BOOLEAN)


def _trimmed(kernel: Any) -> Any:
    """Take characters off; by default blanks."""

    def trim(text: pa.Array, characters: str = " ") -> pa.Array:
        return kernel(text, characters) if characters else text

    return grouped(trim, STRING)


_ONE = takes(TEXT, gives=STRING)
_TRIMMED = takes(TEXT, TEXT, gives=STRING, optional=1)
_TEST = takes(TEXT, TEXT, gives=BOOLEAN)
_PADDING = takes(TEXT, COUNT, TEXT, gives=STRING, optional=1)

FUNCTIONS = (
    function(
        "concat(a, b, ..), a || b",
        _bytes_or(takes(PRINTABLE, gives=STRING, more=PRINTABLE)),
        concat,
        "Texts one after another, or only BINARY; null if one is null. Other types are written as "
        "text.",
    ),
    function(
        "concat_ws(separator, a, b, ..)",
        takes(TEXT, gives=STRING, more=WRITTEN),
        _concat_ws,
        "Texts with a separator between them; nulls are skipped.",
        spark=lambda f, *values: f.call_function("concat_ws", *values),
    ),
    function(
        "length(s)",
        takes(BYTES, gives=INT),
        lambda s: pc.binary_length(s) if s.type == BINARY else pc.utf8_length(s),
        "Number of characters, of BINARY that of bytes.",
        "len",
        "char_length",
        "character_length",
    ),
    function("upper(s)", _ONE, _upper, "Upper case.", "ucase"),
    function("lower(s)", _ONE, _lower, "Lower case.", "lcase"),
    function(
        "initcap(s)",
        _ONE,
        _initcap,
        "The first letter of each word in upper case, others in lower case.",
    ),
    function(
        "trim(s [, characters]), btrim(s [, characters])",
        _TRIMMED,
        _trimmed(pc.utf8_trim),
        "Without blanks, or some characters, at both ends. Also `TRIM(BOTH characters FROM s)`.",
        "btrim",
        spark=called("btrim"),
    ),
    function(
        "ltrim([characters,] s)",
        _TRIMMED,
        lambda *args: _trimmed(pc.utf8_ltrim)(*reversed(args)),
        "Without blanks, or some characters, at the start. Also `TRIM(LEADING characters FROM s)`.",
        spark=called("ltrim"),
    ),
    function(
        "rtrim([characters,] s)",
        _TRIMMED,
        lambda *args: _trimmed(pc.utf8_rtrim)(*reversed(args)),
        "Without blanks, or some characters, at the end. Also `TRIM(TRAILING characters FROM s)`.",
        spark=called("rtrim"),
    ),
    function(
        "substring(s, position [, length])",
        takes(TEXT, COUNT, COUNT, gives=STRING, optional=1),
        grouped(part, STRING),
        "Part of a text; a negative position counts from the end.",
        "substr",
        "mid",
        spark=lambda f, s, position, *length: f.substring(
            s, position, *(length or (f.lit(2**31 - 1),))
        ),
    ),
    function(
        "left(s, length)",
        takes(TEXT, COUNT, gives=STRING),
        grouped(_left, STRING),
        "The first characters.",
    ),
    function(
        "right(s, length)",
        takes(TEXT, COUNT, gives=STRING),
        grouped(_right, STRING),
        "The last characters.",
    ),
    function(
        "replace(s, search [, replacement])",
        takes(TEXT, TEXT, TEXT, gives=STRING, optional=1),
        grouped(_replace, STRING),
        "Every occurrence replaced, by nothing if no replacement is given.",
        total=False,
    ),
    function(
        "startswith(s, prefix)", _TEST, _contains(pc.starts_with), "Whether the text starts so."
    ),
    function("endswith(s, suffix)", _TEST, _contains(pc.ends_with), "Whether the text ends so."),
    function(
        "contains(s, part)",
        _TEST,
        _contains(pc.match_substring),
        "Whether the text holds the part.",
    ),
    function(
        "s LIKE pattern",
        _TEST,
        grouped(_like, BOOLEAN),
        "Whether the text matches; % is any text, _ any character, \\\\ takes either as it is.",
        name="like",
        constants=(1,),
        advice="correct the pattern",
    ),
    function(
        "s ILIKE pattern",
        _TEST,
        grouped(lambda text, pattern: _like(_lower(text), pattern.lower()), BOOLEAN),
        "As LIKE, upper and lower case being equal.",
        name="ilike",
        constants=(1,),
        advice="correct the pattern",
    ),
    function(
        "lpad(s, length [, pad])",
        _PADDING,
        grouped(_lpad, STRING),
        "Filled up at the start, or cut, to a length.",
        spark=lambda f, s, length, *pad: f.lpad(s, length, *(pad or (f.lit(" "),))),
        total=False,
    ),
    function(
        "rpad(s, length [, pad])",
        _PADDING,
        grouped(_rpad, STRING),
        "Filled up at the end, or cut, to a length.",
        spark=lambda f, s, length, *pad: f.rpad(s, length, *(pad or (f.lit(" "),))),
        total=False,
    ),
    function("reverse(s)", _ONE, pc.utf8_reverse, "Characters from last to first."),
    function(
        "repeat(s, times)",
        takes(TEXT, COUNT, gives=STRING),
        _repeat,
        "The text several times.",
        total=False,
    ),
    function(
        "instr(s, part)",
        takes(TEXT, TEXT, gives=INT),
        grouped(find, INT),
        "Position of the first occurrence, 0 if there is none.",
    ),
    function(
        "split_part(s, separator, n)",
        takes(TEXT, TEXT, COUNT, gives=STRING),
        grouped(_split_part, STRING),
        "The n-th part between separators, counted from the end if negative; else empty.",
        total=False,
        advice="count parts from 1",
    ),
)
