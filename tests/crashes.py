"""A run that is made to crash: its script, its process, and what must be true when it has ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from penstock.algebra import Node
from penstock.asking.checkpoints import open_checkpoint
from penstock.model import INF
from penstock.reference import Inputs, relation, snapshot_at
from penstock.reference.expressions import canonical
from penstock.runs.checkpoint import Checkpoint
from penstock.runs.manifest import batches_in
from penstock.session import Session
from penstock.sinks import read_committed
from tests.comparison import check_answer, same_bag
from tests.databases import Place
from tests.world import SLACK, World, make_world

QUERIES = {
    "recent": "SELECT * FROM s [ROWS 3]",
    "totals": "SELECT k, COUNT(*) AS n, SUM(y) AS total FROM s [RANGE 9] GROUP BY k",
    "others": "SELECT k FROM s [RANGE 6] EXCEPT SELECT k FROM r [RANGE 6]",
    "pairs": "SELECT s.x, r.x AS z FROM s [RANGE 5] JOIN r [ROWS 4] ON s.k = r.k",
    "births": "ISTREAM (SELECT k, MAX(x) AS top FROM r [RANGE 5] GROUP BY k)",
    "near": "SELECT s.x, q.x AS z FROM s [RANGE 5], q [ROWS 6] WHERE ABS(s.x - q.x) <= 1",
    "later": "SELECT s.y, r.x FROM s [RANGE 4], r [RANGE 4] WHERE s.y < r.x",
    "lonely": "SELECT s.k, s.x, r.x AS z FROM s [RANGE 6] LEFT JOIN r [ROWS 4] ON s.k = r.k",
    "both": "SELECT s.k, s.x, r.x AS z FROM s [PARTITION BY k ROWS 2] FULL JOIN r [RANGE 5] "
    "ON s.x = r.x",
    "nearest": "SELECT s.k, s.x, r.x AS z FROM s [RANGE 6] ASOF JOIN r [RANGE 9] "
    "ON s.k = r.k AND s.t >= r.t",
    "three": "SELECT s.x, r.x AS z, q.b FROM s [RANGE 5], r [ROWS 4], q [RANGE 5] "
    "WHERE s.x = r.x AND r.x = q.x",
    "close": "SELECT s.x, r.x AS z FROM s [RANGE 3] JOIN r [RANGE 7] ON s.k = r.k WHERE s.x < 4",
    "wide": "SELECT s.k, COUNT(*) AS n FROM s [RANGE 9] JOIN r [RANGE 2] ON s.k = r.k GROUP BY s.k",
    "facts": "SELECT s.k, d.x FROM s [RANGE 4] JOIN d ON s.k = d.k",
    "running": "SELECT k, x, SUM(y) OVER (PARTITION BY k ORDER BY t ROWS BETWEEN 2 PRECEDING AND "
    "CURRENT ROW) AS total, LAG(x) OVER (PARTITION BY k ORDER BY t) AS before FROM s",
}
STREAMS = ("births", "running")
"""Queries whose answers are streams: rows with one time."""

TABLES = {
    "held": ("view", "SELECT k, COUNT(*) AS n, MAX(x) AS top FROM s [RANGE 9] GROUP BY k"),
    "told": ("log", "SELECT k, x FROM r [ROWS 3]"),
}
"""Queries whose answers are kept in tables of a database, and how."""
FORMATS = {"totals": "csv", "others": "parquet", "pairs": "parquet"}
"""The queries whose answers are not in lines of JSON."""

SHOWN = {"shown": "SELECT k, MIN(x) AS least FROM s [RANGE 9] GROUP BY k"}
"""Queries whose answers are files that hold the newest snapshot."""

FAR = {
    "far_held": ("view", "SELECT k, COUNT(*) AS n FROM r [ROWS 5] GROUP BY k"),
    "far_told": ("log", "SELECT b, x FROM q [ROWS 3]"),
}
"""Queries whose answers are kept in PostgreSQL, where there is one."""

VIEWS = {
    "newest": "SELECT k, x FROM s [ROWS 3]",
    "summed": "SELECT k, COUNT(*) AS n FROM s [RANGE 9] GROUP BY k",
}
"""What is kept for one-time queries, for a while."""
KEEP = 6


@dataclass
class Scenario:
    """Streams in files, a script with sinks of files and tables, and a checkpoint."""

    folder: Path
    world: World
    script: str
    settings: dict[str, object]
    postgres: str | None = None

    @staticmethod
    def make(
        folder: Path,
        rows: int = 60,
        options: str = "",
        postgres: str | None = None,
        **settings: object,
    ) -> Scenario:
        """Write the files of a scenario; ``postgres`` is the address of an empty database."""
        folder.mkdir(parents=True, exist_ok=True)
        world = make_world(folder, rows)
        declared = world.declarations("LATE INTO late")
        declared = declared.replace("null 'NULL'", f"null 'NULL'{options}")
        lines = [f"CREATE SINK late USING jsonl OPTIONS (path '{folder}/late');", declared]
        for name, text in QUERIES.items():
            format = FORMATS.get(name, "jsonl")
            lines.append(f"CREATE SINK {name} USING {format} OPTIONS (path '{folder}/{name}');")
            lines.append(f"CREATE QUERY {name} INTO {name} AS {text};")
        for name, text in SHOWN.items():
            options = f"path '{folder}/{name}', changes 'view'"
            lines.append(f"CREATE SINK {name} USING jsonl OPTIONS ({options});")
            lines.append(f"CREATE QUERY {name} INTO {name} AS {text};")
        for name, (changes, text) in TABLES.items():
            options = f"path '{folder}/answers.db', table '{name}', changes '{changes}'"
            lines.append(f"CREATE SINK {name} USING sqlite OPTIONS ({options});")
            lines.append(f"CREATE QUERY {name} INTO {name} AS {text};")
        for name, (changes, text) in FAR.items() if postgres else ():
            options = f"url '{postgres}', table '{name}', changes '{changes}'"
            lines.append(f"CREATE SINK {name} USING postgresql OPTIONS ({options});")
            lines.append(f"CREATE QUERY {name} INTO {name} AS {text};")
        for name, text in VIEWS.items():
            lines.append(f"CREATE MATERIALIZED VIEW {name} KEEP {KEEP} AS {text};")
        script = "\n".join(lines)
        (folder / "script.sql").write_text(script)
        return Scenario(
            folder,
            world,
            script,
            {
                "batch.rows": 10,
                "shards": 2,
                "trigger": "10ms",
                "train.rows": 4,
                "scheduler": "mergedchain",
            }
            | settings,
            postgres,
        )

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def start(self, fail: str = "") -> subprocess.Popen[str]:
        """Start the command in a process of its own, with orders to fail."""
        words = [Path(sys.executable).parent / "penstock", "run", self.folder / "script.sql"]
        words += ["--checkpoint", self.checkpoint]
        for name, value in self.settings.items():
            words += ["--set", f"{name}={value}"]
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        environment = os.environ | {"PENSTOCK_FAIL": fail, "TMPDIR": str(temporary)}
        return subprocess.Popen(
            list(map(str, words)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, fail: str = "", timeout: float = 400) -> tuple[int, str]:
        """Run the command; return its exit code and what it said. Waits for its Spark as well."""
        process = self.start(fail)
        _, told = process.communicate(timeout=timeout)
        return process.returncode, told

    def batch(self) -> int:
        """Return the number of the last committed batch."""
        return max(batches_in(self.checkpoint / "manifest"), default=-1)

    def check(self) -> None:
        """Check that nothing is lost, nothing came twice, and no garbage is left."""
        with Session(autostart=False) as session:
            session.sql(self.script)
            plans = {handle.name: handle.definition.plan for handle in session.handles()}
        inputs = self.world.inputs()
        near = Place("sqlite", str(self.folder / "answers.db"))
        for name in TABLES:
            self.check_table(near, TABLES[name][0], name, plans.pop(name))
        for name in FAR if self.postgres else ():
            far = Place("postgresql", self.postgres or "")
            self.check_table(far, FAR[name][0], name, plans.pop(name))
        self.check_views({name: plans.pop(name) for name in VIEWS}, inputs)
        for name in SHOWN:
            self.check_shown(name, plans.pop(name), inputs)
        for name, plan in plans.items():
            rows = []
            for row in read_committed(self.folder / name):
                values = list(row.values())
                if name in STREAMS:
                    rows.append((tuple(values[:-1]), values[-1], INF))
                else:
                    end = INF if values[-1] is None else values[-1]
                    rows.append((tuple(values[:-2]), values[-2], end))
            assert rows, f"{name} must have answers"
            check_answer(plan, rows, inputs)
        late: Counter[object] = Counter()
        for path in (self.folder / "late").glob("*.jsonl"):
            for line in path.read_text().splitlines():
                late[tuple(json.loads(line).values())] += 1
        expected = [values for name in SLACK for values, _ in self.world.late(name)]
        assert set(SLACK) == {"s", "r", "q"}  # the queries read all of them
        assert late == Counter(expected)
        self.check_files()

    def check_shown(self, name: str, plan: Node, inputs: Inputs) -> None:
        """Check a file that holds the newest snapshot."""
        marker = json.loads((self.folder / name / "_penstock.json").read_text())
        as_of = marker["queries"][name]["as_of"]
        rows = Counter(tuple(row.values()) for row in read_committed(self.folder / name))
        assert rows
        same_bag(rows, snapshot_at(relation(plan, inputs), as_of), as_of)

    def check_table(self, place: Place, changes: str, name: str, plan: Node) -> None:
        """Check a table: a view is the snapshot of its instant, a log replays to every snapshot."""
        steps = relation(plan, self.world.inputs())
        if changes == "view":
            batch, as_of = place.note(name)
            assert batch <= self.batch()
            assert as_of is not None
            assert place.rows(name)
            same_bag(place.rows(name), snapshot_at(steps, as_of), as_of)
            return
        counts: Counter[object] = Counter()
        changes = place.run(f"SELECT * FROM {name} ORDER BY _time")
        for time, some in groupby(changes, key=lambda row: row[-2]):
            for *values, _, sign in some:
                counts[tuple(values)] += sign
            same_bag(+counts, snapshot_at(steps, time), time)
        assert {row[-2] for row in changes} == {time for time, _ in steps}

    def check_views(self, plans: dict[str, Node], inputs: Inputs) -> None:
        """Check what is kept, at the last instant and before it."""
        view = open_checkpoint(self.checkpoint)
        for name, plan in plans.items():
            last = view.query(f'SELECT * FROM "{name}"').valid_at
            assert isinstance(last, int)
            seen = 0
            for time in range(last - KEEP, last + 1):
                rows = view.query(f'SELECT * FROM "{name}" AS OF {time}').to_arrow().to_pylist()
                found = Counter(tuple(map(canonical, row.values())) for row in rows)
                seen += found.total()
                same_bag(found, snapshot_at(relation(plan, inputs), time), time)
            assert seen, f"{name} must hold something"

    def check_files(self) -> None:
        """Check that the checkpoint holds what its two newest manifests name, and no more."""
        checkpoint = Checkpoint(str(self.checkpoint))
        latest = checkpoint.latest()
        assert latest is not None
        before = checkpoint.read(latest.batch - 1)
        named = latest.files() | (set() if before is None else before.files())
        assert set(os.listdir(checkpoint.segments)) <= named
        assert not list((self.checkpoint / "manifest").glob("*.tmp"))
        checkpoint.check_files(latest)
        checkpoint.log.check_offsets(latest)
        for name, progress in latest.progress.items():
            rows = progress["accepted"] + progress["late"] + progress["rejected"]
            assert rows == len(self.world.rows[name])
