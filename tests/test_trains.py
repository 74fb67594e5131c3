"""Trains: the rows of a batch go through a stage in pieces by time, and no answer changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.model import INF, Batch, Ends
from penstock.physical import trains as module
from penstock.physical.fragment import Fragment
from penstock.physical.trains import Trains
from penstock.queues.stored import Queue, Stored
from penstock.testing import Rig


def rows(*starts: int, holder: int = 0) -> Batch:
    values = pa.array([str(start) for start in starts])
    return Batch.of([values], starts, holder=[holder] * len(starts))


def all_of(trains: Trains, held: int = 0) -> list[tuple[list[Any], dict[int, int]]]:
    found = []
    while (train := trains.next()) is not None:
        told = []
        for channel, message in train.messages:
            told.append((channel, message.start.tolist() if isinstance(message, Batch) else "ends"))
        found.append((told, dict(train.beats)))
        assert train.last == (train.beats is trains._beats)
        trains.used(held)
    return found


def test_a_train_has_the_rows_below_its_heartbeat() -> None:
    messages = [(0, rows(5, 1, 9)), (1, rows(2, 2, 7, 30)), (0, rows(4))]
    assert all_of(Trains(messages, {0: 20, 1: 10}, (), rows=3, memory=1)) == [
        ([(0, [1]), (1, [2, 2])], {0: 4, 1: 4}),
        ([(0, [5]), (1, [7]), (0, [4])], {0: 9, 1: 9}),
        ([(0, [9]), (1, [30])], {0: 20, 1: 10}),
    ]


def test_rows_of_one_instant_are_never_parted() -> None:
    assert all_of(Trains([(0, rows(3, 3, 3, 3, 8))], {0: INF}, (), rows=1, memory=1)) == [
        ([(0, [3, 3, 3, 3])], {0: 8}),
        ([(0, [8])], {0: INF}),
    ]


def test_rows_whose_ends_are_told_come_first_and_tables_are_complete() -> None:
    told = Ends(np.array([7]), np.array([4]))
    messages: list[Any] = [(0, rows(1, 5, holder=7)), (0, told), (1, rows(1, 6)), (0, rows(3))]
    found = all_of(Trains(messages, {0: 9, 1: 9, 2: INF}, {2}, rows=1, memory=1))
    assert found[0] == ([(0, [1, 5]), (0, "ends"), (0, [3]), (1, [1])], {0: 6, 1: 6, 2: INF})
    assert found[1:] == [([(1, [6])], {0: 9, 1: 9, 2: INF})]


def test_a_small_batch_is_one_train() -> None:
    messages = [(0, rows(*range(100)))]
    assert len(all_of(Trains(messages, {0: 100}, (), rows=0, memory=1))) == 1
    assert len(all_of(Trains([], {0: 100}, (), rows=1, memory=1))) == 1
    assert len(all_of(Trains(messages, {0: 0}, (), rows=1, memory=1))) == 1  # all wait


def test_trains_grow_and_shrink_with_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_ROWS", 1)
    monkeypatch.setattr(module, "SMALL_ROWS", 1)

    def sizes(held: int) -> list[int]:
        found = all_of(Trains([(0, rows(*range(15)))], {0: INF}, (), 0, memory=100), held)
        return [len(told[0][1]) for told, _ in found]

    assert sizes(held=50) == [1, 2, 4, 8]
    assert sizes(held=80) == [1] * 15
    trains = Trains([(0, rows(*range(15)))], {0: INF}, (), 0, memory=100)
    seen = []
    for held in (0, 0, 200, 1000, 1000):
        train = trains.next()
        assert train is not None
        seen.append(sum(len(m) for _, m in train.messages if isinstance(m, Batch)))
        trains.used(held)
    assert seen == [1, 2, 4, 2, 1]


def test_queues_know_rows_and_bytes() -> None:
    queue = Queue()
    queue.put(Stored(rows(1, 2, 3), 0))
    queue.put(Stored(rows(4), 1))
    assert (len(queue), queue.rows) == (2, 4)
    assert queue.bytes == rows(1, 2, 3).nbytes + rows(4).nbytes > 4 * 24
    queue.take()
    queue.take()
    assert (len(queue), queue.rows, queue.bytes) == (0, 0, 0)


def test_a_message_is_stored_once_and_freed_by_its_last_reader() -> None:
    one, other = Queue(), Queue(columns=[0])
    stored = Stored(rows(1, 2, 3), 5)
    one.put(stored)
    other.put(stored)
    assert (stored.readers, one.train) == (2, 5)
    taken = []
    while len(one):
        message, same = one.take(most=2)
        assert same is (None if len(one) else stored)
        assert isinstance(message, Batch)
        taken.append(message.start.tolist())
    assert taken == [[1, 2], [3]]
    assert (stored.readers, one.bytes, other.rows, other.bytes) == (1, 0, 3, stored.bytes)
    message, _ = other.take()
    assert isinstance(message, Batch)
    assert message.columns[0].to_pylist() == ["1", "2", "3"]
    assert stored.readers == 0


SCRIPT = """
    CREATE STREAM a (k INT, v INT, t BIGINT) USING memory TIMESTAMP BY t;
    CREATE STREAM b (k INT, v INT, t BIGINT) USING memory TIMESTAMP BY t;
    CREATE QUERY sums AS SELECT a.k, COUNT(*) AS n, SUM(a.v * b.v) AS s
      FROM a [RANGE 20] JOIN b [RANGE 20] ON a.k = b.k GROUP BY a.k;
    CREATE QUERY best AS SELECT a.k, a.v FROM a [ROWS 30] ORDER BY v DESC LIMIT 2;
