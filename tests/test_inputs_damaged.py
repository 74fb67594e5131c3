"""What is damaged, swapped, missing or replaced on the input side is refused by name, or harmless.

Nearly all of it runs without Spark: the source that plans batches is plain Python.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from penstock.catalog import StreamDef
from penstock.errors import DataError, PenstockError, StateError
from penstock.model import Field, Schema
from penstock.session import Session
from penstock.sources.base import Waiting
from penstock.sources.formats import backlog_of, read_slice
from penstock.sources.links import link_of
from penstock.sources.readers.base import to_json
from penstock.sources.side_by_side import Places
from penstock.sources.spool import Spool, SpoolFiles
from penstock.spark.descriptor_source import DescriptorSource
from penstock.spark.failures import root_cause

SCHEMA = Schema((Field("n", pa.int64()), Field("t", pa.int64())))
Offset = dict[str, Any]
Rows = list[int]


class Source:
    """A stream as the planning process sees it; each is a new process that knows nothing yet."""

    def __init__(self, format: str, kept_in: Path | None, rows: int = 4, **options: object) -> None:
        given = {name: str(value) for name, value in options.items()}
        self.definition = StreamDef("s", SCHEMA, format, given, 1)
        described: dict[str, Any] = {"definition": to_json(self.definition), "rows": rows}
        if kept_in is not None:
            described["folder"] = str(kept_in)
        if format == "parquet":
            described["files"] = 100
        self.described = described
        self.reader = self.open()

    def open(self) -> Any:
        text = json.dumps([self.described])
        return DescriptorSource({"streams": text}).streamReader(StructType())

    def plan(self, start: Offset) -> Offset:
        end: Offset = self.reader.latestOffset(start, ReadMaxRows(2**40))
        return json.loads(json.dumps(end))  # as Spark's log keeps it

    def read(self, start: Offset, end: Offset) -> Rows:
        """Read a batch as tasks do."""
        found: Rows = []
        for partition in self.reader.partitions(start, end):
            for _, path, first, last, ordinal, *_ in self.reader.read(partition):
                for part in read_slice(self.definition, path, first, last):
                    assert (part.positions + ordinal).tolist()[:1] in ([], [ordinal])
                    found += part.table["n"].to_pylist()
        return found

    def drain(self, start: Offset | None = None) -> tuple[Rows, list[Offset]]:
        """Read until nothing comes any more; return the rows, and where each batch ended."""
        ends = [start or {}]
        rows: Rows = []
        while (end := self.plan(ends[-1])) != ends[-1]:
            rows += self.read(ends[-1], end)
            ends.append(end)
        return rows, ends


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x04]) + data[at + 1 :]


def damages(file: Path, older: bytes | None) -> list[tuple[str, Callable[[], None]]]:
    """What may happen to one file; the file is whole before each of them."""
    data = file.read_bytes()

    def write(content: bytes) -> Callable[[], None]:
        return lambda: (file.write_bytes(content), None)[1]

    found = [
        ("cut to nothing", write(b"")),
        ("cut to half", write(data[: len(data) // 2])),
        ("cut by one", write(data[:-1])),
        ("more at its end", write(data + b"garbage")),
        ("a line more", write(data + b"garbage\n")),
        ("deleted", file.unlink),
    ]
    found += [(f"byte {at}", write(flipped(data, at))) for at in range(0, len(data), 7)]
    if older is not None:
        found.append(("of another time", write(older)))
    return found


def survives(source: Callable[[], Source], start: Offset, rest: Rows, names: list[str]) -> bool:
    """Whether the right rows come; if not, it must be refused and one of the names be said."""
    told = refusal(lambda: check_rows(source().drain(start)[0], rest))
    assert told is None or any(name in told for name in names), told
    return told is None


def refusal(work: Callable[[], object]) -> str | None:
    """Return the sentence that refuses to do something, None if it was done."""
    try:
        work()
    except (StateError, DataError) as error:
        return str(error)
    return None


def check_rows(found: Rows, expected: Rows) -> None:
    assert found == expected


# Spools


def pushed(folder: Path, files: int = 5, finish: bool = True) -> dict[str, list[bytes]]:
    """Push files of three rows; return what each file held after each push."""
    spool = Spool(folder, SCHEMA, fsync=False)
    held: dict[str, list[bytes]] = {}
    for number in range(files):
        spool.push([(3 * number + i, number) for i in range(3)])
        for path in folder.iterdir():
            held.setdefault(path.name, []).append(path.read_bytes())
    if finish:
        spool.finish()
    return held


def arrow_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.arrow"))


@pytest.mark.parametrize("finish", [True, False])
def test_every_file_of_a_spool_damaged_in_every_way(tmp_path: Path, finish: bool) -> None:
    folder = tmp_path / "spool"
    held = pushed(folder, finish=finish)
    backup = shutil.copytree(folder, tmp_path / "copy")
    rows, ends = Source("memory", folder).drain()
    assert rows == list(range(15))
    assert ends[-1]["s"]["done"] is finish

    def source() -> Source:
        return Source("memory", folder)

    starts = [(ends[0], rows), (ends[2], rows[6:]), (ends[-1], [])]
    tried = refused = 0
    for file in sorted(path.name for path in backup.iterdir()):
        older = held["head"][1] if file in ("head", "finished") else held.get(file, [None])[0]
        if file.endswith(".arrow"):
            link = link_of(file)
            assert link is not None
            names = [file, f"{link.number:010d}-"]
            older = arrow_files(backup)[0].read_bytes() if link.number else None
        else:
            names = [str(folder / file), f"{folder} must have a file '{file}'"]
        for what, damage in damages(folder / file, older):
            for start, rest in starts:
                damage()
                good = survives(source, start, rest, names)
                tried, refused = tried + 1, refused + (not good)
                if file == "lock" or (file.endswith(".arrow") and start == ends[-1]):
                    needed = file == arrow_files(backup)[-1].name and what == "deleted"
                    assert good or needed, (file, what)
                elif file.endswith(".arrow") and start == ends[0]:
                    assert not good, (file, what)
                elif file != "lock" and not file.endswith(".arrow"):
                    harmless = file == "head" and what == "of another time"
                    assert good is harmless, (file, what)
                (folder / file).write_bytes((backup / file).read_bytes())
    assert tried > 300
    assert refused > 200


def test_files_of_a_spool_swapped_or_mixed(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    pushed(folder)
    files = arrow_files(folder)
    one, two = files[1].read_bytes(), files[2].read_bytes()
    files[1].write_bytes(two)
    files[2].write_bytes(one)
    with pytest.raises(StateError, match=re.escape(files[1].name)):
        Source("memory", folder).drain()
    files[1].write_bytes(one)
    files[2].write_bytes(two)
    other = tmp_path / "other"
    Spool(other, SCHEMA).push([(99, 99)])
    shutil.copy(arrow_files(other)[0], folder)
    with pytest.raises(StateError, match=re.escape(arrow_files(other)[0].name)):
        Source("memory", folder).drain()
    (folder / arrow_files(other)[0].name).unlink()
    # a file may say in its name only what its bytes were pushed with
    link = link_of(files[1].name)
    assert link is not None
    lying = f"{link.number:010d}-{link.first}-2-{link.before}-{link.chain}.arrow"
    files[1].rename(folder / lying)
    with pytest.raises(StateError, match=re.escape(lying)):
        Source("memory", folder, rows=5).drain()


def test_a_spool_folder_that_is_gone_or_of_another_time(tmp_path: Path) -> None:
    folder, copy = tmp_path / "spool", tmp_path / "copy"
    pushed(folder, 2, finish=False)
    shutil.copytree(folder, copy)
    early = Source("memory", folder).drain()[1][-1]
    Spool(folder, SCHEMA).push([(6, 2)])
    rows, ends = Source("memory", folder).drain()
    assert rows == list(range(7))
    newer = tmp_path / "newer"
    folder.rename(newer)
    with pytest.raises(StateError, match=rf"{folder} must have the 3 files that were read"):
        Source("memory", folder).plan(ends[-1])
    shutil.copytree(copy, folder)  # older than the checkpoint
    with pytest.raises(StateError, match=rf"{folder} must have the 3 files .* an older copy"):
        Source("memory", folder).plan(ends[-1])
    Spool(folder, SCHEMA).push([(77, 2)])  # and then something else was pushed
    with pytest.raises(StateError, match=rf"{folder} must be the one that was read"):
        Source("memory", folder).plan(ends[-1])
    Spool(folder, SCHEMA).push([(78, 2)])
    with pytest.raises(StateError, match=rf"{folder} must be the one that was read"):
        Source("memory", folder).plan(ends[-1])
    shutil.rmtree(folder)
    newer.rename(folder)  # newer than the checkpoint: rows are read again from there
    assert Source("memory", folder).drain(early) == ([6], [early, ends[-1]])
    SpoolFiles(folder).prune(6, 2**60)
    assert Source("memory", folder).drain(early)[0] == [6]
    with pytest.raises(StateError, match=r"file number 0 .* begins with number 2"):
        Source("memory", folder).drain()


def test_a_push_that_was_cut_short(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    held = pushed(folder, 3, finish=False)
    program = "import sys; from tests.test_inputs_damaged import push_one; push_one(sys.argv[1])"
    (folder / ".0000000003-9-3-aa-bb.arrow.tmp").write_bytes(b"half")
    (folder / "head").write_bytes(held["head"][1])  # the last file was renamed, its head was not
    assert Source("memory", folder).drain()[0] == list(range(9))
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True)
    assert Source("memory", folder).drain()[0] == [*range(9), 1000]
    assert not list(folder.glob(".*"))


def push_one(folder: str) -> None:
    Spool(folder, SCHEMA).push([(1000, 3)])


def push_many(folder: str, first: int) -> None:
    for n in range(first, first + 40):
        Spool(folder, SCHEMA, fsync=False).push([(n, 0)])


def test_processes_and_threads_push_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    program = (
        "import sys; from tests.test_inputs_damaged import push_many; "
        "push_many(sys.argv[1], int(sys.argv[2]))"
    )
    others = [
        subprocess.Popen([sys.executable, "-c", program, str(folder), str(first)])
        for first in (0, 1000)
    ]
    threads = [threading.Thread(target=push_many, args=(str(folder), f)) for f in (2000, 3000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [other.wait(60) for other in others] == [0, 0]
    rows, _ = Source("memory", folder, rows=1000).drain()
    assert sorted(rows) == [first + n for first in (0, 1000, 2000, 3000) for n in range(40)]
    for first in (0, 1000, 2000, 3000):
        assert [n for n in rows if first <= n < first + 40] == list(range(first, first + 40))


def test_only_the_owner_may_look_into_a_spool(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = tmp_path / "spool"
        folder.mkdir()  # as whoever made it before left it
        pushed(folder)
        parquet(tmp_path / "in" / "a.parquet", range(3))
        Source("parquet", tmp_path / "list", path=tmp_path / "in").drain()
        for made in (folder, tmp_path / "list"):
            assert stat.S_IMODE(made.stat().st_mode) == 0o700
            assert {stat.S_IMODE(p.stat().st_mode) for p in made.iterdir()} == {0o600}
    finally:
        os.umask(before)


def test_files_that_are_not_needed_any_more_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    spool, pruner = Spool(folder, SCHEMA, fsync=False), SpoolFiles(folder)
    source, at, rows = Source("memory", folder), {}, []
    for n in range(1000):
        spool.push([(n, n)])
        end = source.plan(at)
        rows += source.read(at, end)
        pruner.prune(at.get("s", {}).get("ordinal", 0), at.get("s", {}).get("taken", 0))
        at = end
        assert len(arrow_files(folder)) <= 2
    assert rows == list(range(1000))
    pruner.prune(2**60, 2**60)
    SpoolFiles(folder).prune(2**60, 2**60)
    (newest,) = arrow_files(folder)
    assert newest.name.startswith("0000000999-")
    assert Source("memory", folder).drain(at) == ([], [at])
    spool.finish()
    assert Source("memory", folder).drain(at)[1][-1]["s"]["done"]
    assert backlog_of(source.definition, str(folder)).waiting(990, None) == Waiting(10, "rows")
    SpoolFiles(tmp_path / "none").prune(5, 5)


def test_promises_that_nobody_has_taken_stay(tmp_path: Path) -> None:
    """They have no rows, so rows do not tell whether they were taken."""
    folder = tmp_path / "spool"
    spool = Spool(folder, SCHEMA, fsync=False)
    source = Source("memory", folder)
    spool.push([(1, 1)])
    end = source.plan({})
    source.read({}, end)
    for instant in (2, 3, 4):
        spool.heartbeat(instant)
    for _ in range(2):
        SpoolFiles(folder).prune(end["s"]["ordinal"], end["s"]["taken"])
        assert [path.name[:10] for path in arrow_files(folder)] == [
            f"000000000{number}" for number in range(1, 4)
        ]
    later = source.plan(end)
    assert source.read(end, later) == []
    SpoolFiles(folder).prune(later["s"]["ordinal"], later["s"]["taken"])
    assert [path.name[:10] for path in arrow_files(folder)] == ["0000000003"]


def test_pushing_and_planning_do_not_list_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    listdir = os.listdir

    def counted(path: Any) -> list[str]:
        listed.append(str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", counted)
    folder = tmp_path / "spool"
    for n in range(200):
        Spool(folder, SCHEMA, fsync=False).push([(n, n)])
    assert len(listed) <= 3
    listed.clear()
    source, pruner = Source("memory", folder, rows=2), SpoolFiles(folder)
    rows, ends = source.drain()
    for end in ends[1:]:
        pruner.prune(end["s"]["ordinal"], end["s"]["taken"])
    for _ in range(100):
        assert source.plan(ends[-1]) == ends[-1]
        assert backlog_of(source.definition, str(folder)).waiting(150, None) == Waiting(50, "rows")
    assert rows == list(range(200))
    assert len(listed) <= 3


def test_a_stream_that_is_finished_stays_finished(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    pushed(folder, 2)
    done = Source("memory", folder).drain()[1][-1]
    spool = Spool(folder, SCHEMA)
    finished = (folder / "finished").read_bytes()
    (folder / "finished").unlink()
    with pytest.raises(StateError, match="finished' must tell where the spool ends"):
        Source("memory", folder).plan(done)
    with pytest.raises(DataError, match=r"before finish\(\)"):
        spool.push([(6, 6)])
    (folder / "finished").write_bytes(finished)
    assert Source("memory", folder).plan(done) == done
    spool.finish()
    spool.finish()
    with pytest.raises(DataError, match=r"before finish\(\)"):
        spool.push([])


# The list of a watched folder


def parquet(path: Path, numbers: range, seconds: int = 0) -> Path:
    path.parent.mkdir(exist_ok=True)
    table = pa.table({"n": list(numbers), "t": list(numbers)})
    pyarrow.parquet.write_table(table, path)
    nanoseconds = (1_700_000_000 + seconds) * 10**9 + 123_456_789
    os.utime(path, ns=(nanoseconds, nanoseconds))
    return path


def watched(folder: Path) -> list[Path]:
    return [
        parquet(folder / f"{name}.parquet", range(3 * at, 3 * at + 3), at)
        for at, name in enumerate("dcba")
    ]


def test_the_list_of_a_watched_folder_damaged_in_every_way(tmp_path: Path) -> None:
    folder, kept = tmp_path / "in", tmp_path / "kept"
    files = watched(folder)

    def source() -> Source:
        return Source("parquet", kept, path=folder)

    files[3].rename(tmp_path / "later")
    Source("parquet", kept, path=folder).plan({})
    older = (kept / "files.jsonl").read_bytes()
    (tmp_path / "later").rename(files[3])
    rows, ends = source().drain()
    assert rows == list(range(12))
    whole = (kept / "files.jsonl").read_bytes()
    shutil.move(files[0], tmp_path / "read")  # an input that was read may go
    places = [(ends[1], rows[4:]), (ends[-1], [])]  # in the middle of the second file, at the end
    outcomes = set()
    for start, rest in places:
        for what, damage in damages(kept / "files.jsonl", older):
            damage()
            good = survives(source, start, rest, [str(kept / "files.jsonl")])
            outcomes.add((what, good))
            if what in ("cut to nothing", "deleted"):
                assert not good, what
            if start == ends[-1]:
                assert good is (what == "more at its end"), what
            (kept / "files.jsonl").write_bytes(whole)
    assert ("of another time", True) in outcomes  # what it lacks was not begun, and is found again
    assert ("byte 7", False) in outcomes
    shutil.rmtree(kept)
    with pytest.raises(StateError, match=r"files.jsonl must tell the 3 files .* it is gone"):
        source().plan(ends[1])


def test_what_may_change_in_a_watched_folder(tmp_path: Path) -> None:
    folder, kept = tmp_path / "in", tmp_path / "kept"
    files = watched(folder)
    source = Source("parquet", kept, path=folder)
    at = source.plan({})
    assert source.read({}, at) == [0, 1, 2, 3]  # in the middle of the second file

    def refused(sentence: str, planned: Offset | None = None) -> None:
        for each in (source, Source("parquet", kept, path=folder)):
            with pytest.raises(DataError, match=sentence):
                each.plan(at) if planned is None else each.read(at, planned)

    whole, times = files[1].read_bytes(), files[1].stat()

    def back() -> None:
        files[1].write_bytes(whole)
        os.utime(files[1], ns=(times.st_atime_ns, times.st_mtime_ns))

    parquet(files[1], range(50, 53), 77)
    assert files[1].stat().st_size == len(whole)
    refused(rf"'{files[1]}' .* last written at 2023-.*\.123456789Z and now .*touch -d")
    parquet(files[1], range(50, 70), 1)
    refused(rf"'{files[1]}' .* had {len(whole)} bytes and has ")
    files[1].unlink()
    refused(rf"'{files[1]}' .* it is gone")
    back()
    end = source.plan(at)
    files[2].unlink()
    files[1].unlink()
    refused(rf"'{files[1]}' .* it is gone", end)  # the batch is planned, and planned again
    back()
    parquet(files[2], range(6, 9), 2)
    # what was wholly read may be changed or removed, and is not read a second time
    parquet(files[0], range(90, 99), 99)
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved, copy_function=shutil.copy2)
    assert Source("parquet", kept, path=folder).drain(at)[0] == list(range(4, 12))
    assert Source("parquet", kept, path=moved).drain(at)[0] == list(range(4, 12))
    (moved / files[0].name).unlink()
    link = tmp_path / "link"
    link.symlink_to(moved)
    assert Source("parquet", kept, path=link).drain(at)[0] == list(range(4, 12))
    shutil.rmtree(moved)
    with pytest.raises(DataError, match=f"'{link}' is gone"):
        Source("parquet", kept, path=link).plan(at)


# Replayed files


def csv(path: Path, first: int, last: int) -> Path:
    path.write_text("n,t\n" + "".join(f"{n},{n}\n" for n in range(first, last)))
    os.utime(path, ns=(1, 1_700_000_000_123_456_789))
    return path


@pytest.fixture
def replayed(tmp_path: Path) -> Path:
    """Three files of five rows each; after a batch of seven, the second is half read."""
    folder = tmp_path / "in"
    folder.mkdir()
    for at, name in enumerate("abc"):
        csv(folder / f"{name}.csv", 10 + 5 * at, 15 + 5 * at)
    return folder


def touched(path: Path) -> None:
    os.utime(path)


def edited(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2] + b"8\n")


def appended(path: Path) -> None:
    with open(path, "a") as file:
        file.write("99,99\n")


CHANGES: list[tuple[str, Callable[[Path], None], str, bool]] = [
    # the file, what happens to it, the sentence, whether a run that goes on sees it too
    ("b.csv", edited, r"last written at .* restore the time \(touch -d '2023", True),
    ("b.csv", appended, "had 34 bytes and has 40 now", True),
    ("b.csv", touched, r"cp -p", True),
    ("b.csv", Path.unlink, "it is gone", True),
    ("c.csv", edited, "last written at", True),
    ("c.csv", appended, "had 34 bytes and has 40 now", True),
    ("c.csv", Path.unlink, "it is gone", True),
    ("d.csv", lambda path: (csv(path, 0, 9), None)[1], "was added since", False),
    ("a2.csv", lambda path: (csv(path, 0, 9), None)[1], "was added since", False),
    ("a.csv", edited, "", True),
    ("a.csv", appended, "", True),
    ("a.csv", Path.unlink, "", True),
]


@pytest.mark.parametrize(("name", "change", "sentence", "at_once"), CHANGES)
def test_what_may_change_while_files_are_replayed(
    tmp_path: Path,
    replayed: Path,
    name: str,
    change: Callable[[Path], None],
    sentence: str,
    at_once: bool,
) -> None:
    def source() -> Source:
        return Source("replay", tmp_path / "kept", 7, path=replayed)

    running = source()
    at = running.plan({})
    assert running.read({}, at) == list(range(10, 17))
    change(replayed / name)
    if not sentence:
        assert source().drain(at)[0] == list(range(17, 25))
        assert running.drain(at)[0] == list(range(17, 25))
        if name == "a.csv":  # a batch that needs it again
            with pytest.raises(DataError, match=re.escape(str(replayed / name))):
                source().read({}, at)
        return
    with pytest.raises(DataError, match=f"'{re.escape(str(replayed / name))}' .*{sentence}"):
        source().drain(at)
    if at_once:
        with pytest.raises(DataError, match=f"'{re.escape(str(replayed / name))}' .*{sentence}"):
            running.drain(at)
    else:
        assert running.drain(at)[0] == list(range(17, 25))


def test_another_file_is_not_taken_for_the_one_that_was_begun(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", 10, 20)
    at = Source("replay", tmp_path / "kept", 7, path=path).plan({})
    other = tmp_path / "b.csv"
    shutil.copy2(path, other)
    with pytest.raises(DataError, match=rf"'{other}' was added since"):
        Source("replay", tmp_path / "kept", 7, path=other).plan(at)
    with pytest.raises(DataError, match=rf"'{other}' was added since"):
        Source("replay", tmp_path / "kept", 7, path=other).read({}, at)


def test_a_looped_replay_needs_all_its_files(tmp_path: Path, replayed: Path) -> None:
    source = Source("replay", tmp_path / "kept", 7, path=replayed, loop=2)
    at = source.plan({})
    edited(replayed / "a.csv")
    with pytest.raises(DataError, match=r"a.csv' .* last written at"):
        source.drain(at)


def test_after_its_end_a_replay_needs_nothing(tmp_path: Path, replayed: Path) -> None:
    kept = tmp_path / "kept"
    end = Source("replay", kept, 7, path=replayed).drain()[1][-1]
    (replayed / "a.csv").unlink()
    edited(replayed / "c.csv")
    assert Source("replay", kept, path=replayed).plan(end) == end
    csv(replayed / "d.csv", 0, 3)
    with pytest.raises(DataError, match=r"d.csv' was added since; move it away"):
        Source("replay", kept, path=replayed).plan(end)
    shutil.rmtree(kept)
    assert Source("replay", kept, path=replayed).plan(end) == end


@pytest.mark.parametrize("way", ["cp -p", "tar", "move", "symbolic link"])
def test_replayed_files_may_move(tmp_path: Path, replayed: Path, way: str) -> None:
    kept, there = tmp_path / "kept", tmp_path / "there"
    source = Source("replay", kept, 7, path=replayed)
    at = source.plan({})
    if way == "cp -p":
        shutil.copytree(replayed, there, copy_function=shutil.copy2)
    elif way == "tar":
        there.mkdir()
        archive = str(tmp_path / "a.tar")
        packed = ["tar", "--format=gnu", "-cf", archive, "-C", str(replayed), "."]
        subprocess.run(packed, check=True)
        subprocess.run(["tar", "-xf", archive, "-C", str(there)], check=True)
        assert (there / "b.csv").stat().st_mtime_ns % 10**9 == 0  # whole seconds only
    elif way == "move":
        replayed.rename(there)
    else:
        there.symlink_to(replayed)
    assert Source("replay", kept, 7, path=there).drain(at)[0] == list(range(17, 25))
    assert Source("replay", kept, 7, path=there).read({}, at) == list(range(10, 17))
    if way == "cp -p":  # the sentence says how to bring the time back
        touched(there / "b.csv")
        with pytest.raises(DataError, match="touch -d") as caught:
            Source("replay", kept, 7, path=there).plan(at)
        command = re.search(r"touch -d '[^']*' [^ ,]*", str(caught.value))
        assert command is not None
        subprocess.run(command[0], shell=True, check=True)
        assert Source("replay", kept, 7, path=there).drain(at)[0] == list(range(17, 25))


def test_the_list_of_a_replay_does_no_harm_whatever_happens_to_it(
    tmp_path: Path, replayed: Path
) -> None:
    kept = tmp_path / "kept"

    def source() -> Source:
        return Source("replay", kept, 7, path=replayed)

    rows, ends = source().drain()
    assert rows == list(range(10, 25))
    whole = (kept / "files.jsonl").read_bytes()
    for _, damage in damages(kept / "files.jsonl", b""):
        damage()
        assert survives(source, ends[1], rows[7:], [])
        assert (kept / "files.jsonl").read_bytes() == whole
    shutil.rmtree(kept)
    assert source().drain(ends[1])[0] == rows[7:]
    shutil.rmtree(kept)
    edited(replayed / "b.csv")
    with pytest.raises(DataError, match=rf"'{replayed}' must stay .* {kept}/files.jsonl is gone"):
        source().plan(ends[1])


def test_a_half_read_parquet_file_is_replaced(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", range(20))
    source = Source("replay", tmp_path / "kept", 7, path=path)
    at = source.plan({})
    (tmp_path / "other").write_bytes(flipped(path.read_bytes(), 30))
    os.replace(tmp_path / "other", path)
    with pytest.raises(DataError, match=r"a.parquet' .* last written"):
        source.plan(at)
    with pytest.raises(DataError, match=r"a.parquet' .* last written"):
        Source("replay", tmp_path / "kept", 7, path=path).plan(at)


# Files that change while a task reads them

SHRINKING = """
import os, sys
import pyarrow as pa
from penstock.catalog import StreamDef
from penstock.errors import DataError
from penstock.model import Field, Schema
from penstock.sources.formats import read_slice

