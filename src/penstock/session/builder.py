"""The fluent builder: Python calls that make the same algebra as CQL text.

    s.stream("temperature").window("PARTITION BY city ROWS 20").group_by("city")
     .agg("AVG(celsius) AS mean").istream().start("athens")

Every method returns a new `Relation`; expressions are CQL text, bound and checked at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock import algebra, cql
from penstock.algebra import Node
from penstock.cql.binding.join_text import bind_asof_join, bind_join, joined_rank
from penstock.cql.binding.priorities import own_priority
from penstock.cql.binding.times import time_kinds
from penstock.errors import QueryError
from penstock.expr.nodes import Column, Expr
from penstock.expr.own import FunctionDef
from penstock.model import Schema
from penstock.optimizer.drop_identities import drop_identities
from penstock.windows import WindowSpec


@dataclass(frozen=True)
class Relation:
    """A stream, or a relation that changes over time, under construction.

    ``priority`` is what `_priority` means in its expressions; None: no more than a column.
    """

    node: Node
    session: Any
    alias: str = ""
    priority: Expr | None = None

    @property
    def schema(self) -> Schema:
        """The columns."""
        return self.node.schema

    def window(self, text: str | None = None, **parts: Any) -> Relation:
        """Put a window over a stream: CQL text without brackets, or its parts as keywords.

        ``window("RANGE 5 MINUTES SLIDE 1 MINUTE")`` or
        ``window(rows=20, partition_by="city")``; keywords are rows, range, tumble, hop, slide,
        offset, partition_by, now, fixed, session, after, before, shift, start.
        """
        if (text is None) == (not parts):
            raise QueryError("a window must be given either as text or by keywords")
        text = text if text is not None else _window_text(parts)
        stream = algebra.without_ends(_stream_of(self.node))
        spec = cql.bind_window(f"[{text}]", stream)
        return self._same(algebra.Window(stream, spec))

    def where(self, condition: str) -> Relation:
        """Keep the rows for which a condition holds."""
        predicate, _ = self._bound(condition)
        return self._same(algebra.Filter(self.node, predicate))

    def select(self, *expressions: str) -> Relation:
        """Compute new columns: ``select("city", "celsius * 1.8 + 32 AS fahrenheit")``."""
        bound = [self._bound(text) for text in expressions]
        exprs = tuple(expression for expression, _ in bound)
        return self._with(algebra.Project(self.node, exprs, tuple(name for _, name in bound)))

    def group_by(self, *keys: str) -> Grouped:
        """Group rows; ``group_by()`` without keys makes one group of all."""
        return Grouped(self, keys)

    def agg(self, *aggregates: str) -> Relation:
        """Aggregate all rows: ``agg("COUNT(*) AS n")``."""
        return self.group_by().agg(*aggregates)

    def join(self, other: Relation, on: str | None = None, how: str = "inner") -> Relation:
        """Join with another relation.

        ``on`` is a list of common columns, ``"city, sensor"``, or a condition in which the columns
        of the two sides are called ``l.x`` and ``r.y``.  ``how`` is inner, left, right, full, semi
        or anti.
        """
        left = drop_identities(self.node, frozenset())
        right = drop_identities(other.node, frozenset())
        ranks = self._rank(), other._rank()
        joined = self._with(bind_join(left, right, on, how, ranks))
        if how in ("semi", "anti"):
            return replace(joined, priority=self.priority)
        rank = joined_rank(left, right, on, ranks) if how == "inner" else None
        return replace(joined, priority=rank)

    def asof_join(
        self, other: Relation, on: str | None = None, at: str = "t", how: str = "inner"
    ) -> Relation:
        """Join each row with the nearest row of another relation.

        ``on`` says what must be equal, as in `join`.  ``at`` is a common column, for the last
        partner at or before, or one comparison such as ``"l.t >= r.u"`` or ``"l.t < r.u"``.
        ``how="left"`` keeps the rows without a partner, with nulls.
        """
        if how not in algebra.ASOF_KINDS:
            raise QueryError(
                f"how must be one of {', '.join(algebra.ASOF_KINDS)} in asof_join, got {how!r}"
            )
        left = drop_identities(self.node, frozenset())
        right = drop_identities(other.node, frozenset())
        ranks = self._rank(), other._rank()
        joined = self._with(bind_asof_join(left, right, on, at, how, ranks))
        rank = joined_rank(left, right, on, ranks) if how == "inner" else None
        return replace(joined, priority=rank)

    def distinct(self) -> Relation:
        """Keep each value of a snapshot once."""
        return self._with(algebra.Distinct(self.node))

    def union_all(self, *others: Relation) -> Relation:
        """Put bags together."""
        return self._with(algebra.UnionAll((self.node, *(o.node for o in others))))

    def union(self, *others: Relation) -> Relation:
        """Put sets together."""
        return self.union_all(*others).distinct()

    def intersect(self, other: Relation, all: bool = False) -> Relation:
        """Keep what both have."""
        return self._with(algebra.SetOp("intersect", all, self.node, other.node))

    def except_(self, other: Relation, all: bool = False) -> Relation:
        """Keep what the other has not."""
        return self._with(algebra.SetOp("except", all, self.node, other.node))

    def top(self, count: int, *order: str) -> Relation:
        """Keep the first rows of each snapshot: ``top(3, "celsius DESC")``."""
        if count < 1:
            raise QueryError(f"the number of rows that top keeps must be at least 1, got {count}")
        keys = []
        for text in order:
            words = text.rsplit(None, 1)
            descending = len(words) == 2 and words[1].upper() == "DESC"
            plain = words[0] if len(words) == 2 and words[1].upper() in ("ASC", "DESC") else text
            expression, _ = self._bound(plain)
            keys.append(algebra.SortKey(expression, descending, not descending))
        return self._same(algebra.TopK(self.node, tuple(keys), count))

    def istream(self) -> Relation:
        """Give a stream of what is born."""
        return self._with(algebra.ToStream("istream", self.node))

    def dstream(self) -> Relation:
        """Give a stream of what dies."""
        return self._with(algebra.ToStream("dstream", self.node))

    def rstream(self) -> Relation:
        """Give a stream of whole snapshots."""
        return self._with(algebra.ToStream("rstream", self.node, algebra.pulses_of(self.node)))

    def explain(self) -> str:
        """Return the logical plan as text."""
        return cql.render_plan(self.node)

    def start(self, name: str, into: str | None = None, *, replace: bool = False) -> Any:
        """Run as a continuous query; the answer is the query's handle.

        With ``replace`` it takes the place of the query of its name, as CREATE OR REPLACE does.
        """
        return self.session.register(name, self._delivered(), into, replace=replace)

    def materialize(self, name: str, keep: str | int = 0) -> Any:
        """Run, and keep the answer for one-time queries, its past for as long as ``keep`` says.

        ``materialize("recent", keep="10 MINUTES")`` is ``CREATE MATERIALIZED VIEW recent KEEP ..``.
        """
        node = self._delivered()
        if algebra.is_stream(node) or not algebra.streams_of(node):
            what = "a stream" if algebra.is_stream(node) else "only tables"
            raise QueryError(
                f"a materialized view must be a relation over streams, got {what}; put a window on "
                f"a stream, and read tables as they are"
            )
        return self.session.register(name, node, keep=cql.bind_duration(str(keep), node))

    def _delivered(self) -> Node:
        """Return the plan, checked as that of a query which is delivered."""
        seen: set[str] = set()
        for column in self.schema.names:
            if column.lower() in seen:
                raise QueryError(
                    f"the output has two columns '{column}'; give it another name with AS"
                )
            seen.add(column.lower())
        if len(time_kinds(self.node)) > 1:
            raise QueryError(
                "one query must count time in one way, but here one stream has a TIMESTAMP time "
                "column and another an integer one; declare both alike"
            )
        plain = isinstance(self.node, algebra.Scan)  # as in the language: everything so far
        return algebra.Window(self.node, WindowSpec()) if plain else self.node

    def _bound(self, text: str) -> tuple[Expr, str]:
        return cql.bind_scalar(text, self.schema, self.alias, self.priority, self.functions)

    @property
    def functions(self) -> Mapping[str, FunctionDef]:
        """The functions of the user's own that its expressions may call."""
        found: Mapping[str, FunctionDef] = self.session.catalog.functions if self.session else {}
        return found

    def _rank(self) -> Expr | None:
        return own_priority(self.schema, self.priority)

    def _with(self, node: Node) -> Relation:
        return Relation(node, self.session)

    def _same(self, node: Node) -> Relation:
        """Return a relation of the same columns, of which some rows are left out."""
        return Relation(node, self.session, priority=self.priority)


