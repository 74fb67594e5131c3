"""The oracle's ``hash`` and ``xxhash64``: Murmur3 and XXH64 as Spark computes them.

Both begin with 42 and take the result for the arguments before as the seed of the next one; a null
is left out.  The oracle's values do not tell their types, so these functions are told them.
"""

from __future__ import annotations

import struct
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

_M32, _M64 = 2**32 - 1, 2**64 - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def murmur(values: list[Any], types: list[pa.DataType]) -> int:
    """Return the hash with 32 bits."""
    state = 42
    for value, type_ in zip(values, types, strict=True):
        if value is not None:
            state = _murmur(_bytes(value, type_), state)
    return state - 2**32 if state >= 2**31 else state


def xx64(values: list[Any], types: list[pa.DataType]) -> int:
    """Return the hash with 64 bits."""
    state = 42
    for value, type_ in zip(values, types, strict=True):
        if value is not None:
            state = _xx64(_bytes(value, type_), state)
    return state - 2**64 if state >= 2**63 else state


def _bytes(value: Any, type_: pa.DataType) -> bytes:
    """Return what is hashed of a value: text as UTF-8, small integers as INT, both zeros as one."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, Decimal):
        units = int(value.scaleb(type_.scale, Context(prec=100)))
        if type_.precision <= 18:
            return units.to_bytes(8, "little", signed=True)
        size = next(n for n in range(1, 17) if -(2 ** (8 * n - 1)) <= units < 2 ** (8 * n - 1))
        return units.to_bytes(size, "big", signed=True)
    if isinstance(value, float):
        return struct.pack("<f" if type_ == pa.float32() else "<d", value + 0.0)
    size = 8 if type_.bit_width == 64 else 4
    return bytes(int(value).to_bytes(size, "little", signed=True))


def _turned(value: int, places: int, bits: int) -> int:
    return (value << places | value >> (bits - places)) & (_M32 if bits == 32 else _M64)


def _murmur(data: bytes, state: int) -> int:
    whole = len(data) // 4 * 4
    words = [int.from_bytes(data[i : i + 4], "little") for i in range(0, whole, 4)]
    words += [(byte - 256 if byte > 127 else byte) & _M32 for byte in data[whole:]]
    for word in words:
        mixed = _turned(word * 0xCC9E2D51 & _M32, 15, 32) * 0x1B873593 & _M32
        state = (_turned(state ^ mixed, 13, 32) * 5 + 0xE6546B64) & _M32
    state ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ state >> shift) * factor & _M32
    return state ^ state >> 16


def _step(state: int, word: int) -> int:
    return _turned((state + word * _P2) & _M64, 31, 64) * _P1 & _M64


def _xx64(data: bytes, seed: int) -> int:
    state = (seed + _P5) & _M64
    rest = data
    if len(data) >= 32:
        lanes = [(seed + _P1 + _P2) & _M64, (seed + _P2) & _M64, seed, (seed - _P1) & _M64]
        while len(rest) >= 32:
            lanes = [
                _step(v, w) for v, w in zip(lanes, struct.unpack("<4Q", rest[:32]), strict=True)
            ]
            rest = rest[32:]
        state = sum(_turned(v, by, 64) for v, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _M64
        for lane in lanes:
            state = ((state ^ _step(0, lane)) * _P1 + _P4) & _M64
    state = (state + len(data)) & _M64
    while len(rest) >= 8:
        word = _step(0, int.from_bytes(rest[:8], "little"))
        state, rest = (_turned(state ^ word, 27, 64) * _P1 + _P4) & _M64, rest[8:]
    if len(rest) >= 4:
        word = int.from_bytes(rest[:4], "little") * _P1 & _M64
        state, rest = (_turned(state ^ word, 23, 64) * _P2 + _P3) & _M64, rest[4:]
    for byte in rest:
        state = _turned(state ^ (byte * _P5 & _M64), 11, 64) * _P1 & _M64
    state = (state ^ state >> 33) * _P2 & _M64
    state = (state ^ state >> 29) * _P3 & _M64
    return state ^ state >> 32
