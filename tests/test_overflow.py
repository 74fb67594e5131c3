"""Overflow: what a task cannot hold lies in files without names, and nothing of it changes."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import fields
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import StateError
from penstock.model import INF, MIN_TIME, Batch, Ends
from penstock.physical import overflow as module
from penstock.physical import stage, trains
from penstock.physical.overflow import Overflow
from penstock.physical.parcels import ROWS, Parcel
from penstock.temporary import space
from penstock.testing import Rig

VALUES = {
    pa.int32(): [1, None, -3],
    pa.float64(): [0.5, None, float("inf")],
    pa.bool_(): [True, None, False],
    pa.string(): ["ä", None, "a long text " * 50],
    pa.binary(): [b"\0", None, b""],
    pa.timestamp("us"): [datetime(2024, 2, 29, 1, 2, 3, 4), None, datetime(1, 1, 1)],
    pa.date32(): [date(2024, 2, 29), None, date(1, 1, 1)],
    pa.decimal128(38, 9): [Decimal("1.5"), None, Decimal("-0.000000001")],
    pa.list_(pa.string()): [["a", None], None, []],
    pa.struct([("x", pa.int64()), ("y", pa.string())]): [{"x": 1, "y": None}, None, {"x": 2}],
}


def every_kind(times: int = 4, **given: Any) -> Batch:
    columns = [pa.array(values * times, kind) for kind, values in VALUES.items()]
    start = np.arange(3 * times)
    return Batch.of(columns, start, **given)


def assert_equal(found: Batch, expected: Batch) -> None:
    assert [c.type for c in found.columns] == [c.type for c in expected.columns]
    for field in fields(Batch):
        mine, theirs = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "columns":
            assert [c.to_pylist() for c in mine] == [c.to_pylist() for c in theirs]
        elif isinstance(theirs, np.ndarray):
            assert mine.dtype == theirs.dtype
            assert mine.tolist() == theirs.tolist()
        else:
            assert mine == theirs


@pytest.mark.parametrize(
    "batch",
    [
        every_kind(),
        every_kind().slice(2, 9),
        every_kind(1, end=[5, INF, 7], holder=[0, 3, 2**62], seq=[7, 8, 9]),
        Batch(every_kind(1).columns, *(np.array([1, 2, 3]) for _ in range(3)), None, minus=True),
        Batch.of([pa.array(["a"] * 3)], [MIN_TIME] * 3),
        Batch.of([], [1, 2, 3]),
    ],
    ids=["whole", "slice", "times", "minus", "for ever", "no columns"],
)
def test_rows_are_the_same_in_a_file(batch: Batch) -> None:
    overflow = Overflow(0)
    found = overflow.keep(batch)
    overflow.close()
    assert found is not batch
    assert_equal(found, batch)
    assert overflow.written > 0


def test_nothing_is_written_below_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise AssertionError("no file is needed")

    batch, ends = every_kind(), Ends(np.array([1]), np.array([2]))
    rows = pa.record_batch({"a": [1, 2]})
    with monkeypatch.context() as patched:
        patched.setattr(module, "nameless_file", refuse)
        overflow = Overflow(batch.nbytes + 16 + rows.nbytes)
        assert overflow.keep(batch) is batch
        assert overflow.keep_ends(ends) is ends
        assert overflow.keep_rows(rows) is rows
        assert overflow.keep(Batch.empty([pa.int64()])).nbytes == 0
        with pytest.raises(AssertionError, match="no file"):
            overflow.keep_ends(ends)
        overflow.let_go(16)
        assert overflow.keep_ends(ends) is ends
    assert overflow.written == 0


def test_all_that_can_be_kept_is_the_same_in_files_of_several_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SMALLEST_FILE", 4096)
    overflow = Overflow(0)
    batches = [every_kind(times) for times in (1, 50, 3, 400)]
    kept = [overflow.keep(batch) for batch in batches]
    ends = Ends(np.array([3, 9]), np.array([1, INF - 1]))
    told = overflow.keep_ends(ends)
    rows = pa.record_batch({"a": [1, None], "b": [{"x": "y"}, None]})
    assert overflow.keep_rows(rows).equals(rows)
    overflow.close()
    for found, batch in zip(kept, batches, strict=True):
        assert_equal(found, batch)
    assert (told.holder.tolist(), told.end.tolist()) == ([3, 9], [1, INF - 1])


def test_rows_are_put_in_order_before_they_are_written() -> None:
    batch = Batch.of([pa.array(["b", "a", "c"])], [2, 1, 2])
    assert Overflow(1 << 20).keep(batch, trains.in_order) is batch
    found = Overflow(0).keep(batch, trains.in_order)
    assert (found.start.tolist(), found.columns[0].to_pylist()) == ([1, 2, 2], ["a", "b", "c"])
    minus = Batch(batch.columns, batch.start, np.array([9, 8, 7]), np.array([1, 2, 3]), None, True)
    assert Overflow(0).keep(minus, trains.in_order).end.tolist() == [7, 8, 9]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EACCES])
def test_a_disk_that_is_full_is_a_sentence(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("penstock.runs.files.os.pwrite", refuse)
    with pytest.raises(StateError, match=r"the temporary folder .*nothing is lost") as error:
        Overflow(0).keep(every_kind())
    assert space() in str(error.value)


def test_files_are_where_spark_has_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/no/such/folder,{tmp_path}")
    assert space() == str(tmp_path)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/no/such/folder")
    assert space() != "/no/such/folder"


KILLED = """
import sys, numpy as np, pyarrow as pa
from penstock.model import Batch
from penstock.physical.overflow import Overflow
overflow = Overflow(0)
kept = [overflow.keep(Batch.of([pa.array(np.arange(100_000))], np.arange(100_000)))
        for _ in range(50)]
