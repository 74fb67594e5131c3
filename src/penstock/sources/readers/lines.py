"""Files of lines: blocks that end at line ends, where each line stands, and lines no parser sees.

One record is one line: nothing that a line holds reaches beyond its end.  So a bad line never
changes another one, and rows are the same however a file is cut into slices and blocks.  A file's
last line may lack its newline.  Blank lines count as positions but hold no record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import DataError
from penstock.model import I64, Mask
from penstock.sources.readers.base import (
    RAW_BYTES,
    Asked,
    Slice,
    make_slice,
    no_rejected,
    open_input,
    raw_text,
    rejected_rows,
)

Bytes = npt.NDArray[np.uint8]

LINES = ("csv", "text", "json")
"""The kinds of files that are read line by line."""

BLOCK_BYTES = 1 << 25
"""Bytes that are parsed at once: bounds memory and the cost of a block with a bad row."""

LONGEST_LINE = 1 << 26
"""Most bytes of a line with its end: longer ones are rejected and never held in memory."""

_LONGEST_HEADER = 1 << 20
_PIECE = 1 << 17
_CHUNK = 1 << 22
_NEWLINE = 10
_BLANKS = np.array([9, _NEWLINE, 13, 32], np.uint8)
_IS_BLANK = np.isin(np.arange(256, dtype=np.uint8), _BLANKS)
BOM = b"\xef\xbb\xbf"

_OTHER_FILES = {
    b"\xff\xfe": "UTF-16; convert it to UTF-8",
    b"\xfe\xff": "UTF-16; convert it to UTF-8",
    b"\x1f\x8b": "packed by gzip; unpack it",
    b"PK\x03\x04": "packed by zip; unpack it",
    b"\x28\xb5\x2f\xfd": "packed by zstd; unpack it",
    b"\xfd7zXZ": "packed by xz; unpack it",
    b"BZh": "packed by bzip2; unpack it",
    b"PAR1": "Parquet; say so with OPTIONS (format 'parquet')",
    b"ARROW1": "Arrow; write it as Parquet",
}


def check_text(asked: Asked) -> int:
    """Check that a file does not begin like one of another kind; return where its text starts."""
    asked.source.seek(0)
    head = bytes(asked.source.read(8))
    for mark, what in _OTHER_FILES.items():
        if head.startswith(mark):
            raise DataError(
                f"the file '{asked.path}' of stream {asked.definition.name} must be UTF-8 text, "
                f"but it is {what}"
            )
    return len(BOM) if head.startswith(BOM) else 0


def first_line(asked: Asked) -> tuple[str, int]:
    """Return a file's first line without its end or byte-order mark, and where the next starts."""
    begin = check_text(asked)
    asked.source.seek(begin)
    head = bytes(asked.source.read(_LONGEST_HEADER))
    line, newline, _ = head.partition(b"\n")
    problem = None
    if b"\0" in line:
        problem = "it has NUL bytes; if the file is UTF-16, convert it to UTF-8"
    elif b"\r" in line.removesuffix(b"\r"):
        problem = (
            "its lines end in carriage returns alone; make them end in newlines "
            "(tr '\\r' '\\n' does it)"
        )
    elif not newline and len(head) == _LONGEST_HEADER:
        problem = f"it has no newline in {_LONGEST_HEADER:,} bytes; begin the file with a short one"
    if problem:
        raise DataError(
            f"the first line of '{asked.path}' of stream {asked.definition.name} must be a line of "
            f"UTF-8 text, but {problem}"
        )
    return line.removesuffix(b"\r").decode("utf-8", "replace"), begin + len(line) + len(newline)


def advance(source: Any, at: int, rows: int, chunk: int = _CHUNK) -> tuple[int, int]:
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


def count_lines(source: Any, first: int, last: int) -> int:
    """Return how many lines lie between two places of a file."""
    count, ending = 0, _NEWLINE
    source.seek(first)
    while first < last:
        data = np.frombuffer(source.read_buffer(min(last - first, _CHUNK)), np.uint8)
        if not len(data):
            break
        count += int(np.count_nonzero(data == _NEWLINE))
        first, ending = first + len(data), int(data[-1])
    return count + (ending != _NEWLINE)


def place_in(path: str, kind: str, first: int) -> Callable[[int], str]:
    """Return what tells where the rows of a slice that begins at ``first`` of a file stand.

    That is a file and a line, or a row, for who has to correct it.  Lines are counted only when
    somebody asks.
    """

    def told(position: int) -> str:
        if kind not in LINES:
            return f"file {path}, row {first + position + 1}"
        before = int(kind != "json")
        if first:
            with open_input(path) as source:
                before = count_lines(source, 0, first)
        return f"file {path}, line {before + position + 1}"

    return told


