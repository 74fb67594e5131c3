"""Windows and durations in chronons: `WindowSyntax` to `WindowSpec`.

A stream counts time either in microseconds (its time column is a TIMESTAMP) or in the integers of
its time column.  A derived relation counts as its sources do; the two kinds do not mix in one
query.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import pyarrow as pa

from penstock.algebra import Filter, Join, Node, Project, Scan, TableScan, Window, walk
from penstock.cql.binding.doubts import doubt_unit
from penstock.cql.binding.scope import PRIORITY
from penstock.cql.binding.script import Script
from penstock.cql.grammar.foreign import UNITS
from penstock.cql.grammar.syntax import (
    Duration,
    Name,
    PastSyntax,
    Span,
    TimePoint,
    WindowClause,
    WindowSyntax,
)
from penstock.errors import DataError, suggest
from penstock.expr.casts import cast_value
from penstock.expr.nodes import Column
from penstock.expr.types import STRING
from penstock.model import INF, MIN_TIME, TIMESTAMP, Schema
from penstock.windows import LONGEST, Bounds, WindowSpec

MICROSECONDS: dict[str, int] = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000,
    "WEEK": 604_800_000_000,
}

_MOST_ROWS = 1 << 60

STAMPS = "timestamps"
INTEGERS = "integers"


def kind_of_type(found: pa.DataType) -> str:
    """Return how a time column of this type counts."""
    return STAMPS if pa.types.is_timestamp(found) else INTEGERS


def time_kinds(node: Node) -> frozenset[str]:
    """Return how the sources of a plan count time; empty for timeless tables."""
    kinds = set()
    for part in walk(node):
        if isinstance(part, Scan):
            kinds.add(kind_of_type(part.time_type))
        elif isinstance(part, TableScan) and part.valid_from is not None:
            kinds.add(kind_of_type(part.schema[part.valid_from].type))
    return frozenset(kinds)


def element_time(node: Node) -> Column | None:
    """Return the column by which the rows of a relation are in order, if there is exactly one."""
    found = _element_times(node)
    if len(found) != 1:
        return None
    (at,) = found
    return Column(at, node.schema[at].type, node.schema[at].name)


def _element_times(node: Node) -> frozenset[int]:
    """Return the columns that hold the times of streams' elements."""
    match node:
        case Scan():
            return frozenset((node.time,))
        case Window(below, _) | Filter(below, _):
            return _element_times(below)
        case Project(below, exprs, _):
            times = _element_times(below)
            found = enumerate(exprs)
            return frozenset(i for i, e in found if isinstance(e, Column) and e.index in times)
        case Join(left, right):
            others = (len(left.schema) + i for i in _element_times(right))
            return _element_times(left) | {i for i in others if i < len(node.schema)}
    return frozenset()


def check_one_kind(source: Script, nodes: Iterable[Node], span: Span) -> None:
    """Refuse to mix streams that count time in timestamps with those that use integers."""
    kinds = frozenset[str]().union(*(time_kinds(n) for n in nodes))
    if len(kinds) > 1:
        source.fail(
            "one query must count time in one way, but here one stream has a TIMESTAMP time column "
            "and another an integer one; declare both alike",
            span,
        )


def unit_microseconds(source: Script, unit: str, span: Span) -> int:
    """Return the length of a unit such as SECONDS."""
    word = unit.upper()
    singular = word[:-1] if word.endswith("S") else word
    if singular not in MICROSECONDS:
        known = [f"{u}S" for u in MICROSECONDS]
        told = suggest(UNITS.get(unit.lower(), word), known)
        if singular in ("MONTH", "QUARTER", "YEAR"):
            told = "months and years differ in length; write DAYS, such as 30 DAYS"
        source.fail(f"there is no unit '{unit}' of time; {told}", span)
    return MICROSECONDS[singular]


def chronons(source: Script, duration: Duration, kind: str, owner: str, least: int = 1) -> int:
    """Return a duration in chronons of ``owner``, which counts time as ``kind`` says."""
    number = Decimal(duration.number)
    if duration.unit is None:
        scale = 1
        if kind == STAMPS and number:
            doubt_unit(source, duration, owner)
    elif kind == INTEGERS:
        source.fail(
            f"{owner} counts time in integers, so a duration must be a bare number, got "
            f"{source.text(duration.span)}",
            duration.span,
        )
    else:
        scale = unit_microseconds(source, duration.unit, duration.span)
    value = number * scale
    if value != int(value):
        unit = "microseconds" if kind == STAMPS else "units of time"
        source.fail(
            f"a duration must be a whole number of {unit}, got {source.text(duration.span)}",
            duration.span,
        )
    return _bounded(source, int(value), duration, least)


