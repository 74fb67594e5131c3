"""The inbox of an operator: what a slice holds, what waits, and where messages are told apart."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.model import INF, MIN_TIME, Batch, Ends, Heartbeat, Message
from penstock.operators import inbox as module
from penstock.operators.base import Operator
from penstock.operators.inbox import Heartbeats, Inbox, Slice
from penstock.runs.state import MemoryStorage, State

OPERATORS = Path(__file__).parent.parent / "src" / "penstock" / "operators"
TYPES = (pa.int64(),)
MESSAGES = {"Batch", "Ends", "Heartbeat", "Message"}


def rows(*starts: int, end: int = INF, holder: int = 0) -> Batch:
    return Batch.of(
        [pa.array(starts, pa.int64())], starts, [end] * len(starts), [holder] * len(starts)
    )


def ends(**told: int) -> Ends:
    pairs = sorted((int(holder[1:]), end) for holder, end in told.items())
    return Ends(*(np.array(numbers, np.int64) for numbers in zip(*pairs, strict=True)))


def starts(part: Slice, port: int = 0) -> list[int]:
    return part.rows[port].start.tolist()


def again(inbox: Inbox, state: State, ports: int = 1, whole: bool = False) -> Inbox:
    """Save an inbox and open it in the next micro-batch."""
    inbox.save()
    described = json.loads(json.dumps(state.describe()))
    return Inbox(State(state.storage, described), [TYPES] * ports, whole)


def test_a_slice_holds_what_happens_below_until_and_the_rest_waits_from_batch_to_batch():
    state = State(MemoryStorage())
    inbox = Inbox(state, [TYPES], whole=False)
    inbox.put_rows(0, rows(1, 7, 3))
    inbox.put_rows(0, rows(2))
    inbox.put_ends(0, ends(h4=4, h9=9))
    assert inbox.progress(0, 5) == 5
    first = inbox.take(5)
    assert (first.since, first.until) == (MIN_TIME, 5)
    assert [part.start.tolist() for part in first.parts[0]] == [[1, 3], [2]]
    assert starts(first) == [1, 3, 2]
    assert first.ends[0].holder.tolist() == [4]
    inbox.since = 5
    inbox = again(inbox, state)
    assert inbox.since == 5
    assert inbox.progress(0, 2) == 5, "a heartbeat never goes back"
    second = inbox.take(INF)
    assert (second.since, starts(second)) == (5, [7])
    assert second.ends[0].holder.tolist() == [9]


def test_what_waits_is_written_in_runs_of_some_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUN_ROWS", 3)
    state = State(MemoryStorage())
    inbox = Inbox(state, [TYPES], whole=True)
    for some in ((8, 7), (6,), (5, 4, 3, 2), (1,)):
        inbox.put_rows(0, rows(*some))
        inbox.put_rows(0, replace(rows(*some, end=9, holder=some[0]), minus=True))
    inbox = again(inbox, state, whole=True)
    assert [len(run) for run in state.runs("waiting.0")] == [3, 4, 1]
    assert [len(run) for run in state.runs("minus.0")] == [3, 4, 1]
    found = inbox.take(INF)
    assert starts(found) == [8, 7, 6, 5, 4, 3, 2, 1]
    deaths = found.deaths(0)
    assert deaths is not None
    assert sorted(deaths.died().start.tolist()) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_the_slowest_port_says_how_far_an_operator_is():
    inbox = Inbox(State(MemoryStorage()), [TYPES, TYPES], whole=False)
    inbox.put_rows(0, rows(1, 20))
    inbox.put_rows(1, rows(4, 6))
    assert inbox.progress(0, INF) == MIN_TIME
    assert inbox.progress(1, 5) == 5
    part = inbox.take(5)
    assert [starts(part, port) for port in (0, 1)] == [[1], [4]]
    assert not inbox.exhausted(0), "row 20 waits"
    assert not inbox.exhausted(1)
    inbox.take(INF)
    assert inbox.exhausted(0)


def test_a_slice_without_rows_has_empty_batches_of_the_right_types():
    part = Inbox(State(MemoryStorage()), [TYPES, (pa.string(),)], whole=False).take(3)
    assert part.parts == [[], []]
    assert [[c.type for c in b.columns] for b in part.rows] == [[pa.int64()], [pa.string()]]
    assert part.deaths(0) is None


def test_rows_that_were_told_before_they_start_do_not_wait():
    inbox = Inbox(State(MemoryStorage()), [TYPES], whole=False)
    inbox.put_rows(0, rows(1, 8, holder=3))
    inbox.put_ends(0, ends(h3=4))
    assert starts(inbox.take(5)) == [1]
    assert starts(inbox.take(INF)) == []


def test_rows_are_taken_ahead_of_time_but_ends_are_not():
    inbox = Inbox(State(MemoryStorage()), [TYPES], whole=False)
    inbox.put_rows(0, rows(1, 8))
    inbox.put_ends(0, ends(h1=4, h2=9))
    part = inbox.take(5, ahead=True)
    assert starts(part) == [1, 8]
    assert part.ends[0].holder.tolist() == [1]
    assert inbox.take(INF).ends[0].holder.tolist() == [2]


def test_negative_tuples_are_ends_or_whole_rows_and_late_deaths_wait():
    dying = Batch.of([pa.array([10, 20])], [1, 2], [4, 9], [5, 6])
    for whole in (False, True):
        state = State(MemoryStorage())
        inbox = Inbox(state, [TYPES], whole)
        inbox.put_rows(0, replace(dying, minus=True))
        inbox = again(inbox, state, whole=whole)
        for until, holder, value in ((5, 5, 10), (INF, 6, 20)):
            part = inbox.take(until)
            assert starts(part) == []
            assert part.ends[0].holder.tolist() == [holder]
            deaths = part.deaths(0)
            assert (deaths is not None) == whole
            if deaths is not None:
                assert deaths.died().columns[0].to_pylist() == [value]
                assert deaths.died().minus


def test_nothing_is_written_for_a_port_that_heard_nothing():
    state = State(MemoryStorage())
    inbox = Inbox(state, [TYPES], whole=False)
    inbox.put_rows(0, rows(8))
    inbox.save()
    before = state.describe()["runs"]
    described = State(state.storage, json.loads(json.dumps(state.describe())))
    Inbox(described, [TYPES], whole=False).save()
    assert described.describe()["runs"] == before


def test_heartbeats_are_saved_and_never_go_back():
    state = State(MemoryStorage())
    heard = Heartbeats(state, 2)
    assert heard.least == MIN_TIME
    heard.hear(0, 7)
    assert heard.hear(1, 4) == 4
    assert heard.hear(1, 2) == 4
    heard.save()
    heard = Heartbeats(state, 2)
    assert heard.least == 4
    assert heard.hear(1, INF) == 7
    assert heard.over(1)
    assert not heard.over(0)


class Twice(Operator):
    """Says only what it does with rows."""

    def on_rows(self, port: int, rows: Batch) -> Iterable[Message]:
        return (rows, rows)


def test_what_an_operator_does_not_speak_of_passes_through_it():
    operator, told = Twice(), ends(h1=4)
    assert list(operator.receive(0, told)) == [told]
    assert list(operator.receive(0, Heartbeat(7))) == [Heartbeat(7)]
    assert len(list(operator.receive(0, rows(1)))) == 2


def test_messages_are_told_apart_in_one_place():
    """Only `Operator.receive` asks what kind a message is."""
    found = []
    for path in sorted(OPERATORS.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                kinds = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                found += [path.name] * bool(kinds & MESSAGES)
    assert found == ["base.py", "base.py", "base.py"]
