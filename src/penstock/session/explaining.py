"""EXPLAIN: the plans of a query as text, as they run or as they would beside the others."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock import cql
from penstock.algebra import Node
from penstock.errors import QueryError
from penstock.optimizer import optimize
from penstock.physical import explain as physical_explain
from penstock.physical.multiway import probe_orders
from penstock.physical.planner import Query, plan
from penstock.spark.pipeline import Pipeline

if TYPE_CHECKING:
    from penstock.session import Session


def explanation(session: Session, level: str, node: Node, name: str) -> list[str]:
    """Return the lines of EXPLAIN for a query of a session, or one that may be added to it."""
    levels = ("logical", "optimized", "physical", "all")
    if level not in levels:
        raise QueryError(f"the level of EXPLAIN must be one of {', '.join(levels)}, got '{level}'")
    lines = []
    plans = {d.name: d.plan for d in session.catalog.queries.values()} | {name: node}
    if session.config["rules"]:
        plans = optimize(plans)
    handles = session._handles
    whole = None if session._pipeline is None else session._pipeline.last_plan
    if whole is not None and name in {a.query for a in whole.answers}:
        plans[name] = session.pipeline.optimized(name)
    else:
        whole = None  # not running: what it would be beside the others
    if level in ("logical", "all"):
        lines += ["logical plan", cql.render_plan(node), ""]
    if level in ("optimized", "all"):
        lines += ["optimized plan", cql.render_plan(plans[name]), ""]
    if level in ("physical", "all"):
        if whole is None:
            queries = [
                Query(
                    n,
                    p,
                    handles[n.lower()].mode if n.lower() in handles else "view",
                    keep=_keep_of(session, n),
                )
                for n, p in plans.items()
            ]
            known = {} if session._pipeline is None else session._pipeline.measured()
            whole = plan(queries, session.config, {}, known)
        shards = session.config["shards"] or _cores(session)
        automatic = session.config["join.split"] == 0
        lines += ["physical plan", physical_explain.explain(whole, name, shards, automatic)]
        if session._pipeline is not None:
            digests = digests_of(session._pipeline, name)
            lines += [str(h) for h in session._pipeline.hot_shards() if h.digest in digests]
            lines += [str(s) for s in session._pipeline.split_keys() if s.digest in digests]
            lines += probe_orders(whole, session._pipeline.manifest.states, digests)
        lines.append("")
    return lines


def _keep_of(session: Session, name: str) -> int:
    found = session.catalog.queries.get(name.lower())
    return 0 if found is None else found.keep or 0


def _cores(session: Session) -> int:
    if session._pipeline is not None:
        return session._pipeline.shards
    return os.cpu_count() or 1


def digests_of(pipeline: Pipeline, query: str) -> set[str]:
    """Return the digests of the operators that a query uses; a running batch is not waited for."""
    whole = pipeline.last_plan
    found: set[str] = set()
    if whole is None:
        return found
    todo = [a.node for a in whole.answers if a.query == query]
    while todo:
        node = whole.nodes[todo.pop()]
        if node.digest not in found:
            found.add(node.digest)
            todo.extend(i.producer for i in node.inputs)
    return found