def _bounded(source: Script, value: int, duration: Duration, least: int) -> int:
    if value < least:
        must = "must not be negative" if least == 0 else "must be more than 0"
        source.fail(f"a duration {must}, got {source.text(duration.span)}", duration.span)
    if value > LONGEST:
        source.fail(
            f"a duration must be below 2**61 units of time, got {source.text(duration.span)}; "
            f"use UNBOUNDED",
            duration.span,
        )
    return value


def seconds(source: Script, duration: Duration, word: str) -> float:
    """Return a duration of wall-clock time in seconds."""
    if duration.unit is None:
        source.fail(
            f"{word} is wall-clock time and needs a unit, such as {duration.number} SECONDS "
            f"or {duration.number} MILLISECONDS",
            duration.span,
        )
    micros = Decimal(duration.number) * unit_microseconds(source, duration.unit, duration.span)
    if micros <= 0:
        source.fail(
            f"a duration must be more than 0, got {source.text(duration.span)}", duration.span
        )
    if micros > LONGEST:
        source.fail(
            f"a duration must be below 2**61 microseconds, got {source.text(duration.span)}; write "
            f"a shorter one",
            duration.span,
        )
    return float(micros / 1_000_000)


def instant(source: Script, point: TimePoint, kind: str, owner: str) -> int:
    """Return a point in time in chronons."""
    if isinstance(point.value, int):
        if kind == STAMPS:
            source.fail(
                f"{owner} counts time in timestamps, so a point in time must be written such as "
                f"'2024-01-31 12:00:00', got {point.value}",
                point.span,
            )
        if not MIN_TIME < point.value < INF:
            source.fail(f"a point in time must fit BIGINT, got {point.value}", point.span)
        return point.value
    if kind == INTEGERS:
        source.fail(
            f"{owner} counts time in integers, so a point in time must be an integer, got "
            f"'{point.value}'",
            point.span,
        )
    try:
        return int(cast_value(point.value, STRING, TIMESTAMP))
    except DataError:
        source.fail(
            f"a point in time must be written as 'YYYY-MM-DD HH:MM:SS', got '{point.value}'",
            point.span,
        )


