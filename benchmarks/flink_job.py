"""Flink's side of the equality join. It runs in an environment of its own (see `against_flink`).

``python flink_job.py a.csv b.csv seconds`` starts a local Flink with one slot per core and answers
each line on standard input by one line of JSON: ``count FOLDER`` joins and writes the pairs as csv
below the folder, ``run`` joins into a sink that drops them; both answer with the seconds from
submitting the statement to its end.  It needs nothing but ``apache-flink``: the csv format and the
filesystem connector come with its wheel.
"""

from __future__ import annotations

import json
import os
import sys
import time

from pyflink.table import EnvironmentSettings, TableEnvironment


def environment() -> TableEnvironment:
    """A streaming Flink inside this process's JVM, with every core of the machine."""
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    cores = str(os.cpu_count() or 1)
    tables.get_config().set("parallelism.default", cores)
    tables.get_config().set("taskmanager.numberOfTaskSlots", cores)
    tables.get_config().set("table.local-time-zone", "UTC")
    tables.get_config().set("pipeline.object-reuse", "true")
    return tables


def declare(tables: TableEnvironment, paths: list[str]) -> None:
    """Declare both streams and the sink that drops rows."""
    for name, path in zip("ab", paths, strict=True):
        tables.execute_sql(
            f"""CREATE TABLE {name} (k BIGINT, v DOUBLE, t TIMESTAMP(3), WATERMARK FOR t AS t)
            WITH ('connector' = 'filesystem', 'path' = 'file://{path}', 'format' = 'csv')"""
        )
    tables.execute_sql(
        "CREATE TABLE nowhere (k BIGINT, av DOUBLE, bv DOUBLE) WITH ('connector' = 'blackhole')"
    )


def join(tables: TableEnvironment, sink: str, seconds: int) -> float:
    """Run the join to its end and return how long it took."""
    near = f"INTERVAL '{seconds}' SECOND({len(str(seconds))})"
    began = time.perf_counter()
    tables.execute_sql(
        f"""INSERT INTO {sink} SELECT a.k, a.v, b.v FROM a JOIN b
        ON a.k = b.k AND a.t > b.t - {near} AND a.t < b.t + {near}"""
    ).wait()
    return time.perf_counter() - began


def main() -> None:
    *paths, seconds = sys.argv[1:]
    tables = environment()
    declare(tables, paths)
    for line in sys.stdin:
        order, _, folder = line.strip().partition(" ")
        sink = "nowhere"
        if order == "count":
            sink = "pairs"
            tables.execute_sql(
                f"""CREATE TABLE pairs (k BIGINT, av DOUBLE, bv DOUBLE) WITH
                ('connector' = 'filesystem', 'path' = 'file://{folder}', 'format' = 'csv')"""
            )
        taken = join(tables, sink, int(seconds))
        print(json.dumps({"order": order, "seconds": taken}), flush=True)


if __name__ == "__main__":
    main()
