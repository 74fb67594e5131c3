"""The random cases of `tests.random_lanes` on Spark, with the real lane: ``--cases 50``.

Rows are pushed as they come in the case, with pauses here and there; the session is closed and
opened again in the middle of some.  What both lanes delivered must be the oracle's bag.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock import Session, cql
from penstock.model import INF
from penstock.reference import Inputs, accept
from tests.comparison import check_answer
from tests.conftest import small_session
from tests.random_lanes import STREAMS, Case, case_of, declared


class Answers:
    """What the callbacks got, by query: rows by batches and by turns."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple]] = {}
        self.by_lane: Counter = Counter()

    def take(self, query: str) -> Any:
        def got(number: int, table: pa.Table) -> None:
            width = table.num_columns - (1 if "_time" in table.column_names else 2)
            for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                times = row[width:]
                end = INF if len(times) == 1 or times[1] is None else times[1]
                self.rows.setdefault(query, []).append((row[:width], times[0], end))
            if number < 0:
                self.by_lane[query] += table.num_rows

        return got


def opened(case: Case, spark: Any, folder: Path, answers: Answers) -> Session:
    """Return a session that runs the queries of a case on its checkpoint."""
    settings = {**case.settings, "shards": case.shards, "fsync": False}
    session = Session(
        spark=spark, checkpoint=str(folder / "checkpoint"), settings=settings, autostart=False
    )
    slack = f" SLACK {case.slack}"
    for text in case.declared:
        if "CREATE STREAM" in text:
            text = text.replace(" TIMESTAMP BY t", f" TIMESTAMP BY t{slack}")
        session.sql(text.replace("'none'", f"'{folder}/d.csv'"))
    for name, text in case.queries.items():
        session.sql(f"CREATE SINK s{name} USING callback OPTIONS (changes 'intervals')")
        session.callback(f"s{name}", answers.take(name))
        session.sql(f"CREATE QUERY {name} INTO s{name} AS {text}")
    return session


def _await_lane(session: Session) -> None:
    """Wait until the lane is at work, if any query takes it."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pipeline = session.pipeline
        ready = pipeline.manifest.batch >= 0
        if ready and (pipeline.lane.status().running or not pipeline.lane.asked):
            return
        time.sleep(0.02)


def run(seed: int, spark: Any) -> Counter:
    """Run the case of a seed."""
    case, answers = case_of(seed), Answers()
    dice = random.Random(seed + 7)
    plans = {name: cql.bind_query(text, declared(case)) for name, text in case.queries.items()}
    pushed: dict[str, list[tuple]] = {name: [] for name in STREAMS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = [f"{k},{w}\n" for k, w in case.table]
        (folder / "d.csv").write_text("k,w\n" + "".join(lines))
        session = opened(case, spark, folder, answers)
        session.start()
        again = dice.randrange(len(case.arrivals)) if seed % 3 == 0 else -1
        for at, (stream, row) in enumerate(case.arrivals):
            if at == again:
                session.close()
                session = opened(case, spark, folder, answers)
                session.start()
            session.push(stream, [row])
            pushed[stream].append(row)
            if at in (3, again):
                _await_lane(session)
            time.sleep(dice.choice([0, 0, 0.01, 0.03, 0.15]))
        for stream in STREAMS:
            session.finish(stream)
        if not session.await_end(120):
            raise AssertionError("the case did not end")
        turns = session.pipeline.lane.status().answered
        session.close()
    kept = {
        stream: accept([(row, row[-1]) for row in rows], case.slack)[0]
        for stream, rows in pushed.items()
    }
    count = Counter(answered=turns)
    for query, plan in plans.items():
        found = answers.rows.get(query, [])
        check_answer(plan, found, Inputs(kept, {"d": case.table}))
        count["rows"] += len(found)
        count["by lane"] += answers.by_lane[query]
    return count


def main() -> int:
    """Run many cases on one Spark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    total: Counter = Counter()
    failed = []
    with tempfile.TemporaryDirectory() as warehouse, small_session(warehouse) as spark:
        for seed in range(options.first, options.first + options.cases):
            try:
                found = run(seed, spark)
                total += found
                print(f"seed {seed}: {dict(found)}", flush=True)
            except Exception as error:
                failed.append(seed)
                print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    print(f"{dict(total)}, failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
