"""The journal of turns: what was appended is there again, exactly, or it is refused."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import StateError
from penstock.lane.journal import Journal, Mark, Rows, Turn
from penstock.runs import failpoints
from penstock.runs.checkpoint import Checkpoint
from penstock.runs.deliveries import Delivered
from tests.lanes import (
    RUN,
    answered,
    contents,
    failing,
    opened,
    plain_rows,
    result,
    run_until,
    turn,
)

START = Mark.start(RUN)


def filled(folder: Path, turns: int, per_file: int = 2) -> tuple[Journal, list[Mark]]:
    """Return a journal with turns, and the mark after each of them."""
    journal, marks = opened(folder), [START]
    for number in range(1, turns + 1):
        journal.append(turn(number))
        marks.append(Mark(number, journal.chain))
        if number % per_file == 0:
            journal.rotate()
    return journal, marks


def files(folder: Path) -> list[Path]:
    return sorted((folder / "lane").iterdir())


def tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in files(folder)}


def refused(folder: Path, after: Mark = START, batch: int = 9) -> str:
    """Open what must be refused; return what was said. Nothing may be changed."""
    before = tree(folder) if (folder / "lane").is_dir() else None
    with pytest.raises(StateError) as error:
        opened(folder, after, batch)
    assert (tree(folder) if (folder / "lane").is_dir() else None) == before
    return str(error.value)


# What is kept


def test_turns_come_back_as_they_were(tmp_path: Path) -> None:
    schema = pa.schema(
        [("c0", pa.string()), ("c1", pa.timestamp("us")), ("c2", pa.list_(pa.int8()))]
    )
    odd = pa.table([["a", None], [None, 5], [[1], None]], schema=schema)
    given_turns = [
        Turn(0, 0, {"s": answered(4)}, {"q": result(1, 2), "other": odd}),
        Turn(0, 0, {"s": answered(5, 6), "ŝ": answered(1)}, {}),
        Turn(0, 2, {"s": answered()}, {"q": result()}),
    ]
    journal = opened(tmp_path)
    numbered = [journal.append(each) for each in given_turns]
    assert [each.number for each in numbered] == [1, 2, 3]
    assert journal.last == 3
    assert journal.chain == numbered[-1].chain
    assert len({each.chain for each in numbered}) == 3
    again = opened(tmp_path)
    assert (again.last, again.chain) == (journal.last, journal.chain)
    for found in (list(journal.turns()), list(again.turns())):
        assert [each.batch for each in found] == [0, 0, 2]
        for kept, wanted in zip(found, given_turns, strict=True):
            assert plain_rows(kept.rows) == plain_rows(wanted.rows)
            assert list(kept.results) == list(wanted.results)
            assert all(kept.results[q].equals(wanted.results[q]) for q in wanted.results)
    assert [each.number for each in again.turns(since=2)] == [3]


def test_what_is_kept_has_the_types_that_were_promised(tmp_path: Path) -> None:
    opened(tmp_path).append(Turn(0, 1, {"s": Rows(*([np.array([1, 2])] * 3))}, {}))
    (kept,) = opened(tmp_path).turns()
    found = kept.rows["s"]
    assert (found.seq.dtype, found.time.dtype, found.priority.dtype) == ("i8", "i8", "u1")
    assert found.seq.base is None  # not a view of the whole file


def test_nothing_is_made_before_the_first_turn(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.rotate()
    journal.prune(5)
    journal.close()
    assert list(journal.turns()) == []
    assert not list(tmp_path.iterdir())


def test_files_are_private_and_named_after_their_first_turn(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    assert [path.name for path in files(tmp_path)] == [
        "0000000001.log",
        "0000000003.log",
        "0000000005.log",
    ]
    assert {path.stat().st_mode & 0o777 for path in files(tmp_path)} == {0o600}
    assert (tmp_path / "lane").stat().st_mode & 0o777 == 0o700


def test_a_journal_that_is_opened_again_goes_on(tmp_path: Path) -> None:
    whole, _ = filled(tmp_path / "whole", 7)
    for number in range(7):
        journal = opened(tmp_path / "parts")
        assert journal.last == number
        journal.append(turn(number + 1))
        journal.close()
    assert journal.chain == whole.chain
    assert contents(journal) == contents(whole)
    assert [path.name for path in files(tmp_path / "parts")] == ["0000000001.log"]


def test_each_turn_is_forced_to_disk_once(tmp_path: Path, monkeypatch: Any) -> None:
    calls: list[str] = []
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda h, n=name, r=real: (calls.append(n), r(h))[1])
    journal = opened(tmp_path)
    journal.append(turn(1))
    assert calls == ["fsync", "fsync", "fdatasync"]  # the new folder, the new file, the turn
    calls.clear()
    for number in (2, 3):
        journal.append(turn(number))
    assert calls == ["fdatasync"] * 2
    calls.clear()
    careless = opened(tmp_path / "careless", fsync=False)
    careless.append(turn(1))
    assert calls == []


def test_results_are_read_on_demand(tmp_path: Path) -> None:
    journal, _ = filled(tmp_path, 3)
    kept = list(journal.turns())
    files(tmp_path)[0].unlink()
    assert list(kept[0].results) == ["q"]
    with pytest.raises(StateError, match=r"record at byte 0 of .*0000000001.log cannot be read"):
        kept[0].results["q"]
    path = files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-60] + bytes(60))
    with pytest.raises(StateError, match="was altered since it was written"):
        kept[2].results["q"]


# Marks, rotation and pruning


def test_pruning_deletes_whole_files_and_never_the_last_one(tmp_path: Path) -> None:
    journal, marks = filled(tmp_path, 6)
    journal.prune(1)
    assert len(files(tmp_path)) == 3
    journal.prune(3)
    assert [path.name for path in files(tmp_path)] == ["0000000003.log", "0000000005.log"]
    assert [each.number for each in journal.turns()] == [3, 4, 5, 6]
    journal.prune(6)
    assert [path.name for path in files(tmp_path)] == ["0000000005.log"]
    again = opened(tmp_path, marks[6])
    assert [each.number for each in again.turns()] == [5, 6]
    assert again.append(turn(7)).number == 7
    again.rotate()
    assert contents(opened(tmp_path, marks[5])) == contents(again)


def test_pruning_keeps_the_last_turns_where_the_last_file_has_none(tmp_path: Path) -> None:
    journal, marks = filled(tmp_path, 2)
    torn = failing("lane-journal-torn=raise")
    with torn, pytest.raises(StateError, match="told to raise"):
        journal.append(turn(3))
    again = opened(tmp_path, marks[2])
    again.prune(2)
    assert [each.number for each in opened(tmp_path, marks[2]).turns()] == [1, 2]


def test_marks_of_manifests(tmp_path: Path) -> None:
    journal, marks = filled(tmp_path, 5)
    mark = journal.settle(3)
    assert mark == Mark(3, marks[3].chain, 5)
    assert Mark.of(mark.describe(), RUN) == mark
    assert Mark.of({}, RUN) == START
    assert journal.settle(4) == Mark(4, marks[4].chain, 5)
    journal.prune(4)
    assert journal.settle(4).turn == journal.settled == 4
    with pytest.raises(ValueError, match="turn 2 must be one that is kept"):
        journal.settle(2)
    again = opened(tmp_path, journal.settle(4))
    assert again.settle(4) == journal.settle(4)  # turn 4 is deleted, its mark is known


def test_what_outlets_have_got_is_known_from_the_turns(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append(turn(1, queries=("q", "r")))
    one = journal.chain
    journal.append(Turn(0, 3, {"s": answered(1)}, {"q": result(5), "r": result()}))
    assert journal.told == {
        "q~lane": Delivered(2, journal.chain, 2, 3, (1, one)),
        "r~lane": Delivered(1, one, 1, 2),
    }
    assert opened(tmp_path).told == journal.told
    mark = journal.settle(1)
    ended = {"q~lane": Delivered(2, journal.chain, 2, 3, (1, one), ended=True)}
    again = opened(tmp_path, mark, told=ended)
    assert again.told == ended
    again.tell({"q~lane": Delivered()})
    again.append(turn(3))
    assert again.told["q~lane"] == Delivered(3, again.chain, 1, 2)
    assert opened(tmp_path, mark, told=ended).told == again.told


# Copies, losses and damage


def test_a_journal_that_ends_before_the_mark_is_refused(tmp_path: Path) -> None:
    _, marks = filled(tmp_path, 5)
    files(tmp_path)[-1].unlink()
    told = refused(tmp_path, marks[5])
    assert "it ends with turn 4, and there were 5: it is an older copy" in told
    told = refused(tmp_path, Mark(2, marks[2].chain, last=5))
    assert "it ends with turn 4, and there were 5" in told
    assert opened(tmp_path, marks[4]).last == 4


def test_a_folder_that_holds_nothing_is_fine_only_before_the_first_turn(tmp_path: Path) -> None:
    _, marks = filled(tmp_path, 2)
    shutil.rmtree(tmp_path / "lane")
    assert "it is empty, and there were 2" in refused(tmp_path, marks[2])
    (tmp_path / "lane").mkdir()
    assert "it is empty, and there were 2" in refused(tmp_path, marks[2])
    assert opened(tmp_path).last == 0


def test_a_journal_that_begins_after_the_mark_is_refused(tmp_path: Path) -> None:
    journal, marks = filled(tmp_path, 6)
    journal.prune(4)
    told = refused(tmp_path, marks[3])
    assert "it begins with turn 5" in told
    assert "the manifests are an older copy" in told
    assert opened(tmp_path, marks[4]).last == 6


def test_a_file_that_is_missing_in_between_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 6)
    files(tmp_path)[1].unlink()
    told = refused(tmp_path)
    assert "0000000003.log is missing, and there is 0000000005.log" in told


def test_a_manifest_that_is_older_than_the_turns_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    assert opened(tmp_path, batch=3).last == 2
    told = refused(tmp_path, batch=2)
    assert "turn 2 was answered with batch 3, and the newest manifest is of batch 2" in told


def test_copies_that_were_both_continued_are_not_mixed(tmp_path: Path) -> None:
    journal, marks = filled(tmp_path / "a", 2)
    journal.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    chains = {}
    for name, shift in (("a", 0), ("b", 1000)):
        continued = opened(tmp_path / name)
        continued.rotate()
        for number in (3, 4):
            continued.append(turn(number + shift))
        continued.rotate()
        chains[name] = [START.chain, *(each.chain for each in continued.turns())]
        continued.append(turn(5 + shift))
    assert "is another one: it is of a copy" in refused(tmp_path / "a", Mark(4, chains["b"][4]))
    for first in ("0000000003.log", "0000000005.log"):
        mixed = tmp_path / f"mixed-{first}"
        shutil.copytree(tmp_path / "a", mixed)
        shutil.copy(tmp_path / "b" / "lane" / first, mixed / "lane" / first)
        assert "does not follow the one before" in refused(mixed, marks[2])
    shutil.copytree(tmp_path / "b", tmp_path / "pruned")
    opened(tmp_path / "pruned").prune(2)
    told = refused(tmp_path / "pruned", Mark(2, "0" * 16))
    assert "it goes on from other turns" in told


def test_the_journal_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    assert "it goes on from other turns" in refused(tmp_path, Mark.start("another run"))


def test_files_that_are_renamed_or_not_of_the_journal_are_refused(tmp_path: Path) -> None:
    filled(tmp_path, 4)
    stray = tmp_path / "lane" / "0000000001.log.bak"
    stray.write_bytes(b"")
    assert "but 0000000001.log.bak is none" in refused(tmp_path)
    stray.unlink()
    one, two = files(tmp_path)
    data = one.read_bytes(), two.read_bytes()
    one.write_bytes(data[1])
    two.write_bytes(data[0])
    assert "must be of turn 1" in refused(tmp_path)


@pytest.fixture(scope="module")
def journal_of_six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("six")
    filled(folder, 6, per_file=3)
    return folder


@settings(deadline=None)
@given(data=st.data())
def test_a_byte_that_is_altered_anywhere_is_noticed(
    data: Any,
    journal_of_six: Path,
) -> None:
    path = data.draw(st.sampled_from(files(journal_of_six)))
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[at] ^ data.draw(st.integers(1, 255))
    try:
        path.write_bytes(whole[:at] + bytes([flipped]) + whole[at + 1 :])
        assert str(path) in refused(journal_of_six)
    finally:
        path.write_bytes(whole)


@settings(deadline=None)
@given(data=st.data())
def test_a_part_that_is_altered_never_changes_a_turn(data: Any, journal_of_six: Path) -> None:
    """Cut, overwritten, doubled, left out: it is refused, or the first turns are there."""
    wanted = contents(opened(journal_of_six))
    path = data.draw(st.sampled_from(files(journal_of_six)))
    whole = path.read_bytes()
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
    middle = data.draw(
        st.sampled_from([b"", bytes(last - first), whole[first:last] * 2]) | st.binary(max_size=60)
    )
    rest = data.draw(st.sampled_from([whole[last:], b""]))
    try:
        path.write_bytes(whole[:first] + middle + rest)
        with suppress(StateError):
            found = contents(opened(journal_of_six))
            assert found == wanted[: len(found)]
            assert path == files(journal_of_six)[-1] or len(found) == len(wanted)
    finally:
        path.write_bytes(whole)


# Crashes


def test_a_turn_that_was_cut_short_at_any_byte_is_cut_off(tmp_path: Path) -> None:
    journal, _ = filled(tmp_path / "whole", 3)
    wanted = contents(journal)
    last = files(tmp_path / "whole")[-1]
    whole = last.read_bytes()
    cuts = [whole[:size] for size in [*range(60), *range(60, len(whole), 97), len(whole) - 1]]
    unwritten = [whole[:size] + bytes(len(whole) - size) for size in (0, 60, 500, len(whole) - 16)]
    for number, data in enumerate([*cuts, *unwritten]):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", folder)
        torn = folder / "lane" / last.name
        torn.write_bytes(data)
        again = opened(folder)
        assert contents(again) == wanted[:2]
        assert torn.read_bytes() == data  # opening changes nothing
        again.rotate()
        again.append(turn(3))
        assert contents(opened(folder)) == wanted
        assert torn.read_bytes() == whole


def test_a_file_that_is_not_the_last_may_not_be_cut(tmp_path: Path) -> None:
    filled(tmp_path, 4)
    first = files(tmp_path)[0]
    first.write_bytes(first.read_bytes()[:-7])
    assert "was cut short, although another file follows" in refused(tmp_path)


def test_bytes_that_are_no_record_are_not_cut_off(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    last = files(tmp_path)[-1]
    last.write_bytes(last.read_bytes() + b"garbage")
    assert "is no record, or was altered" in refused(tmp_path)


def test_a_torn_record_is_gone_before_a_new_file_begins(tmp_path: Path) -> None:
    journal, _ = filled(tmp_path, 3, per_file=9)
    journal.close()
    (last,) = files(tmp_path)
    whole = last.read_bytes()
    last.write_bytes(whole + whole[:100])
    again = opened(tmp_path)
    again.rotate()
    assert last.read_bytes() == whole
    again.append(turn(4))
    assert opened(tmp_path).last == 4


POINTS = [point for point in failpoints.POINTS if point.startswith("lane-journal-")]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("passage", [1, 2, 3])
def test_a_process_that_is_killed_loses_no_turn(tmp_path: Path, point: str, passage: int) -> None:
    """At every point, in a new file and in one that has turns."""
    whole, _ = filled(tmp_path / "whole", 5)
    assert run_until(tmp_path / "run", 5, f"{point}=kill@{passage}") < 0
    kept = passage if point == "lane-journal-after" else passage - 1
    before = tree(tmp_path / "run") if (tmp_path / "run" / "lane").is_dir() else {}
    assert contents(opened(tmp_path / "run")) == contents(whole)[:kept]
    assert any(len(data) > 40 for data in before.values()) or passage == 1
    assert run_until(tmp_path / "run", 5) == 0
    assert contents(opened(tmp_path / "run")) == contents(whole)


@pytest.mark.parametrize("point", POINTS)
def test_a_turn_that_could_not_be_written_does_not_count(tmp_path: Path, point: str) -> None:
    journal, _ = filled(tmp_path, 1)
    wanted = contents(journal)
    full = failing(f"{point}=nospace")
    if point == "lane-journal-after":  # it is written
        with full, pytest.raises(OSError, match="No space left"):
            journal.append(turn(2))
        assert opened(tmp_path).last == journal.last == 2
        return
    with full, pytest.raises(StateError, match=r"the disk of checkpoint .* is full"):
        journal.append(turn(2))
    assert contents(journal) == contents(opened(tmp_path)) == wanted
    if point == "lane-journal-torn":
        with pytest.raises(StateError, match="must be opened again"):
            journal.append(turn(2))
    again = opened(tmp_path)
    again.append(turn(2))
    assert opened(tmp_path).last == 2


@pytest.mark.parametrize("what", ["grown", "replaced", "gone"])
def test_two_processes_do_not_write_one_journal(tmp_path: Path, what: str) -> None:
    journal, _ = filled(tmp_path, 1)
    path = files(tmp_path)[-1]
    if what == "grown":
        opened(tmp_path).append(turn(2))
    elif what == "replaced":
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    else:
        path.unlink()
    with pytest.raises(StateError, match="must be written by one process alone"):
        journal.append(turn(2))


def test_one_thread_appends_while_another_reads_and_prunes(tmp_path: Path) -> None:
    journal = opened(tmp_path, fsync=False)
    errors: list[BaseException] = []

    def append() -> None:
        try:
            for number in range(1, 301):
                journal.append(turn(number))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    pruned = 0
    while thread.is_alive() or not pruned:
        numbers = [each.number for each in journal.turns()]
        assert numbers == list(range(numbers[0], numbers[-1] + 1)) if numbers else True
        journal.rotate()
        if numbers:
            mark = journal.settle(numbers[-1])
            assert mark.last >= mark.turn
            pruned = max(0, numbers[-1] - 20)
            journal.prune(pruned)
    thread.join()
    assert not errors
    again = opened(tmp_path, journal.settle(300))
    assert contents(again) == contents(journal)
    assert again.last == 300


# Two processes on one checkpoint, because its lock was deleted


def test_who_has_lost_the_checkpoint_writes_no_turn(tmp_path: Path) -> None:
    first, second = Checkpoint(tmp_path), Checkpoint(tmp_path)
    first.lock()
    journal = opened(tmp_path, still_ours=first.check_ours)
    journal.append(turn(1))
    (tmp_path / "lock").unlink()
    second.lock()
    later = opened(tmp_path, still_ours=second.check_ours)
    with pytest.raises(StateError, match="was taken by another one"):
        journal.append(turn(2))
    later.append(turn(2))
    assert [each.number for each in opened(tmp_path).turns()] == [1, 2]


def test_a_turn_that_was_written_while_the_checkpoint_was_lost_is_taken_back(
    tmp_path: Path,
) -> None:
    asked: list[int] = []

    def lost_when_written() -> None:
        asked.append(len(asked))
        if len(asked) == 4:
            raise StateError("was taken by another one")

    journal = opened(tmp_path, still_ours=lost_when_written)
    journal.append(turn(1))
    with pytest.raises(StateError, match="was taken by another one"):
        journal.append(turn(2))
    assert [each.number for each in opened(tmp_path).turns()] == [1]
    with pytest.raises(StateError, match="must be opened again"):
        journal.append(turn(3))


def test_a_journal_that_somebody_else_has_begun(tmp_path: Path) -> None:
    journal, other = opened(tmp_path), opened(tmp_path)
    other.append(turn(1))
    with pytest.raises(StateError, match="must be written by one process alone"):
        journal.append(turn(1))


def test_a_pipe_in_place_of_a_journal_file(tmp_path: Path) -> None:
    (tmp_path / "lane").mkdir()
    os.mkfifo(tmp_path / "lane" / "0000000001.log")
    with pytest.raises(StateError, match="must consist of files, but"):
        opened(tmp_path)
