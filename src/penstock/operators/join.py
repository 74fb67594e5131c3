"""The inner join of two relations that change over time.

Law: a result is the concatenation of a left and a right row with equal keys (null equals nothing)
for which the residual predicate is true, valid while both are [B 5.1].  Without keys the residual
is the whole condition.  The *place* of the condition (`kernels.join_orders`) gives both sides
an order, in which the candidates of a row are found by binary search; where no order helps, every
pair is looked at, block by block.

In a slice the new rows of each side meet the stored rows of the other, then one another; after
that they are stored too.  So every pair is made exactly once, in the slice of its later start,
and with ``old.start < since <= new.start`` the new row's start is the result's.

Holders [C 3.1, 3.3]: what is told in the slice is applied first, and a row with a known end counts
as determined.  Of the two holders of a pair,

* none open: the result is determined; so it is when its end is at or below ``until``, because a
  holder that was not told below ``until`` ends there or later;
* one open, or the same one twice: the result shares it, with the earlier of both ends as its bound;
* two open: the result gets a new holder, the child of both (`penstock.runs.children.Children`).

Told ends are passed on for the rows that share holders with the input.

Variants [B 5.2].  When one input runs ahead of the other, either its rows wait until the other has
caught up (*input*), or they are joined with whatever has arrived and the results wait until they
are final (*output*).  Both give the same rows; the second costs more where a row has many partners,
and less where it has few.  By default (*auto*) the join chooses by how many results its rows had so
far, and by how many rows were still ahead when the last batch ended.  Inside a batch being ahead
says nothing, because one port always comes first.

A side is stored only as long as the other one can still bring rows: once a port has reached the
end of time and nothing of it waits, the rows of the other port pass through without leaving state.
That is how a stream is joined with a static table, whose rows are written as they come, before
the first slice, and are only read from then on (`penstock.runs.table_rows`); those that start later
become new rows in the slice of their start, like any others.  Of two tables the right one is
stored.

A stream row meets the rows of a table that were always valid in one way, whenever that is done.
Where its results may leave before the heartbeat has passed them, the join is made ``at_once``: rows
are joined as they arrive, and no result waits.

One join may serve queries that differ in their windows [E 4.6.1]: `SharedJoinSpec`.  It has the
largest window of each input, and its results carry their lag (`penstock.kernels.lags`), by which
`penstock.operators.route` gives each query its rows.  Windows may change while it runs, because
queries come and go.  A query sees only rows that start at its ``since`` or later, and none of these
had come when it was added.  So rows that are stored with smaller windows are none of its own, and
those that are stored with larger ones only make results that no query has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InternalError
from penstock.expr.arrow import evaluate_mask
from penstock.expr.nodes import Column, Expr, columns_of, shift
from penstock.kernels.closed_keys import ClosedKeys
from penstock.kernels.join_orders import EQUAL, Equal, EqualBand, Place
from penstock.kernels.keys import Keys
from penstock.kernels.lags import Segments, Windows
from penstock.kernels.layouts import layout_of
from penstock.kernels.sorting import order_of_numbers
from penstock.model import (
    I64,
    INF,
    MIN_TIME,
    Batch,
    Closed,
    Ends,
    Heartbeat,
    Mask,
    Message,
    one_array,
    to_numpy,
)
from penstock.operators.base import Columns, SlicedOperator, with_keys
from penstock.operators.inbox import Slice
from penstock.operators.parts import ClosedParts
from penstock.operators.spec import Spec
from penstock.runs.children import Children
from penstock.runs.holders import applied, joint_holders
from penstock.runs.lagged import Pairs, by_segment, probes
from penstock.runs.mappings import release_beyond
from penstock.runs.pending import Pending
from penstock.runs.side import Side
from penstock.runs.spine import Piece
from penstock.runs.table_rows import TableRows

_WORTH_JOINING = 1024
"""A join that chooses by itself lets results wait only if so many rows were ahead."""
_REMEMBERED = 1 << 22
"""After so many rows the counts are halved, so that old rows matter less and less."""
_MANY = 1 << 14
"""Results of a shared join that are worth a batch of their own: fewer are put together."""
_WORTH_ORDERING = 1 << 13
"""New rows of a slice for which the order of a shared join's results is worth its cost."""
_TABLE_RUN = 4
"""How many runs of a table fit into a join's memory: sorting one needs more than its own size."""


