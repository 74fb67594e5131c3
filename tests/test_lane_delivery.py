"""Turns of the lane in every sink: each once, beside the batches, and refused where copies mix."""

from __future__ import annotations

import io
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.catalog import SinkDef
from penstock.errors import ConfigError, DataError, QueryError, StateError
from penstock.lane.journal import Journal, Mark, Turn
from penstock.runs import failpoints
from penstock.runs.checkpoint import Checkpoint
from penstock.runs.deliveries import Delivered, lane_outlet, partner
from penstock.runs.manifest import Manifest
from penstock.session import Session
from penstock.session.outlets import Way, lane_way
from penstock.session.rewinding import rewind
from penstock.sinks import ConsoleSink, Result, SinkRequest, open_sink
from penstock.sinks.base import SharedLock
from tests.lanes import SCHEMA, Life, answered, failing, opened, result, run_until
from tests.postgres import PostgresServer

FILES = ("jsonl", "csv", "parquet")
KEPT = (*FILES, "sqlite", "postgresql", "callback")
"""Sinks that outlive the process."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer(18)
    yield server
    server.remove()


def life_of(kind: str, folder: Path, request: Any = None, **options: str) -> Life:
    address = ""
    if kind == "postgresql":
        address = request.getfixturevalue("server").new_database()
    return Life(folder, kind, address, **options)


@pytest.fixture(params=KEPT)
def life(request: pytest.FixtureRequest, tmp_path: Path) -> Life:
    return life_of(request.param, tmp_path / "life", request)


def refused(life: Life, **options: Any) -> str:
    """Start what must be refused; return what was said. Nothing may be changed."""
    before = tree(life.folder)
    with pytest.raises(StateError) as error:
        life.start(**options)
    assert tree(life.folder) == before
    return str(error.value)


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


# Both ways into one sink


def test_batches_and_turns_come_into_one_sink_each_once(life: Life) -> None:
    life.start()
    life.batch(0, 100)
    first = life.answer(1, 2)
    life.batch(1, 101)
    second = life.answer(3)
    assert life.values() == [1, 2, 3, 100, 101]
    for turn in (first, second):
        life.delivery.deliver_turn(turn)
    life.batch(0, 100)
    life.batch(1, 101)
    assert life.values() == [1, 2, 3, 100, 101]
    life.stop().start()
    life.batch(1, 101)
    life.batch(2, 102)
    life.answer(4)
    assert life.values() == [1, 2, 3, 4, 100, 101, 102]
    assert life.stop().open("q").held().last == (2, f"{life.run} 2")
    assert life.open("q~lane").held().last == (3, life.journal.chain)


def test_a_turn_without_rows_for_a_query_is_not_delivered_to_it(life: Life) -> None:
    life.start()
    life.answer()
    other = Turn(0, 3, {"s": answered(1)}, {"r": result(1)})
    life.delivery.deliver_turn(life.journal.append(other))
    life.answer(7)
    assert life.values() == [7]
    life.stop().start()
    assert life.values() == [7]


def test_only_some_queries_may_be_given_a_turn(tmp_path: Path) -> None:
    life = Life(tmp_path, "callback").start()
    turn = life.journal.append(Turn(0, 3, {}, {"q": result(1), "r": result(2)}))
    life.delivery.deliver_turn(turn, ["r"])
    assert life.called == []
    life.delivery.deliver_turn(turn, ["q", "r", "unknown"])
    assert life.called == [(-1, [1])]


def test_rows_of_a_turn_look_like_those_of_a_batch(tmp_path: Path) -> None:
    life = Life(tmp_path, "callback").start()
    got: list[pa.Table] = []
    life.main._function = life.delivery.lanes["q~lane"].sink._function = lambda _, t: got.append(t)
    life.answer(3, 1, 2)
    life.batch(0, 1, 2, 3)
    assert got[0].equals(got[1])
    assert got[0].column("_end").to_pylist() == [6, 7, 8]


def test_a_function_gets_turns_as_negative_numbers(tmp_path: Path) -> None:
    life = Life(tmp_path, "callback").start()
    life.batch(0, 100)
    life.answer(1)
    life.answer(2)
    life.batch(1, 101)
    assert life.called == [(0, [100]), (-1, [1]), (-2, [2]), (1, [101])]


def test_memory_shows_both_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    life = Life(tmp_path, "memory").start()
    life.batch(1, 100)
    turn = life.answer(1)
    life.batch(2, 101)
    life.delivery.deliver_turn(turn)
    assert life.main.table().column("n").to_pylist() == [100, 1, 101]
    limited = Life(tmp_path / "limited", "memory", rows="2").start()
    limited.batch(0, 100)
    limited.answer(1)
    limited.answer(2)
    assert limited.main.table().column("n").to_pylist() == [1, 2]


def test_the_console_says_lane_and_the_number_of_the_turn() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    sink = ConsoleSink(out=out)
    turns = sink.for_turns(lambda: sink)
    for query, to in (("q", sink), ("q~lane", turns), ("q~lane", turns)):
        table = pa.table({"n": [7], "_start": [1], "_end": [2]})
        to.publish(Result(query, 3, "intervals", SCHEMA, False, table))
    assert out.getvalue().count("q, batch 3") == 1
    assert out.getvalue().count("q, lane 3") == 1


def test_a_black_hole_counts_both(tmp_path: Path) -> None:
    life = Life(tmp_path, "blackhole").start()
    assert life.main.count(3, 10)
    turn = life.answer(1, 2)
    life.delivery.deliver_turn(turn)
    assert life.main.rows == 12


def test_queries_without_a_lane_have_nothing_of_it(request: Any, tmp_path: Path) -> None:
    for kind in KEPT:
        with_lane, without = (
            life_of(kind, tmp_path / f"{kind}-{way}", request) for way in ("with", "without")
        )
        without.start(lane=False)
        without.batch(0, 100)
        without.stop().start(lane=False)
        assert without.values() == [100]
        names = [str(path) for path in without.folder.rglob("*")]
        assert not [name for name in names if "lane" in Path(name).name]
        assert without.journal.last == 0
        with_lane.start()
        with_lane.answer(1)
        assert with_lane.values() == [1]
        assert any("lane" in path.name for path in with_lane.folder.rglob("*"))


def test_names_that_end_like_an_outlet_of_the_lane_are_no_names_of_queries() -> None:
    session = Session(autostart=False)
    session.sql("CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t")
    for name in ("q~lane", "Q~Lane", "~lane"):
        with pytest.raises(QueryError, match="must not have '~lane' in it"):
            session.sql(f'CREATE QUERY "{name}" AS SELECT k FROM s [RANGE 5]')
    with pytest.raises(QueryError, match="must not have '~early' in it"):
        session.sql('CREATE QUERY "q~early 0" AS SELECT k FROM s [RANGE 5]')
    session.sql('CREATE QUERY "q~line" AS SELECT k FROM s [RANGE 5]')
    assert partner(lane_outlet("q")) == "q"
    assert partner("q") == lane_outlet("q") == "q~lane"


def test_only_intervals_and_streams_of_answers_have_a_way_by_the_lane() -> None:
    for mode in ("intervals", "stream"):
        way = Way("q", "out", mode, SCHEMA, False)
        assert lane_way(way) == Way("q~lane", "out", mode, SCHEMA, False)
    for mode in ("log", "view", "delta", "kept"):
        assert lane_way(Way("q", "out", mode, SCHEMA, False)) is None
    assert lane_way(Way("s-late", "out", "rows", SCHEMA, False, ("s", "late"))) is None


# Crashes


DELIVERED = {
    "lane-journal-before": False,
    "lane-journal-torn": False,
    "lane-journal-after": True,
    "lane-deliver-before": True,
    "lane-deliver-after": True,
}
"""The points that a turn passes, and whether it counts then."""


def test_every_point_of_the_lane_is_tested() -> None:
    keeping = {"lane-handed-over", "lane-answered"}  # of the keeper: see `tests.test_crash`
    points = {p for p in failpoints.POINTS if p.startswith("lane-")}
    assert set(DELIVERED) == points - keeping


@pytest.mark.parametrize("point", DELIVERED)
def test_a_turn_that_fails_anywhere_is_delivered_once_or_never_was(life: Life, point: str) -> None:
    life.start()
    life.batch(0, 100)
    life.answer(1)
    with failing(f"{point}=raise"), pytest.raises(StateError, match="told to raise"):
        life.answer(2)
    life.stop().start()
    assert life.values() == ([1, 2, 100] if DELIVERED[point] else [1, 100])
    life.answer(3)
    life.batch(1, 101)
    assert 3 in life.values()
    life.stop().start()
    assert life.values() == sorted([1, 3, 100, 101] + [2] * DELIVERED[point])


@pytest.mark.parametrize("point", ["sink-transaction", "sink-committed"])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_transaction_of_a_turn_is_whole(
    kind: str, point: str, request: Any, tmp_path: Path
) -> None:
    life = life_of(kind, tmp_path, request).start()
    life.answer(1)
    with failing(f"{point}=raise"), pytest.raises(StateError, match="told to raise"):
        life.answer(2)
    assert life.values() == ([1] if point == "sink-transaction" else [1, 2])
    life.stop().start()
    assert life.values() == [1, 2]


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
@pytest.mark.parametrize("point", DELIVERED)
def test_a_process_that_is_killed_delivers_each_turn_once(
    kind: str, point: str, tmp_path: Path
) -> None:
    assert run_until(tmp_path, 4, f"{point}=kill@3", kind) < 0
    assert Life(tmp_path, kind).values() in ([1, 2], [1, 2, 3])
    assert run_until(tmp_path, 4, "", kind) == 0
    assert Life(tmp_path, kind).values() == [1, 2, 3, 4]


def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    life = Life(tmp_path, "jsonl").start()
    full = failing("lane-deliver-before=nospace")
    with full, pytest.raises(StateError, match="disk of the sink of q is full"):
        life.answer(1)
    life.stop().start()
    assert life.values() == [1]


def test_a_function_that_fails_gets_the_turn_again(tmp_path: Path) -> None:
    life = Life(tmp_path, "callback").start()
    life.answer(1)
    call, life._call = life._call, lambda number, rows: 1 // 0  # type: ignore[method-assign]
    life.stop().start()
    with pytest.raises(DataError, match="for turn 2 of query 'q' it raised ZeroDivisionError"):
        life.answer(2)
    life._call = call  # type: ignore[method-assign]
    life.stop().start()
    assert life.called == [(-1, [1]), (-2, [2])]


@pytest.mark.parametrize("kind", ["memory", "callback"])
def test_what_no_batch_has_yet_is_given_again_to_sinks_that_went_with_the_process(
    kind: str, tmp_path: Path
) -> None:
    life = Life(tmp_path, kind).start()
    life.answer(1)
    life.commit()
    life.answer(2)
    life.answer(3)
    life.stop()
    again = life.copy(tmp_path / "again")
    again.called = []
    again.start()
    assert again.values() == ([2, 3] if kind == "memory" else [])


# Copies


def test_an_older_journal_under_a_newer_sink_is_refused(life: Life, tmp_path: Path) -> None:
    life.start()
    life.answer(1)
    life.stop()
    shutil.copytree(life.checkpoint / "lane", tmp_path / "older")
    life.start()
    life.answer(2)
    life.stop()
    shutil.rmtree(life.checkpoint / "lane")
    shutil.copytree(tmp_path / "older", life.checkpoint / "lane")
    for allow_change in (False, True):
        told = refused(life, allow_change=allow_change)
        assert "of 'q~lane', turns up to 1, but it holds turns up to 2" in told
        assert "its journal lost turns up to 2" in told
    shutil.rmtree(life.checkpoint / "lane")
    assert "of 'q~lane', nothing, but it holds turns up to 2" in refused(life)


def test_a_copy_that_was_continued_is_refused(life: Life, tmp_path: Path) -> None:
    life.start()
    life.answer(1)
    life.stop()
    shutil.copytree(life.checkpoint / "lane", tmp_path / "older")
    life.start()
    life.answer(2)
    life.stop()
    shutil.rmtree(life.checkpoint / "lane")
    shutil.copytree(tmp_path / "older", life.checkpoint / "lane")
    elsewhere = opened(life.checkpoint)
    elsewhere.append(Turn(0, 3, {"s": answered(9)}, {"q": result(9)}))
    elsewhere.close()
    assert "it holds a turn 2 of another run or of a copy" in refused(life)


@pytest.mark.parametrize("kind", [*FILES, "sqlite"])
def test_an_older_sink_gets_the_turns_again_that_are_kept(kind: str, tmp_path: Path) -> None:
    life = Life(tmp_path / "life", kind).start()
    life.batch(0, 100)
    life.answer(1)
    older = life.stop().copy(tmp_path / "older")
    life.start()
    for value in (2, 3):
        life.answer(value)
    life.commit()
    life.answer(4)
    life.stop()
    shutil.rmtree(older.checkpoint)
    shutil.copytree(life.checkpoint, older.checkpoint)
    older.mark, older.known = life.mark, life.known
    older.start()
    assert older.values() == life.values() == [1, 2, 3, 4, 100]
    older.answer(5)
    assert older.stop().start().values() == [1, 2, 3, 4, 5, 100]


@pytest.mark.parametrize("kind", [*FILES, "sqlite"])
def test_an_older_sink_whose_turns_are_gone_is_refused(kind: str, tmp_path: Path) -> None:
    life = Life(tmp_path / "life", kind).start()
    life.answer(1)
    older = life.stop().copy(tmp_path / "older")
    life.start()
    for value in (2, 3):
        life.answer(value)
        life.commit()
    life.answer(4)
    life.commit()
    life.journal.prune(3)
    assert [turn.number for turn in life.journal.turns()] == [4]
    assert life.stop().start().values() == [1, 2, 3, 4]
    life.stop()
    shutil.rmtree(older.checkpoint)
    shutil.copytree(life.checkpoint, older.checkpoint)
    older.mark, older.known = life.mark, life.known
    told = refused(older)
    assert "it must hold 4 turns of 'q~lane' with 4 rows, up to turn 4" in told
    assert "but it holds turns up to 1, and the checkpoint keeps only turn 4" in told
    older.start(allow_change=True)
    assert older.values() == [1, 4]
    older.answer(5)
    older.stop().start()
    assert older.values() == [1, 4, 5]


def test_a_sink_and_a_checkpoint_of_the_same_age_go_on(tmp_path: Path) -> None:
    for kind in (*FILES, "sqlite"):
        life = Life(tmp_path / kind, kind).start()
        life.batch(0, 100)
        life.answer(1)
        older = life.stop().copy(tmp_path / f"{kind}-older")
        life.start()
        life.answer(2)
        older.start()
        older.answer(3)
        assert older.values() == [1, 3, 100]


def test_a_ledger_that_is_older_by_more_than_one_turn_is_refused(tmp_path: Path) -> None:
    life = Life(tmp_path, "callback").start()
    life.answer(1)
    ledger = life.checkpoint / "delivered" / "q~lane.json"
    older = ledger.read_bytes()
    life.answer(2)
    life.stop()
    newest = ledger.read_bytes()
    ledger.write_bytes(older)
    life.start()  # nobody knows whether turn 2 arrived: it comes again, under its number
    assert life.called == [(-1, [1]), (-2, [2]), (-2, [2])]
    life.answer(3)
    life.stop()
    ledger.write_bytes(older)
    assert "it must hold 3 turns of 'q~lane'" in refused(life)
    ledger.write_bytes(newest)
    life.start()
    ledger.write_bytes(b"{}")
    assert "must say which batch was delivered last, but it is damaged" in refused(life)


@pytest.mark.parametrize("kind", FILES)
def test_files_that_are_lost_or_altered_come_again_from_the_journal(
    kind: str, tmp_path: Path
) -> None:
    life = Life(tmp_path, kind).start()
    life.batch(0, 100)
    for value in (1, 2, 3):
        life.answer(value)
    life.commit()
    life.stop()
    whole = tree(tmp_path / "out")
    gone, cut = (tmp_path / "out" / f"q~lane-{number:010d}.{kind}" for number in (1, 2))
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    life.start()
    assert tree(tmp_path / "out") == whole
    life.journal.rotate()
    life.answer(4)
    life.commit()
    life.journal.prune(4)
    life.stop()
    gone.unlink()
    assert f"the file {gone} is gone, and the checkpoint keeps only turn 4" in refused(life)
    life.start(allow_change=True)
    assert life.values() == [2, 3, 4, 100]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_table_that_was_dropped_is_filled_again_by_both(
    kind: str, request: Any, tmp_path: Path
) -> None:
    life = life_of(kind, tmp_path, request).start()
    life.answer(1)
    life.answer(2)
    life.stop()
    life.delivery.lanes["q~lane"].sink._database.connect()
    life.delivery.lanes["q~lane"].sink._database.run("DROP TABLE {table}")
    life.stop().start()
    life.batch(0, 100)
    life.answer(3)
    assert life.values() == [1, 2, 3, 100]
    assert life.stop().start().values() == [1, 2, 3, 100]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_rows_that_others_delete_are_noticed_for_both(
    kind: str, request: Any, tmp_path: Path
) -> None:
    life = life_of(kind, tmp_path, request).start()
    life.batch(0, 100)
    life.answer(1)
    database = life.delivery.lanes["q~lane"].sink._database
    with database.transaction():
        database.run("DELETE FROM {table} WHERE n = 100")
    life.stop()
    assert "it must hold 2 rows that were delivered, got 1" in refused(life)


def test_a_query_that_was_dropped_begins_anew_with_another_sink(tmp_path: Path) -> None:
    life = Life(tmp_path, "jsonl").start()
    life.answer(1)
    life.answer(2)
    told = life.journal.told["q~lane"]
    ended = Delivered(told.batch, told.lineage, told.batches, told.rows, told.before, ended=True)
    life.journal.tell({"q~lane": ended})
    life.commit()
    life.stop()
    shutil.rmtree(tmp_path / "out")
    life.start()
    assert life.journal.told["q~lane"] == Delivered()
    life.answer(3)
    life.commit()
    assert life.stop().start().values() == [3]
    shutil.rmtree(tmp_path / "out")
    life.stop().start()  # turns of the query before it are kept, and not its own
    assert life.values() == [3]


def test_a_query_is_not_given_the_turns_of_another_one_that_had_its_name(tmp_path: Path) -> None:
    life = Life(tmp_path, "memory").start()
    life.answer(1)
    life.journal.tell({"q~lane": Delivered()})  # dropped, and created again
    life.mark, life.known = life.journal.settle(0), life.journal.told
    life.answer(2)
    assert life.stop().start().values() == [2]


# One folder, one table


@pytest.mark.parametrize("before", [("batch", "turn"), ("batch",)])
@pytest.mark.parametrize("after", [("batch", "turn"), ("turn", "batch"), ("batch",)])
@pytest.mark.parametrize("kind", [*FILES, "sqlite", "postgresql"])
def test_overwriting_takes_the_answers_of_both_ways(
    kind: str, before: tuple[str, ...], after: tuple[str, ...], request: Any, tmp_path: Path
) -> None:
    life = life_of(kind, tmp_path, request, overwrite="true")
    old = _come(life, before, 0)
    life.stop()
    shutil.rmtree(life.checkpoint)
    life.run = "another run"
    life.start(lane="turn" in after)
    assert life.values() == old  # until the first new answer is there
    life.stop()
    new = _come(life, after, 200)
    assert life.values() == new
    life.stop().start(lane="turn" in after)
    assert life.values() == new


def _come(life: Life, ways: tuple[str, ...], value: int) -> list[int]:
    """Let answers come by some ways; return them."""
    life.start(lane="turn" in ways)
    for number, way in enumerate(ways):
        if way == "batch":
            life.batch(0, value + number)
        else:
            life.answer(value + number)
    return [value + number for number in range(len(ways))]


@pytest.mark.parametrize("kind", [*FILES, "sqlite", "postgresql"])
def test_answers_of_another_run_are_not_added_to(kind: str, request: Any, tmp_path: Path) -> None:
    life = life_of(kind, tmp_path, request).start()
    life.answer(1)
    life.stop()
    life.run = "another run"
    for outlet in ("q", "q~lane"):
        with pytest.raises(ConfigError, match=r"holds others"):
            life.open(outlet)


def test_beginning_does_not_sweep_what_others_are_writing(tmp_path: Path) -> None:
    life = Life(tmp_path, "jsonl").start()
    mine = tmp_path / "out" / ".q-0000000003.jsonl.1.tmp"
    others = [
        tmp_path / "out" / f".{stem}-0000000003.jsonl.1.tmp" for stem in ("q~lane", "q-x~lane")
    ]
    for path in (mine, *others):
        path.write_bytes(b"half")
    life.main.begin()
    assert not mine.exists()
    assert all(path.exists() for path in others)


@pytest.mark.parametrize("kind", [*FILES, "sqlite", "postgresql"])
def test_each_way_is_taken_back_alone(kind: str, request: Any, tmp_path: Path) -> None:
    life = life_of(kind, tmp_path, request).start()
    life.batch(0, 100)
    first = life.answer(1)
    life.batch(1, 101)
    life.answer(2, 3)
    life.batch(2, 102)
    life.answer(4)
    assert "2 files were set aside" in (done := _rewind(life, "q", 0, f"{life.run} 0")) or (
        "2 rows of 2 batches were deleted" in done
    )
    assert life.values() == [1, 2, 3, 4, 100]
    done = _rewind(life, "q~lane", 1, first.chain)
    assert "2 files were set aside" in done or "3 rows of 2 batches were deleted" in done
    assert life.values() == [1, 100]
    assert life.open("q").held().last == (0, f"{life.run} 0")
    assert life.open("q~lane").held().last == (1, first.chain)


def _rewind(life: Life, outlet: str, batch: int, lineage: str) -> str:
    sink = life.open(outlet)
    try:
        return sink.rewind(Delivered(batch, lineage))
    finally:
        sink.close()


SCRIPT = """
CREATE STREAM s (n BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE SINK out USING {kind} OPTIONS ({options});
CREATE SINK aside USING jsonl OPTIONS (path '{folder}/aside');
CREATE QUERY q INTO out AS SELECT n FROM s [RANGE 5];
CREATE QUERY other INTO aside AS SELECT n FROM s [RANGE 5];
"""


@pytest.mark.parametrize("kind", ["jsonl", "sqlite", "callback"])
def test_rewind_sink_takes_turns_back_to_the_journal(kind: str, tmp_path: Path) -> None:
    life = Life(tmp_path, kind)
    checkpoint = Checkpoint(str(life.checkpoint))
    checkpoint.lock()
    checkpoint.open()
    life.run = checkpoint.run
    life.mark = Mark.start(checkpoint.run)
    offsets = life.checkpoint / "spark" / "offsets" / "3"
    offsets.parent.mkdir(parents=True)
    offsets.write_text("planned")
    manifest = Manifest(batch=3, run=checkpoint.run, offsets=checkpoint.log.offsets_digest(3))
    manifest.logs = checkpoint.log.digests()
    life.start()
    life.answer(1)
    life.commit()
    life.answer(2)
    manifest.lane = life.mark.describe()
    manifest.outlets = {name: told.describe() for name, told in life.known.items()}
    checkpoint.commit(manifest)
    checkpoint.unlock()
    life.stop()
    shutil.copytree(life.checkpoint / "lane", tmp_path / "older")
    assert "q~lane: is where the checkpoint is" in _rewound(life) or kind == "callback"
    life.start()
    life.answer(3)
    life.answer(4)
    life.stop()
    shutil.rmtree(life.checkpoint / "lane")
    shutil.copytree(tmp_path / "older", life.checkpoint / "lane")
    told = _rewound(life)
    assert "other~lane" not in told
    if kind == "callback":
        assert told.count("a function cannot be taken back") == 2
        return
    wanted = {"jsonl": "2 files were set aside", "sqlite": "2 rows of 2 batches were deleted"}
    assert f"sink out, q~lane: {wanted[kind]}" in told
    life.start()
    assert life.values() == [1, 2]


def _rewound(life: Life) -> str:
    options = ", ".join(f"{k} '{v}'" for k, v in life.definition().options.items())
    text = SCRIPT.format(kind=life.kind, options=options, folder=life.folder)
    with Session(autostart=False) as session:
        session.callback("out", life._call)
        session.sql(text.replace("OPTIONS ();", ";").replace(" OPTIONS ()", ""))
        return "\n".join(rewind(session, life.checkpoint, ()))


# Two threads


def test_a_function_is_never_called_by_two_threads_at_once(tmp_path: Path) -> None:
    inside, most = 0, 0

    def slow(number: int, rows: pa.Table) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.01)
        inside -= 1

    life = Life(tmp_path, "callback")
    life._call = slow  # type: ignore[method-assign]
    life.start()
    _both(lambda n: life.batch(n, n), lambda n: life.answer(n), 15)
    assert most == 1


@pytest.mark.parametrize("kind", [*FILES, "sqlite", "postgresql", "memory"])
def test_both_ways_fill_one_sink_at_the_same_time(kind: str, request: Any, tmp_path: Path) -> None:
    life = life_of(kind, tmp_path, request).start()
    _both(lambda n: life.batch(n, 1000 + n), lambda n: life.answer(n), 40)
    assert life.values() == [*range(40), *range(1000, 1040)]
    if kind != "memory":
        assert life.stop().start().values() == [*range(40), *range(1000, 1040)]


def _both(batch: Any, turn: Any, times: int) -> None:
    """Run two functions, each in its own thread, with 0, 1, .."""
    errors: list[BaseException] = []

    def repeat(function: Any) -> None:
        try:
            for number in range(times):
                function(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(each,)) for each in (batch, turn)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_a_turn_does_not_wait_for_a_batch_on_its_way_into_postgresql(
    request: Any, tmp_path: Path
) -> None:
    life = life_of("postgresql", tmp_path, request).start()
    written, go_on = threading.Event(), threading.Event()
    add = life.main._database.add

    def slow(rows: pa.Table) -> None:
        add(rows)
        written.set()
        assert go_on.wait(30)

    life.main._database.add = slow  # type: ignore[method-assign]
    thread = threading.Thread(target=life.batch, args=(0, 100))
    thread.start()
    try:
        assert written.wait(30)
        life.answer(1)
        assert life.values() == [1]
    finally:
        go_on.set()
        thread.join()
    assert life.values() == [1, 100]


def test_dropping_a_query_waits_for_the_turn_on_its_way(tmp_path: Path) -> None:
    life = Life(tmp_path, "callback")
    began, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(number: int, rows: pa.Table) -> None:
        began.set()
        assert go_on.wait(30)
        order.append("given")

    life._call = slow  # type: ignore[method-assign]
    life.start()
    close = life.delivery.lanes["q~lane"].sink.close
    life.delivery.lanes["q~lane"].sink.close = lambda: (order.append("closed"), close())[1]  # type: ignore[method-assign]
    turn = threading.Thread(target=life.answer, args=(1,))
    turn.start()
    assert began.wait(30)
    drop = threading.Thread(target=life.delivery.forget, args=(["q~lane"],))
    drop.start()
    time.sleep(0.05)
    go_on.set()
    turn.join()
    drop.join()
    assert order == ["given", "closed"]
    assert not life.delivery.has("q~lane")
    life.answer(2)  # nobody wants it any more
    assert order == ["given", "closed"]


def test_locks_are_shared_by_what_they_are_of() -> None:
    one = SharedLock.of("thing", 1)
    assert SharedLock.of("thing", 1) is one
    assert SharedLock.of("thing", 2) is not one
    del one
    assert ("thing", 1) not in SharedLock._known


# Sentences


def test_errors_speak_of_turns(tmp_path: Path) -> None:
    life = Life(tmp_path, "sqlite").start()
    life.answer(1)
    database = life.delivery.lanes["q~lane"].sink._database
    database.run("DROP TABLE {table}")
    with pytest.raises(DataError, match=r"^turn 2 of query 'q' must be written to the table 'out'"):
        life.answer(2)


def test_a_packaged_format_is_opened_under_the_name_of_the_lane(tmp_path: Path) -> None:
    names: list[str] = []

    def opening(outlet: str) -> Any:
        names.append(outlet)
        definition = SinkDef("out", "jsonl", {"path": str(tmp_path / "out")})
        return open_sink(definition, SinkRequest(outlet, "intervals", SCHEMA))

    opening("q").for_turns(lambda: opening("q~lane"))
    assert names == ["q", "q~lane"]


def test_the_journal_is_what_a_delivery_asks_for(tmp_path: Path) -> None:
    """What `check_turns` calls told and settled is what the journal calls so."""
    journal: Journal = opened(tmp_path)
    turn = journal.append(Turn(0, 3, {}, {"q": result(1)}))
    assert journal.told == turn.told == {"q~lane": Delivered(1, turn.chain, 1, 1)}
    assert journal.settled == 0
