"""Rules that rewrite algebra, one per file; `RULES` gives their order.

A rule maps a plan and the set of shared sub-plans to a plan; it returns the same object when it
changed nothing.  A sub-plan that several queries have in common is run once, so no rule may push a
query's own selection or choice of columns into it.

State is kept under the digest of what it belongs to, so the plan of a query that runs must not
change when others come and go.  `shared_digests` tells what is shared when a query is first
planned; `optimize_alone` makes the same plan from that again.

A join that queries with different windows share stands in the plan of each with the windows of that
query; which conditions are tested in it, and which columns it has, is told (`Part`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from penstock import algebra
from penstock.algebra import Node
from penstock.optimizer.bound_ranks import bound_ranks
from penstock.optimizer.distinct_partners import distinct_partners
from penstock.optimizer.drop_identities import drop_identities
from penstock.optimizer.group_before_bounds import group_before_bounds
from penstock.optimizer.nameless import canonical
from penstock.optimizer.narrow_scans import asked_of, narrow_parts, narrow_scans, narrow_to
from penstock.optimizer.push_filters import conjunction, push_filters
from penstock.optimizer.reduce_outer_joins import reduce_outer_joins
from penstock.optimizer.window_joins import Part, WindowJoin, digest, window_joins

Rule = Callable[[Node, frozenset[Node]], Node]

RULES: tuple[Rule, ...] = (
    drop_identities,
    reduce_outer_joins,
    push_filters,
    bound_ranks,
    distinct_partners,
    group_before_bounds,
    narrow_scans,
    drop_identities,
)


def optimize(plans: Mapping[str, Node]) -> dict[str, Node]:
    """Apply all rules to plans that will run together."""
    shared = shared_parts(plans)
    return {name: _apply(plan, shared) for name, plan in plans.items()}


def optimize_alone(
    plan: Node,
    digests: Iterable[str],
    parts: Mapping[str, Part] | None = None,
    rules: bool = True,
) -> Node:
    """Apply all rules to one plan, of which the parts with these digests are shared.

    ``parts`` are its window joins, by name, that queries with other windows share.  Without
    ``rules`` nothing is done but to put what is tested behind such a join there.
    """
    plan, shared, cores = _with_cores(plan, digests, parts or {}, rules)
    if not rules:
        return plan
    plan = _apply(plan, frozenset(shared))
    if not cores:
        return plan
    plan = narrow_parts(plan, dict.fromkeys(shared) | cores)
    return drop_identities(plan, frozenset())


def asked_columns(
    plan: Node, digests: Iterable[str], join: WindowJoin, kept: Collection[str], rules: bool
) -> frozenset[int]:
    """Return the columns that a plan needs of a window join with some of its conditions."""
    if not rules:
        return frozenset(range(len(join.bare.schema)))
    part = Part(None, tuple(kept))
    plan, shared, cores = _with_cores(plan, digests, {join.name: part}, rules)
    (core,) = cores
    return asked_of(_apply(plan, frozenset(shared)), core)


def core_of(join: WindowJoin, part: Part, rules: bool) -> algebra.Join:
    """Return the join that a window join is a part of, with its own windows, as it is planned."""
    core = _whole_core(join, part, rules)
    made = narrow_to(core, frozenset(part.columns)) if rules else core
    assert isinstance(made, algebra.Join)
    return made


def _whole_core(join: WindowJoin, part: Part, rules: bool) -> Node:
    """Return the same with all its columns."""
    core = join.core(part.kept)
    return _apply(core, frozenset()) if rules else core


def _with_cores(
    plan: Node, digests: Iterable[str], parts: Mapping[str, Part], rules: bool
) -> tuple[Node, set[Node], dict[Node, frozenset[int] | None]]:
    """Put the cores of window joins into a plan, and what is tested behind them.

    Also return the parts that are shared, and the cores with the columns that are kept of them.
    """
    known = frozenset(digests)
    shared = {n for n in _parts(plan) if known and digest(n) in known}
    cores: dict[Node, frozenset[int] | None] = {}
    for join in window_joins(plan) if parts else ():
        part = parts.get(join.name)
        if part is not None:
            core, rest = _whole_core(join, part, rules), join.rest(part.kept)
            new = algebra.Filter(core, conjunction(rest)) if rest else core
            old, plan = canonical(join.node), _replaced(plan, join.node, new)
            shared = {_replaced(n, old, canonical(new)) for n in shared} | {canonical(core)}
            cores[canonical(core)] = frozenset(part.columns)
    return plan, shared, cores


def _replaced(node: Node, old: Node, new: Node) -> Node:
    """Return a plan with one part in place of another."""
    if node == old:
        return new
    below = algebra.inputs(node)
    return algebra.with_inputs(node, tuple(_replaced(n, old, new) for n in below))


def shared_digests(plans: Mapping[str, Node]) -> dict[str, list[str]]:
    """Return, for each plan, the digests of its parts that it shares with others."""
    shared = shared_parts(plans)
    return {
        name: sorted(digest(node) for node in _parts(plan) & shared) for name, plan in plans.items()
    }


def shared_parts(plans: Mapping[str, Node]) -> frozenset[Node]:
    """Return the sub-plans, without names, that stand in two plans and hold state."""
    seen: Counter[Node] = Counter()
    for plan in plans.values():
        seen.update(_parts(plan))
    return frozenset(node for node, count in seen.items() if count > 1)


def _apply(plan: Node, shared: frozenset[Node]) -> Node:
    for rule in RULES:
        plan = rule(plan, shared)
    return plan


def _parts(plan: Node) -> frozenset[Node]:
    plan = drop_identities(plan, frozenset())
    return frozenset(canonical(n) for n in algebra.walk(plan) if _holds_state(n))


def _holds_state(node: Node) -> bool:
    match node:
        case algebra.Window(_, spec):
            return not spec.by_time
        case algebra.Scan() | algebra.TableScan() | algebra.Filter() | algebra.Project():
            return False
        case algebra.UnionAll():
            return False
    return True
