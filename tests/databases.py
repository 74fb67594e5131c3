"""Tables of databases in tests: where they are, what they hold, and a program that fills them.

``python -m tests.databases FILE`` publishes the batches of a query to the tables that a JSON file
names, as a pipeline does: a batch is committed first, in a file of its own, then it is delivered;
after a restart the last one is delivered again.  Each of the file's orders to fail is given to a
process of its own, one after the other; how they ended is printed.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from penstock.algebra import Aggregate, Node, Window
from penstock.catalog import SinkDef
from penstock.expr.nodes import AggregateCall, Column
from penstock.model import Schema
from penstock.reference.expressions import canonical
from penstock.runs import failpoints
from penstock.sinks import Result, Sink, SinkRequest, delivery_mode, open_sink
from penstock.sinks.delivery import hand_over
from penstock.windows import WindowSpec
from tests.deliveries import DeliveringEngine
from tests.strategies import LONG, SCANS, STRING, Data, many_rows

_numbers = count()


@dataclass(frozen=True)
class Place:
    """A database; ``address`` is a file of SQLite or a URL of PostgreSQL."""

    kind: str
    address: str

    def sink(self, table: str, **options: str) -> SinkDef:
        """Return the definition of a sink that fills a table."""
        where = "path" if self.kind == "sqlite" else "url"
        return SinkDef("out", self.kind, {where: self.address, "table": table} | options)

    def open(
        self,
        table: str,
        schema: Schema,
        mode: str,
        query: str = "q",
        run: str | None = None,
        timestamps: bool = False,
        **options: str,
    ) -> Sink:
        """Open a sink that fills a table."""
        given = options | ({"changes": "view"} if mode == "delta" else {})
        sink = open_sink(
            self.sink(table, **given),
            SinkRequest(query, mode, schema, run=run, timestamps=timestamps),
        )
        sink.begin()
        return sink

    def connect(self) -> Any:
        """Return a connection of a reader."""
        if self.kind == "sqlite":
            return sqlite3.connect(self.address, timeout=30, isolation_level=None)
        return psycopg.connect(self.address, autocommit=True)

    def run(self, statement: str) -> list[tuple]:
        """Run a statement and return its rows."""
        connection = self.connect()
        try:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def rows(self, table: str) -> Counter:
        """Return what a table holds, as a bag."""
        return Counter(shown(row) for row in self.run(f'SELECT * FROM "{table}"'))

    def note(self, table: str) -> tuple[int, int | None]:
        """Return the last batch of a table and the instant that it shows."""
        found = self.run(f"SELECT batch, as_of FROM penstock_batches WHERE table_name = '{table}'")
        ((batch, as_of),) = found
        return batch, as_of

    def new_table(self) -> str:
        """Return a name that no table has."""
        return f"t {next(_numbers)}"


def shown(row: tuple) -> tuple:
    """Return values as they compare in every database: booleans as numbers."""
    return tuple(int(v) if isinstance(v, bool) else canonical(v) for v in row)


def table_rows(result: Result) -> list[tuple]:
    columns = [column.to_pylist() for column in result.table.columns]
    return [shown(row) for row in zip(*columns, strict=True)]


# What the program publishes


def story(seed: int = 7) -> tuple[Node, Data, dict[str, list[Result]]]:
    """Return a query, its input, and its batches as a delta and as a log."""
    plan = Aggregate(
        Window(SCANS["s"], WindowSpec(range=9)),
        (Column(0, STRING),),
        (AggregateCall("count", None, LONG), AggregateCall("max", Column(1, LONG), LONG)),
        ("k", "n", "top"),
    )
    data = many_rows(random.Random(seed), 60)
    results = {}
    for mode in ("delta", "log"):
        engine = DeliveringEngine(plan, mode=mode, shards=2)
        rows = [values for values, _ in data.streams["s"]]
        for first in range(0, len(rows), 10):
            engine.batch({"s": rows[first : first + 10]})
        engine.batch({}, final=True)
        results[mode] = engine.results
    return plan, data, results


def publish_all(order: dict[str, Any], plan: Node, results: dict[str, list[Result]]) -> None:
    """Deliver every batch of the story to the tables that an order names."""
    folder = Path(order["folder"])
    place = Place(order["kind"], order["address"])
    sinks = {}
    for mode, table in order["tables"].items():
        definition = place.sink(table, changes="view" if mode == "delta" else mode)
        assert delivery_mode(definition) == mode
        sinks[mode] = place.open(table, plan.schema, mode, run="1")
    committed = folder / "committed"
    first = int(committed.read_text()) if committed.exists() else 0
    for batch in range(first, 1 + max(r.batch for some in results.values() for r in some)):
        committed.write_text(str(batch))
        for mode, sink in sinks.items():
            for result in results[mode]:
                if result.batch == batch:
                    hand_over(sink, result)


def main() -> None:
    order = json.loads(Path(sys.argv[1]).read_text())
    plan, _, results = story()
    for fail in order["fail"]:
        child = os.fork()
        if child == 0:
            failpoints.arm(fail)
            publish_all(order, plan, results)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
