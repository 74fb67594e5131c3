"""Lines of JSON objects. A key that is missing is null, or makes the line a bad row, as the option
``missing`` says; keys that are not declared are ignored.

Keys are matched in any case: the one that is spelled as declared wins, and of several others none
does, so that the line is rejected.  Numbers are accepted as text, as they are written; the texts
``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` are accepted as numbers.

Arrow reads whole blocks, but only lines that begin with ``{`` and end with ``}``: it takes several
values in a line for rows, and dies of a line that says ``null``.  All others, and those that Arrow
refuses, are read one by one.  Both ways accept the same lines with the same values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from penstock.catalog import StreamDef
from penstock.expr.types import type_name
from penstock.model import I64, TIMESTAMP, Field, Mask, one_array
from penstock.nested.json_text import Object, loads
from penstock.nested.shapes import holds, is_map, is_nested, with_inner
from penstock.sources.readers.base import Asked, Slice, refuses_missing
from penstock.sources.readers.conversion import convert, naive_utc
from penstock.sources.readers.json_values import BadValueError, text_of
from penstock.sources.readers.lines import (
    Block,
    Rows,
    blocks,
    check_text,
    is_clean,
    pieces,
    unreadable,
)
from penstock.sources.readers.nested_columns import fit_nested

_SMALL = 32
"""Lines of a failing part that are no longer halved but read one by one."""

_DEEPEST = 200
"""Most levels of objects and arrays, so that no way of reading a line runs out of stack."""

_OPEN, _CLOSE, _NEWLINE = b"{}\n"
_BLANK = np.isin(np.arange(256), list(b"\t\r "))
_AFTER_OBJECT = np.isin(np.arange(256), list(b",]}"))
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_BRACKET = re.compile(rf"{_STRING}?|([\[{{])|([\]}}])".encode(), re.S)
_NUMBER_WORD = re.compile(rf"({_STRING})|(-?)Inf(?:inity)?|-?NaN", re.S)
_SIMPLE_KEY = re.compile(r"[A-Za-z0-9_ .:$@#-]+")
_ESCAPED_KEY = r"\\u00[2-7]"


def read_json(asked: Asked) -> Iterator[Slice]:
    """Read the lines in bytes ``[first, last)`` of a file of JSON objects."""
    definition = asked.definition
    start = check_text(asked)
    for block in blocks(asked.source, max(asked.first, start), asked.last):
        found = _read_block(definition, block, asked.wanted)
        if refuses_missing(definition):
            found = _without_missing(definition, block, found)
        yield found.slice(asked, block)


def _read_block(definition: StreamDef, block: Block, wanted: Sequence[int]) -> Rows:
    keys = _spelling(definition, block, wanted)
    if any(holds(definition.schema[at].type, is_map) for at in wanted):  # Arrow reads no maps
        faults = unreadable(block)
        readable = ~block.blank
        readable[list(faults)] = False
        slow = _slow(definition, block, np.flatnonzero(readable), keys)
        return replace(slow, broken={**faults, **slow.broken})
    tried = is_clean(block) and _plain_objects(block)
    if tried:
        found = _attempt(definition, block, keys)
        if found is not None:
            return found
    faults = unreadable(block)
    readable = ~block.blank
    readable[list(faults)] = False
    odd = readable & _odd(block)
    plain = np.flatnonzero(readable & ~odd)
    rows = _read(definition, block.only(plain), keys, tried).moved(plain)
    found = rows.merged(_slow(definition, block, np.flatnonzero(odd), keys))
    return replace(found, broken={**faults, **found.broken})


def _without_missing(definition: StreamDef, block: Block, rows: Rows) -> Rows:
    """Take out the rows whose line lacks a declared key; a key whose value is null is there.

    Only lines with a null are looked at.  Of those that hold one object and no escapes, a pattern
    says whether a key is there; the others are parsed.
    """
    bad: Mask = np.zeros(len(rows.places), bool)
    told: dict[int, str] = {}
    for at, array in rows.arrays.items():
        nulls = np.flatnonzero(np.asarray(array.is_null()) & ~bad)
        if not len(nulls):
            continue
        name = definition.schema[at].name
        lacks = _lacking(block, rows.places[nulls], name)
        for place in rows.places[nulls[lacks]].tolist():
            told[place] = f"the key '{name}' is missing"
        bad[nulls[lacks]] = True
    if not told:
        return rows
    return replace(rows.kept(~bad), broken={**rows.broken, **told})


def _lacking(block: Block, places: I64, name: str) -> Mask:
    lines = block.lines.take(pa.array(places)).view(pa.large_string())
    key = re.escape(json.dumps(name, ensure_ascii=False))
    there = np.asarray(pc.match_substring_regex(lines, rf"{key}\s*:", ignore_case=True))
    simple = np.asarray(
        pc.and_(
            pc.equal(pc.count_substring(lines, "{"), 1),
            pc.invert(pc.match_substring(lines, "\\")),
        )
    )
    lacks: Mask = ~there & simple
    for doubtful in np.flatnonzero(~simple).tolist():
        found = _parsed(block.line(int(places[doubtful])))
        lacks[doubtful] = all(key.lower() != name.lower() for key, _ in found)
    return lacks


def _spelling(definition: StreamDef, block: Block, wanted: Sequence[int]) -> dict[int, str]:
    """Return the key of each wanted column as some first line spells it, only to be fast."""
    head = block.data.slice(0, min(len(block.data), 1 << 16)).to_pybytes()
    spelled: dict[str, str] = {}
    for line in head.split(b"\n")[:8]:
        try:
            found = _parsed(line)
        except (BadValueError, UnicodeDecodeError):
            continue
        spelled = {key.lower(): key for key, _ in found} | {key: key for key, _ in found}
        break
    names = {at: definition.schema[at].name for at in wanted}
    return {at: spelled.get(name, spelled.get(name.lower(), name)) for at, name in names.items()}


def _plain_objects(block: Block) -> bool:
    """Whether each line starts with { and ends with }, and no other } or ] is in the block.

    Then each line is one object, or else none that Arrow would take.
    """
    data = block.data_bytes
    if not len(data) or data[0] != _OPEN:
        return False
    begun = ended = closers = 0
    before = np.uint8(_NEWLINE)
    for _, part in pieces(data):
        newlines = part == _NEWLINE
        begun += int(before == _NEWLINE and part[0] == _OPEN)
        begun += int(np.count_nonzero(newlines[:-1] & (part[1:] == _OPEN)))
        ended += int(before == _CLOSE and part[0] == _NEWLINE)
        ended += int(np.count_nonzero(newlines[1:] & (part[:-1] == _CLOSE)))
        closers += int(np.count_nonzero((part & 0xDF) == (_CLOSE & 0xDF)))
        before = part[-1]
        if closers > begun:
            return False
    ended += int(before == _CLOSE)
    return begun == block.count == ended == closers


def _odd(block: Block) -> Mask:
    """Return which lines Arrow must not see: not one object, by their looks, or too deep."""
    data, last = block.data_bytes, len(block.data_bytes) - 1
    if last < 0:
        return np.zeros(0, bool)
    begin = np.minimum(block.first_visible, last)
    end = np.maximum(block.last_visible, 0)
    odd: Mask = (data[begin] != _OPEN) | (data[end] != _CLOSE)
    if block.longest > 2 * _DEEPEST:
        closers = np.flatnonzero((data & 0xDF) == (_CLOSE & 0xDF))
        odd |= np.diff(np.searchsorted(closers, block.offsets)) > _DEEPEST
    for first, part in pieces(data, 1):
        before, after = part[:-1] == _CLOSE, part[1:]
        for usual in b",]}\n":
            before &= after != usual
        if before.any():
            inner = np.flatnonzero(before) + first
            after_blanks = inner + 1
            for _ in range(64):
                after_blanks += _BLANK[data[np.minimum(after_blanks, last)]]
            lines = block.line_of(inner)
            over = after_blanks > end[lines]
            fine = over | _AFTER_OBJECT[data[np.minimum(after_blanks, last)]]
            odd[lines[~fine]] = True
    return odd


def _read(
    definition: StreamDef, block: Block, keys: Mapping[int, str], tried: bool = False
) -> Rows:
    """Read lines that all look like objects: by Arrow, or halved until few are left.

    ``tried``: Arrow has failed to read them all at once.
    """
    found = None if tried else _attempt(definition, block, keys)
    if found is not None:
        return found
    if block.count <= _SMALL:
        return _slow(definition, block, np.arange(block.count), keys)
    middle = block.count // 2
    left = _read(definition, block.part(0, middle), keys)
    right = _read(definition, block.part(middle, block.count), keys)
    return left.merged(right.moved(np.arange(middle, block.count)))


def _attempt(definition: StreamDef, block: Block, keys: Mapping[int, str]) -> Rows | None:
    """Let Arrow read a block, and read the rows again that it may have got wrong."""
    try:
        arrays, rows, doubtful = _fast(definition, block, keys)
    except pa.ArrowInvalid:
        return None
    if rows != block.count:
        return None
    found = Rows(arrays, np.arange(rows))
    doubtful |= _other_case(definition, block, arrays, keys)
    if not doubtful.any():
        return found
    again = _slow(definition, block, np.flatnonzero(doubtful), keys)
    return found.kept(~doubtful).merged(again)


def _fast(
    definition: StreamDef, block: Block, keys: Mapping[int, str]
) -> tuple[dict[int, pa.Array], int, Mask]:
    """Return the columns of a block, its rows, and those whose values must be looked at."""
    declared = {at: definition.schema[at].type for at in keys}
    if not block.count:
        return {at: pa.array([], type) for at, type in declared.items()}, 0, np.zeros(0, bool)
    # Arrow's JSON reader knows no dates, and of timestamps only those without a zone.
    asked = [(key, _asked_type(declared[at])) for at, key in keys.items()]
    size = len(block.data)
    width = max(1 << 20, size // 8) if block.count > 8 else size + 1
    table = pyarrow.json.read_json(
        pa.BufferReader(block.data),
        read_options=pyarrow.json.ReadOptions(block_size=width),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(asked), unexpected_field_behavior="ignore"
        ),
    )
    arrays = {}
    doubtful: Mask = np.zeros(table.num_rows, bool)
    for at, key in keys.items():
        array = one_array(table.column(key))
        if _is_text(declared[at]):
            array, bad = _days(array, declared[at])
            doubtful |= bad
        elif pa.types.is_floating(declared[at]):
            doubtful |= np.asarray(pc.fill_null(pc.is_inf(array), False))
        elif is_nested(declared[at]):
            array, bad = _inside(array, declared[at])
            doubtful |= bad
        arrays[at] = array
    return arrays, table.num_rows, doubtful


def _asked_type(type: pa.DataType) -> pa.DataType:
    """Return the type as which Arrow is asked to read a column."""
    if is_nested(type):
        return with_inner(type, _asked_type)
    return pa.string() if _is_text(type) else type


def _inside(array: pa.Array, type: pa.DataType) -> tuple[pa.Array, Mask]:
    """Return a nested column as its type, and where it holds what must be looked at."""

    def fit(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
        if is_nested(kind):
            return _inside(column, kind)
        if _is_day(kind):
            return _days(column, kind)
        if _is_text(kind):
            return convert(column, kind)
        if pa.types.is_floating(kind):
            return column, np.asarray(pc.fill_null(pc.is_inf(column), False))
        return column, np.zeros(len(column), bool)

    found = fit_nested(array, type, fit)
    assert found is not None
    return found


def _is_text(type: pa.DataType) -> bool:
    """Whether Arrow reads a column as text, which is converted then."""
    return _is_day(type) or bool(pa.types.is_binary(type))


def _is_day(type: pa.DataType) -> bool:
    return bool(pa.types.is_date(type) or pa.types.is_timestamp(type))


def _days(text: pa.Array, type: pa.DataType) -> tuple[pa.Array, Mask]:
    for read in (type, pa.timestamp("us", "UTC")) if type == TIMESTAMP else ():
        try:
            return naive_utc(text.cast(read)), np.zeros(len(text), bool)
        except pa.ArrowInvalid:
            pass
    return convert(text, type)


def _other_case(
    definition: StreamDef, block: Block, arrays: Mapping[int, pa.Array], keys: Mapping[int, str]
) -> Mask:
    """Return the lines that may have a key in another case than the one that Arrow looked for.

    A value under the declared key wins, so only where there is none can another be meant.
    """
    doubtful: Mask = np.zeros(block.count, bool)
    looked: Mask = np.zeros(block.count, bool)
    text, lowered = block.lines.view(pa.large_string()), None
    for at, key in keys.items():
        missing: Mask = np.asarray(arrays[at].is_null())
        exact = key == definition.schema[at].name
        rows = np.flatnonzero(missing) if exact else np.arange(block.count)
        if not len(rows):
            continue
        looked[rows] = True
        if not _SIMPLE_KEY.fullmatch(key):
            doubtful[rows] = True
            continue
        lowered = pc.ascii_lower(text) if lowered is None else lowered
        quoted = f'"{key}"'
        # Where the key is there once, and has a value, it is the key that Arrow has found.
        spelled = _count(lowered, rows, quoted.lower())
        unsure = spelled != ~missing[rows]
        rows, spelled = rows[unsure], spelled[unsure]
        doubtful[rows[spelled != _count(text, rows, quoted)]] = True
    if looked.any() and block.holds(ord("\\")):
        rows = np.flatnonzero(looked)
        escaped = pc.match_substring_regex(text.take(pa.array(rows)), _ESCAPED_KEY)
        doubtful[rows[np.asarray(escaped)]] = True
    return doubtful


def _count(lines: pa.Array, rows: I64, part: str) -> I64:
    """Return how often some lines hold a text."""
    chosen = lines if len(rows) == len(lines) else lines.take(pa.array(rows))
    return np.asarray(pc.count_substring(chosen, part), np.int64)


def _slow(definition: StreamDef, block: Block, chosen: I64, keys: Mapping[int, str]) -> Rows:
    """Read some lines one by one."""
    places: list[int] = []
    broken: dict[int, str] = {}
    texts: dict[int, list[str | None]] = {at: [] for at in keys}
    fields = {at: definition.schema[at] for at in keys}
    for place in chosen.tolist():
        try:
            found = _parsed(block.line(place))
            row = {at: _text(found, field) for at, field in fields.items()}
        except BadValueError as error:
            broken[place] = str(error)
            continue
        places.append(place)
        for at, text in row.items():
            texts[at].append(text)
    bad: Mask = np.zeros(len(places), bool)
    arrays = {}
    for at, field in fields.items():
        arrays[at], wrong = convert(pa.array(texts[at], pa.string()), field.type)
        for row_number in np.flatnonzero(wrong & ~bad).tolist():
            broken[places[row_number]] = _must_be(field)
        bad |= wrong
    rows = Rows(arrays, np.array(places, np.int64), broken)
    return rows.kept(~bad) if bad.any() else rows


def _must_be(field: Field) -> str:
    return f"the key '{field.name}' must be {type_name(field.type)}"


def _parsed(line: bytes) -> Object:
    """Return the keys and values of a line, which must be UTF-8."""
    if len(line) > 2 * _DEEPEST and _too_deep(line):
        raise BadValueError(f"a line must be a JSON object of at most {_DEEPEST} levels")
    text = line.decode()
    try:
        try:
            found = loads(text)
        except ValueError:
            # Arrow takes these words for numbers, in whatever form.
            if "Inf" not in text and "NaN" not in text:
                raise
            found = loads(_NUMBER_WORD.sub(_python_word, text))
    except ValueError as error:
        raise BadValueError(f"a line must be a JSON object: {error}") from None
    if isinstance(found, Object):
        return found
    if isinstance(found, list):
        raise BadValueError(
            "a line must be a JSON object, got an array; write each object on a line of its own"
        )
    raise BadValueError("a line must be a JSON object, got a single value")


def _python_word(found: re.Match[str]) -> str:
    if found[1]:
        return found[1]
    return "NaN" if found[0].endswith("NaN") else f"{found[2]}Infinity"


def _too_deep(line: bytes) -> bool:
    depth = 0
    for found in _BRACKET.finditer(line):
        depth += bool(found[1]) - bool(found[2])
        if depth > _DEEPEST:
            return True
    return False


def _value(found: Object, name: str) -> Any:
    """Return the value of a column: that of its own name, else of its name in any case."""
    same = [value for key, value in found if key == name]
    if not same:
        lower = name.lower()
        same = [
            value
            for key, value in found
            if key.isascii() == name.isascii() and key.lower() == lower
        ]
    if len(same) > 1:
        raise BadValueError(
            f"the key '{name}' must be there once, in whatever case, got {len(same)}"
        )
    return same[0] if same else None


def _text(found: Object, field: Field) -> str | None:
    """Return the value of a column as text that may fit its type; one that cannot is refused."""
    return text_of(_value(found, field.name), field.type, f"the key '{field.name}'")
