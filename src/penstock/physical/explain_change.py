"""What EXPLAIN says of a text that would replace a query: what goes on, and since when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock import algebra
from penstock.algebra import Node
from penstock.cql.render import duration_text, in_timestamps, time_text
from penstock.model import INF
from penstock.optimizer.nameless import canonical
from penstock.physical.book import BookedQuery, Moment
from penstock.physical.eras import Eras, are_groups, era_of
from penstock.physical.plan import PhysicalNode, PhysicalPlan
from penstock.windows import WindowSpec


def change_texts(whole: PhysicalPlan, query: BookedQuery, node: Node, now: Moment) -> Iterator[str]:
    """Yield what is to be known of a text that was planned beside the others.

    ``node`` is its plan after the rules.
    """
    if query.goes_on(now):
        yield "the plan is the same: all of it goes on, nothing begins anew"
        return
    if query.before is None:
        yield "no query of this name has begun: it begins as any other"
    nodes = [whole.nodes[at] for at in sorted(whole.below(query.name))]
    works = [n for n in nodes if n.spec is not None and n.stage >= 0 and not n.rowwise]
    yield f"goes on: {_labels(n for n in works if n.digest in now.numbers)}"
    yield f"begins anew: {_labels(n for n in works if n.digest not in now.numbers)}"
    stamps = in_timestamps(query.node)
    if query.is_row_by_row and query.before is not None:
        yield f"each row is answered once, and from batch {now.batch} on by the new text"
        return
    since = query.since
    if since is None:
        yield "it sees all rows of its streams, because none has come yet"
        return
    yield f"answers hold from {time_text(since, stamps)} on"
    windows = list(_anew(canonical(node), query.eras or ()))
    longest = max((_length(spec) for spec in windows), default=0)
    if longest:
        yield (
            f"they are whole from {time_text(since + longest, stamps)} on, when the largest window "
            f"that fills anew, {duration_text(longest, stamps)}, has filled"
        )
    rows = max((spec.rows for spec in windows if spec.rows is not None), default=0)
    if rows:
        each = any(spec.rows is not None and spec.partition_by for spec in windows)
        yield f"windows by rows are full when {rows} rows{' of each group' if each else ''} came"
    if any(spec.session is not None for spec in windows):
        yield "sessions that are open then count from there on"
    if any(spec.unbounded for spec in windows):
        yield "windows without an end count from there on"


def _labels(nodes: Iterable[PhysicalNode]) -> str:
    return "; ".join(node.label for node in nodes) or "nothing"


def _anew(node: Node, eras: Eras) -> Iterator[WindowSpec]:
    """Yield the windows that begin without the rows before; groups that go on have theirs."""
    if eras and era_of(node, eras) and are_groups(node):
        return
    if isinstance(node, algebra.Window):
        yield node.spec
    for below in algebra.inputs(node):
        yield from _anew(below, eras)


def _length(spec: WindowSpec) -> int:
    """Return how long a row can stay in a window by time."""
    found = [d for d in (spec.range, spec.hop, spec.fixed) if d is not None and d < INF]
    return sum(found) + (spec.slide or 0) + (spec.shift or 0) if found or spec.slide else 0