@dataclass(frozen=True)
class Block:
    """Some whole lines; ``first`` is the position of the first one in its slice.

    ``whole`` is 0, or the length of a line that is too long: then the block has the beginning of
    that line alone.
    """

    data: pa.Buffer
    first: int
    whole: int = 0

    @cached_property
    def data_bytes(self) -> Bytes:
        """The bytes of all lines."""
        return np.frombuffer(self.data, np.uint8)

    @cached_property
    def count(self) -> int:
        """The number of lines, blank ones too."""
        if not len(self.data_bytes):
            return 0
        return self.holds(_NEWLINE) + int(self.data_bytes[-1] != _NEWLINE)

    def holds(self, byte: int) -> int:
        """Return how many bytes of a kind there are."""
        return sum(int(np.count_nonzero(part == byte)) for _, part in pieces(self.data_bytes))

    @cached_property
    def offsets(self) -> I64:
        """Where each line starts, and where the last one ends."""
        ends = np.flatnonzero(self.data_bytes == _NEWLINE)
        offsets = np.full(self.count + 1, len(self.data_bytes), np.int64)
        offsets[0] = 0
        np.add(ends, 1, out=offsets[1 : len(ends) + 1])
        return offsets

    @cached_property
    def longest(self) -> int:
        """The length of the longest line."""
        return int(np.diff(self.offsets).max(initial=0))

    @cached_property
    def first_visible(self) -> I64:
        """Where the first byte of each line is that is no blank; of a blank line, its end."""
        at = self.offsets[:-1].copy()
        end = self.offsets[1:]
        moving = np.flatnonzero(_IS_BLANK[self.data_bytes[at]])
        while len(moving):
            at[moving] += 1
            moving = moving[at[moving] < end[moving]]
            moving = moving[_IS_BLANK[self.data_bytes[at[moving]]]]
        return at

    @cached_property
    def last_visible(self) -> I64:
        """Where the last byte of each line is that is no blank; of a blank line, before it."""
        at = self.offsets[1:] - 1
        begin = self.offsets[:-1]
        moving = np.flatnonzero(_IS_BLANK[self.data_bytes[at]])
        while len(moving):
            at[moving] -= 1
            moving = moving[at[moving] >= begin[moving]]
            moving = moving[_IS_BLANK[self.data_bytes[at[moving]]]]
        return at

    @cached_property
    def blank(self) -> Mask:
        """Which lines hold nothing but spaces."""
        return np.asarray(self.first_visible == self.offsets[1:])

    @cached_property
    def lines(self) -> pa.Array:
        """The lines with their ends, as binary values."""
        return pa.Array.from_buffers(
            pa.large_binary(), self.count, [None, pa.py_buffer(self.offsets), self.data]
        )

    def line_of(self, at: I64) -> I64:
        """Return the places of the lines that hold some bytes."""
        return np.searchsorted(self.offsets, at, side="right") - 1

    def positions(self, places: I64) -> I64:
        """Return the positions in the slice of lines given by their places in the block."""
        return places + self.first

    def text(self, places: I64) -> list[str]:
        """Return the text of some lines without their ends, for who looks into rejected ones."""
        found = []
        for place in places.tolist():
            begin, end = int(self.offsets[place]), int(self.offsets[place + 1])
            line = self.data.slice(begin, min(end - begin, RAW_BYTES + 1)).to_pybytes()
            length = self.whole or end - begin
            found.append(raw_text(line.rstrip(b"\r\n") if length <= len(line) else line, length))
        return found

    def line(self, place: int) -> bytes:
        """Return one line with its end."""
        begin, end = int(self.offsets[place]), int(self.offsets[place + 1])
        line: bytes = self.data.slice(begin, end - begin).to_pybytes()
        return line

    def part(self, first: int, last: int) -> Block:
        """Return lines ``[first, last)`` of the block as a block."""
        begin, end = int(self.offsets[first]), int(self.offsets[last])
        return Block(self.data.slice(begin, end - begin), self.first + first)

    def only(self, places: I64) -> Block:
        """Return some lines as a block of their own, whose places are counted anew."""
        if len(places) == self.count:
            return self
        taken = self.lines.take(pa.array(places, pa.int64()))
        return Block(taken.buffers()[2] or pa.py_buffer(b""), 0)


