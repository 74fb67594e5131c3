"""Hashes, digests and encodings of values.

``hash`` and ``xxhash64`` are Spark's: Murmur3 with 32 bits and XXH64, both from 42 on.  Each
argument is hashed with the result for the ones before it; a null changes nothing.  They work on
whole columns, texts word by word.  Digests are computed once per distinct text.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.decimals import integers, is_wide
from penstock.expr.library.arrays import each_distinct, null_mask, numpy_of, spread
from penstock.expr.signatures import BYTES, COUNT, PLAIN, TEXT, Function, called, function, takes
from penstock.expr.text_sizes import bytes_of
from penstock.expr.types import BIGINT, BINARY, DATE, INT, STRING, is_decimal, is_floating
from penstock.model import TIMESTAMP

U32: Any = npt.NDArray[np.uint32]
U64: Any = npt.NDArray[np.uint64]
_SEED = 42


def _rotated(value: Any, places: int) -> Any:
    bits = value.dtype.itemsize * 8
    kind = value.dtype.type
    return (value << kind(places)) | (value >> kind(bits - places))


# Murmur3, 32 bits


def _mixed_word(word: Any) -> Any:
    return _rotated(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _mixed_hash(state: Any, word: Any) -> Any:
    return _rotated(state ^ _mixed_word(word), 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _finished(state: Any, length: Any) -> Any:
    state = state ^ length.astype(np.uint32)
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return state ^ (state >> np.uint32(16))


def _murmur_number(state: Any, value: Any) -> Any:
    length = np.uint32(value.dtype.itemsize)
    if value.dtype.itemsize == 4:
        return _finished(_mixed_hash(state, value), length)
    low = (value & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (value >> np.uint64(32)).astype(np.uint32)
    return _finished(_mixed_hash(_mixed_hash(state, low), high), length)


def _murmur_text(state: Any, text: pa.Array) -> Any:
    """Words of four bytes, then the bytes that are left, each as a word with its sign."""
    data, starts, sizes = _bytes(text)
    words = sizes // 4
    for step in range(int(words.max(initial=0))):
        rows = np.flatnonzero(words > step)
        state[rows] = _mixed_hash(state[rows], _words(data, starts[rows] + 4 * step, 4))
    for step in range(3):
        rows = np.flatnonzero(sizes - words * 4 > step)
        last = data[starts[rows] + words[rows] * 4 + step].view(np.int8)
        state[rows] = _mixed_hash(state[rows], last.astype(np.int32).view(np.uint32))
    return _finished(state, sizes)


# XXH64

_P1, _P2, _P3, _P4, _P5 = map(
    np.uint64,
    (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    ),
)


def _round(state: Any, word: Any) -> Any:
    return _rotated(state + word * _P2, 31) * _P1


def _merged(state: Any, lane: Any) -> Any:
    return (state ^ _round(np.zeros_like(lane), lane)) * _P1 + _P4


def _with_long(state: Any, word: Any) -> Any:
    return _rotated(state ^ _round(np.zeros_like(word), word), 27) * _P1 + _P4


def _with_int(state: Any, word: Any) -> Any:
    return _rotated(state ^ (word * _P1), 23) * _P2 + _P3


def _with_byte(state: Any, byte: Any) -> Any:
    return _rotated(state ^ (byte * _P5), 11) * _P1


def _avalanche(state: Any) -> Any:
    state = (state ^ (state >> np.uint64(33))) * _P2
    state = (state ^ (state >> np.uint64(29))) * _P3
    return state ^ (state >> np.uint64(32))


def _xx_number(state: Any, value: Any) -> Any:
    begun = state + _P5 + np.uint64(value.dtype.itemsize)
    if value.dtype.itemsize == 4:
        return _avalanche(_with_int(begun, value.astype(np.uint64)))
    return _avalanche(_with_long(begun, value))


def _xx_text(seed: Any, text: pa.Array) -> Any:
    """Stripes of 32 bytes in four lanes, then words of eight, one of four, and single bytes."""
    data, starts, sizes = _bytes(text)
    state = seed + _P5
    stripes = sizes // 32
    long = np.flatnonzero(stripes)
    if len(long):
        state[long] = _lanes(seed[long], data, starts[long], stripes[long])
    state += sizes.astype(np.uint64)
    at, left = starts + stripes * 32, sizes - stripes * 32
    for _ in range(3):
        rows = np.flatnonzero(left >= 8)
        state[rows] = _with_long(state[rows], _words(data, at[rows], 8))
        at[rows] += 8
        left[rows] -= 8
    rows = np.flatnonzero(left >= 4)
    state[rows] = _with_int(state[rows], _words(data, at[rows], 4).astype(np.uint64))
    at[rows] += 4
    left[rows] -= 4
    for step in range(3):
        rows = np.flatnonzero(left > step)
        state[rows] = _with_byte(state[rows], data[at[rows] + step].astype(np.uint64))
    return _avalanche(state)


def _lanes(seed: Any, data: Any, starts: Any, stripes: Any) -> Any:
    lanes = [seed + _P1 + _P2, seed + _P2, seed.copy(), seed - _P1]
    for step in range(int(stripes.max())):
        rows = np.flatnonzero(stripes > step)
        for number, lane in enumerate(lanes):
            word = _words(data, starts[rows] + 32 * step + 8 * number, 8)
            lane[rows] = _round(lane[rows], word)
    state = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
    for lane in lanes:
        state = _merged(state, lane)
    return state


# Columns


def _bytes(text: pa.Array) -> tuple[Any, Any, Any]:
    """Return the bytes of all texts, and where each starts and how long it is."""
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text)]
    held = text.buffers()[2]
    data = np.frombuffer(held, np.uint8) if held is not None else np.zeros(0, np.uint8)
    return data, offsets.astype(np.int64), bytes_of(text, 0)


def _words(data: Any, starts: Any, width: int) -> Any:
    """Return the little-endian words at some places."""
    held = data[starts[:, None] + np.arange(width)]
    return np.ascontiguousarray(held).view(f"<u{width}").reshape(-1)


def _as_words(column: pa.Array) -> Any:
    """Return numbers, truths and times as words of 4 or 8 bytes; both zeros are one."""
    if is_decimal(column.type):
        return integers(column).view(np.uint64)
    if column.type in (DATE, TIMESTAMP):
        column = column.cast(INT if column.type == DATE else BIGINT)
    values = (
        numpy_of(column) if not pa.types.is_boolean(column.type) else numpy_of(column.cast(INT))
    )
    if is_floating(column.type):
        values = np.where(values == 0, values.dtype.type(0), values)
        values = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    if values.dtype.itemsize < 4:
        values = values.astype(np.int32)
    return values.view(f"u{values.dtype.itemsize}")


def _unscaled_bytes(column: pa.Array) -> pa.Array:
    """Return wide DECIMALs as Java writes their units: with as few bytes as hold them."""
    units = [int(unit) for unit in integers(column)]
    sizes = [((u if u >= 0 else ~u).bit_length() // 8) + 1 for u in units]
    pairs = zip(units, sizes, strict=True)
    return pa.array([unit.to_bytes(size, "big", signed=True) for unit, size in pairs], BINARY)


def _hash(number: Callable[..., Any], text: Callable[..., Any], gives: pa.DataType) -> Any:
    kind = np.uint32 if gives == INT else np.uint64

    def apply(*values: Any) -> pa.Array:
        rows, columns = spread(*values)
        state = np.full(rows, _SEED, kind)
        for column in columns:
            if pa.types.is_null(column.type):
                continue
            present = ~null_mask(column)
            with np.errstate(over="ignore"):
                if column.type in (STRING, BINARY):
                    found = text(state.copy(), column)
                elif is_wide(column.type):
                    found = text(state.copy(), _unscaled_bytes(column))
                else:
                    found = number(state, _as_words(column))
            state = np.where(present, found, state)
        return pa.array(state.view(f"i{state.dtype.itemsize}"), gives)

    return apply


def _digest(usage: str, change: Callable[[bytes], Any], doc: str, *aliases: str) -> Function:
    """A function of the bytes of a text, computed once per distinct text."""

    def apply(text: Any) -> pa.Array:
        return each_distinct(usage, lambda s: change(data_of(s)), STRING, text)

    return function(usage, takes(BYTES, gives=STRING), apply, doc, *aliases)


def _hexadecimal(name: str) -> Callable[[bytes], str]:
    return lambda data: hashlib.new(name, data, usedforsecurity=False).hexdigest()


def data_of(value: str | bytes) -> bytes:
    """Return the bytes of a text, or bytes as they are."""
    return value.encode() if isinstance(value, str) else value


def _sha2(text: str | bytes, bits: int) -> str | None:
    name = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}.get(bits)
    return None if name is None else hashlib.new(name, data_of(text)).hexdigest()


def _base64(text: Any) -> pa.Array:
    """Lines of 76 characters, as MIME has them."""

    def encoded(s: str | bytes) -> str:
        plain = base64.b64encode(data_of(s)).decode()
        return "\r\n".join(plain[i : i + 76] for i in range(0, len(plain), 76))

    return each_distinct("base64(s)", encoded, STRING, text)


def _from_base64(text: str) -> bytes:
    """As in Spark, characters that are no base 64 do not count, and = may be missing at the end."""
    digits = re.sub("[^A-Za-z0-9+/=]", "", text).rstrip("=")
    if "=" in digits or len(digits) % 4 == 1:
        raise pa.ArrowInvalid(f"'{text}' is no base 64")
    return base64.b64decode(digits + "=" * (-len(digits) % 4))


def _from_hexadecimal(text: str) -> bytes | None:
    if not re.fullmatch("[0-9A-Fa-f]*", text):
        return None
    return bytes.fromhex("0" * (len(text) % 2) + text)


def _encode(text: pa.Array, charset: str | None) -> pa.Array:
    if charset is None:
        return pa.nulls(len(text), BINARY)
    if charset.upper() != "UTF-8":
        raise pa.ArrowInvalid(f"the character set must be 'UTF-8', got '{charset}'")
    return text.cast(BINARY)


FUNCTIONS = (
    function(
        "hash(a, b, ..)",
        takes(PLAIN, gives=INT, more=PLAIN),
        _hash(_murmur_number, _murmur_text, INT),
        "Spark's hash of values, Murmur3 with 32 bits; a null changes nothing.",
    ),
    function(
        "xxhash64(a, b, ..)",
        takes(PLAIN, gives=BIGINT, more=PLAIN),
        _hash(_xx_number, _xx_text, BIGINT),
        "Spark's hash of values with 64 bits, XXH64; a null changes nothing.",
    ),
    _digest("md5(s)", _hexadecimal("md5"), "MD5 of a text, 32 hexadecimal digits."),
    _digest("sha1(s)", _hexadecimal("sha1"), "SHA-1 of a text, 40 hexadecimal digits.", "sha"),
    function(
        "sha2(s, bits)",
        takes(BYTES, COUNT, gives=STRING),
        lambda *values: each_distinct("sha2(s, bits)", _sha2, STRING, *values),
        "SHA-2 of a text with 224, 256 (or 0), 384 or 512 bits; null for other numbers.",
        spark=called("sha2"),
    ),
    function(
        "crc32(s)",
        takes(BYTES, gives=BIGINT),
        lambda s: each_distinct("crc32(s)", lambda t: zlib.crc32(data_of(t)), BIGINT, s),
        "Cyclic redundancy check of a text.",
    ),
    function(
        "base64(s)",
        takes(BYTES, gives=STRING),
        _base64,
        "Bytes, or those of a text, in base 64, in lines of 76 characters.",
        spark=None,
        total=False,
    ),
    function(
        "unbase64(s)",
        takes(TEXT, gives=BINARY),
        lambda s: each_distinct("unbase64(s)", _from_base64, BINARY, s),
        "The bytes that a text in base 64 stands for.",
        spark=None,
        total=False,
        advice="use CASE to leave out texts that are no base 64",
    ),
    function(
        "unhex(s)",
        takes(TEXT, gives=BINARY),
        lambda s: each_distinct("unhex(s)", _from_hexadecimal, BINARY, s),
        "The bytes that hexadecimal digits stand for; null where there are others.",
        spark=None,
    ),
    function(
        "encode(s, charset)",
        takes(TEXT, TEXT, gives=BINARY),
        _encode,
        "The bytes of a text; the character set is the constant 'UTF-8'.",
        spark=None,
        constants=(1,),
    ),
    function(
        "to_base32(s)",
        takes(BYTES, gives=STRING),
        lambda s: each_distinct(
            "to_base32(s)", lambda t: base64.b32encode(data_of(t)).decode(), STRING, s
        ),
        "Bytes, or those of a text, in base 32.",
        spark=called("to_base32"),
        total=False,
    ),
)
