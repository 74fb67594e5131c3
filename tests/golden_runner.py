"""The golden corpus: its plain-text format, how it is run, and the command that rewrites it.

A file holds streams, tables and queries, in this form::

    # a comment
    stream s (k STRING, x DOUBLE, t BIGINT) slack 2
    'a', 2.5, 10

    stream r (p INT, t BIGINT) priority p + 1
    3, 10

    stream u (k STRING, e BIGINT, t BIGINT) until e
    'a', 15, 10

    table d (k STRING, since BIGINT, until BIGINT) valid since until
    'a', 1, null

    CREATE FUNCTION f (x DOUBLE) RETURNS DOUBLE USING 'tests.own_plant:f'

    query name [intervals|log|stream]
    SELECT k FROM s [RANGE 5]
    ----
    [10, 15) 'a'

CREATE FUNCTION stands on one line.

The last column of a stream is its time, rows are in arrival order.  Times and dates are written as
text and printed as numbers.  A block ends at an empty line.  Answers are printed in one canonical
way, whatever the engine's batches were:

* ``intervals``: ``[start, end) values``; the longest intervals, copies counted (`to_intervals`);
* ``log``: ``@time + values`` and ``@time - values``, net changes;
* ``stream``: ``@time values``.

``python -m tests.golden_runner --rewrite [files]`` fills in the expected rows from the engine
after it has checked that the oracle says the same.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.algebra import Node, is_stream
from penstock.catalog import Catalog, StreamDef, TableDef
from penstock.cql import bind, bind_query, bind_scalar, parse_script
from penstock.expr.types import parse_type
from penstock.model import INF, MIN_TIME, Field, Schema
from penstock.reference import (
    Inputs,
    accept,
    from_intervals,
    relation,
    stream,
    to_intervals,
)
from penstock.reference.expressions import canonical
from penstock.testing import run_local
from penstock.timing import TimeRules
from tests.configs import Hostile, cuts_of, settings_of, shuffled

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FOLDER = Path(__file__).parent / "golden"
FILES = sorted(FOLDER.glob("*.test"))
PLAIN = Hostile("plain", cuts=1)


@dataclass
class Query:
    """One query and its expected rows; ``first`` and ``last`` bound these in the file's lines."""

    name: str
    mode: str
    sql: str
    expected: list[str]
    first: int
    last: int


@dataclass
class Golden:
    """A parsed file."""

    path: Path
    lines: list[str]
    streams: dict[str, list] = field(default_factory=dict)
    tables: dict[str, list] = field(default_factory=dict)
    catalog: Catalog = field(default_factory=Catalog)
    queries: list[Query] = field(default_factory=list)

    @property
    def slack(self) -> int:
        return max((s.timing.slack for s in self.catalog.streams.values()), default=0)

    def inputs(self) -> Inputs:
        """What the oracle sees: late elements removed."""
        kept = {name: accept(rows, self.slack)[0] for name, rows in self.streams.items()}
        return Inputs(kept, self.tables)

    @cached_property
    def plans(self) -> dict[str, Node]:
        return {query.name: bind_query(query.sql, self.catalog) for query in self.queries}


# Reading


@cache
def known(path: Path) -> Golden:
    """Return a golden file that is read and bound once for all configurations."""
    return read(path)


_HEADER = re.compile(
    r"(stream|table)\s+(\w+)\s*\((.*?)\)\s*(?:slack\s+(\d+)|valid\s+(\w+)\s+(\w+))?"
    r"(?:\s*until\s+(\w+))?(?:\s*priority\s+(.+))?"
)
_QUERY = re.compile(r"query\s+(\w+)(?:\s+(intervals|log|stream))?")
_VALUE = re.compile(r"\s*('(?:[^']|'')*'|[^,]+?)\s*(?:,|$)")


def read(path: Path) -> Golden:
    """Parse a golden file."""
    golden = Golden(path, path.read_text().splitlines())
    at = 0
    while at < len(golden.lines):
        line = golden.lines[at]
        if not line.strip() or line.startswith("#"):
            at += 1
        elif line.startswith("CREATE FUNCTION"):
            statement = bind(parse_script(line)[0], golden.catalog)
            golden.catalog.add(statement.definition)
            at += 1
        elif match := _HEADER.fullmatch(line.strip()):
            at = _read_rows(golden, match, at + 1)
        elif match := _QUERY.fullmatch(line.strip()):
            at = _read_query(golden, match, at + 1)
        else:
            raise ValueError(f"{path.name}:{at + 1}: expected stream, table or query, got {line!r}")
    return golden


