"""Crashes at every named point, damaged files, full disks: nothing is lost, nothing comes twice."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigError, StateError
from penstock.kernels.keys import sum_of_rows
from penstock.runs import failpoints
from penstock.runs.checkpoint import Checkpoint
from penstock.runs.manifest import Manifest
from penstock.runs.segments import SegmentStorage, read_segment
from penstock.session import Session
from penstock.sinks import read_committed
from penstock.spark.failures import root_cause
from tests.crashes import Scenario
from tests.lane_crashes import Alarms
from tests.test_lane_delivery import DELIVERED


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


# Damage, without Spark


def flip(path: Path, at: int) -> None:
    """Alter one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_an_altered_run_is_refused(tmp_path: Path) -> None:
    for at in range(0, 900, 97):
        storage = SegmentStorage(str(tmp_path), "1-0")
        places = [storage.write(pa.table({"x": list(range(n))})) for n in (10, 50)]
        storage.close()
        path = tmp_path / places[0]["file"]
        victim = next(p for p in places if at < p["offset"] + p["length"])
        if at < victim["offset"]:
            continue  # between two runs
        flip(path, at)
        with pytest.raises(StateError, match=f"the run at .* of {path} must have the checksum"):
            read_segment(str(tmp_path), victim)


def test_a_run_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = SegmentStorage(str(tmp_path), "1-0")
    place = storage.write(pa.table({"x": [1, 2]}))
    storage.close()
    calls = []
    monkeypatch.setattr(
        "penstock.runs.segments.zlib.crc32", lambda data, at=0: calls.append(1) or place["crc"]
    )
    for _ in range(3):
        read_segment(str(tmp_path), place)
    assert len(calls) == 1


def committed(folder: Path, batches: int = 2) -> tuple[Checkpoint, Path]:
    """Return a checkpoint with manifests, and the newest one's file."""
    checkpoint = Checkpoint(str(folder))
    checkpoint.lock()
    checkpoint.open()
    for batch in range(batches):
        checkpoint.commit(Manifest(batch=batch, shards=1, states=[{}], numbers={"a": 1}))
    return checkpoint, folder / "manifest" / f"{batches - 1:010d}.json"


def test_a_damaged_manifest_is_refused_and_never_passed_over(tmp_path: Path) -> None:
    checkpoint, path = committed(tmp_path)
    whole = path.read_bytes()
    assert checkpoint.latest() is not None
    for at in range(len(whole) - 1):
        flip(path, at)
        with pytest.raises(StateError, match=str(path)):
            checkpoint.latest()
        path.write_bytes(whole)
    for size in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:size])
        with pytest.raises(StateError, match=str(path)):
            checkpoint.latest()
    path.write_bytes((tmp_path / "manifest" / "0000000000.json").read_bytes())
    with pytest.raises(StateError, match="must be of batch 1, got 0"):
        checkpoint.latest()
    path.write_text("[1]")
    with pytest.raises(StateError, match="must be a JSON object"):
        checkpoint.latest()


def test_missing_and_cut_run_files_are_named_before_anything_is_read(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    storage = SegmentStorage(checkpoint.segments, "0-0")
    place = storage.write(pa.table({"x": [1, 2]}))
    storage.close()
    run = {"place": place, "rows": 2, "skipped": 0, "stats": {}}
    manifest = Manifest(batch=0, states=[{"a": {"numbers": {}, "runs": {"live": [run]}}}])
    checkpoint.check_files(manifest)
    path = Path(checkpoint.segments, place["file"])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StateError, match=f"{path} must have at least"):
        checkpoint.check_files(manifest)
    path.unlink()
    with pytest.raises(StateError, match=f"{path} must be there"):
        checkpoint.check_files(manifest)


