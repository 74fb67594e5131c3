"""What punctuations on columns close in a plan: the lines about them in EXPLAIN.

The way of a closed part through the plan is asked from the operators themselves, with a part that
holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from penstock.catalog import StreamDef
from penstock.model import I64, U64, Closed
from penstock.operators.aggregate import AggregateSpec
from penstock.operators.base import Columns
from penstock.operators.covered import CoveredSpec
from penstock.operators.join import JoinSpec, SharedJoinSpec
from penstock.operators.spec import Spec
from penstock.operators.unmatched import UnmatchedSpec
from penstock.physical.plan import Input, PhysicalPlan

_NO_KEYS: U64 = np.empty(0, np.uint64)
_NO_TIMES: I64 = np.empty(0, np.int64)
_USES: dict[type[Spec], str] = {
    JoinSpec: "lets go of partners",
    SharedJoinSpec: "lets go of partners",
    AggregateSpec: "ends groups whose rows live for ever",
}


def closing_texts(plan: PhysicalPlan, query: str, streams: Mapping[str, StreamDef]) -> list[str]:
    """Return a line for each stream of a query that is closed in parts: who makes use of it."""
    users = plan.users()
    lines = []
    for stream in sorted(streams.values(), key=lambda found: found.name):
        rule = stream.timing.closing
        read = [at for at in plan.sources("stream", stream.name) if query in users[at]]
        if rule is None or not read:
            continue
        columns = ", ".join(stream.schema[c].name for c in rule.on)
        uses = "; with negative tuples nobody makes use of it"
        if not plan.negative:
            told = [text for at, text in _uses(plan, stream.name, rule.on) if query in users[at]]
            uses = "; ".join(("", *dict.fromkeys(told))) or "; no operator can make use of it"
        lines.append(f"closed parts of {stream.name} ON ({columns}): later rows are late{uses}")
    return lines


def _uses(plan: PhysicalPlan, stream: str, on: Columns) -> Iterator[tuple[int, str]]:
    """Yield the nodes that make use of a closed part of a stream, and what for."""
    reached: dict[int, list[Columns]] = {}
    freed: set[int] = set()
    for at, node in enumerate(plan.nodes):  # a node stands behind its inputs
        if node.source is not None:
            if (node.source.kind, node.source.name) == ("stream", stream):
                moved = _part(on).moved({c: i for i, c in enumerate(node.source.columns)})
                reached[at] = [] if moved is None else [moved.on]
            continue
        assert node.spec is not None
        known = [
            (port, columns)
            for port, source in enumerate(node.inputs)
            for columns in _arriving(plan, source, reached)
        ]
        lonely = isinstance(node.spec, UnmatchedSpec) or (
            isinstance(node.spec, CoveredSpec) and not node.spec.partners
        )
        if lonely and _below(plan, at) & freed:
            yield at, f"{node.label} leave before their time"
        if not known:
            continue
        operator = node.spec.build()
        if not node.spec.sliced:
            passed = [m for port, c in known for m in operator.on_closed(port, _part(c))]
            reached[at] = [message.on for message in passed if isinstance(message, Closed)]
            continue
        used = [(port, c) for port, c in known if operator.uses_part(port, _part(c))]
        if used:
            reached[at] = list(operator.parts_after(used))
            if type(node.spec) in _USES:
                yield at, f"{node.label} {_USES[type(node.spec)]}"
            if isinstance(node.spec, JoinSpec) and node.spec.numbers:
                freed.add(at)


def _arriving(
    plan: PhysicalPlan, source: Input, reached: Mapping[int, list[Columns]]
) -> Iterator[Columns]:
    """Yield the columns whose parts are known at an input; an exchange of a stage drops them."""
    if source.channel is not None and plan.nodes[source.producer].stage >= 0:
        return
    for columns in reached.get(source.producer, ()):
        if source.columns is None:
            yield columns
        else:
            moved = _part(columns).moved({c: i for i, c in enumerate(source.columns)})
            if moved is not None:
                yield moved.on


def _below(plan: PhysicalPlan, at: int) -> frozenset[int]:
    """Return the nodes that a node reads, through projections."""
    found = frozenset(source.producer for source in plan.nodes[at].inputs)
    rowwise = [n for n in found if (spec := plan.nodes[n].spec) is not None and spec.rowwise]
    return found.union(*(_below(plan, n) for n in rowwise))


def _part(on: Columns) -> Closed:
    return Closed(on, _NO_KEYS, _NO_KEYS, _NO_TIMES)
