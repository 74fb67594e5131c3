"""Flink's side of NEXMark. It runs in an environment of its own (see `against_flink`).

``python nexmark_job.py cores seconds`` starts a local Flink and answers each line ``q5 FOLDER`` on
standard input by one line of JSON: the seconds from submitting the query to its end, or why there
are none.  A query that takes longer than the given seconds is cancelled.  The files are csv without
a first line; answers go into a sink that drops them.  It needs nothing but ``apache-flink``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableDescriptor, TableEnvironment

QUERIES = Path(__file__).with_name("nexmark_flink.sql")
STREAMS = {
    "person": """id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING,
        state STRING, dateTime TIMESTAMP(3), extra STRING""",
    "auction": """id BIGINT, itemName STRING, description STRING, initialBid BIGINT,
        reserve BIGINT, dateTime TIMESTAMP(3), expires TIMESTAMP(3), seller BIGINT,
        category BIGINT, extra STRING""",
    "bid": """auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
        dateTime TIMESTAMP(3), extra STRING""",
}


def environment(cores: str) -> TableEnvironment:
    """A streaming Flink inside this process's JVM, set to be fast, with so many cores."""
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    tables.get_config().set("parallelism.default", cores)
    tables.get_config().set("taskmanager.numberOfTaskSlots", cores)
    tables.get_config().set("table.local-time-zone", "UTC")
    tables.get_config().set("pipeline.object-reuse", "true")
    return tables


def texts() -> dict[str, str]:
    """Return the queries by name: each stands behind a line ``-- name``."""
    found: dict[str, str] = {}
    for part in QUERIES.read_text().split("\n-- q")[1:]:
        number, _, text = part.partition("\n")
        found[f"q{number.split(',')[0]}"] = text.strip().rstrip(";")
    return found


def declare(tables: TableEnvironment, folder: str) -> None:
    """Declare the streams, and the table of Q13, with the files of a folder."""
    for name, columns in STREAMS.items():
        _declare(tables, name, f"{columns}, WATERMARK FOR dateTime AS dateTime", folder)
    _declare(tables, "side_input", "key BIGINT, `value` STRING", folder)


def _declare(tables: TableEnvironment, name: str, columns: str, folder: str) -> None:
    tables.execute_sql(f"DROP TEMPORARY TABLE IF EXISTS {name}")
    if name == "side_input":
        columns = columns.replace("key", "`key`")
    tables.execute_sql(
        f"""CREATE TEMPORARY TABLE {name} ({columns}) WITH ('connector' = 'filesystem',
        'path' = 'file://{folder}/{name}.csv', 'format' = 'csv')"""
    )


def run(tables: TableEnvironment, text: str, seconds: float) -> float:
    """Run a query to its end and return how long it took."""
    nowhere = TableDescriptor.for_connector("blackhole").build()
    began = time.perf_counter()
    result = tables.sql_query(text).execute_insert(nowhere)
    try:
        result.wait(int(seconds * 1000))
    except Exception:
        job = result.get_job_client()
        if job is not None and time.perf_counter() - began >= seconds:
            job.cancel().result()
            raise TimeoutError(f"not done after {seconds:g} s") from None
        raise
    return time.perf_counter() - began


def main() -> None:
    cores, seconds = sys.argv[1:]
    tables, known = environment(cores), texts()
    for line in sys.stdin:
        query, _, folder = line.strip().partition(" ")
        answer: dict[str, object] = {"query": query, "seconds": 0.0}
        try:
            if query not in known:
                raise LookupError("Flink cannot run this query")
            declare(tables, folder)
            answer["seconds"] = run(tables, known[query], float(seconds))
        except Exception as error:  # one that fails must not end the others
            answer["error"] = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            print(error, file=sys.stderr, flush=True)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