def test_whoever_meets_an_earlier_epoch_has_lost_the_checkpoint_too(tmp_path: Path) -> None:
    """Somebody else took it after the file of the epoch was lost, and began to count anew."""
    before, _ = committed(tmp_path)
    before.unlock()
    first = Checkpoint(str(tmp_path))
    first.lock()
    for name in ("lock", "epoch"):
        (tmp_path / name).unlink()
    with pytest.raises(StateError, match=r"was taken by another one \(epoch 0\) .* \(epoch 2\)"):
        first.commit(Manifest(batch=2))
    second = Checkpoint(str(tmp_path))
    second.lock()
    with pytest.raises(StateError, match=r"was taken by another one \(epoch 1\) .* \(epoch 2\)"):
        first.commit(Manifest(batch=2))
    assert first.read(2) is None


def test_whoever_lost_the_checkpoint_cannot_commit(tmp_path: Path) -> None:
    first, _ = committed(tmp_path)
    (tmp_path / "lock").unlink()  # so the lock keeps nobody out
    second = Checkpoint(str(tmp_path))
    second.lock()
    with pytest.raises(StateError, match=r"was taken by another one \(epoch 2\)"):
        first.commit(Manifest(batch=2))
    with pytest.raises(StateError, match="epoch 2"):
        first.sweep(set(), 2)
    assert first.read(2) is None
    second.commit(Manifest(batch=2))
    with pytest.raises(StateError, match="must be of an earlier epoch than this process's, 1"):
        first.read(2)
    found = second.latest()
    assert found is not None
    assert found.epoch == 2
    (tmp_path / "epoch").write_text("many")
    with pytest.raises(StateError, match=r"epoch must hold a number, got 'many'"):
        second.commit(Manifest(batch=3))


def test_the_lock_says_who_holds_it(tmp_path: Path) -> None:
    committed(tmp_path)
    with pytest.raises(StateError, match=rf"process {os.getpid()} on \S+ since 20\d\d-\d\d-\d\d"):
        Checkpoint(str(tmp_path)).lock()


def test_a_crash_between_writing_and_renaming_leaves_no_manifest(tmp_path: Path) -> None:
    checkpoint, _ = committed(tmp_path)
    failpoints.arm("manifest-temp=raise")
    with pytest.raises(StateError, match="failure point manifest-temp"):
        checkpoint.commit(Manifest(batch=2))
    latest = checkpoint.latest()
    assert latest is not None
    assert latest.batch == 1
    assert list((tmp_path / "manifest").glob("*.tmp"))
    checkpoint.sweep(set(), 1)
    assert not list((tmp_path / "manifest").glob("*.tmp"))


@pytest.mark.parametrize("point", ["run-written", "run-synced"])
def test_a_full_disk_is_said_so_and_leaves_nothing(tmp_path: Path, point: str) -> None:
    failpoints.arm(f"{point}=nospace")
    folder = tmp_path / "segments"

    def write() -> None:
        with SegmentStorage(str(folder), "0-0") as storage:
            storage.write(pa.table({"x": [1]}))

    with pytest.raises(
        StateError, match=rf"the disk of checkpoint {tmp_path} is full .* free some"
    ):
        write()
    assert list(folder.iterdir()) == []
    write()
    assert len(list(folder.iterdir())) == 1


def test_a_full_disk_under_spark_is_said_so() -> None:
    told = root_cause(RuntimeError("java.io.IOException: No space left on device\n\tat x"))
    assert isinstance(told, StateError)
    assert "free some space and run the same command again" in str(told)


def test_orders_must_make_sense() -> None:
    assert failpoints.parse("a-b=kill, ".replace("a-b", "run-written")) == {
        "run-written": ("kill", 1)
    }
    assert failpoints.parse("sink-after=sleep:0.5@3") == {"sink-after": ("sleep:0.5", 3)}
    for text in ("run-writen=kill", "sink-after=explode", "sink-after=sleep", "sink-after=kill@x"):
        with pytest.raises(ConfigError, match="PENSTOCK_FAIL must"):
            failpoints.parse(text)
    failpoints.arm("sink-after=raise@2")
    failpoints.passing("sink-after")
    failpoints.passing("sink-before")
    carried = failpoints.orders()
    failpoints.obey("")
    failpoints.passing("sink-after")
    failpoints.obey(carried)  # the passages go on being counted
    with pytest.raises(StateError, match="failure point sink-after"):
        failpoints.passing("sink-after")
    failpoints.passing("sink-after")


