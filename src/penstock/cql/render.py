"""A logical plan as text, as EXPLAIN shows it: one line per node, inputs indented below.

Expressions are written as a user would write them, with the names of the columns they read and only
the parentheses that are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import singledispatch
from typing import Any

import pyarrow as pa

from penstock.algebra import (
    EVERY,
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
    update_pattern,
    walk,
)
from penstock.expr.frames import (
    EVERYTHING,
    NUMBERS,
    ORDINALS,
    SHIFTS,
    UP_TO_PEERS,
    Extent,
    Frame,
    OverCall,
    RankCall,
)
from penstock.expr.nodes import AggregateCall, Call, Case, Cast, Column, Expr, Literal
from penstock.expr.types import DATE, type_name
from penstock.model import INF, TIMESTAMP
from penstock.timing import TimeRules
from penstock.windows import WindowSpec

_INFIX: dict[str, tuple[str, int]] = {
    "or": ("OR", 1),
    "and": ("AND", 2),
    "eq": ("=", 4),
    "ne": ("<>", 4),
    "lt": ("<", 4),
    "le": ("<=", 4),
    "gt": (">", 4),
    "ge": (">=", 4),
    "eq_null_safe": ("<=>", 4),
    "like": ("LIKE", 4),
    "ilike": ("ILIKE", 4),
    "rlike": ("RLIKE", 4),
    "bit_or_of": ("|", 5),
    "bit_xor_of": ("^", 6),
    "bit_and_of": ("&", 7),
    "add": ("+", 8),
    "subtract": ("-", 8),
    "multiply": ("*", 9),
    "divide": ("/", 9),
    "div": ("DIV", 9),
    "mod": ("%", 9),
}
_COMPARISON = 4
_UNARY = 10
_ATOM = 12

_UNITS = (
    ("WEEK", 604_800_000_000),
    ("DAY", 86_400_000_000),
    ("HOUR", 3_600_000_000),
    ("MINUTE", 60_000_000),
    ("SECOND", 1_000_000),
    ("MILLISECOND", 1_000),
    ("MICROSECOND", 1),
)


def expr_text(expr: Expr, names: Sequence[str] | None = None) -> str:
    """Return an expression as text; ``names`` are those of the columns that it reads."""
    return _text(expr, names)[0]


def aggregate_text(call: AggregateCall, names: Sequence[str] | None = None) -> str:
    """Return an aggregate as text, such as ``avg(celsius)``."""
    args = [expr_text(arg, names) for arg in call.args]
    if call.name in ("min_by", "max_by"):
        args.reverse()
    inside = ", ".join(args) or "*"
    if call.name == "count_distinct":
        return f"count(distinct {inside})"
    return f"{call.name}({'distinct ' if call.distinct else ''}{inside})"


def over_text(call: OverCall, names: Sequence[str], stamps: bool) -> str:
    """Return a window function as text, such as ``avg(x) OVER (PARTITION BY k ROWS 9)``."""
    args = [expr_text(a, names) for a in call.args] or (["*"] if call.name == "count" else [])
    if call.name in ("lag", "nth_value"):
        args.insert(1, str(call.offset))
    nulls = " IGNORE NULLS" if call.ignore_nulls else ""
    parts = []
    if call.partition:
        parts.append("PARTITION BY " + ", ".join(expr_text(k, names) for k in call.partition))
    framed = call.name not in (*ORDINALS, "lag") and call.frame != EVERYTHING
    if framed:
        parts.append(_frame_text(call.frame, stamps))
    return f"{call.name}({', '.join(args)}){nulls} OVER ({' '.join(parts)})"


def rank_text(call: RankCall, names: Sequence[str]) -> str:
    """Return a window function over a relation as text, without its window but for the frame."""
    args = [expr_text(a, names) for a in call.args] or (["*"] if call.name == "count" else [])
    if call.name in (*SHIFTS, "nth_value", "ntile"):
        args.insert(1, str(call.offset))
    text = f"{call.name}({', '.join(args)})"
    if call.name in (*NUMBERS, *SHIFTS) or call.extent == UP_TO_PEERS:
        return text
    return f"{text} {_extent_text(call.extent)}"


def _extent_text(extent: Extent) -> str:
    def bound(value: int | None, unbounded: str) -> str:
        if value is None:
            return f"UNBOUNDED {unbounded}"
        if value == 0:
            return "CURRENT ROW"
        return f"{abs(value)} {'PRECEDING' if value < 0 else 'FOLLOWING'}"

    start, end = bound(extent.start, "PRECEDING"), bound(extent.end, "FOLLOWING")
    return f"{extent.unit.upper()} BETWEEN {start} AND {end}"


def _frame_text(frame: Frame, stamps: bool) -> str:
    def bound(value: int | None) -> str:
        if value == 0:
            return "CURRENT ROW"
        if value is None:
            return "UNBOUNDED PRECEDING"
        far = str(value) if frame.unit == "rows" else duration_text(value, stamps)
        return f"{far} PRECEDING"

    if frame.end == 0:
        return f"{frame.unit.upper()} {bound(frame.start)}"
    return f"{frame.unit.upper()} BETWEEN {bound(frame.start)} AND {bound(frame.end)}"


def _text(expr: Expr, names: Sequence[str] | None) -> tuple[str, int]:
    """Return the text and how tightly its outermost operator binds."""
    match expr:
        case Column(index, _, name):
            known = names is not None and index < len(names)
            return (names[index] if known and names else name) or f"#{index}", _ATOM
        case Literal(value, kind):
            return _literal(value, kind), _ATOM
        case Cast(arg, to):
            return f"CAST({expr_text(arg, names)} AS {type_name(to)})", _ATOM
        case Case(branches, otherwise, _):
            whens = "".join(
                f" WHEN {expr_text(c, names)} THEN {expr_text(v, names)}" for c, v in branches
            )
            return f"CASE{whens} ELSE {expr_text(otherwise, names)} END", _ATOM
        case Call(name, args, _):
            return _call(name, args, names)


def _call(name: str, args: tuple[Expr, ...], names: Sequence[str] | None) -> tuple[str, int]:
    def part(expr: Expr, least: int) -> str:
        text, binds = _text(expr, names)
        return text if binds >= least else f"({text})"

    if name in _INFIX and len(args) == 2:
        sign, binds = _INFIX[name]
        left = binds + 1 if binds == _COMPARISON else binds
        right = binds if name in ("and", "or") else binds + 1
        return f"{part(args[0], left)} {sign} {part(args[1], right)}", binds
    match name, args:
        case "not", (arg,):
            return f"NOT {part(arg, 3)}", 3
        case "is_null", (arg,):
            return f"{part(arg, 5)} IS NULL", _COMPARISON
        case "is_not_null", (arg,):
            return f"{part(arg, 5)} IS NOT NULL", _COMPARISON
        case "negate", (arg,):
            return f"-{part(arg, _UNARY + 1)}", _UNARY
        case "bit_not", (arg,):
            return f"~{part(arg, _UNARY + 1)}", _UNARY
        case "try_cast", (arg, Literal(target)):
            return f"TRY_CAST({expr_text(arg, names)} AS {target})", _ATOM
        case "overlaps", (a, b, c, d):
            ends = [expr_text(e, names) for e in (a, b, c, d)]
            return "({}, {}) OVERLAPS ({}, {})".format(*ends), _ATOM
        case "in", (arg, *items):
            listed = ", ".join(expr_text(i, names) for i in items)
            return f"{part(arg, 5)} IN ({listed})", _COMPARISON
    return f"{name}({', '.join(expr_text(a, names) for a in args)})", _ATOM


def _literal(value: Any, kind: pa.DataType) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if kind == TIMESTAMP:
        return f"TIMESTAMP '{time_text(value, True)}'"
    if kind == DATE:
        return f"DATE '{datetime.fromtimestamp(0, UTC).date() + timedelta(days=value)}'"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


def time_text(value: int, stamps: bool) -> str:
    """Return a point in time as text: a timestamp in UTC, or the integer."""
    if not stamps:
        return str(value)
    try:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=value)
    except OverflowError:
        return str(value)
    return moment.replace(tzinfo=None).isoformat(" ")


def duration_text(value: int, stamps: bool) -> str:
    """Return a duration in its largest whole unit; a bare number where time is in integers."""
    if value == INF:
        return "UNBOUNDED"
    if not stamps:
        return str(value)
    if value == 0:
        return "0 SECONDS"
    unit, size = next((u, s) for u, s in _UNITS if value % s == 0)
    count = value // size
    return f"{count} {unit}{'' if count == 1 else 'S'}"


def timing_texts(rules: TimeRules, names: Sequence[str], stamps: bool) -> dict[str, str]:
    """Return what a stream says about time, clause by clause."""
    found = {"SLACK": duration_text(rules.slack, stamps)}
    if rules.keeping is not None:
        found["SLACK"] = f"AUTO KEEPING {rules.keeping * 100:.6g} %"
    if rules.clock_lag is not None:
        found["HEARTBEAT FROM CLOCK LAG"] = duration_text(rules.clock_lag, stamps)
    if rules.idle_after is not None:
        found["IDLE AFTER"] = duration_text(round(rules.idle_after * 1_000_000), stamps=True)
    if rules.partitions is not None:
        found["PARTITIONS"] = str(rules.partitions)
    if rules.step is not None:
        found["STEP"] = duration_text(rules.step, stamps)
    for punctuation in rules.punctuations:
        time = "" if punctuation.time is None else f" TIME {expr_text(punctuation.time, names)}"
        on = f" ON ({', '.join(names[c] for c in punctuation.on)})" if punctuation.on else ""
        if punctuation.lasts is not None:
            on += f" FOR {duration_text(punctuation.lasts, stamps)}"
        found["PUNCTUATION WHEN"] = expr_text(punctuation.condition, names) + time + on
    return found


def window_text(spec: WindowSpec, names: Sequence[str], stamps: bool) -> str:
    """Return a window as CQL, such as ``[PARTITION BY city ROWS 20]``."""
    parts = []
    if spec.partition_by:
        parts.append("PARTITION BY " + ", ".join(names[i] for i in spec.partition_by))
    if spec.rows is not None:
        parts.append(f"ROWS {spec.rows}")
    if spec.rows_slide is not None:
        parts.append(f"SLIDE {spec.rows_slide}")
    if spec.range is not None:
        parts.append(f"RANGE {duration_text(spec.range, stamps)}")
    if spec.hop is not None:
        word = "TUMBLE" if spec.hop == spec.slide else "HOP"
        parts.append(f"{word} {duration_text(spec.hop, stamps)}")
    if spec.slide is not None and spec.slide != spec.hop:
        parts.append(f"SLIDE {duration_text(spec.slide, stamps)}")
    if spec.offset is not None:
        parts.append(f"OFFSET {duration_text(spec.offset, stamps)}")
    if spec.now:
        parts.append("NOW")
    if spec.fixed is not None:
        parts.append(f"FIXED {duration_text(spec.fixed, stamps)}")
    if spec.session is not None:
        parts.append(f"SESSION {duration_text(spec.session, stamps)}")
    quote = "'" if stamps else ""
    landmarks = [
        f"{word} {quote}{time_text(value, stamps)}{quote}"
        for word, value in (("AFTER", spec.after), ("BEFORE", spec.before))
        if value is not None
    ]
    if landmarks:
        parts.append(" AND ".join(landmarks))
    if spec.until is not None:
        parts.append(f"UNTIL {names[spec.until]}")
    if not parts:
        parts.append("RANGE UNBOUNDED")
    if spec.shift is not None:
        parts.append(f"SHIFT {duration_text(spec.shift, stamps)}")
    if spec.origin is not None:
        parts.append(f"START {quote}{time_text(spec.origin, stamps)}{quote}")
    return f"[{' '.join(parts)}]"


def in_timestamps(node: Node) -> bool:
    """Whether the plan counts time in timestamps."""
    return any(isinstance(n, Scan) and n.time_type == TIMESTAMP for n in walk(node))


def render_plan(node: Node, patterns: bool = False) -> str:
    """Return the plan as an indented tree; ``patterns`` adds each node's update pattern."""
    return "\n".join(_lines(node, 0, patterns))


