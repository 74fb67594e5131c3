"""Penstock against Spark's own operators: the stream-stream join and the sliding aggregate."""

from __future__ import annotations

from pathlib import Path

import pyspark.sql.functions as F  # noqa: N812
from pyspark.sql import DataFrame, SparkSession

from benchmarks.harness import (
    SCHEMA,
    Measure,
    folder,
    median,
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

    with folder() as small, folder() as large:
        for base, count in ((small, rows // 10), (large, rows)):
            write_stream(base / "a", count, keys, per_second, 1)
            write_stream(base / "b", count, keys, per_second, 2)
        pairs: dict[str, int] = {}

        def ours() -> float:
            seconds, found, _ = penstock(spark, script(large), per_batch)
            pairs["penstock"] = found["pairs"]
            return seconds

        def theirs() -> float:
            seconds, pairs["spark"] = spark_stream(spark_join(large))
            return seconds

        penstock(spark, script(small), per_batch)
        fast = 2 * rows / median(ours, repeats, "join, Penstock")
        found = []
        for label, provider, bar in (
            ("default state store", DEFAULT, 6.0),
            ("RocksDB state store", ROCKSDB, 15.0),
        ):
            spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
            spark_stream(spark_join(small))
            slow = 2 * rows / median(theirs, repeats, f"join, Spark, {label}")
            if len(set(pairs.values())) != 1:
                raise SystemExit(f"both engines must find the same pairs, got {pairs}")
            found.append(
                Measure(
                    f"equality join against Spark, {label}",
                    fast / slow,
                    bar,
                    "above",
                    {"Penstock rows/s": fast, "Spark rows/s": slow, "rows": 2 * rows},
                )
            )
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", DEFAULT)
        return found


def sliding(spark: SparkSession, rows: int, repeats: int) -> list[Measure]:
    """Sliding sum and count, 100 groups, RANGE / SLIDE = 100; and ours at 1000 against 1."""
    per_second, per_batch = 10_000, 10

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

    with folder() as small, folder() as large:
        write_stream(small / "a", rows // 10, 100, per_second, 1)
        write_stream(large / "a", rows, 100, per_second, 1)
        penstock(spark, script(small / "a", 100), per_batch)
        spark_stream(spark_sums(small / "a"))

        def ours(ratio: int) -> float:
            what = f"sliding aggregate, Penstock, RANGE/SLIDE {ratio}"
            run = script(large / "a", ratio)
            return rows / median(lambda: penstock(spark, run, per_batch)[0], repeats, what)

        fast = ours(100)
        slow = rows / median(
            lambda: spark_stream(spark_sums(large / "a"))[0], repeats, "sliding aggregate, Spark"
        )
        wide, narrow = ours(1000), ours(1)
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
