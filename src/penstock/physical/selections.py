"""What selections have learnt about their conjuncts: where packing keeps it, how EXPLAIN shows it.

Selections behind an exchange keep it in their state.  Packing has no state: there it is kept by the
process, which packs batch after batch, and a new one learns again from its first rows.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from penstock.cql import expr_text
from penstock.expr.nodes import Expr
from penstock.expr.selection import Selection
from penstock.operators.filter import FilterSpec
from penstock.physical.plan import PhysicalNode, PhysicalPlan

_MOST = 1024
"""Selections of which a process knows something."""

_learnt: dict[str, dict[str, Any]] = {}
"""States of selections by digest, those that were stored last at the end."""


def learnt() -> dict[str, dict[str, Any]]:
    """Return what this process has learnt, as states by digest."""
    return dict(_learnt)


def learn(
    states: Mapping[str, Mapping[str, Any]], sources: Mapping[str, Selection | None]
) -> dict[str, dict[str, Any]]:
    """Keep, and return, what states of operators and selections of sources have learnt."""
    found = {digest: dict(state["numbers"]) for digest, state in states.items()}
    for digest, selection in sources.items():
        if selection is not None:
            selection.store(found.setdefault(digest, {}))
    told = {digest: {"numbers": numbers} for digest, numbers in found.items() if numbers}
    for digest, state in told.items():
        _learnt.pop(digest, None)
        _learnt[digest] = state
    for digest in list(_learnt)[:-_MOST]:
        _learnt.pop(digest, None)
    return told


def selection_of(node: PhysicalNode, adaptive: bool) -> Selection | None:
    """Return the selection of a source, with what this process has learnt about it."""
    if node.source is None or node.source.predicate is None:
        return None
    known = _learnt.get(node.digest, {}).get("numbers", {})
    return Selection(node.source.predicate, known, adaptive)


def conjunct_orders(
    plan: PhysicalPlan,
    states: Sequence[Mapping[str, Any]],
    digests: Container[str],
    names: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    """Yield in which order the conjuncts of each selection are evaluated, and what they are like.

    ``states`` are those of the shards, and what was told of packing; ``names`` are those of the
    columns of streams.
    """
    for node in plan.nodes:
        predicate = _predicate(node)
        columns = None if node.source is None else names.get(node.source.name)
        for shard, known in enumerate(states) if node.digest in digests else ():
            if predicate is None or not known.get(node.digest, {}).get("numbers"):
                continue
            selection = Selection(predicate, known[node.digest]["numbers"])
            if selection.several:
                where = "packing" if node.stage < 0 else f"shard {shard}"
                yield f"{node.label}, {where}: " + "; ".join(_described(selection, columns))


def _predicate(node: PhysicalNode) -> Expr | None:
    if node.source is not None:
        return node.source.predicate
    return node.spec.predicate if isinstance(node.spec, FilterSpec) else None


def _described(selection: Selection, names: Sequence[str] | None) -> Iterator[str]:
    ranking = selection.ranking
    for which in ranking.order:
        part, passing = selection.parts[which], ranking.passing(which)
        facts = ["keeps its place"] if part.fails else []
        if passing is not None and not part.fails:
            facts.append(f"passes {passing:.0%}")
        if ranking.is_timed(which):
            facts.append(f"{ranking.cost(which) * 1e9:.0f} ns a row")
        else:
            facts.append("not timed yet")
        yield f"{expr_text(part.expr, names)} ({', '.join(facts)})"
