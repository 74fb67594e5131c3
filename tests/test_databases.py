"""Views, logs and streams in tables of SQLite and PostgreSQL, both for real."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.catalog import SinkDef
from penstock.errors import ConfigError, DataError, QueryError, StateError
from penstock.expr import types
from penstock.masking import without_passwords
from penstock.model import Field, Schema
from penstock.reference import relation, snapshot_at
from penstock.runs import failpoints
from penstock.session import Session
from penstock.sinks import DatabaseSink, Result, check_sink, delivery_mode
from penstock.sinks.postgresql import PostgresqlDatabase, csv_of
from penstock.sinks.sqlite import SqliteDatabase, affinity
from tests import strategies as make
from tests.comparison import same_bag
from tests.databases import Place, shown, story, table_rows
from tests.deliveries import DeliveringEngine
from tests.postgres import PASSWORD, PostgresServer
from tests.test_changes import of_relations
from tests.test_oracle import EXAMPLES, ORACLE, feed_by_batch, truth

KINDS = ("sqlite", "postgresql")
PAIR = Schema((Field("city", pa.string()), Field("n", pa.int64())))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """The newest server that the test dependency carries."""
    server = PostgresServer(18)
    yield server
    server.remove()


@pytest.fixture(scope="module")
def places(server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    file = tmp_path_factory.mktemp("sqlite") / "answers.db"
    return {
        "sqlite": Place("sqlite", str(file)),
        "postgresql": Place("postgresql", server.url()),
    }


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, places: dict[str, Place]) -> Place:
    return places[request.param]


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def delta(
    batch: int, rows: list[tuple[Any, ...]], as_of: int, since: int | None, schema: Schema = PAIR
) -> Result:
    """A delta; the last value of a row is its sign."""
    kinds = [*schema.types, pa.int8()]
    arrays = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    table = pa.table(arrays, names=[*schema.names, "_sign"])
    return Result("q", batch, "delta", schema, False, table, as_of, since)


def stream(batch: int, rows: list[tuple[Any, ...]], schema: Schema = PAIR) -> Result:
    """Elements; the last value of a row is its time."""
    kinds = [*schema.types, pa.int64()]
    arrays = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    table = pa.table(arrays, names=[*schema.names, "_time"])
    return Result("q", batch, "stream", schema, False, table)


# The oracle


@pytest.mark.parametrize("kind", KINDS)
@settings(ORACLE, max_examples=EXAMPLES)
@given(of_relations(3), make.data(most=8), st.data(), st.sampled_from([1, 3]))
def test_the_table_is_the_snapshot_of_its_instant(places, kind, plan, data, source, shards):
    place = places[kind]
    table = place.new_table()
    engine = DeliveringEngine(plan, data.tables, mode="delta", shards=shards, slack=data.slack)
    sink = place.open(table, plan.schema, "delta")
    steps = relation(plan, truth(data))
    reader = place.connect()
    for _ in feed_by_batch(engine, data, source.draw):
        for result in engine.results:
            sink.publish(result)
            sink.publish(result)
            held = reader.execute(f'SELECT * FROM "{table}"').fetchall()
            expected: Counter = Counter()
            for row, copies in snapshot_at(steps, result.as_of).items():
                expected[shown(row)] += copies
            same_bag(Counter(map(shown, held)), expected, result.as_of)
            assert place.note(table) == (result.batch, result.as_of)
        engine.results.clear()
    reader.close()
    sink.close()


@pytest.mark.parametrize("mode", ["log", "intervals"])
def test_logs_and_intervals_are_added_once(place, mode):
    plan, data, _ = story()
    table = place.new_table()
    engine = DeliveringEngine(plan, mode=mode, shards=2)
    rows = [values for values, _ in data.streams["s"]]
    for first in range(0, len(rows), 20):
        engine.batch({"s": rows[first : first + 20]})
    engine.batch({}, final=True)
    for result in engine.results:
        for _ in range(2):
            sink = place.open(table, plan.schema, mode)
            sink.publish(result)
            sink.publish(result)
            sink.close()
    expected = Counter(row for result in engine.results for row in table_rows(result))
    assert place.rows(table) == expected
    assert len(expected) > 20


# Values


TYPES = (*types.TYPES, types.decimal_type(10, 2), types.decimal_type(38, 10))
EVERY_TYPE = Schema(tuple(Field(types.type_name(t).lower(), t) for t in TYPES))
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False, None],
    "tinyint": [-128, 127, None],
    "smallint": [-(2**15), 2**15 - 1, None],
    "int": [-(2**31), 2**31 - 1, None],
    "bigint": [-(2**63), 2**63 - 1, None],
    "float": [0.5, -math.inf, None],
    "double": [0.1, 1e-310, None],
    "string": ['a "b", \\N \\. \r\n\t\u2028ü', "", None],
    "binary": [b"\0\xff\\x'", b"", None],
    "decimal(10, 2)": [Decimal("-12345678.90"), Decimal("0.01"), None],
    "decimal(38, 10)": [
        Decimal("1" * 28 + ".0000000001"),
        Decimal("-1E-10"),
        None,
    ],
    "timestamp": [datetime(2024, 2, 29, 1, 2, 3, 4), datetime(1, 1, 1), None],
    "date": [date(9999, 12, 31), date(1, 1, 1), None],
}


def test_every_type_comes_back(place):
    table = place.new_table()
    arrays = [pa.array(VALUES[f.name], f.type) for f in EVERY_TYPE]
    sink = place.open(table, EVERY_TYPE, "delta")
    whole = pa.table([*arrays, pa.array([1, 1, 1], pa.int8())], names=[*EVERY_TYPE.names, "_sign"])
    sink.publish(Result("q", 0, "delta", EVERY_TYPE, False, whole, 1, None))
    held = place.run(f'SELECT * FROM "{table}"')
    (first, second, nulls) = sorted(held, key=lambda row: (row[0] is None, not row[0]))
    assert nulls == (None,) * len(EVERY_TYPE)
    found = dict(zip(EVERY_TYPE.names, zip(first, second, strict=True), strict=True))
    for name, values in VALUES.items():
        expected = values[:2]
        if name == "timestamp" and place.kind == "sqlite":
            expected = ["2024-02-29T01:02:03.000004", "0001-01-01T00:00:00"]
        elif name == "timestamp":
            assert all(v.utcoffset().total_seconds() == 0 for v in found[name])
            expected = [v.replace(tzinfo=found[name][0].tzinfo) for v in expected]
        elif name.startswith("decimal") and place.kind == "sqlite":
            digits = int(name[-2])
            expected = [f"{v:.{digits or 10}f}" for v in expected]
        elif name == "date" and place.kind == "sqlite":
            expected = ["9999-12-31", "0001-01-01"]
        assert list(found[name]) == expected, name
    gone = whole.set_column(len(EVERY_TYPE), "_sign", pa.array([-1, -1, -1], pa.int8()))
    sink.publish(Result("q", 1, "delta", EVERY_TYPE, False, gone, 2, 1))
    assert place.rows(table) == Counter()


def test_what_is_no_number(place):
    """NaN equals NaN, and SQLite has none."""
    schema = Schema((Field("x", pa.float64()),))
    sink = place.open(table := place.new_table(), schema, "delta")
    rows = [(math.nan, 1), (math.nan, 1), (None, 1), (math.inf, 1)]
    sink.publish(delta(0, rows, 1, None, schema))
    nan = None if place.kind == "sqlite" else shown((math.nan,))[0]
    assert place.rows(table) == Counter([(nan,), (nan,), (None,), (math.inf,)])
    sink.publish(delta(1, [(math.nan, -1), (math.inf, -1)], 2, 1, schema))
    assert place.rows(table) == Counter([(nan,), (None,)])


def test_names_of_every_kind(place):
    names = ('a "b"', "A", "a", "copies", "rowid", "select", "100%s {x} ?", "é")
    schema = Schema(tuple(Field(name, pa.int64()) for name in names))
    table = f'{place.new_table()} "%s"; {{table}} ?'
    quoted = '"' + table.replace('"', '""') + '"'
    sink = place.open(table if place.kind == "sqlite" else quoted, schema, "delta")
    rows = [(*range(8), 1), (*range(8), 1)]
    sink.publish(delta(0, rows, 1, None, schema))
    sink.publish(delta(1, [(*range(8), -1)], 2, 1, schema))
    reader = place.connect()
    cursor = reader.execute(f"SELECT * FROM {quoted}")
    found = [column[0] for column in cursor.description]
    assert found == ['a "b"', "A", "a_2", "copies", "rowid", "select", "100%s {x} ?", "é"]
    assert cursor.fetchall() == [tuple(range(8))]
    reader.close()


def test_text_that_postgresql_cannot_hold(places):
    sink = places["postgresql"].open(places["postgresql"].new_table(), PAIR, "stream")
    with pytest.raises(DataError, match=r"batch 3 of query 'q' must be written to .* 0x00"):
        sink.publish(stream(3, [("a\0b", 1, 1)]))
    sink.publish(stream(3, [("ab", 1, 1)]))


def test_one_null_column_is_a_row():
    assert csv_of(pa.table({"x": pa.array([None, ""], pa.string())})) == b'\n""\n'


# Bags


def test_copies_are_counted(place):
    sink = place.open(table := place.new_table(), PAIR, "delta")
    sink.publish(delta(0, [("a", 1, 1)] * 5 + [(None, None, 1)] * 3, 1, None))
    sink.publish(delta(1, [("a", 1, -1)] * 2 + [(None, None, -1)], 2, 1))
    assert place.rows(table) == Counter({("a", 1): 3, (None, None): 2})
    # rows of one batch that come and go, in whatever order
    sink.publish(
        delta(2, [("a", 1, -1), ("a", 1, 1), ("a", 1, 1), ("b", 1, 1), ("b", 1, -1)], 3, 2)
    )
    assert place.rows(table) == Counter({("a", 1): 4, (None, None): 2})
    sink.publish(delta(3, [], 9, 3))
    assert place.note(table) == (3, 9)


def test_a_query_that_begins_anew_begins_with_a_whole_view(place):
    sink = place.open(table := place.new_table(), PAIR, "delta")
    sink.publish(delta(0, [("a", 1, 1), ("b", 2, 1)], 1, None))
    sink.publish(delta(7, [("c", 3, 1)], 12, None))
    assert place.rows(table) == Counter([("c", 3)])


def test_rows_are_found_by_an_index(places, server):
    """Otherwise a batch would cost what the view holds."""
    for kind, place in places.items():
        sink = place.open(table := place.new_table(), PAIR, "delta")
        sink.publish(delta(0, [(f"city {n}", n, 1) for n in range(20_000)], 1, None))
        assert isinstance(sink, DatabaseSink)
        database = sink._database
        if isinstance(database, SqliteDatabase):
            told = place.run(f"EXPLAIN QUERY PLAN {database.removal().replace('?', '1')}")
            assert any("SEARCH" in step[-1] and "penstock_" in step[-1] for step in told), told
            assert not any("SCAN" in step[-1] for step in told), told
        else:
            assert isinstance(database, PostgresqlDatabase)
            before = scans(database, table)
            sink.publish(delta(1, [(f"city {n}", n, -1) for n in range(100)], 2, 1))
            after = scans(database, table)
            assert after[1] - before[1] == 100, "each row was looked up in the index"
            assert after[0] == before[0], "the table was not read through"
        assert kind in KINDS


def scans(database: PostgresqlDatabase, table: str) -> tuple[int, int]:
    """Return how often a table was read through, and how often its index was used."""
    database._open.execute("SELECT pg_stat_force_next_flush()")
    found = database._open.execute(
        "SELECT seq_scan, idx_scan FROM pg_stat_user_tables WHERE relname = %s", (table,)
    ).fetchone()
    assert found is not None
    return found


# Whose table


def test_answers_of_another_run_are_refused(place, tmp_path):
    table = place.new_table()
    first = place.open(table, PAIR, "delta", run="1")
    first.publish(delta(4, [("a", 1, 1)], 1, None))
    place.open(table, PAIR, "delta", run="1").publish(delta(4, [("a", 1, 1)], 1, None))
    with pytest.raises(ConfigError, match="hold answers of the same query, changes and checkpoint"):
        place.open(table, PAIR, "delta", run="2")
    with pytest.raises(ConfigError, match="hold answers of the same query, changes and checkpoint"):
        place.open(table, PAIR, "rows", run="1")
    with pytest.raises(ConfigError, match=r"must hold nothing else, but .* query 'q' too"):
        place.open(table, PAIR, "delta", query="other", run="1")
    assert place.rows(table) == Counter([("a", 1)])
    second = place.open(table, PAIR, "delta", run="2", overwrite="true")
    assert place.rows(table) == Counter([("a", 1)])  # until there is something in their place
    second.publish(delta(0, [("b", 1, 1)], 1, None))
    with pytest.raises(StateError, match="another run has taken it over"):
        first.publish(delta(5, [("c", 1, 1)], 2, 1))
    assert place.rows(table) == Counter([("b", 1)])


def test_rows_of_others_are_not_touched(place):
    table = place.new_table()
    place.run(f'CREATE TABLE "{table}" (city TEXT, n BIGINT, _time BIGINT)')
    place.run(f"INSERT INTO \"{table}\" VALUES ('precious', 0, 0)")
    with pytest.raises(ConfigError, match="must be new or empty"):
        place.open(table, PAIR, "delta")
    place.open(table, PAIR, "stream").publish(stream(0, [("a", 1, 2)]))
    assert place.rows(table) == Counter([("precious", 0, 0), ("a", 1, 2)])
    two = place.open(table, PAIR, "stream", query="two")
    two.publish(stream(0, [("b", 1, 2)]))
    assert sum(place.rows(table).values()) == 3
    with pytest.raises(ConfigError, match="must hold nothing else"):
        place.open(table, PAIR, "delta", overwrite="true")


def test_a_table_that_others_changed_is_not_patched(place):
    table = place.new_table()
    sink = place.open(table, PAIR, "delta")
    sink.publish(delta(0, [("a", 1, 1), ("b", 2, 1)], 10, None))
    place.run(f"DELETE FROM \"{table}\" WHERE city = 'a'")
    with pytest.raises(StateError, match="must hold the rows that leave the view in batch 1"):
        sink.publish(delta(1, [("b", 2, -1), ("a", 1, -1), ("c", 3, 1)], 11, 10))
    assert place.rows(table) == Counter([("b", 2)])
    with pytest.raises(StateError, match=r"must show the instant 12, .* but it shows 10"):
        sink.publish(delta(1, [("c", 3, 1)], 13, 12))
    assert place.note(table) == (0, 10)


def test_a_dropped_table_is_not_filled_with_half_a_view(place, tmp_path):
    table = place.new_table()
    sink = place.open(table, PAIR, "delta", run="1")
    sink.publish(delta(0, [("a", 1, 1)], 10, None))
    sink.close()
    place.run(f'DROP TABLE "{table}"')
    sink = place.open(table, PAIR, "delta", run="1")
    with pytest.raises(StateError, match=r"must show the instant 10, .* but it shows None"):
        sink.publish(delta(1, [("b", 1, 1)], 11, 10))
    assert place.rows(table) == Counter()
    sink.close()
    place.run(f'DROP TABLE "{table}"')
    sink = place.open(table, PAIR, "delta", query="other", run="2")
    sink.publish(delta(0, [("c", 1, 1)], 5, None))
    assert place.rows(table) == Counter([("c", 1)])


def test_a_table_of_the_user_must_fit(place):
    table = place.new_table()
    key = "INTEGER PRIMARY KEY" if place.kind == "sqlite" else "SERIAL PRIMARY KEY"
    place.run(
        f'CREATE TABLE "{table}" (id {key}, "City" VARCHAR(9), n BIGINT NOT NULL, '
        f"made TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL)"
    )
    sink = place.open(table, PAIR, "delta")
    sink.publish(delta(0, [("a", 1, 1), ("a", 1, 1), ("b", 1, 1)], 1, None))
    sink.publish(delta(1, [("a", 1, -1)], 2, 1))
    assert sorted(place.run(f'SELECT "City", n FROM "{table}"')) == [("a", 1), ("b", 1)]
    with pytest.raises(DataError, match="batch 2 of query 'q'"):
        sink.publish(delta(2, [("c", None, 1)], 3, 2))
    sink.publish(delta(2, [("c", 5, 1)], 3, 2))
    for columns, message in (
        ("city TEXT", r"must have the column 'n' of query 'q', but its columns are city"),
        ("city TEXT, n REAL", r"the column 'n' of .* must hold every BIGINT, got"),
        ("city TEXT, n BIGINT, x INT NOT NULL", "take nulls or have a default, but 'x' does not"),
    ):
        other = place.new_table()
        place.run(f'CREATE TABLE "{other}" ({columns})')
        with pytest.raises(ConfigError, match=message):
            place.open(other, PAIR, "delta")


def test_views_and_strange_tables_are_refused(places):
    postgresql, sqlite = places["postgresql"], places["sqlite"]
    postgresql.run("CREATE VIEW seen AS SELECT 'a' AS city, 1::bigint AS n")
    with pytest.raises(ConfigError, match="must be a plain table"):
        postgresql.open("seen", PAIR, "delta")
    sqlite.run("CREATE TABLE bare (city TEXT PRIMARY KEY, n INTEGER) WITHOUT ROWID")
    with pytest.raises(ConfigError, match="no such column: rowid"):
        sqlite.open("bare", PAIR, "delta")
    long = Schema((Field("x" * 64, pa.int64()),))
    with pytest.raises(ConfigError, match="at most 63 bytes"):
        postgresql.open(postgresql.new_table(), long, "delta")


def test_tables_in_schemas(places):
    place = places["postgresql"]
    place.run('CREATE SCHEMA "other.one"')
    sink = place.open('"other.one".hot', PAIR, "stream")
    sink.publish(stream(0, [("a", 1, 2)]))
    assert place.run('SELECT * FROM "other.one".hot') == [("a", 1, 2)]
    assert place.run('SELECT batch FROM "other.one".penstock_batches') == [(0,)]
    with pytest.raises(ConfigError, match='schema "nowhere" does not exist'):
        place.open("nowhere.hot", PAIR, "stream")


def test_late_rows(place):
    sink = place.open(table := place.new_table(), PAIR, "rows", query="s-late")
    rows = pa.table({"city": ["a", None], "n": [1, 2]})
    for _ in range(2):
        sink.publish(Result("s-late", 3, "rows", PAIR, False, rows))
    assert place.rows(table) == Counter([("a", 1), (None, 2)])


# Readers


def test_a_reader_always_sees_a_whole_view(place):
    """A view of pairs: a state in which one of two is missing was never true."""
    table = place.new_table()
    sink = place.open(table, PAIR, "delta")
    states: list[Counter] = [Counter()]
    results = []
    for batch in range(40):
        rows = [(side, batch * 3 + i, 1) for i in range(3) for side in ("left", "right")]
        rows += [(city, n, -1) for city, n in states[-1]]
        results.append(delta(batch, rows, batch, batch - 1 if batch else None))
        states.append(Counter((city, n) for city, n, sign in rows if sign > 0))
    seen: list[Counter] = []
    begun, done = threading.Event(), threading.Event()

    def read() -> None:
        reader = place.connect()
        while not done.is_set():
            seen.append(Counter(reader.execute(f'SELECT * FROM "{table}"').fetchall()))
            begun.set()
        reader.close()

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(30)
    for result in results:
        sink.publish(result)
    done.set()
    thread.join()
    assert all(state in states for state in seen)
    order = [states.index(state) for state in seen]
    assert order == sorted(order)
    assert len(set(order)) > 2, "the reader saw several states"


# Lost connections


def test_a_lost_connection_is_opened_again(places):
    place = places["postgresql"]
    sink = place.open(table := place.new_table(), PAIR, "delta")
    sink.publish(delta(0, [("a", 1, 1)], 1, None))
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name='penstock'"
    assert place.run(cut)
    sink.publish(delta(1, [("a", 1, -1), ("b", 1, 1)], 2, 1))
    assert place.rows(table) == Counter([("b", 1)])


def test_nobody_answers(server, places, monkeypatch):
    place = places["postgresql"]
    monkeypatch.setattr(DatabaseSink, "pauses", (0.0,))
    sink = place.open(table := place.new_table(), PAIR, "delta")
    sink.publish(delta(0, [("a", 1, 1)], 1, None))
    server.stop()
    try:
        with pytest.raises(DataError, match="batch 1 of query 'q' must be written") as told:
            sink.publish(delta(1, [("b", 1, 1)], 2, 1))
        with pytest.raises(ConfigError, match="must be able to use the table") as refused:
            place.open("other", PAIR, "delta")
        for text in (str(told.value), str(refused.value)):
            assert PASSWORD not in text
            assert "sesame" not in text
    finally:
        server.start()
    sink.publish(delta(1, [("b", 1, 1)], 2, 1))
    assert place.rows(table) == Counter([("a", 1), ("b", 1)])


def test_passwords_come_from_the_environment(server, monkeypatch):
    bare = Place("postgresql", server.url(password=None))
    monkeypatch.setenv("PGPASSFILE", "/nowhere")
    with pytest.raises(ConfigError, match="no password supplied"):
        bare.open("by_environment", PAIR, "stream")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    bare.open("by_environment", PAIR, "stream").publish(stream(0, [("a", 1, 1)]))
    monkeypatch.setenv("PGPASSWORD", "wrong")
    with pytest.raises(ConfigError, match="password authentication failed"):
        bare.open("by_environment", PAIR, "stream")


def test_an_older_server(tmp_path):
    server = PostgresServer(16)
    try:
        place = Place("postgresql", server.url())
        sink = place.open("hot", PAIR, "delta")
        sink.publish(delta(0, [("a", 1, 1)] * 3 + [(None, 2, 1)], 1, None))
        sink.publish(delta(1, [("a", 1, -1), (None, 2, -1), ("b", 1, 1)], 2, 1))
        assert place.rows("hot") == Counter({("a", 1): 2, ("b", 1): 1})
        sink.close()
    finally:
        server.remove()


def test_a_locked_file_is_said_so(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.sinks.sqlite._PATIENCE", 0.01)
    place = Place("sqlite", str(tmp_path / "x" / "answers.db"))
    sink = place.open("hot", PAIR, "delta")
    other = place.connect()
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DataError, match="database is locked"):
        sink.publish(delta(0, [("a", 1, 1)], 1, None))
    other.execute("ROLLBACK")
    sink.publish(delta(0, [("a", 1, 1)], 1, None))
    assert place.rows("hot") == Counter([("a", 1)])
    assert place.run("PRAGMA journal_mode") == [("wal",)]
    (tmp_path / "no.db").write_text("this is not a database, it is a text of some length")
    with pytest.raises(ConfigError, match="file is not a database"):
        Place("sqlite", str(tmp_path / "no.db")).open("hot", PAIR, "delta")


# Failures in the middle


@pytest.mark.parametrize("point", ["sink-transaction", "sink-committed"])
def test_a_batch_that_fails_is_written_once(place, point):
    sink = place.open(table := place.new_table(), PAIR, "delta")
    sink.publish(delta(0, [("a", 1, 1)], 1, None))
    failpoints.arm(f"{point}=raise")
    with pytest.raises(StateError, match=point):
        sink.publish(delta(1, [("a", 1, -1), ("b", 1, 1)], 2, 1))
    kept = Counter([("a", 1)]) if point == "sink-transaction" else Counter([("b", 1)])
    assert place.rows(table) == kept
    sink.publish(delta(1, [("a", 1, -1), ("b", 1, 1)], 2, 1))
    assert place.rows(table) == Counter([("b", 1)])


def test_a_killed_process_goes_on_exactly(place, tmp_path):
    """Killed before, inside and after transactions, for a view and a log."""
    kills = (
        "sink-before=kill@2",
        "sink-transaction=kill@1",
        "sink-committed=kill@2",
        "sink-after=kill@2",
        "sink-transaction=kill@2",
        "sink-committed=kill@1",
    )
    tables = {"delta": place.new_table(), "log": place.new_table()}
    order = {
        "folder": str(tmp_path),
        "kind": place.kind,
        "address": place.address,
        "tables": tables,
        "fail": [*kills, ""],
    }
    (tmp_path / "order.json").write_text(json.dumps(order))
    told = subprocess.run(
        [sys.executable, "-m", "tests.databases", str(tmp_path / "order.json")],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        cwd=Path(__file__).parent.parent,
        check=True,
        stdout=subprocess.PIPE,
    ).stdout.split()
    assert list(map(int, told)) == [*[-signal.SIGKILL] * len(kills), 0]
    plan, data, results = story()
    batch, as_of = place.note(tables["delta"])
    assert batch == results["delta"][-1].batch
    assert as_of == max(t for _, t in data.streams["s"])
    same_bag(place.rows(tables["delta"]), snapshot_at(relation(plan, truth(data)), as_of), as_of)
    assert place.rows(tables["log"]) == Counter(
        row for result in results["log"] for row in table_rows(result)
    )


# Options


def test_options_of_databases_are_checked(tmp_path):
    url = "postgresql://me:very:secret/@example.com/db"
    for format, options, message in [
        ("sqlite", {"path": "x.db"}, "must have a path and a table"),
        ("sqlite", {"table": "hot"}, "must have a path and a table"),
        ("sqlite", {"path": ":memory:", "table": "hot"}, "must be a local file"),
        ("sqlite", {"path": "s3://x/y", "table": "hot"}, "must be a local file"),
        ("sqlite", {"path": "x.db", "table": "penstock_batches"}, "keeps for itself"),
        ("sqlite", {"path": "x.db", "tabel": "hot"}, "did you mean 'table'"),
        ("postgresql", {"url": url}, "must have a url and a table"),
        ("postgresql", {"url": "mysql://x/y", "table": "hot"}, "must look like postgresql://"),
        ("postgresql", {"url": url, "table": "a.b.c"}, "must be a name or schema.name"),
        ("postgresql", {"url": url, "table": "x" * 64}, "at most 63 bytes"),
        ("postgresql", {"url": url, "table": "penstock_batches"}, "which Penstock keeps"),
    ]:
        with pytest.raises(ConfigError, match=message) as told:
            check_sink(SinkDef("out", format, options))
        assert "secret" not in str(told.value)
    view = {"path": "x.db", "table": "hot", "changes": "view"}
    assert delivery_mode(SinkDef("out", "sqlite", view)) == "delta"
    assert delivery_mode(SinkDef("out", "jsonl", view)) == "view"
    assert affinity("DECIMAL(10)") == "NUMERIC"


def test_without_psycopg_only_the_sink_is_missing():
    """The package is optional: everything else works, and the sink says what to install."""
    program = """
