from __future__ import annotations

import io
import json
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock.catalog import SinkDef
from penstock.errors import ConfigError, DataError, StateError
from penstock.model import TIMESTAMP, Field, Schema
from penstock.sinks import (
    CallbackSink,
    ConsoleSink,
    MemorySink,
    Result,
    Sink,
    SinkRequest,
    changes_of,
    check_sink,
    json_lines,
    open_sink,
    read_committed,
)
from penstock.sinks.ledger import Ledger

SCHEMA = Schema((Field("city", pa.string()), Field("mean", pa.float64())))
FORMATS = ("jsonl", "csv", "parquet")


def sink_def(format: str, **options: object) -> SinkDef:
    return SinkDef("out", format, {k: str(v) for k, v in options.items()})


def stream_result(batch: int, rows: list[tuple[Any, ...]], query: str = "q") -> Result:
    table = pa.table(
        {
            "city": pa.array([r[0] for r in rows], pa.string()),
            "mean": pa.array([r[1] for r in rows], pa.float64()),
            "_time": pa.array([r[2] for r in rows], TIMESTAMP),
        }
    )
    return Result(query, batch, "stream", SCHEMA, True, table)


def interval_result(batch: int, rows: list[tuple[Any, ...]]) -> Result:
    columns = ("city", "mean", "_start", "_end")
    types = (pa.string(), pa.float64(), pa.int64(), pa.int64())
    arrays = [pa.array([r[i] for r in rows], t) for i, t in enumerate(types)]
    return Result("q", batch, "intervals", SCHEMA, False, pa.table(arrays, names=columns))


def view_result(batch: int, rows: list[tuple[Any, ...]], as_of: int) -> Result:
    table = pa.table(
        {
            "city": pa.array([r[0] for r in rows], pa.string()),
            "mean": pa.array([r[1] for r in rows], pa.float64()),
        }
    )
    return Result("q", batch, "view", SCHEMA, True, table, as_of)


def visible(folder: Path) -> list[str]:
    return sorted(n for n in os.listdir(folder) if not n.startswith("_penstock"))


# JSON


def test_json_holds_every_type() -> None:
    table = pa.table(
        {
            "b": pa.array([True, None, False, None]),
            "i": pa.array([1, -(2**63), None, 3]),
            "f": pa.array([1.0, 0.1, 1e300, None]),
            "g": pa.array([0.1, 2.0, None, -1.5], pa.float32()),
            "s": pa.array(['a "quoted" \\ text', None, "líne", ""]),
            "t": pa.array(
                [datetime(2024, 1, 31, 22), datetime(2024, 1, 1, 0, 0, 0, 250_000), None, None],
                TIMESTAMP,
            ),
            "d": pa.array([date(2024, 1, 31), None, None, None]),
        }
    )
    rows = [json.loads(line) for line in json_lines(table).decode().splitlines()]
    assert [r["t"] for r in rows[:3]] == ["2024-01-31T22:00:00", "2024-01-01T00:00:00.250000", None]
    assert rows[0]["d"] == "2024-01-31"
    for name in ("b", "i", "f", "s"):
        assert [r[name] for r in rows] == table[name].to_pylist()
    assert [r["g"] for r in rows] == [0.1, 2.0, None, -1.5]
    assert isinstance(rows[0]["f"], float)
    assert json_lines(table.slice(2, 1)) == json_lines(table).splitlines(keepends=True)[2]


def test_json_has_words_for_what_is_no_number_and_escapes_control_characters() -> None:
    table = pa.table({"v": [math.nan, math.inf, -math.inf], "s": ["a\nb", "\x00", None]})
    text = json_lines(table).decode()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [r["v"] for r in rows] == ["NaN", "Infinity", "-Infinity"]
    assert [r["s"] for r in rows] == ["a\nb", "\x00", None]


def test_repeated_names_and_no_columns() -> None:
    table = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "a_2"])
    assert json.loads(json_lines(table)) == {"a": 1, "a_2": 2, "a_2_2": 3}
    assert json_lines(pa.table({"a": pa.array([], pa.int64())})) == b""


# Files


def test_timestamps_of_parquet_files_say_that_they_are_utc(tmp_path: Path) -> None:
    noon = datetime(2024, 3, 1, 12, 0, 0, 250_000)
    sink = open_sink(
        sink_def("parquet", path=tmp_path), SinkRequest("q", "stream", SCHEMA, timestamps=True)
    )
    sink.begin()
    sink.publish(stream_result(0, [("a", 1.0, noon)]))
    (file,) = tmp_path.glob("*.parquet")
    found = pyarrow.parquet.read_table(file)
    assert found.schema.field("_time").type == pa.timestamp("us", "UTC")
    assert found["_time"].to_pylist() == [noon.replace(tzinfo=UTC)]
    assert [row["_time"] for row in read_committed(tmp_path)] == ["2024-03-01T12:00:00.250000"]


