"""Conjuncts of selections in any order: the same rows, the same failures; and who decides."""

from __future__ import annotations

import json
import random
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.algebra import Filter, Node, Scan, Window, walk
from penstock.bench.scripts import plans_of
from penstock.cql import expr_text
from penstock.errors import DataError, QueryError
from penstock.expr.arrow import evaluate_mask
from penstock.expr.conjunct_orders import Ranking
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Cast, Column, Expr, Literal
from penstock.expr.selection import Selection
from penstock.model import INF, Batch
from penstock.operators.base import Context
from penstock.operators.filter import FilterSpec
from penstock.optimizer import optimize
from penstock.physical import selections
from penstock.physical.selections import conjunct_orders, learn, learnt
from penstock.reference.expressions import evaluate as evaluate_row
from penstock.runs.state import MemoryStorage, State
from penstock.session import Session
from penstock.settings import Settings
from penstock.testing import LocalEngine, Rig
from penstock.testing.local import to_table
from penstock.windows import WindowSpec
from tests import strategies as make
from tests.strategies import DOUBLE, LONG, SCANS, STRING
from tests.test_multiway import conjunction
from tests.test_oracle import ORACLE, check

DICE = random.Random(0)


def any_order(self: Selection) -> list[int]:
    """Return the conjuncts in any order in which they may be evaluated."""
    return [w for group in self.ranking._groups for w in DICE.sample(list(group), len(group))]


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Selections take another order every time, and pick out the rows that are left or do not."""
    monkeypatch.setattr(Selection, "_order", any_order)
    monkeypatch.setattr(Ranking, "pays", lambda *_: DICE.random() < 0.5)
    monkeypatch.setattr(Ranking, "many", property(lambda _: 0, lambda *_: None), raising=False)


def call(name: str, *args: Expr) -> Expr:
    return resolve_call(name, args)


def lit(value: Any) -> Literal:
    kinds = {int: LONG, float: DOUBLE, str: STRING}
    return Literal(value, kinds[type(value)])


S = SCANS["s"].schema
"""k, x, y and t: a name, a number, a DOUBLE, the time."""
K, X, Y = (Column(i, S[i].type, S[i].name) for i in range(3))

FAILING = (
    call("gt", call("divide", lit(1.0), Cast(X, DOUBLE)), lit(0.0)),
    call("gt", call("mod", lit(7), X), lit(0)),
    call("ge", Cast(K, LONG), lit(0)),
    call("lt", call("multiply", X, lit(2**62)), lit(1)),
)


@st.composite
def conditions(draw: Any) -> Expr:
    """Two to five conjuncts, some of which can fail, in any nesting of AND."""
    some = st.one_of(make.predicates(S), make.predicates(S), st.sampled_from(FAILING))
    parts = draw(st.lists(some, min_size=2, max_size=5))
    while len(parts) > 1:
        at = draw(st.integers(0, len(parts) - 2))
        parts[at : at + 2] = [call("and", *parts[at : at + 2])]
    return parts[0]


def rows_of(data: Any) -> tuple[list[tuple], list[pa.Array]]:
    rows = [values for values, _ in data.streams["s"]]
    return rows, [c.combine_chunks() for c in to_table(S, rows).columns]


def outcome(find: Any) -> Any:
    try:
        return find().tolist()
    except DataError as error:
        return str(error)


# The same rows, the same failures


@pytest.mark.usefixtures("restless")
@settings(ORACLE, max_examples=10 * ORACLE.max_examples)
@given(conditions(), make.data(most=30), st.integers(0, 2**32))
def test_any_order_finds_the_same_rows_and_fails_alike(condition, data, seed):
    rows, columns = rows_of(data)
    columns = [pa.concat_arrays([c]) for c in columns]
    expected = outcome(lambda: evaluate_mask(condition, columns, len(rows)))
    if isinstance(expected, list):
        assert expected == [evaluate_row(condition, row) is True for row in rows]
    for adaptive in (True, False):
        DICE.seed(seed)
        selection = Selection(condition, {}, adaptive)
        find = partial(selection.mask, columns, len(rows))
        assert [outcome(find) for _ in range(3)] == [expected] * 3


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("first", [True, False, None])
@pytest.mark.parametrize("second", [True, False, None])
def test_a_row_fails_unless_a_conjunct_before_is_false(first, second):
    """As AND is read: where one before is unknown, the row is seen all the same."""
    flags = [Column(i, pa.bool_()) for i in range(3)]
    fails = call("gt", call("divide", lit(1.0), Column(3, DOUBLE)), lit(0.0))
    columns = [
        pa.array([True, first]),
        pa.array([True, second]),
        pa.array([False, False]),
        pa.array([1.0, 0.0]),
    ]
    whole = conjunction([flags[0], flags[1], fails, flags[2]])
    assert whole is not None
    for _ in range(8):
        selection = Selection(whole)
        if first is False or second is False:
            assert selection.mask(columns, 2).tolist() == [False, False]
        else:
            with pytest.raises(DataError, match="divide by zero"):
                selection.mask(columns, 2)


def selections_of(draw: Any) -> Node:
    """Return a selection over a window, or over what a join or an aggregate makes of it."""
    node = draw(st.one_of(make.sources(("s", "r")), make.joins(make.sources(("s", "r")))))
    parts = draw(st.lists(make.predicates(node.schema), min_size=2, max_size=4))
    whole = conjunction(parts)
    assert whole is not None
    return Filter(node, whole)


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("lifetime", ["direct", "negative"])
@pytest.mark.parametrize("train", [1, 7])
@settings(ORACLE, max_examples=2 * ORACLE.max_examples)
@given(st.data())
def test_random_selections(train, lifetime, source):
    plan = selections_of(source.draw)
    data = source.draw(make.data())
    DICE.seed(source.draw(st.integers(0, 2**32)))
    options = {
        "train.rows": train,
        "lifetime": lifetime,
        "rules": source.draw(st.booleans()),
        "filter.order": source.draw(st.sampled_from(["adaptive", "adaptive", "written"])),
    }
    cuts = source.draw(make.cuts())
    check(plan, data, cuts=cuts, shards=source.draw(st.sampled_from([1, 3])), **options)


SCRIPT = """
    CREATE STREAM s (k INT, name STRING, v INT, t BIGINT) USING memory TIMESTAMP BY t;
    CREATE QUERY q AS SELECT k, n FROM
      (SELECT k, COUNT(*) AS n, MAX(name) AS top FROM s [RANGE 9] GROUP BY k) [RANGE UNBOUNDED]
      WHERE top LIKE '%a%' AND n > 1 AND n IN (2, 3, 5) AND n + 0.5 < 9;
