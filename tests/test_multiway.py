"""Joins of three and more inputs as one operator or as a cascade: same answers, and who decides."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import algebra
from penstock.algebra import Join, Node, Project, Window
from penstock.catalog import Catalog, StreamDef, TableDef
from penstock.cql import bind_query
from penstock.errors import QueryError
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Call, Column, Expr, Literal
from penstock.operators.join import JoinSpec
from penstock.operators.multi_join import MultiJoinSpec
from penstock.optimizer import optimize
from penstock.optimizer.nameless import canonical
from penstock.physical.explain import explain
from penstock.physical.multiway import form_of, gather, meaning_of, measured, probe_orders
from penstock.physical.plan import PhysicalPlan
from penstock.physical.planner import Query, plan
from penstock.reference import Inputs, accept
from penstock.settings import Settings
from penstock.testing import LocalEngine, run_local
from tests import strategies as make
from tests.comparison import check_answer
from tests.strategies import LONG, SCANS, Data
from tests.test_oracle import ORACLE

K = {"s": 0, "r": 0}
X = {"s": 1, "r": 1, "q": 0}
"""Where the streams have their name and their number."""


@st.composite
def members(draw, names: tuple[str, ...]) -> list[tuple[str, Node]]:
    chosen = draw(st.lists(st.sampled_from(names), min_size=3, max_size=4))
    return [(name, Window(SCANS[name], draw(make.windows(SCANS[name].schema)))) for name in chosen]


def columns(parts: list[tuple[str, Node]], which: dict[str, int]) -> list[Column]:
    """Return one column of each member, numbered over all of them."""
    found, first = [], 0
    for name, node in parts:
        found.append(Column(first + which[name], node.schema[which[name]].type))
        first += len(node.schema)
    return found


def local(column: Column, parts: list[tuple[str, Node]], at: int) -> Column:
    first = sum(len(node.schema) for _, node in parts[:at])
    return Column(column.index - first, column.type)


@st.composite
def equal_chains(draw) -> Node:
    """Joins by one class of keys, each linked to any member before, with any residual."""
    kind = draw(st.sampled_from([K, X]))
    parts = draw(members(tuple(kind)))
    keys = columns(parts, kind)
    tree = parts[0][1]
    for at in range(1, len(parts)):
        other = keys[draw(st.integers(0, at - 1))]
        left, right = [other], [local(keys[at], parts, at)]
        if draw(st.integers(0, 3)) == 0:  # a second key that not all have
            x = columns(parts, X)
            left.append(x[draw(st.integers(0, at - 1))])
            right.append(local(x[at], parts, at))
        node = parts[at][1]
        residual = None
        if draw(st.booleans()):
            both = make.Schema(tree.schema.fields + node.schema.fields)
            residual = draw(make.predicates(both))
        tree = Join(tree, node, tuple(left), tuple(right), residual)
        if draw(st.integers(0, 3)) == 0 and at + 1 < len(parts):
            kept = [Column(i, f.type, f.name) for i, f in enumerate(tree.schema)]
            tree = Project(tree, tuple(kept), tree.schema.names)
    return tree


def conjunction(parts: list[Expr]) -> Expr | None:
    whole = None
    for part in parts:
        whole = part if whole is None else resolve_call("and", [whole, part])
    return whole


@st.composite
def interval_chains(draw) -> Node:
    """Joins by overlaps or bands between any members, with the time as the other end."""
    parts = draw(members(tuple(X)))
    low = columns(parts, X)
    time = columns(parts, {"s": 3, "r": 2, "q": 2})
    bands = draw(st.booleans())
    tree = parts[0][1]
    for at in range(1, len(parts)):
        linked = draw(st.sets(st.integers(0, at - 1), min_size=1, max_size=2))
        conditions: list[Expr] = []
        for other in sorted(linked):
            if bands:
                difference = Call("subtract", (low[at], low[other]), LONG)
                least, most = draw(st.integers(-3, 0)), draw(st.integers(0, 3))
                conditions.append(resolve_call("ge", [difference, Literal(least, LONG)]))
                conditions.append(resolve_call("le", [difference, Literal(most, LONG)]))
            else:
                conditions.append(resolve_call("le", [low[other], time[at]]))
                conditions.append(resolve_call("le", [low[at], time[other]]))
        node = parts[at][1]
        if draw(st.integers(0, 2)) == 0:
            both = make.Schema(tree.schema.fields + node.schema.fields)
            conditions.append(draw(make.predicates(both)))
        tree = Join(tree, node, (), (), conjunction(conditions))
    return tree


def check(tree: Node, data: Data, source, **options) -> None:
    answers = run_local(
        {"q": tree},
        data.streams,
        data.tables,
        cuts=source.draw(make.cuts()),
        shards=source.draw(st.sampled_from([1, 3])),
        slack=data.slack,
        settings=options | {"lifetime": source.draw(st.sampled_from(["direct", "negative"]))},
    )
    truth = Inputs({n: accept(r, data.slack)[0] for n, r in data.streams.items()}, data.tables)
    check_answer(tree, answers["q"], truth)


@pytest.mark.parametrize("way", ["always", "never"])
@settings(ORACLE, max_examples=2 * ORACLE.max_examples)
@given(equal_chains(), make.data(most=7), st.data())
def test_equal_keys(way, tree, data, source):
    if way == "always":
        assert form_of(gather(tree), True) is not None
    rules = source.draw(st.booleans())
    check(tree, data, source, **{"join.multiway": way, "rules": rules})


@pytest.mark.parametrize("way", ["always", "never"])
@settings(ORACLE, max_examples=2 * ORACLE.max_examples)
@given(interval_chains(), make.data(most=7), st.data())
def test_intervals(way, tree, data, source):
    check(tree, data, source, **{"join.multiway": way})


# Who decides

STREAM = make.schema_of(
    k=LONG, m=LONG, lo=make.DOUBLE, hi=make.DOUBLE, n=LONG, w=pa.timestamp("us"), t=LONG
)
THREE = "FROM a [RANGE 9], b [RANGE 9], c [RANGE 9] WHERE"
EQUAL = f"SELECT a.m, c.hi {THREE} a.k = b.k AND b.k = c.k"
MEET = f"""SELECT a.lo, b.m, c.hi {THREE} a.lo < b.hi AND b.lo < a.hi AND a.lo < c.hi
    AND c.lo < a.hi"""


def catalog() -> Catalog:
    known = Catalog()
    for name in "abcd":
        known.add(StreamDef(name, STREAM, "memory", {}, 6))
    known.add(TableDef("tab", make.schema_of(k=LONG, label=make.STRING), "memory", {}, None, None))
    return known


def planned(*texts: str, numbers=None, known=None, **options) -> PhysicalPlan:
    """Plan queries together; settings have an underscore for their dot."""
    plans = optimize({f"q{i}": bind_query(text, catalog()) for i, text in enumerate(texts)})
    queries = [Query(name, node) for name, node in plans.items()]
    settings = {name.replace("_", ".", 1): value for name, value in options.items()}
    return plan(queries, Settings(settings), numbers or {}, known)


def joins_of(whole: PhysicalPlan) -> list[str]:
    """Return the labels of joins of many inputs, or those of joins of two."""
    by_kind = {
        kind: [n.label for n in whole.nodes if isinstance(n.spec, kind)]
        for kind in (MultiJoinSpec, JoinSpec)
    }
    assert not (by_kind[MultiJoinSpec] and by_kind[JoinSpec])
    return by_kind[MultiJoinSpec] or by_kind[JoinSpec]


def why(*texts: str, **options) -> str:
    """Return what the plan says of the join at the top."""
    return joins_of(planned(*texts, **options))[-1]


def test_one_operator_unless_something_speaks_against_it():
    assert why(EQUAL) == "Join of 3 inputs by equal keys; intermediate results not measured"
    assert why(MEET).startswith("Join of 3 inputs of intervals that meet; ")
    assert "cascade: join.multiway" in why(EQUAL, join_multiway="never")
    assert why(EQUAL, join_multiway="always").endswith("; join.multiway")


def test_hints_go_before_settings():
    hinted = EQUAL.replace("SELECT", "SELECT /*+ MULTIWAY */", 1)
    assert why(hinted, join_multiway="never") == "Join of 3 inputs by equal keys; hint"
    hinted = EQUAL.replace("SELECT", "SELECT\n  /*+ cascade */", 1)
    labels = joins_of(planned(hinted, join_multiway="always"))
    assert len(labels) == 2
    assert labels[-1].endswith("; cascade: hint")


def test_an_unknown_hint_is_underlined():
    with pytest.raises(QueryError, match="one of MULTIWAY, CASCADE, got 'HASH'") as raised:
        bind_query(EQUAL.replace("SELECT", "SELECT /*+ HASH */", 1), catalog())
    assert raised.value.start == 11


def test_hints_of_blocks_do_not_mix():
    """A sub-query keeps its own hint, and is then an input of the outer join."""
    inner = "(SELECT /*+ CASCADE */ a.k, c.m FROM a [RANGE 9], b [RANGE 9], c [RANGE 9] WHERE"
    inner += " a.k = b.k AND b.k = c.k) AS i"
    text = f"SELECT i.m FROM {inner}, d [RANGE 9] WHERE d.k = i.k"
    assert len(joins_of(planned(text))) == 3


@pytest.mark.parametrize(
    "where",
    [
        "a.k = b.k AND b.m = c.m",
        "a.k = b.k AND c.lo < a.hi AND a.lo < c.hi",
        "a.lo < b.hi AND b.lo < a.hi AND a.k BETWEEN c.k - 1 AND c.k + 1",
        "a.k = b.k AND a.m + b.m = c.m",
    ],
)
def test_no_order_serves_all(where):
    text = f"SELECT a.m {THREE} {where}"
    assert len(joins_of(planned(text))) == 2
    assert "no order serves all inputs" in why(text, join_multiway="always")


@pytest.mark.parametrize(
    ("where", "label"),
    [
        ("a.k = b.k AND c.k = a.k AND a.m = b.m", "by equal keys"),
        ("a.k = b.k AND c.k = b.k AND a.m = c.m AND b.m = a.m", "by equal keys"),
        ("a.k + 0.5 = b.lo AND c.lo = b.lo AND c.m < a.m", "by equal keys"),
        ("ABS(a.n - b.n) <= 2 AND c.n BETWEEN a.n - 1 AND a.n + 1", "in bands"),
        ("a.w BETWEEN b.w AND b.w + INTERVAL 1 SECOND AND c.w = a.w + INTERVAL 2 SECONDS",
         "in bands"),
        ("OVERLAPS(a.lo, a.hi, b.lo, b.hi) AND OVERLAPS(c.lo, c.hi, b.lo, b.hi)",
         "of intervals that meet"),
    ],
)  # fmt: skip
def test_orders_that_serve_all(where, label):
    got = why(f"SELECT a.m, b.k, c.hi {THREE} {where}", join_multiway="always")
    assert got == f"Join of 3 inputs {label}; join.multiway"


def test_a_part_of_a_tree_may_be_one_operator():
    text = f"{EQUAL} AND a.lo < d.hi AND d.lo < a.hi".replace(" WHERE", ", d [RANGE 9] WHERE")
    kinds = [type(n.spec) for n in planned(text).nodes]
    assert kinds.count(MultiJoinSpec) == kinds.count(JoinSpec) == 1


def test_keys_that_all_inputs_have_decide_where_rows_go():
    whole = planned(f"SELECT a.m, b.k {THREE} a.k = b.k AND c.k = a.k AND c.m = b.m AND a.m = c.m")
    (joined,) = (n for n in whole.nodes if isinstance(n.spec, MultiJoinSpec))
    windows = [whole.nodes[i.producer] for i in joined.inputs]
    through = {str(whole.channels[w.inputs[0].channel].exchange) for w in windows}
    assert through == {"hash(#0, #1)"}
    assert joined.partitioning is not None


def test_a_table_stays_a_join_of_two():
    text = (
        "SELECT a.m, tab.label FROM a [RANGE 9], b [RANGE 9], tab WHERE a.k = b.k AND b.k = tab.k"
    )
    assert why(text).endswith("; cascade: a table may be large")
    assert why(text, join_multiway="always").startswith("Join of 3 inputs")


def test_a_part_that_another_query_needs_speaks_for_the_cascade():
    two = "SELECT a.k, b.m FROM a [RANGE 9], b [RANGE 9] WHERE a.k = b.k"
    three = "SELECT a.k, b.m, c.n FROM a [RANGE 9], b [RANGE 9], c [RANGE 9] WHERE a.k = b.k AND "
    three += "b.k = c.k"
    assert why(three).startswith("Join of 3")
    assert why(two, three).endswith("; cascade: another query needs a part")
    assert why(three, three).startswith("Join of 3")


def test_what_was_measured_decides():
    node = optimize({"q": bind_query(EQUAL, catalog())})["q"]
    first = next(gather(n).first for n in algebra.walk(canonical(node)) if isinstance(n, Join))
    label = why(EQUAL, known={meaning_of(first): 0.01})
    assert label.endswith("; cascade: first join gives 0.01 results per row")
    label = why(EQUAL, known={meaning_of(first): 40.0})
    assert label == "Join of 3 inputs by equal keys; first join gives 40 results per row"


def test_measuring_joins_that_run():
    """The results per row of a join of two are known to a query that contains it."""
    two = "SELECT a.k, a.m FROM a [RANGE 9], b [RANGE 9] WHERE a.k = b.k"
    whole = planned(two)
    (joined,) = (n for n in whole.nodes if isinstance(n.spec, JoinSpec))
    rows = {joined.digest: 30}
    rows |= {whole.nodes[i.producer].digest: 50 for i in joined.inputs}
    (ratio,) = measured(whole, rows).values()
    assert ratio == 0.3
    text = f"SELECT a.m {THREE} a.k = b.k AND b.k = c.k"
    assert "0.3 results per row" in why(text, known=measured(whole, rows))
    assert measured(whole, {}) == {}


@pytest.mark.parametrize("first", ["always", "never"])
def test_a_query_that_runs_stays_as_it_is(first):
    before = planned(EQUAL, join_multiway=first)
    for then in ("always", "never", "auto"):
        after = planned(EQUAL, numbers=before.numbers, join_multiway=then)
        digests = {n.digest for n in after.nodes}
        assert {n.digest for n in before.nodes} <= digests
        assert joins_of(after)[-1].endswith("as it runs already")


def test_explain_shows_the_decision_and_the_orders():
    whole = planned(EQUAL)
    assert "Join of 3 inputs by equal keys; intermediate" in explain(whole, "q0", 2)
    engine = LocalEngine({"q": bind_query(EQUAL, catalog())})
    for batch in range(4):
        times = range(10 * batch, 10 * batch + 10)
        rows = {
            n: [(t % s, 1, 0.0, 1.0, 1, 0, t) for t in times]
            for n, s in zip("abc", (1, 3, 9), strict=True)
        }
        engine.batch(rows)
    states = engine._states
    digests = {n.digest for n in engine.plan.nodes}
    (line,) = probe_orders(engine.plan, states, digests)
    assert line.startswith("Join of 3 inputs by equal keys, shard 0: 0 probes 2, 1; ")
    assert line.endswith("no pair is kept")