@pytest.mark.parametrize("format", FORMATS)
def test_batches_become_files_once_and_come_back_in_order(tmp_path: Path, format: str) -> None:
    definition = sink_def(format, path=tmp_path / "out")
    first, second = datetime(2024, 1, 1), datetime(2024, 1, 1, 0, 0, 0, 500_000)
    sink = open_sink(definition, SinkRequest("q", "stream", SCHEMA))
    sink.publish(stream_result(0, [("a", 1.5, second), ("", None, second)]))
    sink.publish(stream_result(1, []))
    sink.publish(stream_result(7, [(None, math.nan, first)]))
    sink.publish(stream_result(7, [(None, math.nan, first)]))
    sink.close()
    names = [f"q-0000000000.{format}", f"q-0000000007.{format}"]
    assert visible(tmp_path / "out") == names
    again = open_sink(definition, SinkRequest("q", "stream", SCHEMA))
    again.publish(stream_result(7, [(None, math.nan, first)]))
    assert visible(tmp_path / "out") == names
    rows = list(read_committed(tmp_path / "out"))
    assert rows == [
        {"city": None, "mean": "NaN", "_time": "2024-01-01T00:00:00"},
        {"city": "a", "mean": 1.5, "_time": "2024-01-01T00:00:00.500000"},
        {"city": "", "mean": None, "_time": "2024-01-01T00:00:00.500000"},
    ]


@pytest.mark.parametrize("format", FORMATS)
def test_intervals_are_sorted_by_start_and_end(tmp_path: Path, format: str) -> None:
    sink = open_sink(sink_def(format, path=tmp_path), SinkRequest("q", "intervals", SCHEMA))
    sink.publish(interval_result(0, [("c", 1.0, 5, None), ("b", 1.0, 5, 9)]))
    sink.publish(interval_result(1, [("a", 1.0, None, 9), ("d", 2.0, 10, 11)]))
    rows = list(read_committed(tmp_path))
    assert [r["city"] for r in rows] == ["a", "b", "c", "d"]
    assert rows[2] == {"city": "c", "mean": 1.0, "_start": 5, "_end": None}


@pytest.mark.parametrize("format", FORMATS)
def test_a_view_is_one_file_with_its_instant(tmp_path: Path, format: str) -> None:
    definition = sink_def(format, path=tmp_path, changes="view")
    sink = open_sink(definition, SinkRequest("q", "view", SCHEMA))
    sink.publish(view_result(3, [("a", 1.0)], 1_000_000))
    sink.publish(view_result(4, [("b", 2.0), ("c", 3.0)], 2_500_000))
    sink.publish(view_result(3, [("a", 1.0)], 1_000_000))
    assert visible(tmp_path) == [f"q-view.{format}"]
    assert [r["city"] for r in read_committed(tmp_path)] == ["b", "c"]
    entry = json.loads((tmp_path / "_penstock.json").read_text())["queries"]["q"]
    assert (entry["batch"], entry["as_of"]) == (4, "1970-01-01T00:00:02.500000")
    sink = open_sink(definition, SinkRequest("q", "view", SCHEMA))
    sink.publish(view_result(5, [], 3_000_000))
    assert list(read_committed(tmp_path)) == []


@pytest.mark.parametrize("format", [*FORMATS, "memory"])
def test_a_reader_always_sees_a_whole_view(tmp_path: Path, format: str) -> None:
    """Each view is one value many times over; a mixture, or a part of one, was never true."""
    options = {} if format == "memory" else {"path": tmp_path / "out"}
    sink = open_sink(sink_def(format, changes="view", **options), SinkRequest("q", "view", SCHEMA))
    sink.publish(view_result(0, [("0", 0.0)] * 400, 0))
    seen: list[set[str]] = []
    begun, done = threading.Event(), threading.Event()

    def read() -> None:
        while not done.is_set():
            if isinstance(sink, MemorySink):
                cities = sink.table()["city"].to_pylist()
            else:
                cities = [row["city"] for row in read_committed(tmp_path / "out")]
            assert len(cities) == 400
            seen.append(set(cities))
            begun.set()

    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read)
        assert begun.wait(30)
        for batch in range(1, 40):
            sink.publish(view_result(batch, [(str(batch), 1.0)] * 400, batch))
        done.set()
        reading.result()
    assert all(len(cities) == 1 for cities in seen)


