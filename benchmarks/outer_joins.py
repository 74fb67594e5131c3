"""``python -m benchmarks.outer_joins [case ..]``: what outer, semi and anti joins cost.

Each kind of join of two streams, over the same rows, windows, condition and batches, beside the
inner join of them: seconds of the processor.  The kinds take turns, batch by batch, so that a slow
minute of the machine hits all alike.  Packing and one stage in one shard, state and answers in
files, as a Spark task does it.  A share of the rows of both sides has keys that the other side does
not have.

* ``equal``: equal keys, about two partners a row;
* ``residual``: the same, with a condition on both sides besides;
* ``band``: keys that differ by at most 2, about two partners a row;
* ``many``: equal keys, about thirty partners a row, a quarter of the rows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table

from benchmarks.harness import console
from benchmarks.trains import Counting

BARS = {"inner": 1.0, "left": 2.0, "full": 3.0, "semi": 1.5, "anti": 1.5}
"""At most so much of the time of the inner join."""

STREAMS = """
CREATE STREAM a (k BIGINT, x BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE STREAM b (k BIGINT, y BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
"""
QUERY = """
CREATE QUERY q AS SELECT {columns}
  FROM a [RANGE {window}] {kind} JOIN b [RANGE {window}] ON {condition};
"""
EQUAL = "a.k = b.k"


@dataclass(frozen=True)
class Case:
    """A condition, how many partners a row has that has any, and how many rows it is run on."""

    condition: str = EQUAL
    partners: float = 2.0
    width: int = 1
    share: float = 1.0


CASES = {
    "equal": Case(),
    "residual": Case(f"{EQUAL} AND a.x <> b.y"),
    "band": Case("a.k BETWEEN b.k - 2 AND b.k + 2", width=5),
    "many": Case(partners=30.0, share=0.25),
}
ALONE = 0.3
"""The share of rows whose keys the other side does not have."""


def script(case: Case, kind: str, window: int) -> str:
    """Return a join of a kind as a script."""
    columns = "a.k, a.x" if kind in ("semi", "anti") else "a.k, a.x, b.y"
    condition = case.condition
    return STREAMS + QUERY.format(
        columns=columns, window=window, kind=kind.upper(), condition=condition
    )


def batches(case: Case, rows: int, each: int) -> Iterator[dict[str, pa.Table]]:
    """Make both streams, batch by batch: one row of each per instant."""
    random = np.random.default_rng(1)
    near = (each - 1) * (1 - ALONE)  # rows of the other side that may meet a row
    keys = max(1, round(near * case.width / case.partners))
    for first in range(0, rows, each):
        count = min(each, rows - first)
        tables = {}
        for stream, other, sign in (("a", "x", -1), ("b", "y", 1)):
            key = random.integers(0, keys, count)
            apart = 10 * keys + sign * (5 * keys + random.integers(0, keys, count))
            tables[stream] = pa.table(
                {
                    "k": np.where(random.random(count) < ALONE, apart, key),
                    other: random.integers(0, 10, count),
                    "t": np.arange(first, first + count),
                }
            )
        yield tables


def measured(
    name: str, rows: int, each: int, settings: dict[str, Any] | None = None
) -> dict[str, dict[str, float]]:
    """Run all kinds of a case in turn; return seconds of the processor and answers of each."""
    case = CASES[name]
    rows = max(each, int(rows * case.share))
    engines = {
        kind: Counting(script(case, kind, max(1, each // 2)), settings or {}) for kind in BARS
    }
    seconds = dict.fromkeys(BARS, 0.0)
    for tables in batches(case, rows, each):
        for kind, engine in engines.items():
            began = time.process_time()
            engine.batch(tables)
            seconds[kind] += time.process_time() - began
    return {
        kind: {"seconds": seconds[kind], "answers": engine.rows, "rows": rows}
        for kind, engine in engines.items()
    }


def show(found: dict[str, dict[str, dict[str, float]]]) -> bool:
    """Print a table; return whether a bar was missed."""
    table = Table("case", "rows of a stream", *BARS)
    missed = False
    for name, kinds in found.items():
        inner = kinds["inner"]["seconds"]
        cells = []
        for kind, bar in BARS.items():
            ratio = kinds[kind]["seconds"] / inner
            missed |= ratio > bar
            text = f"{inner:.2f} s" if kind == "inner" else f"{ratio:.2f} x (≤ {bar:g})"
            cells.append(f"{text}, {kinds[kind]['answers']:,} answers")
        table.add_row(name, f"{kinds['inner']['rows']:,}", *cells)
    console.print(table)
    return missed


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outer_joins", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="case", help=", ".join(CASES))
    parser.add_argument("--rows", type=int, default=400_000, help="of each stream")
    parser.add_argument("--batch", type=int, default=50_000, help="rows of each stream in a batch")
    parser.add_argument("--lifetime", default="direct", choices=("direct", "negative"))
    parser.add_argument("--raw", type=Path, help="JSON file that keeps the numbers")
    options = parser.parse_args(arguments)
    for name in options.cases:
        if name not in CASES:
            parser.error(f"there is no case '{name}'; known: {', '.join(CASES)}")
    found = {
        name: measured(name, options.rows, options.batch, {"lifetime": options.lifetime})
        for name in options.cases or CASES
    }
    if options.raw:
        options.raw.write_text(json.dumps(found, indent=1))
    raise SystemExit(1 if show(found) else 0)


if __name__ == "__main__":
    main()
