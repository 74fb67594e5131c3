"""A small world for tests on Spark: three streams as files, a table, and queries of every kind.

Numbers are small on purpose: few keys, few values, times that collide, rows that come too late.
"""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.reference import Inputs, accept

COLUMNS = {
    "s": "k STRING, x BIGINT, y DOUBLE, t BIGINT",
    "r": "k STRING, x BIGINT, t BIGINT",
    "q": "x BIGINT, b BOOLEAN, t BIGINT",
}
SLACK = {"s": 3, "r": 0, "q": 2}
KEYS = [None, "a", "b", "c", "d e"]
NUMBERS = [None, 0, 1, 2, 3, -4]


@dataclass
class World:
    """What is in the files: all rows ``(values, t)`` in order of arrival, and the table's."""

    folder: Path
    rows: dict[str, list[tuple[tuple[Any, ...], int]]] = field(default_factory=dict)
    table: list[tuple[Any, ...]] = field(default_factory=list)

    def declarations(self, tail: str = "") -> str:
        """The statements that declare the streams and the table."""
        streams = [
            f"CREATE STREAM {name} ({columns}) USING replay "
            f"OPTIONS (path '{self.folder / name}.csv', null 'NULL') "
            f"TIMESTAMP BY t SLACK {SLACK[name]} {tail};"
            for name, columns in COLUMNS.items()
        ]
        table = (
            f"CREATE TABLE d (k STRING, x BIGINT, since BIGINT, until BIGINT) USING csv "
            f"OPTIONS (path '{self.folder}/d.csv') VALID FROM since TO until;"
        )
        return "\n".join([*streams, table])

    def inputs(self) -> Inputs:
        """What the oracle sees: late elements removed."""
        kept = {name: accept(rows, SLACK[name])[0] for name, rows in self.rows.items()}
        return Inputs(kept, {"d": self.table})

    def late(self, name: str) -> list[tuple[tuple[Any, ...], int]]:
        return accept(self.rows[name], SLACK[name])[1]


def make_world(folder: Path, rows: int = 60, seed: str = "penstock") -> World:
    """Write the files of a world and return it."""
    dice = random.Random(seed)
    world = World(folder)
    for name, columns in COLUMNS.items():
        world.rows[name], largest = [], 0
        for _ in range(rows):
            time = largest + dice.choice([-SLACK[name] - 1, -SLACK[name], 0, 0, 1, 1, 2, 3])
            largest = max(largest, time)
            kinds = [column.split()[1] for column in columns.split(", ")]
            values = (*(_value(dice, kind) for kind in kinds[:-1]), time)
            world.rows[name].append((values, time))
        _write(folder / f"{name}.csv", columns, [v for v, _ in world.rows[name]], "NULL")
    world.table = [
        (key, number, dice.choice([None, 5, 20]), dice.choice([None, 60, 90]))
        for key in KEYS
        for number in NUMBERS
        if dice.random() < 0.6
    ]
    _write(folder / "d.csv", "k STRING, x BIGINT, since BIGINT, until BIGINT", world.table, "")
    return world


def _value(dice: random.Random, kind: str) -> Any:
    if kind == "STRING":
        return dice.choice(KEYS)
    if kind == "DOUBLE":
        return dice.choice([None, 0.0, 1.5, -2.25, 0.1, 100.0])
    return dice.choice([None, True, False]) if kind == "BOOLEAN" else dice.choice(NUMBERS)


def _write(path: Path, columns: str, rows: list[tuple[Any, ...]], null: str) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([column.split()[0] for column in columns.split(", ")])
        writer.writerows([null if v is None else v for v in row] for row in rows)


WINDOWS = {
    "rows": "[ROWS 3]",
    "partition": "[PARTITION BY k ROWS 2]",
    "range": "[RANGE 5]",
    "range_slide": "[RANGE 7 SLIDE 3]",
    "tumbling": "[RANGE 4 SLIDE 4]",
    "skipping": "[RANGE 2 SLIDE 5]",
    "tumble": "[TUMBLE 4]",
    "hop": "[HOP 6 SLIDE 4]",
    "now": "[NOW]",
    "range_unbounded": "[RANGE UNBOUNDED]",
    "rows_unbounded": "[ROWS UNBOUNDED]",
    "none": "",
    "after": "[AFTER 30]",
    "before": "[BEFORE 20]",
    "band": "[AFTER 10 AND BEFORE 25]",
    "fixed": "[FIXED 6]",
    "rows_range": "[ROWS 4 RANGE 6]",
    "partition_rows_range": "[PARTITION BY k ROWS 2 RANGE 9]",
    "rows_slide": "[ROWS 4 SLIDE 3]",
    "partition_rows_slide": "[PARTITION BY k ROWS 3 SLIDE 2]",
    "session": "[SESSION 3]",
    "partition_session": "[PARTITION BY k SESSION 6]",
    "start": "[RANGE 6 SLIDE 4 START 11]",
}

