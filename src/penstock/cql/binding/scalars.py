"""Scalar expressions: sqlglot nodes to typed `Expr`, names looked up in a scope.

Aggregates are collected on the way.  Over an input of n columns, the j-th distinct aggregate of a
SELECT block is written as column ``n + j``; `cql.binding.grouping` later turns such expressions
into expressions over the output of the `Aggregate` node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

from sqlglot import exp

from penstock.cql.binding.distances import check_distance
from penstock.cql.binding.doubts import doubt_operator, note_quotient
from penstock.cql.binding.grouping import MARKERS
from penstock.cql.binding.own import check_own, own_aggregate, own_call
from penstock.cql.binding.scope import PRIORITY, Scope
from penstock.cql.binding.script import Script
from penstock.cql.binding.times import unit_microseconds
from penstock.cql.grammar.syntax import Name, Scalar, span_of
from penstock.expr.aggregates import is_aggregate, resolve_aggregate
from penstock.expr.decimal_types import Written, decimal_literal
from penstock.expr.frames import ORDINALS, PICKS
from penstock.expr.functions import (
    coerce,
    is_function,
    resolve_call,
    resolve_case,
    resolve_cast,
    unknown_function,
)
from penstock.expr.library.aggregates import IN_ORDER
from penstock.expr.nodes import AggregateCall, Call, Column, Expr, Literal, columns_of
from penstock.expr.own import FunctionDef
from penstock.expr.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DOUBLE,
    INT,
    NULL,
    STRING,
    TINYINT,
    is_temporal,
    parse_type,
    type_name,
)
from penstock.nested.shapes import is_struct

OPERATORS: dict[Any, str] = {
    exp.Add: "add",
    exp.Sub: "subtract",
    exp.Mul: "multiply",
    exp.Div: "divide",
    exp.IntDiv: "div",
    exp.Mod: "mod",
    exp.EQ: "eq",
    exp.NEQ: "ne",
    exp.LT: "lt",
    exp.LTE: "le",
    exp.GT: "gt",
    exp.GTE: "ge",
    exp.NullSafeEQ: "eq_null_safe",
    exp.And: "and",
    exp.Or: "or",
    exp.DPipe: "concat",
    exp.Like: "like",
    exp.ILike: "ilike",
    exp.RegexpLike: "rlike",
    exp.BitwiseAnd: "bit_and_of",
    exp.BitwiseOr: "bit_or_of",
    exp.BitwiseXor: "bit_xor_of",
}


_IN_FROM = "put it into FROM and join with it"

_OF_ROW = "it is computed of each row alone, as it comes; use the columns of the row"

WINDOW_FUNCTIONS = frozenset((*ORDINALS, *PICKS, "lag", "lead", "ntile"))
"""Functions that mean nothing without OVER."""


class Functions(Protocol):
    """What collects the window functions of a SELECT block."""

    def column(self, node: Scalar) -> Expr:
        """Return the column that stands for a window function."""


class SubQueries(Protocol):
    """What knows the sub-queries in the expressions of one place."""

    def value(self, node: Scalar) -> Expr:
        """Return what ``(SELECT x ..)`` stands for."""

    def exists(self, node: Scalar) -> Expr:
        """Return whether ``EXISTS (SELECT ..)``."""

    def member(self, values: Sequence[Expr], holder: Scalar, node: Scalar) -> Expr:
        """Return whether the values are in the sub-query that ``holder`` has."""

    def compared(self, operator: str, value: Expr, node: Scalar) -> Expr:
        """Return what ``x > ANY (SELECT ..)`` or ``x > ALL (SELECT ..)`` says."""


@dataclass
class Aggregates:
    """The aggregates of one SELECT block, each once; they are columns from ``offset`` on.

    ``time`` is the column by which the rows of a stream are in order, if there is one.  ``marked``
    says that GROUPING or GROUPING_ID stands somewhere.
    """

    offset: int
    time: Column | None = None
    marked: bool = False
    calls: list[AggregateCall] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def column(self, call: AggregateCall, name: str) -> Column:
        """Return the column that stands for an aggregate."""
        if call not in self.calls:
            self.calls.append(call)
            self.names.append(name)
        return Column(self.offset + self.calls.index(call), call.type, name)


def label(source: Script, node: Scalar) -> str:
    """Return the name that an expression without alias gives its output column."""
    if isinstance(node, exp.Column):
        return str(node.this.this)
    if isinstance(node, exp.Dot):
        return str(node.expression.this)
    if isinstance(node, exp.Paren):
        return label(source, node.this)
    if isinstance(node, exp.Anonymous):
        args = (
            "*" if node.meta.get("star") else ", ".join(label(source, a) for a in node.expressions)
        )
        distinct = "distinct " if node.meta.get("distinct") else ""
        return f"{str(node.this).lower()}({distinct}{args})"
    return source.text(span_of(node))


class ScalarBinder:
    """Binds the expressions of one place, such as WHERE or SELECT.

    ``aggregates`` is None where none can stand.  ``aliases`` are names of the SELECT list; they are
    looked up after the scope, or before it when ``aliases_first``.  ``overs`` is None where no
    window function can stand.  ``of_row``: it is computed of each row as it comes, without a query.
    ``asks`` knows the sub-queries that stand here, None where none can.
    ``uses`` notes which position each column outside of aggregates had and where it was written.
    """

    def __init__(
        self,
        source: Script,
        scope: Scope,
        place: str,
        aggregates: Aggregates | None = None,
        aliases: Mapping[str, Expr] | None = None,
        aliases_first: bool = False,
        overs: Functions | None = None,
        of_row: bool = False,
    ) -> None:
        self.source = source
        self.scope = scope
        self.place = place
        self.aggregates = aggregates
        self.aliases = aliases or {}
        self.aliases_first = aliases_first
        self.overs = overs
        self.of_row = of_row
        self.asks: SubQueries | None = None
        self.uses: list[tuple[int, Scalar]] = []
        self._inside: str | None = None

    def bind(self, node: Scalar) -> Expr:
        """Return the typed expression."""
        operator = OPERATORS.get(type(node))
        if operator is not None:
            return self._operator(operator, node)
        handler = _HANDLERS.get(type(node))
        if handler is None:
            self.source.refuse(
                f"this expression is not part of CQL: {self.source.text(span_of(node))}",
                span_of(node),
            )
        return handler(self, node)

    def condition(self, node: Scalar) -> Expr:
        """Return an expression that must be BOOLEAN."""
        _known(node)
        bound = self.bind(node)
        if bound.type == NULL:
            return Literal(None, BOOLEAN)
        if bound.type != BOOLEAN:
            self.source.fail(
                f"{self.place} must be a condition (BOOLEAN), got {type_name(bound.type)}",
                span_of(node),
            )
        return bound

    def call(self, name: str, args: list[Expr], node: Scalar) -> Expr:
        """Return a typed call; what is wrong with it is told at the node."""
        with self.source.at(span_of(node)):
            found = resolve_call(name, args)
            check_distance(found)
            return found

    # ---- one method per kind of node

    def _operator(self, name: str, node: Scalar) -> Expr:
        left, right = node.this, node.expression
        if isinstance(right, exp.Any | exp.All):
            return self._asking(node).compared(name, self.bind(left), node)
        if isinstance(right, exp.Anonymous) and _lists_values(right):
            word = str(right.this).upper()
            self.source.fail(
                f"{word} behind a comparison must be followed by (SELECT ..); write x IN (1, 2, 3) "
                f"to be one of some values",
                span_of(right),
            )
        for side in (left, right):
            if isinstance(side, exp.Interval):
                return self._shift(name, node)
        args = [self.bind(left), self.bind(right)]
        made = self.call(name, args, node)
        doubt_operator(self.source, name, args, node)
        if name == "divide":
            note_quotient(self.source, made, args)
        return made

    def _shift(self, name: str, node: Scalar) -> Expr:
        """A time plus or minus an interval."""
        left, right = node.this, node.expression
        if isinstance(left, exp.Interval) and not isinstance(right, exp.Interval) and name == "add":
            left, right = right, left
        if isinstance(left, exp.Interval) or name not in ("add", "subtract"):
            self.source.fail(
                "an INTERVAL must be added to or subtracted from a TIMESTAMP or DATE", span_of(node)
            )
        moment = self.bind(left)
        if not is_temporal(moment.type):
            self.source.fail(
                f"an INTERVAL must be added to or subtracted from a TIMESTAMP or DATE, got "
                f"{type_name(moment.type)}",
                span_of(node),
            )
        micros = self._micros(right)
        return self.call(
            "time_add", [moment, Literal(-micros if name == "subtract" else micros, BIGINT)], node
        )

    def _micros(self, node: Scalar) -> int:
        unit = node.meta["unit"]
        span = span_of(node)
        if not unit:
            self.source.fail("an INTERVAL needs a unit, such as INTERVAL 5 SECONDS", span)
        value = Decimal(node.meta["number"]) * unit_microseconds(self.source, unit, span)
        if value != int(value):
            self.source.fail(
                f"a duration must be a whole number of microseconds, got {self.source.text(span)}",
                span,
            )
        return int(value)

    def _interval(self, node: Scalar) -> Expr:
        self.source.fail(
            "an INTERVAL must be added to or subtracted from a TIMESTAMP or DATE", span_of(node)
        )

    def _column(self, node: Scalar) -> Expr:
        name = Name(str(node.this.this), span_of(node.this))
        table = node.args.get("table")
        qualifier = Name(str(table.this), span_of(table)) if table else None
        alias = self.aliases.get(name.text.lower()) if qualifier is None else None
        if alias is not None and (self.aliases_first or not self.scope.has(name.text)):
            if isinstance(alias, Column):
                self.uses.append((alias.index, node))
            if (
                self._inside
                and self.aggregates
                and any(c >= self.aggregates.offset for c in columns_of(alias))
            ):
                self._nested(node)
            return alias
        if self.of_row and name.text.lower() == PRIORITY and not self.scope.has(PRIORITY):
            self.source.fail(
                f"{PRIORITY} is what PRIORITY says, and cannot be used in {self.place}; name the "
                f"columns of the row",
                span_of(node),
            )
        priority = self.scope.priority(self.source, name, qualifier, span_of(node))
        if priority is not None:
            if self._inside is None:
                self.uses += [(index, node) for index in columns_of(priority)]
            return priority
        if qualifier is not None and self.scope.is_struct(name, qualifier):
            plain = exp.Column(this=table)
            plain.meta["span"] = qualifier.span
            return self._field_of(self._column(plain), name, node)
        found = self.scope.find(self.source, name, qualifier, span_of(node))
        if self._inside is None:
            self.uses.append((found.index, node))
        return found.expr

    def _field(self, node: Scalar) -> Expr:
        name = Name(str(node.expression.this), span_of(node.expression))
        return self._field_of(self.bind(node.this), name, node)

    def _field_of(self, value: Expr, name: Name, node: Scalar) -> Expr:
        return self.call("get_field", [value, Literal(name.text, STRING)], node)

    def _element(self, node: Scalar) -> Expr:
        value, place = self.bind(node.this), self.bind(node.expressions[0])
        if is_struct(value.type) and isinstance(place, Literal) and place.type == STRING:
            return self.call("get_field", [value, place], node)
        return self.call("get_element", [value, place], node)

    def _literal(self, node: Scalar) -> Expr:
        text = str(node.this)
        if node.is_string:
            return Literal(text, STRING)
        if text.isdigit():
            value = int(text)
            if value >= 2**63:
                large = decimal_literal(text)
                if large is None:
                    self.source.fail(
                        f"an integer must have at most 38 digits, got {text}", span_of(node)
                    )
                return large
            return Literal(value, INT if value < 2**31 else BIGINT)
        try:
            return Literal(Written(text) if _is_plain(text) else float(text), DOUBLE)
        except ValueError:
            self.source.fail(
                f"a number must be written such as 12 or 1.5, got {text}", span_of(node)
            )

    def _bytes(self, node: Scalar) -> Expr:
        digits = str(node.this)
        if not re.fullmatch("[0-9A-Fa-f]*", digits):
            self.source.fail(
                f"X'..' must hold hexadecimal digits, such as X'1F', got {digits}", span_of(node)
            )
        return Literal(bytes.fromhex("0" * (len(digits) % 2) + digits), BINARY)

    def _negate(self, node: Scalar) -> Expr:
        inner = node.this
        if isinstance(inner, exp.Literal) and not inner.is_string:
            value = str(inner.this)
            if value in (str(2**31), str(2**63)):
                return Literal(-int(value), INT if value == str(2**31) else BIGINT)
        return self.call("negate", [self.bind(inner)], node)

    def _not(self, node: Scalar) -> Expr:
        inner = node.this
        if isinstance(inner, exp.Is):
            return self.call("is_not_null", [self.bind(inner.this)], node)
        return self.call("not", [self.bind(inner)], node)

    def _between(self, node: Scalar) -> Expr:
        value = self.bind(node.this)
        low = self.call("ge", [value, self.bind(node.args["low"])], node)
        high = self.call("le", [value, self.bind(node.args["high"])], node)
        return self.call("and", [low, high], node)

    def _asking(self, node: Scalar) -> SubQueries:
        """Return what knows the sub-queries of this place."""
        if self.asks is None:
            self.source.refuse(
                f"a sub-query cannot stand in {self.place}; {_OF_ROW if self.of_row else _IN_FROM}",
                span_of(node),
            )
        return self.asks

    def _quantified(self, node: Scalar) -> Expr:
        self.source.fail(
            "ANY, SOME and ALL must stand behind a comparison, x > ANY (SELECT ..)", span_of(node)
        )

    def _in(self, node: Scalar) -> Expr:
        if "query" in node.meta:
            asking = self._asking(node)
            row = node.this.expressions if isinstance(node.this, exp.Tuple) else [node.this]
            return asking.member([self.bind(value) for value in row], node, node)
        items = [self.bind(item) for item in node.expressions]
        return self.call("in", [self.bind(node.this), *items], node)

    def _cast(self, node: Scalar) -> Expr:
        word = node.meta.get("literal")
        if word is not None:
            with self.source.at(span_of(node)):
                return coerce(Literal(str(node.this.this), STRING), parse_type(word))
        target = node.args["to"]
        with self.source.at(span_of(target)):
            to = parse_type(str(target.this))
        value = self.bind(node.this)
        with self.source.at(span_of(node)):
            return resolve_cast(value, to)

    def _case(self, node: Scalar) -> Expr:
        subject = self.bind(node.this) if node.this is not None else None
        branches: list[tuple[Expr, Expr]] = []
        for branch in node.args["ifs"]:
            if subject is None:
                condition = self._truth(branch.this)
            else:
                condition = self.call("eq", [subject, self.bind(branch.this)], branch.this)
            branches.append((condition, self.bind(branch.args["true"])))
        default = node.args.get("default")
        otherwise = self.bind(default) if default is not None else None
        with self.source.at(span_of(node)):
            return resolve_case(branches, otherwise)

    def _truth(self, node: Scalar) -> Expr:
        _known(node)
        bound = self.bind(node)
        if bound.type not in (BOOLEAN, NULL):
            self.source.fail(
                f"a condition must be BOOLEAN, got {type_name(bound.type)}; compare it with "
                f"something",
                span_of(node),
            )
        return bound

    def _call(self, node: Scalar) -> Expr:
        name = str(node.this).lower()
        own = self.source.functions.get(name)
        if own is not None:
            return self._own(own, node)
        if "over" in node.meta:
            return self._over(name, node)
        if is_aggregate(name):
            return self._aggregate(name, node)
        if name in MARKERS:
            return self._grouping(name, node)
        if name in WINDOW_FUNCTIONS:
            self.source.fail(
                f"{name.upper()} is a window function and must be followed by OVER (PARTITION BY "
                f".. ORDER BY t)",
                span_of(node),
            )
        if name in ("window", "session_window"):
            self.source.fail(
                f"{name}(t, '5 minutes') is a key of GROUP BY; in {self.place}, write "
                f"{name}.start and {name}.end",
                span_of(node),
            )
        if name.partition("_")[0] in ("tumble", "hop", "session"):
            self.source.fail(
                f"{name.upper()}(..) is no function of {self.place}; write the window in FROM, "
                f"such as s [TUMBLE 5 MINUTES], and use its columns window_start and window_end",
                span_of(node),
            )
        if name != "struct" and not is_function(name):
            told = unknown_function(str(node.this), self.source.functions)
            self.source.fail(told, node.meta["name_span"])
        if node.meta["distinct"] or node.meta["star"] or "filter" in node.meta:
            self.source.fail(
                f"DISTINCT, '*' and FILTER belong to aggregates, and {name} is not one",
                span_of(node),
            )
        args = [self.bind(arg) for arg in node.expressions]
        if name == "struct":
            args = self._named(node, args)
            name = "named_struct"
        with self.source.at(span_of(node)):
            return resolve_call(name, args)

    def _named(self, node: Scalar, args: list[Expr]) -> list[Expr]:
        """Return the arguments of STRUCT with a name before each: its own, or col1, col2, .."""
        given: Mapping[int, Name] = node.meta.get("names", {})
        named: list[Expr] = []
        for number, (part, value) in enumerate(zip(node.expressions, args, strict=True)):
            name = f"col{number + 1}"
            if number in given:
                name = given[number].text
            elif isinstance(part, exp.Column | exp.Dot):
                name = label(self.source, part)
            named += [Literal(name, STRING), value]
        return named

    def _own(self, own: FunctionDef, node: Scalar) -> Expr:
        """A function of the user's own."""
        check_own(self.source, own, node)
        if own.aggregate:
            return self._aggregate(own.name, node, own)
        args = [self.bind(arg) for arg in node.expressions]
        with self.source.at(span_of(node)):
            return own_call(own, args)

    def _grouping(self, name: str, node: Scalar) -> Expr:
        if self.aggregates is None or self._inside is not None:
            self.source.fail(
                f"{name.upper()} must stand in SELECT, HAVING or ORDER BY, outside of aggregates",
                span_of(node),
            )
        if name == "grouping" and len(node.expressions) != 1:
            self.source.fail("GROUPING must have one argument, a key of GROUP BY", span_of(node))
        args = tuple(self.bind(arg) for arg in node.expressions)
        self.aggregates.marked = True
        return Call(name, args, TINYINT if name == "grouping" else BIGINT)

    def _over(self, name: str, node: Scalar) -> Expr:
        if self._inside is not None:
            self.source.fail(
                f"a window function cannot stand inside an aggregate ({self._inside}); compute it "
                f"in a sub-query in FROM",
                span_of(node),
            )
        if self.overs is None:
            advice = _OF_ROW if self.of_row else "compute it in a sub-query in FROM"
            if self.place in ("WHERE", "HAVING"):
                advice = "use QUALIFY, which comes after it"
            self.source.fail(
                f"a window function such as {name.upper()} OVER cannot stand in {self.place}; "
                f"{advice}",
                span_of(node),
            )
        return self.overs.column(node)

    def _nested(self, node: Scalar) -> None:
        self.source.fail(
            f"an aggregate cannot stand inside another one ({self._inside}); compute the inner one "
            f"in a sub-query in FROM",
            span_of(node),
        )

    def _aggregate(self, name: str, node: Scalar, own: FunctionDef | None = None) -> Expr:
        if self._inside is not None:
            self._nested(node)
        if self.aggregates is None:
            advice = "use HAVING" if self.place == "WHERE" else "compute it in a sub-query in FROM"
            advice = _OF_ROW if self.of_row else advice
            self.source.fail(
                f"an aggregate such as {name.upper()} cannot stand in {self.place}; {advice}",
                span_of(node),
            )
        self._inside = name.upper()
        try:
            args, where = self.arguments(name, node)
        finally:
            self._inside = None
        if name in IN_ORDER:
            args, where = self._in_order(name, node, args, where)
        with self.source.at(span_of(node)):
            if own is not None:
                call = own_aggregate(own, args, where)
            else:
                call = resolve_aggregate(name, args, bool(node.meta["distinct"]), where)
        return self.aggregates.column(call, label(self.source, node))

    def arguments(self, name: str, node: Scalar) -> tuple[list[Expr], Expr | None]:
        """Return the arguments of an aggregate, none for ``*``, and the condition of its FILTER."""
        if not node.meta["star"] and not node.expressions:
            self.source.fail(f"{name.upper()} must have an argument, got 0", span_of(node))
        if node.meta["star"] and name != "count":
            self.source.fail(
                f"aggregate {name}(x) must get an argument, got '*' or none", span_of(node)
            )
        args = [self.bind(arg) for arg in node.expressions]
        condition = node.meta.get("filter")
        return args, None if condition is None else self._truth(condition)

    def _in_order(
        self, name: str, node: Scalar, args: list[Expr], where: Expr | None
    ) -> tuple[list[Expr], Expr | None]:
        """Return the arguments and condition of first and last: what is first is so by time."""
        assert self.aggregates is not None
        flag = args[1] if len(args) == 2 else Literal(node.meta.get("ignore_nulls", False), BOOLEAN)
        if len(args) > 2 or not isinstance(flag, Literal) or flag.type != BOOLEAN:
            self.source.fail(
                f"{name.upper()} must have one argument and, if nulls are skipped, TRUE as a "
                f"second",
                span_of(node),
            )
        if self.aggregates.time is None:
            by = "MIN_BY" if name.startswith("first") else "MAX_BY"
            self.source.fail(
                f"{name.upper()} goes by the time of one stream, whose time column must be in "
                f"FROM; write {by}(x, t) with the column t that you mean",
                span_of(node),
            )
        if flag.value:
            there = resolve_call("is_not_null", args[:1])
            where = there if where is None else resolve_call("and", [where, there])
        return [args[0], self.aggregates.time], where


