from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from penstock.catalog import StreamDef, TableDef
from penstock.errors import ConfigError, DataError, StateError
from penstock.expr.types import parse_type
from penstock.model import TIMESTAMP, Field, Schema
from penstock.physical.parcels import Parcel
from penstock.settings import Settings
from penstock.sources.base import Limits
from penstock.sources.folders import FolderFiles
from penstock.sources.formats import is_finite, read_slice
from penstock.sources.pushed import as_table
from penstock.sources.readers import (
    FOLDER_ORDINAL,
    arrival_order,
    columnar,
    lines,
    read_file,
    read_native,
)
from penstock.sources.readers.base import from_json, open_input, to_json
from penstock.sources.readers.lines import advance
from penstock.sources.replayed_files import ReplayFiles
from penstock.sources.side_by_side import Places, SideBySide, Take
from penstock.sources.spool import Spool, SpoolFiles, SpoolPosition
from penstock.sources.watched_folder import FolderReader
from penstock.spark.descriptor_source import DescriptorSource
from penstock.spark.failures import root_cause
from tests.examples import examples

HEADER = "sensor,city,celsius,t\n"


def schema(text: str) -> Schema:
    parts = [part.split() for part in text.split(",")]
    return Schema(tuple(Field(name, parse_type(kind)) for name, kind in parts))


COLUMNS = "sensor INT, city STRING, celsius DOUBLE, t TIMESTAMP"


def stream(
    columns: str = COLUMNS, format: str = "replay", time: int = -1, **options: object
) -> StreamDef:
    declared = schema(columns)
    time = len(declared) - 1 if time < 0 else time
    return StreamDef("s", declared, format, {k: str(v) for k, v in options.items()}, time)


def numbers(path: Path, first: int, last: int) -> Path:
    """A CSV file of rows (n, t) with t = 10 n."""
    path.write_text("n,t\n" + "".join(f"{n},{10 * n}\n" for n in range(first, last)))
    return path


NUMBERS = "n BIGINT, t BIGINT"


def rows_of(definition: StreamDef, path: Path, **kwargs: Any) -> list[dict[str, Any]]:
    parts = list(read_slice(definition, str(path), 0, -1, **kwargs))
    return [row for part in parts for row in part.table.to_pylist()]


# Readers


def test_csv_columns_are_matched_by_name_in_any_case(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text('T,extra,City,SENSOR,celsius\n2024-01-01 00:00:00,z,"A, b",1,2.5\n')
    assert rows_of(stream(), file) == [
        {"sensor": 1, "city": "A, b", "celsius": 2.5, "t": datetime(2024, 1, 1)}
    ]


def test_a_missing_column_is_named_with_those_that_exist(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("sensor,town,celsius,t\n")
    with pytest.raises(DataError, match=r"'city'.*sensor, town, celsius, t"):
        rows_of(stream(), file)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01-31 22:00:00", datetime(2024, 1, 31, 22)),
        ("2024-01-31 22:00:00.25", datetime(2024, 1, 31, 22, 0, 0, 250_000)),
        ("2024-01-31T22:00:00", datetime(2024, 1, 31, 22)),
        ("2024-01-31T22:00:00Z", datetime(2024, 1, 31, 22)),
        ("2024-01-31T22:00:00+02:00", datetime(2024, 1, 31, 20)),
        ("2024-01-31T22:00:00.123456789Z", datetime(2024, 1, 31, 22, 0, 0, 123_456)),
    ],
)
def test_timestamps_of_csv_and_json(tmp_path: Path, text: str, expected: datetime) -> None:
    file = tmp_path / "x.csv"
    file.write_text(f"{HEADER}1,a,1,{text}\n")
    assert rows_of(stream(), file)[0]["t"] == expected
    mixed = tmp_path / "mixed.csv"
    mixed.write_text(f"{HEADER}1,a,1,{text}\n2,a,1,2024-01-01 00:00:00\n3,a,1,2024-01-01T00:00Z\n")
    assert [r["t"] for r in rows_of(stream(), mixed)] == [expected, *[datetime(2024, 1, 1)] * 2]
    lines = tmp_path / "x.jsonl"
    lines.write_text(json.dumps({"sensor": 1, "t": text}) + "\n")
    assert rows_of(stream(), lines)[0]["t"] == expected