def _lines(node: Node, depth: int, patterns: bool) -> list[str]:
    note = f"  -- {update_pattern(node)}" if patterns else ""
    lines = [f"{'  ' * depth}{describe(node)}{note}"]
    for child in inputs(node):
        lines += _lines(child, depth + 1, patterns)
    return lines


@singledispatch
def describe(node: Node) -> str:
    """Return one node as a line, without its inputs."""
    return type(node).__name__


@describe.register
def _(node: Scan) -> str:
    where = ""
    if node.predicate is not None:
        where = f" where {expr_text(node.predicate)}"
    if node.narrowed_time is None:
        where = f" time {node.schema[node.time].name}{where}"
    return f"Scan {node.stream} ({', '.join(node.schema.names)}){where}"


@describe.register
def _(node: TableScan) -> str:
    names = node.schema.names
    if node.rows is not None:
        return f"Values ({', '.join(names)}), {len(node.rows)} rows"
    valid = f" valid from {names[node.valid_from]}" if node.valid_from is not None else ""
    until = f" to {names[node.valid_to]}" if node.valid_to is not None else ""
    return f"TableScan {node.table} ({', '.join(names)}){valid}{until}"


@describe.register
def _(node: Window) -> str:
    text = window_text(node.spec, node.schema.names, in_timestamps(node))
    return f"Window {text}{bounds_text(node.spec)}"