import sys
sys.modules["psycopg"] = None
from penstock.catalog import SinkDef
from penstock.sinks import check_sink
check_sink(SinkDef("a", "sqlite", {"path": "x.db", "table": "hot"}))
check_sink(SinkDef("b", "postgresql", {"url": "postgresql://h/d", "table": "hot"}))
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'penstock[postgresql]'" in told.stderr


def test_passwords_are_not_shown():
    assert without_passwords("postgresql://u:p@ss:w/@h:1/d") == "postgresql://u:***@h:1/d"
    assert without_passwords("postgresql://u@h:1/d") == "postgresql://u@h:1/d"
    assert without_passwords("jdbc:x://h/d?password=abc&a=b") == "jdbc:x://h/d?password=***&a=***"
    with Session(autostart=False) as session:
        session.sql(
            "CREATE SINK hot USING postgresql OPTIONS "
            "(url 'postgresql://me:sesame@h/d', table 'hot', changes 'view')"
        )
        assert "sesame" not in str(session.sql("DESCRIBE SINK hot"))
        with pytest.raises(QueryError) as told:
            session.sql(
                "CREATE SINK cold USING postgresql OPTIONS "
                "(url 'postgresql://me:sesame@h/d', changes 'vieww')"
            )
        assert "sesame" not in str(told.value)
        assert "vieww" in str(told.value)


