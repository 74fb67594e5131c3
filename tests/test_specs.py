"""Specs: state is found by what an operator computes, whatever its class and fields are called."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import algebra, operators
from penstock.errors import InternalError, StateError
from penstock.expr.nodes import Column, Expr, Literal
from penstock.kernels.join_orders import EQUAL, Band
from penstock.operators.base import Operator
from penstock.operators.join import JoinSpec
from penstock.operators.spec import Spec, digest_of, encoded
from penstock.operators.union import UnionSpec
from penstock.runs import manifest

ROOM = Path(operators.__file__).parent
for path in ROOM.glob("*.py"):
    importlib.import_module(f"penstock.operators.{path.stem}")


def below(kind: type) -> set[type]:
    found = {k for k in kind.__subclasses__() if k.__module__.startswith("penstock.")}
    return found.union(*map(below, found))


SPECS = sorted((k for k in below(Spec) if not k.__abstractmethods__), key=lambda k: k.key)
K = Column(0, pa.string())
JOIN = JoinSpec((pa.string(),), (pa.string(),), (K,), (K,), None, Band(-1.0, 2.5))


def test_state_is_kept_under_these_names():
    """A name that changes here loses the state of every checkpoint: raise a version instead."""
    assert [kind.key for kind in SPECS] == [
        "aggregate/1",
        "asof join/1",
        "covered/1",
        "distinct cut/1",
        "distinct/1",
        "filter/1",
        "group top/1",
        "join/1",
        "later/1",
        "multi join/1",
        "output/1",
        "over/1",
        "progressive merge join/1",
        "project/1",
        "rank/1",
        "route/1",
        "row window/1",
        "session window/1",
        "set operation/1",
        "shared join/1",
        "shared window/1",
        "signs/1",
        "since/1",
        "tag/1",
        "temporal merge join/1",
        "time window/1",
        "to stream/1",
        "top/1",
        "union/1",
        "unmatched/1",
    ]


def test_every_operator_has_a_spec_beside_it():
    modules = {kind.__module__ for kind in SPECS}
    assert {k.__module__ for k in below(Operator)} - {"penstock.operators.base"} == modules


@pytest.mark.parametrize("kind", SPECS, ids=lambda k: k.key)
def test_specs_say_what_planners_ask(kind):
    assert kind.holders in ("makes", "passes", "combines", "none")
    assert not (kind.rowwise and kind.sliced)
    assert kind.__dataclass_params__.frozen
    assert all(f.name not in vars(Spec) for f in fields(kind))


def test_a_digest_is_the_same_everywhere():
    assert encoded(JOIN) == (
        "join/1(left_keys=(Column(index=0,type=<string>)),left_types=(<string>),"
        "place=Band(high=2.5,low=-1.0),"
        "right_keys=(Column(index=0,type=<string>)),right_types=(<string>))"
    )
    assert digest_of(JOIN, "below") == "dfa9f99befe331b43065a23c"


def test_a_plan_has_the_same_digests_in_every_process():
    code = (
        "import pyarrow as pa\n"
        "from penstock.catalog import Catalog, StreamDef\n"
        "from penstock.cql import bind_query\n"
        "from penstock.model import Field, Schema\n"
        "from penstock.testing.local import LocalEngine\n"
        "c = Catalog()\n"
        "s = Schema((Field('k', pa.string()), Field('t', pa.int64())))\n"
        "c.add(StreamDef('s', s, 'memory', {}, 1))\n"
        "q = 'SELECT a.k, COUNT(*) AS n FROM s [ROWS 3] a, s [RANGE 9] b '\n"
        "q += 'WHERE a.k = b.k AND a.t IN (1, 2, 3) GROUP BY a.k'\n"
        "print([n.digest for n in LocalEngine({'q': bind_query(q, c)}).plan.nodes])\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_a_new_class_name_another_order_and_a_new_field_lose_no_state():
    @dataclass(frozen=True)
    class Renamed(Spec):
        kept: tuple[int, ...] | None = None
        numbers: tuple[int, ...] = ()
        place: object = EQUAL
        residual: Expr | None = None
        buffers: int = 0
        at_once: bool = False
        right_keys: Sequence[Expr] = ()
        left_keys: Sequence[Expr] = ()
        right_types: Sequence[pa.DataType] = ()
        left_types: Sequence[pa.DataType] = ()

        key = "join/1"

        def build(self) -> Operator:
            raise NotImplementedError

    given = {f.name: getattr(JOIN, f.name) for f in fields(JOIN)}
    assert digest_of(Renamed(**given)) == digest_of(JOIN)
    assert digest_of(Renamed(**given, buffers=1)) != digest_of(JOIN)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (1, "1"),
        (0.0, -0.0),
        (None, "None"),
        (pa.string(), "<string>"),
        (("a", "b"), ("a,b",)),
        (("a',", "b"), ("a", "',b")),
        (((1,), 2), ((1, 2),)),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (Literal(1, pa.int64()), Literal(1, pa.int32())),
        (UnionSpec(2), UnionSpec(3)),
    ],
)
def test_what_differs_has_another_text(one, other):
    assert encoded(one) != encoded(other)


def test_only_plain_values_are_part_of_a_spec():
    with pytest.raises(InternalError, match="a spec must hold plain values, got object"):
        encoded((1, object()))


@pytest.mark.parametrize("room", ["physical", "asking"])
def test_planners_ask_specs_not_classes_of_operators(room):
    """Only who runs operators, or takes rows out of them, knows their classes."""
    classes = {kind.__name__ for kind in below(Operator)} - {"OutputOperator"}
    for path in (ROOM.parent / room).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock.op"):
                assert not classes & {alias.name for alias in node.names}, path.name


def test_a_manifest_of_the_version_before_is_refused(tmp_path):
    content = {"batch": 0, "format": min(manifest.READABLE) - 1}
    content["digest"] = manifest.digest_of(manifest.canonical(content))
    path = tmp_path / "0000000000.json"
    path.write_text(json.dumps(content))
    with pytest.raises(StateError, match="must have format 6, got 4; it was made by another ver"):
        manifest.read_manifest(path, 0)


# The five files of an operator, held strictly

HOMES = ("algebra.py", "physical/planner.py", "reference/", "cql/", "session/builder.py")
"""Where any node may be named: the promised files, and the language in which it is written."""

ALSO = {
    "Scan": "physical/eras physical/at_once physical/lane_plan physical/early_plan "
    "catalog optimizer/__init__ optimizer/narrow_scans optimizer/push_filters "
    "optimizer/window_joins "
    "physical/asof physical/joins physical/over testing/",
    "TableScan": "physical/eras physical/at_once physical/lane_plan physical/early_plan "
    "asking/ catalog optimizer/__init__ physical/joins physical/multiway "
    "physical/once testing/",
    "Window": "physical/at_once physical/eras physical/explain_change physical/lane_plan "
    "physical/early_plan "
    "asking/ catalog optimizer/__init__ optimizer/group_before_bounds optimizer/narrow_scans "
    "optimizer/push_filters optimizer/window_joins physical/asof physical/joins "
    "physical/window_distribution",
    "Filter": "physical/eras physical/at_once physical/lane_plan physical/early_plan "
    "optimizer/__init__ optimizer/bound_ranks optimizer/group_before_bounds optimizer/narrow_scans "
    "optimizer/push_filters optimizer/window_joins "
    "optimizer/reduce_outer_joins physical/asof physical/joins physical/multiway "
    "physical/window_distribution",
    "Project": "physical/eras testing/eras physical/at_once physical/lane_plan physical/early_plan "
    "optimizer/__init__ optimizer/bound_ranks optimizer/distinct_partners "
    "optimizer/drop_identities optimizer/group_before_bounds "
    "optimizer/narrow_scans optimizer/push_filters optimizer/window_joins physical/asof "
    "physical/joins physical/multiway physical/once physical/window_distribution",
    "Join": "physical/eras physical/at_once physical/lane_plan "
    "optimizer/__init__ optimizer/distinct_partners optimizer/narrow_scans optimizer/push_filters "
    "optimizer/reduce_outer_joins optimizer/window_joins physical/join_kinds physical/joins "
    "physical/multiway physical/shared_windows",
    "AsofJoin": "physical/asof",
    "Aggregate": "optimizer/group_before_bounds optimizer/narrow_scans optimizer/push_filters "
    "physical/eras physical/once",
    "Distinct": "optimizer/distinct_partners optimizer/push_filters physical/joins",
    "UnionAll": "physical/eras physical/at_once physical/lane_plan "
    "optimizer/__init__ optimizer/narrow_scans optimizer/push_filters physical/joins",
    "SetOp": "optimizer/push_filters",
    "TopK": "physical/once",
    "Rank": "optimizer/bound_ranks optimizer/narrow_scans optimizer/push_filters",
    "GroupTop": "optimizer/bound_ranks optimizer/narrow_scans optimizer/push_filters",
    "ToStream": "physical/at_once physical/lane_plan physical/early_plan "
    "optimizer/group_before_bounds optimizer/push_filters physical/joins",
    "Over": "optimizer/narrow_scans optimizer/push_filters physical/joins physical/over",
}
"""Rules about one node and what lowers it.  It may become less: ask the node, or its spec."""


def naming() -> dict[str, set[str]]:
    """Return the files of the package that name each node of the algebra."""
    found: dict[str, set[str]] = {node.__name__: set() for node in algebra.NODES}
    for path in ROOM.parent.rglob("*.py"):
        for part in ast.walk(ast.parse(path.read_text())):
            said = set()
            match part:
                case ast.ImportFrom(module="penstock.algebra"):
                    said = {alias.name for alias in part.names}
                case ast.Attribute(value=ast.Name(id="algebra"), attr=name):
                    said = {name}
            for name in said & set(found):
                found[name].add(str(path.relative_to(ROOM.parent)))
    return found


def test_a_new_operator_touches_five_files():
    for node, files in naming().items():
        allowed = (*HOMES, *ALSO.get(node, "").split())
        strange = sorted(file for file in files if not file.startswith(allowed))
        assert not strange, f"{node} is named in {strange}: let the node or its spec say it"
        assert "physical/planner.py" in files, f"{node} has no lowering"


def test_every_exception_is_needed():
    named = naming()
    for node, places in ALSO.items():
        for place in places.split():
            assert any(file.startswith(place) for file in named[node]), f"{node}: {place}"


def test_a_manifest_of_format_5_is_continued(tmp_path: Path) -> None:
    content = vars(manifest.Manifest(batch=3, format=5)).copy()
    del content["measured"], content["digest"]
    content["digest"] = manifest.digest_of(manifest.canonical(content))
    path = tmp_path / "0000000003.json"
    path.write_text(manifest.canonical(content))
    found = manifest.read_manifest(path, 3)
    assert found is not None
    assert (found.format, found.measured) == (5, {})