@dataclass(frozen=True)
class JoinSpec(Spec):
    """Join two inputs on a place and a residual predicate.

    ``left_keys`` are over the left columns, ``right_keys`` over the right ones: the coordinates
    that the place compares, for `Equal` the keys, in the same number and of the same types.
    ``residual`` is over both, the left columns first.  Equal keys need no further test; any other
    place only finds candidates, and the residual says everything.  ``at_once``: one input is a
    table whose rows were always valid, all ends are known, and results wait for nothing.
    ``numbers`` are columns of both that number the rows of their side.  ``kept`` are the columns of
    both that results have, ascending (None: all).
    """

    left_types: Sequence[pa.DataType]
    right_types: Sequence[pa.DataType]
    left_keys: Sequence[Expr]
    right_keys: Sequence[Expr]
    residual: Expr | None = None
    place: Place = EQUAL
    at_once: bool = False
    numbers: tuple[int, ...] = ()
    kept: tuple[int, ...] | None = None

    key = "join/1"
    holders = "combines"
    splits_keys = True

    def build(self) -> JoinOperator:
        return JoinOperator(self)


@dataclass(frozen=True)
class SharedJoinSpec(JoinSpec):
    """A join whose results carry their lag; ``windows`` are those of all queries, with copies.

    Its hot keys are not split: queries that rely on where results are may come at any time.
    """

    windows: tuple[Windows, ...] = ()

    key = "shared join/1"
    splits_keys = False
    tuned = frozenset(("windows",))

    def build(self) -> SharedJoinOperator:
        return SharedJoinOperator(self)


