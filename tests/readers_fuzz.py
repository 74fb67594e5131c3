"""Damaged files of every format against plain readers; a case that kills its process is a failure.

``python -m tests.readers_fuzz --cases 10000 --first 0`` runs cases by their numbers, which are
their seeds, in processes of their own; a group whose process dies is run again case by case.

A case of csv, text or JSON lines must have the rows and the bad lines that the plain reader finds,
with one slice and with slices cut anywhere, with large and with tiny blocks.  A case of Parquet or
Arrow must have all its rows, or be refused with a sentence that names the file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from penstock.catalog import StreamDef
from penstock.errors import DataError
from penstock.expr.types import parse_type
from penstock.model import Field, Schema
from penstock.sources.formats import read_slice
from penstock.sources.readers import json_lines, lines
from penstock.sources.replayed_files import ReplayFiles
from penstock.sources.side_by_side import SideBySide, Take
from tests.plain_readers import COLUMNS, TEXT_COLUMNS, read_lines

KINDS = ("csv", "json", "csv", "json", "text", "parquet", "arrow")
GROUP = 100

HEADER = b"n,s,x,ok,day,at,t\n"
SCHEMA_LINE = b"int, charn 9, double, timestamp\n"

TOKENS = (
    b'"', b'""', b"'", b"''", b",", b"\n", b"\r", b"\r\n", b"\0", b"\xff", b"\xc3", b"\xc3\xa9",
    b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xff\xfe", b"\x1f\x8b", b"null", b"NULL", b"{}", b"{", b"}",
    b"[", b"]", b"[]", b"true", b"1", b'"x"', b"NaN", b"-NaN", b"Inf", b"-Inf", b"Infinity",
    b"0x1f", b"nan(1)", b"inf", b"1e999", b"-1e999", b"1e-999", b"1" * 5000, b"9223372036854775807",
    b"-9223372036854775808", b"2147483648", b"\\ud800", b"\\udc00", b"\\ud83d\\ude00", b"\\u0000",
    b"\\", b"\\n", b"\\u006e", b"\\u004e", b" ", b"\t", b"\x0b", b"\xc2\xa0", b":", b"/", b"//",
    b"0000-01-01", b"9999-12-31", b"2024-02-30", b"T24:00:00", b"Z", b"+23:59", b"-24:00", b".",
    b".1234567", b"e", b"+", b"-", b"_", b"[" * 250 + b"]" * 250, b"[" * 150 + b"]" * 150,
    b'{"a":' * 210 + b"1" + b"}" * 210, b'"n":', b'"N": 7', b',"T":1', b', "n": 1', b'"S"',
    b"\xe2\x84\xaa", b'"o\xe2\x84\xaa": true', b"0x", b"x", b"(", b"yes", b"T",
)  # fmt: skip
"""What is put into files: whatever a reader has ever been seen to stumble over."""


def definition(kind: str, **options: str) -> StreamDef:
    declared = TEXT_COLUMNS if kind == "text" else COLUMNS
    parts = [part.split() for part in declared.split(", ")]
    schema = Schema(tuple(Field(name, parse_type(type)) for name, type in parts))
    format = {"parquet": "parquet"}.get(kind, "replay")
    given = {"format": kind} if format == "replay" and kind != "arrow" else {}
    return StreamDef("s", schema, format, {**given, **options}, len(parts) - 1)


# What is in the files


def _value(chance: random.Random, type: str) -> Any:
    match type:
        case "INT":
            return chance.choice((0, 1, -1, chance.randrange(-(2**31), 2**31)))
        case "BIGINT":
            return chance.choice((0, chance.randrange(10**6), chance.randrange(-(2**40), 2**60)))
        case "STRING":
            return chance.choice(
                (
                    "",
                    "a",
                    "A b",
                    "é",
                    "a, b",
                    'say "x"',
                    "it's",
                    "null",
                    "NaN",
                    "1",
                    "0x1f",
                    "😀",
                    "}",
                )
            )
        case "DOUBLE":
            return chance.choice((0.0, -1.5, 1e300, chance.random(), math.nan, math.inf))
        case "BOOLEAN":
            return chance.random() < 0.5
        case "DATE":
            return f"{chance.randint(1, 9999):04d}-{chance.randint(1, 12):02d}-28"
    text = f"{chance.randint(1, 9999):04d}-{chance.randint(1, 12):02d}-28"
    text += chance.choice(("", " 10:20", "T10:20:30", " 10:20:30.25", "T10:20:30.1234567"))
    return text + (chance.choice(("", "", "Z", "+02:00", "-0130")) if ":" in text else "")


def _csv_text(chance: random.Random, value: Any, quote: str) -> str:
    if value is None:
        return ""
    text = str(value)
    if quote in text or "," in text or not text or chance.random() < 0.2:
        text = quote + text.replace(quote, quote * 2) + quote
    if quote == "'" and chance.random() < 0.3:
        text = chance.choice(("  ", " ", "\t")) + text + chance.choice(("", " "))
    return text


def _json_text(chance: random.Random, pairs: list[tuple[str, Any]]) -> str:
    spelled = []
    for key, value in pairs:
        if value is None and chance.random() < 0.5:
            continue
        key = key.upper() if chance.random() < 0.05 else key
        spelled.append((key, "NaN" if value != value else value))
    if chance.random() < 0.3:
        spelled.append(("more", {"a": [1, {"b": None}], "N": 1}))
    if chance.random() < 0.1:
        chance.shuffle(spelled)
    blank = chance.choice(("", " "))
    text = json.dumps(dict(spelled), ensure_ascii=chance.random() < 0.3)
    return text.replace('"}', f'"{blank}}}') if chance.random() < 0.1 else text


def _rows(chance: random.Random, types: list[str]) -> Iterator[list[Any]]:
    for _ in range(chance.choice((0, 1, 2, 5, 12, 40, 80))):
        row = [None if chance.random() < 0.1 else _value(chance, type) for type in types]
        row[-1] = chance.randrange(10**6)
        yield row


def text_body(kind: str, chance: random.Random) -> bytes:
    """Return good lines of a format."""
    columns = [part.split() for part in (TEXT_COLUMNS if kind == "text" else COLUMNS).split(", ")]
    end = chance.choice(("\n", "\n", "\n", "\r\n"))
    body = ""
    for row in _rows(chance, [type for _, type in columns]):
        if kind == "json":
            body += _json_text(chance, [(c[0], v) for c, v in zip(columns, row, strict=True)])
        else:
            body += ",".join(_csv_text(chance, v, "'" if kind == "text" else '"') for v in row)
        body += end
    if chance.random() < 0.2:
        body = body.removesuffix(end)
    return body.encode()


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return data with some bytes, parts or lines changed."""
    for _ in range(chance.choice((0, 1, 1, 2, 4, 9))):
        at = chance.randint(0, len(data))
        to = min(len(data), at + chance.choice((1, 1, 2, 8, 60)))
        match chance.randrange(8):
            case 0 if at < len(data):
                data = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
            case 1:
                data = data[:at] + bytes([chance.randrange(256)]) + data[at:]
            case 2 | 3 | 4:
                data = data[:at] + chance.choice(TOKENS) + data[at:]
            case 5:
                data = data[:at] + data[to:]
            case 6:
                data = data[:to] + data[at:to] + data[to:]
            case _:
                some = data.split(b"\n")
                i, j = chance.randrange(len(some)), chance.randrange(len(some))
                some[i] = some[i][: chance.randint(0, len(some[i]))] + chance.choice((b"", some[j]))
                data = b"\n".join(some)
    if chance.random() < 0.05:
        data = data[: chance.randint(0, len(data))]
    return data