"""


@pytest.mark.parametrize("lifetime", ["direct", "negative"])
@pytest.mark.parametrize("train", [1, 7])
def test_behind_an_exchange(train, lifetime, monkeypatch, restless):
    monkeypatch.setattr("penstock.expr.selection._FEWEST", 1)
    rig = Rig(SCRIPT, settings={"train.rows": train, "lifetime": lifetime}, shards=2)
    names = ["a", "b", "bab", None]
    for first in range(0, 120, 40):
        rig.feed("s", [(t % 3, names[t * t % 4], t % 5, t) for t in range(first, first + 40)])
    rig.end()
    rig.assert_oracle()


def test_a_failing_row_stops_the_query_as_before():
    script = """
        CREATE STREAM s (x INT, kind STRING, t BIGINT) USING memory TIMESTAMP BY t;
        CREATE QUERY q AS SELECT x FROM s [RANGE 9]
          WHERE kind LIKE 'r%' AND 10 / x > 1 AND kind LIKE '%o';
    """
    rows = [(i % 7, "ratio" if i % 7 else "other", i) for i in range(3000)]
    rig = Rig(script)
    rig.feed("s", rows)
    rig.end()
    rig.assert_oracle()
    rig = Rig(script)
    with pytest.raises(DataError, match=r"a / b must have a DOUBLE value .* \(query q"):
        rig.feed("s", [*rows, (0, "rate", 3000)])  # which the last condition would sort out


# Who decides


def ranking(numbers: dict[str, int] | None = None, count: int = 3) -> Ranking:
    return Ranking([list(range(count))], [1e-9] * count, numbers or {})


def sample(to: Ranking, costs: list[float], *sets: tuple[int, int]) -> None:
    """Tell seconds for a row of each conjunct, and how many rows each set of them drops."""
    to.fade()
    for which, cost in enumerate(costs):
        to.started(which, 0.0)
        to.evaluated(which, 10_000, 10_000 * cost)
    to.sampled(np.repeat([s for s, _ in sets], [n for _, n in sets]), 1e-3)


def test_the_order_follows_cost_and_selectivity():
    found = ranking()
    assert found.order == (0, 1, 2)
    sample(found, [1e-7, 1e-7, 1e-7], (0b001, 10), (0b010, 500), (0b100, 100), (0, 390))
    assert found.order == (1, 2, 0)
    for _ in range(4):  # the load changes, what was before fades
        sample(found, [1e-7, 1e-7, 1e-7], (0b001, 800), (0b010, 10), (0b100, 100), (0, 90))
    assert found.order == (0, 2, 1)
    for _ in range(4):  # the selective one becomes dear
        sample(found, [1e-4, 1e-7, 1e-7], (0b001, 800), (0b010, 10), (0b100, 100), (0, 90))
    assert found.order == (2, 1, 0)


def test_of_two_that_drop_the_same_rows_only_one_goes_first():
    found = ranking()
    sample(found, [1e-7, 1e-7, 1e-7], (0b011, 500), (0b100, 100), (0b010, 5), (0, 395))
    assert found.order == (1, 2, 0)


def test_conjuncts_that_can_fail_keep_their_place():
    found = Ranking([[0, 1], [2], [3, 4]], [1e-9] * 5, {})
    sample(found, [1e-7] * 5, (0b10000, 900), (0b00010, 50), (0, 50))
    assert found.order == (1, 0, 2, 4, 3)


def test_one_by_one_only_where_it_pays():
    found = ranking()
    sample(found, [1e-9, 2e-9, 1e-9], (0b111, 900), (0, 100))
    assert found.many >= INF
    sample(found, [1e-9, 2e-7, 3e-7], (0b001, 900), (0, 100))
    assert found.order[0] == 0
    assert 50 < found.many < 500
    assert found.pays(1, left=100, rows=1000, at_hand=True)
    assert not found.pays(1, left=995, rows=1000, at_hand=True)


def test_samples_have_a_bounded_price_and_come_sooner_after_a_surprise():
    found = ranking()
    assert found.work >= found.enough
    often = []
    for _ in range(10):
        sample(found, [1e-7] * 3, (0b001, 700), (0, 300))
        often.append(found.enough)
    assert found.work == 0
    assert often[:2] == pytest.approx([0.05 / 8, 0.1 / 8])
    assert often[7:] == pytest.approx([0.05] * 3)
    found.passed(0, 0.33)
    assert found.enough == pytest.approx(0.05)
    found.passed(2, 0.9)
    assert found.enough == pytest.approx(0.05 / 8)


def test_what_was_measured_survives_in_plain_numbers():
    found = ranking()
    sample(found, [1e-7, 2e-7, 3e-7], (0b010, 500), (0, 500))
    numbers: dict[str, int] = {"holders": 3}
    found.store(numbers)
    again = ranking(json.loads(json.dumps(numbers)))
    assert (again.order, again.enough, again.samples) == (found.order, found.enough, 1)
    assert again.many == pytest.approx(found.many, abs=1)
    assert [again.passing(i) for i in range(3)] == [1.0, 0.5, 1.0]
    assert [again.cost(i) for i in range(3)] == pytest.approx([1e-7, 2e-7, 3e-7])
    again.store(numbers)
    assert numbers["holders"] == 3
    assert ranking({"order.0": 7, "order.1": 0, "order.2": 1}).order == (0, 1, 2)


def dear(column: int) -> Expr:
    """Return a condition that costs some time, and passes where a text has a 7."""
    return call("rlike", Column(column, STRING), lit(".*7.*"))


DEAR = conjunction([dear(i) for i in range(4)])
assert DEAR is not None


def texts(selective: int, rows: int, seed: int) -> list[pa.Array]:
    """Return four columns, of which one has few sevens."""
    dice = np.random.default_rng(seed)
    found = []
    for column in range(4):
        often = 0.02 if column == selective else 0.95
        seven = dice.random(rows) < often
        found.append(pa.array(np.where(seven, "a text with 7 in it", "a text without it")))
    return found


def test_a_selection_finds_the_selective_conjunct_and_follows_it():
    selection = Selection(DEAR)
    seen = []
    for turn in range(30):
        columns = texts(3 if turn < 15 else 1, 8000, turn)
        expected = evaluate_mask(DEAR, columns, 8000)
        assert (selection.mask(columns, 8000) == expected).all()
        seen.append(selection.ranking.order[0])
    assert seen[:15] == [3] * 15
    assert seen[-5:] == [1] * 5


def test_written_order_stays():
    selection = Selection(DEAR, {}, adaptive=False)
    for turn in range(3):
        selection.mask(texts(3, 5000, turn), 5000)
    assert list(selection._order()) == [0, 1, 2, 3]
    assert selection.ranking.samples == 0


def test_very_many_conjuncts_are_evaluated_as_written():
    many = conjunction([call("gt", Column(0, LONG), lit(i)) for i in range(70)])
    assert many is not None
    column = pa.array(range(200))
    selection = Selection(many)
    assert selection.mask([column], 200).tolist() == [x > 69 for x in range(200)]
    assert selection.ranking.samples == 0


def test_an_operator_keeps_what_it_measured_in_its_state():
    storage, description = MemoryStorage(), None
    for turn in range(3):
        state = State(storage, description)
        operator = FilterSpec(DEAR).build()
        operator.open(Context(state))
        assert operator._selection.ranking.samples == (turn > 0)
        columns = texts(2, 2000, turn)
        (found,) = operator.receive(0, Batch.of(columns, np.arange(2000)))
        assert isinstance(found, Batch)
        assert len(found) == evaluate_mask(DEAR, columns, 2000).sum()
        operator.close()
        description = json.loads(json.dumps(state.describe()))
        assert description["numbers"]["order.0"] == 2
    alone = State(storage)
    operator = FilterSpec(dear(0)).build()
    operator.open(Context(alone, settings=Settings({"filter.order": "written"})))
    operator.close()
    assert alone.numbers == {}


# Packing, and EXPLAIN


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selections, "_learnt", {})


@pytest.mark.usefixtures("forgetful")
def test_a_process_remembers_a_bounded_number_of_selections(monkeypatch):
    monkeypatch.setattr(selections, "_MOST", 2)
    told = learn({"a": {"numbers": {"x": 1}, "runs": {}}, "b": {"numbers": {}}}, {"c": None})
    assert told == {"a": {"numbers": {"x": 1}}} == learnt()
    learn({"d": {"numbers": {"x": 2}}}, {"e": Selection(DEAR)})
    assert list(learnt()) == ["d", "e"]


class Telling(LocalEngine):
    """Keeps what packing has learnt."""

    def _take(self, outcome: Any) -> None:
        self.told = outcome.selections
        super()._take(outcome)


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("rules", [True, False])
def test_packing_learns_from_batch_to_batch_and_explain_shows_it(rules):
    columns = [Column(i, STRING, name) for i, name in enumerate("abcd")]
    fields = dict.fromkeys("abcd", STRING) | {"t": LONG}
    scan = Scan("s", make.schema_of(**fields), 4)
    whole = conjunction([call("rlike", c, lit(".*7.*")) for c in columns])
    assert whole is not None
    plan = Filter(Window(scan, WindowSpec()), whole)
    engine = Telling({"q": plan}, settings={"rules": rules})
    for turn in range(3):
        some = [*texts(1, 3000, turn), pa.array(range(turn * 3000, turn * 3000 + 3000))]
        engine.batch({"s": pa.table(some, names=list(fields))})
        (numbers,) = (state["numbers"] for state in engine.told.values())
        assert 1 <= numbers["samples"] <= 2  # the second, if the clock made work look dear
    digests = {node.digest for node in engine.plan.nodes}
    (line,) = conjunct_orders(engine.plan, [{}, engine.told], digests, {"s": list(fields)})
    where = "stream s, packing: b" if rules else "Filter, packing: #1"
    assert line.startswith(f"{where} RLIKE '.*7.*' (passes 2%, ")
    assert line.count("passes 9") == 3
    assert line.count("ns a row") == 4


@pytest.mark.spark
def test_explain_of_a_query_that_runs(spark: Any) -> None:
    with Session(spark, settings={"shards": 2}) as session:
        session.sql(
            """
            CREATE STREAM s (a STRING, b STRING, t BIGINT) USING memory TIMESTAMP BY t;
            CREATE QUERY q AS SELECT a, n FROM
              (SELECT a, COUNT(*) AS n, MAX(b) AS most FROM s [RANGE 10]
               WHERE a LIKE '%7%' AND b RLIKE '.*7.*' GROUP BY a) [RANGE UNBOUNDED]
              WHERE n + 0.5 > 1 AND most LIKE '%7%';
            """
        )
        for turn in range(2):
            some = zip(*(c.to_pylist() for c in texts(1, 2000, turn)[:2]), strict=True)
            rows = [(f"{a} {i % 50}", b, turn * 2000 + i) for i, (a, b) in enumerate(some)]
            session.push("s", rows)
            session.await_idle()
        lines = session.query("q").explain("physical").splitlines()
        (packing,) = (line for line in lines if line.startswith("stream s, packing: b RLIKE"))
        assert "; a LIKE '%7%' (passes 9" in packing
        behind = [line for line in lines if line.startswith("Filter, shard ")]
        assert all("#2 LIKE '%7%' (passes " in line for line in behind)
        assert behind


def test_patterns_are_checked_before_so_they_move_below_joins():
    script = """
        CREATE STREAM a (k INT, name STRING, t BIGINT) USING memory TIMESTAMP BY t;
        CREATE STREAM b (k INT, name STRING, t BIGINT) USING memory TIMESTAMP BY t;
    """
    query = """CREATE QUERY q AS SELECT a.k FROM a [RANGE 9] JOIN b [RANGE 9] ON a.k = b.k
        WHERE a.name LIKE '%x%' AND b.name RLIKE 'y+' AND 10 / b.k > 1;"""
    plan = optimize(plans_of(script + query))["q"]
    scans = {n.stream: n.predicate for n in walk(plan) if isinstance(n, Scan)}
    assert {name: expr_text(p) for name, p in scans.items() if p is not None} == {
        "a": "name LIKE '%x%'",
        "b": "name RLIKE 'y+'",
    }
    for wrong in ("LIKE 'x\\a'", "RLIKE '(x'"):
        with pytest.raises(QueryError, match="cannot use its constant"):
            plans_of(script + query.replace("LIKE '%x%'", wrong))
