"""Rows that tasks of one machine exchange through files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import StateError
from penstock.physical.parcels import BEAT, REPORT_STAGE, ROWS, Parcel
from penstock.physical.shared_files import AWAY, LEAST_BYTES, receive, send, share_states, states_of

LARGE = bytes(range(256)) * (LEAST_BYTES // 256 + 1)


def test_what_is_sent_is_received(tmp_path: Path) -> None:
    sent = [
        Parcel(0, 0, 3, ROWS, LARGE + b"odd"),
        Parcel(0, 1, -1, BEAT, b"small"),
        Parcel(0, 1, 4, ROWS, pa.py_buffer(LARGE)),
    ]
    away = list(send(sent, str(tmp_path), "7-pack"))
    assert [p.kind for p in away] == [ROWS + AWAY, BEAT, ROWS + AWAY]
    assert sum(len(p.blob) for p in away) < 300
    [file] = tmp_path.iterdir()
    assert file.name.startswith("7-pack-")
    back = list(receive(away, str(tmp_path), 0))
    assert [(p.shard, p.channel, p.kind, bytes(p.blob)) for p in back] == [
        (p.shard, p.channel, p.kind, bytes(p.blob)) for p in sent
    ]
    assert all(memoryview(p.blob).readonly for p in back)
    assert [p.mapped for p in back] == [True, False, True]
    file.unlink()
    assert bytes(back[0].blob) == LARGE + b"odd"  # what is mapped outlives its name


def test_parcels_of_later_stages_pass_as_they_are(tmp_path: Path) -> None:
    away = list(send([Parcel(2, 0, 0, ROWS, LARGE)], str(tmp_path), "0-pack"))
    passed = list(send(receive(away, str(tmp_path), 1), str(tmp_path), "0-1-0"))
    assert passed == away
    assert len(list(tmp_path.iterdir())) == 1
    [back] = receive(passed, str(tmp_path), 2)
    assert bytes(back.blob) == LARGE


def test_small_parcels_and_reports_make_no_file(tmp_path: Path) -> None:
    sent = [Parcel(0, 0, 0, ROWS, b"x" * (LEAST_BYTES - 1)), Parcel(REPORT_STAGE, 0, -1, 3, LARGE)]
    assert list(send(sent, str(tmp_path), "0-pack")) == sent
    assert not list(tmp_path.iterdir())


def test_a_failing_task_leaves_no_file(tmp_path: Path) -> None:
    def failing():
        yield Parcel(0, 0, 0, ROWS, LARGE)
        raise ValueError("bad row")

    with pytest.raises(ValueError, match="bad row"):
        list(send(failing(), str(tmp_path), "0-pack"))
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    away = list(send([Parcel(0, 0, 0, ROWS, LARGE)], str(tmp_path), "0-pack"))
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(StateError, match=r"must be readable until its batch is done"):
        list(receive(away, str(tmp_path), 0))


def test_a_task_reads_the_states_of_its_shard_only(tmp_path: Path) -> None:
    states = [{"node": {"numbers": {"holders": n}, "runs": {}}} for n in range(300)]
    states[7] = {}
    name = share_states(str(tmp_path / "new"), 3, iter(states))
    assert [states_of(str(tmp_path / "new"), name, n) for n in range(300)] == states
    assert name.endswith(".exchange")  # such files are swept after their batch
    assert (tmp_path / "new" / name).stat().st_mode & 0o077 == 0


def test_states_that_are_not_there_are_refused(tmp_path: Path) -> None:
    name = share_states(str(tmp_path), 0, [{}, {"node": {"numbers": {}, "runs": {}}}])
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-3])
    assert states_of(str(tmp_path), name, 0) == {}
    with pytest.raises(StateError, match="get their states, must be readable"):
        states_of(str(tmp_path), name, 1)
    (tmp_path / name).unlink()
    with pytest.raises(StateError, match="nothing is lost: run the same command again"):
        states_of(str(tmp_path), name, 0)
