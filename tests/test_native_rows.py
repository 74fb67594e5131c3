"""Rows that Spark has parsed are packed piece by piece, in their order of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import algebra
from penstock.catalog import StreamDef
from penstock.errors import DataError
from penstock.model import Batch, Field, Schema
from penstock.physical.book import BookedQuery, Moment, QueryBook
from penstock.physical.parcels import REPORT_STAGE, ROWS, decode, from_batches
from penstock.physical.progress import Progress, Timeline
from penstock.physical.reports import read_report
from penstock.runs.segments import read_segment
from penstock.settings import Settings
from penstock.sources.readers import CORRUPT, DESCRIPTOR, arrival_order
from penstock.spark import native_rows
from penstock.spark.native_rows import pieces
from penstock.spark.sources import native_column
from penstock.spark.tasks import Job, fingerprint_task, pack_task
from penstock.timing import TimeRules

STREAM = StreamDef(
    "s",
    Schema((Field("n", pa.int64()), Field("text", pa.string()), Field("t", pa.int64()))),
    "kafka",
    {},
    2,
    TimeRules(5),
    late="aside",
    deadletter="bad",
)


def native(
    n: Any,
    t: Any,
    partition: list[str | None] | None = None,
    ordinal: Any = None,
    path: list[str] | None = None,
    bad: Any = (),
) -> pa.RecordBatch:
    """Return rows as Spark brings them to a task."""
    n = np.asarray(n)
    broken = [f"bad {value}" if value in bad else None for value in n.tolist()]
    fields = {
        "n": pa.array(n, pa.int64()),
        "text": pa.array([f"text {v}" if v % 3 else None for v in n.tolist()], pa.string()),
        "t": pa.array(t, pa.int64()),
        CORRUPT: pa.array(broken, pa.string()),
    }
    given = {
        "stream": ["s"] * len(n),
        "partition": partition,
        "ordinal": ordinal,
        "path": path,
        "ends": [True] * len(n) if path else None,
    }
    columns = [
        pa.nulls(len(n), field.type)
        if given.get(field.name) is None
        else pa.array(given[field.name], field.type)
        for field in DESCRIPTOR
    ]
    rows = pa.StructArray.from_arrays(list(fields.values()), list(fields))
    return pa.record_batch([*columns, rows], [*DESCRIPTOR.names, native_column("s")])


def by_definition(table: pa.Table) -> list[tuple[str, int, list[int]]]:
    """All rows are put in order, and then taken partition by partition."""
    ordered = table.take(pa.array(arrival_order(table)))
    names = [name or "" for name in ordered.column("partition").to_pylist()]
    values = [row["n"] for row in ordered.column(native_column("s")).to_pylist()]
    return [
        (name, 0, [v for v, mine in zip(values, names, strict=True) if mine == name])
        for name in sorted(set(names))
    ]


def joined(table: pa.Table) -> list[tuple[str, int, list[int]]]:
    found: dict[str, list[int]] = {}
    for piece in pieces(table):
        values = [row["n"] for row in piece.rows.column(native_column("s")).to_pylist()]
        assert piece.first == len(found.setdefault(piece.partition, []))
        assert values
        found[piece.partition] += values
    return [(name, 0, values) for name, values in found.items()]


@pytest.mark.parametrize("seed", range(30))
def test_pieces_are_in_the_order_of_arrival(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_rows, "PIECE_ROWS", 3)
    random = np.random.default_rng(seed)
    batches, count = [], 0
    for _ in range(random.integers(1, 6)):
        rows = int(random.integers(0, 12))
        names = [None if v == 3 else f"p{v}" for v in random.integers(0, 4, rows)]
        sorted_ = seed % 3 == 0
        ordinal = np.arange(count, count + rows) if sorted_ else random.integers(0, 5, rows)
        at = np.arange(count, count + rows)
        path = [f"f{v}" for v in random.integers(0, 3, rows)] if seed % 2 else None
        batches.append(native(at, at, names, None if seed % 5 == 4 else ordinal, path))
        count += rows
    table = pa.Table.from_batches(batches)
    assert joined(table) == by_definition(table)


def test_rows_that_come_in_order_are_not_copied() -> None:
    batches = [native(np.arange(n, n + 4), np.arange(4), ["p"] * 4, [n] * 4) for n in (0, 4, 8)]
    found = [piece.rows.column("ordinal").chunk(0).buffers()[1] for piece in pieces_of(batches)]
    given = [batch.column("ordinal").buffers()[1] for batch in batches]
    assert [buffer.address for buffer in found] == [buffer.address for buffer in given]


def pieces_of(batches: list[pa.RecordBatch]) -> Iterator[Any]:
    return pieces(pa.Table.from_batches(batches))


class Packed:
    """What a task makes of native rows."""

    def __init__(
        self,
        folder: Path,
        batches: list[pa.RecordBatch],
        memory: int,
        stream: StreamDef = STREAM,
    ) -> None:
        scan = algebra.Scan("s", STREAM.schema, STREAM.time)
        book = QueryBook(Settings())
        book.add(BookedQuery("q", scan, "intervals"))
        plan = book.plan(Moment(0, {}, {}))
        timeline = Timeline({"s": Progress()}, {"s": STREAM.timing})
        settings = Settings({"stage.memory": memory})
        job = Job(0, plan, settings, str(folder), 1, {"s": stream}, timeline, "")
        self.rows: list[tuple[Any, ...]] = []
        self.aside: list[tuple[str, Any]] = []
        for parcel in from_batches(pack_task(job)(iter(batches))):
            if parcel.stage == REPORT_STAGE:
                self.told = read_report(parcel)
            elif parcel.kind == ROWS:
                batch = decode(parcel.kind, parcel.blob)
                if isinstance(batch, Batch):
                    columns = [c.to_pylist() for c in batch.columns]
                    self.rows += zip(*columns, batch.start.tolist(), strict=True)
        for one in self.told["rejects"]:
            rows = read_segment(str(folder), one["place"]).to_pylist()
            self.aside += [(one["why"], row) for row in rows]
        self.after = timeline.after([self.told])["s"].describe()
        (told,) = [
            read_report(p)
            for p in from_batches(
                fingerprint_task({"s": STREAM}, {"s": [2]}, memory)(iter(batches))
            )
        ]
        self.fingerprint = told["input"]


def example(cut: int) -> list[pa.RecordBatch]:
    """Two files that Spark brings in two parts each, the second first; some rows late or bad."""
    random = np.random.default_rng(4)
    count = 120
    n = np.arange(count)
    t = n % 60 + random.integers(-9, 9, count)
    path = [f"file {v // 60}" for v in n.tolist()]
    whole = native(n, t, path, [7] * count, path, bad=(3, 61, 119))
    first = pa.array(np.where(n % 60 < 30, 0, 30))
    whole = whole.set_column(whole.schema.get_field_index("first"), "first", first)
    moved = whole.take(pa.array(np.concatenate((n[30:60], n[:30], n[60:]))))
    return [moved.slice(at, cut) for at in range(0, count, cut)]


def test_packing_does_not_depend_on_pieces_or_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Packed(tmp_path / "whole", example(1000), 1 << 30)
    assert len(whole.rows) + len(whole.aside) == 120
    assert {why for why, _ in whole.aside} == {"late", "rejected"}
    places = [row["position"] for why, row in whole.aside if why == "rejected"]
    assert places == [3, 1, 59]
    monkeypatch.setattr(native_rows, "PIECE_ROWS", 11)
    for cut, memory in ((1000, 1), (7, 1), (7, 3_000), (1, 1), (50, 1 << 30)):
        found = Packed(tmp_path / f"{cut} {memory}", example(cut), memory)
        assert found.rows == whole.rows
        assert sorted(map(repr, found.aside)) == sorted(map(repr, whole.aside))
        assert found.after == whole.after
        assert found.told["input"] == whole.told["input"]
        assert found.fingerprint == whole.fingerprint


def test_a_bad_row_is_named_by_its_place_in_the_partition(tmp_path: Path) -> None:
    rows = [native([n], [n], ["p"], [n], bad=(2,)) for n in range(4)]
    with pytest.raises(DataError, match=r"row 3 of its batch: .*'bad 2'"):
        Packed(tmp_path, rows, 1, replace(STREAM, deadletter=None))
