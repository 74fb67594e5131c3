"""Static tables: in chunks through every operator, in bounded memory, with and without validity."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.algebra import Join, Node, TableScan, Window
from penstock.expr.nodes import Column
from penstock.model import INF, MIN_TIME, Batch, Heartbeat
from penstock.operators import join as join_module
from penstock.operators.base import Context
from penstock.operators.join import JoinSpec
from penstock.reference import Inputs, accept
from penstock.runs import mappings
from penstock.runs.segments import SegmentStorage, forget_deleted, read_segment
from penstock.runs.state import MemoryStorage, State
from penstock.runs.table_rows import TableRows
from penstock.testing import run_local
from penstock.windows import WindowSpec
from tests import strategies as make
from tests.comparison import check_answer
from tests.examples import examples
from tests.strategies import SCANS, Data

ORACLE = settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
        HealthCheck.function_scoped_fixture,
    ],
)
LONG, STRING = pa.int64(), pa.string()


@pytest.fixture
def tiny_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every chunk of a table becomes a run of its own."""
    monkeypatch.setattr(join_module, "_TABLE_RUN", 1 << 60)


def check(plan: Node, data: Data, **options: Any) -> None:
    answers = run_local({"q": plan}, data.streams, data.tables, slack=data.slack, **options)
    seen = {name: accept(rows, data.slack)[0] for name, rows in data.streams.items()}
    check_answer(plan, answers["q"], Inputs(seen, data.tables))


# Through every operator


@st.composite
def static(draw: Any) -> Node:
    """A table, at times selected or projected."""
    node = draw(make.tables())
    for operator in draw(st.lists(st.sampled_from([make.filters, make.projects]), max_size=2)):
        node = draw(operator(st.just(node)))
    return node


def hostile() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "merge.strategy": st.sampled_from(["greedy", "always", "never"]),
            "join.buffer": st.sampled_from(["auto", "input", "output"]),
            "block.rows": st.sampled_from([2, 1 << 18]),
            "lifetime": st.sampled_from(["direct", "negative"]),
        }
    )


@pytest.mark.usefixtures("tiny_runs")
@pytest.mark.parametrize("operator", make.OPERATORS[:-1], ids=lambda f: f.__name__)
@ORACLE
@given(st.data())
def test_consumers_of_tables(operator: Any, source: Any) -> None:
    plan = source.draw(operator(static()))
    data = source.draw(make.data())
    check(
        plan,
        data,
        cuts=source.draw(make.cuts()),
        shards=source.draw(st.sampled_from([1, 3])),
        table_rows=source.draw(st.integers(1, 3)),
        settings=source.draw(hostile()),
    )


@pytest.mark.usefixtures("tiny_runs")
@settings(ORACLE, max_examples=examples(150))
@given(st.data())
def test_joins_of_windows_and_tables(source: Any) -> None:
    """Every window, the table on either side, and joins of such joins."""
    plan = source.draw(make.sources())
    for _ in range(source.draw(st.integers(1, 2))):
        table = source.draw(static())
        left, right = (plan, table) if source.draw(st.booleans()) else (table, plan)
        kinds = [k for k in (STRING, LONG) if source.draw(st.booleans())]
        pairs = [
            tuple(make.columns_of_type(side.schema, kind)[:1] for side in (left, right))
            for kind in kinds
        ]
        keys = [(a[0], b[0]) for a, b in pairs if a and b]
        plan = Join(left, right, tuple(a for a, _ in keys), tuple(b for _, b in keys), None)
    check(
        plan,
        source.draw(make.data()),
        cuts=source.draw(make.cuts()),
        shards=source.draw(st.sampled_from([1, 3])),
        table_rows=source.draw(st.integers(1, 3)),
        settings=source.draw(hostile()),
    )


KEYED = make.schema_of(k=LONG, x=LONG, since=LONG, until=LONG)


