"""Files that are read side by side: which rows are late never depends on batches or on tasks."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock.catalog import Catalog, StreamDef
from penstock.cql import bind_query
from penstock.errors import ConfigError, StateError
from penstock.model import INF, Field, Schema
from penstock.physical.parcels import REPORT_STAGE, from_batches
from penstock.physical.planner import Query, plan
from penstock.physical.progress import Progress, Timeline
from penstock.physical.reports import read_report
from penstock.reference.late import Judge
from penstock.runs.segments import read_segment
from penstock.settings import Settings
from penstock.sources.base import Limits
from penstock.sources.formats import check_stream, read_slice, source_format
from penstock.sources.readers import DESCRIPTOR
from penstock.sources.readers.base import Descriptor
from penstock.sources.side_by_side import UNREAD
from penstock.sources.stream_forms import described
from penstock.spark.descriptor_source import grouped
from penstock.spark.tasks import Job, pack_task
from penstock.timing import TimeRules

SCHEMA = Schema((Field("n", pa.int64()), Field("t", pa.int64())))
MOST = 2**62

Row = tuple[int, int]
Files = Mapping[str, list[Row]]


def write(folder: Path, files: Files, kind: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, rows in files.items():
        path = folder / f"{name}.{kind}"
        if kind == "csv":
            path.write_text("n,t\n" + "".join(f"{n},{t}\n" for n, t in rows))
        elif kind == "json":
            path.write_text("".join(json.dumps({"n": n, "t": t}) + "\n" for n, t in rows))
        else:
            columns = [pa.array([row[at] for row in rows], pa.int64()) for at in (0, 1)]
            pyarrow.parquet.write_table(pa.table(columns, ["n", "t"]), path)


def stream(folder: Path, format: str, rules: TimeRules, **options: object) -> StreamDef:
    given = {"path": str(folder)} | {name: str(value) for name, value in options.items()}
    return StreamDef("s", SCHEMA, format, given, 1, rules, late="aside")


class Packing:
    """Reads and packs a stream, batch after batch, as Spark's tasks do, but in this process."""

    def __init__(self, folder: Path, definition: StreamDef, rows: int, width: int) -> None:
        self.folder, self.definition = folder, definition
        self.limits = Limits(rows, width=width)
        catalog = Catalog()
        catalog.add(definition)
        node = bind_query("SELECT n FROM s", catalog)
        self.plan = plan([Query("q", node)], Settings(), {})
        self.timeline = Timeline(rules={"s": definition.timing})
        self.rows: list[Row] = []
        self.late: list[Row] = []
        self.offset: dict[str, Any] | None = None
        self.open()

    def open(self) -> None:
        """Begin anew as another process would: only the offset is known."""
        kept = str(self.folder / "kept")
        found = source_format(self.definition.format)
        assert found.is_planned(self.definition, kept)
        self.reader = found.reader(self.definition, self.limits, kept)

    @property
    def progress(self) -> Progress:
        return self.timeline.of("s")

    def batch(self) -> bool:
        """Run a batch; return whether there was something to do."""
        start = self.reader.position(self.offset)
        end = self.reader.advance(start, False)
        if end == start:
            return False
        self.offset = json.loads(json.dumps(end.to_json()))
        slices = self.reader.slices(start, end)
        self.open()
        again = self.reader.slices(start, self.reader.position(self.offset))
        assert again == slices, "a batch that is planned again is the same"
        self.pack(slices)
        return True

    def pack(self, slices: list[Descriptor]) -> None:
        reports = []
        for group in grouped(slices, self.limits.width, least=1):
            reports += self._packed(group)
            for one in group:
                for part in read_slice(
                    self.definition, one.path, one.first, one.last, None, one.shift
                ):
                    self.rows += zip(*(c.to_pylist() for c in part.table.columns), strict=True)
        after = self.timeline.after(reports)
        self.timeline = Timeline(after, self.timeline.rules)

    def _packed(self, group: list[Descriptor]) -> Iterator[Mapping[str, Any]]:
        runs, streams = str(self.folder / "runs"), {"s": self.definition}
        job = Job(0, self.plan, Settings(), runs, 1, streams, self.timeline, "")
        described = pa.RecordBatch.from_pylist(
            [dict(zip(DESCRIPTOR.names, one, strict=True)) for one in group], DESCRIPTOR
        )
        for parcel in from_batches(pack_task(job)(iter([described]))):
            if parcel.stage == REPORT_STAGE:
                told = read_report(parcel)
                yield told
                for aside in told.get("rejects", ()):
                    table = read_segment(runs, aside["place"])
                    self.late += zip(*(c.to_pylist() for c in table.columns), strict=True)

    def run(self, each: Callable[[], None] = lambda: None, most: int = 10_000) -> Packing:
        for _ in range(most):
            if not self.batch():
                break
            each()
        return self


