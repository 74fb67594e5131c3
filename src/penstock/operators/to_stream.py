"""Relation to stream: ISTREAM, DSTREAM, RSTREAM (semantics, section 4).

* ISTREAM and DSTREAM: births and deaths of equal values at one instant cancel
  (`kernels.changes`); what remains of the births or of the deaths is the stream.  ISTREAM keeps
  only the hashes of live rows, DSTREAM their values; rows that never die are not kept, and none
  where negative tuples bring them back when they die.
* RSTREAM with pulses: the snapshot at each pulse.  The pulses of a row are an arithmetic
  progression, so only the output is enumerated.  Pulses that two series share count once.
* RSTREAM without pulses: the snapshot at each instant whose net change is not empty.

Every element leaves with start = its time and end = ``INF``.  RSTREAM is expanded in blocks of
``context.block`` rows.  A relation may last for ever, its snapshots at pulses cannot: when the
input is over (``until == INF``), pulses stop with the largest time of the data (``context.now``) or
the last change, whichever is later.  They begin with the first change after ``MIN_TIME``, at which
the rows of tables start.  Changes are net changes, so nothing depends on where intervals or
batches are cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.errors import InternalError
from penstock.kernels.changes import cancel, net_changes, shared_times, without_ghosts
from penstock.kernels.keys import Keys, hash_columns
from penstock.kernels.steps import group_starts
from penstock.model import I64, INF, MIN_TIME, Batch, Ends, Mask, to_numpy
from penstock.operators.base import SlicedOperator
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec
from penstock.runs.lifetimes import Lifetimes

_LANES = (pa.uint64(), pa.uint64())


@dataclass(frozen=True)
class ToStreamSpec(Spec):
    """``kind`` is istream, dstream or rstream; ``pulses`` of an rstream are ``(slide, origin)``.

    ``to_the_end``: no row lasts for ever, so pulses need not stop before the end of time.
    """

    types: Sequence[pa.DataType]
    kind: str
    pulses: tuple[tuple[int, int], ...] = ()
    to_the_end: bool = False

    key = "to stream/1"
    holders = "none"

    def build(self) -> ToStreamOperator:
        return ToStreamOperator(self)

    @property
    def ends_rows(self) -> bool:
        return False


class ToStreamOperator(SlicedOperator):
    """A relation as a stream: its births, its deaths, or its snapshots."""

    reads_deaths = True

    def __init__(self, spec: ToStreamSpec) -> None:
        super().__init__([spec.types])
        if spec.kind not in ("istream", "dstream", "rstream"):
            raise InternalError(f"a stream is an istream, dstream or rstream, got {spec.kind!r}")
        self.kind = spec.kind
        self.pulses = tuple(sorted(set(spec.pulses)))
        self._to_the_end = spec.to_the_end
        self._types = tuple(spec.types)

    def load(self) -> None:
        kept = _LANES if self.kind == "istream" else self._types
        self._lives = Lifetimes(
            self.context.state,
            "live",
            kept,
            self.context.merging,
            keep_forever=self.kind == "rstream",
        )

    def save(self) -> None:
        self._lives.save()

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        born = without_ghosts(slice.rows[0], slice.ends[0])
        if self.kind == "istream":
            yield from self._births(born, slice)
        elif self.kind == "dstream":
            yield from self._deaths(born, slice)
        elif self.pulses:
            yield from self._at_pulses(born, slice)
        else:
            yield from self._at_changes(born, slice)

    def _births(self, born: Batch, slice: Slice) -> Iterator[Batch]:
        brought = slice.deaths(0)
        if brought is not None:
            stay, _ = net_changes(born, brought.died())
            if stay.any():
                yield _elements(born.take(stay), born.start[stay])
            return
        mortal = (born.end < INF) | (born.holder != 0)
        lanes, keys = Batch.empty(_LANES), None
        if mortal.any():
            keys = hash_columns(born.columns, len(born))
            lanes = born.with_columns((pa.array(keys.high), pa.array(keys.low))).take(mortal)
        died = self._lives.advance(lanes, slice.ends[0], slice.until)
        dead = Keys(to_numpy(died.columns[0]), to_numpy(died.columns[1]))
        birth, death = shared_times(born.start, died.end)
        if birth.any():
            stay = np.ones(len(born), bool)
            some, others = np.flatnonzero(birth), np.flatnonzero(death)
            keys = hash_columns(born.columns, len(born)) if keys is None else keys
            stay[some], _ = cancel(
                keys.take(some), born.start[some], dead.take(others), died.end[others]
            )
            born = born.take(stay)
        if len(born):
            yield _elements(born, born.start)

    def _deaths(self, born: Batch, slice: Slice) -> Iterator[Batch]:
        brought = slice.deaths(0)
        if brought is not None:
            died = brought.died()
        else:
            died = self._lives.advance(born, slice.ends[0], slice.until)
        _, stay = net_changes(born, died)
        died = died.take(stay)
        if len(died):
            yield _elements(died, died.end)

    def _at_changes(self, born: Batch, slice: Slice) -> Iterator[Batch]:
        died = self._lives.advance(born, slice.ends[0], slice.until)
        born_stay, died_stay = net_changes(born, died)
        times = np.sort(np.concatenate([born.start[born_stay], died.end[died_stay]]))
        if len(times) == 0:
            return
        times = times[group_starts(times)]
        rows = _all_lives(died, self._lives.live())
        first = np.searchsorted(times, rows.start)
        last = np.searchsorted(times, rows.end)
        for block, place in _expand(rows, first, last, self.context.block):
            yield _elements(block, times[place])

    def _at_pulses(self, born: Batch, slice: Slice) -> Iterator[Batch]:
        since, until = slice.since, slice.until
        died = self._lives.advance(born, slice.ends[0], until)
        numbers = self.context.state.numbers
        if "first" not in numbers or until == INF:
            birth, death = net_changes(born, died)
            change = np.concatenate([born.start[birth], died.end[death]])
            change = change[change > MIN_TIME]
            if len(change):
                numbers.setdefault("first", int(change.min()))
        if "first" not in numbers:
            return
        begin, stop = max(since, numbers["first"]), until  # pulses lie in [begin, stop)
        if until == INF and not self._to_the_end:
            stop = max(self.context.now, int(change.max(initial=MIN_TIME))) + 1
        if all(_pulse(begin, slide, origin) >= stop for slide, origin in self.pulses):
            return
        rows = _all_lives(died, self._lives.live())
        low, high = np.maximum(rows.start, begin), np.minimum(rows.end, stop)
        for series, (slide, origin) in enumerate(self.pulses):
            # the pulses of [low, high) are base + k * slide for k in [first, last)
            base = _pulse(begin, slide, origin)
            if base >= stop:
                continue
            first, last = _steps(low, base, slide), _steps(high, base, slide)
            for block, step in _expand(rows, first, last, self.context.block):
                time = base + step * slide
                new = self._not_before(series, time)
                if new.all():
                    yield _elements(block, time)
                elif new.any():
                    yield _elements(block.take(new), time[new])

    def _not_before(self, series: int, time: I64) -> Mask:
        """Whether a pulse belongs to none of the series before this one."""
        new = np.ones(len(time), bool)
        for slide, origin in self.pulses[:series]:
            new &= time % slide != origin % slide
        return new


def _elements(rows: Batch, time: I64) -> Batch:
    """Return stream elements with the values of ``rows``."""
    ends = np.full(len(rows), INF, np.int64)
    return Batch(rows.columns, time, ends, np.zeros(len(rows), np.int64))


def _all_lives(died: Batch, live: Batch) -> Batch:
    """Return every row alive at some instant of the slice; those that outlive it end at ``INF``."""
    outlive = Batch(
        live.columns, live.start, np.full(len(live), INF, np.int64), np.zeros(len(live), np.int64)
    )
    return Batch.concat([died, outlive])


def _pulse(time: int, slide: int, origin: int) -> int:
    """Return the first pulse at or after a time."""
    return time + (origin - time) % slide


def _steps(time: I64, base: int, slide: int) -> I64:
    """Return the least k >= 0 with ``base + k * slide >= time``; distances may take all 64 bits."""
    far = time > base
    distance = time.astype(np.uint64) - np.int64(base).astype(np.uint64)
    steps = (distance - np.uint64(1)) // np.uint64(slide) + np.uint64(1)
    return np.where(far, steps, np.uint64(0)).astype(np.int64)


def _expand(rows: Batch, first: I64, last: I64, size: int) -> Iterator[tuple[Batch, I64]]:
    """Repeat row i for each place in ``[first[i], last[i])``; yield blocks of ``size`` rows."""
    counts = np.maximum(last - first, 0)
    upto = np.cumsum(counts)
    shift = first - (upto - counts)
    total = int(upto[-1]) if len(upto) else 0
    for begin in range(0, total, size):
        flat = np.arange(begin, min(begin + size, total))
        owner = np.searchsorted(upto, flat, "right")
        yield rows.take(owner), shift[owner] + flat