def test_rows_that_do_not_fit_are_rejected_with_position_reason_and_text(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    good = "1,a,1.5,2024-01-01 00:00:00"
    bad = [
        "x,a,1.5,2024-01-01 00:00:00",
        "1,a,one,2024-01-01 00:00:00",
        "1,a,1.5,2024-13-01 00:00:00",
        "1,a,1.5,",
        "1,a,1.5",
        "1,a,1.5,2024-01-01 00:00:00,9",
        "99999999999,a,1.5,2024-01-01 00:00:00",
        '1,"open,1.5,2024-01-01 00:00:00',
    ]
    lines = [good, "", *bad, good, "   ", good]
    file.write_text(HEADER + "\n".join(lines) + "\n")
    (part,) = read_slice(stream(), str(file), 0, -1)
    assert part.positions.tolist() == [0, len(bad) + 2, len(bad) + 4]
    assert part.rejected["position"].to_pylist() == list(range(2, len(bad) + 2))
    assert part.rejected["raw"].to_pylist() == bad
    reasons = part.rejected["reason"].to_pylist()
    assert reasons[0] == "the column 'sensor' must be INT"
    assert reasons[1] == "the column 'celsius' must be DOUBLE"
    assert reasons[2] == "the column 't' must be TIMESTAMP"
    assert reasons[3] == "the time column 't' is null"
    assert reasons[4] == "a line must have 4 values, got 3"
    assert reasons[5] == "a line must have 4 values, got 5"
    assert reasons[6] == "the column 'sensor' must be INT"


def test_bytes_that_are_no_text_are_rejected(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(HEADER.encode() + b"1,\xff\xfe,1,2024-01-01\n2,b,2,2024-01-01\n")
    (part,) = read_slice(stream(), str(file), 0, -1)
    assert part.table["sensor"].to_pylist() == [2]
    assert part.rejected["reason"].to_pylist() == ["a line must be UTF-8 text"]


def test_nulls_empty_strings_and_nan(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text(f'{HEADER}1,,,2024-01-01\n2,"",NaN,2024-01-01\n3,NA,1,2024-01-01\n')
    rows = rows_of(stream(), file)
    assert [r["city"] for r in rows] == [None, "", "NA"]
    assert rows[0]["celsius"] is None
    assert np.isnan(rows[1]["celsius"])
    assert [r["city"] for r in rows_of(stream(null="NA"), file)] == [None, "", None]


def test_only_asked_columns_are_parsed_and_time_always(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text(f"{HEADER}1,a,bad number,2024-01-01\n")
    assert rows_of(stream(), file) == []
    assert rows_of(stream(), file, columns=[0]) == [
        {"sensor": 1, "city": None, "celsius": None, "t": datetime(2024, 1, 1)}
    ]


def test_slices_of_lines_join_to_the_whole(tmp_path: Path) -> None:
    file = numbers(tmp_path / "x.csv", 0, 1000)
    definition = stream(NUMBERS)
    with open_input(str(file)) as source:
        cuts = [4]
        while True:
            at, passed = advance(source, cuts[-1], 130, chunk=64)
            cuts.append(at)
            if passed < 130:
                break
    found = [
        row["n"]
        for first, last in itertools.pairwise(cuts)
        for part in read_slice(definition, str(file), first, last)
        for row in part.table.to_pylist()
    ]
    assert found == list(range(1000))


def test_blocks_end_at_line_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 8)
    file = tmp_path / "x.csv"
    text = b"a\r\n" + b"b" * 50 + b"\n\n \t\r\nlast"
    file.write_bytes(text)
    with open_input(str(file)) as source:
        found = list(lines.blocks(source, 0, len(text)))
    assert b"".join(block.data.to_pybytes() for block in found) == text
    assert [line for block in found for line in block.text(np.arange(block.count))] == [
        "a", "b" * 50, "", " \t", "last",
    ]  # fmt: skip
    assert [bool(b) for block in found for b in block.blank] == [False, False, True, True, False]
    places = [p for block in found for p in block.positions(np.arange(block.count)).tolist()]
    assert places == [0, 1, 2, 3, 4]


def test_windows_line_ends_quoted_headers_and_marks(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(b'\xef\xbb\xbf"n","a,b",t\r\n1,"x",5\r\n\r\n2,y,6')
    assert rows_of(stream(NUMBERS), file) == [{"n": 1, "t": 5}, {"n": 2, "t": 6}]


LINES = st.lists(
    st.sampled_from(["1,5", "2,6", "", "x,5", "1,", "1,2,3", '"1",7', '"1,7', "+3,8", "-4,9\r"]),
    max_size=60,
)


@given(LINES, st.integers(1, 40), st.booleans())
@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_line_is_a_row_or_rejected_however_it_is_cut(
    tmp_path: Path, lines: list[str], rows: int, ended: bool
) -> None:
    file = tmp_path / "x.csv"
    file.write_text("n,t\n" + "\n".join(lines) + ("\n" if ended else ""), newline="")
    definition = stream(NUMBERS, path=file)

    def read(limit: int) -> tuple[list[Any], list[Any]]:
        kept, lost = [], []
        for _, path, first, last, ordinal, shift, *_ in walk(ReplayFiles(definition), limit):
            for part in read_slice(definition, path, first, last, shift=shift):
                seq = (part.positions + ordinal).tolist()
                kept += list(zip(seq, part.table.to_pylist(), strict=True))
                lost += [(r["position"] + ordinal, r["raw"]) for r in part.rejected.to_pylist()]
        return kept, lost

    kept, lost = read(rows)
    assert (kept, lost) == read(10**6)
    numbered = {n: line.rstrip("\r") for n, line in enumerate(lines) if line.strip()}
    assert dict(lost) == {n: line for n, line in numbered.items() if not _fits(line)}
    assert [n for n, _ in kept] == [n for n, line in numbered.items() if _fits(line)]


def _fits(line: str) -> bool:
    return line in ("1,5", "2,6", '"1",7', "+3,8", "-4,9")


def test_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    columns = "sensor INT, city STRING, ok BOOLEAN, day DATE, v DOUBLE, t BIGINT"
    lines = [
        '{"Sensor": 1, "city": "a", "ok": true, "day": "2024-01-01", "v": 1, "t": 5, "other": 1}',
        "",
        '{"Sensor": 2, "t": 6}',
        '{"Sensor": 3, "city": 7, "v": "NaN", "t": 7}',
        '{"Sensor": 3.5, "t": 8}',
        '{"Sensor": 3',
        "[1]",
        '{"Sensor": 4, "ok": 1, "t": 8}',
        '{"Sensor": 5}',
        '{"Sensor": 6, "t": 9}',
    ]
    file.write_text("\n".join(lines))
    (part,) = read_slice(stream(columns), str(file), 0, -1)
    assert part.table["sensor"].to_pylist() == [1, 2, 3, 6]
    assert part.table["city"].to_pylist() == ["a", None, "7", None]
    assert part.positions.tolist() == [0, 2, 3, 9]
    assert part.rejected["position"].to_pylist() == [4, 5, 6, 7, 8]
    assert part.rejected["raw"].to_pylist() == lines[4:9]


def test_the_text_format_of_the_literature(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    file.write_text(
        "int, int, charn 15, timestamp , charn 30, double\n"
        "1, 97, KAVALA, 0, '2004-01-31 22:00:00 EET', 27.60\n"
        "2, 2, ATHENS, 3,   'one, two' , 31.85\n"
    )
    columns = "id INT, station INT, city STRING, t BIGINT, at STRING, celsius DOUBLE"
    rows = rows_of(stream(columns, time=3), file)
    assert [r["city"] for r in rows] == ["KAVALA", "ATHENS"]
    assert [r["at"] for r in rows] == ["2004-01-31 22:00:00 EET", "one, two"]
    assert [(r["t"], r["celsius"]) for r in rows] == [(0, 27.6), (3, 31.85)]
    with pytest.raises(DataError, match="must name the 2 columns"):
        rows_of(stream("a INT, t BIGINT"), file)
    wrong = columns.replace("city STRING", "city INT")
    with pytest.raises(DataError, match=r"'city'.*must be declared STRING.*charn 15.*got INT"):
        rows_of(stream(wrong, time=3), file)


def test_parquet_rows_and_types(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    times = pa.array(np.arange(1000) * 1_000_000, pa.timestamp("ns", "Europe/Athens"))
    table = pa.table(
        {"sensor": pa.array(range(1000), pa.int64()), "t": times, "city": ["a"] * 1000}
    )
    pyarrow.parquet.write_table(table, file, row_group_size=100)
    definition = stream("sensor INT, city STRING, t TIMESTAMP")
    parts = list(read_slice(definition, str(file), 250, 460))
    found = [v for p in parts for v in p.table["sensor"].to_pylist()]
    assert found == list(range(250, 460))
    assert [p for part in parts for p in part.positions.tolist()] == list(range(210))
    assert parts[0].table["t"].to_pylist()[0] == datetime(1970, 1, 1, 0, 0, 0, 250_000)
    with pytest.raises(DataError, match=r"'city'.*must be INT.*got string"):
        list(read_slice(stream("sensor INT, city INT, t TIMESTAMP"), str(file), 0, -1))
    narrow = list(read_slice(stream("sensor TINYINT, t TIMESTAMP"), str(file), 100, 200))
    assert narrow[0].table.num_rows == 28
    assert narrow[0].rejected.num_rows == 72


def test_shift_moves_the_time(tmp_path: Path) -> None:
    file = numbers(tmp_path / "x.csv", 0, 2)
    assert [r["t"] for r in rows_of(stream(NUMBERS), file, shift=100)] == [100, 110]


def test_unknown_extension_names_the_formats(tmp_path: Path) -> None:
    file = tmp_path / "x.dat"
    file.write_text("n,t\n1,1\n")
    with pytest.raises(DataError, match="add OPTIONS"):
        rows_of(stream(NUMBERS), file)
    packed = tmp_path / "x.csv.gz"
    packed.write_bytes(b"")
    with pytest.raises(DataError, match="must not be compressed"):
        ReplayFiles(stream(NUMBERS, path=packed)).check()
    array = tmp_path / "x.json"
    array.write_text('[{"n": 1}]')
    (part,) = read_slice(stream(NUMBERS, path=array), str(array), 0, -1)
    assert "got an array; write each object on a line" in part.rejected["reason"][0].as_py()
    chosen = StreamDef("s", schema(NUMBERS), "replay", {"FORMAT": "csv"}, 1)
    assert rows_of(chosen, file) == [{"n": 1, "t": 1}]


# Positions


def walk(files: ReplayFiles, rows: int) -> list[tuple[Any, ...]]:
    position, found = files.start(), []
    while not position.done:
        position, slices = in_line(files).advance(position, Take(rows))
        found += slices
    return found


def in_line(files: ReplayFiles | FolderFiles) -> SideBySide:
    """Read files one after the other."""
    return SideBySide(files, 1, None, in_order=True)


def read_all(
    definition: StreamDef, descriptors: Iterable[tuple[Any, ...]]
) -> list[tuple[int, ...]]:
    result = []
    for _, path, first, last, ordinal, shift, *_ in descriptors:
        for part in read_slice(definition, path, first, last, shift=shift):
            times = part.table.column(definition.time).to_pylist()
            values = part.table.column(0).to_pylist()
            result += list(zip(values, times, (part.positions + ordinal).tolist(), strict=True))
    return result


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_files_of_a_folder_are_cut_anywhere(tmp_path: Path, rows: int) -> None:
    numbers(tmp_path / "a.csv", 0, 5)
    numbers(tmp_path / "b.csv", 5, 5)
    numbers(tmp_path / "c.csv", 5, 17)
    (tmp_path / "_ignored.csv").write_text("x")
    definition = stream(NUMBERS, path=tmp_path)
    found = walk(ReplayFiles(definition), rows)
    assert read_all(definition, found) == [(n, 10 * n, n) for n in range(17)]
    assert [d.final for d in found] == [False] * (len(found) - 1) + [True]


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_a_loop_shifts_time_by_its_period(tmp_path: Path, rows: int) -> None:
    path = numbers(tmp_path / "a.csv", 0, 5)
    definition = stream(NUMBERS, path=path, loop=3)
    found = walk(ReplayFiles(definition), rows)
    assert read_all(definition, found) == [(n % 5, 10 * n, n) for n in range(15)]


@pytest.mark.parametrize("loop", ["false", "true"])
def test_an_empty_source_ends_with_one_empty_slice(tmp_path: Path, loop: str) -> None:
    definition = stream(NUMBERS, path=numbers(tmp_path / "a.csv", 0, 0), loop=loop)
    assert [d[2:7] for d in walk(ReplayFiles(definition), 10)] == [(0, 0, 0, 0, True)]
    (tmp_path / "empty").mkdir()
    nothing = stream(NUMBERS, path=tmp_path / "empty")
    assert [d[2:7] for d in walk(ReplayFiles(nothing), 10)] == [(0, 0, 0, 0, True)]


def test_positions_survive_json_and_changed_files_stop(tmp_path: Path) -> None:
    path = numbers(tmp_path / "a.csv", 0, 50)
    definition = stream(NUMBERS, path=path)
    files = ReplayFiles(definition)
    middle, _ = in_line(files).advance(files.start(), Take(20))
    again = Places.from_json(json.loads(json.dumps(middle.to_json())))
    assert again == middle
    other = ReplayFiles(definition)
    assert in_line(other).advance(again, Take(5)) == in_line(files).advance(middle, Take(5))
    numbers(path, 0, 51)
    with pytest.raises(DataError, match="must stay as they were"):
        ReplayFiles(definition).check_same(again)


def test_rows_until_an_event_time(tmp_path: Path) -> None:
    path = numbers(tmp_path / "a.csv", 0, 50)
    files = ReplayFiles(stream(NUMBERS, path=path, loop=2))
    start = files.start()

    def rows_until(position: Places, time: int, rows: int = 1000) -> int:
        taken, _ = in_line(files).advance(position, Take(rows, until=time))
        return taken.ordinal - position.ordinal

    assert in_line(files).time_at(start) == 0
    assert [rows_until(start, t) for t in (-1, 0, 9, 10, 495, 500, 5000)] == [
        0, 1, 1, 2, 50, 51, 100,
    ]  # fmt: skip
    assert rows_until(start, 5000, 7) == 7
    later, _ = in_line(files).advance(start, Take(60))
    assert [rows_until(later, t) for t in (0, 600, 610, 5000)] == [0, 1, 2, 40]
    broken = tmp_path / "b.csv"
    broken.write_text("n,t\nx,y\n1,70\n")
    files = ReplayFiles(stream(NUMBERS, path=broken))
    assert in_line(files).time_at(files.start()) == 70
    assert rows_until(files.start(), 70, 9) == 2


def test_definitions_travel_as_json() -> None:
    definition = stream("a BOOLEAN, b TINYINT, c DATE, d FLOAT, t TIMESTAMP", rate=5)
    assert from_json(to_json(definition)) == definition


def test_descriptors_are_put_in_order() -> None:
    table = pa.table(
        {
            "ordinal": [5, 3 - FOLDER_ORDINAL, 3 - FOLDER_ORDINAL, 2 - FOLDER_ORDINAL, None, None],
            "path": ["a", "c", "b", "z", None, None],
            "first": [0, 0, 0, 0, None, None],
        }
    )
    assert arrival_order(table).tolist() == [3, 2, 1, 0, 4, 5]


# Spools


def test_pushed_rows_come_back_in_order(tmp_path: Path) -> None:
    definition = stream("n INT, t TIMESTAMP", format="memory")
    spool = Spool(tmp_path / "spool", definition.schema)
    spool.push([{"n": 1, "T": datetime(2024, 1, 1)}, (2, datetime(2024, 1, 2))])
    spool.push(pa.table({"t": pa.array([datetime(2024, 1, 3)]), "n": pa.array([3], pa.int64())}))
    spool.push(pa.table({"n": [4], "t": [datetime(2024, 1, 4)]}).to_pandas())
    files = SpoolFiles(tmp_path / "spool")
    first = files.advance(SpoolPosition(), 2)
    assert first == SpoolPosition(1, 2, False, first.chain)
    Spool(tmp_path / "spool", definition.schema).finish()
    last = files.advance(first, 100)
    assert last == SpoolPosition(3, 4, True, last.chain)
    found = [*files.slices("s", SpoolPosition(), first), *files.slices("s", first, last)]
    assert [row[0] for row in read_all(definition, found)] == [1, 2, 3, 4]
    assert [row[2] for row in read_all(definition, found)] == [0, 1, 2, 3]
    assert [d.final for d in found] == [False, False, True]
    with pytest.raises(DataError, match="finished"):
        spool.push([(5, datetime(2024, 1, 5))])


def test_who_follows_pushes_need_not_list_the_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path, schema("x BIGINT, t BIGINT"), fsync=False)
    spool.push([(0, 0)])
    files, position = SpoolFiles(tmp_path), SpoolPosition()
    position = files.advance(position, 100)
    monkeypatch.setattr("penstock.sources.spool._listed", lambda folder: pytest.fail("listed"))
    for n in range(1, 4):
        spool.push([(n, n)])
        reached = files.advance(position, 100)
        assert [d.ordinal for d in files.slices("s", position, reached)] == [n]
        assert files.advance(reached, 100) == reached
        position = reached
    monkeypatch.undo()
    spool.push([(4, 4)])
    spool.push([(5, 5)], partition=1)  # two at once, and a name that head does not tell
    reached = files.advance(position, 100)
    assert [d.ordinal for d in files.slices("s", position, reached)] == [4, 5]
    assert [d.ordinal for d in files.slices("s", SpoolPosition(), reached)] == list(range(6))


def test_pushed_times_may_be_texts(tmp_path: Path) -> None:
    columns = Schema((Field("n", pa.int64()), Field("t", TIMESTAMP), Field("d", pa.date32())))
    spring = datetime(2024, 3, 1, 10, 0, 5)
    rows = [
        (1, "2024-03-01 10:00:05", "2024-03-01"),
        {"n": 2, "t": "2024-03-01T12:00:05+02:00", "d": date(2024, 3, 1)},
        (3, "2024-03-01T10:00:05.000000Z", None),
        (4, spring, "2024-03-01"),
        (5, spring.replace(tzinfo=UTC), None),
    ]
    assert as_table(rows, columns).column("t").to_pylist() == [spring] * 5
    assert as_table(rows, columns).column("d").to_pylist()[:2] == [date(2024, 3, 1)] * 2
    table = pa.table({"n": [1], "t": ["2024-03-01 10:00:05"], "d": ["2024-03-01"]})
    assert as_table(table, columns).column("t").to_pylist() == [spring]
    assert as_table(table.to_pandas(), columns).column("d").to_pylist() == [date(2024, 3, 1)]
    with pytest.raises(DataError, match=r"'t' of row 1 must be TIMESTAMP, got '10:00:05'; write"):
        as_table([(1, "2024-03-01", None), (2, "10:00:05", None)], columns)
    with pytest.raises(DataError, match=r"'t' of row 0 must be TIMESTAMP, got 'soon'"):
        as_table(pa.table({"n": [1], "t": ["soon"]}), columns)


def test_pushed_rows_are_checked(tmp_path: Path) -> None:
    spool = Spool(tmp_path, schema("name STRING, t BIGINT"))
    for rows, message in [
        ([{"nane": "a"}], "did you mean 'name'"),
        ([("a",)], "must have 2 values"),
        ([("a", "b")], "column 't' of row 0 must be BIGINT, got 'b'"),
        ([("a", 1), ("a", 1.9)], "column 't' of row 1 must be BIGINT, got 1.9"),
        ([("a", float("nan"))], "column 't' of row 0 must be BIGINT, got nan"),
        ([("a", 1), ("a", 2**70)], "row 1 must be BIGINT"),
        ([5], "must be a dict or a tuple"),
        ({"name": "a"}, "must be a list"),
        (pa.table({"name": [1], "t": [1]}), "must be STRING, got int64"),
    ]:
        with pytest.raises(DataError, match=message):
            spool.push(rows)
    assert SpoolFiles(tmp_path).rows() == 0


# On Spark


def opened(spark: Any, definition: StreamDef) -> Any:
    from penstock.spark.sources import open_streams

    return open_streams(spark, [definition], Settings(), lambda _: None)


class Run:
    """Runs a stream of descriptors and keeps what each batch brought."""

    def __init__(self, spark: Any, checkpoint: Path, config: Settings | None = None) -> None:
        self.spark = spark
        self.checkpoint = checkpoint
        self.config = config or Settings()
        self.batches: dict[int, list[Any]] = {}

    def start(
        self,
        definition: StreamDef,
        spool: Path | None = None,
        fail_at: int | None = None,
        **trigger: Any,
    ) -> Any:
        from penstock.spark.sources import open_streams

        folder = None if spool is None else str(spool)
        frame = open_streams(self.spark, [definition], self.config, lambda _: folder)
        assert frame.columns[:7] == ["stream", "path", "first", "last", "ordinal", "shift", "final"]

        def keep(batch: Any, number: int) -> None:
            self.batches[number] = [tuple(row) for row in batch.collect()]
            if number == fail_at:
                raise RuntimeError("stopped on purpose")

        writer = frame.writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"processingTime": "50 milliseconds"})).start()

    def until(self, query: Any, done: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        try:
            while not done():
                assert time.monotonic() < end, f"not done after {seconds} s: {self.batches}"
                if query.exception() is not None:
                    raise query.exception()
                time.sleep(0.05)
        finally:
            query.stop()

    @property
    def rows(self) -> list[Any]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    def finished(self) -> bool:
        return any(row[6] for row in self.rows)


@pytest.mark.spark
def test_replay_on_spark_and_an_exact_restart(spark: Any, tmp_path: Path) -> None:
    numbers(tmp_path / "a.csv", 0, 30)
    numbers(tmp_path / "b.csv", 30, 100)
    definition = stream(NUMBERS, path=tmp_path, order="name")
    run = Run(spark, tmp_path / "checkpoint", Settings({"batch.rows": 13}))
    query = run.start(definition, fail_at=3)
    with pytest.raises(Exception, match="stopped on purpose"):
        query.awaitTermination(60)
    before = dict(run.batches)
    assert sorted(before) == [0, 1, 2, 3]
    del run.batches[3]
    # The cut of the replayed batch is in the offset log: another limit does not change it.
    run.config = Settings({"batch.rows": 40})
    run.until(run.start(definition), run.finished)
    assert run.batches[3] == before[3]
    assert sorted(run.batches) == [0, 1, 2, 3, 4, 5]
    assert read_all(definition, run.rows) == [(n, 10 * n, n) for n in range(100)]
    assert [row[6] for row in run.rows] == [False] * (len(run.rows) - 1) + [True]
    # A finished source brings nothing more.
    count = len(run.batches)
    query = run.start(definition)
    time.sleep(1)
    query.stop()
    assert len(run.batches) == count


@pytest.mark.spark
def test_changed_files_stop_a_restart(spark: Any, tmp_path: Path) -> None:
    path = numbers(tmp_path / "a.csv", 0, 30)
    definition = stream(NUMBERS, path=path)
    run = Run(spark, tmp_path / "checkpoint", Settings({"batch.rows": 10}))
    with pytest.raises(Exception, match="stopped on purpose"):
        run.start(definition, tmp_path / "list", fail_at=1).awaitTermination(60)
    numbers(path, 0, 29)
    with pytest.raises(Exception, match="must stay as it was") as caught:
        run.start(definition, tmp_path / "list").awaitTermination(60)
    told = root_cause(caught.value)
    assert isinstance(told, DataError)
    assert f"the file '{path}' of stream s" in str(told)
    assert str(told).endswith("start with a new checkpoint")


@pytest.mark.spark
def test_replay_paced_by_rows(spark: Any, tmp_path: Path) -> None:
    definition = stream(NUMBERS, path=numbers(tmp_path / "a.csv", 0, 200), rate=100)
    run = Run(spark, tmp_path / "checkpoint")
    began = time.monotonic()
    run.until(run.start(definition), run.finished)
    assert time.monotonic() - began > 1.9
    assert read_all(definition, run.rows) == [(n, 10 * n, n) for n in range(200)]
    assert len(run.batches) > 2


@pytest.mark.spark
def test_replay_paced_by_event_time_and_looped(spark: Any, tmp_path: Path) -> None:
    path = numbers(tmp_path / "a.csv", 0, 10)
    definition = stream(NUMBERS, path=path, speed=100, loop="true")
    run = Run(spark, tmp_path / "checkpoint")
    began = time.monotonic()
    run.until(run.start(definition), lambda: len(read_all(definition, run.rows)) > 22)
    assert time.monotonic() - began > 2.0
    found = read_all(definition, run.rows)
    assert found == [(n % 10, 10 * n, n) for n in range(len(found))]
    assert not run.finished()


@pytest.mark.spark
def test_empty_source_and_available_now(spark: Any, tmp_path: Path) -> None:
    empty = stream(NUMBERS, path=numbers(tmp_path / "a.csv", 0, 0))
    run = Run(spark, tmp_path / "one")
    run.until(run.start(empty), run.finished)
    assert [row[2:7] for row in run.rows] == [(0, 0, 0, 0, True)]
    definition = stream(NUMBERS, path=numbers(tmp_path / "b.csv", 0, 25), rate=1)
    run = Run(spark, tmp_path / "two", Settings({"batch.rows": 10}))
    assert run.start(definition, availableNow=True).awaitTermination(60)
    assert [len(read_all(definition, rows)) for rows in run.batches.values()] == [10, 10, 5]


def test_one_source_keeps_the_positions_of_all_streams(tmp_path: Path) -> None:
    def source(*streams: dict[str, Any]) -> Any:
        return DescriptorSource({"streams": json.dumps(streams)}).streamReader(StructType())

    def described(name: str, rows: int, **more: Any) -> dict[str, Any]:
        kind = "memory" if more else "replay"
        path = tmp_path / f"{name}.csv"
        definition = StreamDef(name, schema(NUMBERS), kind, {} if more else {"path": str(path)}, 1)
        return {"definition": to_json(definition), "rows": rows, **more}

    def planned(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        parts = [reader.read(part) for part in reader.partitions(start, end)]
        return [[(d[0], d[4]) for d in part] for part in parts]

    numbers(tmp_path / "a.csv", 0, 10)
    pushed = Spool(tmp_path / "spool", schema(NUMBERS))
    memory = described("m", 100, folder=str(tmp_path / "spool"))
    limit = ReadMaxRows(2**40)
    reader = source(described("a", 6), memory)
    assert reader.initialOffset() == {}
    first = reader.latestOffset({}, limit)
    assert list(first) == ["a"]  # nothing was pushed: that stream is at its beginning
    assert planned(reader, {}, first) == [[("a", 0)]]
    pushed.push([(1, 10), (2, 20)])
    second = reader.latestOffset(first, limit)
    assert planned(reader, first, second) == [[("a", 6), ("m", 0)]]
    assert reader.latestOffset(second, limit) == second

    numbers(tmp_path / "b.csv", 0, 3)
    reader = source(described("a", 6), described("b", 6))  # one is added, one is not read
    third = reader.latestOffset(second, limit)
    assert third["m"] == second["m"]
    assert planned(reader, second, third) == [[("b", 0)]]
    pushed.push([(3, 30)])
    reader = source(described("a", 6), described("b", 6), memory)  # it goes on where it was
    fourth = reader.latestOffset(third, limit)
    assert planned(reader, third, fourth) == [[("m", 2)]]
    assert planned(source(memory), {}, second) == [[("m", 0)]]  # a batch that comes again


@pytest.mark.spark
def test_memory_stream_on_spark(spark: Any, tmp_path: Path) -> None:
    definition = stream(NUMBERS, format="memory")
    spool = Spool(tmp_path / "spool", definition.schema)
    run = Run(spark, tmp_path / "checkpoint")
    query = run.start(definition, tmp_path / "spool")
    spool.push([(1, 10), (2, 20)])
    end = time.monotonic() + 60
    while not run.rows and time.monotonic() < end:
        time.sleep(0.05)
    spool.push([(3, 30)])
    spool.finish()
    run.until(query, run.finished)
    assert read_all(definition, run.rows) == [(1, 10, 0), (2, 20, 1), (3, 30, 2)]


def parquet_file(path: Path, numbers: range, seconds: int) -> None:
    table = pa.table({"n": list(numbers), "t": list(numbers)})
    pyarrow.parquet.write_table(table, path)
    os.utime(path, (1_700_000_000 + seconds, 1_700_000_000 + seconds))


def test_a_watched_folder_is_cut_by_rows_files_and_bytes(tmp_path: Path) -> None:
    for number in range(4):
        parquet_file(tmp_path / f"{9 - number}.parquet", range(10), number)
    (tmp_path / ".hidden.parquet").write_text("no data")
    (tmp_path / "notes.txt").write_text("no data")
    definition = stream(NUMBERS, format="parquet", path=tmp_path, order="name")
    files = FolderFiles(definition, tmp_path, tmp_path / "list")
    files.look()
    most = 2**62
    assert [Path(p).stem for p in files.paths] == ["6", "7", "8", "9"]
    end, slices = in_line(files).advance(Places(4, listed=files.digest(4)), Take(15))
    assert [(Path(s[1]).stem, *s[2:5]) for s in slices] == [("6", 0, 10, 0), ("7", 0, 5, 10)]
    assert (end.begun, end.open, end.ordinal) == (2, ((1, 5, 15),), 15)
    again = FolderFiles(definition, tmp_path, tmp_path / "list")
    end, slices = in_line(again).advance(end, Take(most, files=2))
    assert [(Path(s[1]).stem, *s[2:5]) for s in slices] == [("7", 5, 10, 15), ("8", 0, 10, 20)]
    per_row = (
        pyarrow.parquet.read_metadata(tmp_path / "6.parquet").row_group(0).total_byte_size / 10
    )
    end, slices = in_line(again).advance(end, Take(most, int(3 * per_row) + 1))
    assert [s[2:4] for s in slices] == [(0, 3)]
    _, slices = in_line(again).advance(end, Take(most, 1))  # one row at least
    assert [s[2:4] for s in slices] == [(3, 4)]
    parquet_file(tmp_path / "old.parquet", range(2), -100)  # older, but it came later
    again.look()
    assert Path(again.paths[-1]).stem == "old"
    assert again.waiting(4, []) == (tmp_path / "old.parquet").stat().st_size
    assert again.waiting(3, [(3, 10)]) == again.waiting(4, [])


def test_the_list_of_a_watched_folder_after_a_crash(tmp_path: Path) -> None:
    parquet_file(tmp_path / "a.parquet", range(3), 0)
    definition = stream(NUMBERS, format="parquet", path=tmp_path, order="name")
    FolderFiles(definition, tmp_path, tmp_path / "list").look()
    kept = tmp_path / "list" / "files.jsonl"
    with open(kept, "ab") as cut:
        cut.write(b'{"path": "/some')
    files = FolderFiles(definition, tmp_path, tmp_path / "list")
    parquet_file(tmp_path / "b.parquet", range(3), 1)
    files.look()
    files = FolderFiles(definition, tmp_path, tmp_path / "list")
    assert [Path(p).stem for p in files.paths] == ["a", "b"]
    kept.write_bytes(b"no json\n")
    with pytest.raises(StateError, match="it is damaged"):
        FolderFiles(definition, tmp_path, tmp_path / "list")
    (tmp_path / "c.parquet").write_bytes(b"half a file")
    files = FolderFiles(definition, tmp_path, tmp_path / "other")
    reader = FolderReader(definition, files, Limits(100))
    end = reader.advance(Places(), False)
    assert [Path(s[1]).stem for s in reader.slices(Places(), end)] == ["a", "b"]  # those before it
    with pytest.raises(DataError, match=r"c.parquet' .* must be a whole Parquet file"):
        reader.advance(end, False)
    parquet_file(tmp_path / "c.parquet", range(3), 2)  # it was not in the list yet
    assert [Path(s[1]).stem for s in reader.slices(end, reader.advance(end, False))] == ["c"]


@pytest.mark.spark
def test_a_watched_folder_on_spark(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in put"
    folder.mkdir()
    for number in range(5):
        parquet_file(folder / f"{9 - number}.parquet", range(10 * number, 10 * number + 10), number)
    definition = stream(NUMBERS, format="parquet", path=folder, order="time")
    run = Run(spark, tmp_path / "checkpoint", Settings({"batch.rows": 15}))
    run.until(run.start(definition, tmp_path / "list"), lambda: len(run.rows) == 7)
    assert [row[0] for row in read_all(definition, run.rows)] == list(range(50))
    parquet_file(folder / "a.parquet", range(50, 57), -5)
    run.until(run.start(definition, tmp_path / "list"), lambda: len(run.rows) == 8)
    assert [row[0] for row in read_all(definition, run.rows)] == list(range(57))


def test_arrow_files_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = [None if n % 7 == 3 else n for n in range(40)]
    table = pa.table({"n": list(range(40)), "t": pa.array(times, pa.int64())})
    file = tmp_path / "a.arrow"
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=9)
    definition = stream(NUMBERS, path=file)
    (whole,) = read_file(definition, "arrow", str(file), 2, 39)
    monkeypatch.setattr(columnar, "BLOCK_ROWS", 4)
    parts = list(read_file(definition, "arrow", str(file), 2, 39))
    assert [part.table.num_rows + part.rejected.num_rows for part in parts] == [4] * 9 + [1]
    assert pa.concat_tables([part.table for part in parts]).equals(whole.table)
    assert np.concatenate([part.positions for part in parts]).tolist() == whole.positions.tolist()
    assert pa.concat_tables([part.rejected for part in parts]).equals(whole.rejected)


@pytest.mark.spark
def test_a_folder_of_parquet_files(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in put"
    folder.mkdir()
    for number in range(5):
        file = folder / f"{9 - number}.parquet"
        pyarrow.parquet.write_table(pa.table({"n": [number], "t": [number]}), file)
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    (folder / "notes.txt").write_text("no data")
    definition = stream(NUMBERS, format="parquet", path=folder)
    run = Run(spark, tmp_path / "checkpoint", Settings({"batch.files": 3}))
    run.until(run.start(definition), lambda: len(run.rows) == 5)
    assert [len(rows) for rows in run.batches.values()] == [3, 2]
    assert all(row[2:4] == (0, -1) and row[4] < 0 for row in run.rows)
    columns = list(zip(*run.rows, strict=True))
    table = pa.table({"path": columns[1], "first": columns[2], "ordinal": columns[4]})
    ordered = [run.rows[at] for at in arrival_order(table)]
    assert [row[0] for row in read_all(definition, ordered)] == list(range(5))
    numbers_before = len(run.rows)
    pyarrow.parquet.write_table(pa.table({"n": [7], "t": [7]}), folder / "new.parquet")
    run.until(run.start(definition), lambda: len(run.rows) > numbers_before)
    assert run.rows[-1][1].endswith("new.parquet")


@pytest.mark.spark
def test_native_csv_shows_broken_rows_and_the_order_of_files(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number, count in enumerate([1, 20, 3]):
        file = folder / f"{9 - number}.csv"
        lines = [f"{number},2024-01-0{number + 1} 00:00:00" for _ in range(count)]
        file.write_text("n,t\n" + "\n".join(lines) + "\n")
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    with open(folder / "9.csv", "a") as broken:
        broken.write("x,2024-01-01 00:00:00\n5\n")
    os.utime(folder / "9.csv", (1_700_000_000, 1_700_000_000))
    definition = stream("n INT, t TIMESTAMP", format="csv", path=folder)
    from penstock.spark.sources import native_column

    tables: list[pa.Table] = []
    frame = opened(spark, definition)
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: tables.append(batch.toArrow()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    (table,) = tables
    table = table.take(pa.array(arrival_order(table)))
    part = read_native(definition, table[native_column("s")])
    assert part.table["n"].to_pylist() == [0, *[1] * 20, *[2] * 3]
    assert part.table["t"].to_pylist()[0] == datetime(2024, 1, 1)
    assert part.rejected["raw"].to_pylist() == ["x,2024-01-01 00:00:00", "5"]


@pytest.mark.spark
def test_the_rate_source_of_spark(spark: Any, tmp_path: Path) -> None:
    from penstock.spark.sources import native_column

    wrong = stream("n STRING, t TIMESTAMP", format="rate", rowsPerSecond=50)
    with pytest.raises(DataError, match=r"declare \(timestamp TIMESTAMP, value BIGINT\)"):
        opened(spark, wrong)
    with pytest.raises(DataError, match=r"must be those of the format rate"):
        opened(spark, stream("t TIMESTAMP", format="rate"))
    definition = stream("moment TIMESTAMP, n BIGINT", format="rate", time=0, rowsPerSecond=50)
    tables: list[pa.Table] = []
    query = (
        opened(spark, definition)
        .writeStream.foreachBatch(lambda batch, _: tables.append(batch.toArrow()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    end = time.monotonic() + 60
    while not any(t.num_rows for t in tables) and time.monotonic() < end:
        time.sleep(0.1)
    query.stop()
    part = read_native(definition, pa.concat_tables(tables)[native_column("s")])
    assert sorted(part.table["n"].to_pylist()) == list(range(part.table.num_rows))


@pytest.mark.spark
def test_streams_are_checked_before_they_start(spark: Any, tmp_path: Path) -> None:
    path = numbers(tmp_path / "a.csv", 0, 5)
    cases: list[tuple[StreamDef, type[Exception], str]] = [
        (stream(NUMBERS, path="/no/such"), DataError, "the path of stream s must exist"),
        (stream(NUMBERS), DataError, "must have a path"),
        (stream(NUMBERS, path=path, rat=5), ConfigError, "did you mean 'rate'"),
        (stream(NUMBERS, path=path, rate=5, speed=1), ConfigError, "not both"),
        (stream(NUMBERS, path=path, rate="fast"), DataError, "number above 0"),
        (stream(NUMBERS, path=path, loop="often"), DataError, "number of rounds"),
        (stream("m BIGINT, t BIGINT", path=path), DataError, "'m'.*its columns are: n, t"),
        (stream(NUMBERS, format="csv", path="/no/such"), DataError, "must exist"),
        (stream(NUMBERS, format="nosuch"), DataError, "must be readable by Spark"),
    ]
    for definition, error, message in cases:
        with pytest.raises(error, match=message):
            opened(spark, definition)
    assert is_finite(stream(NUMBERS, path=path))
    assert not is_finite(stream(NUMBERS, path=path, loop="true"))
    assert not is_finite(stream(NUMBERS, format="rate"))


@pytest.fixture
def cities(tmp_path: Path) -> Path:
    file = tmp_path / "city.csv"
    file.write_text("lon,Name,founded\n23.7,Athens,1834-09-18\n,Volos,\n")
    return file


@pytest.mark.spark
def test_static_tables(spark: Any, tmp_path: Path, cities: Path) -> None:
    declared = schema("name STRING, lon DOUBLE, founded DATE")
    table = read_table(spark, TableDef("city", declared, "csv", {"path": str(cities)}))
    assert table["name"].to_pylist() == ["Athens", "Volos"]
    assert table["lon"].to_pylist() == [23.7, None]
    assert table.schema.types == list(declared.types)
    lines = tmp_path / "city.json"
    lines.write_text(
        '{"name": "Athens", "lon": 23.7, "founded": "1834-09-18"}\n{"name": "Volos"}\n'
    )
    as_json = read_table(spark, TableDef("city", declared, "json", {"path": str(lines)}))
    assert as_json.equals(table)
    pyarrow.parquet.write_table(table, tmp_path / "city.parquet")
    path = str(tmp_path / "city.parquet")
    assert read_table(spark, TableDef("city", declared, "parquet", {"path": path})).equals(table)
    with pytest.raises(DataError, match="the path of table city must exist"):
        read_table(spark, TableDef("city", declared, "csv", {"path": "/no/such"}))
    with pytest.raises(DataError, match=r"'nam'.*did you mean 'Name'"):
        read_table(spark, TableDef("city", schema("nam STRING"), "csv", {"path": str(cities)}))
    with pytest.raises(DataError, match=r"'name'.*must be INT, got 'Athens'"):
        read_table(spark, TableDef("city", schema("name INT"), "csv", {"path": str(cities)}))
    wrong = schema("lon INT")
    with pytest.raises(DataError, match=r"'lon'.*must be INT, got double"):
        read_table(spark, TableDef("city", wrong, "parquet", {"path": path}))


def read_table(spark: Any, definition: TableDef) -> pa.Table:
    """Return what the tasks see of a table."""
    from penstock.spark.tables import table_frame

    def whole(chunks: Any) -> Any:
        for chunk in chunks:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, chunk.schema) as writer:
                writer.write_table(chunk)
            yield Parcel(0, 0, 0, 0, sink.getvalue())

    frame = table_frame(spark, definition, range(len(definition.schema)), whole)
    try:
        rows = frame.collect()
    except Exception as error:
        raise root_cause(error) from None
    parts = [pa.ipc.open_stream(bytes(row["blob"])).read_all() for row in rows]
    return pa.concat_tables(parts).combine_chunks()


@pytest.mark.parametrize("change", [("h15", "h99"), ("h15", ""), ("p0", "p1")])
def test_a_promise_in_the_name_of_a_spool_file_is_checked(
    tmp_path: Path, change: tuple[str, str]
) -> None:
    spool = Spool(tmp_path, schema(NUMBERS))
    spool.heartbeat(15, 0)
    (file,) = tmp_path.glob("*.arrow")
    file.rename(tmp_path / file.name.replace(*change, 1))
    files = SpoolFiles(tmp_path)
    end = files.end()
    with pytest.raises(StateError, match="its bytes do not fit the digest in its name"):
        files.slices("s", SpoolPosition(), end)
