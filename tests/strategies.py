"""Hypothesis strategies: small streams and tables, every window, random plans over them.

Numbers are small on purpose: a few keys, a few values, times that collide, so that ties, ghosts,
empty snapshots and rows that take one another's place happen often.  Three streams and two tables
are always there; what is drawn is their contents and the plan.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
from hypothesis import strategies as st

from penstock.algebra import (
    ASOF_KINDS,
    ASOF_OPERATORS,
    JOIN_KINDS,
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
    SortKey,
    TableScan,
    TopK,
    ToStream,
    UnionAll,
    Window,
    inputs,
    is_stream,
    pulses_of,
    with_inputs,
)
from penstock.expr.frames import (
    NUMBERS,
    ORDINALS,
    PICKS,
    SHIFTS,
    Extent,
    Frame,
    OverCall,
    RankCall,
)
from penstock.expr.nodes import AggregateCall, Call, Case, Cast, Column, Expr, Literal
from penstock.model import INF, Field, Schema
from penstock.settings import SCHEDULERS
from penstock.windows import Bounds, WindowSpec

LONG, DOUBLE, STRING, BOOL = pa.int64(), pa.float64(), pa.string(), pa.bool_()


def schema_of(**columns: pa.DataType) -> Schema:
    return Schema(tuple(Field(name, kind) for name, kind in columns.items()))


SCANS = {
    "s": Scan("s", schema_of(k=STRING, x=LONG, y=DOUBLE, t=LONG), 3),
    "r": Scan("r", schema_of(k=STRING, x=LONG, t=LONG), 2),
    "q": Scan("q", schema_of(x=LONG, b=BOOL, t=LONG), 2),
}
TABLE = schema_of(k=STRING, x=LONG, since=LONG, until=LONG)
TABLES = (TableScan("d", TABLE), TableScan("v", TABLE, 2, 3))

VALUES: dict[pa.DataType, list] = {
    STRING: [None, "a", "b", "c", ""],
    LONG: [None, 0, 1, 2, 3, -4],
    DOUBLE: [None, 0.0, 1.5, -2.25, 0.1, 100.0],
    BOOL: [None, True, False],
}
STRANGE = [*VALUES[DOUBLE], -0.0, 1e15, float("nan"), float("inf"), float("-inf")]


@dataclass(frozen=True)
class Data:
    """What an engine is given: streams in arrival order, tables, and the slack they need."""

    streams: dict[str, list]
    tables: dict[str, list]
    slack: int = 0


# Inputs


@st.composite
def stream_rows(draw, scan: Scan, slack: int, most: int = 10, strange: bool = False) -> list:
    """Elements ``(values, t)`` in arrival order, none of them late."""
    kinds = scan.schema.types[:-1]
    pools = [STRANGE if strange and kind == DOUBLE else VALUES[kind] for kind in kinds]
    row = st.tuples(*(st.sampled_from(pool) for pool in pools), st.integers(-slack, 4))
    rows, largest = [], draw(st.integers(-3, 3))
    least = draw(st.sampled_from([most, most // 2, 0]))
    for *values, step in draw(st.lists(row, min_size=least, max_size=most)):
        time = largest + step
        largest = max(largest, time)
        rows.append(((*values, time), time))
    return rows


@st.composite
def table_rows(draw, most: int = 5) -> list:
    bound = st.none() | st.integers(-2, 20)
    row = st.tuples(st.sampled_from(VALUES[STRING]), st.sampled_from(VALUES[LONG]), bound, bound)
    return draw(st.lists(row, min_size=draw(st.sampled_from([most, 2, 0])), max_size=most))


@st.composite
def data(draw, most: int = 10, strange: bool = False) -> Data:
    """Contents of all streams and tables."""
    slack = draw(st.sampled_from([0, 0, 3]))
    return Data(
        {
            name: draw(stream_rows(scan, slack, most, strange and name == "s"))
            for name, scan in SCANS.items()
        },
        {scan.table: draw(table_rows()) for scan in TABLES},
        slack,
    )


def many_rows(dice: random.Random, count: int) -> Data:
    """Longer streams, from plain random numbers: nobody wants to read these one by one."""
    streams = {}
    for name, scan in SCANS.items():
        rows, time = [], 0
        for _ in range(count):
            time += dice.choice([0, 0, 1, 1, 2])
            values = [dice.choice(VALUES[kind]) for kind in scan.schema.types[:-1]]
            rows.append(((*values, time), time))
        streams[name] = rows
    bounds = [None, *range(0, count, 5)]
    pools = (VALUES[STRING], VALUES[LONG], bounds, bounds)
    tables = {
        scan.table: [tuple(dice.choice(pool) for pool in pools) for _ in range(9)]
        for scan in TABLES
    }
    return Data(streams, tables)


def stretched(node: Node, factor: int) -> Node:
    """Make every window longer."""
    node = with_inputs(node, tuple(stretched(below, factor) for below in inputs(node)))
    match node:
        case Window(below, spec):
            lengths = ("rows", "range", "slide", "fixed", "session", "after", "before", "origin",
                       "hop", "offset", "shift")  # fmt: skip
            given = {name: getattr(spec, name) for name in lengths}
            longer = {n: min(v * factor, INF) for n, v in given.items() if v is not None}
            bounds = spec.bounds
            if bounds is not None:
                spec = replace(spec, bounds=replace(bounds, length=bounds.length * factor))
            return Window(below, replace(spec, **longer))
        case Over(_, calls):
            return replace(node, calls=tuple(_longer(call, factor) for call in calls))
        case ToStream("rstream", below, _):
            return ToStream("rstream", below, pulses_of(below))
    return node


def _longer(call: OverCall, factor: int) -> OverCall:
    start = None if call.frame.start is None else call.frame.start * factor
    frame = replace(call.frame, start=start, end=call.frame.end * factor)
    return replace(call, frame=frame, offset=call.offset * factor)


def cuts(most: int = 5) -> st.SearchStrategy:
    """Where the input is cut into micro-batches: a number of batches, or one row each."""
    return st.integers(1, most) | st.just(1000)


def hostile_settings() -> st.SearchStrategy:
    """Settings that may change how the engine works, never what it answers."""
    return st.fixed_dictionaries(
        {},
        optional={
            "merge.strategy": st.sampled_from(["greedy", "maxfanin", "load", "always", "never"]),
            "merge.fan_in": st.integers(2, 4),
            "join.method": st.sampled_from(["temporal", "tpmj", "pmj"]),
            "join.memory": st.sampled_from([1, 500, "4k"]),
            "block.rows": st.sampled_from([1, 2, 5]),
            "scheduler": st.sampled_from(SCHEDULERS),
            "scheduler.quantum": st.sampled_from([1, 4]),
            "train.rows": st.sampled_from([1, 3, 1000]),
            "stage.memory": st.sampled_from([1, 500, 1 << 20]),
            "lifetime": st.sampled_from(["direct", "negative"]),
            "rules": st.booleans(),
            "panes": st.booleans(),
            "join.buffer": st.sampled_from(["input", "output"]),
            "join.index": st.booleans(),
            "join.split": st.sampled_from([1, 2, 9]),
            "join.multiway": st.sampled_from(["always", "never"]),
        },
    )


# Windows


@st.composite
def windows(draw, schema: Schema, forms: tuple[str, ...] | None = None) -> WindowSpec:
    """Any window of the semantics over a stream with this schema."""
    ends = [i for i, f in enumerate(schema) if f.type == LONG]
    if forms is None and ends and draw(st.integers(0, 15)) == 15:
        return WindowSpec(until=draw(st.sampled_from(ends)))
    form = draw(st.sampled_from(forms or tuple(FORMS)))
    fields = draw(FORMS[form])
    if form.startswith(("rows", "session")) and draw(st.booleans()):
        positions = st.integers(0, max(0, len(schema) - 2))
        fields["partition_by"] = tuple(sorted(draw(st.sets(positions, min_size=1, max_size=2))))
    if draw(st.integers(0, 5)) == 5:
        fields["origin"] = draw(st.integers(-2, 8))
    if draw(st.integers(0, 5)) == 5:
        fields["shift"] = draw(_LENGTH)
    return WindowSpec(**fields)


_FEW = st.integers(1, 4)
_LENGTH = st.integers(1, 9)

FORMS: dict[str, st.SearchStrategy] = {
    "rows": st.fixed_dictionaries({"rows": _FEW}),
    "rows_slide": st.fixed_dictionaries({"rows": _FEW, "rows_slide": _FEW}),
    "rows_range": st.fixed_dictionaries({"rows": _FEW, "range": _LENGTH}),
    "rows_range_slide": st.fixed_dictionaries(
        {"rows": _FEW, "range": _LENGTH | st.just(INF), "slide": _LENGTH}
    ),
    "range": st.fixed_dictionaries({"range": _LENGTH}),
    "range_slide": st.fixed_dictionaries({"range": _LENGTH, "slide": _LENGTH}),
    "tumbling": _LENGTH.map(lambda n: {"range": n, "slide": n}),
    "tumble": _LENGTH.map(lambda n: {"hop": n, "slide": n}),
    "hop": st.fixed_dictionaries({"hop": _LENGTH, "slide": _LENGTH}),
    "hop_offset": st.fixed_dictionaries(
        {"hop": _LENGTH, "slide": st.integers(4, 9), "offset": st.integers(1, 3)}
    ),
    "hop_bounds": st.builds(
        lambda n, slide: {"hop": n, "slide": slide, "bounds": Bounds(LONG, n)}, _LENGTH, _LENGTH
    ),
    "unbounded_slide": st.fixed_dictionaries({"range": st.just(INF), "slide": _LENGTH}),
    "now": st.just({"now": True}).map(dict),
    "unbounded": st.sampled_from([{}, {"range": INF}]).map(dict),
    "after": st.fixed_dictionaries({"after": st.integers(-1, 12)}),
    "before": st.fixed_dictionaries({"before": st.integers(-1, 12)}),
    "band": st.fixed_dictionaries({"after": st.integers(-1, 6), "before": st.integers(3, 12)}),
    "fixed": st.fixed_dictionaries({"fixed": _LENGTH}),
    "session": st.fixed_dictionaries({"session": st.integers(1, 5)}),
}


# Expressions


def columns_of_type(schema: Schema, kind: pa.DataType) -> list[Expr]:
    return [Column(i, f.type, f.name) for i, f in enumerate(schema) if f.type == kind]


@st.composite
def expressions(draw, schema: Schema, kind: pa.DataType, depth: int = 2) -> Expr:
    """An expression of a type that cannot fail on small values."""
    columns = columns_of_type(schema, kind)
    if depth == 0 or draw(st.booleans()):
        if columns and draw(st.integers(0, 3)):
            return draw(st.sampled_from(columns))
        return Literal(draw(st.sampled_from(VALUES[kind])), kind)
    return draw(st.sampled_from(MAKERS[kind]))(draw, schema, depth - 1)


@st.composite
def predicates(draw, schema: Schema) -> Expr:
    """A condition that depends on the row more often than not."""
    if draw(st.integers(0, 5)) == 0:
        return draw(expressions(schema, BOOL))
    return draw(st.sampled_from(MAKERS[BOOL]))(draw, schema, 1)


def _two(draw, schema, kind, depth):
    return draw(expressions(schema, kind, depth)), draw(expressions(schema, kind, depth))


def _arithmetic(kind: pa.DataType) -> Callable:
    def make(draw, schema, depth):
        name = draw(st.sampled_from(["add", "subtract"]))
        return Call(name, _two(draw, schema, kind, depth), kind)

    return make


def _remainder(draw, schema, depth):
    divisor = Literal(draw(st.sampled_from([2, 3, -2])), LONG)
    return Call("mod", (draw(expressions(schema, LONG, depth)), divisor), LONG)


def _case(kind: pa.DataType) -> Callable:
    def make(draw, schema, depth):
        condition = draw(expressions(schema, BOOL, depth))
        first, second = _two(draw, schema, kind, depth)
        return Case(((condition, first),), second, kind)

    return make


def _coalesce(kind: pa.DataType) -> Callable:
    return lambda draw, schema, depth: Call("coalesce", _two(draw, schema, kind, depth), kind)


def _comparison(draw, schema, depth):
    kind = draw(st.sampled_from([LONG, STRING, DOUBLE]))
    name = draw(st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]))
    return Call(name, _two(draw, schema, kind, depth), BOOL)


def _logic(draw, schema, depth):
    name = draw(st.sampled_from(["and", "or"]))
    return Call(name, _two(draw, schema, BOOL, depth), BOOL)


def _not(draw, schema, depth):
    return Call("not", (draw(expressions(schema, BOOL, depth)),), BOOL)


def _is_null(draw, schema, depth):
    kind = draw(st.sampled_from([LONG, STRING, DOUBLE, BOOL]))
    return Call("is_null", (draw(expressions(schema, kind, depth)),), BOOL)


def _upper(draw, schema, depth):
    return Call("upper", (draw(expressions(schema, STRING, depth)),), STRING)


def _widened(draw, schema, depth):
    return Cast(draw(expressions(schema, LONG, depth)), DOUBLE)


MAKERS: dict[pa.DataType, list[Callable]] = {
    LONG: [_arithmetic(LONG), _remainder, _case(LONG), _coalesce(LONG)],
    DOUBLE: [_arithmetic(DOUBLE), _case(DOUBLE), _coalesce(DOUBLE), _widened],
    STRING: [_upper, _case(STRING), _coalesce(STRING)],
    BOOL: [_comparison, _comparison, _logic, _not, _is_null],
}


# Plans


@st.composite
def sources(draw, scans: tuple[str, ...] = ("s", "r", "q")) -> Node:
    """A window over a stream, rarely a stream without one or a table."""
    if scans == tuple(SCANS) and draw(st.integers(0, 14)) == 14:
        return draw(tables())
    scan = SCANS[draw(st.sampled_from(scans))]
    return scan if draw(st.integers(0, 9)) == 9 else Window(scan, draw(windows(scan.schema)))


def tables() -> st.SearchStrategy:
    """A table that is valid for all time, or one with validity columns."""
    return st.sampled_from(TABLES)


@st.composite
def others(draw) -> Node:
    """The second input of an operator: mostly a window, at times a table or a small plan."""
    choice = draw(st.integers(0, 9))
    return draw(sources() if choice < 7 else plans(depth=1) if choice < 9 else tables())


@st.composite
def plans(draw, depth: int = 3) -> Node:
    """A relation or a stream: any operators over any windows, up to a depth."""
    if depth == 0:
        return draw(sources())
    below = plans(depth=depth - 1) if draw(st.integers(0, 2)) else sources()
    return draw(draw(st.sampled_from(OPERATORS))(below))


@st.composite
def filters(draw, below: st.SearchStrategy) -> Node:
    node = draw(below)
    return Filter(node, draw(predicates(node.schema)))


@st.composite
def projects(draw, below: st.SearchStrategy) -> Node:
    node = draw(below)
    kinds = draw(st.lists(st.sampled_from([LONG, STRING, BOOL, DOUBLE]), min_size=1, max_size=3))
    exprs = tuple(draw(expressions(node.schema, kind)) for kind in kinds)
    return Project(node, exprs, tuple(f"c{i}" for i in range(len(exprs))))


def as_types(draw, node: Node, kinds: tuple[pa.DataType, ...]) -> Node:
    """Project a node to the given types, by columns where there are some."""
    exprs = tuple(
        draw(st.sampled_from(columns_of_type(node.schema, kind) or [Literal(None, kind)]))
        for kind in kinds
    )
    return Project(node, exprs, tuple(f"c{i}" for i in range(len(exprs))))


@st.composite
def joins(draw, below: st.SearchStrategy) -> Node:
    left, right = draw(below), draw(others())
    if draw(st.booleans()):
        left, right = right, left
    keys: list[tuple[Expr, Expr]] = []
    for kind in (STRING, LONG, DOUBLE, BOOL):
        pairs = (columns_of_type(left.schema, kind), columns_of_type(right.schema, kind))
        if all(pairs) and draw(st.integers(0, 1 if kind in (STRING, LONG) else 5)) == 0:
            keys.append(tuple(draw(st.sampled_from(side)) for side in pairs))
    residual = None
    if draw(st.integers(0, 2)) == 0:
        both = Schema(left.schema.fields + right.schema.fields)
        residual = draw(predicates(both))
    kind = draw(st.sampled_from(["inner", *JOIN_KINDS]))
    return Join(left, right, tuple(a for a, _ in keys), tuple(b for _, b in keys), residual, kind)


@st.composite
def asof_joins(draw, below: st.SearchStrategy) -> Node:
    """Often by the time columns, at times moved by a constant, at times by any other number."""
    left, right = draw(below), draw(others())
    if draw(st.booleans()):
        left, right = right, left
    kinds = (LONG, DOUBLE, BOOL)
    both = [k for k in kinds if all(columns_of_type(n.schema, k) for n in (left, right))]
    kind = draw(st.sampled_from([*both, *both[:1] * 3] or [LONG]))
    at = []
    for node in (left, right):
        columns = columns_of_type(node.schema, kind) or [Literal(1, LONG)]
        by_time = columns[-1] if draw(st.integers(0, 3)) else draw(st.sampled_from(columns))
        if kind == LONG and draw(st.integers(0, 3)) == 0:
            name = draw(st.sampled_from(["add", "subtract"]))
            by_time = Call(name, (by_time, Literal(draw(st.integers(-3, 3)), LONG)), LONG)
        at.append(by_time)
    keys: list[tuple[Expr, Expr]] = []
    for of_key in (STRING, LONG):
        pairs = (columns_of_type(left.schema, of_key), columns_of_type(right.schema, of_key))
        if all(pairs) and draw(st.integers(0, 2)) == 0:
            keys.append(tuple(draw(st.sampled_from(side)) for side in pairs))
    return AsofJoin(
        left,
        right,
        tuple(a for a, _ in keys),
        tuple(b for _, b in keys),
        *at,
        draw(st.sampled_from(ASOF_OPERATORS)),
        draw(st.sampled_from(ASOF_KINDS)),
    )


EXACT = ("count", "count_distinct", "sum", "min", "max", "mode", "min_by", "max_by", "bit_xor")
INEXACT = ("avg", "var_samp", "var_pop", "stddev_samp", "stddev_pop", "covar_pop", "percentile")


@st.composite
def aggregates(draw, below: st.SearchStrategy, inexact: bool = False) -> Node:
    """GROUP BY. Inexact aggregates are compared with a tolerance, so they stand only at the top."""
    node = draw(below)
    kinds = [k for k in (STRING, LONG, BOOL, DOUBLE) if columns_of_type(node.schema, k)]
    chosen = draw(st.lists(st.sampled_from(kinds), max_size=2)) if kinds else []
    keys = tuple(draw(expressions(node.schema, kind, 1)) for kind in chosen)
    calls = draw(st.lists(aggregate_calls(node.schema, inexact), min_size=1, max_size=3))
    names = tuple(f"c{i}" for i in range(len(keys) + len(calls)))
    return Aggregate(node, keys, tuple(calls), names)


@st.composite
def aggregate_calls(draw, schema: Schema, inexact: bool) -> AggregateCall:
    name = draw(st.sampled_from(EXACT + INEXACT if inexact else EXACT))
    if name == "count" and draw(st.booleans()):
        return AggregateCall("count", None, LONG)
    kinds = [LONG, DOUBLE] if name != "bit_xor" else [LONG]
    if name in ("count", "count_distinct", "min", "max", "mode", "min_by", "max_by"):
        kinds += [STRING, BOOL]
    arg = draw(expressions(schema, draw(st.sampled_from(kinds)), 1))
    if name in ("count", "count_distinct"):
        more = (draw(expressions(schema, STRING, 1)),)
        many = name == "count_distinct" and draw(st.booleans())
        return AggregateCall(name, arg, LONG, more if many else ())
    if name in ("min_by", "max_by"):
        value = draw(expressions(schema, draw(st.sampled_from(kinds)), 1))
        return AggregateCall(name, arg, value.type, (value,))
    once = name in ("sum", "avg", "bit_xor", "percentile") and draw(st.booleans())
    second: tuple[Expr, ...] = ()
    if name == "percentile":
        second = (Literal(draw(st.sampled_from([0.0, 0.3, 0.5, 1.0])), DOUBLE),)
    elif name == "covar_pop":
        second = (draw(expressions(schema, LONG, 1)),)
    return AggregateCall(name, arg, DOUBLE if name in INEXACT else arg.type, second, once)


@st.composite
def distincts(draw, below: st.SearchStrategy) -> Node:
    node = draw(below)
    return Distinct(draw(projects(st.just(node))) if draw(st.booleans()) else node)


COLUMNS = [(LONG,), (STRING,), (STRING, LONG), (DOUBLE,), (BOOL, LONG)]


@st.composite
def unions(draw, below: st.SearchStrategy) -> Node:
    kinds = draw(st.sampled_from(COLUMNS))
    members = [draw(below), *(draw(others()) for _ in range(draw(st.integers(1, 2))))]
    return UnionAll(tuple(as_types(draw, member, kinds) for member in members))


@st.composite
def set_operations(draw, below: st.SearchStrategy) -> Node:
    kinds = draw(st.sampled_from(COLUMNS))
    left, right = as_types(draw, draw(below), kinds), as_types(draw, draw(others()), kinds)
    if draw(st.booleans()):
        left, right = right, left
    return SetOp(draw(st.sampled_from(["intersect", "except"])), draw(st.booleans()), left, right)


@st.composite
def top_ks(draw, below: st.SearchStrategy) -> Node:
    node = draw(below)
    kinds = draw(st.lists(st.sampled_from(sorted(set(node.schema.types), key=str)), max_size=2))
    order = tuple(
        SortKey(draw(expressions(node.schema, kind, 1)), draw(st.booleans()), draw(st.booleans()))
        for kind in kinds
    )
    return TopK(node, order, draw(st.integers(1, 4)))


@st.composite
def grouped(draw, schema: Schema) -> tuple[tuple[Expr, ...], tuple[SortKey, ...]]:
    """How rows are put into groups, and the order in these."""
    some = st.lists(st.sampled_from(sorted(set(schema.types), key=str)), max_size=2)
    partition = tuple(draw(expressions(schema, kind, 1)) for kind in draw(some))
    order = tuple(
        SortKey(draw(expressions(schema, kind, 1)), draw(st.booleans()), draw(st.booleans()))
        for kind in draw(some)
    )
    return partition, order


@st.composite
def group_tops(draw, below: st.SearchStrategy) -> Node:
    node = draw(below)
    partition, order = draw(grouped(node.schema))
    names = ("number",) if draw(st.booleans()) else ()
    by, limit = draw(st.sampled_from(ORDINALS)), draw(st.integers(1, 3))
    return GroupTop(node, partition, order, by, limit, names)


@st.composite
def extents(draw) -> Extent:
    """Any extent of window functions over relations."""
    if draw(st.booleans()):
        ends = st.sampled_from([None, 0])
        return Extent("range", draw(ends), draw(ends))
    start = draw(st.none() | st.integers(-3, 2))
    least = -3 if start is None else start
    return Extent("rows", start, draw(st.none() | st.integers(least, 3)))


@st.composite
def rank_calls(draw, schema: Schema) -> RankCall:
    """Any window function over a relation; its argument is a column or a small expression."""
    plain = ("count", "sum", "min", "max")  # OVER knows no others with exact results
    exact = [name for name in NUMBERS if name not in ("percent_rank", "cume_dist")]
    name = draw(st.sampled_from([*plain, *PICKS, *SHIFTS, *exact]))
    extent = draw(extents())
    if name in NUMBERS or (name == "count" and draw(st.booleans())):
        return RankCall(name, (), extent, LONG, draw(st.integers(1, 4)) if name == "ntile" else 1)
    kind = draw(st.sampled_from([LONG, DOUBLE] if name == "sum" else [LONG, DOUBLE, STRING, BOOL]))
    arg = draw(expressions(schema, kind, 1))
    if name in SHIFTS:
        both = (arg, draw(expressions(schema, kind, 1)))
        return RankCall(name, both, extent, kind, draw(st.integers(0, 3)))
    kind = LONG if name == "count" else kind
    return RankCall(name, (arg,), extent, kind, draw(st.integers(1, 3)))


@st.composite
def ranks(draw, below: st.SearchStrategy) -> Node:
    """Window functions over each snapshot; some with a bound above them."""
    node = draw(below)
    partition, order = draw(grouped(node.schema))
    calls = tuple(draw(st.lists(rank_calls(node.schema), min_size=1, max_size=3)))
    made = Rank(node, partition, order, calls, tuple(f"r{i}" for i in range(len(calls))))
    numbers = [i for i, call in enumerate(calls) if call.name in ORDINALS]
    if not numbers or draw(st.booleans()):
        return made
    at = draw(st.sampled_from(numbers))
    number = Column(len(node.schema) + at, LONG, f"r{at}")
    compare = draw(st.sampled_from(["le", "lt", "eq"]))
    return Filter(made, Call(compare, (number, Literal(draw(st.integers(1, 3)), LONG)), BOOL))


@st.composite
def to_streams(draw, below: st.SearchStrategy) -> Node:
    node = draw(below)
    kind = draw(st.sampled_from(["istream", "dstream", "rstream"]))
    return ToStream(kind, node, pulses_of(node) if kind == "rstream" else ())


@st.composite
def nested_windows(draw, below: st.SearchStrategy) -> Node:
    node = draw(below)
    return Window(node, draw(windows(node.schema)))


@st.composite
def frames(draw) -> Frame:
    """Any frame of window functions that looks back."""
    unit = draw(st.sampled_from(["rows", "range"]))
    start = None if draw(st.integers(0, 2)) == 0 else draw(st.integers(0, 5))
    end = draw(st.integers(0, 3 if start is None else start)) if draw(st.booleans()) else 0
    return Frame(unit, start, end)


@st.composite
def over_calls(draw, schema: Schema, partition: tuple, inexact: bool = False) -> OverCall:
    """Any window function; its argument is a column or a small expression."""
    plain = ("count", "sum", "min", "max")
    means = [name for name in INEXACT if name not in ("covar_pop", "percentile")]
    names = [*plain, *PICKS, "lag", *ORDINALS, *(means if inexact else ())]
    name = draw(st.sampled_from(names))
    frame = draw(frames())
    if name in ORDINALS:
        return OverCall(name, (), partition, frame, LONG)
    if name == "count" and draw(st.booleans()):
        return OverCall(name, (), partition, frame, LONG)
    kinds = [LONG, DOUBLE] if name in ("sum", *INEXACT) else [LONG, DOUBLE, STRING, BOOL]
    kind = draw(st.sampled_from(kinds))
    arg = draw(expressions(schema, kind, 1))
    if name == "lag":
        both = (arg, draw(expressions(schema, kind, 1)))
        return OverCall(name, both, partition, frame, kind, draw(st.integers(0, 3)))
    ignore = False
    if name in ("min", "max"):
        if frame.unit == "range" and frame.start is not None:
            frame = replace(frame, end=0)
    elif name == "nth_value":
        return OverCall(name, (arg,), partition, frame, kind, draw(st.integers(1, 4)))
    elif name in PICKS and draw(st.booleans()):
        ignore = True
        frame = replace(frame, start=None) if name == "first_value" else frame
    kind = LONG if name == "count" else DOUBLE if name in INEXACT else kind
    return OverCall(name, (arg,), partition, frame, kind, 1, ignore)


@st.composite
def overs(draw, below: st.SearchStrategy, inexact: bool = False) -> Node:
    """Window functions with one or two ways to partition, over a stream."""
    node = draw(below)
    if not is_stream(node):
        node = ToStream("istream", node)
    keys = [st.sampled_from([STRING, LONG]).flatmap(lambda k: expressions(node.schema, k, 1))]
    partitions = draw(st.lists(st.lists(keys[0], max_size=2), min_size=1, max_size=2))
    calls = [
        draw(over_calls(node.schema, tuple(partition), inexact))
        for partition in partitions
        for _ in range(draw(st.integers(1, 3)))
    ]
    fields = (*node.schema, *(Field("", c.type) for c in calls))
    columns = [Column(i, f.type, f.name) for i, f in enumerate(fields)]
    kept = draw(st.permutations(columns)) if draw(st.booleans()) else columns
    kept = kept[: draw(st.integers(1, len(kept)))] if draw(st.booleans()) else kept
    predicate = draw(predicates(Schema(fields))) if draw(st.integers(0, 3)) == 0 else None
    names = tuple(f"c{i}" for i in range(len(kept)))
    return Over(node, tuple(calls), predicate, tuple(kept), names)


OPERATORS: list[Callable] = [
    filters,
    projects,
    joins,
    asof_joins,
    aggregates,
    distincts,
    unions,
    set_operations,
    top_ks,
    ranks,
    group_tops,
    to_streams,
    overs,
    nested_windows,
]
