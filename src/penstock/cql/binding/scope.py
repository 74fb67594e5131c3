"""Which columns a name can mean: the columns of the FROM items, in the order of their positions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.cql.binding.script import Script
from penstock.cql.grammar.syntax import Name, Span
from penstock.errors import suggest
from penstock.expr.nodes import Column
from penstock.model import Schema


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
class Scope:
    """The columns that can be named, looked up without regard to case.

    A name that is not among them may be one of ``outer``, the columns of the query around a
    sub-query; where those cannot be used, ``refusal`` is the sentence that says so.
    """

    columns: tuple[ScopeColumn, ...]
    outer: Scope | None = None
    refusal: str = ""

    @staticmethod
    def of(qualifier: str, schema: Schema, offset: int = 0) -> Scope:
        """Return the scope of one FROM item whose columns begin at ``offset``."""
        return Scope(
            tuple(
                ScopeColumn(qualifier, f.name, offset + i, f.type)
                for i, f in enumerate(schema.fields)
            )
        )

    def plus(self, other: Scope) -> Scope:
        """Return both scopes as one."""
        return replace(self, columns=self.columns + other.columns)

    def inside(self, outer: Scope | None, refusal: str = "") -> Scope:
        """Return the scope with another one around it."""
        return replace(self, outer=outer, refusal=refusal)

    def since(self, index: int) -> Scope:
        """Return the columns from a position on."""
        return replace(self, columns=tuple(c for c in self.columns if c.index >= index))

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
            self, columns=tuple(replace(c, index=mapping[c.index]) for c in self.columns)
        )

    @property
    def qualifiers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c.qualifier for c in self.columns if c.qualifier))

    def has(self, name: str) -> bool:
        """Whether an unqualified name means at least one column."""
        return any(c.name.lower() == name.lower() and not c.hidden for c in self.columns)

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

    def _has_item(self, qualifier: Name) -> bool:
        return any(c.qualifier.lower() == qualifier.text.lower() for c in self.columns)

    def _knows(self, name: Name, qualifier: Name | None) -> bool:
        """Whether a name is about these columns; one of an item here is not looked up outside."""
        return self.has(name.text) if qualifier is None else self._has_item(qualifier)