def judged(files: Files, rules: TimeRules) -> list[Row]:
    """Which rows are late by definition: each file is a partition of its own."""
    judge = Judge()
    judge.declare("s", rules, 1)
    for name, rows in files.items():
        judge.feed("s", name, rows)
    return sorted(judge.late["s"])


def disordered(seed: int, files: int = 5) -> dict[str, list[Row]]:
    """Files of uneven length that overlap in time, each a little out of order."""
    chosen, found, n = random.Random(seed), {}, 0
    for file in range(files):
        begin, rows = chosen.randrange(200), []
        for at in range(chosen.choice([0, 1, 7, 40])):
            rows.append((n, begin + at * 3 + chosen.randrange(-12, 12)))
            n += 1
        found[f"{chosen.randrange(10**6)}-{file}"] = rows
    return found


@pytest.mark.parametrize("rows", [1, 7, 100])
@pytest.mark.parametrize("rules", [TimeRules(6), TimeRules(0), TimeRules(0, keeping=0.9)])
@pytest.mark.parametrize(("format", "kind"), [("replay", "csv"), ("json", "json"),
                                              ("parquet", "parquet"), ("csv", "csv")])  # fmt: skip
def test_late_is_a_row_that_is_late_in_its_own_file(
    tmp_path: Path, format: str, kind: str, rules: TimeRules, rows: int
) -> None:
    for seed, width in ((0, 1), (0, 3), (1, 2), (2, 3)) if rows > 1 else ((2, 1), (2, 3)):
        files = disordered(seed)
        write(tmp_path / f"in{seed}", files, kind)
        definition = stream(tmp_path / f"in{seed}", format, rules)
        found = Packing(tmp_path / f"{seed}-{width}", definition, rows, width).run()
        assert sorted(found.rows) == sorted(row for some in files.values() for row in some)
        assert sorted(found.late) == judged(files, rules)
        assert found.progress.late == len(found.late)
        assert not found.progress.partitions
        assert found.progress.heartbeat == (INF if format == "replay" else found.progress.floor)


def test_no_row_comes_below_the_heartbeat(tmp_path: Path) -> None:
    files = disordered(4, 9)
    write(tmp_path / "in", files, "csv")
    found = Packing(tmp_path, stream(tmp_path / "in", "replay", TimeRules(8)), 5, 2)
    late = set(judged(files, TimeRules(8)))
    left = {row for some in files.values() for row in some} - late
    while left:
        before = found.progress.heartbeat
        seen = len(found.rows)
        assert found.batch()
        came = set(found.rows[seen:]) - late
        assert all(t >= before for _, t in came)
        left -= came
        assert all(t >= found.progress.heartbeat for _, t in left)


@pytest.mark.parametrize("order", ["parallel", "name", "time"])
def test_many_daily_files_are_read_a_few_at_a_time(tmp_path: Path, order: str) -> None:
    files = {f"{day:03}": [(day, day * 100 + at) for at in range(20)] for day in range(200)}
    write(tmp_path / "in", files, "csv")
    definition = stream(tmp_path / "in", "replay", TimeRules(), order=order)
    found = Packing(tmp_path, definition, 20, 3)
    waiting, sizes = [], []

    def look() -> None:
        waiting.append(sum(t >= found.progress.heartbeat for _, t in found.rows))
        sizes.append(len(json.dumps(found.offset)) + len(json.dumps(found.progress.describe())))

    found.run(look, 25)
    assert len(found.rows) == 500
    assert found.late == []
    assert max(waiting) <= (60 if order == "parallel" else 20)
    assert max(sizes) < 1500


def test_interleaved_files_are_read_evenly(tmp_path: Path) -> None:
    files = {str(file): [(file, 10 * at + file) for at in range(200)] for file in range(8)}
    write(tmp_path / "in", files, "json")
    found = Packing(tmp_path, stream(tmp_path / "in", "replay", TimeRules()), 20, 2)
    waiting = []
    found.run(lambda: waiting.append(sum(t >= found.progress.heartbeat for _, t in found.rows)))
    assert len(found.rows) == 1600
    assert found.late == []
    assert max(waiting) <= 8 * 10 * 2


def test_one_after_the_other_loses_what_is_interleaved(tmp_path: Path) -> None:
    files = {"a": [(n, 2 * n + 1) for n in range(100)], "b": [(n, 2 * n) for n in range(100)]}
    write(tmp_path / "in", files, "json")
    counts = {}
    for order in ("parallel", "name", "time"):
        definition = stream(tmp_path / "in", "replay", TimeRules(), order=order)
        counts[order] = Packing(tmp_path / order, definition, 30, 2).run().progress.late
    assert counts == {"parallel": 0, "name": 100, "time": 99}


