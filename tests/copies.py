"""A run with every kind of stream and sink, whose files are copied, brought back and damaged."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet

from penstock.asking.checkpoints import open_checkpoint
from penstock.runs.manifest import batches_in
from penstock.session import Session
from penstock.sinks import read_committed

BATCHES = 12
ROWS = 10
SETTINGS = {
    "batch.rows": ROWS,
    "batch.files": 1,
    "batch.seconds": 0,
    "shards": 2,
    "trigger": "10ms",
    "retain.manifests": 3,
}

QUERIES = {
    "sums": ("jsonl", "intervals", "SELECT k, SUM(v) AS total FROM s [RANGE 20] GROUP BY k"),
    "rows": ("csv", "intervals", "ISTREAM (SELECT * FROM m [NOW])"),
    "counts": ("parquet", "log", "SELECT k, COUNT(*) AS n FROM w [ROWS 5] GROUP BY k"),
    "shown": ("jsonl", "view", "SELECT k, MAX(v) AS top FROM s [ROWS 7] GROUP BY k"),
    "logged": ("sqlite", "log", "SELECT k, COUNT(*) AS n FROM s [RANGE 9] GROUP BY k"),
    "table": ("sqlite", "view", "SELECT k, SUM(v) AS total FROM m [ROWS 7] GROUP BY k"),
    "called": ("callback", "intervals", "SELECT s.k, m.v FROM s [NOW], m [NOW] WHERE s.t = m.t"),
}
VIEW = "SELECT k, SUM(v) AS total FROM w [ROWS 9] GROUP BY k"


@dataclass
class Life:
    """A folder with inputs, a script, its checkpoint and its sinks.

    ``places`` are the folders that a copy holds; inputs are shared by all copies.
    """

    folder: Path
    inputs: Path
    postgres: str | None = None
    called: list[tuple[int, list[tuple[Any, ...]]]] = field(default_factory=list)
    options: str = ""

    @staticmethod
    def begin(root: Path, postgres: str | None = None) -> Life:
        """Write the inputs of a new life."""
        inputs = root / "inputs"
        inputs.mkdir(parents=True)
        lines = ["k,v,t"]
        for i in range(BATCHES * ROWS):
            if i == 33:
                lines.append("x,bad,1")
            lines.append(f"{i % 4},{i},{i if i % 17 else max(0, i - 9)}")
        (inputs / "s.csv").write_text("\n".join(lines) + "\n")
        for batch in range(BATCHES):
            at = range(batch * ROWS, (batch + 1) * ROWS)
            table = pa.table({"k": [i % 3 for i in at], "v": list(at), "t": list(at)})
            path = inputs / "w" / f"{batch:03d}.parquet"
            path.parent.mkdir(exist_ok=True)
            pyarrow.parquet.write_table(table, path)
            os.utime(path, ns=(batch * 10**9, batch * 10**9))
        life = Life(root / "life", inputs, postgres)
        life.folder.mkdir()
        return life

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def script(self) -> str:
        """The statements of the run, for this folder."""
        columns = "(k INT, v INT, t BIGINT)"
        out = self.folder
        lines = [
            f"CREATE SINK late USING jsonl OPTIONS (path '{out}/late');",
            f"CREATE SINK bad USING jsonl OPTIONS (path '{out}/bad');",
            f"CREATE STREAM s {columns} USING replay OPTIONS (path '{self.inputs}/s.csv'"
            f"{self.options}) TIMESTAMP BY t ON ERROR DEADLETTER bad LATE INTO late;",
            f"CREATE STREAM m {columns} USING memory TIMESTAMP BY t;",
            f"CREATE STREAM w {columns} USING parquet OPTIONS (path '{self.inputs}/w') "
            f"TIMESTAMP BY t;",
            f"CREATE MATERIALIZED VIEW kept AS {VIEW};",
        ]
        for name, (format, changes, text) in self.queries().items():
            where = f"path '{out}/{name}'"
            if format == "sqlite":
                where = f"path '{out}/answers.db', table '{name}'"
            if format == "postgresql":
                where = f"url '{self.postgres}', table '{name}'"
            options = "" if format == "callback" else f"OPTIONS ({where}, changes '{changes}')"
            lines.append(f"CREATE SINK {name} USING {format} {options};")
            lines.append(f"CREATE QUERY {name} INTO {name} AS {text};")
        return "\n".join(lines)

    def queries(self) -> dict[str, tuple[str, str, str]]:
        """Return format, changes and text of each query."""
        found = dict(QUERIES)
        if self.postgres is not None:
            text = "SELECT k, MIN(v) AS least FROM s [RANGE 9] GROUP BY k"
            found["far"] = ("postgresql", "log", text)
        return found

    def session(self, spark: Any, **options: Any) -> Session:
        """Open a session on the checkpoint, with everything declared and nothing started."""
        session = Session(
            spark,
            checkpoint=self.checkpoint,
            settings=SETTINGS,
            autostart=False,
            **options,
        )
        try:
            session.callback("called", self._call)
            session.sql(self.script)
        except BaseException:
            session.close()
            raise
        return session

    def _call(self, batch: int, rows: pa.Table) -> None:
        self.called.append((batch, [tuple(row.values()) for row in rows.to_pylist()]))

    def push(self, session: Session) -> None:
        """Push all rows of the memory stream."""
        for batch in range(BATCHES):
            at = range(batch * ROWS, (batch + 1) * ROWS)
            session.push("m", [(i % 5, i, i) for i in at])
        session.finish("m")

    def run(self, spark: Any, until: int | None = None, **options: Any) -> int:
        """Run until a batch is committed, or until nothing is left; return the last batch."""
        with self.session(spark, **options) as session:
            if not (self.checkpoint / "spool" / "m").exists():
                self.push(session)
            session.start()
            if until is None:
                session.await_idle()
            else:
                deadline = time.monotonic() + 250
                while self.batch() < until:
                    session.check()
                    assert time.monotonic() < deadline
                    time.sleep(0.005)
        return self.batch()

    def batch(self) -> int:
        """Return the number of the newest manifest."""
        return max(batches_in(self.checkpoint / "manifest"), default=-1)

    def copy(self, name: str) -> Life:
        """Return a copy of checkpoint and sinks; the inputs are shared."""
        target = self.folder.parent / name
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(self.folder, target, symlinks=True)
        return Life(target, self.inputs, self.postgres, list(self.called), self.options)

    def bring_back(self, copy: Life) -> None:
        """Put the checkpoint of a copy in place of ours; the sinks stay as they are."""
        shutil.rmtree(self.checkpoint)
        shutil.copytree(copy.checkpoint, self.checkpoint)

    def answers(self) -> dict[str, Counter[Any]]:
        """Return what every sink holds, and the view that is kept, as bags."""
        found: dict[str, Counter[Any]] = {}
        for name, (format, _, _) in self.queries().items():
            if format in ("jsonl", "csv", "parquet"):
                rows = [tuple(row.values()) for row in read_committed(self.folder / name)]
                found[name] = Counter(rows)
            elif format == "sqlite":
                found[name] = self.table(name)
        for name in ("late", "bad"):
            rows = []
            for path in sorted((self.folder / name).glob("*.jsonl")):
                rows += [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = Counter(tuple(row.values()) for row in rows)
        found["called"] = Counter(row for _, rows in self.called for row in rows)
        kept = open_checkpoint(self.checkpoint).query("SELECT * FROM kept").to_arrow()
        found["kept"] = Counter(tuple(row.values()) for row in kept.to_pylist())
        return found

    def table(self, name: str) -> Counter[Any]:
        """Return the rows of a table of SQLite."""
        connection = sqlite3.connect(self.folder / "answers.db")
        try:
            return Counter(connection.execute(f'SELECT * FROM "{name}"').fetchall())
        finally:
            connection.close()

    def far(self) -> Counter[Any]:
        """Return the rows of the table of PostgreSQL."""
        with psycopg.connect(self.postgres or "") as connection:
            return Counter(connection.execute("SELECT * FROM far").fetchall())

    def tree(self) -> dict[str, int]:
        """Return all files with their sizes, but for those that any start writes."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            name = str(path.relative_to(self.folder))
            if path.is_file() and name not in ("checkpoint/lock", "checkpoint/epoch"):
                found[name] = path.stat().st_size
        return found
