"""Temporary folders: for their owner only, gone with the process, swept when it was killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

HOLD = """
import sys
from penstock.temporary import new_folder
print(new_folder("checkpoint"), flush=True)
sys.stdin.read()
"""

RACE = """
import os, sys
from penstock.temporary import own_folder
for _ in range(40):
    child = os.fork()
    if child == 0:
        folder = own_folder()
        (folder / "mine").touch()
        sound = all((folder / name).exists() for name in ("mine", "lock") for _ in range(20))
        os._exit(0 if sound else 1)
    if os.waitpid(child, 0)[1]:
        sys.exit("a folder was swept while its process lived")
"""


def start(tmp: Path, text: str = HOLD) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text],
        env={**os.environ, "TMPDIR": str(tmp)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def folder_of(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def own_folders(tmp: Path) -> set[Path]:
    return {p for p in (tmp / f"penstock-{os.getuid()}").iterdir() if p.name != "lock"}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_of_a_process_goes_with_it(tmp_path):
    process = start(tmp_path)
    folder = folder_of(process)
    assert folder.parent.parent == tmp_path / f"penstock-{os.getuid()}"
    assert [mode(p) for p in (folder, folder.parent, folder.parent.parent)] == [0o700] * 3
    process.communicate()
    assert own_folders(tmp_path) == set()


def test_folders_of_the_dead_are_swept_and_others_are_not(tmp_path):
    killed, living = start(tmp_path), start(tmp_path)
    left, kept = folder_of(killed), folder_of(living)
    (left / "deep").mkdir()
    (left / "deep" / "file").touch()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (left / "jars").symlink_to(outside)
    parent = left.parent.parent
    unfinished = parent / "1-0123456789ab"
    unfinished.mkdir()
    (parent / "something else").mkdir()
    (parent / "2-0123456789ab").symlink_to(outside)
    killed.kill()
    killed.wait()
    assert left.exists()
    after = start(tmp_path)
    folder_of(after)
    assert not left.parent.exists()
    assert not unfinished.exists()
    assert kept.exists()
    assert (parent / "something else").exists()
    assert (outside / "precious").exists()
    after.communicate()
    living.communicate()
    assert not kept.exists()


def test_a_name_that_others_have_taken_is_not_used(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for taken in ("link", "open"):
        tmp = tmp_path / taken
        tmp.mkdir()
        name = tmp / f"penstock-{os.getuid()}"
        if taken == "link":
            name.symlink_to(elsewhere)
        else:
            name.mkdir()
            name.chmod(0o777)
        process = start(tmp)
        folder = folder_of(process)
        assert name not in folder.parents
        assert mode(folder.parent.parent) == 0o700
        process.communicate()
        assert list(name.iterdir()) == []


def test_many_processes_that_start_at_once(tmp_path):
    """Children end without removing their folders, so that every start has some to sweep."""
    processes = [start(tmp_path, RACE) for _ in range(4)]
    assert [p.wait(120) for p in processes] == [0] * 4
    start(tmp_path).communicate()
    assert own_folders(tmp_path) == set()


def descendants(process: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(place.parent.name))
    found, todo = [], [process]
    while todo:
        new = children.get(todo.pop(), [])
        found += new
        todo += new
    return found


@pytest.mark.spark
@pytest.mark.parametrize("whole", [False, True], ids=["driver", "driver and Java"])
def test_a_killed_run_leaves_nothing_after_the_next_start(tmp_path, whole):
    data = tmp_path / "in.csv"
    data.write_text("k,t\na,1\nb,2\n")
    script = tmp_path / "a.sql"
    script.write_text(f"""
        CREATE STREAM s (k STRING, t BIGINT) USING replay
          OPTIONS (path '{data}', rate '1', loop 'true') TIMESTAMP BY t;
        CREATE SINK nowhere USING jsonl OPTIONS (path '{tmp_path}/out');
        CREATE QUERY q INTO nowhere AS ISTREAM (SELECT k FROM s [NOW]);
    """)
    tmp = tmp_path / "a b"
    tmp.mkdir()
    command = [Path(sys.executable).with_name("penstock"), "run", script]
    running = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(tmp)},
        stdout=(tmp_path / "output").open("w"),
        stderr=subprocess.STDOUT,
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "out").glob("*.jsonl")) and time.monotonic() < deadline:
        assert running.poll() is None, (tmp_path / "output").read_text()
        time.sleep(0.1)
    family = descendants(running.pid)
    assert len(family) >= 2
    running.kill()
    for process in family if whole else ():
        with suppress(ProcessLookupError):  # some end by themselves meanwhile
            os.kill(process, signal.SIGKILL)
    running.wait()
    while any(Path(f"/proc/{p}").exists() for p in family) and time.monotonic() < deadline:
        time.sleep(0.1)
    (left,) = own_folders(tmp)
    assert any(left.glob("checkpoint-*"))
    process = start(tmp)
    folder = folder_of(process)
    assert own_folders(tmp) == {folder.parent}
    process.communicate()
    assert own_folders(tmp) == set()
    assert {p.name for p in tmp.iterdir()} == {f"penstock-{os.getuid()}"}
