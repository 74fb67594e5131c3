"""Joins that queries with different windows share: exact for each, whoever comes and goes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.expr.nodes import Column
from penstock.kernels.lags import Segments
from penstock.model import INF, Batch, Heartbeat, to_numpy
from penstock.operators import join
from penstock.operators.base import Context
from penstock.operators.join import SharedJoinSpec
from penstock.operators.route import RouteSpec
from penstock.operators.time_window import SharedWindowSpec
from penstock.physical.book import QueryBook
from penstock.physical.plan import PhysicalPlan
from penstock.runs.state import MemoryStorage, State
from penstock.settings import Settings
from penstock.testing import Rig, local
from penstock.testing.machine import RigQuery
from tests.test_oracle import ORACLE

STREAMS = """
CREATE STREAM a (k STRING, x BIGINT, t BIGINT) USING memory TIMESTAMP BY t SLACK 4;
CREATE STREAM b (k STRING, y BIGINT, t BIGINT) USING memory TIMESTAMP BY t SLACK 2;
"""

ON = {
    "equal": "a.k = b.k",
    "band": "a.x BETWEEN b.y - 1 AND b.y + 1",
    "theta": "a.x + b.y = 4",
    "computed": "CONCAT(a.k, '!') = CONCAT(b.k, '!')",
}

SELECT = (
    "SELECT a.k, x, y FROM {join}",
    "SELECT a.k, x, y, a.t AS at, b.t AS bt FROM {join} WHERE x > 2",
    "SELECT x + y AS z FROM {join} WHERE y < 3 AND x <> y",
    "SELECT a.k, COUNT(*) AS n, SUM(x + y) AS s FROM {join} GROUP BY a.k",
    "SELECT COUNT(*) AS n, MAX(y) AS m FROM {join} WHERE x <> y",
    "SELECT DISTINCT a.k, y FROM {join}",
    "ISTREAM (SELECT a.k, x, y FROM {join} WHERE x > 1)",
)


@pytest.fixture(autouse=True)
def few_rows_are_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "_WORTH_ORDERING", 1)
    monkeypatch.setattr(join, "_MANY", 3)


def query(chance: random.Random, name: str, on: str) -> str:
    left, right = (
        chance.choice(["NOW", *(f"RANGE {chance.randint(1, 30)}" for _ in range(5))])
        for _ in range(2)
    )
    if chance.random() < 0.5:
        right = left
    joined = f"a [{left}] JOIN b [{right}] ON {ON[on]}"
    return f"CREATE QUERY {name} AS {chance.choice(SELECT).format(join=joined)};"


def rows(chance: random.Random, now: int) -> tuple[dict[str, list[tuple[str, int, int]]], int]:
    found: dict[str, list[tuple[str, int, int]]] = {"a": [], "b": []}
    for _ in range(chance.randint(1, 12)):
        now += chance.choice((0, 0, 1, 1, 2, 7))
        time = max(0, now - chance.choice((0, 0, 0, 1, 3)))
        some = found[chance.choice("ab")]
        some.append((chance.choice("uvw"), chance.randint(0, 5), time))
    return found, now


def shared_joins(plan: PhysicalPlan) -> list[SharedJoinSpec]:
    return [node.spec for node in plan.nodes if isinstance(node.spec, SharedJoinSpec)]


def events(seed: int) -> Iterator[tuple[str, Any]]:
    """What happens: queries come and go between batches of rows."""
    chance = random.Random(seed)
    on = chance.choice(sorted(ON))
    names = [f"q{i}" for i in range(chance.randint(2, 5))]
    yield "sql", STREAMS + "".join(query(chance, name, on) for name in names)
    now = 5
    for step in range(chance.randint(2, 7)):
        fed, now = rows(chance, now)
        yield "feed", fed
        if chance.random() < 0.4:
            yield chance.choice(("crash", "restart")), rows(chance, now)[0]
        if len(names) > 1 and chance.random() < 0.3:
            gone = names.pop(chance.randrange(len(names)))
            yield "drop", gone
        if chance.random() < 0.4:
            names.append(f"late{step}")
            yield "sql", query(chance, names[-1], on)
    yield "end", None


def run(seed: int, settings: dict[str, Any], shards: int) -> tuple[dict[str, list[Any]], int]:
    """Run a scenario against the oracle; return all answers, and how many joins were shared."""
    rig = Rig(settings=settings, shards=shards)
    found, most = {}, 0
    for kind, what in events(seed):
        if kind == "sql":
            rig.sql(what)
        elif kind == "feed":
            rig.feed(what)
            most = max(most, len(shared_joins(rig._engine.plan)))
        elif kind == "crash":
            crash(rig, what)
        elif kind == "restart":
            restart(rig)
        elif kind == "drop":
            rig.assert_oracle(what)
            found[what] = answers(rig, what)
            rig.sql(f"DROP QUERY {what}")
        else:
            rig.end()
            rig.assert_oracle()
            found |= {q.name: answers(rig, q.name) for q in rig._queries()}
    return found, most


def crash(rig: Rig, fed: dict[str, list[Any]]) -> None:
    """Run a batch that fails at its end: nothing of it may stay."""
    before = list(rig._events)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.testing.local.run_batch", partial(_failing, local.run_batch))
        with pytest.raises(OSError, match="power cut"):
            rig.feed(fed)
    rig._events[:] = before


def _failing(run_batch: Any, *given: Any) -> Any:
    run_batch(*given)
    raise OSError("power cut")


def restart(rig: Rig) -> None:
    """Go on with a new book, which knows of the old one what a manifest says."""
    if rig._changed:
        rig._replan()
    old = rig._engine.book
    told = json.loads(json.dumps({n: q.describe(None) for n, q in old.queries.items()}))
    rig._engine.book = QueryBook(old.config, told, "here")
    for query in old.queries.values():
        assert isinstance(query, RigQuery)
        again = RigQuery(query.name, query.node, query.mode, stamps=query.stamps)
        rig._engine.book.add(again)
    rig._changed = True


def answers(rig: Rig, name: str) -> list[Any]:
    mode = rig._query(name).mode
    kind = "stream" if mode == "stream" else "log"
    return sorted(rig._engine.answers[f"{name} {kind}"], key=repr)


SETTINGS = st.fixed_dictionaries(
    {
        "lifetime": st.sampled_from(["direct", "negative"]),
        "join.order": st.sampled_from(["lwo", "swf", "mqt"]),
        "train.rows": st.sampled_from([0, 1, 7]),
        "join.buffer": st.sampled_from(["auto", "output"]),
        "rules": st.sampled_from([True, True, False]),
        "block.rows": st.sampled_from([2, 262_144]),
        "merge.strategy": st.sampled_from(["greedy", "always", "never"]),
    }
)


@ORACLE
@given(st.integers(0, 1 << 30), SETTINGS, st.sampled_from([1, 3]))
def test_answers_are_those_of_the_oracle_and_of_joins_apart(
    seed: int, settings: dict[str, Any], shards: int
) -> None:
    together, _ = run(seed, settings, shards)
    apart, joins = run(seed, settings | {"join.windows": "apart"}, shards)
    assert together == apart
    assert joins == 0


SCRIPT = (
    STREAMS
    + """
