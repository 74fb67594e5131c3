"""The physical plan as text: operators, update patterns, keys, exchanges, stages, sharing."""

from __future__ import annotations

from penstock.physical.plan import PhysicalPlan


def explain(plan: PhysicalPlan, query: str, shards: int) -> str:
    """Return the part of a plan that answers one query, as an indented tree."""
    users = plan.users()
    lines: list[str] = []
    answer = next(a for a in plan.answers if a.query == query)

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
        if node.partitioning is not None and node.partitioning.kind == "hash":
            facts.append(f"by {node.partitioning}")
        others = sorted(users[at] - {query})
        if others:
            facts.append(f"shared with {', '.join(others)}")
        lines.append(f"{'  ' * depth}{note}{node.label}  [{', '.join(facts)}]")
        for source in node.inputs:
            through = ""
            if source.channel is not None:
                through = f"exchange {plan.channels[source.channel].exchange} <- "
            visit(source.producer, depth + 1, through)

    visit(answer.node, 0, "")
    lines.append(
        f"one Spark job per batch: packing and {plan.stages} stage(s) of {shards} task(s); "
        f"{len(plan.answers)} queries, {len(plan.nodes)} operators in the whole plan"
    )
    return "\n".join(lines)


def _single(partitioning: object) -> bool:
    return getattr(partitioning, "kind", "") == "single"
