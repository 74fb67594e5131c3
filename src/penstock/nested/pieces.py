"""Bytes of rows, put side by side without a loop over rows: what texts and keys are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model import I64, Mask


@dataclass(frozen=True)
class Pieces:
    """Some bytes of each row, one after another; ``sizes`` says how many each row has."""

    data: npt.NDArray[np.uint8]
    sizes: I64

    @staticmethod
    def same(data: bytes, rows: int) -> Pieces:
        """Return the same bytes in each row."""
        return Pieces(
            np.tile(np.frombuffer(data, np.uint8), rows), np.full(rows, len(data), np.int64)
        )

    @staticmethod
    def flags(values: npt.NDArray[np.uint8]) -> Pieces:
        """Return one byte for each row."""
        return Pieces(values, np.ones(len(values), np.int64))

    @staticmethod
    def of(column: pa.Array) -> Pieces:
        """Return the bytes of a column of text or bytes; null has none."""
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            column = column.cast(pa.large_binary())
        column = column.view(pa.large_binary())
        if not len(column):
            return Pieces(np.empty(0, np.uint8), np.empty(0, np.int64))
        buffers = column.buffers()
        places = np.frombuffer(buffers[1], np.int64)[
            column.offset : column.offset + len(column) + 1
        ]
        first, last = int(places[0]), int(places[-1])
        data = np.empty(0, np.uint8)
        if last > first:
            data = np.frombuffer(buffers[2], np.uint8)[first:last]
        found = Pieces(data, np.diff(places))
        return found.only(np.asarray(column.is_valid())) if column.null_count else found

    def only(self, rows: Mask) -> Pieces:
        """Return the pieces with nothing in the other rows."""
        if not self.sizes[~rows].any():
            return self
        return Pieces(self.data[np.repeat(rows, self.sizes)], np.where(rows, self.sizes, 0))

    def grouped(self, places: I64) -> Pieces:
        """Return the pieces of the rows from one place to the next as one."""
        ends = np.concatenate([[0], np.cumsum(self.sizes)])[places]
        return Pieces(self.data, np.diff(ends))

    def text(self) -> pa.Array:
        """Return the pieces as a column of text."""
        places = np.zeros(len(self.sizes) + 1, np.int64)
        np.cumsum(self.sizes, out=places[1:])
        data = pa.py_buffer(np.ascontiguousarray(self.data))
        buffers = [None, pa.py_buffer(places), data]
        return pa.Array.from_buffers(pa.large_string(), len(self.sizes), buffers)

    def binary(self) -> pa.Array:
        """Return the pieces as a column of bytes."""
        return self.text().view(pa.large_binary())


def side_by_side(pieces: Sequence[Pieces]) -> Pieces:
    """Return the pieces of each row one behind the other."""
    if len(pieces) == 1:
        return pieces[0]
    widths = [_width(piece) for piece in pieces]
    if None not in widths:
        matrices = [
            piece.data.reshape(-1, width)
            for piece, width in zip(pieces, widths, strict=True)
            if width
        ]
        whole = np.hstack(matrices) if matrices else np.empty(0, np.uint8)
        return Pieces(whole.reshape(-1), np.full(len(pieces[0].sizes), sum(filter(None, widths))))
    sizes: I64 = np.add.reduce([piece.sizes for piece in pieces])
    starts = np.cumsum(sizes) - sizes
    data = np.empty(int(sizes.sum()), np.uint8)
    for piece in pieces:
        own = np.cumsum(piece.sizes) - piece.sizes
        data[np.repeat(starts - own, piece.sizes) + np.arange(len(piece.data))] = piece.data
        starts = starts + piece.sizes
    return Pieces(data, sizes)


def joined_with(separator: bytes, places: I64, listed: Pieces) -> Pieces:
    """Return the pieces from one place to the next as one, with a separator between them."""
    behind = np.ones(len(listed.sizes), bool)
    behind[places[:-1][places[:-1] < places[1:]]] = False  # the first of each
    before = Pieces.same(separator, len(listed.sizes)).only(behind)
    return side_by_side([before, listed]).grouped(places)


def _width(pieces: Pieces) -> int | None:
    """Return how many bytes each row has, None where they are not alike."""
    sizes = pieces.sizes
    width = int(sizes[0]) if len(sizes) else 0
    return width if not len(sizes) or (sizes == width).all() else None