CREATE QUERY small AS SELECT a.k, y FROM a [RANGE 3] JOIN b [RANGE 4] ON a.k = b.k;
CREATE QUERY large AS SELECT a.k, y FROM a [RANGE 20] JOIN b [RANGE 10] ON a.k = b.k WHERE y > 1;
"""
)
LARGER = "CREATE QUERY {name} AS SELECT y FROM a [RANGE {w}] JOIN b [RANGE {w}] ON a.k = b.k;"


def windows(rig: Rig) -> list[int | None]:
    plan = rig._engine.plan
    return [n.spec.window.range for n in plan.nodes if isinstance(n.spec, SharedWindowSpec)]


def test_one_join_follows_the_queries_that_come_and_go() -> None:
    rig = Rig(SCRIPT)
    rig.feed({"a": [("u", 1, 1), ("v", 2, 3)], "b": [("u", 5, 2), ("v", 0, 9)]})
    (digest,) = [n.digest for n in rig._engine.plan.nodes if isinstance(n.spec, SharedJoinSpec)]
    assert windows(rig) == [20, 10]
    for step, (text, largest) in enumerate(
        (
            (LARGER.format(name="larger", w=30), [30, 30]),
            ("DROP QUERY large", [30, 30]),
            ("DROP QUERY larger", [3, 4]),
            (LARGER.format(name="largest", w=40), [40, 40]),
            ("DROP QUERY small", [40, 40]),
        )
    ):
        rig.sql(text)
        time = 12 + 7 * step
        rig.feed({"a": [("u", 1, time), ("v", 1, time + 1)], "b": [("u", 7, time + 2)]})
        assert windows(rig) == largest
        (node,) = [n for n in rig._engine.plan.nodes if isinstance(n.spec, SharedJoinSpec)]
        assert node.digest == digest
        rig.assert_oracle()
    rig.end()
    rig.assert_oracle()


def test_what_a_group_lacks_keeps_a_later_query_apart() -> None:
    rig = Rig(SCRIPT)
    rig.feed({"a": [("u", 1, 1)], "b": [("u", 5, 2)]})
    rig.sql("CREATE QUERY other AS SELECT x FROM a [RANGE 5] JOIN b [RANGE 6] ON a.k = b.k")
    rig.feed({"a": [("u", 1, 12)], "b": [("u", 5, 13)]})
    assert rig._engine.book.queries["other"].parts == {}
    rig.end()
    rig.assert_oracle()


ALIKE = "SELECT a.k, x, b.y FROM a [RANGE {w}] JOIN b [RANGE {w}] ON a.k = b.k"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ALIKE.format(w=5), ALIKE.format(w=5)),
        (ALIKE.format(w=5), ALIKE.format(w=6).replace("JOIN", "LEFT JOIN")),
        (ALIKE.format(w=5), ALIKE.format(w=6).replace("a.k = b.k", "x = y")),
        (ALIKE.format(w=5), ALIKE.format(w=6).replace("RANGE 6", "ROWS 6")),
        (ALIKE.format(w=5), ALIKE.format(w=6).replace("RANGE 6]", "RANGE 6 SLIDE 2]")),
        (ALIKE.format(w=5), ALIKE.format(w=6) + " WHERE 8 / x > 1 AND x > 0"),
        (ALIKE.format(w=5), ALIKE.format(w=6) + ", b [RANGE 2] c WHERE c.k = a.k"),
    ],
)
def test_other_joins_stay_apart(first: str, second: str) -> None:
    rig = Rig(f"{STREAMS} CREATE QUERY p AS {first}; CREATE QUERY q AS {second};")
    rig.feed({"a": [("u", 1, 1), ("v", 3, 3)], "b": [("u", 1, 2), ("v", 3, 9)]})
    assert shared_joins(rig._engine.plan) == []
    rig.end()
    rig.assert_oracle()


def test_conditions_that_all_have_stay_in_the_join() -> None:
    text = ALIKE + " WHERE x > 1 AND {more}"
    parts = ((3, "y < 4"), (5, "x <> y"), (9, "x <> y AND y < 2"))
    queries = (f"CREATE QUERY q{w} AS {text.format(w=w, more=more)};" for w, more in parts)
    rig = Rig(STREAMS + "".join(queries))
    rig.feed({"a": [("u", 1, 1), ("u", 2, 3)], "b": [("u", 1, 2), ("u", 3, 3)]})
    (spec,) = shared_joins(rig._engine.plan)
    assert spec.residual is None
    sources = [node.source for node in rig._engine.plan.nodes if node.source is not None]
    assert [source.predicate is not None for source in sources] == [True, False]
    rig.end()
    rig.assert_oracle()


def test_windows_at_the_end_of_time_do_not_overflow() -> None:
    last = INF - 5
    rig = Rig(SCRIPT)
    rig.feed({"a": [("u", 1, last)], "b": [("u", 5, last + 2)]})
    rig.end()
    rig.assert_oracle()


def test_a_query_of_the_version_before_goes_on_apart() -> None:
    rig = Rig(SCRIPT, settings={"join.windows": "apart"})
    rig.feed({"a": [("u", 1, 1)], "b": [("u", 5, 2)]})
    told = {n: q.describe(None) for n, q in rig._engine.book.queries.items()}
    for known in told.values():
        del known["parts"]
    book = QueryBook(Settings(), told, "here")
    for query in rig._engine.book.queries.values():
        assert isinstance(query, RigQuery)
        book.add(RigQuery(query.name, query.node, query.mode))
    rig._engine.book, rig._changed = book, True
    rig.feed({"a": [("u", 1, 12)], "b": [("u", 5, 13)]})
    assert shared_joins(rig._engine.plan) == []
    rig.end()
    rig.assert_oracle()


def test_a_query_gets_no_ghosts_and_its_own_ends() -> None:
    lag = np.arange(-4, 6)
    start = np.full(len(lag), 100)
    rows = Batch.of([pa.array(lag), pa.array(lag)], start, start + 50)
    for since, first in ((None, -2), (99, -1)):
        (mine,) = RouteSpec(3, 5, since).build().on_rows(0, rows)
        assert isinstance(mine, Batch)
        kept = to_numpy(mine.columns[0])
        assert kept.tolist() == list(range(first, 5 if since is None else 2))
        assert len(mine.columns) == 1
        starts = zip(np.where(kept < 0, 100 + kept, 100), np.where(kept < 0, 100, 100 - kept),
                     strict=True)  # fmt: skip
        assert mine.end.tolist() == [min(s1 + 3, s2 + 5) for s1, s2 in starts]


# Orders of segments


def ages(segments: Segments, order: list[int]) -> list[tuple[str, int]]:
    return [(("left", "right")[segments.all[i].side], segments.all[i].farthest) for i in order]


def test_segments_are_cut_where_windows_end() -> None:
    segments = Segments([(3, 4), (10, 4), (1, 20)])
    assert [(s.low, s.high, s.farthest) for s in segments.all] == [
        (-9, -2, 10), (-2, 0, 3), (0, 4, 4), (4, 20, 20),
    ]  # fmt: skip
    lags = np.array([-9, -3, -2, -1, 0, 3, 4, 19])
    assert segments.of(lags).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_small_windows_or_most_queries_come_first() -> None:
    segments = Segments([(10, 10), (50, 50), (51, 51), (52, 52), (600, 600)])
    assert ages(segments, segments.smallest_first)[:4] == [
        ("left", 10), ("right", 10), ("left", 50), ("right", 50),
    ]  # fmt: skip
    order = segments.most_queries_first((1.0, 1.0))
    assert [age for _, age in ages(segments, order)] == [10, 10, 50, 50, 51, 51, 52, 52, 600, 600]
    cheap_right = ages(segments, segments.most_queries_first((10.0, 1.0)))
    assert cheap_right[:5] == [("right", 10), ("right", 50), ("right", 51), ("right", 52),
                               ("left", 10)]  # fmt: skip
    crowd = Segments([(10, 1)] + 9 * [(11, 1)] + [(100, 1)])
    assert ages(crowd, crowd.most_queries_first((1.0, 1.0))) == [
        ("right", 1), ("left", 10), ("left", 11), ("left", 100),
    ]  # fmt: skip


def test_the_youngest_partners_come_first() -> None:
    """The rows of the smallest window leave before most of the others."""
    when = {}
    for order in ("lwo", "swf", "mqt"):
        context = Context(State(MemoryStorage()), settings=Settings({"join.order": order}))
        operator = SharedJoinSpec(
            (pa.int64(),), (pa.int64(),), (K,), (K,), windows=((5, 5), (1000, 1000))
        ).build()
        operator.open(context)
        for since in range(0, 100, 10):
            for port in (0, 1):
                list(operator.receive(port, rows_at(since, since + 10)))
            for port in (0, 1):
                list(operator.receive(port, Heartbeat(since + 10)))
        for port in (0, 1):
            list(operator.receive(port, rows_at(100, 110)))
        list(operator.receive(0, Heartbeat(110)))
        made = [m for m in operator.receive(1, Heartbeat(110)) if isinstance(m, Batch)]
        lags = [to_numpy(batch.columns[-1]) for batch in made]
        assert len(np.concatenate(lags)) == 110 * 110 - 100 * 100
        last = max(i for i, lag in enumerate(lags) if (np.abs(lag) < 5).any())
        when[order] = sum(map(len, lags[: last + 1])) / (110 * 110 - 100 * 100)
    assert when["swf"] < 0.2
    assert when["mqt"] < 0.2
    assert when["lwo"] == 1.0


K = Column(0, pa.int64())


def rows_at(first: int, last: int) -> Batch:
    time = np.arange(first, last)
    return Batch.of([pa.array(np.zeros(len(time), np.int64))], time, time + 1000)