def test_queries_share_a_folder(tmp_path: Path) -> None:
    definition = sink_def("jsonl", path=tmp_path)
    one = open_sink(definition, SinkRequest("one", "stream", SCHEMA))
    two = open_sink(definition, SinkRequest("t/wo", "stream", SCHEMA))
    one.publish(stream_result(0, [("a", 1.0, datetime(2024, 1, 2))], "one"))
    two.publish(stream_result(0, [("b", 1.0, datetime(2024, 1, 1))], "t/wo"))
    assert [r["city"] for r in read_committed(tmp_path)] == ["b", "a"]
    assert len(visible(tmp_path)) == 2


def test_unfinished_files_are_not_seen_and_swept(tmp_path: Path) -> None:
    definition = sink_def("jsonl", path=tmp_path)
    open_sink(definition, SinkRequest("q", "stream", SCHEMA)).begin()
    (tmp_path / ".q-0000000000.jsonl.tmp").write_text('{"half')
    assert list(read_committed(tmp_path)) == []
    open_sink(definition, SinkRequest("q", "stream", SCHEMA)).begin()
    assert os.listdir(tmp_path) == ["_penstock.json"]


def test_foreign_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.doc").write_text("precious")
    cases: list[tuple[SinkDef, Schema, str, str]] = [
        (sink_def("jsonl", path=tmp_path / "full"), SCHEMA, "stream", "holds 'thesis.doc'"),
        (sink_def("jsonl", path=tmp_path / "full" / "thesis.doc"), SCHEMA, "stream", "is a file"),
        (sink_def("csv", path=tmp_path / "ours"), SCHEMA, "stream", "made with the format jsonl"),
        (sink_def("jsonl", path=tmp_path / "ours"), SCHEMA, "log", "remove it, choose another"),
        (
            sink_def("jsonl", path=tmp_path / "ours"),
            Schema((Field("city", pa.int32()),)),
            "stream",
            "remove it, choose another",
        ),
        (sink_def("jsonl"), SCHEMA, "stream", "must have a path"),
        (sink_def("jsonl", path="s3://bucket/x"), SCHEMA, "stream", "must be a local folder"),
    ]
    open_sink(sink_def("jsonl", path=tmp_path / "ours"), SinkRequest("q", "stream", SCHEMA)).begin()
    for definition, schema, mode, message in cases:
        with pytest.raises(ConfigError, match=message):
            open_sink(definition, SinkRequest("q", mode, schema))
    assert (tmp_path / "full" / "thesis.doc").read_text() == "precious"
    with pytest.raises(DataError, match=r"has no _penstock\.json"):
        list(read_committed(tmp_path / "full"))


def test_another_run_does_not_mix_its_answers(tmp_path: Path) -> None:
    definition = sink_def("jsonl", path=tmp_path / "out")
    rows = [("a", 1.0, datetime(2024, 1, 1))]
    first = open_sink(definition, SinkRequest("q", "stream", SCHEMA, run="run1"))
    first.publish(stream_result(5, rows))
    open_sink(definition, SinkRequest("q", "stream", SCHEMA, run="run1"))
    with pytest.raises(ConfigError, match="checkpoint"):
        open_sink(definition, SinkRequest("q", "stream", SCHEMA, run="run2"))
    replacing = sink_def("jsonl", path=tmp_path / "out", overwrite="true")
    second = open_sink(replacing, SinkRequest("q", "stream", SCHEMA, run="run2"))
    second.begin()
    assert [p.name for p in (tmp_path / "out").glob("q-*")] == ["q-0000000005.jsonl"]
    second.publish(stream_result(0, rows))
    assert [p.name for p in (tmp_path / "out").glob("q-*")] == ["q-0000000000.jsonl"]
    open_sink(replacing, SinkRequest("q", "stream", SCHEMA, run="run2"))
    assert len(list(read_committed(tmp_path / "out"))) == 1


# Options


def test_options_are_checked(tmp_path: Path) -> None:
    for definition, message in [
        (sink_def("jsonl", pth=tmp_path), "did you mean 'path'"),
        (sink_def("csv", path=tmp_path, changes="deltas"), "must be one of intervals, log, view"),
        (sink_def("orc", path=tmp_path, changes="deltas"), "must be one of intervals, log, view"),
        (sink_def("console", rows="many"), "number of rows from 1"),
    ]:
        with pytest.raises(ConfigError, match=message):
            check_sink(definition)
    check_sink(sink_def("orc", compression="zlib"))
    assert changes_of(None) == "intervals"
    assert changes_of(SinkDef("s", "memory", {"CHANGES": "Log"})) == "log"
    with pytest.raises(ConfigError, match="must have a function"):
        open_sink(sink_def("callback"), SinkRequest("q", "stream", SCHEMA))
    with pytest.raises(ConfigError, match="Spark session"):
        open_sink(sink_def("orc"), SinkRequest("q", "stream", SCHEMA))


