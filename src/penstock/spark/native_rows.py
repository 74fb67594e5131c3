"""Rows that Spark has parsed, in their order of arrival, piece by piece.

A task has all native rows of its stream before it can say which of them came first.  They stay in
the batches in which Spark brought them, those beyond some memory in temporary files
(`penstock.physical.overflow`), and are picked out of them in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import I64, Mask, one_array, to_mask
from penstock.sources.readers.base import ARRIVAL, arrival_order

PIECE_ROWS = 1 << 16
"""Most rows of a piece that had to be put in order; others are as long as Spark's batches."""


COLUMNS = (*ARRIVAL, "partition", "ends")
"""The descriptor columns that say something of native rows."""


@dataclass(frozen=True)
class Piece:
    """Some rows of a source partition: its name, how many rows of it came before, and the rows."""

    partition: str
    first: int
    rows: pa.Table


def pieces(rows: pa.Table) -> Iterator[Piece]:
    """Yield native rows of a stream: partition by partition, each in order of arrival."""
    batches = rows.to_batches()
    found: dict[str, list[tuple[int, I64]]] = {}
    for number, batch in enumerate(batches):
        for name, index in _partitions(batch):
            found.setdefault(name, []).append((number, index))
    for name in sorted(found):
        first = 0
        for part in _in_order(batches, found[name]):
            yield Piece(name, first, part)
            first += part.num_rows


def _partitions(batch: pa.RecordBatch) -> Iterator[tuple[str, I64]]:
    """Yield the source partitions of which a batch has rows, and the places of these."""
    names = batch.column("partition").fill_null("").dictionary_encode()
    number = np.asarray(names.indices)
    if len(names.dictionary) == 1:
        yield names.dictionary[0].as_py(), np.arange(batch.num_rows)
        return
    order = np.argsort(number, kind="stable")
    edges = np.searchsorted(number[order], np.arange(len(names.dictionary) + 1))
    for at, name in enumerate(names.dictionary.to_pylist()):
        yield name, order[edges[at] : edges[at + 1]]


def _in_order(batches: list[pa.RecordBatch], places: list[tuple[int, I64]]) -> Iterator[pa.Table]:
    """Yield the rows at some places of batches, in order of arrival."""
    keys = [_picked(batches[number].select(list(ARRIVAL)), index) for number, index in places]
    if _is_sorted(pa.concat_tables(keys)):
        yield from (_picked(batches[number], index) for number, index in places)
        return
    order = arrival_order(pa.concat_tables(keys))
    edges = np.cumsum([0, *(len(index) for _, index in places)])
    for begin in range(0, len(order), PIECE_ROWS):
        wanted = order[begin : begin + PIECE_ROWS]
        part = np.searchsorted(edges, wanted, side="right") - 1
        at = np.empty(len(wanted), np.int64)
        some: list[pa.Table] = []
        count = 0
        for this in np.unique(part).tolist():
            mine = np.flatnonzero(part == this)
            number, index = places[this]
            at[mine] = np.arange(count, count + len(mine))
            count += len(mine)
            some.append(_picked(batches[number], index[wanted[mine] - edges[this]]))
        yield pa.concat_tables(some).combine_chunks().take(pa.array(at))


def _picked(batch: pa.RecordBatch, index: I64) -> pa.Table:
    """Return some rows of a batch; those that are neighbours are not copied."""
    if index[-1] - index[0] + 1 == len(index) and (np.diff(index) == 1).all():
        batch = batch.slice(int(index[0]), len(index))
    else:
        batch = batch.take(pa.array(index))
    return pa.Table.from_batches([batch])


def _is_sorted(keys: pa.Table) -> bool:
    """Whether `arrival_order` would leave rows as they are; False where that is not clear."""
    rows = keys.num_rows
    sound: Mask = np.ones(max(rows - 1, 0), bool)
    for name in reversed(ARRIVAL):
        column = keys.column(name)
        if column.null_count == rows:
            continue
        if column.null_count:
            return False
        before, after = column.slice(0, rows - 1), column.slice(1)
        same = to_mask(one_array(pc.equal(before, after)))
        sound = to_mask(one_array(pc.less(before, after))) | (same & sound)
    return bool(sound.all())
