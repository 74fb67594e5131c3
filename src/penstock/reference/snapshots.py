"""The oracle: what a plan means, computed slowly and obviously, row by row, in plain Python.

It shares no code with the operators or their kernels and uses neither NumPy nor Arrow compute, so
that a fault there cannot hide here.  A relation is a step function: a list of ``(time, snapshot)``,
ascending, where a snapshot is a bag (`Counter`) of value tuples that holds from that time until the
next; before the first step it is empty.  Lists are canonical: two neighbouring snapshots differ.

The maths is the semantics' snapshot law: for every operator the snapshot of the result at ``t``
is the relational operator applied to the snapshots of the inputs at ``t``.  Nothing can change
between two instants at which an input changes, so it is enough to look at those.  Windows follow
the table of section 2 from the ordered elements of a stream, relation-to-stream operators the sums
of section 4.

Values are Python objects: None, bool, int, float, str; timestamps and dates are integer counts.
There is one NaN object, because a bag needs NaN to be equal to itself.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from penstock.algebra import (
    Aggregate,
    AsofJoin,
    Distinct,
    Filter,
    GroupTop,
    Join,
    Node,
    Over,
    Project,
    Rank,
    Scan,
    SetOp,
    TableScan,
    TopK,
    ToStream,
    UnionAll,
    Window,
    is_stream,
    streams_of,
)
from penstock.errors import InternalError
from penstock.model import INF, MIN_TIME
from penstock.reference.aggregates import aggregate
from penstock.reference.expressions import evaluate
from penstock.reference.over import over
from penstock.reference.ranks import by_members, group_top, in_order, rank
from penstock.reference.values import canonical, compare
from penstock.windows import WindowSpec

Values: TypeAlias = tuple[Any, ...]
Element: TypeAlias = tuple[Values, int]
Interval: TypeAlias = tuple[Values, int, int]
Snapshot: TypeAlias = Counter[Values]
Steps: TypeAlias = list[tuple[int, Snapshot]]


@dataclass(frozen=True)
class Inputs:
    """What the plan reads: streams in arrival order, late elements already removed, and tables."""

    streams: dict[str, list[Element]] = field(default_factory=dict)
    tables: dict[str, list[Values]] = field(default_factory=dict)


def accept(elements: Iterable[Element], slack: int) -> tuple[list[Element], list[Element]]:
    """Split the elements of one source partition, in arrival order, into accepted and late ones."""
    accepted: list[Element] = []
    late: list[Element] = []
    largest: int | None = None
    for values, time in elements:
        if largest is not None and time < largest - slack:
            late.append((values, time))
        else:
            accepted.append((values, time))
            largest = time if largest is None else max(largest, time)
    return accepted, late


def relation(plan: Node, inputs: Inputs) -> Steps:
    """Return the relation that a plan describes; a stream is the relation of everything so far."""
    return _canonical(_steps(plan, inputs))


def stream(plan: Node, inputs: Inputs) -> Counter[tuple[int, Values]]:
    """Return the elements of a plan that is a stream, as a bag of ``(time, values)``."""
    return Counter((time, values) for values, time in elements_of(plan, inputs))


def snapshot_at(steps: Steps, time: int) -> Snapshot:
    """Return the bag that a relation holds at an instant."""
    found: Snapshot = Counter()
    for start, snapshot in steps:
        if start > time:
            break
        found = snapshot
    return found


# Intervals and steps


def from_intervals(rows: Iterable[Interval]) -> Steps:
    """Return the step function of rows valid in ``[start, end)``."""
    alive = [(tuple(map(canonical, v)), start, end) for v, start, end in rows if start < end]
    instants = {start for _, start, _ in alive} | {end for _, _, end in alive if end < INF}
    return _canonical(
        [
            (time, Counter(v for v, start, end in alive if start <= time < end))
            for time in sorted(instants)
        ]
    )


def to_intervals(steps: Steps) -> list[Interval]:
    """Return the one canonical way to cut a relation into rows.

    The first copy of a value lives while there is at least one, the second while there are at least
    two, and so on; each interval is as long as can be.  Sorted by start, end and values.
    """
    rows: list[Interval] = []
    born: dict[tuple[Values, int], int] = {}
    for time, snapshot in [*_canonical(steps), (INF, Counter())]:
        for value, copy in [key for key in born if key[1] > snapshot[key[0]]]:
            rows.append((value, born.pop((value, copy)), time))
        for value, count in snapshot.items():
            for copy in range(1, count + 1):
                born.setdefault((value, copy), time)
    return sorted(rows, key=lambda row: (row[1], row[2], _sortable(row[0])))


def _canonical(steps: Steps) -> Steps:
    kept: Steps = []
    last: Snapshot = Counter()
    for time, snapshot in steps:
        if +snapshot != last:
            last = +snapshot
            kept.append((time, last))
    return kept


def _combine(
    inputs: Sequence[Steps], operator: Callable[[int, Sequence[Snapshot]], Snapshot]
) -> Steps:
    """Apply a relational operator at every instant at which an input changes."""
    instants = sorted({time for steps in inputs for time, _ in steps})
    return [
        (time, operator(time, [snapshot_at(steps, time) for steps in inputs])) for time in instants
    ]


def _map(steps: Steps, operator: Callable[[Snapshot], Snapshot]) -> Steps:
    return [(time, operator(snapshot)) for time, snapshot in steps]


# Order


_sortable = functools.cmp_to_key(by_members)


# Streams


def elements_of(node: Node, inputs: Inputs) -> list[Element]:
    """Return the ordered elements of a stream; of any other relation, those of its ISTREAM.

    Order: the arrival breaks ties of a declared stream; a derived one is ordered by all columns.
    """
    if isinstance(node, Scan):
        raw = [(tuple(map(canonical, v)), time) for v, time in inputs.streams[node.stream]]
        needed = [
            (v if node.columns is None else tuple(v[i] for i in node.columns), time)
            for v, time in raw
            if node.predicate is None or evaluate(node.predicate, v) is True
        ]
        return sorted(needed, key=lambda element: element[1])  # stable: arrival breaks ties
    if isinstance(node, Over):
        made = over(node, elements_of(node.input, inputs))
        return sorted(made, key=lambda element: (element[1], _sortable(element[0])))
    if not is_stream(node):
        node = ToStream("istream", node)
    assert isinstance(node, ToStream)
    steps = relation(node.input, inputs)
    if node.kind in ("istream", "dstream"):
        derived = list(_changes(steps, born=node.kind == "istream"))
    elif node.pulses:
        times = [t for name in streams_of(node.input) for _, t in inputs.streams[name]]
        derived = list(_at_pulses(steps, node.pulses, max(times, default=MIN_TIME)))
    else:
        derived = [(value, time) for time, rows in steps for value in rows.elements()]
    return sorted(derived, key=lambda element: (element[1], _sortable(element[0])))


def _changes(steps: Steps, born: bool) -> Iterable[Element]:
    """Yield what is born at each step, or what dies."""
    before: Snapshot = Counter()
    for time, snapshot in steps:
        for value in (snapshot - before if born else before - snapshot).elements():
            yield value, time
        before = snapshot


def _at_pulses(steps: Steps, pulses: Iterable[tuple[int, int]], now: int) -> Iterable[Element]:
    """Return the snapshot at each pulse, from the first change that is not "since ever".

    A relation may last for ever, a stream of its snapshots cannot: it stops with the largest time
    of the streams (``now``) or the last change, whichever is later.
    """
    changes = [time for time, _ in steps if time > MIN_TIME]
    if not changes:
        return
    last = max(now, changes[-1])
    times = {p for slide, o in pulses for p in range(_up(changes[0], slide, o), last + 1, slide)}
    for time in sorted(times):
        for value in snapshot_at(steps, time).elements():
            yield value, time


# Windows


def window(elements: Sequence[Element], spec: WindowSpec) -> list[Interval]:
    """Return the validity that a window gives to the elements of a stream, which are in order."""
    inside = [
        (values, time)
        for values, time in elements
        if (spec.origin is None or time >= spec.origin)
        and (spec.after is None or time >= spec.after)
        and (spec.before is None or time <= spec.before)
    ]
    groups: dict[Values, list[Element]] = {}
    for values, time in inside:
        groups.setdefault(tuple(values[i] for i in spec.partition_by), []).append((values, time))
    return [row for group in groups.values() for row in _window_of_group(group, spec)]


def _window_of_group(group: list[Element], spec: WindowSpec) -> Iterable[Interval]:
    for number, (values, time) in enumerate(group, start=1):
        lives = [_by_time(time, spec)]
        if spec.rows is not None:
            lives.append(_by_rows(group, number, spec.rows, spec.rows_slide or 1))
        if spec.until is not None:
            ends = values[spec.until]
            lives.append((time, INF if ends is None else ends))
        if spec.session is not None:
            lives.append((time, _session_end(group, number, spec.session)))
        start = max(s for s, _ in lives)
        end = min(e for _, e in lives)
        if spec.rows is not None and spec.slide is not None:
            start, end = (_pulse(t, spec) for t in (start, end))
        if start >= end:
            continue
        rows: Iterable[Interval] = [(values, start, end)]
        if spec.bounds is not None:
            rows = _with_bounds(values, (start, end), _session_start(group, number, spec), spec)
        for shown, since, until in rows:
            late = spec.shift or 0
            yield shown, min(since + late, INF), min(until + late, INF)


def _with_bounds(
    values: Values, life: tuple[int, int], first: int | None, spec: WindowSpec
) -> Iterable[Interval]:
    """Give a row the bounds of the windows that it is in, one after the other.

    At an instant from one pulse to the next, the window is the one that ends at the first of them.
    """
    bounds, (start, end) = spec.bounds, life
    assert bounds is not None
    slide = spec.slide if spec.hop is not None and spec.slide is not None else end - start
    for pulse in range(start, end, slide):
        began = max(pulse - bounds.length, MIN_TIME) if first is None else first
        shown = {"window_start": began, "window_end": pulse}
        yield values + tuple(shown[n] for n in bounds.names), pulse, min(pulse + slide, end)


def _by_time(time: int, spec: WindowSpec) -> tuple[int, int]:
    """Return the validity that the element's time alone gives it."""
    origin = (spec.origin or 0) + (spec.offset or 0)
    start, end = time, INF
    if spec.range is not None and spec.range != INF:
        end = time + spec.range
    if spec.hop is not None and spec.slide is not None:
        start, end = (_up(t + 1, spec.slide, origin) for t in (time, time + spec.hop))
    elif spec.slide is not None and spec.rows is None:
        start, end = _pulse(start, spec), _pulse(end, spec)
    if spec.now:
        end = min(end, time + 1)
    if spec.fixed is not None:
        end = min(end, _up(time + 1, spec.fixed, origin))
    return min(start, INF), min(end, INF)