OF_WINDOWS = {
    "alone": "SELECT * FROM s {window}",
    "aggregate": "SELECT k, COUNT(*) AS n, SUM(x) AS total FROM s {window} GROUP BY k",
    "join": "SELECT a.k, a.x, b.x AS z FROM s {window} a, r [RANGE 3] b WHERE a.k = b.k",
}

OPERATORS = {
    "filter": "SELECT k, x FROM s [RANGE 4] WHERE x > 0 OR y < 1.0",
    "project": "SELECT x + 1 AS up, upper(k) AS k, y * 2 AS twice FROM s [RANGE 4]",
    "global_aggregate": "SELECT COUNT(*) AS n, SUM(x) AS s, AVG(y) AS m FROM s [RANGE 4]",
    "all_aggregates": "SELECT k, COUNT(x) AS a, COUNT(DISTINCT x) AS b, MIN(y) AS c, MAX(k) AS d, "
    "VAR_POP(y) AS e, STDDEV_SAMP(x) AS f FROM s [RANGE 9] GROUP BY k",
    "having": "SELECT x, COUNT(*) AS n FROM s [RANGE 9] GROUP BY x HAVING COUNT(*) > 1",
    "panes": "SELECT k, SUM(y) AS total FROM s [RANGE 12 SLIDE 2] GROUP BY k",
    "distinct": "SELECT DISTINCT k FROM s [RANGE 4]",
    "union_all": "SELECT k, x FROM s [RANGE 4] UNION ALL SELECT k, x FROM r [ROWS 2]",
    "union": "SELECT k, x FROM s [RANGE 4] UNION SELECT k, x FROM r [ROWS 2]",
    "intersect": "SELECT k FROM s [RANGE 6] INTERSECT SELECT k FROM r [RANGE 6]",
    "intersect_all": "SELECT k FROM s [RANGE 6] INTERSECT ALL SELECT k FROM r [RANGE 6]",
    "except": "SELECT k FROM s [RANGE 6] EXCEPT SELECT k FROM r [RANGE 6]",
    "except_all": "SELECT k FROM s [RANGE 6] EXCEPT ALL SELECT k FROM r [RANGE 6]",
    "top": "SELECT k, x FROM s [RANGE 6] ORDER BY x DESC, k LIMIT 2",
    "cross": "SELECT s.x, q.b FROM s [RANGE 2], q [ROWS 2]",
    "theta": "SELECT s.x, q.x AS z FROM s [RANGE 4], q [RANGE 4] WHERE s.x < q.x",
    "band": "SELECT s.x, q.x AS z FROM s [RANGE 5], q [ROWS 6] WHERE ABS(s.x - q.x) <= 1",
    "shifted_band": "SELECT s.x, q.x AS z FROM s [RANGE 5], q [RANGE 5] "
    "WHERE s.x BETWEEN q.x - 4 AND q.x + 1",
    "keyed_band": "SELECT s.x, r.x AS z FROM s [RANGE 9], r [RANGE 9] "
    "WHERE s.k = r.k AND s.x BETWEEN r.x - 2 AND r.x + 2",
    "overlap": "SELECT s.x, s.y, r.x AS z FROM s [RANGE 4], r [ROWS 5] "
    "WHERE s.x < r.x + 2 AND r.x < s.y",
    "near": "SELECT s.x, s.y, q.x AS z FROM s [RANGE 5], q [RANGE 5] "
    "WHERE DISTANCE(s.x, s.y, q.x, q.x) <= 2.5",
    "similar": "SELECT s.k, r.k AS l FROM s [RANGE 3], r [RANGE 3] "
    "WHERE LEVENSHTEIN(s.k, r.k) <= 1",
    "self_band": "SELECT a.x, b.x AS z FROM s [RANGE 4] a, s [RANGE 4] b "
    "WHERE a.x - b.x BETWEEN 1 AND 3",
    "left_join": "SELECT s.k, s.x, r.x AS z FROM s [RANGE 5] LEFT JOIN r [ROWS 4] ON s.k = r.k",
    "right_join": "SELECT k, s.x, r.x AS z FROM s [ROWS 3] RIGHT JOIN r [RANGE 6] USING (k)",
    "full_join": "SELECT k, s.x, r.x AS z FROM s [RANGE 4] FULL JOIN r [SESSION 3] USING (k)",
    "left_theta": "SELECT s.x, q.x AS z FROM s [RANGE 4] LEFT JOIN q [RANGE 4] ON s.x < q.x",
    "semi_join": "SELECT * FROM s [RANGE 5] SEMI JOIN r [RANGE 5] ON s.k = r.k AND s.x < r.x",
    "in": "SELECT k, x FROM s [RANGE 5] WHERE x IN (SELECT x FROM r [ROWS 5])",
    "not_in": "SELECT k, x FROM s [RANGE 5] WHERE x NOT IN (SELECT x FROM r [RANGE 2])",
    "not_exists": "SELECT k, x FROM s [PARTITION BY k ROWS 2] WHERE NOT EXISTS "
    "(SELECT 1 FROM r [RANGE 4] WHERE r.k = s.k AND r.x >= s.x)",
    "computed_key": "SELECT s.x, r.x AS z FROM s [RANGE 4] JOIN r [RANGE 4] ON s.x + 1 = r.x",
    "two_keys": "SELECT s.k, s.y FROM s [RANGE 9] JOIN r [ROWS 9] ON s.k = r.k AND s.x = r.x",
    "table": "SELECT s.k, d.x FROM s [RANGE 4] JOIN d ON s.k = d.k WHERE s.x < d.x",
    "istream": "ISTREAM (SELECT k, COUNT(*) AS n FROM s [RANGE 5] GROUP BY k)",
    "dstream": "DSTREAM (SELECT k, x FROM s [ROWS 2])",
    "rstream": "RSTREAM (SELECT k, x FROM s [RANGE 6 SLIDE 3])",
    "rstream_changes": "RSTREAM (SELECT k FROM r [ROWS 2])",
    "over": "SELECT k, t, SUM(y) OVER (PARTITION BY k ORDER BY t ROWS 3 PRECEDING) AS s, MAX(x) "
    "OVER (PARTITION BY k ORDER BY t RANGE 6 PRECEDING) AS top, LAG(x, 2) OVER (ORDER BY t) AS l "
    "FROM s WHERE x > -4",
}

