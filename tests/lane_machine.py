"""The lane as it is, keeper, taps, spools and journal, beside an engine without Spark.

One seed is one case.  Everything happens in one thread, in a random order: rows are pushed, turns
are answered, batches are handed over, run again after a failure, and committed; the clock and
silences move time; the process of the lane is lost; the whole program is killed and starts again
from its files.  What both lanes delivered must be the oracle's bag.

``python -m tests.lane_machine --cases 1000`` runs many.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock import cql
from penstock.catalog import StreamDef
from penstock.lane import keeper
from penstock.lane.answering import Answerer, Asked, Committed
from penstock.lane.journal import Journal, Mark, Turn
from penstock.lane.keeper import Lane
from penstock.lane.tap import Block, Tap
from penstock.lane.worker import Question, Renewal, WorkerLostError
from penstock.model import Batch, one_array
from penstock.physical.progress import Decision, Timeline
from penstock.reference import Inputs, accept
from penstock.runs.manifest import Manifest
from penstock.settings import Settings
from penstock.sources.spool import Spool, SpoolFiles, SpoolPosition
from penstock.testing.local import LocalEngine, to_table
from tests.comparison import check_answer
from tests.random_lanes import Case, case_of, declared, rows_of

RUN = "0123456789abcdef"


class Inside:
    """Answers in this process, and is lost when it is told to be."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._answerer: Answerer | None = None
        self.pid, self.started = 0, False

    def await_start(self) -> None:
        return None

    def renew(self, told: Renewal) -> None:
        self._answerer = Answerer(told.plan, told.settings)
        storage = self._machine.engine._storage
        committed = Committed(told.batch, told.states, told.beats, storage, told.routes)
        self._answerer.renew(committed, told.memory)
        self._answerer.warm()
        self.started = True

    def answer(self, question: Question) -> dict[str, pa.Table]:
        assert self._answerer is not None
        if self._machine.dice.random() < self._machine.losing:
            raise WorkerLostError("it was killed")
        asked = {
            name: Asked([one_array(c) for c in table.columns], time)
            for name, (table, time) in question.rows.items()
        }
        found = self._answerer.answer(asked, question.turn)
        self._machine.while_answering()
        return {q: rows.to_table().drop_columns("_holder") for q, rows in found.items()}

    def close(self) -> None:
        self._answerer = None


class Unstarted:
    """Stands for the thread of the lane: turns are taken by the machine."""

    def join(self, timeout: float | None = None) -> None:
        return None

    def is_alive(self) -> bool:
        return False


class KilledError(Exception):
    """The program ends here."""


class StumbledError(Exception):
    """A sink fails; the program goes on, and starts its queries again."""


