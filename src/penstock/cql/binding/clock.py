"""Queries over tables alone: time passes by the clock.

The answer of a query over a table with ``VALID FROM .. TO`` changes, but no stream says how far
time has come.  Such a plan is united with the stream `CLOCK`, which never has a row and follows the
clock on the wall.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.algebra import Filter, Node, Project, UnionAll, Window, streams_of
from penstock.catalog import CLOCK
from penstock.cql.binding.times import STAMPS, time_kinds
from penstock.expr.nodes import Literal
from penstock.windows import WindowSpec


def beside_clock(plan: Node) -> Node:
    """Return a plan whose time passes: as it is, or, of tables valid by TIMESTAMP, by the clock."""
    if streams_of(plan) or time_kinds(plan) != {STAMPS}:
        return plan
    ticks = Window(CLOCK.scan, WindowSpec())
    nothing = Filter(ticks, Literal(False, pa.bool_()))
    nulls = tuple(Literal(None, kind) for kind in plan.schema.types)
    return UnionAll((plan, Project(nothing, nulls, plan.schema.names)))