def noise(chance: random.Random) -> bytes:
    """Return bytes that never were a file."""
    if chance.random() < 0.5:
        return chance.randbytes(chance.randrange(200))
    return b"".join(chance.choice(TOKENS) for _ in range(chance.randrange(60)))


# What is read


Found = tuple[dict[int, tuple[Any, ...]], dict[int, tuple[str, str]]]
"""Rows by position, and reason and raw text of rejected ones by position."""


def read(stream: StreamDef, path: Path, cuts: list[int], starts: list[int]) -> Found:
    """Read the slices between cuts; ``starts`` are the positions at which they start."""
    rows: dict[int, tuple[Any, ...]] = {}
    bad: dict[int, tuple[str, str]] = {}
    for (first, last), start in zip(itertools.pairwise(cuts), starts, strict=False):
        for part in read_slice(stream, str(path), first, last):
            part.table.validate(full=True)
            part.rejected.validate(full=True)
            assert part.table.num_rows == len(part.positions)
            values = [_shown(column) for column in part.table.columns]
            for position, row in zip(
                part.positions.tolist(), zip(*values, strict=True), strict=True
            ):
                assert start + position not in rows, f"the row {start + position} is there twice"
                rows[start + position] = row
            for row in part.rejected.to_pylist():
                assert start + row["position"] not in bad
                assert "\0" not in row["raw"]
                assert row["reason"].startswith(("a ", "the "))
                bad[start + row["position"]] = (row["reason"], row["raw"])
    assert not rows.keys() & bad.keys()
    return rows, bad


def _shown(column: pa.ChunkedArray) -> list[Any]:
    values = column.to_pylist()
    return ["NaN" if isinstance(v, float) and v != v else v for v in values]


