"""Selections: where a condition of several conjuncts is true, each evaluated on the rows left.

Law: the mask is that of the whole condition, and what fails is what would fail if the conjuncts
were read from left to right.  A conjunct that can fail sees exactly the rows of which none before
it is false (a row of which one is unknown cannot pass, but is seen).  So only conjuncts that cannot
fail change places, and none of them with one that can.  `penstock.expr.conjunct_orders` has the
order.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.arrow import cannot_fail, evaluate, evaluate_mask
from penstock.expr.conjunct_orders import REFRESH, Ranking
from penstock.expr.nodes import Column, Expr, columns_of, conjuncts, walk
from penstock.model import I64, Mask, to_mask

_SAMPLE, _SHARE = (1024, 2048), 32
"""Rows of a sample, at least and at most, and which part of all rows it should be."""
_TOGETHER = 8
"""Neighbours in a sample."""
_FEWEST = 16
"""Rows of which a sample is taken at all."""
_TRIALS, _HARDLY_ANY = 3, 16
"""How often, and on how many rows, a conjunct shows what it costs besides them."""
_MOST = 32
"""Conjuncts up to which an order is looked for."""
_PICK, _PICK_LONG = 1e-9, 6e-9
"""About the seconds to pick one value: of fixed width, of another."""


@dataclass(frozen=True)
class Part:
    """A conjunct: what it reads, what it may cost to pick a row out of that, if it can fail."""

    expr: Expr
    columns: tuple[int, ...]
    picking: float
    fails: bool

    @staticmethod
    def of(expr: Expr) -> Part:
        kinds = {e.index: e.type for e in walk(expr) if isinstance(e, Column)}
        fixed = [pa.types.is_primitive(kind) for kind in kinds.values()]
        return Part(
            expr,
            tuple(sorted(columns_of(expr))),
            sum(_PICK if is_fixed else _PICK_LONG for is_fixed in fixed),
            not cannot_fail(expr),
        )


class Selection:
    """Finds the rows of which a condition is true.

    ``numbers`` are those that an earlier one has stored; ``adaptive``: conjuncts are put in order
    by what they cost and drop, otherwise they stay as they are written.
    """

    def __init__(
        self, predicate: Expr, numbers: Mapping[str, int] | None = None, adaptive: bool = True
    ) -> None:
        self._predicate = predicate
        parts = conjuncts(predicate)
        self.several = len(parts) > 1
        if not self.several:
            return
        self.parts = [Part.of(part) for part in parts]
        failing = [at for at, part in enumerate(self.parts) if part.fails]
        self._last_failing = max(failing, default=-1)
        self._adaptive = adaptive and len(parts) <= _MOST
        self._alone = not self._adaptive or bool(failing)
        picking = [part.picking for part in self.parts]
        self.ranking = Ranking(_groups(self.parts), picking, numbers or {})

    def store(self, numbers: dict[str, int]) -> None:
        """Write what was measured as plain numbers."""
        if self.several:
            self.ranking.store(numbers)

    def mask(self, columns: Sequence[pa.Array | None], rows: int) -> Mask:
        """Return where the condition is true; columns that it does not read may be None."""
        if not self.several or not rows:
            return evaluate_mask(self._predicate, columns, rows)
        ranking = self.ranking
        if self._adaptive and ranking.work >= ranking.enough and rows >= _FEWEST:
            self._sample(columns, rows)
        if self._alone or rows >= ranking.many:
            return self._one_by_one(columns, rows)
        ranking.evaluated_at_once(rows)
        return evaluate_mask(self._predicate, columns, rows)

    def _order(self) -> Sequence[int]:
        return self.ranking.order if self._adaptive else range(len(self.parts))

    def _one_by_one(self, columns: Sequence[pa.Array | None], rows: int) -> Mask:
        frame = _Frame(columns, rows)
        truth: pa.Array | None = None  # of the conjuncts so far, on the rows of the frame
        for place, which in enumerate(self._order()):
            part = self.parts[which]
            if truth is not None:
                seen = place <= self._last_failing  # rows that can no longer pass
                left = truth.true_count + (truth.null_count if seen else 0)
                if left == 0:
                    return np.zeros(rows, bool)
                must = part.fails and left < frame.rows
                if must or self.ranking.pays(which, left, frame.rows, frame.has(part.columns)):
                    kept = np.flatnonzero(to_mask(truth.fill_null(True) if seen else truth))
                    frame.keep(kept)
                    truth = truth.take(pa.array(kept)) if seen and truth.null_count else None
            own = self._evaluated(which, frame)
            truth = own if truth is None else pc.and_kleene(truth, own)
            if rows >= _SAMPLE[0]:
                self.ranking.passed(place, truth.true_count / rows)
        assert truth is not None
        return frame.spread(to_mask(truth))

    def _evaluated(self, which: int, frame: _Frame, again: bool = False) -> pa.Array:
        """Evaluate one conjunct on the rows of a frame, and measure, ``again`` if need be."""
        part, ranking = self.parts[which], self.ranking
        if not frame.has(part.columns):
            frame.pick(part.columns)
        found, seconds = _timed(part, frame)
        if again and ranking.is_short(which, seconds):
            seconds = min(seconds, *(_timed(part, frame)[1] for _ in range(_TRIALS - 1)))
        ranking.evaluated(which, frame.rows, seconds)
        return found

    def _sample(self, columns: Sequence[pa.Array | None], rows: int) -> None:
        """Try some rows on all conjuncts that cannot fail, to learn what these drop."""
        began = time.thread_time()
        self.ranking.fade()
        frame = _Frame(columns, rows)
        frame.keep(_some(rows, self.ranking.samples))
        sets = np.zeros(frame.rows, np.int64)
        if self.ranking.samples % REFRESH == 0:
            self._start(columns, rows)
        for which, part in enumerate(self.parts):
            if not part.fails:
                passed = to_mask(self._evaluated(which, frame, True))
                sets |= (~passed).astype(np.int64) << which
        self.ranking.sampled(sets, time.thread_time() - began)

    def _start(self, columns: Sequence[pa.Array | None], rows: int) -> None:
        """Learn what conjuncts cost however few rows they have."""
        frame = _Frame(columns, rows)
        frame.keep(np.arange(min(rows, _HARDLY_ANY)))
        for which, part in enumerate(self.parts):
            if not part.fails:
                frame.pick(part.columns)
                taken = min(_timed(part, frame)[1] for _ in range(_TRIALS))
                self.ranking.started(which, taken)


class _Frame:
    """Some rows of some columns, of which only those are picked that are needed."""

    def __init__(self, columns: Sequence[pa.Array | None], rows: int) -> None:
        self._whole = columns
        self._all = rows
        self._index: I64 | None = None
        self.columns: Sequence[pa.Array | None] = columns
        self.rows = rows

    def keep(self, kept: I64) -> None:
        """Go on with some of its rows."""
        self._index = kept if self._index is None else self._index[kept]
        self.rows = len(kept)
        self.columns = [None] * len(self._whole)

    def has(self, wanted: Sequence[int]) -> bool:
        """Whether some columns are there."""
        return self._index is None or all(self.columns[c] is not None for c in wanted)

    def pick(self, wanted: Sequence[int]) -> None:
        """Pick the rows out of some columns."""
        indices = pa.array(self._index)
        found = list(self.columns)
        for c in wanted:
            whole = self._whole[c]
            if found[c] is None and whole is not None:
                found[c] = whole.take(indices)
        self.columns = found

    def spread(self, mask: Mask) -> Mask:
        """Return a mask of the frame's rows as one of all rows."""
        if self._index is None:
            return mask
        whole = np.zeros(self._all, bool)
        whole[self._index[mask]] = True
        return whole


def _some(rows: int, turn: int) -> I64:
    """Return the places of the rows of a sample: a few together, which are quick to pick."""
    wanted = min(max(rows // _SHARE, _SAMPLE[0]), _SAMPLE[1])
    if rows <= wanted:
        return np.arange(rows)
    step = rows * _TOGETHER // wanted | 1  # odd, from another row each time: data may be regular
    first = np.arange(turn % step, rows - _TOGETHER + 1, step)
    return (first[:, None] + np.arange(_TOGETHER)).ravel()


def _timed(part: Part, frame: _Frame) -> tuple[pa.Array, float]:
    """Return the values of a conjunct, and the seconds of the processor that they took."""
    began = time.thread_time()
    found = evaluate(part.expr, frame.columns, frame.rows)
    return found, time.thread_time() - began


def _groups(parts: Sequence[Part]) -> list[list[int]]:
    """Return which conjuncts may change places: neighbours that cannot fail."""
    groups: list[list[int]] = []
    for at, part in enumerate(parts):
        if groups and not part.fails and not parts[at - 1].fails:
            groups[-1].append(at)
        else:
            groups.append([at])
    return groups