path = sys.argv[1]
with open(path, "wb") as file:
    file.write(b"n,t\\n" + b"1,1\\n" * (20 << 20))
schema = Schema((Field("n", pa.int64()), Field("t", pa.int64())))
parts = read_slice(StreamDef("s", schema, "replay", {"path": path}, 1), path, 4, 80 << 20)
next(parts)
os.truncate(path, 100)
try:
    print(sum(part.table.num_rows for part in parts))
except DataError as error:
    print(error)
"""


def test_a_file_that_gets_shorter_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    command = [sys.executable, "-c", SHRINKING, str(path)]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told  # it was killed by SIGBUS when the file was mapped
    assert f"the file '{path}' must stay as it is" in told.stdout
    assert "it has become shorter" in told.stdout


def test_a_file_that_got_shorter_after_a_batch_was_planned(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", 10, 20)
    source = Source("replay", None, 7, path=path)
    end = source.plan({})
    os.truncate(path, 24)
    with pytest.raises(DataError, match=r"a.csv' must stay .* shorter"):
        source.read({}, end)
    path = parquet(tmp_path / "a.parquet", range(20))
    source = Source("replay", None, 7, path=path)
    end = source.plan({})
    parquet(path, range(5))
    with pytest.raises(DataError, match=r"a.parquet' must stay .* shorter"):
        source.read({}, end)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"a.parquet' of stream s must be"):
        source.read({}, end)


def test_a_file_that_is_replaced_while_it_is_read(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", range(1 << 19))
    source = Source("replay", None, 1 << 20, path=path)
    parts = read_slice(source.definition, str(path), 0, 1 << 19)
    found = next(parts).table["n"].to_pylist()
    os.replace(parquet(tmp_path / "b.parquet", range(5)), path)
    found += [n for part in parts for n in part.table["n"].to_pylist()]
    assert found == list(range(1 << 19))  # what is open stays


# Offsets that no batch can have ended at


def offsets_of(source: Source) -> list[Offset]:
    return source.drain()[1]


@pytest.fixture
def sources(tmp_path: Path, replayed: Path) -> dict[str, Callable[[], Source]]:
    pushed(tmp_path / "spool", 4)
    watched(tmp_path / "watched")
    return {
        "replay": lambda: Source("replay", tmp_path / "kept", 7, path=replayed),
        "memory": lambda: Source("memory", tmp_path / "spool"),
        "parquet": lambda: Source("parquet", tmp_path / "list", path=tmp_path / "watched"),
    }


@pytest.mark.parametrize("kind", ["replay", "memory", "parquet"])
def test_offsets_that_make_no_sense_are_refused(
    sources: dict[str, Callable[[], Source]], kind: str
) -> None:
    source = sources[kind]
    ends = offsets_of(source())
    assert len(ends) > 3

    def refused(start: Any, end: Any) -> None:
        expected = r"of stream s|the spool|the list of files"
        with pytest.raises((StateError, DataError), match=expected):
            source().reader.partitions(start, end)

    with pytest.raises(StateError, match=r"it goes from .* back to"):
        source().reader.partitions(ends[2], ends[1])
    with pytest.raises(StateError, match="a later batch has none"):
        source().reader.partitions(ends[2], {})
    for wrong in ({"s": {}}, {"s": 5}, [], {"s": {"ordinal": 3}}, {"s": {**ends[1]["s"], "x": 1}}):
        with pytest.raises(StateError, match="version of Penstock"):
            source().plan(wrong)
        with pytest.raises(StateError, match="version of Penstock"):
            source().reader.partitions({}, wrong)
    for name, value in ends[2]["s"].items():
        others: list[Any] = [None, "x", -7, 2**70, 1.5]
        if isinstance(value, str):
            others += [ends[1]["s"][name][::-1], 3]
        elif isinstance(value, list):
            ((file, at, row),) = value
            moved = [(file + 1, at, row), (file, at + 1, row), (file, at, row + 1), (file, 0, row)]
            others += [[], [[]], [[1, 2]], value * 2, [5], *([[*other]] for other in moved)]
        elif not isinstance(value, bool):
            others += [value + 1, value + 2, 10**6, True]
        for other in others:
            if name in Places.hints and type(other) is int and 0 <= other < 2**63:
                continue  # no answer depends on it
            refused(ends[1], {"s": {**ends[2]["s"], name: other}})
    assert source().read(ends[1], ends[2]) == source().read(ends[1], ends[2]) != []


def test_positions_of_the_version_before_are_refused(
    sources: dict[str, Callable[[], Source]],
) -> None:
    before: dict[str, Any] = {
        "replay": {
            "file": 1, "at": 14, "ordinal": 7, "round": 0, "shift": 0, "period": 0, "done": False,
            "files": "0123456789abcdef",
        },
        "memory": {"taken": 1, "ordinal": 3, "done": False},
        "parquet": {"file": 1, "row": 1, "ordinal": 4},
    }  # fmt: skip
    for kind, position in before.items():
        with pytest.raises(StateError, match="made by another version of Penstock"):
            sources[kind]().plan({"s": position})


def test_a_spool_of_the_version_before_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0000000000-2.arrow").write_bytes(b"")
    with pytest.raises(StateError, match=r"0000000000-2.arrow'; it was made by another version"):
        Source("memory", tmp_path).plan({})
    with pytest.raises(StateError, match="made by another version"):
        Spool(tmp_path, SCHEMA).push([(1, 1)])


# What is waiting


def test_the_backlog_of_damaged_inputs_is_not_known(tmp_path: Path) -> None:
    folder, kept = tmp_path / "in", tmp_path / "kept"
    files = watched(folder)
    source = Source("parquet", kept, path=folder)
    backlog = backlog_of(source.definition, str(kept))
    assert backlog.waiting(0, None) is None
    source.plan({})
    sizes = [path.stat().st_size for path in files]
    assert backlog.waiting(0, None) == Waiting(sum(sizes), "bytes")
    parquet(folder / "e.parquet", range(12, 15), 9)
    source.plan({})
    at_third: Offset = {"open": [], "begun": 2}
    left = backlog.waiting(6, at_third)
    assert left == Waiting(sum(sizes[2:]) + (folder / "e.parquet").stat().st_size, "bytes")
    whole = (kept / "files.jsonl").read_bytes()
    (kept / "files.jsonl").write_bytes(whole + b"garbage\n")
    assert backlog.waiting(6, at_third) is None
    assert backlog.waiting(6, at_third) is None
    (kept / "files.jsonl").write_bytes(whole)
    assert backlog.waiting(6, at_third) == left
    pushed(tmp_path / "spool")
    (tmp_path / "spool" / "head").write_bytes(b"")
    memory = Source("memory", tmp_path / "spool").definition
    assert backlog_of(memory, str(tmp_path / "spool")).waiting(0, None) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rows": 1e999}', '{"rows": -5}', "\x00\xff"])
def test_a_damaged_limit_does_no_harm(tmp_path: Path, replayed: Path, text: str) -> None:
    source = Source("replay", None, 7, path=replayed)
    limit = tmp_path / "admission.json"
    limit.write_text(text, encoding="latin-1")
    source.described["admission"] = str(limit)
    source.reader = source.open()
    assert source.drain()[0] == list(range(10, 25))


# On Spark

SUMS = """
CREATE STREAM s (n BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE SINK kept USING jsonl OPTIONS (path '{out}', changes 'intervals');
CREATE QUERY q INTO kept AS SELECT SUM(n) AS total FROM s;
"""


@pytest.mark.spark
def test_a_damaged_spool_ends_a_run_by_name(spark: Any, tmp_path: Path) -> None:
    text = SUMS.format(out=tmp_path / "out")
    checkpoint = tmp_path / "checkpoint"
    with Session(spark, checkpoint=checkpoint) as session:
        session.sql(text)
        session.push("s", [(1, 1), (2, 2)])
        session.await_idle()
    with Session(spark, checkpoint=checkpoint, autostart=False) as session:
        session.sql(text)
        session.push("s", [(3, 3)])
        session.push("s", [(4, 4)])
        session.finish("s")
    files = arrow_files(checkpoint / "spool" / "s")
    whole = files[-1].read_bytes()
    damaged = whole.replace((4).to_bytes(8, "little"), (9).to_bytes(8, "little"))
    assert damaged != whole

    def go_on() -> None:
        with Session(spark, checkpoint=checkpoint) as session:
            session.sql(text)
            assert session.await_end(timeout=100)

    files[-1].write_bytes(damaged)
    with pytest.raises(StateError, match=re.escape(files[-1].name)):
        go_on()
    files[-1].unlink()
    with pytest.raises(StateError, match=rf"file number {len(files) - 1} .* is gone"):
        go_on()
    files[-1].write_bytes(whole)
    go_on()
    answers = "".join(p.read_text() for p in sorted((tmp_path / "out").rglob("*.jsonl")))
    assert '"total": 10' in answers or '"total":10' in answers


@pytest.mark.spark
def test_a_lost_list_and_an_edited_file_end_a_run_by_name(
    spark: Any, tmp_path: Path, replayed: Path
) -> None:
    files = watched(tmp_path / "watched")
    text = f"""
    CREATE STREAM r (n BIGINT, t BIGINT) USING replay OPTIONS (path '{replayed}', rate '0.5')
      TIMESTAMP BY t;
    CREATE STREAM w (n BIGINT, t BIGINT) USING parquet OPTIONS (path '{tmp_path / "watched"}')
      TIMESTAMP BY t;
    CREATE SINK kept USING jsonl OPTIONS (path '{tmp_path / "out"}', changes 'intervals');
    CREATE QUERY q INTO kept AS SELECT n FROM r [NOW];
    CREATE QUERY p INTO kept AS SELECT n FROM w [NOW];
    """
    checkpoint = tmp_path / "checkpoint"

    def run(seconds: float) -> None:
        with Session(spark, checkpoint=checkpoint) as session:
            session.sql(text)
            session.await_end(timeout=seconds)

    with Session(spark, checkpoint=checkpoint) as session:
        session.sql(text)
        end, done = time.monotonic() + 120, None  # the batch that has read all that is watched
        while done is None or session.pipeline.manifest.batch == done:
            assert time.monotonic() < end
            if done is None and session.pipeline.observation.stream("w").rows == 12:
                done = session.pipeline.observation.batch
            time.sleep(0.05)
    kept = checkpoint / "spool" / "w" / "files.jsonl"
    whole = kept.read_bytes()
    kept.unlink()
    files[0].unlink()
    with pytest.raises(PenstockError) as caught:
        run(60)
    assert isinstance(root_cause(caught.value), StateError)
    assert f"the list of files {kept} must tell the 4 files" in str(caught.value)
    kept.write_bytes(whole)
    times = (replayed / "c.csv").stat()
    edited(replayed / "c.csv")
    with pytest.raises(DataError, match=rf"the file '{replayed / 'c.csv'}' of stream r must stay"):
        run(60)
    csv(replayed / "c.csv", 20, 25)
    os.utime(replayed / "c.csv", ns=(times.st_atime_ns, times.st_mtime_ns))
    run(1)


def test_pushed_text_that_is_not_utf8_is_a_sentence(tmp_path: Path) -> None:
    schema = Schema((Field("k", pa.string()), Field("t", pa.int64())))
    text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )
    large = text.view(pa.binary()).cast(pa.large_binary())
    for column in (text, large):
        with pytest.raises(DataError, match=r"column 'k' of row 0 must be STRING, got b'.xff.xfe'"):
            Spool(tmp_path / "spool", schema).push(pa.table({"k": column, "t": [1]}))
