"""Files of lines: their header, blocks that end at line ends, and where each line stands.

One record is one line, so a newline inside a quoted value is not supported.  A file's last line
may lack its newline.  Blank lines count as positions but hold no record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model import I64, Mask

BLOCK_BYTES = 1 << 25
"""Bytes that are parsed at once: bounds memory and the cost of a block with a bad row."""

_NEWLINE = 10
_BLANKS = np.array([9, _NEWLINE, 13, 32], np.uint8)
_BOM = b"\xef\xbb\xbf"


def first_line(source: Any) -> tuple[str, int]:
    """Return a file's first line without its end or byte-order mark, and where the next starts."""
    source.seek(0)
    read = b""
    while b"\n" not in read:
        more = source.read(1 << 16)
        if not more:
            break
        read += more
    line, newline, _ = read.partition(b"\n")
    start = len(line) + len(newline)
    return line.removeprefix(_BOM).rstrip(b"\r").decode("utf-8", "replace"), start


def advance(source: Any, at: int, rows: int, chunk: int = 1 << 22) -> tuple[int, int]:
    """Return where the line that is ``rows`` lines after ``at`` starts, and the lines passed."""
    size = source.size()
    passed = 0
    source.seek(at)
    while at < size and passed < rows:
        data = np.frombuffer(source.read_buffer(chunk), np.uint8)
        newlines = data == _NEWLINE
        count = int(np.count_nonzero(newlines))
        if passed + count >= rows:
            return at + int(np.flatnonzero(newlines)[rows - passed - 1]) + 1, rows
        passed += count
        at += len(data)
        if at >= size and data[-1] != _NEWLINE:
            passed += 1
    return min(at, size), passed


@dataclass(frozen=True)
class Block:
    """Some whole lines; ``first`` is the position of the first one in its slice."""

    data: pa.Buffer
    first: int

    @cached_property
    def _bytes(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.data, np.uint8)

    @cached_property
    def count(self) -> int:
        """The number of lines, blank ones too."""
        if not len(self._bytes):
            return 0
        unfinished = self._bytes[-1] != _NEWLINE
        return int(np.count_nonzero(self._bytes == _NEWLINE)) + int(unfinished)

    @cached_property
    def offsets(self) -> I64:
        """Where each line starts, and where the last one ends."""
        ends = np.flatnonzero(self._bytes == _NEWLINE) + 1
        if len(ends) < self.count:
            ends = np.append(ends, len(self._bytes))
        return np.concatenate([np.zeros(1, np.int64), ends.astype(np.int64)])

    @cached_property
    def blank(self) -> Mask:
        """Which lines hold nothing but spaces."""
        if not self.count:
            return np.zeros(0, bool)
        visible = ~np.isin(self._bytes, _BLANKS)
        seen = np.add.reduceat(visible, self.offsets[:-1], dtype=np.int64)
        return np.asarray(seen == 0)

    def positions(self, places: I64) -> I64:
        """Return the positions in the slice of lines given by their places in the block."""
        return places + self.first

    def text(self, places: I64) -> pa.Array:
        """Return the text of some lines without their ends; what is no UTF-8 is replaced."""
        lines = pa.Array.from_buffers(
            pa.large_binary(), self.count, [None, pa.py_buffer(self.offsets), self.data]
        )
        found = lines.take(pa.array(places)).to_pylist()
        return pa.array([b.rstrip(b"\r\n").decode("utf-8", "replace") for b in found], pa.string())

    def part(self, first: int, last: int) -> Block:
        """Return lines ``[first, last)`` of the block as a block."""
        begin, end = int(self.offsets[first]), int(self.offsets[last])
        return Block(self.data.slice(begin, end - begin), self.first + first)


def blocks(source: Any, first: int, last: int, size: int = BLOCK_BYTES) -> Iterator[Block]:
    """Cut the bytes ``[first, last)`` of a file into blocks of whole lines."""
    position = 0
    while first < last:
        source.seek(first)
        data = source.read_buffer(min(size, last - first))
        if len(data) == 0:
            return
        if first + len(data) < last:
            end = _last_newline(data)
            if end < 0:
                size *= 2
                continue
            data = data.slice(0, end + 1)
        block = Block(data, position)
        yield block
        position += block.count
        first += len(data)


def holds_text(data: pa.Buffer) -> bool:
    """Whether a buffer has more than blanks."""
    head = data.slice(0, min(len(data), 4096)).to_pybytes()
    return bool(head.strip()) or bool(data.to_pybytes().strip())


def _last_newline(data: pa.Buffer) -> int:
    """Return where the last newline of a buffer is, -1 if there is none."""
    view = np.frombuffer(data, np.uint8)
    for width in (1 << 12, len(view)):
        found = np.flatnonzero(view[-width:] == _NEWLINE)
        if len(found):
            return int(found[-1]) + max(0, len(view) - width)
    return -1
