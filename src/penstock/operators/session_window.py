"""Session windows: the elements of a group that are less than G apart, until G after the last.

The sorted times of a group are cut where the gap is G or more.  All rows of a session end
together, at ``last + G``, so a session has one holder; its rows are determined when the end is
known at once: another session of the group follows in the slice, or no element to come can be
less than G later (``last + G <= until``).

* ``sessions`` maps the groups with an open session to its last time and holder, and to its first
  time if rows show it (``window_start``);
* ``alarms`` holds, for every slice that moved a session on, the time at which it ends if nothing
  else comes.  An alarm that rings below the heartbeat is true if the session's last time is still
  the one it was set for; otherwise the session went on, and has a later alarm.

So the cost of a slice follows its rows and the sessions that end in it, not the sessions that are
open. A told end must be below ``until``: a session with ``last + G == until`` is over, but told
in the next slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.errors import InternalError
from penstock.kernels.keys import Keys, codes, hash_columns
from penstock.kernels.order import group_order, key_ranges
from penstock.model import I64, INF, Batch, Ends, Mask, to_numpy
from penstock.operators.base import SlicedOperator
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec
from penstock.runs.keyed import KeyedState
from penstock.runs.lifetimes import Lifetimes
from penstock.windows import WindowSpec, plus

_ALARM = (pa.uint64(), pa.uint64(), pa.int64())
"""The lanes of the group's key, and the session's holder."""


@dataclass(frozen=True)
class _Open:
    """The open session of each of some groups, as the state knows it."""

    found: Mask
    last: I64
    holder: I64
    first: I64


@dataclass(frozen=True)
class _Groups:
    """The groups of a slice: what the state shall know of each; removed where not ``alive``.

    ``told`` are the ends of their older sessions, ``alarms`` those of the sessions that stay open.
    """

    keys: Keys
    last: I64
    holder: I64
    first: I64
    alive: Mask
    told: Ends
    alarms: Batch


@dataclass(frozen=True)
class SessionWindowSpec(Spec):
    """Give elements their validity in a ``window`` by sessions.

    Its bounds, if there are any, are ``window_start`` alone: the end is not known yet.
    """

    types: Sequence[pa.DataType]
    window: WindowSpec

    key = "session window/1"

    def build(self) -> SessionWindowOperator:
        return SessionWindowOperator(self)


class SessionWindowOperator(SlicedOperator):
    """``[PARTITION BY ..] SESSION G [START x]``."""

    def __init__(self, given: SessionWindowSpec) -> None:
        super().__init__([given.types])
        spec = given.window
        if spec.session is None or spec.session < 1:
            raise InternalError(f"a session window needs a positive gap, got {spec}")
        self.spec = spec
        self._gap = spec.session

    def load(self) -> None:
        state, merging = self.context.state, self.context.merging
        kept = [pa.int64()] * (2 if self.spec.bounds is None else 3)
        self._sessions = KeyedState(state, "sessions", kept, merging)
        self._alarms = Lifetimes(state, "alarms", _ALARM, merging, keep_forever=False)

    def save(self) -> None:
        self._sessions.save()
        self._alarms.save()

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        batch, until = slice.rows[0], slice.until
        if self.spec.origin is not None:
            batch = batch.take(batch.start >= self.spec.origin)
        stamped, groups = self._advance(batch, until)
        if len(stamped):
            yield stamped
        told = Ends.concat([groups.told, self._ring(groups, until)])
        if len(told):
            yield told

    def _advance(self, batch: Batch, until: int) -> tuple[Batch, _Groups]:
        """Cut the rows into sessions; return them stamped, and what becomes of their groups."""
        keys = hash_columns([batch.columns[i] for i in self.spec.partition_by], len(batch))
        by_time = None
        if (batch.start[1:] < batch.start[:-1]).any():
            by_time = np.argsort(batch.start, kind="stable")
        order, first = group_order(keys, by_time)
        groups = keys.take(order[first])
        before = self._look_up(groups)
        time = batch.start[order]

        # where sessions begin; a group's first row may continue the session that is open
        cut = np.ones(len(time), bool)
        cut[1:] = plus(time[:-1], self._gap) <= time[1:]
        continues = before.found & (plus(before.last, self._gap) > time[first])
        cut[first] = True
        begin = np.flatnonzero(cut)
        last = time[np.append(begin, len(time))[1:] - 1]
        end = plus(last, self._gap)
        began = time[begin]
        first_session = np.searchsorted(begin, first)
        last_session = np.append(first_session, len(begin))[1:] - 1
        began[first_session[continues]] = before.first[continues]

        # sessions that stay open: the last of a group whose end is not known
        known = np.ones(len(begin), bool)
        known[last_session] = end[last_session] <= until
        holder = np.zeros(len(begin), np.int64)
        holder[first_session[continues]] = before.holder[continues]
        fresh = ~known & (holder == 0)
        holder[fresh] = self.context.new_holders(int(fresh.sum()))

        told = self._told(before, continues, first_session, end, until)
        # what the state must know: open sessions, and old holders that cannot be told yet
        alive = ~known[last_session] | ((holder[last_session] != 0) & (end[last_session] >= until))
        some = np.flatnonzero(alive)
        mine = last_session[some]
        lanes = (groups.high[some], groups.low[some], holder[mine])
        alarms = Batch.of([pa.array(a) for a in lanes], last[mine], end[mine])

        session = np.empty(len(order), np.int64)
        session[order] = np.cumsum(cut) - 1
        row_end = np.where(known, end, INF)[session]
        row_holder = np.where(known, 0, holder)[session]
        columns = batch.columns
        if self.spec.bounds is not None:
            columns = (*columns, pa.array(began[session]).view(self.spec.bounds.type))
        stamped = Batch(columns, batch.start, row_end, row_holder)
        touched = np.flatnonzero(alive | before.found)
        mine = last_session[touched]
        return stamped, _Groups(
            groups.take(touched),
            last[mine],
            holder[mine],
            began[mine],
            alive[touched],
            told,
            alarms,
        )

    def _told(
        self, before: _Open, continues: Mask, first_session: I64, end: I64, until: int
    ) -> Ends:
        """Tell old sessions: those that were not continued, and those that went on and are over."""
        old_end = np.where(continues, end[first_session], plus(before.last, self._gap))
        tell = np.flatnonzero(before.found & (old_end < until))
        return Ends.of(before.holder[tell], old_end[tell])

    def _look_up(self, groups: Keys) -> _Open:
        found, kept = self._sessions.get(groups)
        last, holder, *others = (to_numpy(column.fill_null(0)) for column in kept)
        return _Open(found, last, holder, others[0] if others else last)

    def _ring(self, groups: _Groups, until: int) -> Ends:
        """Set new alarms, tell the sessions whose alarm rings and is still true; write the state.

        Groups with rows in the slice went on or were told already: their old alarms are not true.
        """
        rung = self._alarms.advance(groups.alarms, Ends(), until)
        keys = Keys(to_numpy(rung.columns[0]), to_numpy(rung.columns[1]))
        first, last = key_ranges(groups.keys.high, groups.keys.low, keys)
        rest = np.flatnonzero(first == last)
        rung, keys = rung.take(rest), keys.take(rest)
        code, one = codes(keys)
        now = self._look_up(keys.take(one))
        holder = to_numpy(rung.columns[2])
        true = now.found[code] & (now.last[code] == rung.start) & (now.holder[code] == holder)
        over = np.flatnonzero(true)
        gone = np.zeros(len(over), np.int64)
        known = [groups.last, groups.holder]
        if self.spec.bounds is not None:
            known.append(groups.first)
        self._sessions.put(
            Keys.concat([groups.keys, keys.take(over)]),
            [pa.array(np.concatenate([column, gone])) for column in known],
            np.concatenate([groups.alive, gone.astype(bool)]),
        )
        return Ends.of(holder[over], rung.end[over])