def test_every_point_is_described() -> None:
    text = (Path(__file__).parent.parent / "docs" / "reliability.md").read_text()
    for point, where in failpoints.POINTS.items():
        assert f"| `{point}` | {where} |" in text


def test_the_sum_of_rows_does_not_depend_on_their_order_or_cut() -> None:
    table = pa.table({"k": ["a", None, "bc", "a"] * 9000, "x": list(range(36_000))})
    whole = sum_of_rows([c.combine_chunks() for c in table.columns], len(table))
    turned = table.take(pa.array(range(35_999, -1, -1)))
    parts = [turned.slice(0, 20_000), turned.slice(20_000)]
    sums = [sum_of_rows([c.combine_chunks() for c in p.columns], len(p)) for p in parts]
    assert sum(sums) % 2**64 == whole
    altered = table.set_column(1, "x", pa.array([7, *range(1, 36_000)]))
    assert sum_of_rows([c.combine_chunks() for c in altered.columns], len(table)) != whole


# In one process, on the Spark of all tests


DRIVER_POINTS = {
    "lock-taken": 1,
    "query-added": 3,
    "offsets-read": 1,
    "manifest-temp": 1,
    "manifest-renamed": 2,
    "sink-before": 2,
    "sink-transaction": 2,
    "sink-committed": 3,
    "sink-after": 3,
    "sweep-middle": 2,
    "before-return": 1,
}


STATE_POINTS = ("manifest-temp", "manifest-renamed", "sweep-middle", "before-return")
"""Those around which state is written, named, swept and read again."""

DEATHS = {"run-written": 3, "run-synced": 9, "merge-before-manifest": 8, "tasks-done": 13}
"""Workers that die in the middle of their tasks: Spark tries these again, the run goes on."""


@dataclass
class Attempts:
    """Runs of a scenario on the Spark of all tests, each told to fail."""

    spark: Any
    scenario: Scenario

    def run(self, fail: str, *more: str) -> None:
        """Run to the end, or to where it fails."""
        scenario = self.scenario
        failpoints.arm(fail)
        with Session(
            self.spark, checkpoint=scenario.checkpoint, settings=scenario.settings
        ) as session:
            for text in (scenario.script, *more):
                session.sql(text)
            assert session.await_end(timeout=400)

    def fail(self, points: Iterable[str]) -> None:
        """Run and fail at one point after the other; what was reached is never lost."""
        reached = []
        for point in points:
            with pytest.raises(StateError, match=f"failure point {point} was told"):
                self.run(f"{point}=raise@{DRIVER_POINTS[point]}")
            reached.append(self.scenario.batch())
        assert reached == sorted(reached)

    def end(self) -> None:
        """Run to the end while workers die, and check what is left."""
        self.run(",".join(f"{point}=kill@{passage}" for point, passage in DEATHS.items()))
        counts = Path(json.loads(failpoints.orders())[1])
        assert all((counts / point).stat().st_size >= passage for point, passage in DEATHS.items())
        self.scenario.check()


