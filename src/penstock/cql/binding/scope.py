"""Which columns a name can mean: the columns of the FROM items, in the order of their positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.cql.binding.script import Script
from penstock.cql.grammar.syntax import Name, Span
from penstock.errors import suggest
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Column, Expr, shift
from penstock.model import Schema
from penstock.nested.shapes import is_struct

PRIORITY = "_priority"
"""The name by which a query reads the priority of a stream's rows."""

_UNSELECTED = (
    "the rows of a stream have a priority, and those of a sub-query or view only if it selects one:"
    " write SELECT .., _priority FROM stream there"
)


@dataclass(frozen=True)
class ScopeColumn:
    """A column of a FROM item. ``hidden``: it is reached by ``item.column`` only.

    ``own`` is the name that the column has in its item, if it is also called otherwise.
    """

    qualifier: str
    name: str
    index: int
    type: pa.DataType
    hidden: bool = False
    own: str = ""

    @property
    def expr(self) -> Column:
        return Column(self.index, self.type, self.own or self.name)


@dataclass(frozen=True)
class Priority:
    """What `_priority` means for a FROM item whose columns begin at ``first``; None: nothing."""

    qualifier: str
    value: Expr | None
    first: int
    of_table: bool = False


@dataclass(frozen=True)
class Scope:
    """The columns that can be named, looked up without regard to case.

    A name that is not among them may be one of ``outer``, the columns of the query around a
    sub-query; where those cannot be used, ``refusal`` is the sentence that says so.  ``priorities``
    are those of the FROM items.
    """

    columns: tuple[ScopeColumn, ...]
    outer: Scope | None = None
    refusal: str = ""
    priorities: tuple[Priority, ...] = ()

    @staticmethod
    def of(qualifier: str, schema: Schema, offset: int = 0) -> Scope:
        """Return the scope of one FROM item whose columns begin at ``offset``."""
        return Scope(
            tuple(
                ScopeColumn(qualifier, f.name, offset + i, f.type)
                for i, f in enumerate(schema.fields)
            )
        )

    def renamed(self, source: Script, names: Sequence[Name]) -> Scope:
        """Return the scope of an item whose alias names its columns; no names change nothing."""
        if not names:
            return self
        if len(names) != len(self.columns):
            source.fail(
                f"an alias must name all {len(self.columns)} columns or none, got {len(names)}",
                (names[0].span[0], names[-1].span[1]),
            )
        pairs = zip(self.columns, names, strict=True)
        return replace(self, columns=tuple(replace(c, name=n.text) for c, n in pairs))

    def plus(self, other: Scope) -> Scope:
        """Return both scopes as one."""
        priorities = self.priorities + other.priorities
        return replace(self, columns=self.columns + other.columns, priorities=priorities)

    def ranked(self, priority: Priority) -> Scope:
        """Return the scope with the priority of a FROM item."""
        return replace(self, priorities=(*self.priorities, priority))

    def inside(self, outer: Scope | None, refusal: str = "") -> Scope:
        """Return the scope with another one around it."""
        return replace(self, outer=outer, refusal=refusal)

    def since(self, index: int) -> Scope:
        """Return the columns from a position on."""
        return replace(
            self,
            columns=tuple(c for c in self.columns if c.index >= index),
            priorities=tuple(p for p in self.priorities if p.first >= index),
        )

    def hide(self, indices: Iterable[int]) -> Scope:
        """Return the scope with some columns reachable only by ``item.column``."""
        gone = set(indices)
        columns = tuple(replace(c, hidden=True) if c.index in gone else c for c in self.columns)
        return replace(self, columns=columns)

    def merged(self, left: ScopeColumn, right: ScopeColumn, shown: Column) -> Scope:
        """Return the scope in which ``shown`` stands for two columns that USING made one.

        It takes the place of the left one; the two are reachable only by ``item.column``.
        """
        columns = list(self.hide([left.index, right.index]).columns)
        at = next(i for i, c in enumerate(columns) if c.index == left.index)
        columns.insert(at, ScopeColumn("", left.name, shown.index, shown.type))
        return replace(self, columns=tuple(columns))

    def moved(self, mapping: dict[int, int]) -> Scope:
        """Return the scope with other positions."""
        return replace(
            self,
            columns=tuple(replace(c, index=mapping[c.index]) for c in self.columns),
            priorities=tuple(
                replace(
                    p,
                    value=None if p.value is None else shift(p.value, mapping),
                    first=mapping[p.first],
                )
                for p in self.priorities
            ),
        )

    @property
    def qualifiers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c.qualifier for c in self.columns if c.qualifier))

    def has(self, name: str) -> bool:
        """Whether an unqualified name means at least one column."""
        return any(c.name.lower() == name.lower() and not c.hidden for c in self.columns)

    def is_struct(self, name: Name, qualifier: Name) -> bool:
        """Whether ``qualifier.name`` is a field of a column: no item has a column of that name."""
        low = name.text.lower(), qualifier.text.lower()
        if any((c.name.lower(), c.qualifier.lower()) == low for c in self.columns):
            return False
        return any(c.name.lower() == low[1] and is_struct(c.type) for c in self.columns) or (
            self.outer is not None
            and not self._has_item(qualifier)
            and self.outer.is_struct(name, qualifier)
        )

    def of_item(self, source: Script, qualifier: Name) -> tuple[ScopeColumn, ...]:
        """Return the columns of one FROM item."""
        found = tuple(c for c in self.columns if c.qualifier.lower() == qualifier.text.lower())
        if not found:
            if self.outer is not None and self.outer._has_item(qualifier):
                source.fail(self.refusal, qualifier.span)
            source.fail(
                f"there is no '{qualifier.text}' in FROM; "
                f"{suggest(qualifier.text, self.qualifiers)}",
                qualifier.span,
            )
        return found

    def find(self, source: Script, name: Name, qualifier: Name | None, span: Span) -> ScopeColumn:
        """Return the one column that a name means, or say which ones exist."""
        outer = self.outer
        if outer and not self._knows(name, qualifier) and outer._knows(name, qualifier):
            if self.refusal:
                source.fail(self.refusal, span)
            return outer.find(source, name, qualifier, span)
        among = self.columns if qualifier is None else self.of_item(source, qualifier)
        found = [
            c
            for c in among
            if c.name.lower() == name.text.lower() and not (qualifier is None and c.hidden)
        ]
        bounds = [f"{c.qualifier}.{c.name}" for c in among if c.own]
        if not found and qualifier is None and f"{name.text.lower()}.end" in bounds:
            source.fail(f"{name.text} is two columns; write {' and '.join(bounds)}", span)
        if not found and name.text.lower() == PRIORITY:
            source.fail(f"there is no column '{PRIORITY}' here: {self._unranked(qualifier)}", span)
        if not found:
            where = f" in '{qualifier.text}'" if qualifier else ""
            names = [c.name for c in among]
            source.fail(
                f"there is no column '{name.text}'{where}; {suggest(name.text, names)}", span
            )
        if len(found) > 1:
            choices = sorted({f"{c.qualifier}.{c.name}" for c in found if c.qualifier})
            if len(choices) == len(found):
                advice = f"write one of {', '.join(choices)}"
            else:
                advice = "give the columns different names with AS in the sub-query"
            source.fail(f"the column '{name.text}' is ambiguous; {advice}", span)
        return found[0]

    def priority(
        self, source: Script, name: Name, qualifier: Name | None, span: Span
    ) -> Expr | None:
        """Return what `_priority` means, of several items the greatest.

        None: the name is another one, or that of a column like any other, or it means nothing.
        """
        if name.text.lower() != PRIORITY:
            return None
        outer = self.outer
        if outer and not self._ranks(qualifier) and outer._ranks(qualifier):
            if self.refusal:
                source.fail(self.refusal, span)
            return outer.priority(source, name, qualifier, span)
        mine = self.priorities if qualifier is None else self._ranked_as(qualifier)
        values = [p.value for p in mine if p.value is not None]
        if not values or (len(values) == 1 and isinstance(values[0], Column)):
            return None
        for other in mine:
            if other.value is None and not other.of_table:
                known = [f"{p.qualifier}.{PRIORITY}" for p in mine if p.value and p.qualifier]
                named = f"'{other.qualifier}'" if other.qualifier else "a sub-query"
                source.fail(
                    f"{PRIORITY} is the greatest of all items of FROM, and {named} has none; write "
                    f"{' or '.join(known)}, or select {PRIORITY} in {named} as well",
                    span,
                )
        if len(values) == 1:
            return values[0]
        with source.at(span):
            return resolve_call("greatest", values)

    def _ranks(self, qualifier: Name | None) -> bool:
        """Whether `_priority` is about items of these."""
        if qualifier is not None:
            return self._has_item(qualifier)
        return any(p.value is not None for p in self.priorities)

    def _ranked_as(self, qualifier: Name) -> tuple[Priority, ...]:
        return tuple(p for p in self.priorities if p.qualifier.lower() == qualifier.text.lower())

    def _unranked(self, qualifier: Name | None) -> str:
        """Return why `_priority` means nothing here, and what to do."""
        mine = self.priorities if qualifier is None else self._ranked_as(qualifier)
        if mine and all(p.of_table for p in mine):
            return "the rows of a table have no priority; leave it out, or write 0"
        return _UNSELECTED

    def _has_item(self, qualifier: Name) -> bool:
        return any(c.qualifier.lower() == qualifier.text.lower() for c in self.columns)

    def _knows(self, name: Name, qualifier: Name | None) -> bool:
        """Whether a name is about these columns; one of an item here is not looked up outside."""
        return self.has(name.text) if qualifier is None else self._has_item(qualifier)