def _pulse(time: int, spec: WindowSpec) -> int:
    """Return the pulse at which a change at a time is seen."""
    assert spec.slide is not None
    return INF if time == INF else min(_up(time, spec.slide, spec.origin or 0), INF)


def _by_rows(group: list[Element], number: int, rows: int, slide: int) -> tuple[int, int]:
    """From the first M-th element at or after this one to the first M-th one N or more later."""

    def refresh(least: int) -> int:
        numbered = enumerate(group, start=1)
        return next((t for n, (_, t) in numbered if n % slide == 0 and n >= least), INF)

    return refresh(number), refresh(number + rows)


def _session_start(group: list[Element], number: int, spec: WindowSpec) -> int | None:
    """Return the first time of an element's session, None if the window is not by sessions."""
    if spec.session is None:
        return None
    first = group[number - 1][1]
    for _, time in reversed(group[: number - 1]):
        if first - time >= spec.session:
            break
        first = time
    return first


def _session_end(group: list[Element], number: int, gap: int) -> int:
    last = group[number - 1][1]
    for _, time in group[number:]:
        if time - last >= gap:
            break
        last = time
    return last + gap


def _up(time: int, slide: int, origin: int) -> int:
    """Return the first pulse at or after a time."""
    pulse = origin - slide * ((origin - time) // slide)
    assert time <= pulse < time + slide
    return pulse


# Operators: one function per node of the algebra


@functools.singledispatch
def _steps(node: Any, inputs: Inputs) -> Steps:
    raise InternalError(f"the reference has no meaning for {type(node).__name__}")


@_steps.register
def _(node: Scan | ToStream | Over, inputs: Inputs) -> Steps:
    return from_intervals((values, time, INF) for values, time in elements_of(node, inputs))


@_steps.register
def _(node: TableScan, inputs: Inputs) -> Steps:
    def bound(values: Values, column: int | None, default: int) -> int:
        return default if column is None or values[column] is None else int(values[column])

    return from_intervals(
        (row, bound(row, node.valid_from, MIN_TIME), bound(row, node.valid_to, INF))
        for row in (inputs.tables[node.table] if node.rows is None else node.rows)
    )


@_steps.register
def _(node: Window, inputs: Inputs) -> Steps:
    return from_intervals(window(elements_of(node.input, inputs), node.spec))


@_steps.register
def _(node: Filter, inputs: Inputs) -> Steps:
    return _map(
        _steps(node.input, inputs),
        lambda rows: Counter(
            {v: n for v, n in rows.items() if evaluate(node.predicate, v) is True}
        ),
    )


@_steps.register
def _(node: Project, inputs: Inputs) -> Steps:
    return _map(
        _steps(node.input, inputs),
        lambda rows: Counter(tuple(evaluate(e, v) for e in node.exprs) for v in rows.elements()),
    )


def _same_keys(node: Join | AsofJoin, left: Values, right: Values) -> bool:
    """Whether the keys of two rows are equal; null equals nothing."""
    pairs = zip(node.left_keys, node.right_keys, strict=True)
    values = ((evaluate(a, left), evaluate(b, right)) for a, b in pairs)
    return all(None not in (x, y) and compare(x, y) == 0 for x, y in values)


@_steps.register
def _(node: Join, inputs: Inputs) -> Steps:
    def matches(left: Values, right: Values) -> bool:
        if not _same_keys(node, left, right):
            return False
        return node.residual is None or evaluate(node.residual, left + right) is True

    def join(time: int, sides: Sequence[Snapshot]) -> Snapshot:
        lefts, rights = list(sides[0].elements()), list(sides[1].elements())
        met = [(i, j) for i, a in enumerate(lefts) for j, b in enumerate(rights) if matches(a, b)]
        pairs = [lefts[i] + rights[j] for i, j in met]
        left_met, right_met = {i for i, _ in met}, {j for _, j in met}
        with_partner = [a for i, a in enumerate(lefts) if i in left_met]
        left_alone = [a for i, a in enumerate(lefts) if i not in left_met]
        right_alone = [b for j, b in enumerate(rights) if j not in right_met]
        no_left: Values = (None,) * len(node.left.schema)
        no_right: Values = (None,) * len(node.right.schema)
        rows: dict[str, list[Values]] = {
            "inner": pairs,
            "left": pairs + [a + no_right for a in left_alone],
            "right": pairs + [no_left + b for b in right_alone],
            "full": pairs + [a + no_right for a in left_alone] + [no_left + b for b in right_alone],
            "semi": with_partner,
            "anti": left_alone,
        }
        return Counter(rows[node.kind])

    return _combine([_steps(node.left, inputs), _steps(node.right, inputs)], join)


@_steps.register
def _(node: AsofJoin, inputs: Inputs) -> Steps:
    holds = {"ge": (0, 1), "gt": (1,), "le": (-1, 0), "lt": (-1,)}[node.operator]
    latest = node.operator in ("ge", "gt")

    def is_candidate(left: Values, right: Values) -> bool:
        if not _same_keys(node, left, right):
            return False
        x, y = evaluate(node.left_at, left), evaluate(node.right_at, right)
        if x is None or y is None:
            return False
        sign = compare(x, y)
        return (sign > 0) - (sign < 0) in holds

    def nearer(a: Values, b: Values) -> int:
        by_value = compare(evaluate(node.right_at, a), evaluate(node.right_at, b))
        if by_value:
            return by_value if latest else -by_value
        return by_members(a, b)

    def partner(left: Values, rights: Snapshot) -> Values | None:
        candidates = [right for right in rights if is_candidate(left, right)]
        return max(candidates, key=functools.cmp_to_key(nearer)) if candidates else None

    def join(time: int, sides: Sequence[Snapshot]) -> Snapshot:
        found: Snapshot = Counter()
        for left, copies in sides[0].items():
            right = partner(left, +sides[1])
            if right is not None:
                found[left + right] += copies
            elif node.kind == "left":
                found[left + (None,) * len(node.right.schema)] += copies
        return found

    return _combine([_steps(node.left, inputs), _steps(node.right, inputs)], join)


@_steps.register
def _(node: Aggregate, inputs: Inputs) -> Steps:
    def group(rows: Snapshot) -> Snapshot:
        groups: dict[Values, list[Values]] = {} if node.keys else {(): []}
        for row in rows.elements():
            groups.setdefault(tuple(evaluate(k, row) for k in node.keys), []).append(row)
        return Counter(
            key + tuple(aggregate(call, members) for call in node.aggregates)
            for key, members in groups.items()
        )

    # Canonical steps begin where the input is first non-empty: so does the global aggregate.
    return _map(relation(node.input, inputs), group)


@_steps.register
def _(node: Distinct, inputs: Inputs) -> Steps:
    return _map(_steps(node.input, inputs), lambda rows: Counter(list(+rows)))


@_steps.register
def _(node: UnionAll, inputs: Inputs) -> Steps:
    return _combine(
        [_steps(member, inputs) for member in node.members],
        lambda time, members: sum(members, Counter()),
    )


@_steps.register
def _(node: SetOp, inputs: Inputs) -> Steps:
    def operate(time: int, sides: Sequence[Snapshot]) -> Snapshot:
        left, right = sides if node.all else (Counter(list(+side)) for side in sides)
        return left & right if node.kind == "intersect" else left - right

    return _combine([_steps(node.left, inputs), _steps(node.right, inputs)], operate)


@_steps.register
def _(node: TopK, inputs: Inputs) -> Steps:
    return _map(
        _steps(node.input, inputs),
        lambda rows: Counter(
            sorted(rows.elements(), key=in_order(node.order))[node.offset :][: node.limit]
        ),
    )


@_steps.register
def _(node: Rank, inputs: Inputs) -> Steps:
    return _map(_steps(node.input, inputs), lambda rows: rank(node, rows))


@_steps.register
def _(node: GroupTop, inputs: Inputs) -> Steps:
    return _map(_steps(node.input, inputs), lambda rows: group_top(node, rows))


MEANINGS: frozenset[type] = frozenset(_steps.registry) - {object}
"""The nodes that the oracle knows: a test compares them with those of the algebra."""