def _block_end(lines: list[str], at: int) -> int:
    while at < len(lines) and lines[at].strip():
        at += 1
    return at


def _read_rows(golden: Golden, match: re.Match, at: int) -> int:
    kind, name, columns, slack, since, until, ends, priority = match.groups()
    pairs = [column.split() for column in re.split(r",(?![^(]*\))", columns)]
    schema = Schema(tuple(Field(column, parse_type(text)) for column, text in pairs))
    end = _block_end(golden.lines, at)
    rows = [_parse_row(line, schema.types) for line in golden.lines[at:end]]
    if kind == "stream":
        last = len(schema) - 1
        timing = TimeRules(slack=int(slack or 0))
        ranked = None if priority is None else bind_scalar(priority, schema)[0]
        own = None if ends is None else schema.names.index(ends)
        stream = StreamDef(name, schema, "memory", {}, last, timing, ranked, until=own)
        golden.catalog.add(stream)
        golden.streams[name] = [(row, row[-1]) for row in rows]
    else:
        place = {column: i for i, column in enumerate(schema.names)}
        golden.catalog.add(TableDef(name, schema, "memory", {}, place.get(since), place.get(until)))
        golden.tables[name] = rows
    return end


def _read_query(golden: Golden, match: re.Match, at: int) -> int:
    bar = next(i for i in range(at, len(golden.lines)) if golden.lines[i].strip() == "----")
    end = _block_end(golden.lines, bar + 1)
    golden.queries.append(
        Query(
            match[1],
            match[2] or "intervals",
            "\n".join(golden.lines[at:bar]),
            golden.lines[bar + 1 : end],
            bar + 1,
            end,
        )
    )
    return end


def _parse_row(line: str, types: tuple[pa.DataType, ...]) -> tuple:
    texts = [match[1] for match in _VALUE.finditer(line) if match[0]]
    if len(texts) != len(types):
        raise ValueError(f"expected {len(types)} values, got {line!r}")
    return tuple(_parse_value(text, kind) for text, kind in zip(texts, types, strict=True))


def _parse_value(text: str, kind: pa.DataType) -> Any:
    if text == "null":
        return None
    if pa.types.is_string(kind):
        return text[1:-1].replace("''", "'")
    if pa.types.is_decimal(kind):
        return Decimal(text).quantize(Decimal((0, (1,), -kind.scale)), context=Context(prec=38))
    if pa.types.is_binary(kind):
        return bytes.fromhex(text.removeprefix("X").strip("'"))
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}[text]
    if pa.types.is_timestamp(kind):
        return _plain(datetime.fromisoformat(text.strip("'")))
    if pa.types.is_date(kind):
        return _plain(date.fromisoformat(text.strip("'")))
    return float(text) if pa.types.is_floating(kind) else int(text)


# Answers: canonical rows and their text


def mode_of(query: Query, plan: Node) -> str:
    return "stream" if is_stream(plan) else query.mode


def oracle_rows(plan: Node, mode: str, inputs: Inputs) -> list[tuple]:
    """What the oracle says: ``(values, start, end)``, or ``(values, time, sign)``."""
    if mode == "stream":
        return [(values, time, 1) for (time, values) in stream(plan, inputs).elements()]
    steps = relation(plan, inputs)
    if mode == "intervals":
        return to_intervals(steps)
    changes, before = [], Counter()
    for time, snapshot in steps:
        changes += [(values, time, 1) for values in (snapshot - before).elements()]
        changes += [(values, time, -1) for values in (before - snapshot).elements()]
        before = snapshot
    return changes


def engine_rows(rows: list[tuple], mode: str) -> list[tuple]:
    """Bring the engine's rows to the same form."""
    rows = [(tuple(map(_plain, values)), start, end) for values, start, end in rows]
    if mode == "intervals":
        return to_intervals(from_intervals(rows))
    if mode == "log":
        return [(values[:-1], start, values[-1]) for values, start, _ in rows]
    return [(values, start, 1) for values, start, _ in rows]