"""


@pytest.mark.parametrize("lifetime", ["direct", "negative"])
def test_what_a_join_makes_never_waits_as_a_whole(
    lifetime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    close = Fragment.close

    def watched(self: Fragment) -> dict[str, Any]:
        held.append(self.held.peak)
        return close(self)

    monkeypatch.setattr(Fragment, "close", watched)
    most = {}
    for train in (1, 7, 1000):
        held.clear()
        rig = Rig(SCRIPT, settings={"train.rows": train, "lifetime": lifetime}, shards=2)
        for stream in ("a", "b"):
            rig.feed(stream, [(t % 2, t % 5, t) for t in range(120)])
        rig.end()
        rig.assert_oracle()
        most[train] = max(held)
    assert 3 * most[1] < 2 * most[7] < most[1000]


def test_what_does_not_fit_between_operators_waits_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, int]] = []
    close = Fragment.close

    def watched(self: Fragment) -> dict[str, Any]:
        found.append((self.held.peak, self._overflow.written if self._overflow else 0))
        return close(self)

    monkeypatch.setattr(Fragment, "close", watched)
    script = """
        CREATE STREAM a (k INT, v STRING, t BIGINT) USING memory TIMESTAMP BY t;
        CREATE STREAM b (k INT, v STRING, t BIGINT) USING memory TIMESTAMP BY t;
        CREATE QUERY pairs AS SELECT a.k, MAX(a.v || b.v) AS s
          FROM a [RANGE 2000] JOIN b [RANGE 2000] ON a.k = b.k GROUP BY a.k;
    """
    answers, peaks, written = [], [], []
    for lifetime in ("direct", "negative"):
        for scheduler, memory in (("fifo", 1 << 30), ("topological", 1 << 20)):
            settings = {"scheduler": scheduler, "stage.memory": memory, "train.rows": 40}
            rig = Rig(script, settings=settings | {"lifetime": lifetime, "block.rows": 500})
            for stream in ("a", "b"):
                rig.feed(stream, [(0, f"{t:030}", t) for t in range(300)])
            rig.end()
            answers.append(sorted(rig.rows("pairs"), key=repr))
            peaks.append(max(peak for peak, _ in found))
            written.append(sum(some for _, some in found))
            found.clear()
    assert all(answer == answers[0] for answer in answers)
    assert written[0] == written[2] == 0
    assert min(written[1], written[3]) > 4 << 20
    assert max(peaks[1], peaks[3]) <= 1 << 20


def test_trains_follow_what_an_operator_makes_however_little_of_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[int] = []
    used = Trains.used

    def watched(self: Trains, held: int) -> None:
        told.append(held)
        used(self, held)

    monkeypatch.setattr(Trains, "used", watched)
    rig = Rig(SCRIPT, settings={"train.rows": 60, "block.rows": 5})
    for stream in ("a", "b"):
        rig.feed(stream, [(0, t % 5, t) for t in range(120)])
    rig.end()
    pairs = 60 * 20  # of a train, at least: each row meets those of twenty instants
    assert max(told) > 24 * pairs