def _is_plain(number: str) -> bool:
    """Whether a number is written without an exponent, so that it may count as a DECIMAL."""
    return bool(re.fullmatch(r"[0-9]*\.?[0-9]*", number)) and number != "."


def _lists_values(call: exp.Anonymous) -> bool:
    """Whether it is ``ANY (1, 2, 3)``: an aggregate has one argument."""
    return str(call.this).upper() in ("ANY", "SOME", "ALL") and len(call.expressions) > 1


def _known(condition: Scalar) -> None:
    """Note where it makes no difference whether an IN is unknown or false: not below a NOT."""
    if isinstance(condition, exp.Paren):
        _known(condition.this)
    elif isinstance(condition, exp.And | exp.Or):
        _known(condition.this)
        _known(condition.expression)
    elif isinstance(condition, exp.In):
        condition.meta["known"] = True


_HANDLERS: dict[Any, Callable[[ScalarBinder, Scalar], Expr]] = {
    exp.Paren: lambda binder, node: binder.bind(node.this),
    exp.Column: ScalarBinder._column,
    exp.Dot: ScalarBinder._field,
    exp.Bracket: ScalarBinder._element,
    exp.Literal: ScalarBinder._literal,
    exp.Boolean: lambda binder, node: Literal(bool(node.this), BOOLEAN),
    exp.Null: lambda binder, node: Literal(None, NULL),
    exp.HexString: ScalarBinder._bytes,
    exp.Neg: ScalarBinder._negate,
    exp.Not: ScalarBinder._not,
    exp.BitwiseNot: lambda binder, node: binder.call("bit_not", [binder.bind(node.this)], node),
    exp.Is: lambda binder, node: binder.call("is_null", [binder.bind(node.this)], node),
    exp.Between: ScalarBinder._between,
    exp.In: ScalarBinder._in,
    exp.Exists: lambda binder, node: binder._asking(node).exists(node),
    exp.Subquery: lambda binder, node: binder._asking(node).value(node),
    exp.Any: ScalarBinder._quantified,
    exp.All: ScalarBinder._quantified,
    exp.Interval: ScalarBinder._interval,
    exp.Cast: ScalarBinder._cast,
    exp.Case: ScalarBinder._case,
    exp.Anonymous: ScalarBinder._call,
}