@dataclass(frozen=True)
class Rows:
    """Rows read from a block: columns, their places, and what is wrong with lines at others."""

    arrays: Mapping[int, pa.Array]
    places: I64
    broken: Mapping[int, str] = field(default_factory=dict)

    def moved(self, places: I64) -> Rows:
        """Return the rows with places among ``places`` instead."""
        broken = {int(places[at]): reason for at, reason in self.broken.items()}
        return Rows(self.arrays, places[self.places], broken)

    def kept(self, mask: Mask) -> Rows:
        """Return the rows that a mask chooses."""
        chosen = pa.array(mask)
        arrays = {at: array.filter(chosen) for at, array in self.arrays.items()}
        return Rows(arrays, self.places[mask], self.broken)

    def merged(self, other: Rows) -> Rows:
        """Return these and other rows in the order of their places."""
        broken = {**self.broken, **other.broken}
        if not len(other.places):
            return Rows(self.arrays, self.places, broken)
        places = np.concatenate([self.places, other.places])
        order = np.argsort(places, kind="stable")
        arrays = {
            at: pa.concat_arrays([array, other.arrays[at]]).take(pa.array(order))
            for at, array in self.arrays.items()
        }
        return Rows(arrays, places[order], broken)

    def slice(self, asked: Asked, block: Block) -> Slice:
        """Return the rows of a block as a slice; its broken lines are rejected."""
        rejected = no_rejected()
        if self.broken:
            lost = np.array(list(self.broken), np.int64)
            reasons = list(self.broken.values())
            rejected = rejected_rows(block.positions(lost), reasons, block.text(lost))
        return make_slice(
            asked,
            self.arrays,
            block.positions(self.places),
            rejected,
            lambda at: block.text(self.places[at]),
        )


def pieces(data: Bytes, more: int = 0) -> Iterator[tuple[int, Bytes]]:
    """Cut bytes into pieces that stay in a processor's cache; yield where each starts, and it.

    ``more`` bytes of the next piece are at the end of each.
    """
    for first in range(0, len(data), _PIECE):
        yield first, data[first : first + _PIECE + more]


def blocks(source: Any, first: int, last: int) -> Iterator[Block]:
    """Cut the bytes ``[first, last)`` of a file into blocks of whole lines."""
    position = 0
    width = min(BLOCK_BYTES, LONGEST_LINE)
    while first < last:
        source.seek(first)
        data = source.read_buffer(min(width, last - first))
        if len(data) == 0:
            return
        taken, block = len(data), Block(data, position)
        if first + len(data) < last:
            taken = _last_newline(data) + 1
            if taken == 0 and width < LONGEST_LINE:
                width = min(2 * width, LONGEST_LINE)
                continue
            block = Block(data.slice(0, taken), position)
            if taken == 0:
                taken = min(advance(source, first, 1)[0], last) - first
                block = Block(data.slice(0, min(len(data), RAW_BYTES)), position, taken)
        yield block
        position += block.count
        first += taken
        width = min(BLOCK_BYTES, LONGEST_LINE)


def is_clean(block: Block) -> bool:
    """Whether no line of a block is unreadable."""
    return (
        not block.whole and is_utf8(block.data) and (not block.count or block.data_bytes.min() > 0)
    )


def unreadable(block: Block) -> dict[int, str]:
    """Return the lines that no parser may see, by their places, with what is wrong with them."""
    if block.whole:
        return {0: f"a line must have at most {LONGEST_LINE:,} bytes, got {block.whole:,}"}
    if is_clean(block):
        return {}
    found = {}
    if not is_utf8(block.data):
        found = dict.fromkeys(_not_utf8(block, 0, block.count), "a line must be UTF-8 text")
    empty = np.unique(block.line_of(np.flatnonzero(block.data_bytes == 0)))
    found |= dict.fromkeys(empty.tolist(), "a line must not hold NUL bytes; is it UTF-16?")
    return found


def is_utf8(data: pa.Buffer) -> bool:
    """Whether bytes are UTF-8 text."""
    ends = pa.py_buffer(np.array([0, len(data)], np.int64))
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, ends, data]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _not_utf8(block: Block, first: int, last: int) -> Iterator[int]:
    """Yield the lines among ``[first, last)`` that are not UTF-8, found by halving."""
    begin, end = int(block.offsets[first]), int(block.offsets[last])
    if is_utf8(block.data.slice(begin, end - begin)):
        return
    if last - first == 1:
        yield first
        return
    middle = (first + last) // 2
    yield from _not_utf8(block, first, middle)
    yield from _not_utf8(block, middle, last)


def _last_newline(data: pa.Buffer) -> int:
    """Return where the last newline of a buffer is, -1 if there is none."""
    view = np.frombuffer(data, np.uint8)
    for width in (1 << 12, len(view)):
        found = np.flatnonzero(view[-width:] == _NEWLINE)
        if len(found):
            return int(found[-1]) + max(0, len(view) - width)
    return -1
