"""One side of `against_before`: runs time-window plans with the Penstock that is on its path.

Each line on standard input names a plan; it is answered by one line of JSON with the seconds that
the run took and the rows that it gave.  The code that runs, this harness included, is that of the
tree that stands first on PYTHONPATH.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.harness import SCHEMA, run_penstock, spark_session

PLANS = {
    "join": "SELECT a.k, a.v AS av, b.v AS bv FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] "
    "WHERE a.k = b.k",
    "selection": "SELECT k, v FROM a [RANGE 10 SECONDS] WHERE v > 0.5",
    "aggregate": "SELECT k % 100 AS g, SUM(v) AS total, COUNT(*) AS n FROM a "
    "[RANGE 100 SECONDS SLIDE 1 SECOND] GROUP BY k % 100",
}


def script(base: Path, name: str) -> str:
    """Return the script of one plan over both streams."""
    return f"""
    CREATE STREAM a ({SCHEMA}) USING parquet OPTIONS (path '{base}/a') TIMESTAMP BY t;
    CREATE STREAM b ({SCHEMA}) USING parquet OPTIONS (path '{base}/b') TIMESTAMP BY t;
    CREATE SINK nowhere USING blackhole;
    CREATE QUERY q INTO nowhere AS {PLANS[name]};
    """


def main() -> None:
    base = Path(sys.argv[1])
    spark = spark_session()
    for line in sys.stdin:
        ran = run_penstock(spark, script(base, line.strip()), 10)
        print(json.dumps({"seconds": ran.seconds, "rows": ran.rows["q"]}), flush=True)


if __name__ == "__main__":
    main()