def _same(a: Found, b: Found, what: str) -> None:
    for one, other, name in ((a[0], b[0], "rows"), (a[1], b[1], "rejected")):
        for place in sorted(one.keys() | other.keys()):
            if one.get(place) != other.get(place):
                raise AssertionError(
                    f"{what}: {name} at {place} differ: {one.get(place)} and {other.get(place)}"
                )


def _refused(error: DataError, path: Path) -> str:
    told = str(error)
    if str(path) not in told or " must " not in told or len(told) > 3000:
        raise AssertionError(f"no sentence that names the file: {told[:500]}")
    return "refused"


class Settings:
    """Sizes of blocks and pieces for the time of a case."""

    def __init__(self, block: int, piece: int, small: int) -> None:
        self._new = [(lines, "BLOCK_BYTES", block), (lines, "_PIECE", piece)]
        self._new.append((json_lines, "_SMALL", small))

    def __enter__(self) -> None:
        self._old = [(m, n, getattr(m, n)) for m, n, _ in self._new]
        for module, name, value in self._new:
            setattr(module, name, value)

    def __exit__(self, *_: object) -> None:
        for module, name, value in self._old:
            setattr(module, name, value)


def check_lines(kind: str, chance: random.Random, folder: Path) -> str:
    """Read a damaged file of lines and compare; return what became of it."""
    body = text_body(kind, chance)
    body = damaged(body, chance) if chance.random() < 0.9 else noise(chance)
    head = {"csv": HEADER, "text": SCHEMA_LINE, "json": b""}[kind]
    mark = b"\xef\xbb\xbf" if chance.random() < 0.1 else b""
    head = mark + head
    if kind == "json" and body.startswith(b"\xef\xbb\xbf"):
        body = b"x" + body
    spoiled = kind != "json" and chance.random() < 0.05
    if spoiled:
        head = damaged(head, chance)
    null = "null" if chance.random() < 0.2 and kind != "json" else None
    stream = definition(kind, **({"null": null} if null else {}))
    path = folder / f"x.{kind}"
    path.write_bytes(head + body)
    everything = [0, len(head + body)]
    try:
        whole = read(stream, path, everything, [0])
    except DataError as error:
        allowed = (b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"PAR1")
        if not spoiled and not (kind == "json" and body.startswith(allowed)):
            raise
        return _refused(error, path)
    if not spoiled:
        rows, bad = read_lines(kind, body, null)
        rows = {n: tuple("NaN" if v != v else v for v in row) for n, row in rows.items()}
        told = {n: whole[1].get(n, ("", "")) for n in bad}
        _same(whole, (rows, told), "the plain reader")
    begin = 0 if kind == "json" else len(head)
    if spoiled:
        begin = (head + body).find(b"\n") + 1
    breaks = [i + 1 for i, byte in enumerate(head + body) if byte == 10 and i + 1 > begin]
    chosen = breaks if chance.random() < 0.3 else [b for b in breaks if chance.random() < 0.3]
    cuts = sorted({begin, *chosen, everything[1]})
    starts = [(head + body).count(b"\n", begin, cut) for cut in cuts]
    with Settings(chance.choice((1, 16, 200, 1 << 20)), chance.choice((1, 7, 1 << 17)), 1):
        cut = read(stream, path, cuts, starts)
    _same(whole, cut, "other cuts")
    return "bad lines" if whole[1] else "good"


def columnar_table(chance: random.Random) -> pa.Table:
    """Return a table, sometimes with text that is no text."""
    rows = list(_rows(chance, [p.split()[1] for p in COLUMNS.split(", ")]))
    columns = {}
    for at, part in enumerate(COLUMNS.split(", ")):
        name, type = part.split()
        values = [row[at] for row in rows]
        if type == "STRING":
            raw = [None if v is None else v.encode() for v in values]
            if chance.random() < 0.3:
                raw = [b"\xff" if chance.random() < 0.1 else v for v in raw]
            column = pa.array(raw, pa.binary())
            columns[name] = pa.Array.from_buffers(pa.string(), len(column), column.buffers())
        elif type in ("DATE", "TIMESTAMP"):
            columns[name] = pa.array([None if v is None else v[:10] for v in values]).cast(
                parse_type(type)
            )
        else:
            columns[name] = pa.array(values, parse_type(type))
    return pa.table(columns)


def _write_parquet(table: pa.Table, path: Path, chance: random.Random) -> None:
    pyarrow.parquet.write_table(
        table,
        path,
        row_group_size=chance.choice((3, 20, 1000)),
        compression=chance.choice(("none", "snappy", "zstd")),
        use_dictionary=chance.random() < 0.5,
        write_page_checksum=True,
        data_page_version=chance.choice(("1.0", "2.0")),
        data_page_size=chance.choice((64, 1 << 20)),
    )


