"""Joins of any number of inputs by merging runs sorted by value, in files [B 3.2, 5.3, 6].

Rows are gathered per input, not in an inbox, because they may outgrow the memory.  When they do,
they are sorted by value and written as one run per input: a *family*.  Merging families in value
order, with one SweepArea per input (`penstock.kernels.sweep_areas`), makes the results.  Law: a
result is a combination of one row per input for which the place and the residual hold, valid while
all of them are.

**TPMJ** (`TemporalMergeJoin`), for rows whose ends are known:

* Results are made only on the left flank of the merge tree, by steps that merge the oldest run of
  each input, the *flank*, with all that came after.  Step i owns the slice ``[s_i, e_i)`` of result
  starts: ``s_i`` is the end of the slice before, ``e_i`` the heartbeat that was reached when the
  youngest rows of the step came.  All rows that start below ``e_i`` take part in it, so its results
  are complete; slices are disjoint, so no result is made twice.
* The results of a step are sorted by ``(start, end)``, externally if need be, and then the
  heartbeat ``e_i`` leaves.  No other promise is made.
* A row with ``end <= e_i`` is in no later result and is not written again.  The thinned flank is as
  short as a window, and merges next with runs of its own length: the tree is skewed.
* Elsewhere families are merged input by input, without a join.

Strategies: *maxfanin* merges only when there are ``fan_in`` families; *greedy* makes a step at
every heartbeat that brought enough rows; *load* takes the first while the memory would be full
within `_PATIENCE` heartbeats at the rate of the last one, and the second otherwise.  In a greedy
step the rows in memory take part as a run that is not written yet; only when the memory is nearly
full, the older half of it goes to the flank, and then the flank is written anew.

**PMJ** (`ProgressiveMergeJoin`), for finite streams: a family is joined before it is written, and
families are joined when they are merged, so results come early.  Rows of one family have met; that
is how repetitions are avoided, not by comparing results.  Results have no order, so nothing is
promised before the end.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InternalError
from penstock.expr.arrow import evaluate, evaluate_mask
from penstock.expr.nodes import Expr, columns_of, shift
from penstock.kernels.join_orders import Place
from penstock.kernels.sweep_areas import (
    Elements,
    Learned,
    Sweep,
    SweepTuples,
    check_inputs,
    usable,
    view_of,
)
from penstock.model import INF, MIN_TIME, Batch, Ends, Heartbeat, Message, one_array
from penstock.operators.base import Context, Operator
from penstock.operators.inbox import Heartbeats
from penstock.operators.spec import Spec
from penstock.runs.merging import Merging
from penstock.runs.paged import (
    PAGE,
    Cursor,
    ResultSort,
    RunWriter,
    Work,
    merged,
    rows_of,
    size_of,
    table_of,
)
from penstock.runs.state import Run

_PATIENCE = 64
_NEARLY_FULL = 7 / 8
_LARGEST_BLOCK = 1 << 20
_SMALLEST_PIECE = 1 << 10
"""Rows of a large batch that are gathered at once."""
_SMALL_RUNS = Merging("greedy")
_IN_MEMORY, _STORED = -2, 0


@dataclass(frozen=True)
class Budget:
    """Bytes for rows that are gathered, for reading runs, and for sorting results.

    Rows that are joined also have a place in the value order, and gathered ones are sorted into a
    copy: of ``memory`` in all, a sixth can be gathered.
    """

    gathering: int
    reading: int
    results: int

    @staticmethod
    def of(memory: int) -> Budget:
        return Budget(memory // 6, memory // 8, memory // 4)


@dataclass
class Family:
    """Runs that were written together, one per input: their blocks, and what they have in common.

    ``beat`` is the heartbeat that was reached when the youngest of the rows were written.
    """

    number: int
    beat: int
    level: int
    runs: list[list[Run]]

    @property
    def rows(self) -> int:
        return sum(len(run) for runs in self.runs for run in runs)

    @property
    def size(self) -> int:
        return sum(run.stats["bytes"] for runs in self.runs for run in runs)


@dataclass(frozen=True)
class MergeJoinSpec(Spec):
    """Join any number of inputs by merging.

    ``coordinates[i]`` are expressions over the columns of input i, for the place; the residual is
    over the columns of all inputs, one after another.
    """

    input_types: Sequence[Sequence[pa.DataType]]
    coordinates: Sequence[Sequence[Expr]]
    place: Place
    residual: Expr | None = None
    budget: Budget | None = None

    sliced = False
    holders = "none"
    splits_keys = True
    keeps_step = False


@dataclass(frozen=True)
class TemporalMergeJoinSpec(MergeJoinSpec):
    """Join by merging, with results in complete slices of time (TPMJ)."""

    key = "temporal merge join/1"

    def build(self) -> TemporalMergeJoin:
        return TemporalMergeJoin(self)


@dataclass(frozen=True)
class ProgressiveMergeJoinSpec(MergeJoinSpec):
    """Join finite streams by merging, with early results (PMJ).

    ``order`` is the order in which the merge tree is worked off: *post* merges as soon as families
    of one level have gathered, *late* does the same but only after the end, *level* merges one
    level after the other, after the end [DSTW03].
    """

    order: str = "post"

    key = "progressive merge join/1"

    def build(self) -> ProgressiveMergeJoin:
        return ProgressiveMergeJoin(self)


class MergeJoin(Operator):
    """What both joins share: gathering rows, writing families, reading them, making results."""

    def __init__(self, spec: MergeJoinSpec) -> None:
        check_inputs(spec.place, len(spec.input_types))
        residual = spec.residual
        self.ports = len(spec.input_types)
        self.input_types = [tuple(t) for t in spec.input_types]
        self._coordinates = [tuple(c) for c in spec.coordinates]
        self._place = spec.place
        self._given = spec.budget
        self._offsets = np.cumsum([0, *(len(t) for t in self.input_types)]).tolist()
        self._tested = tuple(sorted(columns_of(residual))) if residual is not None else ()
        self._residual = residual
        if residual is not None:
            self._residual = shift(residual, {c: i for i, c in enumerate(self._tested)})
        self.work = Work()
        self._learned = Learned.nothing(self.ports)

    def open(self, context: Context) -> None:
        super().open(context)
        state = context.state
        self._budget = self._given or Budget.of(context.settings.join_memory)
        self._fan_in = context.merging.fan_in
        share = self._budget.reading // (self._fan_in * self.ports)
        self._block = max(PAGE, min(_LARGEST_BLOCK, share))
        self.since = state.numbers.get("since", MIN_TIME)
        self._heartbeats = Heartbeats(state, self.ports)
        self._new_rows = state.numbers.get("new", 0)
        self._arrived = state.numbers.get("arrived", 0)
        """Bytes that came since all inputs last moved on."""
        gathered = []
        for port in range(self.ports):
            stored = [rows_of(run.table()) for run in state.runs(f"gathered.{port}")]
            gathered.append([rows.take(rows.end > self.since) for rows in stored])
        self._gather(gathered)
        self._unsaved: list[list[Batch]] = [[] for _ in range(self.ports)]
        self._rewritten = False
        self._families = self._read_families()
        self._measure()

    def _read_families(self) -> list[Family]:
        found: dict[int, Family] = {}
        for port in range(self.ports):
            for run in self.context.state.runs(f"run.{port}"):
                number, beat, level = (run.stats[k] for k in ("family", "beat", "level"))
                fresh = Family(number, beat, level, [[] for _ in range(self.ports)])
                found.setdefault(number, fresh).runs[port].append(run)
        return [found[number] for number in sorted(found)]

    def _gather(self, gathered: list[list[Batch]]) -> None:
        """Hold these rows, in one batch per input."""
        some = [Batch.concat(rows) if rows else None for rows in gathered]
        self._gathered = [[rows] if rows is not None and len(rows) else [] for rows in some]
        self.held = sum(size_of(rows) for some in self._gathered for rows in some)

    def on_ends(self, port: int, ends: Ends) -> Iterator[Message]:
        raise InternalError("a join by merging must have inputs whose ends are known at birth")

    def on_progress(self, port: int, time: int) -> Iterator[Message]:
        before, until = self._heartbeats.least, self._heartbeats.hear(port, time)
        if until > before:
            yield from self._advance(until)
            self._arrived = 0
        yield Heartbeat(self.since)

    def on_rows(self, port: int, rows: Batch) -> Iterator[Message]:
        if rows.holder.any():
            raise InternalError("a join by merging must have rows without holders")
        rows = Batch.of(rows.columns, rows.start, rows.end).drop_ghosts()
        mask = usable(self._places(port, rows))
        if mask is not None:
            rows = rows.take(mask)
        if len(rows) == 0:
            return
        size = size_of(rows)
        self._new_rows += len(rows)
        self._arrived += size
        step = max(_SMALLEST_PIECE, len(rows) * self._budget.gathering // (4 * max(1, size)))
        for first in range(0, len(rows), step):
            piece = rows.slice(first, min(first + step, len(rows)))
            self._gathered[port].append(piece)
            self._unsaved[port].append(piece)
            self.held += size_of(piece)
            self._measure()
            if self.held >= self._budget.gathering:
                yield from self._full()

    @abstractmethod
    def _full(self) -> Iterator[Message]:
        """Make room: the gathered rows have reached their limit."""

    @abstractmethod
    def _advance(self, until: int) -> Iterator[Message]:
        """All inputs have reached ``until``."""

    def close(self) -> None:
        state = self.context.state
        state.numbers |= {"since": self.since, "new": self._new_rows, "arrived": self._arrived}
        self._heartbeats.save()
        for port in range(self.ports):
            name = f"gathered.{port}"
            fresh = self._gathered[port] if self._rewritten else self._unsaved[port]
            if self._rewritten:
                state.drop(name)
            if fresh:
                state.append(name, table_of(Batch.concat(fresh)))
            runs = state.runs(name)
            chosen = _SMALL_RUNS.choose([len(run) for run in runs])
            if chosen:
                some = runs[chosen[0] : chosen[1]]
                state.replace(name, some, pa.concat_tables([run.table() for run in some]))

    # Rows in value order

    def _places(self, port: int, rows: Batch) -> list[pa.Array]:
        return [
            one_array(evaluate(e, rows.columns, len(rows))) for e in self._coordinates[port]
        ]  # fmt: skip

    def _elements(self, port: int, rows: Batch, family: int) -> Elements:
        view = view_of(self._place, port, self._places(port, rows), len(rows))
        return Elements(rows, view, np.full(len(rows), family))

    def _cursor(self, port: int, family: Family, number: int, together: int) -> Cursor:
        """Return a cursor on a stored run, without the rows that are in no later result.

        ``together`` cursors share the memory for reading.
        """

        def read(table: pa.Table) -> Elements:
            rows = rows_of(table)
            return self._elements(port, rows.take(rows.end > self.since), number)

        share = self._budget.reading // max(1, together)
        return Cursor(family.runs[port], read, share, self.work)

    def _cursors(self, families: Sequence[Family]) -> list[list[Cursor]]:
        together = len(families) * self.ports
        return [
            [self._cursor(port, family, family.number, together) for family in families]
            for port in range(self.ports)
        ]

    def _sorted(self, port: int, rows: Sequence[Batch], family: int) -> Elements:
        """Return gathered rows of an input in value order."""
        together = Batch.concat([*rows, Batch.empty(self.input_types[port])])
        return self._elements(port, together, family).sort()

    def _writers(self, number: int, beat: int, level: int = 0) -> list[RunWriter]:
        stats = {"family": number, "beat": beat, "level": level}
        state = self.context.state
        return [
            RunWriter(state, f"run.{p}", stats, self._block, self.work) for p in range(self.ports)
        ]

    def _next_family(self) -> int:
        number = self.context.state.numbers.get("families", 0)
        self.context.state.numbers["families"] = number + 1
        return number

    def _write_gathered(self, blocks: Sequence[Elements], beat: int) -> Family:
        """Write all gathered rows, sorted already, as a family."""
        number = self._next_family()
        writers = self._writers(number, beat)
        self._measure(sum(block.nbytes for block in blocks))
        for writer, block in zip(writers, blocks, strict=True):
            writer.add(block.rows)
        self._gather([[] for _ in range(self.ports)])
        self._unsaved = [[] for _ in range(self.ports)]
        self._rewritten = True
        return Family(number, beat, 0, [writer.close() for writer in writers])

    def _drop(self, families: Sequence[Family]) -> None:
        for port in range(self.ports):
            gone = [run for family in families for run in family.runs[port]]
            if gone:
                self.context.state.replace(f"run.{port}", gone, None)

    # Results

    def _sweep(self, since: int | None = None, families: bool = False) -> Sweep:
        self._learned = self._learned.faded()
        return Sweep(self.ports, self.context.block, since, families, self._learned)

    def _results(self, sweep: Sweep, tuples: SweepTuples) -> Iterator[Batch]:
        """Make result rows of combinations: test the residual, then take the columns."""
        members = tuples.members
        start, end = tuples.start, tuples.end
        if self._residual is not None:
            tested = [self._column(sweep, members, c) for c in self._tested]
            keep = np.flatnonzero(evaluate_mask(self._residual, tested, len(start)))
            if len(keep) < len(start):
                members = {port: at[keep] for port, at in members.items()}
                start, end = start[keep], end[keep]
        if len(start):
            columns = [self._column(sweep, members, c) for c in range(self._offsets[-1])]
            yield Batch.of(columns, start, end)

    def _column(self, sweep: Sweep, members: dict[int, np.ndarray], column: int) -> pa.Array:
        port = int(np.searchsorted(self._offsets, column, "right")) - 1
        area = sweep.areas[port].elements
        assert area is not None
        values = area.rows.columns[column - self._offsets[port]]
        return pc.take(values, pa.array(members[port]), boundscheck=False)

    def _measure(self, *others: int) -> None:
        self.work.most_bytes = max(self.work.most_bytes, self.held + sum(others))


class TemporalMergeJoin(MergeJoin):
    """TPMJ: results in complete slices of time, in order."""

    def _full(self) -> Iterator[Message]:
        blocks = [self._sorted(p, rows, _STORED) for p, rows in enumerate(self._gathered)]
        self._families.append(self._write_gathered(blocks, self._heartbeats.least))
        if self._eager():
            return
        yield from self._grow()

    def _advance(self, until: int) -> Iterator[Message]:
        if until == INF:
            yield from self._flank(until, write=False)
            self._drop(self._families)
            self._families = []
            self._gather([[] for _ in range(self.ports)])
            self._rewritten = True
        elif self._eager():
            stored = sum(family.rows for family in self._families)
            stored += sum(len(rows) for some in self._gathered for rows in some)
            always = self.context.merging.strategy == "always"
            if always or self._new_rows * _PATIENCE >= stored:
                full = self.held >= self._budget.gathering * _NEARLY_FULL
                flank = self._families[0].rows if self._families else 0
                thin = 2 * self.context.state.numbers.get("live", 0) < flank
                write = always or full or thin or len(self._families) > 1
                yield from self._flank(until, write)

    @property
    def strategy(self) -> str:
        """The strategy in force."""
        strategy = self.context.merging.strategy
        if strategy != "load":
            return strategy
        full_soon = self._arrived * _PATIENCE >= self._budget.gathering
        return "maxfanin" if full_soon else "greedy"

    def _eager(self) -> bool:
        return self.strategy in ("greedy", "always")

    def _grow(self) -> Iterator[Message]:
        """Merge when there are ``fan_in`` families; the first is the flank.

        The flank takes part when the others together are as long as it is.  Until then the youngest
        of one length are merged with one another.
        """
        if self.context.merging.strategy == "never" or len(self._families) < self._fan_in:
            return
        lengths = [self._length(family) for family in self._families[1:]]
        count = len(list(next(groupby(reversed(lengths)))[1]))
        behind = sum(family.size for family in self._families[1:])
        if count > 1 and behind < self._families[0].size:
            self._plain(len(self._families) - count)
        else:
            until = max(self.since, self._families[-1].beat)
            yield from self._flank(until, write=True, gathered=False)

    def _length(self, family: Family) -> int:
        """Return the level of the merge tree on which runs of such a length stand."""
        units = max(1.0, 4 / 3 * family.size / max(1, self._budget.gathering))
        return int(np.log(units) / np.log(self._fan_in))

    def _plain(self, first: int) -> None:
        """Merge the families from ``first`` on, input by input, without a join."""
        some = self._families[first:]
        number, beat = self._next_family(), some[-1].beat
        writers = self._writers(number, beat)
        for port, writer in enumerate(writers):
            cursors = [self._cursor(port, family, 0, len(some)) for family in some]
            for _, (block,) in merged([cursors], self.work):
                if block is not None:
                    writer.add(block.rows)
        self.work.plain_merges += 1
        self._drop(some)
        self._families[first:] = [Family(number, beat, 0, [w.close() for w in writers])]

    def _flank(self, until: int, write: bool, gathered: bool = True) -> Iterator[Message]:
        """One step on the left flank: make the results that start in ``[since, until)``."""
        while len(self._families) > self._fan_in:
            excess = len(self._families) - self._fan_in + 1
            self._plain(len(self._families) - min(excess, self._fan_in * self.ports))
        cursors = self._cursors(self._families)
        stay = self._gathered
        if gathered:
            leave, stay = self._divide() if write else ([[] for _ in stay], stay)
            for port in range(self.ports):
                for rows, family in ((leave[port], _STORED), (stay[port], _IN_MEMORY)):
                    if rows:
                        cursors[port].append(Cursor.of(self._sorted(port, rows, family)))
        sweep = self._sweep(self.since)
        results = ResultSort(self._budget.results, self.work)
        number = self._next_family() if write else 0
        writers = self._writers(number, until) if write else []
        live = 0
        for bound, blocks in merged(cursors, self.work):
            joined: list[Elements | None] = []
            for port, block in enumerate(blocks):
                if block is None:
                    joined.append(None)
                    continue
                lasting = (block.rows.end > until) & (block.family != _IN_MEMORY)
                live += int(lasting.sum())
                if write:
                    writers[port].add(block.rows.take(lasting))
                joined.append(block.take(block.rows.start < until))
            for tuples in sweep.advance(joined, bound):
                for made in self._results(sweep, tuples):
                    results.add(made)
            reading = sum(c.nbytes for some in cursors for c in some)
            writing = sum(w.nbytes for w in writers)
            self._measure(reading, writing, sweep.nbytes, results.nbytes)
        yield from results.sorted(self.context.block)
        self.work.steps += 1
        self.since = until
        if write:
            self._drop(self._families)
            flank = Family(number, until, 0, [writer.close() for writer in writers])
            self._families = [flank] if flank.rows else []
            if gathered:
                self._unsaved, self._rewritten = [[] for _ in stay], True
        if gathered:
            self._new_rows = 0
            self._gather([[r.take(r.end > until) for r in some] for some in stay])
        self.context.state.numbers["live"] = live
        yield Heartbeat(until)

    def _divide(self) -> tuple[list[list[Batch]], list[list[Batch]]]:
        """Return the gathered rows that go to the flank, the older half, and the younger ones."""
        starts = [rows.start for some in self._gathered for rows in some]
        if not starts:
            return self._gathered, self._gathered
        middle = np.median(np.concatenate(starts))
        leave = [[r.take(r.start <= middle) for r in some] for some in self._gathered]
        stay = [[r.take(r.start > middle) for r in some] for some in self._gathered]
        return leave, stay


class ProgressiveMergeJoin(MergeJoin):
    """PMJ: results as soon as rows meet, in memory or in a merge; nothing is promised until INF."""

    def __init__(self, spec: ProgressiveMergeJoinSpec) -> None:
        super().__init__(spec)
        self._order = spec.order
        self._ending = False

    def _full(self) -> Iterator[Message]:
        """Join what was gathered, write it, and merge what is complete."""
        blocks = [self._sorted(p, rows, 0) for p, rows in enumerate(self._gathered)]
        sweep = self._sweep()
        for tuples in sweep.advance(blocks, np.inf):
            yield from self._results(sweep, tuples)
        if any(len(block) for block in blocks):
            self._families.append(self._write_gathered(blocks, MIN_TIME))
        if self._order == "post" and self.context.merging.strategy != "never":
            yield from self._climb(len(self._families))

    def _advance(self, until: int) -> Iterator[Message]:
        if until < INF:
            return
        self._ending = True
        yield from self._full()
        if self._order == "level":
            yield from self._by_level()
        elif self._order == "late":
            reached = 0
            while reached < len(self._families):
                count = len(self._families)
                yield from self._climb(reached + 1)
                reached += 1 - (count - len(self._families))
        while len(self._families) > self._fan_in:
            count = min(self._fan_in, len(self._families) - self._fan_in + 1)
            yield from self._multiple(len(self._families) - count, len(self._families))
        yield from self._multiple(0, len(self._families), last=True)
        self.since = INF

    def _climb(self, upto: int) -> Iterator[Message]:
        """Merge the youngest of the first ``upto`` families while ``fan_in`` share a level.

        The last merge of all, which need not write, is left out.
        """
        while upto >= self._fan_in:
            first = upto - self._fan_in
            if len({family.level for family in self._families[first:upto]}) > 1:
                return
            if self._ending and first == 0 and upto == len(self._families):
                return
            yield from self._multiple(first, upto)
            upto = first + 1

    def _by_level(self) -> Iterator[Message]:
        while len(self._families) > self._fan_in:
            groups = -(-len(self._families) // self._fan_in)
            for at in range(groups):
                last = min(at + self._fan_in, len(self._families))
                if last - at > 1:
                    yield from self._multiple(at, last)

    def _multiple(self, first: int, upto: int, last: bool = False) -> Iterator[Message]:
        """Merge families into one, and join what comes from different ones."""
        some = self._families[first:upto]
        number = self._next_family()
        writers = [] if last else self._writers(number, MIN_TIME, some[-1].level + 1)
        cursors = self._cursors(some)
        sweep = self._sweep(families=True)
        if len(some) > 1:
            for bound, blocks in merged(cursors, self.work):
                for writer, block in zip(writers, blocks, strict=bool(writers)):
                    if block is not None:
                        writer.add(block.rows)
                for tuples in sweep.advance(blocks, bound):
                    yield from self._results(sweep, tuples)
                reading = sum(c.nbytes for c in [c for some in cursors for c in some])
                self._measure(reading, sweep.nbytes, sum(w.nbytes for w in writers))
        self.work.steps += 1
        self._drop(some)
        level = some[-1].level + 1 if some else 0
        merged_family = Family(number, MIN_TIME, level, [w.close() for w in writers])
        self._families[first:upto] = [] if last else [merged_family]