def bounds_text(spec: WindowSpec) -> str:
    """Return which columns a window adds, nothing if it adds none."""
    return "" if spec.bounds is None else f" with {', '.join(spec.bounds.names)}"


@describe.register
def _(node: Filter) -> str:
    return f"Filter {expr_text(node.predicate, node.schema.names)}"


def _named(text: str, name: str) -> str:
    return text if text == name else f"{text} AS {name}"


@describe.register
def _(node: Project) -> str:
    below = node.input.schema.names
    pairs = zip(node.exprs, node.names, strict=True)
    return "Project " + ", ".join(_named(expr_text(e, below), n) for e, n in pairs)


@describe.register
def _(node: Join) -> str:
    left, right = node.left.schema.names, node.right.schema.names
    pairs = zip(node.left_keys, node.right_keys, strict=True)
    parts = [f"left {expr_text(a, left)} = right {expr_text(b, right)}" for a, b in pairs]
    word = "Join" if node.kind == "inner" else f"{node.kind.capitalize()} join"
    text = f"{word} on {' AND '.join(parts)}" if parts else word
    if node.residual is None:
        return text if parts else f"{word} (cross)"
    sides = [f"left {n}" for n in left] + [f"right {n}" for n in right]
    return f"{text} where {expr_text(node.residual, sides)}"


