"""What a stream declares about time: the clauses of CREATE STREAM to `TimeRules`."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.cql.binding.scalars import ScalarBinder
from penstock.cql.binding.scope import Scope
from penstock.cql.binding.script import Script
from penstock.cql.binding.times import STAMPS, chronons, find_column, kind_of_type, seconds
from penstock.cql.grammar.syntax import (
    CreateSyntax,
    Duration,
    KeepingSyntax,
    Name,
    Scalar,
    span_of,
)
from penstock.expr.nodes import Expr
from penstock.expr.types import type_name
from penstock.model import Schema
from penstock.timing import Punctuation, TimeRules

_KEPT = "99.9"
"""The share of rows, in per cent, that SLACK AUTO keeps if nothing else is said."""


_MOST_PARTITIONS = 1 << 20


class TimingBinder:
    """Binds the clauses about time of one CREATE STREAM, whose time column is number ``time``."""

    def __init__(self, source: Script, syntax: CreateSyntax, schema: Schema, time: int) -> None:
        self.source = source
        self.syntax = syntax
        self.schema = schema
        self.time = time
        self.owner = f"stream {syntax.name.text}"
        self.kind = kind_of_type(schema[time].type)

    def bind(self) -> TimeRules:
        """Return what the clauses say."""
        clauses = self.syntax.clauses
        slack, idle, step = clauses.get("SLACK"), clauses.get("IDLE"), clauses.get("STEP")
        return TimeRules(
            slack=self._chronons(slack) if isinstance(slack, Duration) else 0,
            keeping=self._keeping(slack) if isinstance(slack, KeepingSyntax) else None,
            clock_lag=self._clock_lag() if "HEARTBEAT" in clauses else None,
            idle_after=None if idle is None else seconds(self.source, idle, "IDLE AFTER"),
            step=None if step is None else self._chronons(step),
            partitions=self._partitions(),
            punctuations=self._punctuations(),
        )

    def _chronons(self, given: Duration) -> int:
        return chronons(self.source, given, self.kind, self.owner, least=0)

    def _keeping(self, given: KeepingSyntax) -> float:
        share = Decimal(given.percent or _KEPT) / 100
        if not Decimal("0.5") <= share <= Decimal("0.99999"):
            self.source.fail(
                f"SLACK AUTO KEEPING must be a share from 50 % to 99.999 %, got {given.percent} %; "
                f"to keep more, declare a SLACK that is long enough",
                given.span,
            )
        return float(share)

    def _clock_lag(self) -> int:
        given: Duration | None = self.syntax.clauses["HEARTBEAT"]
        if self.kind != STAMPS:
            column = self.schema[self.time]
            self.source.fail(
                f"HEARTBEAT FROM CLOCK needs a time column of type TIMESTAMP, but "
                f"'{column.name}' of {self.owner} is {type_name(column.type)}; declare IDLE AFTER, "
                f"or call heartbeat() in the program",
                self.syntax.name.span if given is None else given.span,
            )
        return 0 if given is None else self._chronons(given)

    def _partitions(self) -> int | None:
        given: Name | None = self.syntax.clauses.get("PARTITIONS")
        if given is None:
            return None
        if not 1 <= int(given.text) <= _MOST_PARTITIONS:
            self.source.fail(
                f"PARTITIONS must be from 1 to {_MOST_PARTITIONS}, got {given.text}", given.span
            )
        return int(given.text)

    def _punctuations(self) -> tuple[Punctuation, ...]:
        given = self.syntax.clauses.get("PUNCTUATION")
        if given is None:
            return ()
        condition = self._scalar(given.condition, "PUNCTUATION WHEN")
        if condition.type != pa.bool_():
            self.source.fail(
                f"PUNCTUATION WHEN must be followed by a condition, got "
                f"{type_name(condition.type)}",
                span_of(given.condition),
            )
        on = self._columns(given.on)
        lasts = None if given.lasts is None else self._chronons(given.lasts)
        if given.time is None:
            return (Punctuation(condition, None, on, lasts),)
        time = self._scalar(given.time, "PUNCTUATION .. TIME")
        if kind_of_type(time.type) != self.kind or not _counts(time.type):
            own = type_name(self.schema[self.time].type)
            self.source.fail(
                f"PUNCTUATION .. TIME must be of the type of the time column, {own}, got "
                f"{type_name(time.type)}",
                span_of(given.time),
            )
        return (Punctuation(condition, time, on, lasts),)

    def _columns(self, given: tuple[Name, ...]) -> tuple[int, ...]:
        """Return the columns whose values a punctuation speaks of, in order, each once."""
        found = []
        for name in given:
            at = find_column(self.source, self.schema, name, self.owner)
            kind = self.schema[at].type
            if not _names(kind):
                self.source.fail(
                    f"a column of PUNCTUATION .. ON must be an integer, a text, a date, a "
                    f"timestamp or a boolean, but '{name.text}' is {type_name(kind)}; name the "
                    f"column that says which part is closed",
                    name.span,
                )
            found.append(at)
        return tuple(sorted(set(found)))

    def _scalar(self, given: Scalar, clause: str) -> Expr:
        scope: Any = Scope.of(self.syntax.name.text, self.schema)
        return ScalarBinder(self.source, scope, clause, of_row=True).bind(given)


def _names(kind: pa.DataType) -> bool:
    """Whether values of a type name parts of a stream: they are equal or not, nothing between."""
    plain = (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean)
    return any(is_one(kind) for is_one in (*plain, pa.types.is_date32, pa.types.is_timestamp))


def _counts(type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type) or pa.types.is_integer(type))