# In the process


def test_memory_keeps_batches_once_or_the_latest_view() -> None:
    sink = open_sink(None, SinkRequest("q", "stream", SCHEMA, timestamps=True))
    assert isinstance(sink, MemorySink)
    assert sink.table().schema.names == ["city", "mean", "_time"]
    assert sink.table().schema.types[-1] == TIMESTAMP
    for batch in (0, 1, 1):
        sink.publish(stream_result(batch, [(str(batch), 1.0, datetime(2024, 1, 1))]))
    assert sink.table()["city"].to_pylist() == ["0", "1"]
    view = MemorySink("view", SCHEMA)
    view.publish(view_result(0, [("a", 1.0)], 10))
    view.publish(view_result(1, [("b", 1.0)], 20))
    assert view.table()["city"].to_pylist() == ["b"]
    assert view.as_of == 20
    view.publish(view_result(2, [], 30))
    assert view.table().num_rows == 0


def test_memory_may_keep_only_the_newest_rows() -> None:
    sink = open_sink(sink_def("memory", rows=3), SinkRequest("q", "stream", SCHEMA))
    assert isinstance(sink, MemorySink)
    for batch in range(4):
        moment = datetime(2024, 1, 1)
        sink.publish(stream_result(batch, [(f"{batch}a", 1.0, moment), (f"{batch}b", 1.0, moment)]))
    assert sink.table()["city"].to_pylist() == ["2b", "3a", "3b"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_console_prints_lines_or_a_table() -> None:
    rows = [("Athens", 27.6, datetime(2024, 1, 1)), ("[bold]", 1.0, datetime(2024, 1, 1))]
    plain = io.StringIO()
    sink = ConsoleSink(20, plain)
    for _ in range(2):
        sink.publish(stream_result(0, rows))
    lines = plain.getvalue().splitlines()
    assert lines[0] == '{"city": "Athens", "mean": 27.6, "_time": "2024-01-01T00:00:00"}'
    assert len(lines) == 2
    terminal = Terminal()
    ConsoleSink(1, terminal).publish(stream_result(3, rows))
    assert "q, batch 3" in terminal.getvalue()
    assert "Athens" in terminal.getvalue()
    assert "1 more rows" in terminal.getvalue()


def test_a_callback_is_called_once_even_after_a_restart(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def note(batch: int, table: pa.Table) -> None:
        seen.append((batch, table.num_rows))

    def opened() -> Sink:
        return open_sink(
            sink_def("callback"), SinkRequest("q", "stream", SCHEMA, ledger=tmp_path, callback=note)
        )

    sink = opened()
    sink.publish(stream_result(0, [("a", 1.0, datetime(2024, 1, 1))]))
    sink.publish(stream_result(1, []))
    sink.publish(stream_result(2, [("a", 1.0, datetime(2024, 1, 1))]))
    opened().publish(stream_result(2, [("a", 1.0, datetime(2024, 1, 1))]))
    assert seen == [(0, 1), (2, 1)]
    CallbackSink(note).publish(stream_result(2, [("a", 1.0, datetime(2024, 1, 1))]))
    assert len(seen) == 3


def test_a_damaged_ledger_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text("{}")
    with pytest.raises(StateError, match="must say which batch"):
        Ledger(tmp_path, "q")


# On Spark


@pytest.mark.spark
def test_any_format_of_spark(spark: Any, tmp_path: Path) -> None:
    definition = sink_def("orc", path=tmp_path / "orc")
    rows = [("a", 1.0, datetime(2024, 1, 1))]
    for batch in (0, 1, 1):
        sink = open_sink(definition, SinkRequest("q", "stream", SCHEMA, spark, tmp_path / "ledger"))
        sink.publish(stream_result(batch, rows))
    found = spark.read.orc(str(tmp_path / "orc")).orderBy("_batch").collect()
    assert [(r["_batch"], r["city"], r["_time"]) for r in found] == [
        (0, "a", datetime(2024, 1, 1)),
        (1, "a", datetime(2024, 1, 1)),
    ]
    view = open_sink(
        sink_def("json", path=tmp_path / "view"), SinkRequest("v", "view", SCHEMA, spark)
    )
    view.publish(view_result(0, [("a", 1.0)], 1))
    view.publish(view_result(1, [("b", 1.0)], 2))
    assert [r["city"] for r in spark.read.json(str(tmp_path / "view")).collect()] == ["b"]
