"""Poison: rows that no reader likes. None may stop a stream, and none may change another row."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

from penstock.catalog import Catalog, StreamDef
from penstock.cql import bind_query
from penstock.errors import DataError
from penstock.expr.types import parse_type
from penstock.model import Field, Schema
from penstock.physical.parcels import REPORT_STAGE, from_batches
from penstock.physical.planner import Query, plan
from penstock.physical.progress import Timeline
from penstock.physical.reports import read_report
from penstock.runs.segments import read_segment
from penstock.session import Session
from penstock.settings import Settings
from penstock.sinks import read_committed
from penstock.sources.formats import read_slice
from penstock.sources.readers import DESCRIPTOR, lines, read_native
from penstock.sources.readers.base import RAW_BYTES
from penstock.sources.replayed_files import ReplayFiles
from penstock.sources.side_by_side import SideBySide, Take
from penstock.spark.tasks import Job, pack_task
from tests import readers_fuzz

COLUMNS = "n INT, s STRING, x DOUBLE, t BIGINT"
FLAT = "s STRING, n BIGINT, t BIGINT"


def stream(format: str = "replay", columns: str = COLUMNS, **options: str) -> StreamDef:
    parts = [part.split() for part in columns.split(", ")]
    schema = Schema(tuple(Field(name, parse_type(type)) for name, type in parts))
    return StreamDef("s", schema, format, options, len(parts) - 1)


def read(file: Path, definition: StreamDef | None = None) -> tuple[dict[int, Any], dict[int, str]]:
    """Return rows and reasons by position."""
    rows, reasons = {}, {}
    for part in read_slice(definition or stream(), str(file), 0, -1):
        rows |= dict(zip(part.positions.tolist(), part.table.to_pylist(), strict=True))
        told = part.rejected.to_pylist()
        reasons |= {row["position"]: row["reason"] for row in told}
    return rows, reasons


# Lines of JSON


GOOD = b'{"n": 1, "s": "a", "x": 0.5, "t": 5}'
AS_READ = {"n": 1, "s": "a", "x": 0.5, "t": 5}

NO_ROWS = [
    (b"null", "a single value"),
    (b"1", "a single value"),
    (b'"x"', "a single value"),
    (b"true", "a single value"),
    (b"[]", "got an array"),
    (b'[{"t": 1}]', "got an array"),
    (b'{"t": 1} null {"t": 2}', "Extra data"),
    (b'{"t": 1}{"t": 2}', "Extra data"),
    (b'{"t": 1}\r{"t": 2}', "Extra data"),
    (b'{"t":', "Expecting value"),
    (b"1}", "Extra data"),
    (b'{"t": 1', "Expecting ',' delimiter"),
    (b'{"t": 1}\0', "NUL bytes"),
    (b'{"s": "\0", "t": 1}', "NUL bytes"),
    (b'{"s": "\xff", "t": 1}', "UTF-8"),
    (b'{"s": "\xed\xa0\x80", "t": 1}', "UTF-8"),
    (b'{"more": "\xff", "t": 1}', "UTF-8"),
    (b'{"s": "\\ud800", "t": 1}', "half of a surrogate pair"),
    (b'{"s": "\\udc00", "t": 1}', "half of a surrogate pair"),
    (b'{"more": ' + b"[" * 3000 + b"]" * 3000 + b', "t": 1}', "200 levels"),
    (b'{"s": ' + b'{"a": ' * 3000 + b"1" + b"}" * 3000 + b', "t": 1}', "200 levels"),
    (b"[" * 100_000, "200 levels"),
    (b'{"n": ' + b"1" * 5000 + b', "t": 1}', "the key 'n' must be INT"),
    (b'{"x": ' + b"1" * 5000 + b', "t": 1}', "the key 'x' must be DOUBLE"),
    (b'{"x": 1e999, "t": 1}', "the key 'x' must be DOUBLE"),
    (b'{"x": -1e999, "t": 1}', "the key 'x' must be DOUBLE"),
    (b'{"n": 1, "n": 1, "t": 1}', "the key 'n' must be there once"),
    (b'{"T": 1, "T": 1}', "the key 't' must be there once"),
    (b'{"S": 1, "\\u0053": 2, "t": 1}', "the key 's' must be there once"),
    (b"\xef\xbb\xbf" + GOOD, "BOM"),
    (b'{"t": 9223372036854775807}', "the column 't' must be from"),
    (b'{"t": -9223372036854775808}', "the column 't' must be from"),
]


@pytest.mark.parametrize("line", [line for line, _ in NO_ROWS], ids=range(len(NO_ROWS)))
@pytest.mark.parametrize("before", [0, 1, 40])
def test_a_line_that_is_no_row_is_rejected_alone(tmp_path: Path, line: bytes, before: int) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(b"\n".join([GOOD] * before + [line] + [GOOD] * 40))
    rows, reasons = read(file)
    if line.startswith(b"\xef\xbb\xbf") and not before:
        assert not reasons
        return
    assert list(reasons) == [before]
    assert dict(NO_ROWS)[line] in reasons[before]
    assert list(rows.values()) == [AS_READ] * (before + 40)


def test_numbers_and_nested_values_in_lines_of_json(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    cases = {
        b'{"s": 1.10, "t": 1}': ("s", "1.10"),
        b'{"s": 1e999, "t": 1}': ("s", "1e999"),
        b'{"s": ' + b"7" * 5000 + b', "t": 1}': ("s", "7" * 5000),
        b'{"s": {"a": [1.0, "\\u00e9", null]}, "t": 1}': ("s", '{"a": [1.0, "\\u00e9", null]}'),
        b'{"s": true, "t": 1}': ("s", "true"),
        b'{"more": ' + b"7" * 5000 + b', "t": 1}': ("s", None),
        b'{"more": 1e999, "t": 1}': ("s", None),
        b'{"more": Inf, "t": 1}': ("s", None),
        b'{"more": [' + b"[]," * 300 + b'1], "t": 1}': ("s", None),
        b'{"more": "\\ud800", "t": 1}': ("s", None),
        b'{"more": {"more": 1}, "more": 2, "t": 1}': ("s", None),
        b'{"s": "\\u0000", "t": 1}': ("s", "\0"),
        b'{"x": Infinity, "t": 1}': ("x", float("inf")),
        b'{"x": "-Infinity", "t": 1}': ("x", float("-inf")),
        b'{"x": 1e-999, "t": 1}': ("x", 0.0),
    }
    file.write_bytes(b"\n".join(cases))
    rows, reasons = read(file)
    assert not reasons
    assert [rows[at][name] for at, (name, _) in enumerate(cases.values())] == [
        value for _, value in cases.values()
    ]


@pytest.mark.parametrize("first", [b"", b"oops\n", b'{"N": 0, "T": 0}\n', b'{"n": 0, "t": 0}\n'])
def test_keys_are_matched_in_any_case_line_by_line(tmp_path: Path, first: bytes) -> None:
    file = tmp_path / "x.json"
    body = [
        (b'{"n": 1, "t": 1}', 1),
        (b'{"N": 2, "T": 1}', 2),
        (b'{"N": 3, "n": 4, "t": 1}', 4),
        (b'{"n": null, "N": 5, "t": 1}', None),
        (b'{"\\u004e": 6, "t": 1}', 6),
        (b'{"t": 1}', None),
        (b'{"s": "N", "t": 1}', None),
        (b'{"s": "\\"N\\"", "t": 1}', None),
        (b'{"more": {"N": 7}, "t": 1}', None),
    ]
    file.write_bytes(first + b"\n".join(line for line, _ in body) + b"\n")
    rows, _ = read(file)
    skipped = first.count(b"\n")
    assert [rows[at + skipped]["n"] for at in range(len(body))] == [n for _, n in body]


def test_two_spellings_of_a_key_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    columns = "ab INT, t BIGINT"
    file.write_bytes(b'{"AB": 1, "t": 1}\n' * 50 + b'{"AB": 1, "Ab": 2, "t": 1}\n')
    rows, reasons = read(file, stream(columns=columns))
    assert len(rows) == 50
    assert reasons == {50: "the key 'ab' must be there once, in whatever case, got 2"}


# Lines of values


HOSTILE = [
    b"1,a,0.5,5",
    b'1,"a',  # a quoted value that goes on in the next line
    b"2,b,1.5,6",
    b'3",c,2.5,7',
    b'4,"d ""e"", f",1,8',
    b'5,g","h,1,9',
    b'6,i"j"k,1,10',
    b'7, "l",1,11',
    b'8,"m"n,1,12',
    b"9,o\rp,1,13",
    b'10,"q\rr",1,14',
    b"11,\xff,1,15",
    b"12,\0,1,16",
    b"",
    b" \t\r\r",
    b"13,\xef\xbb\xbf,1,17",
    b"\xef\xbb\xbf14,s,1,18",
    b"0x10,u,1,19",
    b"15,v,1e999,20",
    b"16,w,nan(x),21",
    b"17,x,inf,22",
    b"18,y,nan,23",
    b"19,z",
    b"20,a,1,24,25",
    b'"21","b","2","25"\r',
    b"22,c,1,9223372036854775807",
    b"23,d,1,",
    b'24,"e,1,26',
]
FITTING = [0, 2, 4, 15, 20, 21, 24]


def test_a_hostile_file_is_the_same_however_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.csv"
    body = b"\n".join(HOSTILE)
    file.write_bytes(b"n,s,x,t\n" + body)
    definition = stream()

    def found(cuts: list[int]) -> Any:
        rows, bad = [], []
        for first, last in itertools.pairwise(cuts):
            before = body.count(b"\n", 0, first - 8)
            for part in read_slice(definition, str(file), first, last):
                rows += zip(
                    (part.positions + before).tolist(),
                    map(str, part.table.to_pylist()),
                    strict=True,
                )
                bad += [
                    (r["position"] + before, r["reason"], r["raw"])
                    for r in part.rejected.to_pylist()
                ]
        return sorted(rows), sorted(bad)

    ends = [i + 9 for i, byte in enumerate(body) if byte == 10]
    everything = 8 + len(body)
    whole = found([8, everything])
    assert [at for at, _ in whole[0]] == FITTING
    filled = [at for at, line in enumerate(HOSTILE) if line.strip()]
    assert [at for at, *_ in whole[1]] == [at for at in filled if at not in FITTING]
    for cut in ends:
        assert found([8, cut, everything]) == whole
    assert found([8, *ends, everything]) == whole
    for size, piece in itertools.product((1, 30, 100), (1, 5, 1000)):
        monkeypatch.setattr(lines, "BLOCK_BYTES", size)
        monkeypatch.setattr(lines, "_PIECE", piece)
        assert found([8, everything]) == whole


def test_a_value_broken_by_a_newline_never_becomes_a_row(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(b'a,b,t\n"x\n1,2,3"\n"y",5,6\n')
    rows, reasons = read(file, stream(columns="a STRING, b INT, t BIGINT"))
    assert list(rows.values()) == [{"a": "y", "b": 5, "t": 6}]
    assert list(reasons) == [0, 1]
    assert "must begin and end on its line" in reasons[0]
    # Also where the second half would be a row of texts.
    texts = tmp_path / "y.csv"
    texts.write_bytes(b't,a\n1,"x\n2,y"\n')
    definition = replace(stream(columns="a STRING, t BIGINT"), time=1)
    assert [*read(texts, definition)[1]] == [0, 1]


def test_the_text_format_keeps_quotes_inside_values(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    body = ["1, O'Brien, 1", " '2', 'it''s', 2", "3, 'a, ''b' , 3", "4, 'open, 4", "5, 'x'y, 5"]
    file.write_text("int, charn 9, timestamp\n" + "\n".join(body))
    rows, reasons = read(file, stream(columns="n INT, s STRING, t BIGINT"))
    assert [row["s"] for row in rows.values()] == ["O'Brien", "it's", "a, 'b"]
    assert list(reasons) == [3, 4]


def test_a_very_long_row_is_read_or_rejected(tmp_path: Path) -> None:
    long = b"x" * 50_000_000
    file = tmp_path / "x.csv"
    rest = b"".join(b"%d,s,1,%d\n" % (n, n) for n in range(3, 30))
    file.write_bytes(b"n,s,x,t\n1,a,1,1\n2," + long + b",1,2\n" + rest)
    rows, reasons = read(file)
    assert not reasons
    assert len(rows) == 29
    assert len(rows[1]["s"]) == len(long)
    file.write_bytes(b"n,s,x,t\n1,a,1,1\n2," + long + b",bad,2\n" + rest)
    rows, reasons = read(file)
    assert (len(rows), reasons) == (28, {1: "the column 'x' must be DOUBLE"})
    file = tmp_path / "x.json"
    body = [b'{"n": 1, "t": 1}'] * 10
    file.write_bytes(b"\n".join([*body, b'{"t": 2, "s": "' + long + b'"}', *body]))
    rows, reasons = read(file)
    assert not reasons
    assert len(rows[10]["s"]) == len(long)
    file.write_bytes(b"\n".join([*body, b'{"t": "2", "s": "' + long + b'"}', *body]))
    rows, reasons = read(file)
    assert (len(rows), reasons) == (20, {10: "the key 't' must be BIGINT"})


def test_a_line_that_is_too_long_is_rejected_without_being_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LONGEST_LINE", 1000)
    for name, head, line, end in (
        ("x.csv", b"n,s,x,t\n", b"1,%s,1,1", b""),
        ("x.json", b"", b'{"n": 1, "t": 1, "s": "%s"}', b"\n"),
    ):
        file = tmp_path / name
        fitting = line % (b"y" * (999 - len(line % b"")))
        too_long = line % (b"z" * (1000 - len(line % b"")))
        body = [line % b"a", too_long, fitting, line % b"b" * 0 + too_long, line % b"c"]
        file.write_bytes(head + b"\n".join(body) + end)
        rows, reasons = read(file)
        assert list(rows) == [0, 2, 4]
        assert reasons == dict.fromkeys([1, 3], "a line must have at most 1,000 bytes, got 1,001")


# Whole files


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("x.csv", b"n,s,x,t\r1,a,1,1\r2,b,2,2\r", "carriage returns alone"),
        ("x.csv", "n,s,x,t\n1,a,1,1\n".encode("utf-16"), "UTF-16; convert it"),
        ("x.csv", "n,s,x,t\n1,a,1,1\n".encode("utf-16-le"), "NUL bytes"),
        ("x.json", '{"t": 1}\n'.encode("utf-16"), "UTF-16; convert it"),
        ("x.csv", b"\x1f\x8b\x08\0\0\0\0\0", "packed by gzip; unpack it"),
        ("x.json", b"\x1f\x8b\x08\0\0\0\0\0", "packed by gzip; unpack it"),
        ("x.csv", b"PAR1\x15\x04\x15", "it is Parquet"),
        ("x.csv", b"\n1,a,1,1\n", "must name its columns, got a blank line"),
        ("x.csv", b"n" * 2_000_000, "no newline in 1,048,576 bytes"),
        ("x.csv", b"n,s,\xff,t\n1,a,1,1\n", "the column 'x' of stream s must be in"),
        ("x.txt", b"int, charn 5, double\rtimestamp", "carriage returns alone"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_its_name(
    tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read(file)
    assert told in str(caught.value)
    assert str(file) in str(caught.value)
    with pytest.raises(DataError, match="must"):
        ReplayFiles(stream(path=str(file))).check()


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize(
    ("name", "content", "count"),
    [
        ("x.csv", b"", 0),
        ("x.csv", b"\n", 0),
        ("x.csv", b"n,s,x,t", 0),
        ("x.csv", b"n,s,x,t\n", 0),
        ("x.csv", b"n,s,x,t\r\n1,a,1,1\r\n", 1),
        ("x.csv", b"n,s,x,t\n1,a,1,1\r", 1),
        ("x.csv", b"n,s,x,t\n1,a,1,1\n2,b,2,2", 2),
        ("x.json", b"", 0),
        ("x.json", b"\n\n", 0),
        ("x.json", b'{"t": 1}', 1),
        ("x.json", b'{"t": 1}\r\n{"t": 2}\r\n', 2),
        ("x.txt", b"int, charn 5, double, timestamp\n1, a, 1, 1", 1),
    ],
)
def test_marks_empty_files_and_last_lines(
    tmp_path: Path, name: str, content: bytes, count: int, mark: bytes
) -> None:
    file = tmp_path / name
    file.write_bytes(mark + content)
    rows, reasons = read(file)
    assert (len(rows), reasons) == (count, {})


def test_a_file_that_ends_in_the_middle_of_a_line(tmp_path: Path) -> None:
    for name, content in (
        ("x.csv", b'n,s,x,t\n1,a,1,1\n2,"b'),
        ("x.json", b'{"t": 1}\n{"t": 2'),
    ):
        (tmp_path / name).write_bytes(content)
        rows, reasons = read(tmp_path / name)
        assert (list(rows), list(reasons)) == ([0], [1])


# Columnar files and rows of Spark


def invalid_text(values: list[bytes | None]) -> pa.Array:
    array = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers())


@pytest.mark.parametrize("kind", ["string", "large_string", "binary", "string_view"])
def test_text_of_columnar_files_that_is_no_text(tmp_path: Path, kind: str) -> None:
    text = invalid_text([b"a", b"\xff", None, b"\xc3\xa9"])
    if kind == "string_view":
        bad = text.cast(pa.binary()).cast(pa.binary_view())
        text = pa.Array.from_buffers(pa.string_view(), len(bad), bad.buffers())
    elif kind != "string":
        large = pa.binary() if kind == "binary" else pa.large_binary()
        text = text.cast(pa.binary()).cast(large).view(kind)
    numbers = pa.array([1, 2, 3, 4], pa.int32())
    table = pa.table({"n": numbers, "s": text, "x": numbers, "t": numbers.cast(pa.int64())})
    files = {"arrow": tmp_path / "x.arrow"}
    with pyarrow.ipc.new_file(str(files["arrow"]), table.schema) as writer:
        writer.write_table(table)
    if kind != "string_view":
        files["parquet"] = tmp_path / "x.parquet"
        pyarrow.parquet.write_table(table, files["parquet"])
    for name, file in files.items():
        definition = stream("parquet" if name == "parquet" else "replay")
        (part,) = read_slice(definition, str(file), 0, -1)
        part.table.validate(full=True)
        assert part.table["s"].to_pylist() == ["a", None, "é"]
        (told,) = part.rejected.to_pylist()
        assert told["position"] == 1
        assert told["reason"] == "the column 's' must be STRING"
        assert json.loads(told["raw"])["s"] == "\ufffd"


def test_rows_of_spark_that_are_no_text() -> None:
    fields = [
        pa.array([1, 2, 3], pa.int32()),
        invalid_text([b"a", b"\xff", b"b"]),
        pa.array([1.0, 2, 3]),
        pa.array([1, 2, 3], pa.int64()),
        invalid_text([None, None, b"b\xff\0" + b"y" * 100_000]),
    ]
    names = ["n", "s", "x", "t", "_corrupt_record"]
    part = read_native(stream("kafka"), pa.StructArray.from_arrays(fields, names))
    assert part.table["n"].to_pylist() == [1]
    assert part.rejected["position"].to_pylist() == [1, 2]
    part.rejected.validate(full=True)
    assert part.rejected["raw"][1].as_py().startswith("b\ufffd\ufffdyyy")
    assert len(part.rejected["raw"][1].as_py()) < RAW_BYTES + 100


def test_times_that_no_sink_can_hold_are_rejected(tmp_path: Path) -> None:
    definition = stream(columns="d DATE, t TIMESTAMP")
    file = tmp_path / "x.csv"
    lines = ["2024-01-01,2024-01-01", "0000-01-01,2024-01-01", "2024-01-01,0000-12-31 23:59:59"]
    file.write_text("d,t\n" + "\n".join([*lines, "2024-01-01,0001-01-01T00:00:00+01:00"]))
    rows, reasons = read(file, definition)
    assert list(rows) == [0]
    assert set(reasons.values()) == {
        "the column 'd' must be in a year from 1 to 9999",
        "the column 't' must be in a year from 1 to 9999",
    }
    table = pa.table({"d": pa.array([0], pa.date32()), "t": pa.array([2**62], pa.timestamp("us"))})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    (part,) = read_slice(replace(definition, format="parquet"), str(tmp_path / "x.parquet"), 0, -1)
    assert part.rejected.num_rows == 1
    assert str(2**62) in part.rejected["raw"][0].as_py()
    millis = pa.array([1, 2**62, 3], pa.timestamp("ms"))
    pyarrow.parquet.write_table(
        pa.table({"d": pa.nulls(3, pa.date32()), "t": millis}), tmp_path / "x.parquet"
    )
    (part,) = read_slice(replace(definition, format="parquet"), str(tmp_path / "x.parquet"), 0, -1)
    assert part.positions.tolist() == [0, 2]


def test_damaged_columnar_files_are_refused_by_their_names(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array(range(100), pa.int32()), "t": pa.array(range(100), pa.int64())})
    parquet, arrow = tmp_path / "x.parquet", tmp_path / "x.arrow"
    pyarrow.parquet.write_table(table, parquet, compression="none", write_page_checksum=True)
    with pyarrow.ipc.new_file(str(arrow), table.schema) as writer:
        writer.write_table(table)
    for file, format in ((parquet, "parquet"), (arrow, "replay")):
        good = file.read_bytes()
        definition = stream(format, "n INT, t BIGINT")
        for bad in (good[:-1], good[: len(good) // 2], b"", b"x" * 100, good[8:]):
            file.write_bytes(bad)
            with pytest.raises(DataError, match="must be a whole") as caught:
                list(read_slice(definition, str(file), 0, 100))
            assert str(file) in str(caught.value)
    page = bytearray(good := _parquet(table, parquet))
    page[200] ^= 1  # a byte of a value, which a checksum guards
    parquet.write_bytes(page)
    with pytest.raises(DataError, match="must be a whole Parquet file"):
        list(read_slice(stream("parquet", "n INT, t BIGINT"), str(parquet), 0, 100))
    assert len(good) == len(page)


def _parquet(table: pa.Table, file: Path) -> bytes:
    pyarrow.parquet.write_table(
        table, file, compression="none", use_dictionary=False, write_page_checksum=True
    )
    return file.read_bytes()


def test_an_arrow_file_with_offsets_that_lead_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "x.arrow"
    offsets = pa.array([0, 2**30, 3], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"abc")])
    table = pa.table({"s": text, "t": pa.array([1, 2], pa.int64())})
    with pyarrow.ipc.new_file(str(file), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="must be a whole Arrow file"):
        list(read_slice(stream("replay", "s STRING, t BIGINT"), str(file), 0, 2))


# Rejected rows on their way to the sink


def packed(tmp_path: Path, definition: StreamDef, rows: int) -> list[dict[str, Any]]:
    """Pack a whole stream in batches; return the rejected rows as they are kept for the sink."""
    catalog = Catalog()
    catalog.add(definition)
    physical = plan([Query("q", bind_query("SELECT n FROM s [NOW]", catalog))], Settings(), {})
    files = ReplayFiles(definition)
    in_line = SideBySide(files, 1, None, in_order=True)
    position, found = files.start(), []
    timeline = Timeline(rules={"s": definition.timing})
    while not position.done:
        position, slices = in_line.advance(position, Take(rows))
        job = Job(
            0, physical, Settings(), str(tmp_path / "runs"), 1, {"s": definition},
            timeline, "",
        )  # fmt: skip
        described = pa.RecordBatch.from_pylist(
            [dict(zip(DESCRIPTOR.names, one, strict=True)) for one in slices], DESCRIPTOR
        )
        for parcel in from_batches(pack_task(job)(iter([described]))):
            if parcel.stage != REPORT_STAGE:
                continue
            told = read_report(parcel)
            if told["kind"] == "source":
                timeline = replace(timeline, progress=timeline.after([told]))
                for aside in told["rejects"]:
                    found += read_segment(job.segments, aside["place"]).to_pylist()
    assert timeline.of("s").rejected == len(found)
    return found


@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_rejected_rows_reach_the_sink_whole(tmp_path: Path, kind: str, rows: int) -> None:
    file = tmp_path / f"x.{kind}"
    if kind == "csv":
        bad = {at: line for at, line in enumerate(HOSTILE) if at not in FITTING and line.strip()}
        file.write_bytes(b"n,s,x,t\n" + b"\n".join(HOSTILE))
    else:
        body = [line for pair in NO_ROWS for line in (GOOD, pair[0], b"")]
        bad = {3 * at + 1: line for at, (line, _) in enumerate(NO_ROWS)}
        file.write_bytes(b"\n".join(body))
    found = packed(tmp_path, replace(stream(path=str(file)), deadletter="d"), rows)
    assert [row["position"] for row in found] == list(bad)
    for row, line in zip(found, bad.values(), strict=True):
        shown = line.rstrip(b"\r").decode("utf-8", "replace").replace("\0", "\ufffd")
        assert row["raw"][:RAW_BYTES] == shown[:RAW_BYTES]
        assert len(row["raw"]) < RAW_BYTES + 100
        assert row["reason"]


def test_without_a_sink_the_run_stops_and_names_the_row(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(b"\n".join([GOOD] * 3 + [b'{"n": 1, "s": "' + b"y" * 10**6 + b'"}']))
    with pytest.raises(DataError) as caught:
        packed(tmp_path, stream(path=str(file)), 10)
    told = str(caught.value)
    place = f"file {file}, line 4: the time column 't' is null"
    assert f"a row of stream s must fit its declared columns: {place}" in told
    assert len(told) < 1100


@pytest.mark.parametrize("rows", [1, 2, 7, 100])
def test_the_line_of_a_bad_row_is_that_of_its_file(tmp_path: Path, rows: int) -> None:
    """Whatever the batches: the second file, below its header and a blank line."""
    folder = tmp_path / "files"
    folder.mkdir()
    good = ["a,1,1"] * 5
    for number, name in enumerate("ab"):
        lines = ["s,n,t", *good, "", *good, *(["x,no,1"] if number else []), *good]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"b\.csv, line 13: the column 'n' must be BIGINT"):
        packed(tmp_path, stream(columns=FLAT, path=str(folder)), rows)


@pytest.mark.parametrize("missing", [None, "null", "error"])
def test_the_option_missing_decides_about_missing_keys(tmp_path: Path, missing: str | None) -> None:
    lines = [
        '{"s": "a", "n": 1, "t": 1}',
        '{"s": null, "n": 2, "t": 2}',
        '{"n": 3, "t": 3}',
        '{"S": "d", "n": 4, "t": 4}',
        '{"x": "s", "n": 5, "t": 5}',
        '{"x": {"s": 1}, "n": 6, "t": 6}',
        '{"\\u0073": null, "n": 7, "t": 7}',
        '{"x": "\\"s\\": 1", "n": 8, "t": 8}',
        '{"s": "i", "n": null , "t": 9}',
        '{"s": "j", "t": 10}',
    ]
    file = tmp_path / "x.json"
    file.write_text("\n".join(lines) + "\n")
    options = {"path": str(file)} | ({} if missing is None else {"missing": missing})
    for rows in (1, 3, 100):
        found = packed(tmp_path, replace(stream(columns=FLAT, **options), deadletter="d"), rows)
        bad = [2, 4, 5, 7, 9] if missing == "error" else []
        assert [row["position"] for row in found] == bad
        assert {row["reason"] for row in found} <= {
            "the key 's' is missing",
            "the key 'n' is missing",
        }
    if missing == "error":
        with pytest.raises(DataError, match=r"x\.json, line 3: the key 's' is missing"):
            packed(tmp_path, stream(columns=FLAT, **options), 100)


@pytest.mark.spark
def test_poison_on_spark(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_bytes(b"n,s,x,t\n" + b"\n".join(HOSTILE))
    (folder / "b.json").write_bytes(b"null\n" + b"\n".join(line for line, _ in NO_ROWS))
    with Session(spark, settings={"batch.rows": 5, "shards": 1}) as session:
        query = session.sql(
            f"""
            CREATE SINK bad USING jsonl OPTIONS (path '{tmp_path / "bad"}');
            CREATE STREAM s (n INT, s STRING, x DOUBLE, t BIGINT) USING replay
              OPTIONS (path '{folder}') TIMESTAMP BY t SLACK 1000000 ON ERROR DEADLETTER bad;
            CREATE SINK kept USING memory OPTIONS (changes 'intervals');
            CREATE QUERY q INTO kept AS SELECT n, s FROM s [NOW];
            """
        )
        assert session.await_end(timeout=200)
        names = sorted(query.rows()["s"].to_pylist())
    assert names == sorted(["a", "b", 'd "e", f', "\ufeff", "x", "y", "b"])
    dead = list(read_committed(tmp_path / "bad"))
    filled = [at for at, line in enumerate(HOSTILE) if line.strip() and at not in FITTING]
    found: dict[str, list[int]] = {}
    for row in dead:
        found.setdefault(Path(row["partition"]).name, []).append(row["position"])
    assert found == {"a.csv": filled, "b.json": list(range(len(NO_ROWS) + 1))}


# Damaged files, at random


@pytest.mark.long
def test_damaged_files_against_plain_readers() -> None:
    ended, failed = readers_fuzz.run(0, 300)
    assert failed == []
    assert sum(ended.values()) == 300
    assert {how.partition(",")[0] for how in ended} == set(readers_fuzz.KINDS)


def test_a_case_that_kills_its_process_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.run

    def dying(command: list[str], **options: Any) -> Any:
        cases = command[command.index("--cases") + 1]
        first = int(command[command.index("--first") + 1])
        if first <= 2 < first + int(cases):
            command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"]
        return real(command, **options)

    monkeypatch.setattr(readers_fuzz.subprocess, "run", dying)
    ended, failed = readers_fuzz.run_group(0, 4)
    assert [told.partition(": ")[0] for told in failed] == ["case 2"], failed
    assert "the process ended with -11" in failed[0]
    assert sum(ended.values()) == 3