def _write_arrow(table: pa.Table, path: Path, chance: random.Random) -> None:
    compression = chance.choice((None, None, "zstd", "lz4"))
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with pyarrow.ipc.new_file(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=chance.choice((5, 1000)))


def check_columnar(kind: str, chance: random.Random, folder: Path) -> str:
    """Read a damaged columnar file; it must be refused by its name, or have all its rows."""
    table = columnar_table(chance)
    path = folder / f"x.{kind}"
    write = _write_parquet if kind == "parquet" else _write_arrow
    write(table, path, chance)
    good = path.read_bytes()
    stream = definition(kind)
    rows = table.num_rows
    expected = read(stream, path, [0, rows], [0]) if rows else ({}, {})
    text = table["s"].cast(pa.binary()).to_pylist()
    assert expected[1].keys() == {n for n, value in enumerate(text) if value == b"\xff"}
    assert len(expected[0]) + len(expected[1]) == rows
    body = len(good)
    if kind == "parquet":
        body -= 8 + int.from_bytes(good[-8:-4], "little")
    in_body = chance.random() < 0.6
    if chance.random() < 0.5:
        part = bytearray(good[:body] if in_body else good)
        for _ in range(chance.choice((0, 1, 1, 2, 5))):
            part[chance.randrange(len(part))] ^= 1 << chance.randrange(8)
        data = bytes(part)
    else:
        data = damaged(good[:body] if in_body else good, chance)
    if in_body:
        data = data[:body].ljust(body, b"\0") + good[body:]
    elif chance.random() < 0.1:
        data = noise(chance)
    path.write_bytes(data)
    try:
        if kind == "parquet":
            planned = ReplayFiles(replace(stream, format="replay", options={"path": str(path)}))
            planned.check()
            in_line = SideBySide(planned, 1, None, in_order=True)
            end, _ = in_line.advance(planned.start(), Take(10**6))
            read(stream, path, [0, end.ordinal], [0])
        found = read(stream, path, [0, rows], [0]) if rows else ({}, {})
    except DataError as error:
        return _refused(error, path)
    if not (kind == "parquet" and not in_body):
        assert len(found[0]) + len(found[1]) == rows
    if kind == "parquet" and in_body:
        _same(expected, found, "what was written")
    return "same" if found == expected else "other"


def run_case(number: int) -> str:
    """Run one case; raise AssertionError if something is wrong."""
    chance = random.Random(number)
    kind = KINDS[number % len(KINDS)]
    check: Callable[[str, random.Random, Path], str] = (
        check_columnar if kind in ("parquet", "arrow") else check_lines
    )
    with tempfile.TemporaryDirectory() as folder:
        return f"{kind}, {check(kind, chance, Path(folder))}"


# Groups of cases, in processes of their own


def run_group(first: int, cases: int) -> tuple[Counter[str], list[str]]:
    """Run cases in another process; return how they ended, and what failed."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.readers_fuzz",
         "--first", str(first), "--cases", str(cases), "--here"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60 + 10 * cases,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    if done.returncode == 0:
        told = json.loads(done.stdout)
        return Counter(told["ended"]), told["failed"]
    died = f"the process ended with {done.returncode}: {done.stderr.strip()[:3000]}"
    if cases == 1:
        return Counter(), [f"case {first}: {died}"]
    ended: Counter[str] = Counter()
    failed: list[str] = []
    for number in range(first, first + cases):
        some, wrong = run_group(number, 1)
        ended += some
        failed += wrong
    if not failed:
        failed.append(f"cases {first} to {first + cases - 1}, though none alone: {died}")
    return ended, failed


def run_here(first: int, cases: int) -> None:
    """Run cases in this process and print how they ended as JSON."""
    ended: Counter[str] = Counter()
    failed = []
    for number in range(first, first + cases):
        try:
            ended[run_case(number)] += 1
        except Exception as error:
            failed.append(f"case {number}: {type(error).__name__}: {str(error)[:600]}")
    print(json.dumps({"ended": ended, "failed": failed}))


def run(first: int, cases: int) -> tuple[Counter[str], list[str]]:
    """Run cases in groups, each in a process of its own."""
    ended: Counter[str] = Counter()
    failed: list[str] = []
    for start in range(first, first + cases, GROUP):
        some, wrong = run_group(start, min(GROUP, first + cases - start))
        ended += some
        failed += wrong
    return ended, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--here", action="store_true", help="in this process")
    asked = parser.parse_args()
    if asked.here:
        run_here(asked.first, asked.cases)
        return
    ended, failed = run(asked.first, asked.cases)
    for how, count in sorted(ended.items()):
        print(f"{count:6}  {how}")
    for line in failed:
        print(line)
    print(f"cases {asked.first} to {asked.first + asked.cases - 1}: {len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
