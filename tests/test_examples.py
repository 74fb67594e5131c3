"""The example scripts bind, and every one of their queries gives the oracle's answer."""

from __future__ import annotations

import csv
import math
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import reference
from penstock.algebra import is_stream, streams_of
from penstock.catalog import Catalog, QueryDef, StreamDef, TableDef
from penstock.cql import bind, bind_query, parse_script
from penstock.cql.binding.statements import Create
from penstock.cql.grammar.syntax import Parsed
from penstock.model import INF
from penstock.session import Session
from penstock.testing import Rig

ROOT = Path(__file__).parent.parent
CITIES = sorted((ROOT / "examples/cities").glob("*.sql"))
SCRIPTS = sorted((ROOT / "examples").rglob("*.sql"))

# The oracle takes a join literally, so it is asked about Athens alone; the answer is the same.
ASK_INSTEAD = {
    "athens_both": """
        SELECT s.t, s.temperature, r.humidity
        FROM (SELECT * FROM s [PARTITION BY city ROWS 20] WHERE city = 'ATHENS') s
        JOIN (SELECT * FROM r [PARTITION BY city ROWS 20] WHERE city = 'ATHENS') r
          ON s.city = r.city"""
}


@cache
def bound(script: Path) -> Catalog:
    """Return the catalog after all statements of a script."""
    catalog = Catalog()
    for parsed in parse_script(script.read_text()):
        statement = bind(parsed, catalog)
        assert isinstance(statement, Create)
        catalog.add(statement.definition)
    return catalog


@cache
def lines(path: str) -> list[list[str]]:
    """Return the rows of a csv or text file of the repository, without the first line."""
    with (ROOT / path).open(newline="") as file:
        rows = list(csv.reader(file, quotechar="'" if path.endswith(".txt") else '"'))
    return [[value.strip(" '") for value in row] for row in rows[1:]]


def value(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
        return round(moment.timestamp() * 1_000_000)
    if pa.types.is_integer(kind):
        return int(text)
    return float(text) if pa.types.is_floating(kind) else text


def rows_of(definition: StreamDef | TableDef) -> list[tuple[Any, ...]]:
    types = definition.schema.types
    return [
        tuple(value(text, kind) for text, kind in zip(row, types, strict=True))
        for row in lines(definition.options["path"])
    ]


def inputs_of(catalog: Catalog) -> reference.Inputs:
    streams = {
        name: [(row, row[stream.time]) for row in rows_of(stream)]
        for name, stream in catalog.streams.items()
    }
    return reference.Inputs(streams, {n: rows_of(t) for n, t in catalog.tables.items()})


def rounded(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Floating-point sums may differ in the last digits."""
    return tuple(float(f"{v:.9g}") if isinstance(v, float) else v for v in values)


@cache
def oracle(name: str) -> Any:
    """Return what a query must give: the bag of a stream, the steps of a relation."""
    catalog = next(c for c in map(bound, CITIES) if name in c.queries)
    text = ASK_INSTEAD.get(name)
    plan = bind_query(text, catalog) if text else catalog.queries[name].plan
    inputs = inputs_of(catalog)
    if is_stream(plan):
        expected = reference.stream(plan, inputs)
        return Counter({(t, rounded(v)): n for (t, v), n in expected.items()})
    rows = reference.to_intervals(reference.relation(plan, inputs))
    return reference.from_intervals((rounded(v), s, e) for v, s, e in rows)


def assert_answer(name: str, found: list[Any]) -> None:
    """Compare the rows ``(values, start, end)`` of a query with the oracle."""
    expected = oracle(name)
    assert expected, "an example must have an answer"
    if isinstance(expected, Counter):
        assert Counter((start, rounded(v)) for v, start, _ in found) == expected
    else:
        assert reference.from_intervals((rounded(v), s, e) for v, s, e in found) == expected


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_script_binds(script: Path) -> None:
    assert bound(script).queries


def test_vehicles_near_an_ambulance() -> None:
    """The same in plain Python: the newest positions, after each instant."""
    rows = rows_of(bound(ROOT / "examples/cities/6.2-area-of-interest.sql").streams["positions"])
    rig = Rig((ROOT / "examples/cities/6.2-around-an-ambulance.sql").read_text(), batch_rows=100)
    rig.feed("positions", rows)
    rig.end()
    places: dict[int, tuple[float, float]] = {}
    before: set[int] = set()
    coming, going = [], []
    for time, some in groupby(rows, key=lambda row: row[3]):
        places |= {vehicle: (x, y) for vehicle, x, y, _ in some}
        now = {v for v in places if v != 6 and math.dist(places[v], places[6]) <= 40_000}
        coming += [(vehicle, time) for vehicle in now - before]
        going += [(vehicle, time) for vehicle in before - now]
        before = now
    assert len(going) > 3
    rig.assert_stream("coming", coming)
    rig.assert_stream("going", going)


@pytest.mark.parametrize("script", CITIES, ids=lambda p: p.stem)
def test_queries_match_the_oracle(script: Path) -> None:
    catalog = bound(script)
    tables = {name: rows_of(table) for name, table in catalog.tables.items()}
    rig = Rig(script.read_text(), tables=tables, shards=2, batch_rows=300)
    rig.feed({name: rows_of(catalog.streams[name]) for name in streams_read(catalog)})
    rig.end()
    for name in catalog.queries:
        expected = oracle(name)
        if isinstance(expected, Counter):
            rig.assert_stream(name, [(*v, t) for t, v in expected.elements()], within=1e-5)
        else:
            rows = [(*v, s, e) for v, s, e in reference.to_intervals(expected)]
            rig.assert_intervals(name, rows, within=1e-5)


def streams_read(catalog: Catalog) -> frozenset[str]:
    return frozenset[str]().union(*(streams_of(q.plan) for q in catalog.queries.values()))


@pytest.mark.spark
def test_all_queries_in_one_pipeline_match_the_oracle(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with Session(spark, checkpoint=tmp_path, autostart=False) as session:
        session.sql("CREATE SINK kept USING memory OPTIONS (changes 'intervals')")
        for script in CITIES:
            for parsed in parse_script(script.read_text()):
                if declared(parsed, session.catalog):
                    continue
                statement = bind(parsed, session.catalog)
                assert isinstance(statement, Create)
                if isinstance(statement.definition, QueryDef):
                    statement = Create(replace(statement.definition, sink="kept"))
                session.execute(statement)
        session.start()
        assert session.await_end(timeout=200)
        for name in session.catalog.queries:
            assert_answer(name, with_times(session.query(name).rows()))


def declared(parsed: Parsed, catalog: Catalog) -> bool:
    """Whether another script has declared the same stream or sink, with the same text."""
    known = [*catalog.streams.values(), *catalog.sinks.values()]
    return parsed.sql in {definition.sql for definition in known}


def with_times(table: pa.Table) -> list[Any]:
    """Return the rows of a memory sink as ``(values, start, end)`` with plain times."""
    plain = [
        (c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c).to_pylist()
        for c in table.columns
    ]
    stream = table.column_names[-1] == "_time"
    rows = list(zip(*plain, strict=True))
    if stream:
        return [(row[:-1], row[-1], INF) for row in rows]
    return [(row[:-2], row[-2], INF if row[-1] is None else row[-1]) for row in rows]
