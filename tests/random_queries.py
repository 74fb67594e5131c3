"""Random scripts from a seed: version 1 of the generator, which must never change.

A seed that once failed is kept in ``random_plans_failed.txt`` and stands for the very same case for
ever, so this module is frozen: a better generator is a new module with a new version.  All chance
comes from ``random.Random(seed).random()``, the one method whose sequence Python promises to keep.

A case is CQL text over two to four streams and two tables, their rows, how the rows arrive, and the
settings.  Values are few and small, so that rows meet, tie and take one another's place.  Numbers
are multiples of a quarter, so that sums and differences are exact; aggregates that need not be
exact are rounded to whole numbers inside a plan and stay as they are only at its top.

Every relation has at least one BIGINT column, so that any two can be joined.  ``size`` estimates
the rows of a snapshot and ``births`` those of all time; both only keep plans small enough for an
oracle that looks at every pair.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

VERSION = 1
LONG, DOUBLE, TEXT, BOOL = "BIGINT", "DOUBLE", "STRING", "BOOLEAN"

STREAMS: dict[str, tuple[tuple[str, str], ...]] = {
    "s": (("k", TEXT), ("x", LONG), ("y", DOUBLE), ("t", LONG)),
    "r": (("k", TEXT), ("x", LONG), ("t", LONG)),
    "q": (("x", LONG), ("b", BOOL), ("t", LONG)),
    "p": (("k", TEXT), ("lo", LONG), ("hi", LONG), ("y", DOUBLE), ("t", LONG)),
}
TABLE = (("k", TEXT), ("x", LONG), ("since", LONG), ("until", LONG))
TABLES = {"d": "", "v": " VALID FROM since TO until"}

VALUES: dict[str, list[Any]] = {
    TEXT: ["a", "a", "b", "ab", "a", "", None],
    LONG: [1, 1, 2, 0, 2, 3, 1, -4, None],
    DOUBLE: [1.5, 1.5, 0.5, 0.0, -2.25, 8.0, None],
    BOOL: [True, True, False, None],
}

MOST_PAIRS = 160
MOST_BIRTHS = 160

T = TypeVar("T")
Columns = tuple[tuple[str, str], ...]


class Dice:
    """Chance that stays the same for ever."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def below(self, count: int) -> int:
        return int(self._random() * count)

    def between(self, first: int, last: int) -> int:
        return first + self.below(last - first + 1)

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def chance(self, part: float) -> bool:
        return self._random() < part

    def some(self, options: Sequence[T], most: int, least: int = 1) -> list[T]:
        """Return different options in their order."""
        count = self.between(min(least, len(options)), min(most, len(options)))
        left = list(range(len(options)))
        chosen = sorted(left.pop(self.below(len(left))) for _ in range(count))
        return [options[i] for i in chosen]


@dataclass(frozen=True)
class Relation:
    """Text under construction: ``item`` stands in FROM, ``query`` as a query of its own."""

    item: str
    query: str
    columns: Columns
    size: float
    births: float
    depth: int
    streams: frozenset[str] = frozenset()
    bounded: bool = False

    def of(self, kind: str) -> list[str]:
        return [name for name, found in self.columns if found == kind]

    def longs(self, timely: bool) -> list[str]:
        """Return the BIGINT columns that are times, or those that are not; all if there is none."""
        return [n for n in self.of(LONG) if is_time(n) == timely] or self.of(LONG)


@dataclass(frozen=True)
class Case:
    """What is run: ``batches`` are rows by stream; the last one may end the streams."""

    seed: int
    queries: dict[str, str]
    streams: dict[str, list[tuple[Any, ...]]]
    tables: dict[str, list[tuple[Any, ...]]]
    batches: list[dict[str, list[tuple[Any, ...]]]]
    slack: int
    shards: int
    mode: str
    settings: dict[str, Any] = field(default_factory=dict)

    def declarations(self) -> str:
        """Return the statements that declare streams and tables."""
        lines = []
        for name in self.streams:
            columns = ", ".join(f"{n} {kind}" for n, kind in STREAMS[name])
            slack = f" SLACK {self.slack}" if self.slack else ""
            lines.append(f"CREATE STREAM {name} ({columns}) USING memory TIMESTAMP BY t{slack};")
        columns = ", ".join(f"{n} {kind}" for n, kind in TABLE)
        lines += [
            f"CREATE TABLE {name} ({columns}) USING memory{valid};"
            for name, valid in TABLES.items()
        ]
        return "\n".join(lines)


