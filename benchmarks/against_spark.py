"""Penstock against Spark's own operators: the stream-stream join and the sliding aggregate."""

from __future__ import annotations

from pathlib import Path

import pyspark.sql.functions as F  # noqa: N812
from pyspark.sql import DataFrame, SparkSession

from benchmarks.harness import (
    SCHEMA,
    Measure,
    folder,
    medians,
    penstock,
    spark_stream,
    write_stream,
)

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
DEFAULT = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


def opened(spark: SparkSession, path: Path, per_batch: int, prefix: str) -> DataFrame:
    """A stream as Spark reads it."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", per_batch)
    loaded = reader.parquet(str(path)).withWatermark("t", "0 seconds")
    return loaded.select(*(F.col(c).alias(f"{prefix}_{c}") for c in ("k", "v", "t")))


def join(spark: SparkSession, rows: int, repeats: int) -> list[Measure]:
    """Equality join of two streams, 100,000 keys, less than 10 s apart."""
    keys, per_second, per_batch = 100_000, 10_000, 10

    def script(base: Path) -> str:
        return f"""
        CREATE STREAM a ({SCHEMA}) USING parquet OPTIONS (path '{base}/a') TIMESTAMP BY t;
        CREATE STREAM b ({SCHEMA}) USING parquet OPTIONS (path '{base}/b') TIMESTAMP BY t;
        CREATE SINK nowhere USING blackhole;
        CREATE QUERY pairs INTO nowhere AS
          SELECT a.k, a.v AS av, b.v AS bv
          FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k;
        """

    def spark_join(base: Path) -> DataFrame:
        left = opened(spark, base / "a", per_batch, "a")
        right = opened(spark, base / "b", per_batch, "b")
        ten = F.make_dt_interval(secs=F.lit(10))
        near = (F.col("a_t") > F.col("b_t") - ten) & (F.col("a_t") < F.col("b_t") + ten)
        return left.join(right, (F.col("a_k") == F.col("b_k")) & near)

    with folder() as base, folder() as small:
        for path, count in ((base, rows), (small, rows // 10)):
            write_stream(path / "a", count, keys, per_second, 1)
            write_stream(path / "b", count, keys, per_second, 2)
        pairs: dict[str, int] = {}

        def ours() -> float:
            seconds, found, _ = penstock(spark, script(base), per_batch)
            pairs["penstock"] = found["pairs"]
            return seconds

        def theirs(provider: str, path: Path = base) -> float:
            spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
            seconds, pairs[provider] = spark_stream(spark_join(path))
            return seconds

        taken = medians(
            {
                "join, Penstock": ours,
                "join, Spark, default": lambda: theirs(DEFAULT),
                "join, Spark, RocksDB": lambda: theirs(ROCKSDB),
            },
            repeats,
            {"join, Spark, RocksDB": lambda: theirs(ROCKSDB, small)},  # minutes if it were whole
        )
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", DEFAULT)
        if len(set(pairs.values())) != 1:
            raise SystemExit(f"both engines must find the same pairs, got {pairs}")
    rates = {name: 2 * rows / seconds for name, seconds in taken.items()}
    fast = rates["join, Penstock"]
    return [
        Measure(
            f"equality join against Spark, {label} state store",
            fast / rates[f"join, Spark, {label}"],
            bar,
            "above",
            {
                "Penstock rows/s": fast,
                "Spark rows/s": rates[f"join, Spark, {label}"],
                "rows": 2 * rows,
            },
        )
        for label, bar in (("default", 8.0), ("RocksDB", 20.0))
    ]


def sliding(spark: SparkSession, rows: int, repeats: int) -> list[Measure]:
    """Sliding sum and count, 100 groups, RANGE / SLIDE = 100; and ours at 1000 against 1.

    One stream has as many rows as both streams of the join.
    """
    per_second, per_batch, rows = 10_000, 20, 2 * rows

    def script(base: Path, ratio: int) -> str:
        return f"""
        CREATE STREAM a ({SCHEMA}) USING parquet OPTIONS (path '{base}') TIMESTAMP BY t;
        CREATE SINK nowhere USING blackhole;
        CREATE QUERY sums INTO nowhere AS
          SELECT k, SUM(v) AS total, COUNT(*) AS n
          FROM a [RANGE {ratio * 100} MILLISECONDS SLIDE 100 MILLISECONDS] GROUP BY k;
        """

    def spark_sums(base: Path) -> DataFrame:
        frame = opened(spark, base, per_batch, "a")
        width = F.window("a_t", "10 seconds", "100 milliseconds")
        return frame.groupBy(width, "a_k").agg(F.sum("a_v"), F.count("*"))

    with folder() as base:
        write_stream(base / "a", rows, 100, per_second, 1)

        def ours(ratio: int) -> float:
            return penstock(spark, script(base / "a", ratio), per_batch)[0]

        taken = medians(
            {
                "sliding, Penstock, 100": lambda: ours(100),
                "sliding, Spark, 100": lambda: spark_stream(spark_sums(base / "a"))[0],
                "sliding, Penstock, 1000": lambda: ours(1000),
                "sliding, Penstock, 1": lambda: ours(1),
            },
            repeats,
        )
    fast, slow, wide, narrow = (rows / seconds for seconds in taken.values())
    return [
        Measure(
            "sliding sum and count, RANGE/SLIDE 100, against Spark's window()",
            fast / slow,
            10.0,
            "above",
            {"Penstock rows/s": fast, "Spark rows/s": slow, "rows": rows},
        ),
        Measure(
            "our sliding aggregate, RANGE/SLIDE 1000 against 1",
            wide / narrow,
            0.6,
            "above",
            {"at 1000 rows/s": wide, "at 1 rows/s": narrow, "rows": rows},
        ),
    ]
