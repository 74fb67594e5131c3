"""The physical plan as text: operators, update patterns, lifetimes, exchanges, stages, sharing.

How the ends of rows travel is said for each operator.  By the direct method an end that is not
known at birth has a holder: it is said who makes holders, who passes them on, and who keeps rows
and waits for them.  By negative tuples, it is said where rows get their signs.
"""

from __future__ import annotations

from penstock.errors import some_of
from penstock.kernels.join_orders import Equal, EqualBand
from penstock.operators.join import SharedJoinSpec
from penstock.operators.negative_tuples import NegativeTuplesSpec
from penstock.operators.output import OutputSpec
from penstock.operators.route import RouteSpec
from penstock.operators.time_window import TimeWindowSpec
from penstock.operators.to_stream import ToStreamSpec
from penstock.physical.early_plan import kept_for
from penstock.physical.key_splits import pairs
from penstock.physical.plan import PhysicalNode, PhysicalPlan


def explain(plan: PhysicalPlan, query: str, shards: int, splitting: bool = True) -> str:
    """Return the part of a plan that answers one query, as an indented tree.

    ``splitting``: hot keys of joins are split while they run, where that can be.
    """
    users = plan.users()
    made_by = holders(plan)
    known = pairs(plan) if splitting and shards > 1 else []
    split = frozenset().union(*(pair.joins for pair in known))
    lines: list[str] = []

    def visit(at: int, depth: int, note: str) -> None:
        node = plan.nodes[at]
        facts = []
        if node.stage < 0:
            facts.append("packing")
        else:
            facts.append(f"stage {node.stage}")
            facts.append("one shard" if _single(node.partitioning) else f"{shards} shards")
        if node.pattern:
            facts.append(node.pattern)
        if isinstance(node.spec, OutputSpec):
            facts.append(_leaving(node.spec))
        facts += _negative(node) if plan.negative else _direct(plan, at, made_by)
        if node.partitioning is not None and node.partitioning.kind == "hash":
            facts.append(f"by {node.partitioning}")
        if at in split:
            place = getattr(node.spec, "place", None)
            keys = "keys" if isinstance(place, Equal | EqualBand) else "cells"
            facts.append(f"hot {keys} are split while running")
        others = sorted({_user(name, query) for name in users[at] - {query}})
        if others:
            facts.append(f"shared with {some_of(others)}")
        lines.append(f"{'  ' * depth}{note}{node.label}  [{', '.join(facts)}]")
        for source in node.inputs:
            through = ""
            if source.channel is not None:
                through = f"exchange {plan.channels[source.channel].exchange} <- "
            visit(source.producer, depth + 1, through)

    visit(plan.answer(query).node, 0, "")
    queries = sum(kept_for(found.query) is None for found in plan.answers)
    lines.append(
        f"one Spark job per batch: packing and {plan.stages} stage(s) of {shards} task(s); "
        f"{queries} queries, {len(plan.nodes)} operators in the whole plan"
    )
    return "\n".join(lines)


def _user(name: str, query: str) -> str:
    """Return how a query, or what is kept for early answers, is called where another is told of."""
    early = kept_for(name)
    if early is None:
        return name
    return "its early answers" if early == query else f"early answers of {early}"


def holders(plan: PhysicalPlan) -> dict[int, frozenset[int]]:
    """Return, for each node, the nodes that made the holders which its rows may have."""
    found: dict[int, frozenset[int]] = {}
    for at, node in enumerate(plan.nodes):  # a node stands behind its inputs
        below = frozenset().union(*(found[i.producer] for i in node.inputs))
        match None if node.spec is None else node.spec.holders:
            case "makes":
                found[at] = frozenset((at,))
            case "passes":
                found[at] = below
            case "combines":
                found[at] = below | {at} if len(below) > 1 else below
            case _:
                found[at] = frozenset()
    return found


def _direct(plan: PhysicalPlan, at: int, made_by: dict[int, frozenset[int]]) -> list[str]:
    """Return how a node gets and gives the ends of rows by the direct method."""
    node = plan.nodes[at]
    if node.spec is None or node.stage < 0:
        return []
    below = frozenset().union(*(made_by[i.producer] for i in node.inputs))
    facts = ["direct"]
    if at in made_by[at]:
        facts.append("makes holders")
    elif below and made_by[at]:
        facts.append("passes holders on")
    if below and node.spec.sliced:
        names = sorted({plan.nodes[i].label for i in below})
        facts.append(f"waits for the holders of {', '.join(names)}")
    return facts


def _negative(node: PhysicalNode) -> list[str]:
    """Return how a node gets and gives the ends of rows by negative tuples."""
    match node.spec:
        case None | TimeWindowSpec() | ToStreamSpec() | RouteSpec() | OutputSpec(at_once=True):
            return []
        case SharedJoinSpec():
            return ["direct"]
        case NegativeTuplesSpec():
            return ["keeps rows until they die, then sends them again"]
    return ["negative tuples"] if node.stage >= 0 else []


def _leaving(output: OutputSpec) -> str:
    """Return when rows of an answer leave."""
    if output.final and output.mode == "intervals":
        return "leaves when it is made"
    return "leaves at once" if output.at_once else "waits for the heartbeat"


def _single(partitioning: object) -> bool:
    return getattr(partitioning, "kind", "") == "single"