# On Spark


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_tables_are_filled_by_a_run(spark, places, tmp_path):
    """A view and a log, late rows, a pause, a restart, and a second run."""
    sqlite, postgresql = places["sqlite"], places["postgresql"]
    names = {name: postgresql.new_table() for name in ("view", "log", "late")}
    script = f"""
        CREATE SINK late USING postgresql
          OPTIONS (url '{postgresql.address}', table '{names["late"]}');
        CREATE STREAM s (k STRING, x BIGINT, t BIGINT) USING memory TIMESTAMP BY t LATE INTO late;
        CREATE SINK seen USING postgresql
          OPTIONS (url '{postgresql.address}', table '{names["view"]}', changes 'view');
        CREATE SINK told USING sqlite
          OPTIONS (path '{sqlite.address}', table '{names["log"]}', changes 'log');
        CREATE QUERY seen INTO seen AS SELECT k, SUM(x) AS total FROM s [RANGE 10] GROUP BY k;
        CREATE QUERY told INTO told AS SELECT k, SUM(x) AS total FROM s [RANGE 10] GROUP BY k;
    """

    def session(checkpoint: str) -> Session:
        return Session(spark, checkpoint=tmp_path / checkpoint, settings={"shards": 2})

    def step(running: Session, *rows: tuple[str, int, int]) -> Counter:
        running.push("s", list(rows))
        running.await_idle()
        return postgresql.rows(names["view"])

    with session("c") as running:
        running.sql(script)
        assert step(running, ("a", 1, 1), ("b", 2, 2), ("a", 3, 4)) == Counter([("a", 1), ("b", 2)])
        assert postgresql.note(names["view"])[1] == 3
        assert step(running, ("c", 1, 13), ("c", 1, 3)) == Counter([("a", 3)])
        assert postgresql.rows(names["late"]) == Counter([("c", 1, 3)])
        assert "sesame" not in running.query("seen").explain()
        running.sql("PAUSE QUERY seen")
        assert step(running, ("d", 1, 20)) == Counter([("a", 3)])
        running.sql("RESUME QUERY seen")
        assert step(running, ("e", 7, 21), ("e", 7, 22)) == Counter([("e", 7)])
    with session("c") as running:
        running.sql(script)
        running.await_idle()
        assert step(running, ("e", 1, 25)) == Counter([("e", 14)])
        running.finish("s")
        running.await_idle()
        assert postgresql.rows(names["view"]) == Counter([("e", 15)])
        assert postgresql.note(names["view"])[1] == 25
    counts: Counter = Counter()
    for *values, _, sign in sqlite.run(f'SELECT * FROM "{names["log"]}" ORDER BY _time, _sign'):
        counts[tuple(values)] += sign
        assert counts[tuple(values)] >= 0
    assert +counts == Counter()
    for name in os.listdir(tmp_path / "c" / "manifest"):
        assert "sesame" not in (tmp_path / "c" / "manifest" / name).read_text()
    with session("d") as other, pytest.raises(ConfigError, match="must be new or empty"):
        other.sql(script)
