"""Closed parts of streams: what punctuations ``ON (columns)`` promise, and which rows break it.

The law is section *When is an answer final* of docs/semantics.md.

* A row for which the condition holds closes the part of its values in its own source partition:
  rows of that part which come after it in the partition are late (`Closings`).
* The part is closed in the stream when every partition that has neither ended nor is idle has
  closed it, and all that are declared were heard (`newly_closed`).  Partitions that appear or wake
  later find it closed.

What is closed is kept as runs of hashed keys in the checkpoint's segments; the progress of the
stream lists them (`ClosedRun`).  A batch writes what it closes and, now and then, merges small runs
(`settled`).  What bounds them is the number of values, or the time that ``FOR`` gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.expr.arrow import evaluate, evaluate_mask
from penstock.kernels.closed_keys import ClosedKeys, closed_before
from penstock.kernels.counts import row_keys
from penstock.kernels.keys import Keys
from penstock.model import I64, INF, MIN_TIME, Mask, one_array, to_numpy
from penstock.physical.progress import ClosedRun, Progress
from penstock.runs.state import Storage
from penstock.timing import Punctuation

_FAN_IN = 8
"""So many runs of about one size are merged."""


class Closings:
    """Judges rows of one stream by the punctuations on columns before them, for one batch."""

    def __init__(self, punctuation: Punctuation, progress: Progress, storage: Storage) -> None:
        self._punctuation = punctuation
        self._known: dict[str | None, list[ClosedKeys]] = {}
        for run in progress.closed:
            self._known.setdefault(run.partition, []).append(read_run(run, storage))
        self._fresh: dict[str, list[ClosedKeys]] = {}
        self._storage = storage

    def judge(self, partition: str, columns: Sequence[pa.Array], time: I64) -> Mask | None:
        """Say which rows of a partition, in order of arrival, are of closed parts.

        None: none of them.
        """
        until = self._promised(columns, time)
        known = [*self._known.get(None, ()), *self._known.get(partition, ())]
        fresh = self._fresh.get(partition, [])
        if until is None and not known and not fresh:
            return None
        keys = row_keys([columns[c] for c in self._punctuation.on], len(time))
        closed = _longest((*known, *fresh), keys)
        if until is not None:
            says = until > closed
            closed = np.maximum(closed, closed_before(keys, until))
            if says.any():
                at = np.flatnonzero(says)
                self._add(partition, ClosedKeys.of(keys.take(at), until[at]))
        return time < closed

    def write(self) -> dict[str, ClosedRun]:
        """Write what was closed in this batch; return the run of each partition."""
        found = {}
        for partition, parts in self._fresh.items():
            closed = ClosedKeys.concat(parts)
            found[partition] = write_run(partition, closed, self._storage)
        return found

    def _add(self, partition: str, closed: ClosedKeys) -> None:
        parts = self._fresh.setdefault(partition, [])
        parts.append(closed)
        if len(parts) > _FAN_IN:
            parts[:] = [ClosedKeys.concat(parts)]

    def _promised(self, columns: Sequence[pa.Array], time: I64) -> I64 | None:
        """Return until when each row closes its part, ``MIN_TIME``: not; None: none does."""
        says = evaluate_mask(self._punctuation.condition, columns, len(time))
        said = punctuated(self._punctuation, columns, time)
        says = says & (said > MIN_TIME)
        if not says.any():
            return None
        lasts = self._punctuation.lasts
        if lasts is None:
            until = np.full(len(time), INF, np.int64)
        else:
            until = np.where(said < INF - lasts, said + min(lasts, INF - 1), INF)
        return np.where(says, until, MIN_TIME)


def punctuated(punctuation: Punctuation, columns: Sequence[pa.Array], time: I64) -> I64:
    """Return the time that a punctuation gives each row; ``MIN_TIME`` where it is null."""
    if punctuation.time is None:
        return time
    told = one_array(evaluate(punctuation.time, columns, len(time)))
    said: I64 = to_numpy(told.cast(pa.int64()).fill_null(MIN_TIME))
    return np.minimum(said, INF - 1)


def read_run(run: ClosedRun, storage: Storage) -> ClosedKeys:
    """Return the keys of a run."""
    return ClosedKeys.from_table(storage.read(dict(run.place)))


def write_run(partition: str | None, closed: ClosedKeys, storage: Storage) -> ClosedRun:
    """Write keys as a run."""
    place = storage.write(closed.to_table())
    return ClosedRun(partition, place, len(closed), int(closed.until.max()))


def _longest(parts: Iterable[ClosedKeys], keys: Keys) -> I64:
    """Return until when each key is closed in any of some runs."""
    found = np.full(len(keys), MIN_TIME, np.int64)
    for part in parts:
        found = np.maximum(found, part.closed_until(keys))
    return found


def newly_closed(before: Progress, after: Progress, storage: Storage) -> ClosedKeys | None:
    """Return the parts that a batch has closed in the whole stream; None: there are none.

    Only what was said in the batch is looked at, unless a partition no longer counts, or none did.
    """
    if not after.closed:
        return None
    busy, was = after.busy, before.busy
    if not busy or after.absent:
        return None
    said: dict[str | None, list[ClosedRun]] = {}
    for run in after.closed:
        said.setdefault(run.partition, []).append(run)
    if was and was <= busy and not before.absent:
        old = {id_of(run) for run in before.closed}
        tried = [run for run in after.closed if run.partition in busy and id_of(run) not in old]
    else:
        tried = said.get(min(busy), [])
    if not tried:
        return None
    found = ClosedKeys.concat([read_run(run, storage) for run in tried])
    until = np.full(len(found), INF, np.int64)
    for partition in busy:
        runs = [read_run(run, storage) for run in said.get(partition, ())]
        until = np.minimum(until, _longest(runs, found.keys))
    known = _longest((read_run(run, storage) for run in said.get(None, ())), found.keys)
    closed = ClosedKeys(found.keys, until).take(until > known)
    return closed if len(closed) else None


def settled(before: Progress, after: Progress, storage: Storage) -> Progress:
    """Return the progress after a batch with its runs in order: who counts as closed, merged."""
    if not after.closed:
        return after
    new = newly_closed(before, after, storage)
    runs = [run for run in after.closed if run.until > after.heartbeat]
    if new is not None and len(after.busy) == 1:  # what the only partition says, the stream says
        runs = [
            replace(run, partition=None) if run.partition in after.busy else run for run in runs
        ]
    elif new is not None:
        runs.append(write_run(None, new, storage))
    return replace(after, closed=tuple(_merged(runs, after.heartbeat, storage)))


def settle_all(
    before: Mapping[str, Progress], after: Mapping[str, Progress], storage: Storage
) -> dict[str, Progress]:
    """Return the progress of all streams with the runs of what is closed in order."""
    return {
        name: settled(before.get(name, Progress()), found, storage) for name, found in after.items()
    }


def _merged(runs: Sequence[ClosedRun], floor: int, storage: Storage) -> list[ClosedRun]:
    """Merge runs of about one size; promises that are over by ``floor`` are forgotten."""
    families: dict[tuple[str | None, int], list[ClosedRun]] = {}
    for run in runs:
        families.setdefault((run.partition, run.rows.bit_length() // 3), []).append(run)
    found = []
    for (partition, _), family in families.items():
        if len(family) < _FAN_IN:
            found += family
            continue
        closed = ClosedKeys.concat([read_run(run, storage) for run in family])
        closed = closed.take(closed.until > floor)
        if len(closed):
            found.append(write_run(partition, closed, storage))
    return found


def id_of(run: ClosedRun) -> tuple[tuple[str, object], ...]:
    """Return what names the run of one place."""
    return tuple(sorted(run.place.items()))