NESTED = {
    "window_over_istream": "SELECT * FROM ISTREAM (SELECT k, SUM(x) AS n FROM s [RANGE 5] "
    "GROUP BY k) [RANGE 3]",
    "rows_over_dstream": "SELECT * FROM DSTREAM (SELECT k, x FROM s [RANGE 5]) [ROWS 2]",
    "maximum_of_counts": "SELECT MAX(n) AS top FROM (SELECT k, COUNT(*) AS n FROM s [RANGE 6] "
    "GROUP BY k) c",
    "own_aggregate": "SELECT a.k, a.x FROM s [RANGE 6] a, (SELECT k, MAX(x) AS top FROM s "
    "[RANGE 6] GROUP BY k) m WHERE a.k = m.k AND a.x = m.top",
    "session_of_changes": "SELECT COUNT(*) AS n FROM ISTREAM (SELECT k FROM s [RANGE 2]) "
    "[SESSION 3]",
    "distinct_of_join": "SELECT DISTINCT k FROM (SELECT s.k, r.x FROM s [RANGE 6] "
    "JOIN r [ROWS 4] ON s.k = r.k) j WHERE x > 0",
    "three_by_one_key": "SELECT s.k, r.x, q.b FROM s [RANGE 3], r [ROWS 4], q [RANGE 3] "
    "WHERE s.k = r.k AND s.x = q.x",
    "three_and_table": "SELECT q.x, COUNT(*) AS n FROM s [ROWS 3], r [ROWS 3], q [RANGE 4], d "
    "WHERE s.k = r.k AND r.x = q.x AND d.k = s.k GROUP BY q.x",
    "aggregate_except": "SELECT k, COUNT(*) AS n FROM s [RANGE 7] GROUP BY k EXCEPT "
    "SELECT k, COUNT(*) AS n FROM r [RANGE 7] GROUP BY k",
}


def corpus() -> dict[str, str]:
    """Every query by its name."""
    of_windows = {
        f"{name}_{use}": text.format(window=window)
        for name, window in WINDOWS.items()
        for use, text in OF_WINDOWS.items()
    }
    return of_windows | {f"of_{name}": text for name, text in (OPERATORS | NESTED).items()}