CRASHING = {"batch.rows": 5, "merge.strategy": "always"}


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_run_that_fails_at_every_point_ends_right(spark: Any, tmp_path: Path) -> None:
    attempts = Attempts(spark, Scenario.make(tmp_path, 60, **CRASHING))
    attempts.fail(DRIVER_POINTS)
    with pytest.raises(StateError, match="failure point query-dropped was told"):
        attempts.run(
            "query-dropped=raise", "CREATE QUERY extra AS SELECT * FROM s [NOW]", "DROP QUERY extra"
        )
    text = "CREATE OR REPLACE QUERY recent INTO recent AS SELECT * FROM s [ROWS 9]"
    with pytest.raises(StateError, match="failure point query-replaced was told"):
        attempts.run("query-replaced=raise", text)
    with pytest.raises(StateError, match=r"the disk of checkpoint .* is full"):
        attempts.run("manifest-temp=nospace")
    with pytest.raises(StateError, match=r"the disk of the sink of \w+ is full"):
        attempts.run("sink-before=nospace")
    attempts.end()
    of_batches = {point for point in failpoints.POINTS if not point.startswith("lane-")}
    assert {*DRIVER_POINTS, *DEATHS, "query-dropped", "query-replaced"} == of_batches


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_negative_tuples_survive_failures_where_state_is_touched(
    spark: Any, tmp_path: Path
) -> None:
    """Sinks, locks and queries do not know how rows end: for them the test above is enough."""
    attempts = Attempts(spark, Scenario.make(tmp_path, 60, lifetime="negative", **CRASHING))
    attempts.fail(STATE_POINTS)
    attempts.end()


def stopped_before_return(spark: Any, scenario: Scenario, passage: int = 2) -> int:
    """Run until a batch is delivered that Spark has not committed; return its number."""
    failpoints.arm(f"before-return=raise@{passage}")
    with Session(spark, checkpoint=scenario.checkpoint, settings=scenario.settings) as session:
        session.sql(scenario.script)
        with pytest.raises(StateError, match="before-return"):
            session.await_end(timeout=200)
    failpoints.arm("")
    return scenario.batch()


@pytest.mark.spark
def test_a_checkpoint_keeps_its_lifetime_method(spark: Any, tmp_path: Path) -> None:
    text = """CREATE STREAM s (t BIGINT) TIMESTAMP BY t USING memory;
    CREATE QUERY q AS SELECT t FROM s [ROWS 2]"""
    with Session(spark, checkpoint=tmp_path / "c", settings={"lifetime": "negative"}) as session:
        session.sql(text)
        session.push("s", [(1,), (2,)])
        session.await_idle()
    with (
        Session(spark, checkpoint=tmp_path / "c") as later,
        pytest.raises(StateError, match=r"keeps the lifetime method .* has negative, got"),
    ):
        later.sql(text)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_changed_since_the_crash_is_refused(spark: Any, tmp_path: Path) -> None:
    scenario = Scenario.make(tmp_path, 30)
    batch = stopped_before_return(spark, scenario)

    def go_on() -> None:
        with Session(spark, checkpoint=scenario.checkpoint, settings=scenario.settings) as session:
            session.sql(scenario.script)
            assert session.await_end(timeout=200)

    delivered = sorted(path.name for path in tmp_path.glob("*/*.jsonl"))
    offsets = scenario.checkpoint / "spark" / "offsets" / str(batch)
    whole = offsets.read_bytes()
    flip(offsets, len(whole) - 5)
    with pytest.raises(StateError, match=f"offsets in {offsets} must be those that batch"):
        go_on()
    offsets.unlink()
    with pytest.raises(StateError, match=f"must be readable in {offsets}"):
        go_on()
    offsets.write_bytes(whole)

    # one value of a row that was read already; as many bytes and the same time of change as before
    source = tmp_path / "r.csv"
    text, times = source.read_bytes(), source.stat()
    lines = text.splitlines(keepends=True)
    row = 1 + 10 * batch + 2
    lines[row] = (b"y" if lines[row].startswith(b"z") else b"z") + lines[row][1:]
    source.write_bytes(b"".join(lines))
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(StateError, match=f"the rows that stream r brought in batch {batch} must"):
        go_on()
    source.write_bytes(text)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))

    latest = scenario.checkpoint / "manifest" / f"{batch:010d}.json"
    content = json.loads(latest.read_text())
    place = next(
        run["place"]
        for shard in content["states"]
        for state in shard.values()
        for runs in state["runs"].values()
        for run in runs
    )
    segment = scenario.checkpoint / "segments" / place["file"]
    kept = segment.read_bytes()
    segment.write_bytes(kept[: place["offset"]])
    with pytest.raises(StateError, match=f"{segment} must have at least"):
        go_on()
    segment.write_bytes(kept)
    flip(latest, 200)
    with pytest.raises(StateError, match=f"the manifest {latest} must"):
        go_on()
    flip(latest, 200)
    assert delivered == sorted(path.name for path in tmp_path.glob("*/*.jsonl"))
    go_on()
    scenario.check()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_rows_that_spark_parses_are_compared_too(spark: Any, tmp_path: Path) -> None:
    source = tmp_path / "in" / "0.csv"
    source.parent.mkdir()
    text = "k,x,t\n" + "".join(f"k{t % 3},{t},{t}\n" for t in range(10, 30))
    script = f"""
        CREATE STREAM s (k STRING, x BIGINT, t BIGINT) USING csv
          OPTIONS (path '{source.parent}', header 'true', encoding 'UTF-8') TIMESTAMP BY t;
        CREATE SINK out USING jsonl OPTIONS (path '{tmp_path / "out"}');
        CREATE QUERY q INTO out AS SELECT t FROM s [RANGE 3] WHERE x > 12;
    """

    def go_on() -> None:
        with Session(spark, checkpoint=tmp_path / "c", settings={"shards": 1}) as session:
            session.sql(script)
            session.await_idle()

    source.write_text(text)
    failpoints.arm("before-return=raise")
    with pytest.raises(StateError, match="before-return"):
        go_on()
    source.write_text(text.replace(",19,19", ",19,18"))
    with pytest.raises(StateError, match="the rows that stream s brought in batch 0 must"):
        go_on()
    source.write_text(text)
    go_on()
    found = [(row["t"], row["_end"]) for row in read_committed(tmp_path / "out")]
    assert found == [(t, t + 3) for t in range(13, 30)]