def generate(seed: int) -> Case:
    """Return the case of a seed."""
    return generate_by(Maker, seed)


def generate_by(kind: type[Maker], seed: int) -> Case:
    """Return the case of a seed, whose queries are made by a kind of maker."""
    dice = Dice(seed)
    names = dice.some(list(STREAMS), 4, least=2)
    slack = dice.pick([0, 0, 0, 3])
    most = dice.pick([8, 12, 16])
    streams = {name: _stream_rows(dice, STREAMS[name], slack, most) for name in names}
    tables = {name: _table_rows(dice) for name in TABLES}
    maker = kind(dice, names, max(len(rows) for rows in streams.values()))
    depth = dice.pick([2, 3, 3, 4, 4, 5, 5, 6, 6])
    queries = {"q0": maker.top(depth)}
    if dice.chance(0.15):
        queries["q1"] = maker.top(dice.between(2, 3))
    return Case(
        seed,
        queries,
        streams,
        tables,
        _arrivals(dice, streams),
        slack,
        dice.pick([1, 1, 2, 3]),
        dice.pick(["intervals", "intervals", "intervals", "log", "view"]),
        _settings(dice),
    )


# Inputs


def _stream_rows(dice: Dice, columns: Columns, slack: int, most: int) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    largest = dice.between(-2, 2)
    late = dice.chance(0.3)
    for _ in range(dice.pick([most, most, most // 2])):
        step = dice.pick([0, 0, 1, 1, 2, 3])
        if slack and dice.chance(0.3):
            step = -dice.between(1, slack)
        if late and rows and dice.chance(0.15):
            step = -slack - dice.between(1, 5)
        values = [dice.pick(VALUES[kind]) for _, kind in columns[:-1]]
        rows.append((*values, largest + step))
        largest = max(largest, largest + step)
    return rows


def _table_rows(dice: Dice) -> list[tuple[Any, ...]]:
    bounds = [None, None, None, -2, 2, 5, 9, 14]
    return [
        (dice.pick(VALUES[TEXT]), dice.pick(VALUES[LONG]), dice.pick(bounds), dice.pick(bounds))
        for _ in range(dice.pick([0, 3, 5, 5]))
    ]


def _arrivals(
    dice: Dice, streams: dict[str, list[tuple[Any, ...]]]
) -> list[dict[str, list[tuple[Any, ...]]]]:
    """Cut rows into batches: one, a few with any number of rows of each stream, or row by row."""
    waiting = {name: list(rows) for name, rows in streams.items()}
    batches: list[dict[str, list[tuple[Any, ...]]]] = []
    way = dice.pick(["one", "few", "few", "few", "rows"])
    if way == "few":
        for _ in range(dice.between(1, 3)):
            batch = {}
            for name, rows in waiting.items():
                count = dice.between(0, len(rows))
                batch[name], waiting[name] = rows[:count], rows[count:]
            batches.append(batch)
    if way == "rows":
        by_time = sorted((row[-1], name) for name, rows in streams.items() for row in rows)
        for _, name in by_time[: dice.pick([6, 12])]:
            batches.append({name: [waiting[name].pop(0)]})
    return [*batches, waiting]


def _settings(dice: Dice) -> dict[str, Any]:
    choices: dict[str, list[Any]] = {
        "merge.strategy": ["greedy", "maxfanin", "load", "always", "never"],
        "merge.fan_in": [2, 3, 4],
        "join.method": ["temporal", "tpmj", "pmj"],
        "join.memory": [1, 500, "4k"],
        "block.rows": [1, 2, 5],
        "scheduler": ["topological", "roundrobin"],
        "rules": [True, False],
        "panes": [True, False],
        "join.buffer": ["input", "output"],
        "join.index": [True, False],
        "join.split": [1, 2, 9],
        "join.multiway": ["always", "never"],
    }
    return {name: dice.pick(some) for name, some in choices.items() if dice.chance(0.25)}


# Queries


class Maker:
    """Makes queries over the streams of a case."""

    def __init__(self, dice: Dice, streams: list[str], rows: int) -> None:
        self.dice = dice
        self.streams = streams
        self.rows = rows
        self._turn = dice.below(len(streams))
        self._binary: list[Callable[[int, bool], Relation]] = [
            self.join, self.join, self.join, self.join, self.multiway, self.asof, self.union,
            self.set_operation, self.set_operation, self.subquery,
        ]  # fmt: skip
        self._unary: list[Callable[[int, bool], Relation]] = [
            self.filter, self.project, self.aggregate, self.aggregate, self.distinct, self.top_k,
            self.nested_stream, self.nested_stream, self.nested_window,
        ]  # fmt: skip

    def top(self, depth: int) -> str:
        """Return a whole query that reads at least two streams."""
        found = self.relation(depth, top=True, binary=self.dice.between(2, depth))
        if len(found.streams) < 2:
            found = self._united([found, self.source(other_than=found.streams)], top=True)
        if self.dice.chance(0.2):
            return f"{self.dice.pick(['ISTREAM', 'DSTREAM', 'RSTREAM'])} ({found.query})"
        return found.query

    def relation(self, depth: int, top: bool = False, binary: int = 0) -> Relation:
        """Return a relation of a depth; ``binary`` is the level that surely has several inputs."""
        if depth <= 1:
            return self.source()
        self._forced = binary
        several = depth == binary or self.dice.chance(0.4)
        make = self.dice.pick(self._binary if several else self._unary)
        return make(depth, top)

    def below(self, depth: int) -> Relation:
        """Return the first input of an operator at a depth."""
        return self.relation(depth - 1, binary=self._forced)

    def other(self, depth: int) -> Relation:
        """Return a further input: a window, a table, or a small plan."""
        if self.dice.chance(0.12):
            return self.static()
        if depth > 2 and self.dice.chance(0.35):
            forced, self._forced = self._forced, 0
            found = self.relation(self.dice.between(2, min(3, depth - 1)))
            self._forced = forced
            return found
        return self.source()

    # Sources

    def source(self, other_than: frozenset[str] = frozenset()) -> Relation:
        """Return a stream with a window, at times without one."""
        self._turn += 1
        names = [n for n in self.streams if n not in other_than]
        name = names[self._turn % len(names)]
        columns = STREAMS[name]
        window, size = self.window(columns, self.rows) if self.dice.chance(0.93) else ("", 99)
        item = f"{name} {window}".strip()
        rows = min(size, self.rows)
        return Relation(
            item,
            f"SELECT * FROM {item}",
            columns,
            rows,
            self.rows,
            1,
            frozenset({name}),
            bounded=not set(window[1:-1].split()).isdisjoint({"NOW", "FIXED", "SESSION"})
            or (window.startswith(("[ROWS ", "[RANGE ")) and "UNBOUNDED" not in window),
        )

    def static(self) -> Relation:
        name = self.dice.pick(list(TABLES))
        return Relation(name, f"SELECT * FROM {name}", TABLE, 3, 4, 0, bounded=True)

    def window(self, columns: Columns, births: float) -> tuple[str, float]:
        """Return any window and how many rows it may hold."""
        dice = self.dice
        length, few, point = dice.between(2, 12), dice.between(1, 6), dice.between(1, 9)
        text, size = dice.pick(
            [
                (f"ROWS {few}", few),
                (f"ROWS {few}", few),
                (f"ROWS {few} SLIDE {dice.between(1, 4)}", few),
                (f"ROWS {few} RANGE {length}", few),
                (f"ROWS {few} SLIDE {dice.between(1, 3)} RANGE {length}", few),
                (f"RANGE {length}", length),
                (f"RANGE {length}", length),
                (f"RANGE {length} SLIDE {dice.between(1, 9)}", length),
                (f"RANGE {length} SLIDE {length}", length),
                (f"RANGE UNBOUNDED SLIDE {length}", 99),
                ("NOW", 2),
                ("RANGE UNBOUNDED", 99),
                ("ROWS UNBOUNDED", 99),
                (f"AFTER {point - 2}", 99),
                (f"BEFORE {point + 2}", 99),
                (f"AFTER {point - 2} AND BEFORE {point + dice.between(0, 6)}", 6),
                (f"FIXED {length}", length),
                (f"SESSION {dice.between(1, 5)}", length),
            ]
        )
        by_rows = text.startswith(("ROWS ", "SESSION")) and "UNBOUNDED" not in text
        if by_rows and dice.chance(0.4):
            keys = dice.some([n for n, _ in columns[: max(1, len(columns) - 1)]], 2)
            text, size = f"PARTITION BY {', '.join(keys)} {text}", size * 3
        if dice.chance(0.12):
            text += f" START {dice.between(-2, 5)}"
        return f"[{text}]", min(size, births)

    # Expressions: text of a type over the columns of an alias

    def value(self, scope: Sequence[tuple[str, str]], kind: str, depth: int = 1) -> str:
        """Return an expression of a type that cannot fail on small values."""
        dice = self.dice
        columns = [name for name, found in scope if found == kind]
        if depth == 0 or dice.chance(0.5):
            if columns and dice.chance(0.85):
                return dice.pick(columns)
            return literal(dice.pick(VALUES[kind]), kind)

        def again(of: str = kind) -> str:
            return self.value(scope, of, depth - 1)

        either = f"CASE WHEN {self.condition(scope, depth - 1)} THEN {again()} ELSE {again()} END"
        shared = [either, f"COALESCE({again()}, {again()})"]
        own = {
            LONG: [
                f"({again()} + {again()})",
                f"({again()} - {again()})",
                f"({again()} % {dice.pick([2, 3])})",
                f"ABS({again()})",
                f"LENGTH({again(TEXT)})",
            ],
            DOUBLE: [f"({again()} + {again()})", f"CAST({again(LONG)} AS DOUBLE)"],
            TEXT: [f"UPPER({again()})", f"CONCAT({again()}, 'b')"],
            BOOL: [f"({self.condition(scope, depth - 1)})"],
        }
        return dice.pick([*own[kind], *own[kind], *shared])

    def condition(self, scope: Sequence[tuple[str, str]], depth: int = 1) -> str:
        """Return a condition; mostly a column is compared with another one or with a constant."""
        dice = self.dice
        kind = dice.pick([kind for _, kind in scope if kind != BOOL])
        columns = [name for name, found in scope if found == kind]
        one = dice.pick(columns)
        if depth <= 0 or dice.chance(0.6):
            others = [name for name in columns if name != one]
            if depth > 0 and dice.chance(0.3):
                other = self.value(scope, kind, depth)
            elif others and dice.chance(0.4):
                other = dice.pick(others)
            else:
                other = literal(dice.pick(VALUES[kind][:-1]), kind)
            sign = dice.pick(["=", "<>", "<>", "<", "<=", "<=", ">", ">=", ">="])
            return f"{one} {sign} {other}"
        first, second = self.condition(scope, depth - 1), self.condition(scope, depth - 1)
        return dice.pick(
            [
                f"({first} AND {second})",
                f"({first} OR {second})",
                f"({first} OR {second})",
                f"NOT ({first})",
                f"{one} IS NULL",
                f"{one} IS NOT NULL",
                f"{one} IS NOT NULL",
                f"{self.value(scope, LONG, 0)} BETWEEN {dice.between(-4, 1)} AND "
                f"{dice.between(1, 6)}",
                f"{self.value(scope, LONG, 0)} IN (1, 2, {dice.between(-4, 6)})",
                f"{self.value(scope, TEXT, 0)} LIKE 'a%'",
            ]
        )

    def outputs(self, scope: Sequence[tuple[str, str]], most: int = 4) -> tuple[str, Columns]:
        """Choose columns, a BIGINT among them, and name them anew."""
        chosen = self.dice.some(list(scope), most)
        if all(kind != LONG for _, kind in chosen):
            chosen[0] = self.dice.pick([c for c in scope if c[1] == LONG])
        names = [f"{'t' if is_time(n) else 'c'}{i}" for i, (n, _) in enumerate(chosen)]
        pairs = zip(chosen, names, strict=True)
        text = ", ".join(f"{column} AS {name}" for (column, _), name in pairs)
        return text, tuple((name, kind) for name, (_, kind) in zip(names, chosen, strict=True))

    # Operators with one input

    def filter(self, depth: int, top: bool) -> Relation:
        below = self.below(depth)
        where = self.condition(scoped(below, "a"), 2)
        if self.dice.chance(0.4):
            where = f"{where} OR {self.condition(scoped(below, 'a'))}"
        return made(f"SELECT * FROM {below.item} a WHERE {where}", below.columns, [below])

    def project(self, depth: int, top: bool) -> Relation:
        below = self.below(depth)
        kinds = [LONG, *self.dice.some([TEXT, LONG, DOUBLE, BOOL], 3)]
        text = named([self.value(scoped(below, "a"), kind, 2) for kind in kinds])
        return made(f"SELECT {text} FROM {below.item} a", fresh(kinds), [below])

    def aggregate(self, depth: int, top: bool) -> Relation:
        dice, below = self.dice, self.below(depth)
        scope = scoped(below, "a")
        kinds = sorted({kind for _, kind in scope})
        key_kinds = dice.some(kinds, 2, least=0)
        keys = [self.value(scope, kind, dice.below(2)) for kind in key_kinds]
        keys = [k for k in keys if any(name in k for name, _ in scope)]  # no constants
        key_kinds = key_kinds[: len(keys)] if len(keys) == len(key_kinds) else []
        keys = keys[: len(key_kinds)]
        calls = [self.call(scope, top) for _ in range(dice.between(1, 3))]
        if all(kind != LONG for kind in [*key_kinds, *(kind for _, kind in calls)]):
            calls.append(("COUNT(*)", LONG))
        text = f"SELECT {named([*keys, *(call for call, _ in calls)])} FROM {below.item} a"
        if keys:
            text += f" GROUP BY {', '.join(keys)}"
        if dice.chance(0.2):
            text += f" HAVING COUNT(*) {dice.pick(['>', '>=', '<>'])} {dice.between(0, 2)}"
        groups = min(4.0, below.size) if keys else 1.0
        columns = fresh([*key_kinds, *(kind for _, kind in calls)])
        return made(text, columns, [below], groups, 2 * below.births * min(groups, 2))

    def call(self, scope: Sequence[tuple[str, str]], top: bool) -> tuple[str, str]:
        """Return an aggregate and its type."""
        dice = self.dice
        name = dice.pick(
            ["COUNT(*)", "COUNT", "COUNT(DISTINCT", "SUM", "SUM", "MIN", "MAX", "AVG", "VAR_SAMP",
             "VAR_POP", "STDDEV_SAMP", "STDDEV_POP"]
        )  # fmt: skip
        if name == "COUNT(*)":
            return name, LONG
        numeric = name not in ("COUNT", "COUNT(DISTINCT", "MIN", "MAX")
        kinds = [LONG, DOUBLE, TEXT, BOOL] if name.startswith("COUNT") else [LONG, DOUBLE, TEXT]
        kind = dice.pick([LONG, DOUBLE] if numeric else kinds)
        argument = self.value(scope, kind, dice.below(2))
        if name == "COUNT(DISTINCT":
            return f"COUNT(DISTINCT {argument})", LONG
        text = f"{name}({argument})"
        if name in ("SUM", "MIN", "MAX"):
            return text, kind
        if name == "COUNT":
            return text, LONG
        if top:
            return text, DOUBLE
        # 4.1 keeps the value away from the halves at which rounding turns
        return f"CAST(ROUND({text} * 4.1) AS BIGINT)", LONG

    def distinct(self, depth: int, top: bool) -> Relation:
        below = self.below(depth)
        text, columns = self.outputs(scoped(below, "a"), 2)
        return made(f"SELECT DISTINCT {text} FROM {below.item} a", columns, [below])

    def top_k(self, depth: int, top: bool) -> Relation:
        dice, below = self.dice, self.below(depth)
        scope = scoped(below, "a")
        order = []
        for _ in range(dice.between(1, 2)):
            key = self.value(scope, dice.pick(sorted({kind for _, kind in scope})), 1)
            if any(name in key for name, _ in scope):
                order.append(key + dice.pick(["", "", " DESC", " NULLS LAST", " DESC NULLS FIRST"]))
        order = order or ["a." + below.of(LONG)[0]]
        limit = dice.between(1, 4)
        text, columns = self.outputs(scope, 4)
        text = f"SELECT {text} FROM {below.item} a ORDER BY {', '.join(order)} LIMIT {limit}"
        return made(text, columns, [below], min(limit, below.size), 2 * below.births)

    def nested_stream(self, depth: int, top: bool) -> Relation:
        below = self.below(depth)
        kind = self.dice.pick(["ISTREAM", "DSTREAM", "RSTREAM"])
        births = below.births if kind != "RSTREAM" else below.size * min(below.births * 2, 20)
        if births > MOST_BIRTHS:
            kind, births = "ISTREAM", below.births
        window, size = self.window(below.columns, births)
        text = f"SELECT * FROM {kind} ({below.query}) {window}"
        return made(text, below.columns, [below], size, births)

    def nested_window(self, depth: int, top: bool) -> Relation:
        below = self.below(depth)
        window, size = self.window(below.columns, below.births)
        text = f"SELECT * FROM ({below.query}) {window} a"
        return made(text, below.columns, [below], size, below.births)

    # Operators with several inputs

    def pair(self, depth: int) -> tuple[Relation, Relation]:
        left, right = self.below(depth), self.other(depth)
        if left.size * right.size > MOST_PAIRS or left.births * right.births > 12 * MOST_BIRTHS:
            right = self.source()
        if left.size * right.size > MOST_PAIRS:
            order = "a." + left.of(LONG)[0]
            text = f"SELECT * FROM {left.item} a ORDER BY {order} DESC LIMIT 3"
            left = made(text, left.columns, [left], 3)
        if self.dice.chance(0.4):
            left, right = right, left
        return left, right

    def link(self, left: Relation, right: Relation, a: str = "a", b: str = "b") -> str:
        """Return a join condition of any class."""
        dice = self.dice
        timely = dice.chance(0.3)
        mine = [f"{a}.{n}" for n in [*left.longs(timely), *left.of(DOUBLE)]]
        yours = [f"{b}.{n}" for n in [*right.longs(timely), *right.of(DOUBLE)]]
        m, y = dice.pick(mine), dice.pick(yours)
        m2, y2 = dice.pick(mine), dice.pick(yours)
        m3, y3 = dice.pick(mine), dice.pick(yours)
        long_m = f"{a}.{dice.pick(left.longs(timely))}"
        long_y = f"{b}.{dice.pick(right.longs(timely))}"
        reach = dice.between(0, 3)
        equal = [f"{long_m} = {long_y}"] * 3 + [f"{long_m} + 1 = {long_y}"]
        texts = left.of(TEXT), right.of(TEXT)
        edits = []
        if all(texts):
            ours = f"{a}.{dice.pick(texts[0])}", f"{b}.{dice.pick(texts[1])}"
            equal += [f"{ours[0]} = {ours[1]}"] * 6
            equal += [f"{ours[0]} = {ours[1]} AND {long_m} = {long_y}"]
            edits = [f"LEVENSHTEIN({ours[0]}, {ours[1]}) <= {dice.between(0, 1)}"]
        way = dice.pick(["equal", "place"])
        if way == "equal":
            text = dice.pick(equal)
            return f"{text} AND {m} <= {y}" if dice.chance(0.15) else text
        return dice.pick(
            [
                f"{long_m} BETWEEN {long_y} - {reach} AND {long_y} + {dice.between(0, 3)}",
                f"ABS({m} - {y}) <= {reach}",
                f"{m} < {y}",
                f"{m} >= {y} + {reach}",
                f"{m} < {y2} AND {y} < {m2}",
                f"({long_m}, {long_m} + {reach}) OVERLAPS ({long_y}, {long_y} + 2)",
                f"DISTANCE({m}, {m2}, {y}, {y2}) <= {dice.pick([1.5, 2.5, 4.0])}",
                f"DISTANCE_L1({m}, {m2}, {y}, {y2}) <= 3",
                f"{m} BETWEEN {y} - 2 AND {y} + 2 AND {m2} BETWEEN {y2} - 3 AND {y2} + 3",
                f"{m} < {y2} AND {y} < {m2} AND {m3} <= {y3} AND {y2} <= {m}",
                f"({long_m} + {long_y}) % 3 = 1",
                f"{long_m} <> {long_y}",
                *edits,
                *edits,
            ]
        )

    def join(self, depth: int, top: bool) -> Relation:
        dice = self.dice
        left, right = self.pair(depth)
        kind = dice.pick(["", "", "", "LEFT ", "RIGHT ", "FULL ", "SEMI ", "ANTI "])
        on = self.link(left, right)
        if left.bounded and right.bounded and left.size * right.size < 30 and dice.chance(0.15):
            on = "TRUE"
        both = [*scoped(left, "a"), *scoped(right, "b")]
        if dice.chance(0.2):
            on += f" AND {self.condition(both)}"
        one = kind in ("SEMI ", "ANTI ")
        text, columns = self.outputs(scoped(left, "a") if one else both)
        query = f"SELECT {text} FROM {left.item} a {kind}JOIN {right.item} b ON {on}"
        if dice.chance(0.2):
            query += f" WHERE {self.condition(scoped(left, 'a') if one else both)}"
        return made(query, columns, [left, right], left.size if one else None)

    def multiway(self, depth: int, top: bool) -> Relation:
        """Three or four inputs in one FROM."""
        dice = self.dice
        left, right = self.pair(depth)
        inputs = [left, right, *(self.source() for _ in range(dice.between(1, 2)))]
        while len(inputs) > 2 and product(inputs) > 3 * MOST_PAIRS:
            inputs.pop()
        names = ["a", "b", "c", "d"][: len(inputs)]
        links = []
        for i in range(1, len(inputs)):
            j = dice.below(i)
            links.append(self.link(inputs[j], inputs[i], names[j], names[i]))
        hint = dice.pick(["", "", "/*+ MULTIWAY */ ", "/*+ CASCADE */ "])
        scope = [c for r, n in zip(inputs, names, strict=True) for c in scoped(r, n)]
        text, columns = self.outputs(scope)
        items = ", ".join(f"{r.item} {n}" for r, n in zip(inputs, names, strict=True))
        query = f"SELECT {hint}{text} FROM {items} WHERE {' AND '.join(links)}"
        return made(query, columns, inputs)

    def asof(self, depth: int, top: bool) -> Relation:
        dice = self.dice
        left, right = self.pair(depth)
        kind = dice.pick(["", "LEFT "])
        timely = dice.chance(0.7)
        m, y = dice.pick(left.longs(timely)), dice.pick(right.longs(timely))
        move = dice.pick(["", "", f" - {dice.between(1, 3)}"])
        on = f"a.{m}{move} {dice.pick(['>=', '>=', '>', '<=', '<'])} b.{y}"
        if left.of(TEXT) and right.of(TEXT) and dice.chance(0.6):
            on = f"a.{dice.pick(left.of(TEXT))} = b.{dice.pick(right.of(TEXT))} AND {on}"
        text, columns = self.outputs([*scoped(left, "a"), *scoped(right, "b")])
        query = f"SELECT {text} FROM {left.item} a ASOF {kind}JOIN {right.item} b ON {on}"
        return made(query, columns, [left, right], left.size, left.births + right.births)

    def subquery(self, depth: int, top: bool) -> Relation:
        """IN and EXISTS, and their contraries."""
        dice = self.dice
        left, right = self.pair(depth)
        timely = dice.chance(0.3)
        m, y = dice.pick(left.longs(timely)), dice.pick(right.longs(timely))
        inner = f"SELECT b.{y} FROM {right.item} b"
        where = dice.pick(
            [
                f"a.{m} IN ({inner})",
                f"a.{m} NOT IN ({inner})",
                f"EXISTS ({inner} WHERE {self.link(left, right)})",
                f"NOT EXISTS ({inner} WHERE {self.link(left, right)})",
            ]
        )
        text = f"SELECT * FROM {left.item} a WHERE {where}"
        return made(text, left.columns, [left, right], left.size, left.births + right.births)

    def union(self, depth: int, top: bool) -> Relation:
        members = [self.below(depth), *(self.other(depth) for _ in range(self.dice.between(1, 2)))]
        return self._united(members, top)

    def _united(self, members: list[Relation], top: bool) -> Relation:
        word = self.dice.pick(["UNION ALL", "UNION ALL", "UNION"])
        texts, columns = self.alike(members)
        sizes = sum(m.size for m in members), sum(m.births for m in members)
        return made(f" {word} ".join(texts), columns, members, *sizes)

    def set_operation(self, depth: int, top: bool) -> Relation:
        sides = [self.below(depth), self.other(depth)]
        if self.dice.chance(0.4):
            sides.reverse()
        word = self.dice.pick(["INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL"])
        texts, columns = self.alike(sides)
        births = sum(s.births for s in sides)
        return made(f" {word} ".join(texts), columns, sides, sides[0].size, births)

    def alike(self, members: list[Relation]) -> tuple[list[str], Columns]:
        """Return queries of the members that have the same types."""
        kinds = self.dice.pick([[LONG], [LONG], [TEXT, LONG], [LONG, DOUBLE], [BOOL, LONG]])
        texts = []
        timely = self.dice.chance(0.2)
        for member in members:
            chosen = []
            for kind in kinds:
                options = member.longs(timely) if kind == LONG else member.of(kind)
                found = [f"a.{n}" for n in options] or [literal(VALUES[kind][0], kind)]
                chosen.append(self.dice.pick(found))
            texts.append(f"SELECT {named(chosen)} FROM {member.item} a")
        return texts, fresh(kinds)


def made(
    query: str,
    columns: Columns,
    inputs: list[Relation],
    size: float | None = None,
    births: float | None = None,
) -> Relation:
    """Return the relation of a query over inputs."""
    return Relation(
        f"({query})",
        query,
        columns,
        0.6 * product(inputs) if size is None else size,
        births if births is not None else _births(inputs),
        1 + max(i.depth for i in inputs),
        frozenset().union(*(i.streams for i in inputs)),
    )


def product(inputs: list[Relation]) -> float:
    found = 1.0
    for relation in inputs:
        found *= max(1.0, relation.size)
    return found


def _births(inputs: list[Relation]) -> float:
    """One input: as many; several: each new row may meet those of the others."""
    if len(inputs) == 1:
        return inputs[0].births
    whole = product(inputs)
    return sum(i.births * whole / max(1.0, i.size) for i in inputs) * 0.5


def is_time(column: str) -> bool:
    """Whether a column, known by its name with or without an alias, holds times."""
    return column.rpartition(".")[2][:1] in ("t", "u") or column.endswith("since")


def scoped(relation: Relation, alias: str) -> list[tuple[str, str]]:
    return [(f"{alias}.{name}", kind) for name, kind in relation.columns]


def named(texts: Sequence[str]) -> str:
    return ", ".join(f"{text} AS c{i}" for i, text in enumerate(texts))


def fresh(kinds: Sequence[str]) -> Columns:
    return tuple((f"c{i}", kind) for i, kind in enumerate(kinds))


def literal(value: Any, kind: str) -> str:
    if value is None:
        return f"CAST(NULL AS {kind})"
    if kind == TEXT:
        return f"'{value}'"
    return f"({value})" if kind in (LONG, DOUBLE) and value < 0 else str(value).upper()
