"""Nested values as bytes that compare as the values do: the one place that knows their order.

Of two columns of bytes of one type, equal bytes are equal values, and the order of the bytes is the
order of Spark: nulls first, element by element, field by field, a shorter array before a longer one
that begins with it; NaN is equal to itself and above all numbers, and there is one zero.  So
whatever works on texts (hashes, sorting, comparison) works on nested values, too.  A MAP, which has
no order in SQL, is taken for the array of its entries as they stand.

The bytes are part of the checkpoint format, because keys are hashes of them: never change them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import I64, U64
from penstock.nested.pieces import Pieces, side_by_side
from penstock.nested.shapes import elements, is_nested, is_struct, parts, valid_mask

_SIGN = np.uint64(1 << 63)
_LARGEST = np.int64(0x7FFF_FFFF_FFFF_FFFF)


def comparable(column: pa.Array) -> pa.Array:
    """Return nested values as bytes; null is null."""
    found = _encoded(column).binary()
    return found if not column.null_count else pc.if_else(column.is_valid(), found, None)


def _encoded(column: pa.Array) -> Pieces:
    """Return a byte that says whether there is a value, and the bytes of the value."""
    valid = valid_mask(column)
    flag = Pieces.flags(valid.astype(np.uint8))
    rows, kind = len(column), column.type
    if is_struct(kind):
        inner = [_encoded(part) for part in parts(column)]
        return side_by_side([flag, *(piece.only(valid) for piece in inner)])
    if is_nested(kind):
        places, values = elements(column)
        before = Pieces.same(b"\1", len(values))  # another element follows
        body = side_by_side([before, _encoded(values)]).grouped(places)
        return side_by_side([flag, body, Pieces.same(b"\0", rows).only(valid)])
    if pa.types.is_null(kind):
        return flag
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return side_by_side([flag, _escaped(Pieces.of(column)).only(valid)])
    if pa.types.is_decimal(kind):
        return side_by_side([flag, _decimals(column).only(valid)])
    numbers = (_integers(column).view(np.uint64) ^ _SIGN).astype(">u8")
    eights = Pieces(numbers.view(np.uint8), np.full(rows, 8, np.int64))
    return side_by_side([flag, eights.only(valid)])


def _escaped(texts: Pieces) -> Pieces:
    """Return texts with an end that no text has: 0 is 0 1 inside of them, and they end with 0 0."""
    zeros = texts.data == 0
    sizes, data = texts.sizes, texts.data
    if zeros.any():
        counted = np.concatenate([[0], np.cumsum(zeros)])
        ends = np.concatenate([[0], np.cumsum(sizes)])
        sizes = sizes + np.diff(counted[ends])
        escaped = np.ones(len(data) + int(zeros.sum()), np.uint8)
        escaped[np.arange(len(data)) + counted[:-1]] = data
        data = escaped
    return side_by_side([Pieces(data, sizes), Pieces.same(b"\0\0", len(sizes))])


def _decimals(column: pa.Array) -> Pieces:
    """Return DECIMALs as 16 bytes in the order of their values."""
    rows = len(column)
    if not rows:
        return Pieces(np.empty(0, np.uint8), np.empty(0, np.int64))
    words: U64 = np.frombuffer(column.buffers()[1], np.uint64)
    words = words[2 * column.offset : 2 * (column.offset + rows)].reshape(rows, 2)
    turned = np.stack([words[:, 1] ^ _SIGN, words[:, 0]], axis=1).astype(">u8")
    return Pieces(turned.reshape(-1).view(np.uint8), np.full(rows, 16, np.int64))


def _integers(column: pa.Array) -> I64:
    """Return integers in the order of plain values; any number in the place of nulls."""
    kind = column.type
    if pa.types.is_boolean(kind):
        found: I64 = np.asarray(pc.fill_null(column, False)).astype(np.int64)
        return found
    if pa.types.is_timestamp(kind):
        column = column.view(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.view(pa.int32())
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(0, column.type))
    if pa.types.is_floating(kind):
        numbers = column.to_numpy().astype(np.float64) + 0.0
        numbers[np.isnan(numbers)] = np.nan
        bits = numbers.view(np.int64)
        ordered: I64 = bits ^ ((bits >> 63) & _LARGEST)
        return ordered
    whole: I64 = column.to_numpy().astype(np.int64)
    return whole


def ranks(column: pa.Array) -> I64:
    """Return integers in the order of values of any type; any number in the place of nulls."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.int64)
    if is_nested(kind) or pa.types.is_decimal(kind):
        column = comparable(column)
    elif not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return _integers(column)
    encoded = column.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.zeros(len(order) + 1, np.int64)
    rank[order] = np.arange(len(order))
    found: I64 = rank[encoded.indices.fill_null(len(order)).to_numpy()]
    return found