class JoinOperator(SlicedOperator):
    """Joins port 0 (left) with port 1 (right)."""

    def __init__(self, spec: JoinSpec) -> None:
        super().__init__((spec.left_types, spec.right_types))
        left_keys, right_keys, place = spec.left_keys, spec.right_keys, spec.place
        residual = spec.residual
        self._layout = layout_of(place)
        self._at_once = spec.at_once
        equal = len(left_keys) - isinstance(place, EqualBand)
        families = [[_family(k.type) for k in keys[:equal]] for keys in (left_keys, right_keys)]
        if isinstance(place, Equal | EqualBand) and families[0] != families[1]:
            raise InternalError(
                "the keys of both sides of a join must have the same types, got "
                f"{[str(k.type) for k in left_keys]} and {[str(k.type) for k in right_keys]}; "
                "cast them to a common type"
            )
        self._keys = (tuple(left_keys), tuple(right_keys))
        self._width = len(self.input_types[0])
        self._parts = [_plain(keys) if place == EQUAL else None for keys in self._keys]
        self._numbers = _numbers(spec.numbers, self._width)
        every = range(self._width + len(self.input_types[1]))
        kept = every if spec.kept is None else spec.kept
        self._kept = {column: place for place, column in enumerate(kept)}
        self._tested = tuple(sorted(columns_of(residual))) if residual is not None else ()
        self._residual = residual
        if residual is not None:
            self._residual = shift(residual, {c: i for i, c in enumerate(self._tested)})

    def load(self) -> None:
        state, merging = self.context.state, self.context.merging
        self._pending = Pending(state, "pending", merging)
        self._sides = (
            Side(state, "left", self.input_types[0], merging, self._layout),
            Side(state, "right", self.input_types[1], merging, self._layout),
        )
        self._closed = ClosedParts(state, "closed.0"), ClosedParts(state, "closed.1")
        for port in (0, 1):
            self._forgo(port)
        self._children = Children(state, "children", merging)
        self._static = max(self.context.tables, default=None)
        self._arrived: list[I64] = []
        self._memory = self.context.settings.join_memory
        self._table = TableRows(state, "later", self._memory // _TABLE_RUN, self._store)

    def save(self) -> None:
        if self._arrived:
            ahead = sum(int((start >= self.since).sum()) for start in self._arrived)
            self.context.state.numbers["ahead"] = ahead
        self._table.flush()
        for shelf in (*self._sides, self._children, self._pending):
            shelf.save()

    def on_rows(self, port: int, rows: Batch) -> Iterable[Message]:
        if port == self._static:
            self._table.add(rows)
            return ()
        if not rows.minus:
            self._arrived.append(rows.start)
        return super().on_rows(port, rows)

    def on_progress(self, port: int, time: int) -> Iterable[Message]:
        self._table.flush()
        if not self._on_arrival():
            yield from super().on_progress(port, time)
            return
        until = self.inbox.progress(port, time)
        slice = self.inbox.take(until, ahead=True)
        if any(slice.parts):
            for side in self._sides:
                side.mix()
        yield from self.slice(slice)
        self.inbox.since = until
        yield from self.close_parts(until)
        yield Heartbeat(until)

    def laid(self, port: int, rows: Batch) -> Piece | None:
        """Return rows of a port as others find them."""
        return self._sorted(port, rows, Ends())

    def pieces(self, port: int) -> list[Piece]:
        """Return what is stored of a port."""
        return self._sides[port].pieces

    def meet(self, port: int, rows: Batch, others: Sequence[Sequence[Piece]]) -> Iterator[Batch]:
        """Yield the results of rows with pieces of the other port; nothing is stored."""
        piece = self._sorted(port, rows, Ends())
        if piece is None:
            return
        self.inbox.since = MIN_TIME  # any row may be the later one
        self._sides[1 - port].pieces = list(others[1 - port])
        left, right = (piece, None) if port == 0 else (None, piece)
        yield from self._pairs(left, right, Ends(), INF)

    def uses_part(self, port: int, closed: Closed) -> bool:
        return not closed.numbered and closed.on == self._parts[port]

    def newest(self, port: int, closed: Closed) -> int:
        """Return an instant that must pass before all rows of a part, and results, are out."""
        stored = [piece.stats["max_start"] for side in self._sides for piece in side.pieces]
        return max(super().newest(port, closed), max(stored, default=MIN_TIME))

    def close_part(self, port: int, closed: Closed) -> Iterator[Message]:
        """Let go of the partners of a part of which nothing more comes.

        Its own rows are needed as long as partners may come.  Where both sides are closed, so are
        the results.
        """
        other = 1 - port
        found = ClosedKeys(Keys(closed.high, closed.low), closed.until)
        self._closed[port].add(found, self.since)
        self._forgo(other)
        for piece, rows in self._sides[other].close(found, self.since):
            yield from self._alone(other, piece, rows)
        both = np.minimum(closed.until, self._closed[other].until(found.keys))
        results = ClosedKeys(found.keys, both).take(both > self.since)
        if len(results):
            keys, until = results.keys, results.until
            for on in self.parts_after([(0, ()), (1, ())]):
                yield Closed(on, keys.high, keys.low, until)

    def parts_after(self, known: Sequence[tuple[int, Columns]]) -> Sequence[Columns]:
        if {port for port, _ in known} != {0, 1}:
            return ()
        parts = []
        for port, columns in enumerate(self._parts):
            moved = [c + port * self._width for c in columns or ()]
            if all(c in self._kept for c in moved):
                parts.append(tuple(self._kept[c] for c in moved))
        return parts

    def _forgo(self, port: int) -> None:
        """Keep no rows of a side that the other side has closed."""
        closed = self._closed[1 - port]
        if closed:
            self._sides[port].useless = closed.useless

    def _alone(self, port: int, piece: Piece, rows: I64) -> Iterator[Closed]:
        """Say of numbered rows, whose ends are known, that they have no more partners.

        All partners have started, so results that wait start with their row.
        """
        column = self._numbers[port]
        if column is None or len(rows) == 0:
            return
        if "_holder" in piece.table.column_names:
            rows = rows[piece.numbers("_holder")[rows] == 0]
        numbers = np.sort(to_numpy(piece.table.column(f"c{column}"))[rows])
        if len(numbers):
            on = (self._kept[column + port * self._width],)
            none, ever = np.zeros(len(numbers), np.uint64), np.full(len(numbers), INF)
            yield Closed(on, numbers.view(np.uint64), none, ever, numbered=True)

    def _fresh_alone(self, new: Sequence[Piece | None]) -> Iterator[Closed]:
        """Say of new rows that they get no more partners: the other side has closed their part."""
        for port, piece in enumerate(new):
            if piece is None or self._numbers[port] is None or not self._closed[1 - port]:
                continue
            keys = Keys(piece.numbers("_high"), piece.numbers("_low"))
            useless = self._closed[1 - port].useless(keys, piece.numbers("_end"))
            yield from self._alone(port, piece, np.flatnonzero(useless))

    def _on_arrival(self) -> bool:
        """Whether rows are joined as they arrive; the results wait, unless they leave at once."""
        if self._at_once:
            return True
        chosen = self.context.settings.join_buffer
        if chosen != "auto":
            return bool(chosen == "output")
        numbers = self.context.state.numbers
        if numbers.get("ahead", 0) < _WORTH_JOINING:
            return False
        return 2 * numbers.get("results", 0) < numbers.get("rows", 0)

    def _count(self, rows: int, results: int) -> None:
        """Count what came in and what went out; the past counts less and less."""
        numbers = self.context.state.numbers
        rows, results = numbers.get("rows", 0) + rows, numbers.get("results", 0) + results
        fade = 2 if rows > _REMEMBERED else 1
        numbers["rows"], numbers["results"] = rows // fade, results // fade

    def slice(self, slice: Slice) -> Iterator[Batch | Ends | Closed]:
        told, until = Ends.concat(slice.ends), slice.until
        inherited = self._children.hear(told)
        everything = Ends.concat([told, inherited])
        if len(told):
            yield everything
        yield from self._pending.release(everything, until, self.context.block)
        new = [self._sorted(port, rows, told) for port, rows in enumerate(slice.rows)]
        made = 0
        for results in self._pairs(new[0], new[1], told, until):
            made += len(results)
            final = results.start < until
            if not self._at_once and not final.all():
                self._pending.add(results.take(~final))
                results = results.take(final)
            if len(results):
                yield results
        yield from self._fresh_alone(new)
        self._count(sum(map(len, slice.rows)), made)
        if until == INF:
            self._children.clear()
        self._children.advance(until)
        for port, side in enumerate(self._sides):
            if until == INF or self._exhausted(1 - port):
                side.clear()
            else:
                side.advance(new[port], told, until)
                release_beyond(self._memory // 2)

    def _pairs(
        self, left: Piece | None, right: Piece | None, told: Ends, until: int
    ) -> Iterator[Batch]:
        """Yield the results of new rows with stored rows, and with one another."""
        block = self.context.block
        if left is not None:
            for old, mine, theirs in self._sides[1].probe(left, True, block):
                yield from self._results(left, mine, old, theirs, told, until)
                release_beyond(self._memory // 2)
        if right is not None:
            for old, mine, theirs in self._sides[0].probe(right, False, block):
                yield from self._results(old, theirs, right, mine, told, until)
                release_beyond(self._memory // 2)
        if left is not None and right is not None:
            for mine, theirs in self._layout.match(left, right, True, block):
                yield from self._results(left, mine, right, theirs, told, until)
        if self._static is not None and len(self._table):
            yield from self._starting(self._static, (left, right), told, until)

    def _exhausted(self, port: int) -> bool:
        """Whether a port can bring no more rows."""
        return self.inbox.exhausted(port) and not (port == self._static and len(self._table))

    def _store(self, rows: Batch) -> None:
        """Store rows of a table that were always valid."""
        assert self._static is not None
        piece = self._sorted(self._static, rows, Ends())
        if piece is not None:
            self._sides[self._static].store(piece, self.since)

    def _starting(
        self, port: int, new: tuple[Piece | None, Piece | None], told: Ends, until: int
    ) -> Iterator[Batch]:
        """Join and store the rows of a table that start in this slice, some at a time."""
        for rows in self._table.starting(until):
            piece = self._sorted(port, rows, told)
            if piece is None:
                continue
            for partner, mine, theirs in self._partners(port, piece, new[1 - port]):
                if port == 0:
                    yield from self._results(piece, mine, partner, theirs, told, until)
                else:
                    yield from self._results(partner, theirs, piece, mine, told, until)
            self._sides[port].store(piece, until)
            release_beyond(self._memory // 2)

    def _partners(
        self, port: int, piece: Piece, new: Piece | None
    ) -> Iterator[tuple[Piece, I64, I64]]:
        """Yield what a piece meets on the other side, stored rows and new ones."""
        block = self.context.block
        yield from self._sides[1 - port].probe(piece, port == 0, block)
        if new is not None:
            for mine, theirs in self._layout.match(piece, new, port == 0, block):
                yield new, mine, theirs

    def _sorted(self, port: int, rows: Batch, told: Ends) -> Piece | None:
        """Return the new rows that can meet anything, with what was told about them applied."""
        end, holder = rows.end, rows.holder
        if len(told):
            end, holder = applied(told, end, holder)
        rows = Batch(rows.columns, rows.start, end, holder).drop_ghosts()
        rows, keys = with_keys(rows, self._keys[port])
        return self._sides[port].sort(rows, *self._layout.place(keys, len(rows)))

    def _results(
        self, left: Piece, in_left: I64, right: Piece, in_right: I64, told: Ends, until: int
    ) -> Iterator[Batch]:
        """Make result rows of pairs of positions.

        Where all ends are known, the pairs overlap, and the residual is tested first.
        """
        known = not (left.stats["open"] or right.stats["open"])
        if known and self._residual is not None:
            passed = np.flatnonzero(self._test(left, in_left, right, in_right))
            in_left, in_right = in_left[passed], in_right[passed]
            if len(passed) == 0:
                return
        left_end, left_holder = self._ends_of(0, left, in_left, told)
        right_end, right_holder = self._ends_of(1, right, in_right, told)
        start = self._starts(left, in_left, right, in_right)
        end = np.minimum(left_end, right_end)
        keep: Mask | None = None
        if not known:
            keep = start < end
            if self._residual is not None:
                at = np.flatnonzero(keep)
                keep[at] = self._test(left, in_left[at], right, in_right[at])
        if keep is not None and not keep.all():
            in_left, in_right, start, end = in_left[keep], in_right[keep], start[keep], end[keep]
            left_holder = None if left_holder is None else left_holder[keep]
            right_holder = None if right_holder is None else right_holder[keep]
        if len(start) == 0:
            return
        if left_holder is not None and right_holder is not None:
            # Holders of children are then told in order where those of the left rows are.
            order = order_of_numbers(left_holder)
            in_left, in_right, start, end = (
                in_left[order],
                in_right[order],
                start[order],
                end[order],
            )
            left_holder, right_holder = left_holder[order], right_holder[order]
        shared = left.stats.get("shared", 0) or right.stats.get("shared", 0)
        holder = self._holders(left_holder, right_holder, bool(shared), end, until)
        columns = self._take_both(left, in_left, right, in_right, self._kept)
        yield Batch(tuple(columns), start, end, holder)

    def _starts(self, left: Piece, in_left: I64, right: Piece, in_right: I64) -> I64:
        """Return the later start of each pair; that of an old row is below ``since``."""
        starts: list[I64] = []
        for piece, at in ((left, in_left), (right, in_right)):
            if piece.stats["max_start"] >= self.since:
                starts.append(piece.numbers("_start")[at])
        return starts[0] if len(starts) == 1 else np.maximum(starts[0], starts[1])

    def _ends_of(self, port: int, piece: Piece, at: I64, told: Ends) -> tuple[I64, I64 | None]:
        """Return the ends as far as known, and the holders: None if no row of the piece has one.

        The end of a row that was dead before this slice is below every start of it.
        """
        end: I64 = piece.numbers("_end")[at]
        if not piece.stats["open"]:
            return end, None
        holder: I64 = piece.numbers("_holder")[at]
        if piece.stats["dead"]:
            end[self._sides[port].told.has(holder)] = self.since
        return applied(told, end, holder)

    def _test(self, left: Piece, in_left: I64, right: Piece, in_right: I64) -> Mask:
        """Evaluate the residual on pairs, taking only the columns it reads."""
        assert self._residual is not None
        columns = self._take_both(left, in_left, right, in_right, self._tested)
        return np.array(evaluate_mask(self._residual, columns, len(in_left)))

    def _take_both(
        self, left: Piece, in_left: I64, right: Piece, in_right: I64, columns: Iterable[int]
    ) -> list[pa.Array]:
        """Return columns of pairs, ascending: those of the left rows come first."""
        mine = [c for c in columns if c < self._width]
        theirs = [c - self._width for c in columns if c >= self._width]
        return self._take(left, in_left, mine) + self._take(right, in_right, theirs)

    def _take(self, piece: Piece, at: I64, columns: Sequence[int]) -> list[pa.Array]:
        index = pa.array(at)
        return [
            pc.take(one_array(piece.table.column(f"c{c}")), index, boundscheck=False)
            for c in columns
        ]

    def _holders(
        self, left: I64 | None, right: I64 | None, shared: bool, end: I64, until: int
    ) -> I64:
        """Return the holder of each result; two open parents get a child."""
        children, new_holders = self._children, self.context.new_holders
        return joint_holders(left, right, shared, end, until, children, new_holders)


class SharedJoinOperator(JoinOperator):
    """A join whose results carry their lag; all ends are known at birth, and no input is a table.

    A batch of results is in order of its segments, so the rows of a query stand together.
    ``join.order`` says which results of a slice are made first: those of the oldest rows (``lwo``),
    those of the smallest windows (``swf``), those that serve most queries for the least work
    (``mqt``).
    """

    def __init__(self, spec: SharedJoinSpec) -> None:
        super().__init__(spec)
        self._segments = Segments(spec.windows)
        self._longest = [max(lengths) for lengths in zip(*spec.windows, strict=True)]

    def _pairs(
        self, left: Piece | None, right: Piece | None, told: Ends, until: int
    ) -> Iterator[Batch]:
        """Yield the results of new rows with stored rows, and with one another."""
        few: list[Batch] = []
        for pairs in self._candidates(left, right):
            if pairs is None:  # a segment is over: who waits for it should have it
                if few:
                    yield self._together(few)
                    few = []
                continue
            for rows in self._lagged(pairs):
                if len(rows) >= _MANY:
                    yield rows
                    continue
                few.append(rows)
                if sum(map(len, few)) >= _MANY:
                    yield self._together(few)
                    few = []
            release_beyond(self._memory // 2)
        if few:
            yield self._together(few)

    def _candidates(self, left: Piece | None, right: Piece | None) -> Iterator[Pairs | None]:
        """Yield what may meet, in the order of the setting; None behind a segment."""
        chosen = self.context.settings.join_order
        new = sum(len(piece) for piece in (left, right) if piece is not None)
        todo = list(probes(self._sides, left, right))
        if chosen == "lwo" or new < _WORTH_ORDERING:
            for probe in todo:
                yield from probe.matched(self._layout, self.context.block)
            return
        order = self._segments.smallest_first
        if chosen == "mqt":
            mine, theirs = (0 if piece is None else len(piece) for piece in (left, right))
            stored = [len(side) / w for side, w in zip(self._sides, self._longest, strict=True)]
            order = self._segments.most_queries_first((theirs * stored[0], mine * stored[1]))
        yield from by_segment(todo, self._segments, order, self._layout, self.context.block)

    def _lagged(self, pairs: Pairs) -> Iterator[Batch]:
        """Make result rows, many of them in order of their segments."""
        left, right = pairs.left, pairs.right
        if self._residual is not None:
            passed = self._test(left, pairs.in_left, right, pairs.in_right)
            pairs = pairs.take(np.flatnonzero(passed))
        if len(pairs) == 0:
            return
        lag = pairs.lags()
        if len(pairs) >= _MANY:
            order = self._segments.order(lag)
            pairs, lag = pairs.take(order), lag[order]
        start = left.numbers("_start")[pairs.in_left] - np.minimum(lag, 0)
        ends = left.numbers("_end")[pairs.in_left], right.numbers("_end")[pairs.in_right]
        columns = self._take_both(left, pairs.in_left, right, pairs.in_right, self._kept)
        columns.append(pa.array(lag))
        yield Batch(tuple(columns), start, np.minimum(*ends), np.zeros(len(lag), np.int64))

    def _together(self, parts: list[Batch]) -> Batch:
        """Make one batch of few rows, in order of their segments."""
        rows = Batch.concat(parts)
        return rows.take(self._segments.order(to_numpy(rows.columns[-1])))


def _plain(keys: Sequence[Expr]) -> tuple[int, ...] | None:
    """Return the columns that keys are; None if one of them is computed."""
    columns = [key.index for key in keys if isinstance(key, Column)]
    return tuple(columns) if len(columns) == len(keys) else None


def _numbers(numbers: Sequence[int], width: int) -> list[int | None]:
    """Return the column of each side that numbers its rows, None where there is none."""
    left = next((n for n in numbers if n < width), None)
    return [left, next((n - width for n in numbers if n >= width), None)]


def _family(kind: pa.DataType) -> str:
    """Return a name that is equal for types whose equal values have equal hashes."""
    if pa.types.is_floating(kind):
        return "float"
    return "integer" if pa.types.is_integer(kind) else str(kind)