def test_by_time_means_the_least_time_of_each_file(tmp_path: Path) -> None:
    files = {"a": [(1, 50), (2, 60)], "b": [(3, 20), (4, 10)], "c": [(5, 30)]}
    write(tmp_path / "in", files, "csv")
    for format in ("replay", "csv"):
        definition = stream(tmp_path / "in", format, TimeRules(10), order="time")
        found = Packing(tmp_path / format, definition, 2, 2).run()
        assert [n for n, _ in found.rows] == [3, 4, 5, 1, 2]
        assert found.late == []


def test_a_file_that_ends_holds_nobody_back(tmp_path: Path) -> None:
    files = {"short": [(0, 0)], "long": [(n, n) for n in range(50)]}
    write(tmp_path / "in", files, "csv")
    found = Packing(tmp_path, stream(tmp_path / "in", "replay", TimeRules()), 10, 2)
    assert found.batch()
    assert list(found.progress.partitions) == ["long.csv"]
    assert found.progress.heartbeat == 8  # nine rows of the long one
    found.run()
    assert found.progress.final


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_a_file_that_appears_begins_with_the_heartbeat_of_its_stream(
    tmp_path: Path, format: str
) -> None:
    folder = tmp_path / "in"
    write(folder, {"a": [(n, n) for n in range(40)], "b": [(n, n) for n in range(20)]}, format)
    found = Packing(tmp_path, stream(folder, format, TimeRules(2)), 10, 2).run()
    assert found.progress.heartbeat == 37  # of the one that came furthest
    write(folder, {"c": [(0, 36), (1, 37), (2, 50)]}, format)
    found.run()
    assert found.late == [(0, 36)]
    assert found.progress.heartbeat == 48
    found.open()
    assert not found.batch()
    (folder / f"a.{format}").unlink()  # what was read may go
    write(folder, {"d": [(3, 60)], "e": [(4, 55)]}, format)
    found.run()
    assert found.late == [(0, 36)]
    assert found.offset is not None
    assert (found.offset["begun"], found.offset["open"]) == (5, [])


def test_where_all_have_ended_does_not_depend_on_batches(tmp_path: Path) -> None:
    files = {"a": [(n, n) for n in range(3)], "b": [(n, 90 + n) for n in range(3)]}
    write(tmp_path / "in", files, "csv")
    for rows in (1, 2, 100):
        definition = stream(tmp_path / "in", "csv", TimeRules(1))
        found = Packing(tmp_path / str(rows), definition, rows, 2).run()
        assert found.progress.heartbeat == 91


def test_hundreds_of_files_leave_offsets_small(tmp_path: Path) -> None:
    files = {f"{at:04}": [(at, at)] for at in range(500)}
    write(tmp_path / "in", files, "csv")
    found = Packing(tmp_path, stream(tmp_path / "in", "csv", TimeRules()), 125, 2).run()
    assert len(found.rows) == 500
    assert len(json.dumps(found.offset)) < 200
    assert len(json.dumps(found.progress.describe())) < 400


@pytest.mark.parametrize("rows", [1, 4, 1000])
def test_rounds_of_a_loop_have_one_period(tmp_path: Path, rows: int) -> None:
    files = {"a": [(n, 10 * n) for n in range(5)], "b": [(n, 10 * n + 5) for n in range(5)]}
    write(tmp_path / "in", files, "csv")
    definition = stream(tmp_path / "in", "replay", TimeRules(), loop=3)
    found = Packing(tmp_path, definition, rows, 2).run()
    assert sorted(t for _, t in found.rows) == [5 * n for n in range(30)]
    assert found.late == []
    assert found.progress.final
    assert found.progress.accepted == 30


def test_speed_goes_by_the_time_of_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a": [(n, 10 * n) for n in range(50)], "b": [(n, 10 * n + 5) for n in range(50)],
             "c": [(n, 300 + n) for n in range(50)]}  # fmt: skip
    write(tmp_path / "in", files, "csv")
    now = [0.0]
    monkeypatch.setattr("penstock.sources.replay.time.monotonic", lambda: now[0])
    definition = stream(tmp_path / "in", "replay", TimeRules(), speed=10)
    found = Packing(tmp_path, definition, MOST, 2)
    reader, position, times = found.reader, found.reader.position(None), []
    for second in range(60):
        now[0] = float(second)
        end = reader.advance(position, False)
        if end != position:
            seen = len(found.rows)
            found.pack(reader.slices(position, end))
            times += [t for _, t in found.rows[seen:]]
        position = end
        due = 0 if second == 0 else 10 * (second - 1) + 5
        assert max(times) <= due
    assert sorted(times) == sorted(t for some in files.values() for _, t in some)
    assert found.late == []