@dataclass(frozen=True)
class Grouped:
    """A relation with group keys, waiting for its aggregates."""

    relation: Relation
    keys: tuple[str, ...]

    def agg(self, *aggregates: str) -> Relation:
        """Aggregate: ``agg("AVG(celsius) AS mean", "COUNT(*) AS n")``."""
        schema = self.relation.schema
        keys = [self.relation._bound(text) for text in self.keys]
        rank, own = self.relation.priority, self.relation.functions
        calls = [cql.bind_aggregate(text, schema, rank, own) for text in aggregates]
        names = tuple(name for _, name in [*keys, *calls])
        node = algebra.Aggregate(
            self.relation.node,
            tuple(expression for expression, _ in keys),
            tuple(call for call, _ in calls),
            names,
        )
        return Relation(node, self.relation.session)

    def count(self) -> Relation:
        """Count the rows of each group."""
        return self.agg("COUNT(*) AS count")

    def avg(self, column: str) -> Relation:
        """The mean of a column in each group."""
        return self.agg(f"AVG({column})")

    def sum(self, column: str) -> Relation:
        """The sum of a column in each group."""
        return self.agg(f"SUM({column})")

    def min(self, column: str) -> Relation:
        """The smallest value of a column in each group."""
        return self.agg(f"MIN({column})")

    def max(self, column: str) -> Relation:
        """The largest value of a column in each group."""
        return self.agg(f"MAX({column})")


