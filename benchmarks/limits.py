"""``python -m benchmarks.limits``: what this machine can do at most, for the work of a join batch.

One core each: copying memory, reading the benchmark's Parquet rows into Arrow, hashing and sorting
keys, gathering rows, encoding them for the exchange and decoding them again.  The sum of the parts
is the least time that a batch needs on one core; what a batch takes above it is the road's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

from benchmarks.harness import console, folder, write_stream
from penstock.kernels.keys import hash_columns
from penstock.kernels.pairs import sort_order
from penstock.model import Batch, one_array, to_numpy
from penstock.physical.parcels import decode, encode

ROWS = 500_000


def seconds(run: Callable[[], object], repeats: int = 7) -> float:
    """The median time of a run."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def main() -> None:
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    with folder() as path:
        write_stream(path / "a", ROWS, 100_000, 10_000, 1)
        files = sorted((path / "a").glob("*.parquet"))[:-1]

        def read() -> pa.Table:
            return pa.concat_tables([pq.read_table(f, use_threads=False) for f in files])

        table = read()
        memory = np.empty(1 << 27, np.int64)
        other = np.empty_like(memory)
        columns = [one_array(c) for c in table.columns]
        start = to_numpy(columns[2].cast(pa.int64()))
        batch = Batch.of(columns, start)
        keys = hash_columns(columns[:1], ROWS)
        order = sort_order(keys.high, start)
        kind, blob = encode(batch)
        parts = {
            "read Parquet into Arrow": seconds(read),
            "hash keys": seconds(lambda: hash_columns(columns[:1], ROWS)),
            "sort by key": seconds(lambda: sort_order(keys.high, start)),
            "gather rows in order": seconds(lambda: batch.take(order)),
            "encode for the exchange": seconds(lambda: encode(batch)),
            "decode": seconds(lambda: decode(kind, blob)),
        }
        copied = seconds(lambda: np.copyto(other, memory), 3)
    result = Table("work on one core", "seconds", "million rows/s")
    for name, taken in parts.items():
        result.add_row(name, f"{taken:.4f}", f"{ROWS / taken / 1e6:.1f}")
    whole = sum(parts.values())
    result.add_row("all of it", f"{whole:.4f}", f"{ROWS / whole / 1e6:.1f}")
    console.print(result)
    bandwidth = 2 * memory.nbytes / copied / 1e9
    console.print(f"memory bandwidth of one core, read and write: {bandwidth:.1f} GB/s")
    console.print(f"{ROWS:,} rows of the benchmark are {table.nbytes / 1e6:.1f} MB in Arrow")


if __name__ == "__main__":
    main()