def test_rate_counts_the_rows_of_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: [(n, n) for n in range(50)] for name in "abc"}
    write(tmp_path / "in", files, "csv")
    now = [0.0]
    monkeypatch.setattr("penstock.sources.replay.time.monotonic", lambda: now[0])
    found = Packing(tmp_path, stream(tmp_path / "in", "replay", TimeRules(), rate=20), MOST, 2)
    reader, position, taken = found.reader, found.reader.position(None), []
    for second in range(10):
        now[0] = float(second)
        position = reader.advance(position, False)
        taken.append(position.ordinal)
    assert taken == [1, 1, 21, 41, 61, 81, 101, 121, 141, 150]


# Positions


def test_damaged_positions_are_refused(tmp_path: Path) -> None:
    files = {name: [(n, n) for n in range(20)] for name in "abc"}
    write(tmp_path / "in", files, "csv")
    found = Packing(tmp_path, stream(tmp_path / "in", "replay", TimeRules()), 7, 2)
    assert found.batch()
    before = found.offset
    assert found.batch()
    good = found.offset
    assert good is not None
    file, at, row = good["open"][0]
    wrong = [
        {"open": [[file, at + 1, row]]},
        {"open": [[file, at, row + 1], *good["open"][1:]]},
        {"open": [[file, at]]},
        {"open": [[9, at, row]]},
        {"open": good["open"][::-1]},
        {"open": [[file, True, row]]},
        {"begun": 7},
        {"known": 2},
        {"round": 1},
        {"period": 3},
        {"ordinal": -1},
        {"done": True},
        {"extra": 1},
    ]
    for other in wrong:
        found.open()
        with pytest.raises(StateError, match=r"position of stream s"):
            found.reader.slices(
                found.reader.position(before), found.reader.position({**good, **other})
            )
    found.offset = good
    found.run()
    assert len(found.rows) == 60


def test_the_order_belongs_to_what_a_checkpoint_knows(tmp_path: Path) -> None:
    write(tmp_path / "in", {"a": [(1, 1)]}, "csv")
    plain, given, other = (
        described(stream(tmp_path / "in", "replay", TimeRules(), **options))
        for options in ({}, {"order": "Parallel"}, {"order": "name"})
    )
    assert plain == given
    assert other == {**plain, "option order": "name"}
    for format in ("replay", "csv"):
        with pytest.raises(ConfigError, match=r"order of stream s must be 'parallel' .* got 'x'"):
            check_stream(stream(tmp_path / "in", format, TimeRules(), order="x"))


# Tasks


def test_slices_are_divided_by_partitions_and_balanced() -> None:
    def slice(partition: str, first: int, rows: int) -> Descriptor:
        return Descriptor("s", "x.parquet", first, first + rows, first, partition=partition)

    slices = [
        slice(p, 100 * at, n) for at in range(2) for p, n in (("a", 90), ("b", 50), ("c", 45))
    ]
    groups = grouped([*slices, Descriptor("s", "", 0, 0, 0, partition=UNREAD)], 2, 10)
    assert [sum(s.last - s.first for s in group) for group in groups] == [180, 190]
    for group in groups:
        for name in {s.partition for s in group}:
            mine = [s for s in slices if s.partition == name]
            assert [s for s in group if s.partition == name] == mine or name == UNREAD
    assert len(grouped(slices, 8, 10)) == 3
    assert len(grouped(slices, 8, 200)) == 1
    assert grouped([], 4, 1) == []


def test_bad_first_rows_make_nothing_late(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("n,t\n1,5\n2,6\n")
    (tmp_path / "in" / "b.csv").write_text("n,t\nx,900\n1,7\n")
    definition = stream(tmp_path / "in", "replay", TimeRules())
    reader = source_format("replay").reader(definition, Limits(1), None)
    start = reader.position(None)
    slices = reader.slices(start, reader.advance(start, False))
    assert [s.floor for s in slices if s.partition == UNREAD] == [7]
    (tmp_path / "in" / "b.csv").write_text("n,t\nx,900\n" * 70 + "1,7\n")
    reader = source_format("replay").reader(definition, Limits(1), None)
    start = reader.position(None)
    slices = reader.slices(start, reader.advance(start, False))
    assert [Path(s.path).name for s in slices if s.path] == ["b.csv"]  # nothing is known of it
