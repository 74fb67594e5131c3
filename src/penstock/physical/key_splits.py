"""Hot keys of joins: which joins can split them while they run, and where rows then go.

Rows of a key meet in one shard, its home.  While a key is *split*, rows of one side are spread: a
row stands in one of several shards, the home and those behind it.  Rows of the other side are
copied to all of them.  Nothing that is stored ever moves, so both rules begin and end at instants
of the streams' time ``t``, which rows bring with them.  Of a `Split`,

* rows of the copied side with ``copied_from <= t < copied_until`` are copied, others go home;
* rows of the spread side with ``spread_from <= t < spread_until`` are spread, others go home.

Law: every pair is made exactly once.  A spread row stands in one shard, so no pair is made twice.
If it is at home it meets everybody, because copies go home too.  If it is away, it must meet copies
only.  With ``reach`` a bound of ``end - t`` over the windows of a side, two rows are valid together
only if ``t_spread - reach_copied < t_copied < t_spread + reach_spread``.  So it is enough that

* ``spread_from >= copied_from + reach_copied`` and ``copied_until >= spread_until + reach_spread``;
* ``copied_from`` is above the time of every row of the copied side that was sent before, and
  ``spread_until`` above that of every row of the spread side.

A row that comes later but is older than the switch follows the rule of its own time.  Slack,
batches and shards are not in the proof.  The sides of a key change their roles only when the old
split is over: what was copied must be dead before rows of the other side are copied.

A cell of a grid (`penstock.kernels.cells`) is a key in all this: left rows lie in one, right rows
go to all that they reach.

A join can do so if both of its inputs come straight from packing and go nowhere else, if the
copied side has windows by time that end, and if nobody relies on where its results are: up to the
next exchange or the end of the plan there is only what treats each row alone.  Of a join that
follows the rows of one side by their number (LEFT, SEMI, ANTI), that side cannot be copied.  The
copied side may be made distinct in front of the join: where spread rows stand, and while they live,
all rows of their key that are valid are there, so what is computed of each snapshot is right.

All this is read from the finished plan, and no digest of a node depends on it.  A query that is
added later has sources of its own, so the inputs of a join that has splits get no other readers:
`physical.key_loads` makes splits only when both streams have brought rows that the join sees.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import InternalError
from penstock.expr.nodes import Column
from penstock.operators.covered import CoveredSpec
from penstock.operators.distinct import DistinctSpec
from penstock.operators.output import OutputSpec
from penstock.operators.project import ProjectSpec
from penstock.operators.row_numbers import RowNumbersSpec
from penstock.operators.time_window import TimeWindowSpec
from penstock.operators.union import UnionSpec
from penstock.operators.unmatched import UnmatchedSpec
from penstock.physical.exchange import ByKey, Cells
from penstock.physical.plan import PhysicalPlan
from penstock.physical.split_routes import Route, Split
from penstock.windows import WindowSpec

_FARTHEST = 1 << 62
"""A reach from here on counts as none that ends."""

Told = Mapping[str, Mapping[str, Any]]
"""The splits of each pair of inputs as a manifest has them: ``joins`` (digests) and ``splits``."""


@dataclass(frozen=True)
class Pair:
    """Two channels that only joins with one another read.

    ``roles`` says of each side whether it can be spread, ``reaches`` how long its rows are valid at
    most after their time (None: nobody knows), ``since`` from when on it is seen.
    """

    name: str
    channels: tuple[int, int]
    joins: frozenset[int]
    streams: tuple[str, str]
    since: tuple[int | None, int | None]
    reaches: tuple[int | None, int | None]
    roles: tuple[bool, bool]


def splits_of(told: Told, pair: Pair) -> list[Split]:
    """Return the splits of a pair."""
    return [Split(**split) for split in told.get(pair.name, {}).get("splits", ())]


@dataclass(frozen=True)
class SplitKeys:
    """How many keys of a join are split, over how many shards at most; those that cool too."""

    digest: str
    operator: str
    keys: int
    ways: int

    def __str__(self) -> str:
        keys = "1 hot key is" if self.keys == 1 else f"{self.keys} hot keys are"
        return f"split: {keys} shared by up to {self.ways} shards in {self.operator}"


def split_keys(plan: PhysicalPlan, told: Told) -> list[SplitKeys]:
    """Return what is split in the joins of a plan."""
    found = []
    for content in told.values():
        keys = {split["key"] for split in content["splits"]}
        ways = max(split["ways"] for split in content["splits"])
        for node in plan.nodes:
            if node.digest in content["joins"]:
                found.append(SplitKeys(node.digest, node.label, len(keys), ways))
    return found


def routes(plan: PhysicalPlan, told: Told, counted: bool) -> dict[int, Route]:
    """Return the routes of a batch, by channel; ``counted``: new hot keys are looked for."""
    found: dict[int, Route] = {}
    known = pairs(plan)
    _check(plan, known, told)
    for pair in known:
        splits = splits_of(told, pair)
        for side, channel in enumerate(pair.channels):
            wanted = counted and pair.roles[side]
            if splits or wanted:
                found[channel] = Route.of(splits, side, wanted)
    return found


def _check(plan: PhysicalPlan, known: Sequence[Pair], told: Told) -> None:
    """Check that the joins whose keys are split can still go on with it."""
    names = {pair.name for pair in known}
    digests = {node.digest for node in plan.nodes}
    for name, content in told.items():
        if name not in names and digests.intersection(content["joins"]):
            raise InternalError(
                "a join whose hot keys are split must keep its inputs for itself, but the plan has "
                "changed around it"
            )


def pairs(plan: PhysicalPlan) -> list[Pair]:
    """Return the pairs of channels whose hot keys can be split, in the order of the plan."""
    if plan.negative:
        return []
    edges = _Edges(plan)
    sides = {}
    for number, channel in enumerate(plan.channels):
        if plan.nodes[channel.producer].stage < 0:
            side = _side(plan, edges, number)
            if side is not None:
                sides[number] = side
    right = {(side.joins, side.port): number for number, side in sides.items()}
    found = []
    for number, side in sides.items():
        partner = right.get((side.joins, 1))
        if side.port == 0 and partner is not None:
            pair = _pair(plan, edges, (number, partner), (side, sides[partner]))
            if pair is not None:
                found.append(pair)
    return found


@dataclass(frozen=True)
class _Side:
    """What reads a channel: one port of some joins.

    ``numbered`` rows are followed one by one, ``merged`` ones have lost their partners in value.
    """

    joins: frozenset[int]
    port: int
    reach: int | None
    numbered: bool
    merged: bool


class _Edges:
    """Who reads whom: ``within`` a stage by producer, ``through`` a channel by its number."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self.within: dict[int, list[tuple[int, int]]] = {}
        self.through: dict[int, list[tuple[int, int]]] = {}
        for at, node in enumerate(plan.nodes):
            for port, source in enumerate(node.inputs):
                if source.channel is None:
                    self.within.setdefault(source.producer, []).append((at, port))
                else:
                    self.through.setdefault(source.channel, []).append((at, port))
        self.sending = {channel.producer for channel in plan.channels}


