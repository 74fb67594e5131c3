"""One-time queries without Spark: every answer is the oracle's snapshot at its instant."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import cql
from penstock.algebra import Aggregate, Node, Window, inputs, is_stream, streams_of, walk
from penstock.asking.encoding import Declared, declared_in, decode, encode
from penstock.asking.onetime import HeldRelation, Snapshot, answer, can_answer
from penstock.catalog import Catalog, StreamDef, TableDef
from penstock.cql.binding.script import Script
from penstock.errors import QueryError, StateError
from penstock.model import INF, Ends
from penstock.optimizer import optimize
from penstock.physical.planner import Query, plan
from penstock.reference import relation, snapshot_at
from penstock.reference.expressions import canonical
from penstock.runs.kept import Kept
from penstock.runs.state import MemoryStorage, State
from penstock.session import Session
from penstock.testing import LocalEngine, to_table
from penstock.windows import WindowSpec
from tests import strategies as make
from tests.comparison import same_bag
from tests.slices import LAST, STRATEGIES, bag, batch_of, crowd
from tests.strategies import SCANS, TABLES, Data
from tests.test_oracle import ORACLE, truth


class Keeper(LocalEngine):
    """An engine all of whose queries are kept, ``keep`` behind the slowest of them."""

    def __init__(
        self,
        plans: Mapping[str, Node],
        data: Data,
        keep: int,
        shards: int,
        lifetime: str = "direct",
    ) -> None:
        options = {"lifetime": lifetime}
        super().__init__(
            plans, data.tables, shards=shards, slack=data.slack, mode="kept", settings=options
        )
        chosen = optimize(plans)
        queries = [Query(n, p, "kept", keep=keep) for n, p in chosen.items()]
        self.plan = plan(queries, self.config, {})
        self.declared = Declared(CATALOG, {n: (p, "kept") for n, p in plans.items()})
        self.table_rows = data.tables

    def held(self) -> list[HeldRelation]:
        """The relations as they would be found in a manifest."""
        found = []
        for out in self.plan.answers:
            digest = self.plan.nodes[out.node].digest
            states = [shard[digest] for shard in self._states if digest in shard]
            found.append(HeldRelation(out.query, self.declared.plans[out.query], states))
        return found

    def rows_of(self, definition: TableDef) -> pa.Table:
        return to_table(definition.schema, self.table_rows[definition.name])

    def ask(self, text: str) -> Snapshot:
        parsed = cql.parse_question(text)
        return self.answer(cql.bind_question(parsed, CATALOG, self.declared.plans))

    def answer(self, question: cql.Question) -> Snapshot:
        return answer(
            question,
            self.declared,
            self.held(),
            lambda _: self._storage,
            self.rows_of,
            self.config,
            7,
        )


def _catalog() -> Catalog:
    catalog = Catalog()
    for scan in SCANS.values():
        catalog.add(StreamDef(scan.stream, scan.schema, "memory", {}, scan.time))
    for table in TABLES:
        catalog.add(
            TableDef(table.table, table.schema, "csv", {}, table.valid_from, table.valid_to)
        )
    return catalog


CATALOG = _catalog()
LIFETIMES = st.sampled_from(["direct", "negative"])


def bag_of(rows: pa.Table) -> Counter:
    columns = [c.to_pylist() for c in rows.columns]
    return Counter(tuple(map(canonical, row)) for row in zip(*columns, strict=True))


def feed(engine: LocalEngine, data: Data, share: float = 1.0, cuts: int = 4) -> None:
    """Send a share of the rows, in some batches; all of them end the streams."""
    for number in range(cuts):
        rows = {}
        for name, elements in data.streams.items():
            if name in engine.streams:
                wanted = elements[: round(len(elements) * share)]
                first, last = (len(wanted) * (number + i) // cuts for i in (0, 1))
                rows[name] = [values for values, _ in wanted[first:last]]
        engine.batch(rows)
    if share == 1.0:
        engine.batch({}, final=True)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_kept_is_exact_between_low_and_the_heartbeat(seed: int) -> None:
    """Rows with ends, with holders and for ever, told late, in turns of any length."""
    chance = random.Random(seed)
    script = crowd(lambda dice: (dice.randrange(5),), 1, seed)
    rows, told = script.ports[0], dict(script.told)
    merging, keep = STRATEGIES[seed % len(STRATEGIES)], chance.choice([0, 2, 7])
    storage = MemoryStorage()
    state, since = State(storage), -1
    while since < LAST + 14:
        until = since + chance.randint(1, 4)
        new = [r for r in rows if since <= r.start < until]
        ends = {h: e for h, e in told.items() if since <= e < until}
        kept = Kept(state, "live", [pa.int64()], merging)
        low = until - 1 - keep
        kept.advance(
            batch_of(new, [pa.int64()]), Ends.of(*map(ints, (ends, ends.values()))), until, low
        )
        kept.save()
        state = State(storage, json.loads(json.dumps(state.describe())))
        reader = Kept(state, "live", [pa.int64()], merging)
        assert reader.low == low
        for time in range(low, until):
            (column,) = reader.snapshot(time).columns
            assert bag((v,) for v in column.to_pylist()) == bag(script.snapshot(0, time))
        since = until


def ints(values) -> np.ndarray:
    return np.array(list(values), np.int64)


def relations() -> st.SearchStrategy:
    return make.plans().filter(lambda n: not is_stream(n) and bool(streams_of(n)))


@ORACLE
@given(st.data())
def test_a_kept_relation_is_the_oracle_at_every_instant_that_is_kept(chance) -> None:
    """Whatever the plan, the shards and the batches; while the streams run and when they ended."""
    data = chance.draw(make.data())
    node = chance.draw(relations())
    share = chance.draw(st.sampled_from([0.6, 1.0]))
    keep = chance.draw(st.sampled_from([0, 3, 50, INF]))
    shards, lifetime = chance.draw(st.sampled_from([1, 3])), chance.draw(LIFETIMES)
    engine = Keeper({"kept": node}, data, keep, shards, lifetime)
    feed(engine, data, share)
    (held,) = engine.held()
    if held.until <= -(2**62):
        return
    whole = relation(node, truth(data))
    high = min(held.until - 1, held.newest + 20)
    for time in range(max(held.low, -10), high + 1):
        columns = held.snapshot(engine._storage, time)
        found = bag_of(pa.Table.from_arrays(list(columns), names=list(node.schema.names)))
        same_bag(found, snapshot_at(whole, time), time)
    if keep not in (0, INF):
        assert held.low <= held.newest - keep


# Questions

KEPT = {
    "recent": "SELECT * FROM s [RANGE 8]",
    "last": "SELECT * FROM r [PARTITION BY k ROWS 2]",
    "sums": "SELECT k, COUNT(*) AS n, SUM(x) AS total FROM s [ROWS 6] GROUP BY k",
    "all_q": "SELECT * FROM q",
    "sess": "SELECT k, x FROM s [PARTITION BY k SESSION 3]",
    "gone": "SELECT k FROM s [RANGE 8] EXCEPT SELECT k FROM r [RANGE 5]",
    "lonely": "SELECT s.k, s.x, r.x AS rx FROM s [RANGE 6] s LEFT JOIN r [ROWS 3] r ON s.k = r.k",
    "best": "SELECT k, x FROM s [RANGE 9] ORDER BY x DESC LIMIT 3",
}
QUESTIONS = [
    "SELECT * FROM recent",
    "SELECT k, x + 1 AS y FROM recent WHERE x > 0",
    "SELECT k, COUNT(*) AS n, MAX(y) AS top FROM recent GROUP BY k HAVING COUNT(*) > 1",
    "SELECT COUNT(*) AS n, SUM(x) AS total FROM recent WHERE x = 2",
    "SELECT a.k, a.x, b.x AS bx FROM recent a JOIN last b ON a.k = b.k",
    "SELECT a.k, b.n FROM last a LEFT JOIN sums b ON a.k = b.k AND a.x < b.total",
    "SELECT k FROM last UNION SELECT k FROM sums",
    "SELECT k FROM recent EXCEPT ALL SELECT k FROM last",
    "SELECT DISTINCT x FROM sess",
    "SELECT q.x, t.n FROM all_q q, (SELECT COUNT(*) AS n FROM q) t WHERE q.b",
    "SELECT k, x FROM recent WHERE k NOT IN (SELECT k FROM gone WHERE k IS NOT NULL)",
    "SELECT k FROM recent a WHERE EXISTS (SELECT 1 FROM lonely b WHERE b.k = a.k AND b.rx IS NULL)",
    "SELECT b.k, q.b FROM best b ASOF LEFT JOIN all_q q ON b.x >= q.x",
    "SELECT a.k, t.x AS tx FROM recent a JOIN d t ON a.k = t.k",
    "SELECT a.k, t.x AS tx FROM recent a JOIN v t ON a.k = t.k",
    "WITH big AS (SELECT k, n FROM sums WHERE n > 1) SELECT k, l.x FROM big JOIN last l USING (k)",
    # parts of plans that are kept under some name
    "SELECT k, COUNT(*) AS c FROM s [RANGE 8] GROUP BY k",
    "SELECT w.k FROM r [PARTITION BY k ROWS 2] w JOIN (SELECT k FROM s [RANGE 8]) z ON w.k = z.k",
    "SELECT x FROM q WHERE b",
    "SELECT AVG(n) AS a FROM (SELECT k, COUNT(*) AS n, SUM(x) AS total FROM s [ROWS 6] GROUP BY k)",
]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(("share", "lifetime"), [(0.7, "direct"), (1.0, "negative")])
def test_questions_are_answered_as_the_oracle_does(shards, share, lifetime) -> None:
    data = make.many_rows(random.Random(shards), 60)
    plans = {name: cql.bind_query(text, CATALOG) for name, text in KEPT.items()}
    engine = Keeper(plans, data, 15, shards, lifetime)
    feed(engine, data, share)
    everything = truth(data)
    for text in QUESTIONS:
        now = engine.ask(text)
        assert now.batch == 7
        assert isinstance(now.valid_at, int)
        parsed = cql.parse_question(text)
        oracle = relation(cql.bind_question(parsed, CATALOG, plans).plan, everything)
        same_bag(bag_of(now.rows), snapshot_at(oracle, now.valid_at), now.valid_at)
        for back in (1, 4, 15):
            time = now.valid_at - back
            before = engine.ask(f"{text} AS OF {time}")
            assert before.valid_at == time
            same_bag(bag_of(before.rows), snapshot_at(oracle, time), time)


def leaves(node: Node) -> list[Node]:
    """Return the largest parts of a plan that are no relational operators, as relations."""
    if isinstance(node, Window):
        return [node]
    if is_stream(node):
        return [Window(node, WindowSpec())]
    return [found for below in inputs(node) for found in leaves(below)]


def relational(node: Node) -> bool:
    """Whether a plan is a relation over streams; an aggregate of all is not, before it has rows."""
    whole = any(isinstance(n, Aggregate) and not n.keys for n in walk(node))
    return bool(streams_of(node)) and not is_stream(node) and not whole


@ORACLE
@given(st.data())
def test_a_random_plan_over_kept_windows_is_the_plan_over_the_streams(chance) -> None:
    """The streams and windows of a random plan are kept, and the plan is asked once."""
    data = chance.draw(make.data())
    whole = chance.draw(make.plans(depth=4).filter(relational))
    parts = {f"part {i}": leaf for i, leaf in enumerate(dict.fromkeys(leaves(whole)))}
    shards, lifetime = chance.draw(st.sampled_from([1, 2])), chance.draw(LIFETIMES)
    engine = Keeper(parts, data, 5, shards, lifetime)
    feed(engine, data)
    question = cql.Question(Script("?"), (0, 1), whole, None, (0, 0), ())
    assert can_answer(question, engine.declared)
    found = engine.answer(question)
    expected = snapshot_at(relation(whole, truth(data)), found.valid_at)
    same_bag(bag_of(found.rows), expected, found.valid_at)


def keeper(keep: int = 5, share: float = 0.7, **kept: str) -> Keeper:
    data = make.many_rows(random.Random(3), 40)
    plans = {n: cql.bind_query(text, CATALOG) for n, text in (kept or KEPT).items()}
    engine = Keeper(plans, data, keep, 2)
    feed(engine, data, share)
    return engine


@cache
def one_keeper() -> Keeper:
    """For questions only: they change nothing."""
    return keeper()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("SELECT k, x, y FROM recent ORDER BY x DESC, k", lambda r: (_last(r[1]), _first(r[0]))),
        ("SELECT k, x FROM recent ORDER BY x NULLS LAST", lambda r: (r[1] is None, r[1] or 0)),
        ("SELECT k, x + 1 AS z FROM recent ORDER BY 2", lambda r: _first(r[1])),
        ("(SELECT k, n FROM sums ORDER BY n)", lambda r: r[1]),
        ("SELECT k, COUNT(*) AS n FROM recent GROUP BY k ORDER BY COUNT(*) DESC", lambda r: -r[1]),
        ("WITH a AS (SELECT x FROM last) SELECT x FROM a ORDER BY x", lambda r: _first(r[0])),
    ],
)
def test_an_answer_is_in_the_order_that_was_asked_for(text: str, key) -> None:
    engine = one_keeper()
    rows = [tuple(r.values()) for r in engine.ask(text).rows.to_pylist()]
    assert rows == sorted(rows, key=key)
    assert len(rows) > 2
    first = engine.ask(text.removesuffix(")") + (" LIMIT 2)" if text[0] == "(" else " LIMIT 2"))
    assert [tuple(r.values()) for r in first.rows.to_pylist()] == rows[:2]


def _first(value):
    return (value is not None, value or (0 if not isinstance(value, str) else ""))


def _last(value):
    return (value is None, -(value or 0))


def test_what_an_answer_is_sorted_by_need_not_be_shown() -> None:
    engine = one_keeper()
    found = engine.ask("SELECT y FROM recent ORDER BY x DESC, k, y").rows
    assert found.column_names == ["y"]
    shown = engine.ask("SELECT x, k, y FROM recent ORDER BY x DESC, k, y").rows
    assert found.column("y").to_pylist() == shown.column("y").to_pylist()


def test_aggregates_of_nothing_are_those_of_sql() -> None:
    engine = one_keeper()
    found = engine.ask("SELECT COUNT(*) AS n, SUM(x) AS s, MIN(k) AS m FROM recent WHERE x > 99")
    assert found.rows.to_pylist() == [{"n": 0, "s": None, "m": None}]
    assert (
        engine.ask("SELECT k, COUNT(*) AS n FROM recent WHERE x > 99 GROUP BY k").rows.num_rows == 0
    )
    inside = "SELECT n + 1 AS m FROM (SELECT COUNT(*) AS n FROM recent WHERE x > 99)"
    assert engine.ask(inside).rows.to_pylist() == [{"m": 1}]
    both = (
        "SELECT a.n, b.n AS bn FROM (SELECT COUNT(*) AS n FROM recent WHERE x > 99) a, "
        "(SELECT COUNT(x) AS n FROM last WHERE x > 99) b"
    )
    assert engine.ask(both).rows.to_pylist() == [{"n": 0, "bn": 0}]


def test_sub_queries_of_a_question_have_the_values_of_its_instant() -> None:
    engine = one_keeper()
    rows = [(r["k"], r["x"]) for r in engine.ask("SELECT k, x FROM recent").rows.to_pylist()]
    known = [x for _, x in rows if x is not None]
    alike = [(k, x, sum(k is not None and k == other for other, _ in rows)) for k, x in rows]
    above = [(k, x) for k, x in rows if x is not None and x > sum(known) / len(known)]
    counts = Counter(k for k, _ in rows)
    most = [(k, n) for k, n in counts.items() if n == max(counts.values())]
    expected = {
        "SELECT k, x FROM recent WHERE x > (SELECT AVG(x) FROM recent)": above,
        "SELECT k, x, (SELECT COUNT(*) FROM recent o WHERE o.k = r.k) AS n FROM recent r": alike,
        "SELECT k, COUNT(*) AS n FROM recent GROUP BY k "
        "HAVING COUNT(*) >= ALL (SELECT COUNT(*) FROM recent GROUP BY k)": most,
        "SELECT x FROM recent WHERE x = ANY (SELECT MAX(x) FROM recent) OR x IS NULL": [
            (x,) for _, x in rows if x in (None, max(known))
        ],
        "SELECT DISTINCT (SELECT COUNT(*) FROM recent WHERE x > 99) AS n, "
        "(SELECT MAX(x) FROM recent WHERE x > 99) AS m FROM recent": [(0, None)],
    }
    assert 0 < len(above) < len(rows)
    for text, answer_ in expected.items():
        assert bag_of(engine.ask(text).rows) == Counter(answer_), text


def test_as_of_may_stand_where_users_of_sql_expect_it() -> None:
    engine = one_keeper()
    time = engine.ask("SELECT * FROM recent").valid_at - 3
    texts = [
        f"SELECT k, x FROM recent WHERE x > 0 AS OF {time}",
        f"SELECT k, x FROM recent AS OF {time} WHERE x > 0",
        f"SELECT a.k, a.x FROM recent AS OF {time} a WHERE a.x > 0",
        f"SELECT a.k, a.x FROM recent a AS OF {time} WHERE a.x > 0",
        f"SELECT k, x FROM recent FOR SYSTEM_TIME AS OF {time} WHERE x > 0",
        f"SELECT k, x FROM recent TIMESTAMP AS OF {time} AS a WHERE x > 0",
        f"SELECT k, x FROM s [RANGE 8] AS OF {time} WHERE x > 0",
    ]
    found = [engine.ask(text) for text in texts]
    assert {f.valid_at for f in found} == {time}
    assert len({frozenset(bag_of(f.rows).items()) for f in found}) == 1
    assert len(found[0]) > 0


def test_the_slowest_relation_decides_and_the_others_wait_for_it() -> None:
    """Two streams that are not equally far can still be asked together, at once or by AS OF."""
    data = make.many_rows(random.Random(5), 60)
    texts = {"fast": "SELECT * FROM s [RANGE 4]", "slow": "SELECT * FROM r [RANGE 4]"}
    engine = Keeper({n: cql.bind_query(t, CATALOG) for n, t in texts.items()}, data, 0, 2)
    everything = truth(data)
    for number in range(12):
        rows = {"s": data.streams["s"][number * 5 : number * 5 + 5]}
        rows["r"] = data.streams["r"][number * 2 : number * 2 + 2]
        engine.batch({n: [v for v, _ in found] for n, found in rows.items()})
        text = "SELECT a.k, a.x, b.x AS bx FROM fast a JOIN slow b ON a.x = b.x"
        found = engine.ask(text)
        slow = next(h for h in engine.held() if h.name == "slow")
        assert found.valid_at == slow.until - 1
        node = cql.bind_question(cql.parse_question(text), CATALOG, engine.declared.plans).plan
        expected = snapshot_at(relation(node, everything), found.valid_at)
        same_bag(bag_of(found.rows), expected, found.valid_at)
    fast = next(h for h in engine.held() if h.name == "fast")
    assert fast.until > slow.until + 10
    assert fast.low == slow.until - 1


OVER = "COUNT(*) OVER (PARTITION BY b ORDER BY t ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)"


def test_streams_in_windows_are_kept_too() -> None:
    counted = f"SELECT * FROM (SELECT x, {OVER} AS n FROM q) [RANGE 9]"
    born = "SELECT * FROM ISTREAM (SELECT k FROM s [ROWS 2]) [RANGE 9]"
    engine = keeper(counted=counted, born=born)
    data = make.many_rows(random.Random(3), 40)
    for name, text in (("counted", counted), ("born", born)):
        made = bound(f"CREATE MATERIALIZED VIEW w AS {text}").definition
        found = engine.ask(f"SELECT * FROM {name}")
        expected = snapshot_at(relation(made.plan, truth(data)), found.valid_at)
        same_bag(bag_of(found.rows), expected, found.valid_at)
        assert len(found) > 3


# Mistakes


@pytest.mark.parametrize(
    ("text", "says", "place"),
    [
        ("SELECT * FROM s [RANGE 9]", "s [RANGE 9] is not kept", "s [RANGE 9]"),
        (
            "SELECT k FROM recent UNION SELECT k FROM r [ROWS 9] z",
            "MATERIALIZED VIEW",
            "r [ROWS 9]",
        ),
        ("SELECT k FROM recent WHERE x IN (SELECT x FROM r)", "r is not kept", "r"),
        ("SELECT * FROM recent [ROWS 2]", "is not kept", "recent [ROWS 2]"),
        ("SELECT a.k FROM s [ROWS 9] AS OF 3 a", r"s [ROWS 9] is not kept", "s [ROWS 9]"),
        ("SELECT k FROM (SELECT k FROM q2) z", "there is no stream", "q2"),
        ("ISTREAM (SELECT * FROM recent)", "this makes a stream", None),
        (f"SELECT x, {OVER} AS n FROM q", "this makes a stream", None),
        (f"SELECT x, {OVER} AS n FROM all_q", "this makes a stream", None),
        ("SELECT * FROM nowhere", "there is no stream, table or view 'nowhere'", "nowhere"),
        ("SELECT * FROM recent AS OF 'noon'", "time must be an integer", "AS OF 'noon'"),
        ("SELECT * FROM recent AS OF 9999", "not final yet", "AS OF 9999"),
        ("SELECT * FROM recent AS OF 1", "KEEP", "AS OF 1"),
        ("SELECT * FROM recent AS OF 5 a JOIN last AS OF 6 b ON a.k = b.k", "one instant", None),
        ("SELECT * FROM recent AS OF noon", "a point in time", "noon"),
        ("SELECT * FROM v", "say when with AS OF", None),
        ("SELECT * FROM recent; SELECT * FROM last", "one query must be given", None),
        ("SHOW QUERIES", "one query must be given", None),
        ("SELECT nothing FROM recent", "nothing", "nothing"),
    ],
)
def test_mistakes_are_told_in_sentences(text: str, says: str, place: str | None) -> None:
    with pytest.raises(QueryError) as caught:
        one_keeper().ask(text)
    assert says in str(caught.value)
    if place is not None:
        assert caught.value.sql is not None
        assert caught.value.sql[caught.value.start : caught.value.end] == place


def test_what_was_asked_for_is_told_with_what_is_kept() -> None:
    engine = keeper(keep=5, recent=KEPT["recent"])
    now = engine.ask("SELECT * FROM recent").valid_at
    with pytest.raises(QueryError, match=f"from {now - 5} to {now}, got {now - 9}.*KEEP 9 AS"):
        engine.ask(f"SELECT * FROM recent AS OF {now - 9}")
    assert len(engine.ask(f"SELECT * FROM recent AS OF {now - 5}")) > 0


def test_after_the_end_every_later_instant_is_final() -> None:
    engine = keeper(share=1.0)
    now = engine.ask("SELECT * FROM recent").valid_at
    assert len(engine.ask(f"SELECT * FROM recent AS OF {now + 3}")) > 0
    assert len(engine.ask(f"SELECT * FROM recent AS OF {now + 1000}")) == 0
    with pytest.raises(QueryError, match=f"from {now - 5} on, got {now - 6}"):
        engine.ask(f"SELECT * FROM recent AS OF {now - 6}")


def test_of_equal_relations_the_one_that_can_tell_most_is_read() -> None:
    engine = keeper(keep=5, a="SELECT * FROM s [RANGE 8]", b="SELECT * FROM s [RANGE 8]")
    a, b = engine.held()
    now = engine.ask("SELECT * FROM a").valid_at
    younger, paused = replace(b, since=now - 1), replace(b, paused=True, states=[])
    for others in ([a, younger], [younger, a], [a, paused], [paused, a]):
        engine.held = lambda found=others: found  # type: ignore[method-assign]
        assert engine.ask(f"SELECT * FROM b AS OF {now - 4}").valid_at == now - 4
    engine.held = lambda: [younger]  # type: ignore[method-assign]
    with pytest.raises(QueryError, match=f"from {now - 1} to {now}"):
        engine.ask(f"SELECT * FROM b AS OF {now - 4}")


def test_what_will_be_kept_is_answered_from_its_parts_or_says_so() -> None:
    engine = keeper(recent=KEPT["recent"])
    plans = dict(engine.declared.queries)
    for name, stream in (("new", "s"), ("other", "r")):
        text = f"SELECT k, COUNT(*) AS n FROM {stream} [RANGE 8] GROUP BY k"
        plans[name] = (cql.bind_query(text, CATALOG), "kept")
    engine.declared = Declared(CATALOG, plans)
    assert sum(engine.ask("SELECT * FROM new").rows.column("n").to_pylist()) == len(
        engine.ask("SELECT * FROM recent")
    )
    with pytest.raises(StateError, match="'other' must have a committed batch"):
        engine.ask("SELECT * FROM other")


def test_tables_alone_have_an_instant_only_where_it_matters() -> None:
    engine = one_keeper()
    assert engine.ask("SELECT * FROM d AS OF 5").valid_at is None
    found = engine.ask("SELECT * FROM v AS OF 10")
    assert found.valid_at == 10
    rows = engine.table_rows["v"]
    valid = [r for r in rows if (r[2] is None or r[2] <= 10) and (r[3] is None or r[3] > 10)]
    assert bag_of(found.rows) == Counter(valid)
    assert 0 < len(valid) < len(rows)


def test_what_has_not_begun_says_so() -> None:
    data = make.many_rows(random.Random(1), 5)
    engine = Keeper({"w": cql.bind_query("SELECT * FROM s [ROWS 2]", CATALOG)}, data, 0, 1)
    with pytest.raises(StateError, match="nothing of 'w' can be read yet"):
        engine.ask("SELECT * FROM w")


def test_a_query_that_hands_its_answer_on_says_what_to_do() -> None:
    engine = keeper()
    plans = dict(engine.declared.queries)
    plans["away"] = (cql.bind_query("SELECT k FROM r [ROWS 7]", CATALOG), "intervals")
    plans["stored"] = (cql.bind_query("SELECT x FROM r [ROWS 8]", CATALOG), "delta")
    engine.declared = Declared(CATALOG, plans)
    with pytest.raises(QueryError, match=r"hands its answer on as intervals .*MATERIALIZED VIEW"):
        engine.ask("SELECT * FROM away")
    with pytest.raises(QueryError, match=r"query 'stored' keeps its answer in a table of a datab"):
        engine.ask("SELECT * FROM stored s")


def test_continuous_statements_have_no_instant() -> None:
    for text in ("CREATE QUERY q AS SELECT * FROM s [ROWS 2]", "CREATE VIEW w AS SELECT * FROM s"):
        with pytest.raises(QueryError, match="AS OF asks about one instant"):
            cql.parse_script(f"{text} AS OF 5")


# Statements


def bound(text: str, catalog: Catalog = CATALOG):
    return cql.bind(cql.parse_script(text)[0], catalog)


def test_create_and_drop_a_materialized_view() -> None:
    catalog = _catalog()
    made = bound("CREATE MATERIALIZED VIEW w KEEP 10 AS SELECT * FROM s [ROWS 2]", catalog)
    assert made.definition.keep == 10
    catalog.add(made.definition)
    assert catalog.queries["w"].keep == 10
    assert catalog.relation("W") == made.definition.plan
    for wrong in ("DROP VIEW w", "DROP QUERY w"):
        with pytest.raises(
            QueryError, match="'w' is a materialized view; DROP MATERIALIZED VIEW w"
        ):
            bound(wrong, catalog)
    for name in ("VIEW w AS SELECT * FROM s", "QUERY w AS SELECT * FROM s"):
        with pytest.raises(QueryError, match="must be free"):
            bound(f"CREATE {name}", catalog)
    dropped = bound("DROP MATERIALIZED VIEW w", catalog)
    catalog.remove(dropped.kind, dropped.name)
    assert not catalog.views
    assert not catalog.queries
    assert bound("DROP MATERIALIZED VIEW IF EXISTS w", catalog).if_exists
    catalog.add(bound("CREATE VIEW w AS SELECT * FROM s [ROWS 2]", catalog).definition)
    with pytest.raises(QueryError, match="'w' is a plain view; DROP VIEW w"):
        bound("DROP MATERIALIZED VIEW w", catalog)
    catalog.add(bound("CREATE QUERY z AS SELECT * FROM s [ROWS 2]", catalog).definition)
    with pytest.raises(QueryError, match="must be free, but query 'z' exists"):
        bound("CREATE MATERIALIZED VIEW z AS SELECT * FROM s [ROWS 2]", catalog)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("w AS SELECT * FROM d", "must read a stream"),
        ("w AS ISTREAM (SELECT * FROM s [ROWS 2])", "keeps a relation, and this is a stream"),
        ("w KEEP 5 SECONDS AS SELECT * FROM s", "must be a bare number"),
        ("w KEEP AS SELECT * FROM s", "KEEP"),
        ("w SELECT * FROM s", "must be followed by KEEP duration or AS"),
    ],
)
def test_mistakes_in_a_materialized_view(text: str, says: str) -> None:
    with pytest.raises(QueryError, match=says):
        bound(f"CREATE MATERIALIZED VIEW {text}")


def test_keep_is_unbounded_or_nothing() -> None:
    assert (
        bound("CREATE MATERIALIZED VIEW w KEEP UNBOUNDED AS SELECT * FROM s").definition.keep == INF
    )
    assert bound("CREATE MATERIALIZED VIEW w AS SELECT * FROM s").definition.keep == 0


# What is written down


@ORACLE
@given(make.plans(depth=4))
def test_plans_survive_being_written_down(node: Node) -> None:
    assert decode(json.loads(json.dumps(encode(node)))) == node


def test_declarations_survive_without_their_secrets() -> None:
    catalog = _catalog()
    schema = SCANS["s"].schema
    options = {"url": "jdbc:x", "password": "hunter2"}
    catalog.add(TableDef("secret", schema, "jdbc", options, sql="... 'hunter2'"))
    catalog.add(StreamDef("k", schema, "kafka", {"kafka.token": "hunter2"}, 3, sql="'hunter2'"))
    catalog.add(
        bound("CREATE VIEW w AS SELECT k, COUNT(*) AS n FROM s [ROWS 2] GROUP BY k").definition
    )
    plans = {n: (cql.bind_query(t, CATALOG), "kept") for n, t in KEPT.items()}
    data = Declared(catalog, plans).to_bytes()
    assert b"hunter2" not in data
    found = declared_in(data)
    assert found.queries == plans
    assert found.catalog.views == catalog.views
    assert found.catalog.tables["secret"].options == {"url": "jdbc:x", "password": "***"}
    assert found.catalog.streams["s"] == catalog.streams["s"]


def test_calls_make_the_same_materialized_view() -> None:
    with Session(autostart=False) as session:
        session.sql("CREATE STREAM m (k STRING, x INT, t TIMESTAMP) USING memory TIMESTAMP BY t")
        session.sql("CREATE TABLE d (k STRING) USING rate")
        session.sql("CREATE MATERIALIZED VIEW a KEEP 2 MINUTES AS SELECT * FROM m [ROWS 3]")
        handle = session.stream("m").window(rows=3).materialize("b", keep="2 MINUTES")
        assert handle.mode == "kept"
        views = session.catalog.views
        assert (views["b"].plan, views["b"].keep) == (views["a"].plan, 120_000_000)
        assert session.sql("SHOW VIEWS").column("kept").to_pylist() == ["2 MINUTES"] * 2
        with pytest.raises(QueryError, match="must be a relation over streams, got a stream"):
            session.stream("m").window(rows=3).istream().materialize("c")
        with pytest.raises(QueryError, match="got only tables"):
            session.table("d").materialize("c")
        with pytest.raises(QueryError, match="a duration must"):
            session.stream("m").materialize("c", keep="-5")
        session.sql("DROP MATERIALIZED VIEW b")
        assert [h.name for h in session.handles()] == ["a"]