@describe.register
def _(node: AsofJoin) -> str:
    left, right = node.left.schema.names, node.right.schema.names
    pairs = zip(node.left_keys, node.right_keys, strict=True)
    parts = [f"left {expr_text(a, left)} = right {expr_text(b, right)}" for a, b in pairs]
    sign = _INFIX[node.operator][0]
    parts.append(f"left {expr_text(node.left_at, left)} {sign} right "
                 f"{expr_text(node.right_at, right)}")  # fmt: skip
    return f"AsofJoin{' left' if node.kind == 'left' else ''} on {' AND '.join(parts)}"


@describe.register
def _(node: Aggregate) -> str:
    below = node.input.schema.names
    keys = [expr_text(k, below) for k in node.keys]
    calls = [aggregate_text(a, below) for a in node.aggregates]
    named = [_named(t, n) for t, n in zip([*keys, *calls], node.names, strict=True)]
    text = "Aggregate " + (", ".join(named[len(keys) :]) or "keys only")
    return f"{text} by {', '.join(named[: len(keys)])}" if keys else text


@describe.register
def _(node: Distinct) -> str:
    return "Distinct"


@describe.register
def _(node: UnionAll) -> str:
    return "UnionAll"


@describe.register
def _(node: SetOp) -> str:
    return f"{node.kind.capitalize()}{' all' if node.all else ''}"


def _sort_text(key: SortKey, names: Sequence[str]) -> str:
    text = expr_text(key.expr, names) + (" DESC" if key.descending else "")
    if key.nulls_first == key.descending:
        text += " NULLS FIRST" if key.nulls_first else " NULLS LAST"
    return text


@describe.register
def _(node: TopK) -> str:
    names = node.schema.names
    limit = "all" if node.limit >= EVERY else str(node.limit)
    offset = f" offset {node.offset}" if node.offset else ""
    return f"TopK {limit}{offset} by {', '.join(_sort_text(k, names) for k in node.order)}"


def _groups_text(node: Rank | GroupTop) -> str:
    """Return how groups are made and ordered."""
    names = node.input.schema.names
    parts = []
    if node.partition:
        parts.append("PARTITION BY " + ", ".join(expr_text(k, names) for k in node.partition))
    if node.order:
        parts.append("ORDER BY " + ", ".join(_sort_text(k, names) for k in node.order))
    return f"OVER ({' '.join(parts)})"


@describe.register
def _(node: Rank) -> str:
    calls = ", ".join(rank_text(c, node.input.schema.names) for c in node.calls)
    return f"Rank {calls} {_groups_text(node)}"


@describe.register
def _(node: GroupTop) -> str:
    shown = " shown" if node.names else ""
    return f"GroupTop {node.by} <= {node.limit}{shown} {_groups_text(node)}"


@describe.register
def _(node: ToStream) -> str:
    if not node.pulses:
        return node.kind.upper()
    stamps = in_timestamps(node)
    pulses = ", ".join(
        f"every {duration_text(slide, stamps)}" + (f" from {time_text(o, stamps)}" if o else "")
        for slide, o in node.pulses
    )
    return f"{node.kind.upper()} at pulses {pulses}"


@describe.register
def _(node: Over) -> str:
    below = node.input.schema.names
    stamps = in_timestamps(node)
    calls = [over_text(c, below, stamps) for c in node.calls]
    wide = [*below, *calls]
    pairs = zip(node.exprs, node.names, strict=True)
    text = "Over " + ", ".join(_named(expr_text(e, wide), n) for e, n in pairs)
    return text if node.predicate is None else f"{text} where {expr_text(node.predicate, wide)}"
