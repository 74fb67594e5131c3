"""Golden files of plans: what EXPLAIN says of many queries, and what each rule does to a plan."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from penstock import optimizer
from penstock.algebra import JOIN_KINDS, NODES, GroupTop, Join, Window, walk
from penstock.optimizer import RULES
from penstock.windows import WindowSpec
from tests.plan_runner import PLANS, RULE_FILES, answers, read


@pytest.mark.parametrize("path", [*PLANS, *RULE_FILES], ids=lambda p: p.stem)
def test_plans(path: Path) -> None:
    golden = read(path)
    assert {q.name: q.expected for q in golden.queries} == answers(golden)


def test_everything_occurs() -> None:
    """All operators, kinds of join and parts of windows stand in at least forty queries."""
    goldens = [read(path) for path in PLANS]
    assert sum(len(golden.queries) for golden in goldens) >= 40
    nodes = [n for golden in goldens for plan in golden.bound().values() for n in walk(plan)]
    assert {type(node) for node in nodes} == set(NODES) - {GroupTop}  # which a rule makes
    assert {node.kind for node in nodes if isinstance(node, Join)} == set(JOIN_KINDS)
    specs = [node.spec for node in nodes if isinstance(node, Window)]
    for field in fields(WindowSpec):
        assert any(getattr(spec, field.name) for spec in specs), field.name


def test_a_rule_has_a_module_and_a_file_of_its_name() -> None:
    names = {rule.__name__ for rule in RULES}
    assert names == {path.stem for path in RULE_FILES}
    for rule in RULES:
        assert rule.__module__ == f"{optimizer.__name__}.{rule.__name__}"


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda p: p.stem)
def test_a_rule_is_seen_at_work_and_at_rest(path: Path) -> None:
    ends = ["unchanged" in query.expected for query in read(path).queries]
    assert True in ends
    assert False in ends