class WindowBinder:
    """Turns one window's syntax into a `WindowSpec` over an input of a known schema."""

    def __init__(self, source: Script, schema: Schema, kind: str, owner: str) -> None:
        self.source = source
        self.schema = schema
        self.kind = kind
        self.owner = owner

    def bind(self, window: WindowSyntax) -> WindowSpec:
        """Return the specification, or say what is wrong with the window."""
        self._check_parts(window)
        clauses = window.clauses
        rows = clauses.get("ROWS")
        time = clauses.get("RANGE")
        row_count = self._rows(rows.value) if rows and rows.value else None
        length = self._duration(time.value) if time and time.value else None
        rows_slide = self._rows(rows.slide) if rows and rows.slide else None
        slide = self._duration(time.slide) if time and time.slide else None
        if rows_slide is not None and row_count is None:
            assert rows is not None
            self.source.fail("ROWS UNBOUNDED has no SLIDE; use RANGE UNBOUNDED SLIDE D", rows.span)
        if slide is not None and length is None:
            length = INF
        shift = self._shift(window)
        if window.past is not None:
            length, shift = self._past(window.past)
        hop, hop_slide = self._hop(window)
        slide = slide if hop is None else hop_slide
        origin = window.origin
        partition = self._partition(window)
        return WindowSpec(
            rows=row_count,
            rows_slide=rows_slide,
            range=length,
            slide=slide,
            now="NOW" in clauses,
            fixed=self._optional_duration(clauses.get("FIXED")),
            session=self._optional_duration(clauses.get("SESSION")),
            after=self._optional_instant(clauses.get("AFTER")),
            before=self._optional_instant(clauses.get("BEFORE")),
            partition_by=partition if row_count is not None or "SESSION" in clauses else (),
            origin=instant(self.source, origin, self.kind, self.owner) if origin else None,
            hop=hop,
            offset=self._offset(window.offset, slide),
            bounds=None if hop is None else Bounds(self.time_type, hop),
            shift=shift or None,
        )

    def _shift(self, window: WindowSyntax) -> int | None:
        """Return how much later everything happens."""
        if window.shift is None:
            return None
        return chronons(self.source, window.shift, self.kind, self.owner, least=0)

    def _past(self, past: PastSyntax) -> tuple[int | None, int]:
        """Return the length of a window that ends in the past, and how long ago that is."""
        end = 0
        if past.end is not None:
            end = chronons(self.source, past.end, self.kind, self.owner, least=0)
        if past.start is None:
            return None, end
        start = chronons(self.source, past.start, self.kind, self.owner)
        if start <= end:
            self.source.fail("FROM must be longer ago than TO", past.span)
        return start - end, end

    @property
    def time_type(self) -> pa.DataType:
        """The type of columns that hold times."""
        return TIMESTAMP if self.kind == STAMPS else pa.int64()

    def _hop(self, window: WindowSyntax) -> tuple[int | None, int | None]:
        """Return the length and the slide of TUMBLE and HOP."""
        tumble, hop = (window.clauses.get(word) for word in ("TUMBLE", "HOP"))
        if hop is None or hop.slide is None:
            length = self._optional_duration(tumble)
            return length, length
        length, slide = self._optional_duration(hop), self._duration(hop.slide)
        if window.in_order and length is not None and length < slide:
            stream = f"TABLE {self.owner.split()[-1]}" if " " in self.owner else "TABLE s"
            time = window.descriptor.text if window.descriptor else "t"
            first, second = (self.source.text(d.span) for d in (hop.value, hop.slide) if d)
            self.source.fail(
                f"HOP must be given first how far it slides and then its size, which is not less: "
                f"HOP({stream}, DESCRIPTOR({time}), {first}, {second}); windows with gaps between "
                f"them are [HOP T SLIDE D]",
                (hop.slide.span[0], hop.value.span[1]) if hop.value else hop.span,
            )
        return length, slide

    def _offset(self, offset: Duration | None, slide: int | None) -> int | None:
        """Return how far pulses are moved, less than they are apart; None if not at all."""
        if offset is None or slide is None:
            return None
        moved = chronons(self.source, offset, self.kind, self.owner, least=-LONGEST)
        return moved % slide or None

    def _check_parts(self, window: WindowSyntax) -> None:
        words = frozenset(window.clauses)
        if words and words not in _COMBINATIONS:
            listed = " and ".join(window.clauses)
            self.source.fail(
                f"{listed} cannot stand together in one window; what can is ROWS with RANGE, and "
                f"AFTER with BEFORE",
                window.span,
            )
        if window.partition_by and not words & {"ROWS", "SESSION"}:
            self.source.fail(
                f"PARTITION BY changes nothing for {' and '.join(words) or 'START'}; use it with "
                f"ROWS or SESSION, or leave it out",
                window.span,
            )
        if {"ROWS", "RANGE"} <= words and all(window.clauses[w].slide for w in ("ROWS", "RANGE")):
            self.source.fail(
                "a window must slide by rows, ROWS N SLIDE M RANGE T, or by time, ROWS N RANGE T "
                "SLIDE D; got both",
                window.span,
            )
        after, before = window.clauses.get("AFTER"), window.clauses.get("BEFORE")
        if after and before:
            first, last = self._optional_instant(after), self._optional_instant(before)
            if first is not None and last is not None and first > last:
                self.source.fail("AFTER must not be later than BEFORE", window.span)

    def _partition(self, window: WindowSyntax) -> tuple[int, ...]:
        return tuple(
            find_column(self.source, self.schema, n, self.owner) for n in window.partition_by
        )

    def _rows(self, value: Duration | TimePoint) -> int:
        assert isinstance(value, Duration)
        if value.unit is not None:
            self.source.fail(
                f"ROWS counts elements and has no unit, got {self.source.text(value.span)}; use "
                f"RANGE for a time",
                value.span,
            )
        if not value.number.isdigit() or not 1 <= int(value.number) <= _MOST_ROWS:
            self.source.fail(
                f"a number of rows must be a whole number from 1 to 2**60, got {value.number}",
                value.span,
            )
        return int(value.number)

    def _duration(self, value: Duration | TimePoint) -> int:
        assert isinstance(value, Duration)
        return chronons(self.source, value, self.kind, self.owner)

    def _optional_duration(self, clause: WindowClause | None) -> int | None:
        return self._duration(clause.value) if clause and clause.value else None

    def _optional_instant(self, clause: WindowClause | None) -> int | None:
        if clause is None:
            return None
        assert isinstance(clause.value, TimePoint)
        return instant(self.source, clause.value, self.kind, self.owner)


_COMBINATIONS = {
    frozenset(words.split())
    for words in (
        "ROWS",
        "RANGE",
        "ROWS RANGE",
        "TUMBLE",
        "HOP",
        "NOW",
        "AFTER",
        "BEFORE",
        "AFTER BEFORE",
        "FIXED",
        "SESSION",
    )
}


def find_column(source: Script, schema: Schema, name: Name, owner: str) -> int:
    """Return the position of a column by name, whatever its case."""
    found = [i for i, f in enumerate(schema.fields) if f.name.lower() == name.text.lower()]
    if not found:
        if name.text.lower() == PRIORITY:
            source.refuse(
                f"{PRIORITY} is an expression over a row, and a column must stand here; put a "
                f"sub-query in FROM that names it, {PRIORITY} AS level",
                name.span,
            )
        source.fail(
            f"{owner} has no column '{name.text}'; {suggest(name.text, schema.names)}", name.span
        )
    if len(found) > 1:
        source.fail(
            f"{owner} has {len(found)} columns '{name.text}'; give them different names with AS",
            name.span,
        )
    return found[0]