print(overflow.written, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed_leaves_no_files(tmp_path: Path, how: signal.Signals) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "SPARK_LOCAL_DIRS": ""}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) > 50 * 1_600_000
    process.send_signal(how)
    process.communicate()
    assert process.returncode == -how
    assert list(tmp_path.iterdir()) == []


STAGE = """
import json, sys, tempfile, numpy as np, pyarrow as pa
from benchmarks.memory import Memory
from benchmarks.one_task import plan_of
from penstock.physical.packing import Packer
from penstock.physical.progress import Progress, Timeline
from penstock.physical.reports import read_report
from penstock.physical.stage import run_stage
from penstock.runs.segments import SegmentStorage
from penstock.settings import Settings
from penstock.timing import TimeRules

script = '''
CREATE STREAM s (k INT, v BIGINT, text STRING, t BIGINT) USING memory TIMESTAMP BY t;
CREATE QUERY q AS SELECT k, COUNT(*) AS n, MAX(text) AS m FROM s [RANGE 10 SLIDE 1000] GROUP BY k;
'''
pieces, memory, slack = map(int, sys.argv[1:])
config, plan, rules = Settings({"stage.memory": memory}), plan_of(script), TimeRules(slack)
packer = Packer(plan, "s", 3, rules, Progress(), config, 1)
random = np.random.default_rng(1)

def parcels():
    each = 20_000
    text = pa.array([f"some text {n}" for n in range(each)])
    for piece in range(pieces):
        time = np.arange(piece * each, (piece + 1) * each) + random.integers(0, 90, each)
        columns = [random.integers(0, 10, each).astype(np.int32), np.arange(each), text, time]
        packer.add(pa.table(columns, ["k", "v", "text", "t"]))
        yield from packer.parcels()
    packer.finish(slack < 1000)
    yield from packer.parcels()

with Memory() as found:
    timeline = Timeline({"s": Progress()}, {"s": rules})
    with tempfile.TemporaryDirectory() as folder, SegmentStorage(folder, "0", False) as storage:
        out = [*run_stage(plan, 0, 0, 1, parcels(), {}, storage, config, timeline)]
told = read_report(out[-1])
made = sum(result["rows"] for result in told["results"])
print(json.dumps([found.most - found.before, made]))
"""


