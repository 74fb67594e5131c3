"""The texts of groups in order, with how often each is there: for STRING_AGG.

A result holds every text of its group, so groups that change are read whole; groups that do not
cost nothing.  Texts are sorted once for a slice, and written out step by step from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.text_sizes import bytes_of, check_sizes
from penstock.kernels.keys import Keys
from penstock.kernels.order import key_ranges
from penstock.kernels.steps import group_starts, ranges
from penstock.kernels.sweep import ranks
from penstock.kernels.work import Work
from penstock.model import I64, one_array
from penstock.runs.copies import Copied
from penstock.runs.extremes import Counts, table_of
from penstock.runs.merging import Merging
from penstock.runs.state import State

_MOST = 1 << 20
_TEXT = pa.string()


class Listed:
    """The texts of one argument, or values of another ``kind``."""

    def __init__(
        self, state: State, name: str, merging: Merging, kind: pa.DataType = _TEXT
    ) -> None:
        self._spine = Counts(state, name, False, merging)
        self._kind = kind

    def save(self, until: int) -> None:
        """Merge pieces as the strategy says, and store them."""
        self._spine.merge(until)
        self._spine.save()

    def change(self, keys: Keys, texts: pa.Array, count: I64) -> None:
        """Add copies of texts, or take them away."""
        if len(keys):
            self._spine.put(table_of(keys, texts, count=count))

    def of(self, keys: Keys) -> tuple[I64, pa.Array, I64]:
        """Return the texts of some groups: the group, text and net copies of each entry.

        A text may have several entries, which add up.
        """
        groups, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        texts = [pa.array([], self._kind)]
        for piece in self._spine.pieces:
            spans = key_ranges(piece.numbers("high"), piece.numbers("low"), keys)
            group, at = ranges(*spans)
            groups.append(group)
            counts.append(piece.numbers("count")[at])
            texts.append(one_array(piece.table.column("value")).take(pa.array(at)))
        return np.concatenate(groups), pa.concat_arrays(texts), np.concatenate(counts)


@dataclass(frozen=True)
class Texts:
    """Texts in order, each there with some copies from the step ``first`` to before ``last``."""

    text: pa.Array
    count: I64
    first: I64
    last: I64
    steps: int

    def joined(self, delimiter: str) -> pa.Array:
        """Return the texts of each step with a delimiter between them."""
        sizes = np.zeros(self.steps + 1, np.int64)
        each = self.count * (bytes_of(self.text, len(self.text)) + len(delimiter.encode()))
        np.add.at(sizes, self.first, each)
        np.add.at(sizes, self.last, -each)
        check_sizes(np.cumsum(sizes)[:-1], "string_agg(x, delimiter)")
        chunks = self._within(0, self.steps, delimiter)
        return pa.concat_arrays([pa.array([], pa.string()), *chunks])

    def _within(self, low: int, high: int, delimiter: str) -> Iterator[pa.Array]:
        """Yield the texts of steps, so many at once as fit into the memory granted."""
        first, last = np.maximum(self.first, low), np.minimum(self.last, high)
        size = int((np.maximum(last - first, 0) * self.count).sum())
        if size > _MOST and high - low > 1:
            middle = (low + high) // 2
            yield from self._within(low, middle, delimiter)
            yield from self._within(middle, high, delimiter)
            return
        owner, step = ranges(first, last)
        copies = self.count[owner]
        owner, step = np.repeat(owner, copies), np.repeat(step, copies)
        order = np.argsort(step, kind="stable")  # texts of one step stay in their order
        offsets = np.zeros(high - low + 1, np.int32)
        np.cumsum(np.bincount(step - low, minlength=high - low), out=offsets[1:])
        lists = pa.ListArray.from_arrays(pa.array(offsets), self.text.take(pa.array(owner[order])))
        yield pc.binary_join(lists, delimiter)


def list_texts(store: Listed, work: Work, copied: Copied, texts: pa.Array, once: bool) -> Texts:
    """Return the texts of all groups at every step; ``texts`` are those of births and deaths."""
    own, steps = texts.take(pa.array(copied.event)), copied.steps
    before, after = copied.copies[steps.begin], copied.copies[steps.finish - 1]
    keys = work.keys.take(copied.group)
    store.change(keys, own, -before)
    group, others, count = store.of(work.keys)
    others, group, count = netted(others, group, count)
    store.change(keys, own, after)
    there = np.flatnonzero(copied.copies)
    text = pa.concat_arrays([own.take(pa.array(steps.code[there])), others])
    count = np.concatenate((copied.copies[there], count))
    first = np.concatenate((copied.step[there], work.steps.begin[group]))
    last = np.concatenate((copied.until[there], work.steps.finish[group]))
    order = np.argsort(ranks(text, False), kind="stable")
    count = np.minimum(count, 1) if once else count
    sorted_ = (text.take(pa.array(order)), count[order], first[order], last[order])
    return Texts(*sorted_, len(work.steps))


def netted(texts: pa.Array, group: I64, count: I64) -> tuple[pa.Array, I64, I64]:
    """Add up the entries of each text of a group, and leave those out of which none is left."""
    rank = ranks(texts, False)
    order = np.lexsort((rank, group))
    starts = group_starts(group[order], rank[order])
    net = np.add.reduceat(count[order], starts) if len(starts) else count
    kept = order[starts][net > 0]
    return texts.take(pa.array(kept)), group[kept], net[net > 0]