def _plain(value: Any) -> Any:
    """Times and dates as the integers that the oracle uses."""
    if isinstance(value, datetime):
        return (value.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - EPOCH.date()).days
    return canonical(value)


def render(rows: list[tuple], mode: str) -> list[str]:
    """Return the text of canonical rows, sorted."""

    def line(row: tuple) -> str:
        values, start, end = row
        text = ", ".join(map(_show, values))
        if mode == "intervals":
            return f"[{_time(start)}, {_time(end)}) {text}"
        return (
            f"@{_time(start)} {'+ ' if end > 0 else '- '}{text}"
            if mode == "log"
            else (f"@{_time(start)} {text}")
        )

    return [text for _, text in sorted(((row[1], row[2]), line(row)) for row in rows)]


def _time(time: int) -> str:
    return "inf" if time == INF else "-inf" if time == MIN_TIME else str(time)


def _show(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        text = f"{value + 0.0:.12g}"
        return text if re.search(r"[.e]", text) else text + ".0"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


# Running


def run(golden: Golden, config: Hostile) -> dict[str, list[str]]:
    """Run every query of a file under a configuration; return the text of the answers."""
    plans = golden.plans
    modes = {query.name: mode_of(query, plans[query.name]) for query in golden.queries}
    streams, slack = golden.streams, golden.slack
    if config.shuffle:
        streams = {
            name: shuffled(rows, config.shuffle, f"{golden.path.name} {name}")
            for name, rows in golden.inputs().streams.items()
        }
        slack = config.shuffle
    groups: list[tuple[str, list[str]]]
    if config.alone:
        groups = [(mode, [name]) for name, mode in modes.items()]
    else:
        groups = [(m, [n for n in modes if modes[n] == m]) for m in sorted(set(modes.values()))]
    answers: dict[str, list[str]] = {}
    total = sum(len(rows) for rows in streams.values())
    for mode, names in groups:
        found = run_local(
            {name: plans[name] for name in names},
            streams,
            golden.tables,
            cuts=cuts_of(config, total, golden.path.name),
            shards=config.shards,
            settings=settings_of(config, FILES.index(golden.path)),
            slack=slack,
            mode=mode,
        )
        for name in names:
            answers[name] = render(engine_rows(found[name], mode), mode)
    return answers


def oracle(golden: Golden) -> dict[str, list[str]]:
    """What the oracle says to every query of a file."""
    plans, inputs = golden.plans, golden.inputs()
    return {
        query.name: render(
            oracle_rows(plans[query.name], mode_of(query, plans[query.name]), inputs),
            mode_of(query, plans[query.name]),
        )
        for query in golden.queries
    }


def rewrite(golden: Golden, trust_oracle: bool = False) -> bool:
    """Fill in the expected rows; refuse where engine and oracle differ. Say if it changed."""
    true = oracle(golden)
    if not trust_oracle:
        found = run(golden, PLAIN)
        for name, rows in true.items():
            if found[name] != rows:
                difference = "\n".join(
                    [
                        f"  engine only: {r}"
                        for r in (Counter(found[name]) - Counter(rows)).elements()
                    ]
                    + [
                        f"  oracle only: {r}"
                        for r in (Counter(rows) - Counter(found[name])).elements()
                    ]
                )
                raise SystemExit(f"{golden.path.name}: {name}: not rewritten\n{difference}")
    lines = list(golden.lines)
    for query in reversed(golden.queries):
        lines[query.first : query.last] = true[query.name]
    changed = lines != golden.lines
    if changed:
        golden.path.write_text("\n".join(lines) + "\n")
    return changed


def main(arguments: list[str]) -> None:
    """The command line: check, or rewrite, all files or some."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden_runner")
    parser.add_argument("--rewrite", action="store_true", help="fill in the expected rows")
    parser.add_argument(
        "--oracle", action="store_true", help="with --rewrite: do not run the engine"
    )
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    for path in options.files or FILES:
        golden = read(path)
        if options.rewrite:
            print(f"{path.name}: {'rewritten' if rewrite(golden, options.oracle) else 'unchanged'}")
            continue
        found = run(golden, PLAIN)
        wrong = [q.name for q in golden.queries if found[q.name] != q.expected]
        print(f"{path.name}: {', '.join(wrong) or 'ok'}")


if __name__ == "__main__":
    main(sys.argv[1:])