class Machine:
    """One case at work."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.dice = random.Random(case.seed + 2)
        self.case, self.folder = case, folder
        catalog = declared(case)
        self.plans = {n: cql.bind_query(text, catalog) for n, text in case.queries.items()}
        self.engine = LocalEngine(
            self.plans,
            {"d": case.table},
            shards=case.shards,
            settings=case.settings,
            slack=case.slack,
        )
        rules = replace(next(iter(catalog.streams.values())).timing, slack=case.slack)
        self.streams: dict[str, StreamDef] = {
            name: replace(stream, timing=rules)
            for name, stream in catalog.streams.items()
            if name in self.engine.streams
        }
        self.spools = {
            name: Spool(folder / name, stream.schema, fsync=False)
            for name, stream in self.streams.items()
        }
        self.pushed: dict[str, list[tuple]] = {name: [] for name in self.streams}
        self.offsets: dict[str, SpoolPosition] = dict.fromkeys(self.streams, SpoolPosition())
        self.manifest = Manifest(run=RUN, shards=case.shards, states=[])
        self.losing = self.dice.choice([0.0, 0.0, 0.2])
        self.killing = self.dice.choice([0.0, 0.05, 0.2])
        self.deciding = self.dice.choice([0.0, 0.0, 0.3])
        self.stumbling = self.dice.choice([0.0, 0.0, 0.1])
        self.failing = self.dice.choice([0.0, 0.0, 0.1])
        self.config = Settings(
            {
                "lane.wait": 0.0,
                "lane.rows": self.dice.choice([1, 2, 128]),
                "lane.queue": self.dice.choice(["normal", "weak", "strong", "levels"]),
                "fsync": False,
                **case.settings,
            }
        )
        self.delivered: dict[int, dict[str, list[tuple]]] = {}
        self.count: Counter = Counter()
        self.planned: dict[str, SpoolPosition] | None = None
        self.lane = self._lane()

    # -- the lane --------------------------------------------------------------------------------

    def _lane(self) -> Lane:
        mark = Mark.of(self.manifest.lane, RUN)
        journal = Journal.open(self.folder, mark, self.manifest.batch, fsync=False)
        lane = Lane(
            str(self.folder),
            self.config,
            journal,
            self._deliver,
            self._lost,
            lambda name: str(self.folder / name),
        )
        for turn in journal.turns():  # what was not delivered is
            self._deliver(turn)
        self._begin(lane)
        return lane

    def _begin(self, lane: Lane) -> None:
        lane._thread = Unstarted()  # type: ignore[assignment]
        lane.begin(self.streams)
        if self.manifest.batch >= 0:
            lane.committed(self.manifest, self.engine.plan, {}, self._described(self.offsets))

    def poll(self, poll: Callable[[Tap], Iterator[Block]], tap: Tap) -> Iterator[Block]:
        """Read a tap, which may fail after some rows."""
        for block in poll(tap):
            if self.dice.random() < self.failing:
                raise OSError("too many open files")
            yield block

    def _lost(self, error: BaseException) -> None:
        raise error

    def _deliver(self, turn: Turn) -> None:
        if self.dice.random() < self.killing:
            raise KilledError
        if self.dice.random() < self.stumbling:
            raise StumbledError
        found = {}
        for query in turn.results:
            rows = Batch.from_table(turn.results[query])
            found[query] = rows_of(rows)
        before = self.delivered.setdefault(turn.number, found)
        assert before == found  # the same turn again is the same
        if self.dice.random() < self.killing:
            raise KilledError

    def _described(self, positions: Mapping[str, SpoolPosition]) -> dict[str, dict[str, Any]]:
        return {name: dict(place.to_json()) for name, place in positions.items()}

    def while_answering(self) -> None:
        """What may happen between the question and the journal: a batch is handed over."""
        if self.planned is None and self.dice.random() < 0.3:
            self.hand_over(self.dice.random() < 0.5)

    # -- what happens ----------------------------------------------------------------------------

    def push(self, name: str, row: tuple) -> None:
        table = to_table(self.streams[name].schema, [row])
        self.spools[name].push(table.rename_columns(list(self.streams[name].schema.names)))
        self.pushed[name].append(row)

    def turns(self) -> None:
        """Let the lane work for a while."""
        self.lane._look()
        for _ in range(self.dice.randrange(4)):
            if self.lane._is_ready():
                self.lane._turn()
        self.lane._retry_at = 0.0

    def hand_over(self, everything: bool) -> None:
        """Plan a batch, and give its rows to the main lane."""
        planned = {}
        for name, place in self.offsets.items():
            end = SpoolFiles(self.folder / name).end()
            keep = not everything and self.dice.random() < 0.3
            planned[name] = place if keep else end
        self.planned = planned
        self.decisions = {} if everything else self._decisions()
        self._hand_over()

    def _hand_over(self) -> None:
        assert self.planned is not None
        timeline = Timeline(self.engine.progress, decisions=self.decisions)
        answered, ceilings = self.lane.hand_over(self._described(self.planned), timeline)
        self.engine.answered, self.engine.ceilings = answered, ceilings

    def _decisions(self) -> dict[str, Decision]:
        found = {}
        for name in self.streams:
            if self.dice.random() < self.deciding:
                newest = max((row[-1] for row in self.pushed[name]), default=0)
                floor = newest + self.dice.choice([-6, -2, 0, 1])
                idle: frozenset[str | None] = frozenset()
                if self.dice.random() < 0.3:
                    known = self.engine.progress[name].partitions
                    idle = frozenset(known) if known else frozenset((None,))
                found[name] = Decision({None: floor}, idle)
        return found

    def batch(self, final: bool = False) -> None:
        """Run the batch that was handed over, perhaps after a failure, and commit it."""
        if self.planned is None:
            self.hand_over(final)
        if self.dice.random() < self.killing:
            raise KilledError  # and the batch is planned anew
        if self.dice.random() < 0.2:
            self._hand_over()  # it failed, and is run again
        assert self.planned is not None
        rows = {
            name: self.pushed[name][self.offsets[name].ordinal : end.ordinal]
            for name, end in self.planned.items()
        }
        described = self._described(self.planned)
        self.engine.batch(rows, final, self.decisions)
        mark = self.lane.mark(described).describe() if self.lane.journal.last else {}
        progress = {name: found.describe() for name, found in self.engine.progress.items()}
        self.manifest = Manifest(
            batch=self.engine.number - 1,
            run=RUN,
            shards=self.case.shards,
            progress=progress,
            states=[dict(states) for states in self.engine._states],
            lane=mark,
        )
        self.offsets, self.planned = self.planned, None
        if self.dice.random() < self.killing:
            raise KilledError
        split = self.engine.committed().routes
        self.lane.committed(self.manifest, self.engine.plan, split, described)
        self.lane.tidy()

    def guarded(self, do: Callable[[], None]) -> None:
        """Do something; where the program is killed, it starts again from its files."""
        try:
            do()
        except KilledError:
            self.count["killed"] += 1
            killing, self.killing = self.killing, 0.0
            stumbling, self.stumbling = self.stumbling, 0.0
            self.planned = None
            self.lane.journal.close()
            self.lane = self._lane()
            self.killing, self.stumbling = killing, stumbling
        except StumbledError:
            self.count["stumbled"] += 1
            rates, self.killing, self.stumbling = (self.killing, self.stumbling), 0.0, 0.0
            self.planned = None
            self.lane.stop()
            self._begin(self.lane)
            self.killing, self.stumbling = rates

    def run(self) -> Counter:
        """Run the case to its end and compare."""
        for name, row in self.case.arrivals:
            if name not in self.streams:
                continue
            self.push(name, row)
            if self.dice.random() < 0.5:
                self.guarded(self.turns)
            if self.planned is not None or self.dice.random() < 0.3:
                self.guarded(self.batch)
        self.guarded(self.turns)
        while self.planned is not None or any(
            self.offsets[name].ordinal < len(rows) for name, rows in self.pushed.items()
        ):
            self.guarded(lambda: self.batch())
        self.killing = self.stumbling = 0.0
        self.batch(final=True)
        assert not self.lane.answered  # all that was answered is in batches, and forgotten
        kept = {}
        for name, rows in self.pushed.items():
            late = Counter(self.engine.late[name])
            if self.deciding == 0.0:  # who is late follows from the rows alone, whoever answers
                wanted = accept([(row, row[-1]) for row in rows], self.case.slack)[1]
                assert late == Counter(row for row, _ in wanted)
            kept[name] = []
            for row in rows:
                if late[row]:
                    late[row] -= 1
                else:
                    kept[name].append((row, row[-1]))
        given = Inputs(kept, {"d": self.case.table})
        for name, plan in self.plans.items():
            early = [row for turn in self.delivered.values() for row in turn.get(name, [])]
            check_answer(plan, self.engine.answers[name] + early, given)
            self.count["lane"] += len(early)
            self.count["main"] += len(self.engine.answers[name])
        self.count["late"] += sum(map(len, self.engine.late.values()))
        self.count["turns"] += len(self.delivered)
        return self.count


@contextmanager
def running(seed: int, folder: Path) -> Iterator[Machine]:
    """Prepare the case of a seed."""
    whole, poll = keeper.Worker, Tap.poll
    machine = Machine.__new__(Machine)
    keeper.Worker = lambda patience: Inside(machine)  # type: ignore[assignment, misc]
    Tap.poll = lambda tap: machine.poll(poll, tap)  # type: ignore[method-assign]
    try:
        machine.__init__(case_of(seed), folder)  # type: ignore[misc]
        yield machine
    finally:
        keeper.Worker = whole  # type: ignore[misc]
        Tap.poll = poll  # type: ignore[method-assign]
        machine.lane.journal.close()


def run(seed: int) -> Counter:
    """Run the case of a seed."""
    with tempfile.TemporaryDirectory() as folder, running(seed, Path(folder)) as machine:
        return machine.run()


def main() -> int:
    """Run many cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    total: Counter = Counter()
    failed = []
    for seed in range(options.first, options.first + options.cases):
        try:
            total += run(seed)
        except Exception as error:
            failed.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}")
            if len(failed) > 9:
                break
    print(f"{dict(total)}, failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