# Killed processes


@pytest.mark.spark
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("lifetime", "points"),
    [
        (
            "direct",
            [
                "tasks-done=crash@2",
                "manifest-temp=kill@2",
                "sink-transaction=kill@3",
                "before-return=kill@2",
            ],
        ),
        ("negative", ["run-written=crash@3", "manifest-temp=kill@2"]),
    ],
    ids=["direct", "negative"],
)
def test_a_killed_process_goes_on_exactly(tmp_path: Path, lifetime: str, points: list[str]) -> None:
    """Around the commit; all points fail in one process above, and are killed at by make chaos."""
    scenario = Scenario.make(tmp_path, 60, lifetime=lifetime, **CRASHING)
    reached = -1
    for fail in points:
        code, told = scenario.run(fail)
        assert code == -9, told
        assert scenario.batch() >= reached
        reached = scenario.batch()
    code, told = scenario.run()
    assert code == 0, told
    scenario.check()


LANE_POINTS = [
    "lane-handed-over=kill@3",
    "lane-answered=kill",
    "lane-journal-torn=kill@2",
    "lane-deliver-after=kill@2",
]
"""Those of the lane beside batches.  Around its journal and its sinks processes without Spark are
killed at every point, see `test_lane_delivery`; `make chaos` kills at all of them under Spark."""


@pytest.mark.spark
@pytest.mark.timeout(1500)
def test_a_process_killed_in_the_lane_goes_on_exactly(tmp_path: Path) -> None:
    assert {order.partition("=")[0] for order in LANE_POINTS} | set(DELIVERED) == {
        point for point in failpoints.POINTS if point.startswith("lane-")
    }
    alarms = Alarms.begin(tmp_path)
    for fail in LANE_POINTS:
        code, told = alarms.run(fail)
        assert code == -9, (fail, told)
    alarms.pace(1000)
    code, told = alarms.run()
    assert code == 0, told
    alarms.check()
    assert alarms.turns() > 0
