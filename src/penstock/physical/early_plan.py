"""Early answers: an important row with what is known of the other streams, before that is final.

``EARLY INTO`` is for queries that must take the main lane.  The parts of their plan that do not
read the stream with priorities become kept relations.  The lane answers a row with these as they
were at the last instant that is final for all of them, and the early row says which that was.
It is another answer than the final one, which comes by the main lane into the query's own sink.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock import algebra
from penstock.algebra import Node, Scan, TableScan
from penstock.errors import QueryError
from penstock.physical.lane_plan import has_priorities


@dataclass
class EarlyPlan:
    """What answers a row early: ``node`` reads the stream and the relations that are kept.

    A kept relation stands in it as the table ``kept <number>``.
    """

    node: Node
    scan: Scan
    kept: list[Node] = field(default_factory=list)


def early_plan(plan: Node) -> EarlyPlan:
    """Take a plan apart, or say why its rows cannot be answered early."""
    found = EarlyPlan(plan, _only_scan(plan))
    if isinstance(plan, algebra.ToStream):
        if plan.kind != "istream":
            raise _refused(f"{plan.kind.upper()} says what is true at the end of an instant")
        plan = plan.input
    found.node = algebra.with_priorities(_apart(plan, found), ())
    return found


def can_be_early(plan: Node) -> bool:
    """Whether EARLY INTO would answer the important rows of a plan."""
    try:
        early_plan(plan)
    except QueryError:
        return False
    return True


def kept_name(query: str, number: int) -> str:
    """Return the name under which a relation is kept for a query's early answers."""
    return f"{query}~early {number}"


def kept_for(name: str) -> str | None:
    """Return the query for whose early answers a relation of this name is kept; None: for none."""
    query, mark, _ = name.rpartition("~early ")
    return query if mark else None


def early_outlet(query: str) -> str:
    """Return the name under which a query's early answers leave; no query has such a name."""
    return f"{query}~early"


def _only_scan(plan: Node) -> Scan:
    scans = [n for n in algebra.walk(plan) if isinstance(n, Scan) and n.prioritised]
    if len(scans) != 1:
        raise _refused("it must read one stream with PRIORITY, once")
    return scans[0]


def _apart(node: Node, found: EarlyPlan) -> Node:
    """Put tables in the place of what does not read the important stream."""
    if not has_priorities(node):
        found.kept.append(node)
        return TableScan(f"kept {len(found.kept) - 1}", node.schema)
    match node:
        case Scan():
            return node
        case algebra.Filter(below, _) | algebra.Project(below, _, _):
            return replace(node, input=_apart(below, found))
        case algebra.Window(below, spec) if spec.by_time and spec.bounds is None:
            return replace(node, input=_apart(below, found))
        case algebra.TwoSided(left=left, right=right):
            if node.row_by_row[0 if has_priorities(left) else 1]:
                return replace(node, left=_apart(left, found), right=_apart(right, found))
    raise _refused(algebra.why_in_order(node))


def _refused(why: str) -> QueryError:
    return QueryError(
        f"EARLY INTO answers each important row alone, with what is known of the other streams, "
        f"but here that cannot be done: {why}; leave EARLY INTO out, or put what is counted or "
        f"compared into a sub-query over the other streams"
    )
