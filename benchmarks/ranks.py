"""``python -m benchmarks.ranks [--rows N]``: the first rows of groups, without Spark.

Bids as NEXMark makes them: half of them go to an auction that is hot for a while, the others to one
of the hundred last.  The queries are its Q18, the newest bid of each bidder on each auction, and
Q19, the ten highest bids of each auction, with the number of each bid and without.  Packing and one
stage in one shard, state and answers in files, as a Spark task does it; seconds of the clock and of
the processor.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console

from penstock.bench.scripts import plans_of
from penstock.physical.batch import Arrivals, run_batch
from penstock.physical.book import BookedQuery, Moment, QueryBook
from penstock.physical.progress import Progress, Timeline
from penstock.runs.segments import SegmentStorage
from penstock.settings import Settings
from penstock.timing import TimeRules

STREAM = """
CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
  date_time TIMESTAMP, extra STRING) USING memory TIMESTAMP BY date_time;
"""
NUMBERED = """
  (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS rank_number FROM bid)
  WHERE rank_number <= 10"""
COLUMNS = "auction, bidder, price, channel, url, date_time, extra"
QUERIES = {
    "q18": f"""SELECT {COLUMNS} FROM
  (SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC)
   AS rank_number FROM bid) WHERE rank_number <= 1""",
    "q19": f"SELECT * FROM {NUMBERED}",
    "q19, no number": f"SELECT {COLUMNS} FROM {NUMBERED}",
}
BATCH = 1 << 17


def bids(rows: int, seed: int = 1) -> pa.Table:
    """Return bids: of 50 events 46, ten thousand events a second."""
    chance = np.random.default_rng(seed)
    event = np.arange(rows) * 50 // 46
    last_auction, last_person = event // 50 * 3 + 2, event // 50
    near = np.maximum(last_auction - 100, 0)
    other = near + (chance.random(rows) * (last_auction - near + 1)).astype(np.int64)
    auction = np.where(chance.random(rows) < 0.5, last_auction // 100 * 100, other)
    some = np.maximum(last_person - 1000, 0)
    other = some + (chance.random(rows) * (last_person - some + 1)).astype(np.int64)
    bidder = np.where(chance.random(rows) < 0.75, last_person // 100 * 100 + 1, other)
    price = np.round(10 ** (chance.random(rows) * 6) * 100).astype(np.int64)
    channels = pa.array(["Google", "Facebook", "Baidu", "Apple"])
    channel = pa.array(chance.integers(0, 4, rows))
    urls = pa.array([f"https://www.nexmark.com/item.htm?query={i:032x}" for i in range(1000)])
    extras = pa.array(["".join(chance.choice(list("abcdefgh"), 60)) for _ in range(1000)])
    stamps = pa.array(event * 100).cast(pa.timestamp("us"))
    return pa.table(
        {
            "auction": auction + 1000,
            "bidder": bidder + 1000,
            "price": price,
            "channel": channels.take(channel),
            "url": urls.take(pa.array(chance.integers(0, 1000, rows))),
            "date_time": stamps,
            "extra": extras.take(pa.array(chance.integers(0, 1000, rows))),
        }
    )


def run(query: str, table: pa.Table, batch: int = BATCH) -> Iterator[pa.Table]:
    """Run a query over bids, and yield its answers: rows with both ends, as they leave."""
    config = Settings()
    book = QueryBook(config)
    for name, node in plans_of(f"{STREAM} CREATE QUERY q AS {query};").items():
        book.add(BookedQuery(name, node, "intervals"))
    plan = book.plan(Moment(0, {}, {}))
    progress: Mapping[str, Progress] = {"bid": Progress()}
    states: list[dict[str, Any]] = [{}]
    with tempfile.TemporaryDirectory() as folder:
        for number, first in enumerate(range(0, table.num_rows + batch, batch)):
            with SegmentStorage(folder, str(number), False) as storage:
                some = table.slice(first, batch)
                parts = [("", some)] if some.num_rows else []
                arrivals = {"bid": Arrivals(parts, 5, final=not parts)}
                timeline = Timeline(progress, {"bid": TimeRules()})
                outcome, _ = run_batch(plan, arrivals, timeline, states, storage, config)
                states[0] |= outcome.states[0]
                progress = timeline.after(outcome.told)
                storage.close()
                for result in outcome.results:
                    yield storage.read(result["place"])


def measure(rows: int) -> dict[str, dict[str, float]]:
    """Return how fast each query is, and how many rows it gives."""
    table, found = bids(rows), {}
    for name, query in QUERIES.items():
        began, worked = time.perf_counter(), time.process_time()
        answers = sum(part.num_rows for part in run(query, table))
        seconds, work = time.perf_counter() - began, time.process_time() - worked
        found[name] = {"rows/s": rows / seconds, "rows/s of work": rows / work, "answers": answers}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="bids")
    for name, told in measure(parser.parse_args().rows).items():
        text = ", ".join(f"{value:,.0f} {what}" for what, value in told.items())
        Console().print(f"{name}: {text}")


if __name__ == "__main__":
    main()
