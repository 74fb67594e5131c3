"""A run with important rows that is made to crash: answers of both lanes, in many sinks."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.model import INF
from penstock.reference import Inputs, accept
from penstock.runs.checkpoint import Checkpoint
from penstock.session import Session
from penstock.sinks import read_committed
from tests.comparison import check_answer
from tests.crashes import Scenario
from tests.databases import Place
from tests.world import World

_SLACK = {"e": 0, "f": 2, "s": 1}
_FILES = {
    "near": ("jsonl", "SELECT e.k, e.x, s.x AS z FROM e [RANGE 9] JOIN s [RANGE 12] ON e.k = s.k"),
    "both": ("parquet", "SELECT e.x, f.x AS z FROM e [RANGE 9] JOIN f [RANGE 9] ON e.k = f.k"),
    "one": ("csv", "SELECT k, x, p FROM f [RANGE 3] WHERE x >= 0"),
}
_TABLES = {
    "told": "ISTREAM (SELECT e.x, e.t, s.t AS u FROM e [RANGE 9] JOIN s [RANGE 9] ON e.k = s.k)",
    "itself": "SELECT o.x, n.x AS z FROM f [RANGE 9] AS o JOIN f [RANGE 5] AS n ON o.k = n.k",
}
_FAR = {"far": "SELECT e.x, f.x AS z, s.x AS w FROM e [RANGE 9], f [RANGE 9], s [RANGE 9] "
        "WHERE e.k = f.k AND f.k = s.k"}  # fmt: skip


@dataclass
class Alarms(Scenario):
    """Streams in files, two of them with priorities; ``rate`` is how fast their rows come."""

    rate: float = 2

    @staticmethod
    def begin(
        folder: Path, rows: int = 120, postgres: str | None = None, **settings: object
    ) -> Alarms:
        """Write the files of a scenario."""
        folder.mkdir(parents=True, exist_ok=True)
        dice = random.Random(str(sorted(settings.items())))
        world = World(folder)
        for name, slack in _SLACK.items():
            found, largest = [], 0
            for x in range(rows):
                time = max(0, largest + dice.choice([-slack - 1 if slack else 0, 0, 1, 1, 2]))
                largest = max(largest, time)
                row = dice.randint(0, 3), x, dice.choice([0, 0, 1, 7]), time
                found.append((row, time))
            world.rows[name] = found
            lines = [",".join(map(str, row)) for row, _ in found]
            (folder / f"{name}.csv").write_text("\n".join(["k,x,p,t", *lines, ""]))
        usual = {"batch.rows": 10, "shards": 2, "trigger": "10ms", "lane.wait": 1.0}
        made = Alarms(folder, world, "", usual | settings, postgres)
        made.pace(made.rate)
        return made

    def pace(self, rate: float) -> None:
        """Let rows come faster or slower from the next run on."""
        self.rate = rate
        self.script = "\n".join(self._lines())
        (self.folder / "script.sql").write_text(self.script)

    def _lines(self) -> Iterable[str]:
        folder = self.folder
        for name, slack in _SLACK.items():
            important = "" if name == "s" else " PRIORITY p"
            yield (
                f"CREATE STREAM {name} (k BIGINT, x BIGINT, p BIGINT, t BIGINT) USING replay "
                f"OPTIONS (path '{folder}/{name}.csv', rate '{self.rate}') TIMESTAMP BY t "
                f"SLACK {slack}{important};"
            )
        for name, (format, text) in _FILES.items():
            yield f"CREATE SINK {name} USING {format} OPTIONS (path '{folder}/{name}');"
            yield f"CREATE QUERY {name} INTO {name} AS {text};"
        for name, text in _TABLES.items():
            options = f"path '{folder}/answers.db', table '{name}', changes 'intervals'"
            yield f"CREATE SINK {name} USING sqlite OPTIONS ({options});"
            yield f"CREATE QUERY {name} INTO {name} AS {text};"
        for name, text in _FAR.items() if self.postgres else ():
            options = f"url '{self.postgres}', table '{name}', changes 'intervals'"
            yield f"CREATE SINK {name} USING postgresql OPTIONS ({options});"
            yield f"CREATE QUERY {name} INTO {name} AS {text};"

    def inputs(self) -> Inputs:
        """What the oracle sees."""
        rows = self.world.rows
        return Inputs({name: accept(rows[name], slack)[0] for name, slack in _SLACK.items()})

    def turns(self) -> int:
        """Return how many turns of the lane the newest manifest knows."""
        newest = Checkpoint(str(self.checkpoint)).latest()
        return 0 if newest is None or not newest.lane else int(newest.lane["last"])

    def check(self) -> None:
        """Check that both lanes together have brought every answer, once."""
        with Session(autostart=False) as session:
            session.sql(self.script)
            plans = {handle.name: handle.definition.plan for handle in session.handles()}
        inputs = self.inputs()
        near = Place("sqlite", str(self.folder / "answers.db"))
        far = Place("postgresql", self.postgres or "")
        for name, plan in plans.items():
            found: list[tuple[Any, ...]]
            if name in _FILES:
                found = [tuple(row.values()) for row in read_committed(self.folder / name)]
            else:
                found = (far if name in _FAR else near).run(f"SELECT * FROM {name}")
            rows = [_interval(row, name == "told") for row in found]
            assert rows, f"{name} must have answers"
            check_answer(plan, rows, inputs)
        self.check_files()


def _interval(row: tuple[Any, ...], is_stream: bool) -> tuple[Any, int, int]:
    if is_stream:
        return tuple(row[:-1]), row[-1], INF
    return tuple(row[:-2]), row[-2], INF if row[-1] is None else row[-1]