def megabytes(pieces: int, memory: int, slack: int = 100) -> float:
    """Run a stage on a batch in a process of its own; return the most that it took."""
    told = subprocess.run(
        [sys.executable, "-c", STAGE, str(pieces), str(memory), str(slack)],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    taken, made = json.loads(told.stdout)
    assert (made > 0) == (slack == 100)
    return float(taken)


@pytest.mark.parametrize("slack", [100, 1 << 40], ids=["rows pass", "rows wait"])
def test_the_memory_of_a_stage_does_not_grow_with_its_batch(slack: int) -> None:
    """A row has about 60 bytes, so 80 more pieces are 100 MB more."""
    small, large = megabytes(20, 4 << 20, slack), megabytes(100, 4 << 20, slack)
    assert large < small + 30


def test_rows_that_lie_in_a_file_already_are_not_written_again() -> None:
    ordered, mixed = (Batch.of([pa.array([1, 2])], start) for start in ([1, 2], [2, 1]))
    mapped, sent = (Parcel(0, 0, 0, ROWS, b"", mapped=mapped) for mapped in (True, False))
    overflow = Overflow(0)
    assert stage._kept(ordered, mapped, overflow) is ordered
    assert overflow.written == 0
    kept = [stage._kept(ordered, sent, overflow), stage._kept(mixed, mapped, overflow)]
    assert [rows.start.tolist() for rows in kept if isinstance(rows, Batch)] == [[1, 2], [1, 2]]
    assert all(rows is not ordered for rows in kept)
    assert overflow.written > 0


REGROUPED = """
    CREATE STREAM a (k INT, v INT, t BIGINT) USING memory TIMESTAMP BY t;
    CREATE STREAM b (k INT, v INT, t BIGINT) USING memory TIMESTAMP BY t;
    CREATE QUERY sums AS SELECT a.v, COUNT(*) AS n, SUM(b.v) AS s
      FROM a [RANGE 20] JOIN b [RANGE 20] ON a.k = b.k GROUP BY a.v;
    CREATE QUERY best AS SELECT a.k, a.v FROM a [ROWS 30] ORDER BY v DESC LIMIT 2;
    CREATE QUERY pairs AS SELECT a.v, COUNT(b.v) AS n
      FROM a [RANGE 9] LEFT JOIN b [RANGE 7] ON a.k = b.k GROUP BY a.v;
"""


@pytest.mark.parametrize("lifetime", ["direct", "negative"])
@pytest.mark.parametrize("memory", [1, 5_000, 1 << 20])
def test_answers_do_not_depend_on_memory(
    lifetime: str, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trains, "FIRST_ROWS", 5)
    monkeypatch.setattr(trains, "SMALL_ROWS", 5)
    rig = Rig(REGROUPED, settings={"stage.memory": memory, "lifetime": lifetime}, shards=2)
    for stream in ("a", "b"):
        rig.feed(stream, [(t % 2, t % 5, t) for t in range(120)])
    rig.end()
    rig.assert_oracle()


def test_of_many_rows_some_say_where_trains_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trains, "_FINEST", 100)
    random = np.random.default_rng(1)
    batches = [Batch.of([], np.sort(random.integers(0, 10_000, 1000))) for _ in range(4)]
    cut = trains.Trains([(0, b) for b in batches], {0: INF}, (), rows=400, memory=1)
    sizes = []
    while train := cut.next():
        sizes.append(sum(len(m) for _, m in train.messages if isinstance(m, Batch)))
    assert sum(sizes) == 4000
    assert 8 <= len(sizes) <= 12
    assert max(sizes) < 800
