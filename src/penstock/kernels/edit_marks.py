"""Marks of texts: 64 bits by which most pairs that are far apart are told without comparing them.

Bit i of a mark is the parity of how often the characters of class i occur in a text.  Inserting or
deleting a character turns one bit, replacing one turns at most two.  So texts within edit distance
k have marks that differ in at most 2k bits.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.model import U64, Mask

_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def marks_of(column: pa.Array) -> U64:
    """Return the mark of each text; there must be no nulls."""
    rows = len(column)
    marks = np.zeros(rows, np.uint64)
    if rows == 0:
        return marks
    if not pa.types.is_string(column.type):
        column = column.cast(pa.string())
    buffers = column.buffers()
    offsets = np.frombuffer(buffers[1], np.int32, rows + 1, column.offset * 4).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return marks
    data = np.frombuffer(buffers[2], np.uint8, last - first, first)
    begins = np.flatnonzero((data & 0xC0) != 0x80)  # a character begins where none goes on
    point = data[begins].astype(np.uint64)
    for step in range(1, 4):
        at = np.minimum(begins + step, len(data) - 1)
        more = (begins + step < len(data)) & ((data[at] & 0xC0) == 0x80)
        more &= _unbroken(begins, step, data)
        point = np.where(more, point * np.uint64(256) + data[at], point)
    bits = np.uint64(1) << ((point * _SPREAD) >> np.uint64(58))
    filled = np.flatnonzero(offsets[1:] > offsets[:-1])
    starts = np.searchsorted(begins, offsets[:-1][filled] - first)
    marks[filled] = np.bitwise_xor.reduceat(bits, starts)
    return marks


def _unbroken(begins: np.ndarray, step: int, data: np.ndarray) -> Mask:
    """Whether all bytes between a character's first and its ``step``-th belong to it."""
    whole: Mask = np.ones(len(begins), bool)
    for before in range(1, step):
        at = np.minimum(begins + before, len(data) - 1)
        whole &= (data[at] & 0xC0) == 0x80
    return whole


def may_be_near(left: U64, right: U64, distance: int) -> Mask:
    """Return the pairs of marks whose texts may be within an edit distance."""
    near: Mask = np.bitwise_count(left ^ right) <= 2 * distance
    return near
