"""What a sub-query stands for in an expression, until it is known below which node it is joined.

While a block is bound, the value of a sub-query is an `Asked`: a call whose arguments are what it
compares of the row outside.  It goes through GROUP BY and aliases as any expression does.  Where
the expressions of a node are final, `Placing` puts each sub-query below the node, as a join that
adds columns behind those that are there, and an expression over these in place of the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.algebra import Node
from penstock.cql.binding.script import Script
from penstock.cql.grammar.syntax import Span
from penstock.expr.nodes import AggregateCall, Call, Expr, rewrite, walk


class Way(Protocol):
    """A way to compute what a sub-query stands for."""

    def put(self, plan: Node, asked: Asked) -> tuple[Node, Expr]:
        """Return the plan with columns behind its own, and the value over these."""


@dataclass(frozen=True)
class Place:
    """Where a sub-query stands. ``once``: the query is answered for one instant only."""

    source: Script
    span: Span
    once: bool = False


@dataclass(frozen=True)
class Asked(Call):
    """The value of a sub-query; ``args`` are over the columns outside."""

    way: Way = field(kw_only=True)
    place: Place = field(kw_only=True, compare=False, repr=False)


def asked_in(exprs: Iterable[Expr]) -> list[Asked]:
    """Return the sub-queries in some expressions."""
    return [part for expr in exprs for part in walk(expr) if isinstance(part, Asked)]


class Placing:
    """Puts sub-queries below a node, each once. ``node`` is the plan with all of them so far."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._values: dict[Asked, Expr] = {}

    def put(self, exprs: Sequence[Expr]) -> list[Expr]:
        """Return the expressions with columns of the node in place of sub-queries."""
        return [self.one(expr) for expr in exprs]

    def one(self, expr: Expr) -> Expr:
        """Return one expression with columns of the node in place of sub-queries."""
        return rewrite(expr, self._placed) if asked_in([expr]) else expr

    def call(self, call: AggregateCall) -> AggregateCall:
        """Return an aggregate with columns of the node in place of sub-queries."""
        return call.changed(self.one)

    def _placed(self, part: Expr) -> Expr | None:
        if not isinstance(part, Asked):
            return None
        if part not in self._values:
            self.node, self._values[part] = part.way.put(self.node, part)
        return self._values[part]