def _stream_of(node: Node) -> Node:
    """Take away a projection that only repeats its input, so that a window sees the stream."""
    if isinstance(node, algebra.Project):
        same: list[bool] = [
            isinstance(e, Column) and e.index == i for i, e in enumerate(node.exprs)
        ]
        if all(same) and len(same) == len(node.input.schema):
            return node.input
    return node


def _window_text(parts: dict[str, Any]) -> str:
    known = ("partition_by", "rows", "range", "tumble", "hop", "slide", "offset", "now", "fixed",
             "session", "after", "before", "shift", "start")  # fmt: skip
    for name in parts:
        if name not in known:
            raise QueryError(f"a window has no part '{name}'; known: {', '.join(known)}")
    words = []
    if "partition_by" in parts:
        by = parts["partition_by"]
        words.append(f"PARTITION BY {by if isinstance(by, str) else ', '.join(by)}")
    for name in ("rows", "range", "tumble", "hop", "slide", "offset", "fixed", "session"):
        if name in parts:
            words.append(f"{name.upper()} {parts[name]}")
    if parts.get("now"):
        words.append("NOW")
    if "after" in parts:
        words.append(f"AFTER {_literal(parts['after'])}")
    if "before" in parts:
        words.append(f"{'AND ' if 'after' in parts else ''}BEFORE {_literal(parts['before'])}")
    if "shift" in parts:
        words.append(f"SHIFT {parts['shift']}")
    if "start" in parts:
        words.append(f"START {_literal(parts['start'])}")
    return " ".join(words)


def _literal(value: Any) -> str:
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
