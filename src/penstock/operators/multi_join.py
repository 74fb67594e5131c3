"""The inner join of three or more relations that change over time, in one operator [B 6].

Law: a result is the concatenation of one row of each input for which all conditions are true, valid
while all of them are.  One order serves every condition that finds partners, so each input has one
side (`penstock.runs.side.Side`) in that order:

* *equal keys*: every input has the keys of one class, and all are equal;
* *intervals*: every input has an interval of values (a point counts as one), and conditions say
  which intervals must meet, perhaps moved by a constant.

In a slice with new rows N and stored rows O of each input, the new rows of input i become tuples by
probing the other sides one after another: of the inputs before i only O, of those behind it O and
N.  So every result is made exactly once, by its first input that is new, in whatever order the
sides are probed.  The order is chosen again in every slice from what probing was like lately
(`penstock.kernels.probe_orders`).  A tuple carries the validity that is left; a condition is tested
as soon as all inputs that it waits for are there.

The operator may keep the join of two inputs, the *pair*, as one more side, which stands in for both
when others probe.  Its new rows are made first in a slice, and marked by which of the two is new:
an origin that may see only stored rows of one of them passes over the others.  They are also where
the new rows of the two begin.  A pair is made from the stored rows when that pays and thrown away
when it does not; no answer depends on it.  Rows of a pair have one holder, so it is given up when
both inputs have open ones.

Holders: as in the join of two (`penstock.runs.holders`), generation by generation.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa

from penstock.errors import InternalError
from penstock.expr.arrow import evaluate, evaluate_mask
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Expr, columns_of, shift
from penstock.kernels.codes import F64, numbers
from penstock.kernels.join_orders import EQUAL, Overlap
from penstock.kernels.layouts import layout_of
from penstock.kernels.probe_orders import Orders, Step, mask_of
from penstock.model import I64, INF, Batch, Ends, one_array
from penstock.operators.base import SlicedOperator, with_keys
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec
from penstock.runs.children import Children
from penstock.runs.holders import applied, joint_holders
from penstock.runs.mappings import release_beyond
from penstock.runs.side import Side, ended
from penstock.runs.spine import Piece
from penstock.runs.tuples import Probe, Rows, Tuples

Reach = tuple[int, int, float, float]
"""Inputs a and b, low and high: ``b.high >= a.low + low`` and ``b.low <= a.high + high``."""

_SAMPLE = 64
"""Rows that try out a step which no chosen order contains, to measure it."""
_SELDOM = 8
"""Slices between two samples of a step, and between two decisions about the pair."""
_ULPS = 8 * np.finfo(np.float64).eps


@dataclass(frozen=True)
class MultiJoinSpec(Spec):
    """Join three or more inputs at once.

    ``coordinates`` are expressions over each input's own columns: its keys, or with ``reaches`` the
    lower and the upper end of its interval.  ``conditions`` are expressions over the columns of all
    inputs, one input after another, each with the inputs that it waits for; they are tested in
    this order, and equal keys need no condition.  ``output`` are the columns of a result.
    """

    input_types: Sequence[Sequence[pa.DataType]]
    coordinates: Sequence[Sequence[Expr]]
    conditions: Sequence[tuple[Expr, tuple[int, ...]]]
    output: Sequence[int]
    reaches: Sequence[Reach] | None = None

    key = "multi join/1"
    holders = "combines"

    def build(self) -> MultiJoinOperator:
        return MultiJoinOperator(self)


class MultiJoinOperator(SlicedOperator):
    """Joins all its ports."""

    def __init__(self, spec: MultiJoinSpec) -> None:
        super().__init__(spec.input_types)
        reaches = spec.reaches
        self._coordinates = [tuple(exprs) for exprs in spec.coordinates]
        if len({len(exprs) for exprs in self._coordinates}) > 1:
            raise InternalError("all inputs of a join must have the same number of coordinates")
        self._layout = layout_of(EQUAL if reaches is None else Overlap())
        self._reaches = None if reaches is None else _both_ways(reaches)
        self._home = [
            (port, column)
            for port, types in enumerate(self.input_types)
            for column in range(len(types))
        ]
        self._conditions = [(expr, mask_of(needs)) for expr, needs in spec.conditions]
        self._output = tuple(spec.output)
        everyone = range(self.ports)
        self._links = [
            frozenset(
                j for j in everyone if j != i and (self._reaches is None or (i, j) in self._reaches)
            )
            for i in everyone
        ]
        self._tests: dict[tuple[int, int], Expr | None] = {}

    # ---- state

    def load(self) -> None:
        state, merging = self.context.state, self.context.merging
        self._sides = [
            Side(state, f"side.{port}", types, merging, self._layout)
            for port, types in enumerate(self.input_types)
        ]
        self._children = [
            Children(state, f"children.{level}", merging) for level in range(self.ports - 1)
        ]
        self._memory = self.context.settings.join_memory
        self._orders = Orders(self._links, state.numbers)
        self._pair: tuple[int, int] | None = None
        if "pair.first" in state.numbers:
            self._open_pair((state.numbers["pair.first"], state.numbers["pair.second"]))

    def save(self) -> None:
        state = self.context.state
        for shelf in (*self._sides, *self._children):
            shelf.save()
        if self._pair is not None:
            self._pair_side.save()
            state.numbers["pair.first"], state.numbers["pair.second"] = self._pair
        self._orders.store(state.numbers)

    def _open_pair(self, pair: tuple[int, int]) -> None:
        state, merging = self.context.state, self.context.merging
        types = self.input_types[pair[0]] + self.input_types[pair[1]]
        self._pair = pair
        self._pair_side = Side(state, "pair", types, merging, self._layout)

    def _drop_pair(self) -> None:
        """Throw the pair away: what it held is in the sides of its inputs."""
        state = self.context.state
        for name in ("pair", "pair.told"):
            state.drop(name)
        for name in ("pair.first", "pair.second", "pair.turn"):
            state.numbers.pop(name, None)
        self._pair = None
        self._orders.forget_pair()

    # ---- one slice

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        told, until = Ends.concat(slice.ends), slice.until
        heard = told
        for children in self._children:
            heard = Ends.concat([heard, children.hear(heard)])
        if len(told):
            yield heard
        self._told, self._until = told, until
        new = [self._sorted(port, rows) for port, rows in enumerate(slice.rows)]
        self._views = [
            Rows(side.pieces, piece) for side, piece in zip(self._sides, new, strict=True)
        ]
        if any(piece is not None for piece in new):
            self._think(new)
            new_pair = self._prepare_pair(new)
            for origin, piece in enumerate(new):
                if piece is not None:
                    yield from self._results_of(origin, new_pair)
        else:
            new_pair = None
        self._advance(new, new_pair, told, until)

    def _results_of(self, origin: int, new_pair: Piece | None) -> Iterator[Batch]:
        """Yield the results whose first new row is one of the origin's."""
        tuples = self._begin(origin, new_pair)
        if tuples is not None:
            joined = mask_of(self._members(tuples.at))
            yield from self._grow(tuples, self._choose_order(joined), origin)

    def _begin(self, origin: int, new_pair: Piece | None) -> Tuples | None:
        """Return what an origin begins with: its new rows, or its new pairs."""
        if self._pair is None or origin not in self._pair:
            view = self._views[origin]
            return self._tuples(origin, np.arange(view.old, len(view)))
        if new_pair is None:
            return None
        own = 1 << self._pair.index(origin)
        parts = new_pair.coordinates[0]
        chosen = parts == own
        if origin == min(self._pair):
            chosen |= parts == 3
        at = np.flatnonzero(chosen)
        return self._tuples(self.ports, at + self._views[self.ports].old) if len(at) else None

    def _advance(
        self, new: list[Piece | None], new_pair: Piece | None, told: Ends, until: int
    ) -> None:
        """End a slice: store the new rows, let go of what no row can reach any more."""
        for children in self._children:
            if until == INF:
                children.clear()
            children.advance(until)
        live = [p for p in range(self.ports) if not self.inbox.exhausted(p)]
        for port, side in enumerate(self._sides):
            if until == INF or not set(live) - {port}:
                side.clear()
            else:
                side.advance(new[port], told, until)
        if self._pair is not None:
            if until == INF or not set(live) - set(self._pair):
                self._drop_pair()
            else:
                self._pair_side.advance(new_pair, told, until)

    def _sorted(self, port: int, rows: Batch) -> Piece | None:
        """Return the new rows that can meet anything, with what was told about them applied."""
        end, holder = applied(self._told, rows.end, rows.holder)
        rows = Batch(rows.columns, rows.start, end, holder).drop_ghosts()
        rows, keys = with_keys(rows, self._coordinates[port])
        return self._sides[port].sort(rows, *self._layout.place(keys, len(rows)))

    # ---- looking in from outside

    def laid(self, port: int, rows: Batch) -> Piece | None:
        """Return rows of a port as others find them."""
        self._told = Ends()
        return self._sorted(port, rows)

    def pieces(self, port: int) -> list[Piece]:
        """Return what is stored of a port."""
        return self._sides[port].pieces

    def meet(self, port: int, rows: Batch, others: Sequence[Sequence[Piece]]) -> Iterator[Batch]:
        """Yield the results of rows with pieces of all other ports; nothing is stored."""
        new = self.laid(port, rows)
        if new is None:
            return
        self._until, self._pair = INF, None
        self._views = [Rows(pieces, None) for pieces in others]
        self._views[port] = Rows([], new)
        view = self._views[port]
        tuples = self._tuples(port, np.arange(view.old, len(view)))
        yield from self._grow(tuples, self._choose_order(1 << port), -1)

    # ---- what to do: from measurements

    def _think(self, new: Sequence[Piece | None]) -> None:
        """Count what came, try out steps that were not measured lately, decide about the pair."""
        orders, state = self._orders, self.context.state
        orders.came([0 if piece is None else len(piece) for piece in new])
        orders.sizes = [float(len(view)) for view in self._views]
        slices = state.numbers.get("slices", 0)
        state.numbers["slices"] = slices + 1
        for origin, piece in enumerate(new):
            for unit in sorted(self._links[origin]) if piece is not None else ():
                seldom = (slices + origin + unit) % _SELDOM == 0
                if seldom or orders.measured(1 << origin, unit) is None:
                    self._sample(origin, unit)
        wanted = self._pair
        if slices % _SELDOM == 0 or self._pair is not None:
            wanted = self._choose_pair()
        if self._pair is not None and wanted != self._pair:
            self._drop_pair()
        if wanted is not None and self._pair is None:
            self._build_pair(wanted)

    def _sample(self, origin: int, unit: int) -> None:
        """Probe a unit with a few new rows, only to count."""
        view = self._views[origin]
        step = max(1, (len(view) - view.old) // _SAMPLE)
        tuples = self._tuples(origin, np.arange(view.old, len(view), step))
        for _ in self._step(tuples, unit, -1):
            pass

    def _choose_order(self, joined: int) -> tuple[int, ...]:
        """Return the units that tuples of the inputs ``joined`` probe, in order."""
        return self._orders.order(joined, self._pair).order

    def _choose_pair(self) -> tuple[int, int] | None:
        """Return the pair that should be kept."""
        return self._orders.worthwhile(self._pair, self._possible_pairs())

    def _possible_pairs(self) -> list[tuple[int, int]]:
        """Return the pairs that have an order for the others and at most one open input."""
        found = []
        for first in range(self.ports):
            for second in sorted(self._links[first]):
                closed = not (self._views[first].open and self._views[second].open)
                if first < second and closed and self._anchors((first, second)):
                    found.append((first, second))
        return found

    def describe(self, numbers: Mapping[str, int]) -> str:
        """Say in which order inputs are probed and what is kept, from the numbers of a state."""
        orders = Orders(self._links, numbers)
        pair = None
        if "pair.first" in numbers:
            pair = numbers["pair.first"], numbers["pair.second"]
        steps = []
        for i in range(self.ports):
            kept = pair is not None and i in pair
            order = orders.order(mask_of(pair) if kept and pair else 1 << i, pair).order
            names = ["the kept pair" if unit == self.ports else str(unit) for unit in order]
            start = f"{i} (with its pair)" if kept else str(i)
            steps.append(f"{start} probes {', '.join(names)}")
        keeps = (
            "no pair is kept" if pair is None else f"the pair of {pair[0]} and {pair[1]} is kept"
        )
        return "; ".join([*steps, keeps])

    # ---- the pair

    def _anchors(self, pair: tuple[int, int]) -> tuple[int, ...]:
        """Return the inputs of a pair whose intervals, cut with one another, give its order.

        Both, if every other input reaches both in the same way.  Else one of them, if every input
        that reaches the other reaches it too.
        """
        if self._reaches is None:
            return pair
        first, second = pair
        others = set(range(self.ports)) - {first, second}
        ways = [{k: self._reaches[k, m] for k in others & self._links[m]} for m in pair]
        if ways[0] == ways[1]:
            return pair
        if set(ways[1]) <= set(ways[0]):
            return (first,)
        return (second,) if set(ways[0]) <= set(ways[1]) else ()

    def _build_pair(self, pair: tuple[int, int]) -> None:
        """Make the pair from the stored rows."""
        first, second = pair
        view = self._views[first]
        made: list[Tuples] = []
        if view.old:
            tuples = self._tuples(first, np.arange(view.old), self.since)
            made = list(self._step(tuples, second, self.ports))
        self._open_pair(pair)
        piece = self._pair_piece(made)
        if self._pair is None:
            return
        if piece is not None:
            piece = Piece(piece.stats, piece.table)
            self._pair_side.advance(piece, Ends(), self.since)

    def _prepare_pair(self, new: Sequence[Piece | None]) -> Piece | None:
        """Make the new rows of the pair, and the view that shows them."""
        if self._pair is None:
            return None
        pair = self._pair
        made: list[Tuples] = []
        for origin, other in (pair, pair[::-1]):
            if new[origin] is not None:
                view = self._views[origin]
                tuples = self._tuples(origin, np.arange(view.old, len(view)))
                # pairs of two new rows are made once, by the first
                made += self._step(tuples, other, -1 if origin == pair[0] else self.ports)
        piece = self._pair_piece(made)
        if self._pair is None:
            return None
        self._views = [*self._views[: self.ports], Rows(self._pair_side.pieces, piece)]
        return piece

    def _pair_piece(self, made: list[Tuples]) -> Piece | None:
        """Sort pairs as rows of the pair's side; drop the pair if a row has two open holders."""
        assert self._pair is not None
        if not made:
            return None
        tuples = Tuples.concat(made)
        held = [h for m in self._pair if (h := self._holder(m, tuples.at[m])) is not None]
        holder = np.zeros(len(tuples), np.int64)
        for one in held:
            if ((holder != 0) & (one != 0) & (holder != one)).any():
                self._drop_pair()
                return None
            holder = np.where(holder == 0, one, holder)
        columns = [
            column
            for m in self._pair
            for column in self._views[m].columns(range(len(self.input_types[m])), tuples.at[m])
        ]
        parts = sum(
            (tuples.at[m] >= self._views[m].old).astype(np.int8) << bit
            for bit, m in enumerate(self._pair)
        )
        if tuples.keys is not None:
            lanes = {"_high": tuples.keys[0], "_low": tuples.keys[1]}
        else:
            spans = [self._span(tuples, m) for m in self._anchors(self._pair)]
            low = reduce(np.maximum, [low for low, _ in spans])
            high = reduce(np.minimum, [high for _, high in spans])
            lanes, _ = self._layout.place([pa.array(low), pa.array(high)], len(low))
        batch = Batch(tuple(columns), tuples.start, tuples.end, holder)
        return self._pair_side.sort(batch, lanes, (parts,))

    # ---- tuples

    def _members(self, units: Iterable[int]) -> frozenset[int]:
        """Return the inputs that stand in some units."""
        members = set(units)
        if self.ports in members:
            assert self._pair is not None
            members = members - {self.ports} | set(self._pair)
        return frozenset(members)

    def _tuples(self, unit: int, at: I64, since: int | None = None) -> Tuples:
        """Return rows of one unit as tuples; what was before ``since`` does not matter."""
        view = self._views[unit]
        start = view.numbers("_start", at)
        if since is not None:
            start = np.maximum(start, since)
        end = view.numbers("_end", at)
        keys = None
        if self._reaches is None:
            keys = view.numbers("_high", at), view.numbers("_low", at)
        tuples = Tuples({unit: at}, start, end, {}, keys)
        if view.open:
            end = self._known_ends(unit, at, end)
            tuples = Tuples({unit: at}, start, end, {}, keys)
            alive = start < end
            if not alive.all():
                tuples = tuples.take(np.flatnonzero(alive))
        return tuples

    def _known_ends(self, unit: int, at: I64, end: I64) -> I64:
        """Return ends after what was told; that of a row dead before this slice is below it."""
        view = self._views[unit]
        holder = view.numbers("_holder", at)
        if view.dead:
            side = self._pair_side if unit == self.ports else self._sides[unit]
            end = np.where(side.told.has(holder), self.since, end)
        return applied(self._told, end, holder)[0]

    def _holder(self, unit: int, at: I64) -> I64 | None:
        """Return the holders of rows that are still open, None if there are none."""
        view = self._views[unit]
        if not view.open:
            return None
        holder = view.numbers("_holder", at)
        return applied(self._told, holder, holder)[1]

    def _where(self, tuples: Tuples, member: int) -> tuple[int, int]:
        """Return the unit in which an input stands, and the column at which it begins there."""
        if member in tuples.at:
            return member, 0
        assert self._pair is not None
        first = 0 if member == self._pair[0] else len(self.input_types[self._pair[0]])
        return self.ports, first

    def _fetch(self, tuples: Tuples, columns: Sequence[int]) -> list[pa.Array]:
        """Return some columns, numbered over all inputs, of tuples."""
        wanted: dict[int, list[tuple[int, int]]] = {}
        for place, column in enumerate(columns):
            member, own = self._home[column]
            unit, first = self._where(tuples, member)
            wanted.setdefault(unit, []).append((place, first + own))
        found: list[pa.Array] = [None] * len(columns)
        for unit, places in wanted.items():
            taken = self._views[unit].columns([c for _, c in places], tuples.at[unit])
            for (place, _), column in zip(places, taken, strict=True):
                found[place] = column
        return found

    def _span(self, tuples: Tuples, member: int) -> tuple[F64, F64]:
        """Return the interval of values of one input in each tuple."""
        if member in tuples.spans:
            return tuples.spans[member]
        unit, first = self._where(tuples, member)
        exprs = self._coordinates[member]
        used = sorted(frozenset[int]().union(*(columns_of(e) for e in exprs)))
        taken = self._views[unit].columns([first + c for c in used], tuples.at[unit])
        moved = {c: i for i, c in enumerate(used)}
        low = numbers(one_array(evaluate(shift(exprs[0], moved), taken, len(tuples))))
        if exprs[1] == exprs[0]:
            return low, low
        return low, numbers(one_array(evaluate(shift(exprs[1], moved), taken, len(tuples))))

    # ---- probing

    def _grow(self, tuples: Tuples, order: Sequence[int], origin: int) -> Iterator[Batch]:
        """Probe one unit after another, depth first in blocks, and yield results."""
        if not order:
            yield self._finish(tuples)
            return
        for wider in self._step(tuples, order[0], origin):
            yield from self._grow(wider, order[1:], origin)

    def _step(self, tuples: Tuples, unit: int, origin: int) -> Iterator[Tuples]:
        """Yield the tuples that become one unit wider, in blocks.

        Of inputs before the origin only stored rows are seen; -1 sees all rows, the number of ports
        only stored ones.
        """
        if len(tuples) == 0:
            return
        began, spent = time.thread_time(), 0.0  # without what is done with what is yielded
        view = self._views[unit]
        members = self._members((unit,))
        joined = self._members(tuples.at)
        probe = self._probe(tuples, joined, members)
        with_new = any(member > origin for member in members)
        hidden = sum(1 << bit for bit, m in enumerate(self._pair or ()) if m <= origin)
        least, block = int(tuples.start.min()), self.context.block
        tried = found = waiting = 0
        mine: list[I64] = []
        theirs: list[I64] = []
        for number in range(view.count(with_new)):
            piece = view.pieces[number]
            if ended(piece, least):
                continue
            for row, position in self._layout.match(probe, piece, True, block):
                if unit == self.ports and number == view.stored and hidden:
                    seen = np.flatnonzero(piece.coordinates[0][position] & hidden == 0)
                    row, position = row[seen], position[seen]
                tried += len(row)
                waiting += len(row)
                mine.append(row)
                theirs.append(position + view.first[number])
                if waiting >= block:
                    wider = self._widened(tuples, mine, unit, theirs, with_new)
                    mine, theirs, waiting = [], [], 0
                    found += len(wider)
                    if len(wider):
                        spent += time.thread_time() - began
                        yield wider
                        began = time.thread_time()
            release_beyond(self._memory)
        if waiting:
            wider = self._widened(tuples, mine, unit, theirs, with_new)
            found += len(wider)
            if len(wider):
                spent += time.thread_time() - began
                yield wider
                began = time.thread_time()
        spent += time.thread_time() - began
        step = Step(len(tuples), tried, found, spent)
        self._orders.record(mask_of(joined), unit, step)

    def _probe(self, tuples: Tuples, joined: frozenset[int], members: frozenset[int]) -> Probe:
        """Return tuples as rows that look for partners in a unit."""
        if self._reaches is None:
            return Probe(tuples)
        targets = members
        if len(members) > 1:
            assert self._pair is not None
            targets = frozenset(self._anchors(self._pair))
        low = np.full(len(tuples), -np.inf)
        high = np.full(len(tuples), np.inf)
        for target in targets:
            for member in self._links[target] & joined:
                below, above = self._reaches[member, target]
                own_low, own_high = tuples.spans[member] = self._span(tuples, member)
                low = np.maximum(low, _moved(own_low, below, -1.0))
                high = np.minimum(high, _moved(own_high, above, 1.0))
        return Probe(tuples, (low, high))

    def _widened(
        self, tuples: Tuples, mine: list[I64], unit: int, theirs: list[I64], with_new: bool
    ) -> Tuples:
        """Join tuples with rows of a unit, and keep those that live and pass what can be tested."""
        row, at = np.concatenate(mine), np.concatenate(theirs)
        view = self._views[unit]
        wide = tuples.take(row)
        start, end = wide.start, view.numbers("_end", at)
        if with_new:
            start = np.maximum(start, view.numbers("_start", at))
        if view.open:
            end = self._known_ends(unit, at, end)
        done = self._members(tuples.at) | self._members((unit,))
        spans = {m: span for m, span in wide.spans.items() if self._links[m] - done}
        wide = Tuples(wide.at | {unit: at}, start, np.minimum(wide.end, end), spans, wide.keys)
        if view.open:
            alive = wide.start < wide.end
            if not alive.all():
                wide = wide.take(np.flatnonzero(alive))
        test = self._test(mask_of(self._members(tuples.at)), mask_of(self._members((unit,))))
        if test is not None and len(wide):
            read = sorted(columns_of(test))
            condition = shift(test, {c: i for i, c in enumerate(read)})
            passed = evaluate_mask(condition, self._fetch(wide, read), len(wide))
            if not passed.all():
                wide = wide.take(np.flatnonzero(passed))
        return wide

    def _test(self, joined: int, unit: int) -> Expr | None:
        """Return the conditions that a step makes complete; a unit has passed its own."""
        key = joined, unit
        if key not in self._tests:
            both = joined | unit
            due = [
                expr
                for expr, needs in self._conditions
                if needs & both == needs and needs & joined != needs and needs & unit != needs
            ]
            whole = reduce(lambda a, b: resolve_call("and", [a, b]), due) if due else None
            self._tests[key] = whole
        return self._tests[key]

    def _finish(self, tuples: Tuples) -> Batch:
        """Make results of whole tuples."""
        holder: I64 | None = None
        level = 0
        for unit, at in tuples.at.items():
            own = self._holder(unit, at)
            if own is None:
                continue
            if holder is None:
                holder = np.where(tuples.end <= self._until, 0, own)
                continue
            children, new_holders = self._children[level], self.context.new_holders
            level += 1
            holder = joint_holders(
                holder, own, True, tuples.end, self._until, children, new_holders
            )
        if holder is None:
            holder = np.zeros(len(tuples), np.int64)
        columns = self._fetch(tuples, self._output)
        return Batch(tuple(columns), tuples.start, tuples.end, holder)


def _both_ways(reaches: Sequence[Reach]) -> dict[tuple[int, int], tuple[float, float]]:
    """Return how far each input reaches the other, in both directions."""
    ways = {}
    for a, b, low, high in reaches:
        ways[a, b] = low, high
        ways[b, a] = -high, -low
    return ways


def _moved(values: F64, by: float, outward: float) -> F64:
    """Return ``values + by``, rounded outward so that no partner is missed."""
    if np.isinf(by):
        return np.full(len(values), by)
    with np.errstate(invalid="ignore", over="ignore"):
        moved = values + by + outward * _ULPS * (np.abs(values) + abs(by))
    return np.where(np.isfinite(values), moved, values)