@pytest.mark.parametrize("valid", [(None, None), (2, None), (None, 3), (2, 3)])
@pytest.mark.parametrize("side", [0, 1])
def test_many_chunks_against_an_independent_computation(
    valid: tuple[int | None, int | None], side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 rows in 80 chunks and many runs; what starts, starts all along the stream."""
    monkeypatch.setattr(join_module, "_TABLE_RUN", (256 << 20) // 50_000)
    dice = np.random.default_rng(3)
    rows = 20_000
    since, length = dice.integers(-50, 400, rows), dice.integers(-5, 200, rows)
    key, x = dice.integers(0, 700, rows), np.arange(rows)
    table = list(zip(*(c.tolist() for c in (key, x, since, since + length)), strict=True))
    times = np.sort(dice.integers(0, 400, 600))
    stream_key = dice.integers(0, 800, 600)
    pairs = zip(stream_key.tolist(), times.tolist(), strict=True)
    stream = [((None, k, None, t), t) for k, t in pairs]
    window = Window(SCANS["s"], WindowSpec(range=40))
    scan = TableScan("d", KEYED, *valid)
    inputs, keys = (window, scan), ((Column(1, LONG),), (Column(0, LONG),))
    if side == 0:
        inputs, keys = inputs[::-1], keys[::-1]
    plan = Join(*inputs, *keys, None)
    answers = run_local({"q": plan}, {"s": stream}, {"d": table}, cuts=7, shards=2, table_rows=250)
    at = 0 if side == 0 else 4
    found = sorted((v[at + 1], v[3 if side else 7], a, b) for v, a, b in answers["q"])
    start = since if valid[0] is not None else np.full(rows, MIN_TIME)
    end = since + length if valid[1] is not None else np.full(rows, INF)
    expected = []
    for k, t in zip(stream_key.tolist(), times.tolist(), strict=True):
        for i in np.flatnonzero(key == k).tolist():
            first, last = max(int(start[i]), t), min(int(end[i]), t + 40)
            if first < last and start[i] < end[i]:
                expected.append((int(x[i]), t, first, last))
    assert found == sorted(expected)
    assert len(expected) > 1000


# Rows that start later


def test_rows_are_handed_on_in_order_of_start_and_in_small_parts() -> None:
    dice = np.random.default_rng(5)
    state = State(MemoryStorage())
    stored: list[Batch] = []
    rows = TableRows(state, "later", 4000, stored.append)
    start = dice.integers(0, 60, 5000)
    start[dice.random(5000) < 0.2] = MIN_TIME
    start[dice.random(5000) < 0.3] = 33  # many at one instant
    for first in range(0, 5000, 90):
        part = start[first : first + 90]
        rows.add(Batch.of([pa.array(np.arange(first, first + len(part)))], part))
    rows.flush()
    assert sum(map(len, stored)) == (start == MIN_TIME).sum()
    assert len(rows) == (start != MIN_TIME).sum()
    seen: list[int] = []
    for until in (MIN_TIME, 10, 10, 40, INF):
        latest = MIN_TIME
        for batch in rows.starting(until):
            assert 0 < len(batch) <= 500
            assert batch.start.min() >= latest
            assert batch.start.max() < until
            latest = batch.start.max()
            seen += batch.columns[0].to_pylist()
        waiting = (start[start != MIN_TIME] >= until).sum() if until < INF else 0
        assert len(rows) == waiting
    assert sorted(seen) == np.flatnonzero(start != MIN_TIME).tolist()


def test_a_table_that_has_come_leaves_no_rows_of_the_stream() -> None:
    """While rows of the table still start, the stream's are kept; then they pass through."""
    kinds = (STRING, LONG)
    storage, description, kept = MemoryStorage(), None, []
    for beat in (10, 30):
        state = State(storage, description)
        joined = JoinSpec(kinds, kinds, (Column(0, STRING),), (Column(0, STRING),), None).build()
        joined.open(Context(state, tables=frozenset({1})))
        if beat == 10:
            table = Batch.of((pa.array(["a", "a"]), pa.array([1, 2])), [MIN_TIME, 20])
            assert not list(joined.receive(1, table))
        list(joined.receive(1, Heartbeat(INF)))
        rows = Batch.of((pa.array(["a"]), pa.array([beat])), [beat - 7])
        list(joined.receive(0, rows))
        said = [m for m in joined.receive(0, Heartbeat(beat)) if isinstance(m, Batch)]
        kept.append(sorted(s for m in said for s in m.start.tolist()))
        joined.close()
        description = state.describe()
        assert ("left" in description["runs"]) == (beat == 10)
    assert kept == [[3], [20, 23, 23]]


# Resident memory


def statistics() -> int:
    found = mappings.resident_file_bytes()
    if found is None or not hasattr(mmap, "MADV_DONTNEED"):
        pytest.skip("this system does not tell what is resident")
    return found


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A segment of 8 runs of 8 MB."""
    with SegmentStorage(str(tmp_path), "0-0", fsync=False) as storage:
        places = [storage.write(pa.table({"x": np.full(1 << 20, i)})) for i in range(8)]
    yield str(tmp_path), places
    gc.collect()


def test_pages_are_given_back_and_come_back(segment: tuple[str, list[dict[str, Any]]]) -> None:
    folder, places = segment
    before = statistics()
    tables = [read_segment(folder, place) for place in places]
    assert statistics() - before < 16 << 20  # checked, and given back
    columns = [table.column(0).chunk(0).to_numpy() for table in tables]
    assert [int(c.sum()) for c in columns] == [i << 20 for i in range(8)]
    assert statistics() - before > 60 << 20
    mappings.release()
    assert statistics() - before < 8 << 20
    assert [int(c.sum()) for c in columns] == [i << 20 for i in range(8)]


def test_pages_are_given_back_beyond_a_limit(segment: tuple[str, list[dict[str, Any]]]) -> None:
    folder, places = segment
    mappings.release_beyond(0)
    before = statistics()
    highest = 0
    for place in places * 2:
        read_segment(folder, place).column(0).chunk(0).to_numpy().sum()
        mappings.release_beyond(20 << 20)
        highest = max(highest, statistics() - before)
    assert highest < 32 << 20
    assert not mappings.release_beyond(1 << 40)


def test_a_writer_reads_its_own_runs_and_keeps_nothing(tmp_path: Path) -> None:
    with SegmentStorage(str(tmp_path), "0-0", fsync=False) as storage:
        before = pa.total_allocated_bytes()
        for i in range(6):
            place = storage.write(pa.table({"x": np.full(1 << 20, i)}))
            assert storage.read(place).column(0)[i].as_py() == i
        assert pa.total_allocated_bytes() - before < 16 << 20


def test_deleted_files_are_let_go(segment: tuple[str, list[dict[str, Any]]]) -> None:
    folder, places = segment
    table = read_segment(folder, places[3])
    path = Path(folder, places[3]["file"])

    def mapped() -> bool:
        return str(path) in Path("/proc/self/maps").read_text()

    statistics()
    assert mapped()
    path.unlink()
    forget_deleted()
    assert table.column(0)[5].as_py() == 3  # as long as somebody looks at it
    assert mapped()
    del table
    gc.collect()
    assert not mapped()