def _side(plan: PhysicalPlan, edges: _Edges, channel: int) -> _Side | None:
    """Return what reads a channel, None if there is more than a window by time and joins."""
    joins: set[int] = set()
    ports: set[int] = set()
    reaches: set[int | None] = set()
    numbered = merged = False
    waiting: list[tuple[int, int, WindowSpec | None, bool]]
    waiting = [(at, port, None, False) for at, port in edges.through.get(channel, ())]
    while waiting:
        at, port, window, tagged = waiting.pop()
        node = plan.nodes[at]
        if node.spec is not None and node.spec.splits_keys:
            joins.add(at)
            ports.add(port)
            reaches.add(None if window is None else _reach(window))
            numbered |= tagged
            continue
        if isinstance(node.spec, UnmatchedSpec | CoveredSpec) and port == 0 and tagged:
            continue
        if at in edges.sending:
            return None
        match node.spec:
            case TimeWindowSpec() if window is None:
                window = node.spec.window
            case RowNumbersSpec():
                tagged = True
            case DistinctSpec() if window is not None:
                merged = True
            case _ if not node.rowwise:
                return None
        waiting += [(above, p, window, tagged) for above, p in edges.within.get(at, ())]
    if len(ports) != 1:
        return None
    known = [reach for reach in reaches if reach is not None]
    reach = max(known) if len(known) == len(reaches) else None
    return _Side(frozenset(joins), ports.pop(), reach, numbered, merged)


