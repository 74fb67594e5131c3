"""Joins of three and more inputs as one operator or as a cascade: same answers, and who decides."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.algebra import Join, Node, Project, Window
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Call, Column, Expr, Literal
from penstock.physical.multiway import form_of, gather
from penstock.reference import Inputs, accept
from penstock.testing import run_local
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
        settings=options,
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