def _reach(window: WindowSpec) -> int | None:
    """Return how long after its time an element is valid at most."""
    length = window.range if window.hop is None else window.hop
    if window.now:
        length = 1
    elif window.fixed is not None:
        length = window.fixed
    if length is None:
        return None
    reach = length + (window.slide or 0) + (window.shift or 0)
    return reach if reach < _FARTHEST else None


def _pair(
    plan: PhysicalPlan, edges: _Edges, channels: tuple[int, int], sides: tuple[_Side, _Side]
) -> Pair | None:
    left, right = (plan.channels[number] for number in channels)
    streams, since = [], []
    for channel in (left, right):
        at = channel.producer
        while plan.nodes[at].source is None:
            node = plan.nodes[at]
            if not node.rowwise:
                return None
            at = node.inputs[0].producer
        source = plan.nodes[at].source
        assert source is not None
        if source.kind != "stream":
            return None
        streams.append(source.name)
        since.append(source.since)
    copyable = [side.reach is not None and not side.numbered for side in sides]
    match left.exchange, right.exchange:
        case Cells(below=()), Cells(below=below) if below:
            copyable[0] = False
        case ByKey(), ByKey():
            pass
        case _:
            return None
    roles = copyable[1] and not sides[0].merged, copyable[0] and not sides[1].merged
    if not any(roles) or not all(_alone(plan, edges, join) for join in sides[0].joins):
        return None
    parts = [(plan.nodes[c.producer].digest, c.exchange, c.stage) for c in (left, right)]
    return Pair(
        hashlib.sha256(repr(parts).encode()).hexdigest()[:24],
        channels,
        sides[0].joins,
        (streams[0], streams[1]),
        (since[0], since[1]),
        (sides[0].reach, sides[1].reach),
        roles,
    )


def _alone(plan: PhysicalPlan, edges: _Edges, join: int) -> bool:
    """Whether the results of a join may be in any shard, as far as its own stage goes.

    The rows of a side that is followed have numbers, and stay where they are: what compares numbers
    compares rows of one shard.
    """
    first = plan.nodes[join].inputs[0]
    followed: frozenset[int] = frozenset()
    if isinstance(plan.nodes[first.producer].spec, RowNumbersSpec) and first.columns is None:
        followed = frozenset((len(plan.nodes[first.producer].types) - 1,))
    waiting = [(join, followed)]
    while waiting:
        below, numbers = waiting.pop()
        for at, port in edges.within.get(below, ()):
            node = plan.nodes[at]
            picked = node.inputs[port].columns
            known = numbers
            if picked is not None:
                known = frozenset(i for i, c in enumerate(picked) if c in numbers)
            match node.spec:
                case ProjectSpec(exprs):
                    kept = enumerate(exprs)
                    passed = (i for i, e in kept if isinstance(e, Column) and e.index in known)
                    waiting.append((at, frozenset(passed)))
                case DistinctSpec() if not known:
                    return False
                case OutputSpec(mode="log"):  # equal rows must meet, to cancel
                    return False
                case OutputSpec():
                    pass
                case UnionSpec() | UnmatchedSpec() | CoveredSpec():
                    waiting.append((at, frozenset()))
                case DistinctSpec() | TimeWindowSpec():
                    waiting.append((at, known))
                case _ if node.rowwise:
                    waiting.append((at, known))
                case _:
                    return False
    return True
