"""CQL text to algebra: statements, every window form, names, joins, set operations, rendering."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.algebra import (
    Aggregate,
    Distinct,
    Filter,
    Join,
    Project,
    Scan,
    SetOp,
    SortKey,
    TableScan,
    TopK,
    ToStream,
    UnionAll,
    Window,
)
from penstock.catalog import Catalog, QueryDef, SinkDef, StreamDef, TableDef, ViewDef
from penstock.cql import (
    bind,
    bind_aggregate,
    bind_query,
    bind_scalar,
    bind_window,
    expr_text,
    parse_script,
    render_plan,
)
from penstock.cql.binding.statements import (
    Create,
    Describe,
    Drop,
    Explain,
    Pause,
    Resume,
    Select,
    Show,
)
from penstock.expr.nodes import AggregateCall, Call, Cast, Column, Literal
from penstock.masking import masked_script
from penstock.model import INF, TIMESTAMP
from penstock.windows import Bounds, WindowSpec

SECOND = 1_000_000
DAY = 86_400 * SECOND
JAN_2024 = 1_704_067_200 * SECOND

SCRIPT = """
CREATE SINK bad USING jsonl OPTIONS (path 'out/bad');
CREATE SINK tardy USING jsonl OPTIONS (path 'out/late');
CREATE SINK hot USING jsonl OPTIONS (path 'out/hot', changes 'log');
CREATE STREAM temperature (sensor INT, City STRING, celsius DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path 'data/temperature.csv', rate '5000') TIMESTAMP BY t;
CREATE STREAM a (k STRING, x DOUBLE, n INT, t BIGINT) USING replay TIMESTAMP BY t;
CREATE STREAM b (k STRING, y BIGINT, u BIGINT) USING replay TIMESTAMP BY u;
CREATE STREAM c (k STRING, z STRING, v BIGINT) USING replay TIMESTAMP BY v;
CREATE TABLE city (name STRING, lat DOUBLE) USING csv OPTIONS (path 'data/city.csv');
CREATE VIEW all_of_it AS SELECT * FROM temperature;
CREATE VIEW recent AS SELECT * FROM temperature [PARTITION BY city ROWS 20];
CREATE QUERY athens INTO hot AS
  ISTREAM (SELECT r.city, AVG(r.celsius) AS mean
           FROM recent r WHERE r.city = 'ATHENS' GROUP BY r.city);
"""


def load(script: str, catalog: Catalog | None = None) -> Catalog:
    catalog = catalog or Catalog()
    for parsed in parse_script(script):
        statement = bind(parsed, catalog)
        assert isinstance(statement, Create)
        catalog.add(statement.definition)
    return catalog


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load(SCRIPT)


def one(text: str, catalog: Catalog):
    (parsed,) = parse_script(text)
    return bind(parsed, catalog)


def plan(text: str, catalog: Catalog) -> str:
    return render_plan(bind_query(text, catalog))


def tree(*lines: str) -> str:
    return "\n".join(lines)


# Statements


def test_create_stream_with_every_clause():
    text = """
    CREATE STREAM Temperature (sensor INT, city STRING, celsius DOUBLE, t TIMESTAMP)
      USING replay OPTIONS (path 'data/temperature.csv', rate 5000, header TRUE, 'Max.Rows' = -1)
      TIMESTAMP BY t SLACK 5 SECONDS IDLE AFTER 1.5 MINUTES
      PRIORITY CASE WHEN celsius > 90 THEN 10 ELSE 0 END
      ON ERROR DEADLETTER bad            -- a comment
      LATE INTO /* another; one */ tardy
    """
    catalog = load("CREATE SINK bad USING jsonl; CREATE SINK tardy USING jsonl;")
    definition = one(text, catalog).definition
    assert isinstance(definition, StreamDef)
    assert definition.name == "Temperature"
    assert definition.schema.names == ("sensor", "city", "celsius", "t")
    assert definition.schema.types == (pa.int32(), pa.string(), pa.float64(), TIMESTAMP)
    assert definition.format == "replay"
    assert definition.options == {
        "path": "data/temperature.csv",
        "rate": "5000",
        "header": "true",
        "max.rows": "-1",
    }
    assert (definition.time, definition.timing.slack, definition.timing.idle_after) == (
        3,
        5 * SECOND,
        90.0,
    )
    assert (definition.deadletter, definition.late) == ("bad", "tardy")
    assert expr_text(definition.priority) == "CASE WHEN celsius > 90.0 THEN 10 ELSE 0 END"
    assert definition.sql == masked_script(text.strip())


def test_clauses_come_in_any_order_and_have_defaults():
    text = "CREATE STREAM s (t BIGINT) ON ERROR FAIL SLACK 3 TIMESTAMP BY T USING replay"
    definition = one(text, Catalog()).definition
    assert (definition.time, definition.timing.slack, definition.timing.idle_after) == (0, 3, None)
    assert (definition.priority, definition.deadletter, definition.late) == (None, None, None)
    assert definition.options == {}


@pytest.mark.parametrize(
    ("slack", "chronons"),
    [
        ("0", 0),
        ("7", 7),
        ("100 MILLISECONDS", 100_000),
        ("1 microsecond", 1),
        ("0.5 SECONDS", SECOND // 2),
        ("INTERVAL '5' SECONDS", 5 * SECOND),
        ("INTERVAL 5 SECONDS", 5 * SECOND),
        ("INTERVAL '5 SECONDS'", 5 * SECOND),
        ("2 HOURS", 7200 * SECOND),
        ("1 DAY", DAY),
        ("1 WEEK", 7 * DAY),
    ],
)
def test_durations(slack: str, chronons: int):
    text = f"CREATE STREAM s (t TIMESTAMP) USING replay TIMESTAMP BY t SLACK {slack}"
    assert one(text, Catalog()).definition.timing.slack == chronons


def test_create_table_with_validity():
    text = "CREATE TABLE d (k STRING, a BIGINT, b BIGINT) USING csv VALID FROM a TO b"
    definition = one(text, Catalog()).definition
    assert isinstance(definition, TableDef)
    assert (definition.valid_from, definition.valid_to) == (1, 2)
    open_ended = one(text.replace(" TO b", ""), Catalog()).definition
    assert (open_ended.valid_from, open_ended.valid_to) == (1, None)


def test_create_sink():
    text = "CREATE SINK hot USING jsonl OPTIONS (path 'out/hot', changes 'LOG')"
    definition = one(text, Catalog()).definition
    assert definition == SinkDef("hot", "jsonl", {"path": "out/hot", "changes": "log"}, text)


def test_formats_with_dots_keep_their_spelling():
    text = "CREATE SINK s USING org.example.MyFormat"
    assert one(text, Catalog()).definition.format == "org.example.MyFormat"


def test_create_view_and_query(catalog: Catalog):
    assert isinstance(catalog.views["recent"], ViewDef)
    query = catalog.queries["athens"]
    assert isinstance(query, QueryDef)
    assert query.sink == "hot"
    assert query.sql.startswith("CREATE QUERY athens")
    assert isinstance(query.plan, ToStream)
    assert one("CREATE QUERY q AS SELECT k FROM a", catalog).definition.sink is None


def test_if_not_exists(catalog: Catalog):
    statement = one("CREATE VIEW IF NOT EXISTS recent AS SELECT * FROM a", catalog)
    assert isinstance(statement, Create)
    assert statement.if_not_exists
    assert not one("CREATE VIEW another AS SELECT * FROM a", catalog).if_not_exists


def test_commands(catalog: Catalog):
    texts = "pause query ATHENS; RESUME QUERY athens;; SHOW QUERIES; SHOW functions; DESCRIBE City"
    assert [bind(p, catalog) for p in parse_script(texts)] == [
        Pause("athens"),
        Resume("athens"),
        Show("queries"),
        Show("functions"),
        Describe("city", "table"),
    ]
    assert one("DESCRIBE STREAM temperature", catalog) == Describe("temperature", "stream")


def test_drop(catalog: Catalog):
    assert one("DROP QUERY Athens", catalog) == Drop("query", "athens")
    assert one("DROP VIEW IF EXISTS recent", catalog) == Drop("view", "recent", True)
    assert one("DROP STREAM IF EXISTS nothing", catalog) == Drop("stream", "nothing", True)
    assert one("DROP SINK bad", catalog) == Drop("sink", "bad")


def test_explain_and_select(catalog: Catalog):
    athens = catalog.queries["athens"].plan
    assert one("EXPLAIN QUERY athens", catalog) == Explain("all", athens, "athens")
    assert one("EXPLAIN OPTIMIZED QUERY athens", catalog).level == "optimized"
    text = "EXPLAIN PHYSICAL SELECT k FROM a"
    assert one(text, catalog) == Explain("physical", bind_query("SELECT k FROM a", catalog))
    statement = one("SELECT * FROM recent", catalog)
    assert isinstance(statement, Select)
    assert statement.plan == catalog.views["recent"].plan


def test_spans_of_statements():
    first, second = parse_script("SHOW QUERIES ;\n -- x;y\n SHOW STREAMS;")
    assert (first.sql, second.sql) == ("SHOW QUERIES", "SHOW STREAMS")
    assert parse_script(" ; -- nothing\n ;") == []


# Windows

FORMS = [
    ("[ROWS 20]", WindowSpec(rows=20)),
    ("[PARTITION BY k ROWS 20]", WindowSpec(rows=20, partition_by=(0,))),
    ("[PARTITION BY n, K ROWS 20]", WindowSpec(rows=20, partition_by=(2, 0))),
    ("[PARTITION BY w.k ROWS 20]", WindowSpec(rows=20, partition_by=(0,))),
    ("[ROWS 10 SLIDE 5]", WindowSpec(rows=10, rows_slide=5)),
    ("[PARTITION BY k ROWS 9 SLIDE 3]", WindowSpec(rows=9, rows_slide=3, partition_by=(0,))),
    ("[RANGE 10]", WindowSpec(range=10)),
    ("[range 10 slide 4]", WindowSpec(range=10, slide=4)),
    ("[RANGE UNBOUNDED]", WindowSpec()),
    ("[ROWS UNBOUNDED]", WindowSpec()),
    ("[PARTITION BY k ROWS UNBOUNDED]", WindowSpec()),
    ("[RANGE UNBOUNDED SLIDE 4]", WindowSpec(range=INF, slide=4)),
    ("[TUMBLE 10]", WindowSpec(hop=10, slide=10, bounds=Bounds(pa.int64(), 10))),
    ("[hop 10 slide 4]", WindowSpec(hop=10, slide=4, bounds=Bounds(pa.int64(), 10))),
    (
        "[HOP 10 SLIDE 4 OFFSET 7 START -3]",
        WindowSpec(hop=10, slide=4, offset=3, origin=-3, bounds=Bounds(pa.int64(), 10)),
    ),
    ("[TUMBLE 10 OFFSET -20]", WindowSpec(hop=10, slide=10, bounds=Bounds(pa.int64(), 10))),
    ("[NOW]", WindowSpec(now=True)),
    ("[AFTER 5]", WindowSpec(after=5)),
    ("[BEFORE -5]", WindowSpec(before=-5)),
    ("[AFTER 5 AND BEFORE 9]", WindowSpec(after=5, before=9)),
    ("[BEFORE 9 AND AFTER 5]", WindowSpec(after=5, before=9)),
    ("[FIXED 60]", WindowSpec(fixed=60)),
    ("[SESSION 7]", WindowSpec(session=7)),
    ("[PARTITION BY k SESSION 7]", WindowSpec(session=7, partition_by=(0,))),
    ("[ROWS 3 RANGE 10]", WindowSpec(rows=3, range=10)),
    ("[RANGE 10 ROWS 3]", WindowSpec(rows=3, range=10)),
    ("[PARTITION BY k RANGE 10 ROWS 3]", WindowSpec(rows=3, range=10, partition_by=(0,))),
    ("[ROWS 4 SLIDE 2 RANGE 10]", WindowSpec(rows=4, rows_slide=2, range=10)),
    ("[ROWS 3 RANGE UNBOUNDED]", WindowSpec(rows=3)),
    ("[RANGE 10 SLIDE 4 START 3]", WindowSpec(range=10, slide=4, origin=3)),
    ("[ROWS 3 START 100]", WindowSpec(rows=3, origin=100)),
    ("[NOW START 0]", WindowSpec(now=True, origin=0)),
    ("[FIXED 60 START 7]", WindowSpec(fixed=60, origin=7)),
    ("[SESSION 7 START 7]", WindowSpec(session=7, origin=7)),
    ("[RANGE UNBOUNDED START 7]", WindowSpec(origin=7)),
    ("[START 7]", WindowSpec(origin=7)),
    ("[UNBOUNDED]", WindowSpec()),
    ("[UNBOUNDED PRECEDING]", WindowSpec()),
    ("[ROWS 5 PRECEDING]", WindowSpec(rows=5)),
    ("[RANGE 5 PRECEDING SLIDE 2]", WindowSpec(range=5, slide=2)),
    ("[ROWS 3 RANGE 10 SLIDE 4]", WindowSpec(rows=3, range=10, slide=4)),
    ("[ROWS 3 RANGE UNBOUNDED SLIDE 4]", WindowSpec(rows=3, range=INF, slide=4)),
    ("[FROM NOW - 20 TO NOW - 10]", WindowSpec(range=10, shift=10)),
    ("[FROM NOW - 20 TO NOW]", WindowSpec(range=20)),
    ("[FROM UNBOUNDED TO NOW - 5 START 7]", WindowSpec(shift=5, origin=7)),
    ("[RANGE 10 SLIDE 4 SHIFT 3 START 1]", WindowSpec(range=10, slide=4, shift=3, origin=1)),
    ("[SHIFT 3]", WindowSpec(shift=3)),
    ("[RANGE 3 SHIFT 0]", WindowSpec(range=3)),
    ("[SESSION 3 SHIFT 4]", WindowSpec(session=3, shift=4)),
    ("[AFTER 5 START 7]", WindowSpec(after=5, origin=7)),
]


NAMED_LIKE_WINDOWS = [
    "SELECT hop, session, window, descriptor, size FROM tumble WHERE hop > session",
    "SELECT tumble.hop FROM tumble tumble [HOP 5 SLIDE 2]",
    "SELECT tumble.hop FROM TUMBLE(TABLE tumble, DESCRIPTOR(t), 5) tumble",
    "SELECT window, COUNT(*) AS n FROM tumble GROUP BY window",
    "SELECT a.hop FROM tumble a [NOW] JOIN tumble hop [NOW] ON a.hop = hop.hop",
]


@pytest.mark.parametrize("query", NAMED_LIKE_WINDOWS)
def test_words_of_windows_are_names(query: str):
    catalog = Catalog()
    columns = "hop BIGINT, session BIGINT, window BIGINT, descriptor BIGINT, size BIGINT, t BIGINT"
    for parsed in parse_script(f"CREATE STREAM tumble ({columns}) USING memory TIMESTAMP BY t"):
        statement = bind(parsed, catalog)
        assert isinstance(statement, Create)
        catalog.add(statement.definition)
    assert bind_query(query, catalog).schema.names[0] in ("hop", "window")


SAME_WINDOWS = [
    ("TABLE(TUMBLE(TABLE {s}, DESCRIPTOR(t), INTERVAL '5' MINUTES))", "{s} [TUMBLE 5 MINUTES]"),
    ("tumble (table {s}, descriptor (T), interval 5 minutes)", "{s} [TUMBLE 5 MINUTES]"),
    (
        "TUMBLE(TABLE {s}, DESCRIPTOR(t), INTERVAL '1' DAY, INTERVAL '-6' HOURS)",
        "{s} [TUMBLE 1 DAY OFFSET 18 HOURS]",
    ),
    (
        "HOP(TABLE {s}, DESCRIPTOR(t), INTERVAL '1' MINUTE, INTERVAL '1' HOUR) AS {s}",
        "{s} [HOP 1 HOUR SLIDE 1 MINUTE]",
    ),
    (
        "HOP(SIZE => INTERVAL '1' HOUR, SLIDE => INTERVAL '1' MINUTE, OFFSET => INTERVAL '5' "
        "SECOND, TIMECOL => DESCRIPTOR(t), DATA => TABLE {s})",
        "{s} [HOP 1 HOUR SLIDE 1 MINUTE OFFSET 5 SECONDS]",
    ),
    ("TUMBLE(TABLE (SELECT * FROM {s}), DESCRIPTOR(t), INTERVAL '1' DAY)", "{s} [TUMBLE 1 DAY]"),
]


@pytest.mark.parametrize(("function", "window"), SAME_WINDOWS)
def test_functions_are_windows(function: str, window: str, catalog: Catalog):
    plans = [
        bind_query(f"SELECT * FROM {text.format(s='temperature')}", catalog)
        for text in (function, window)
    ]
    assert plans[0] == plans[1]


@pytest.mark.parametrize(("text", "spec"), FORMS, ids=[f[0] for f in FORMS])
def test_every_window_form(text: str, spec: WindowSpec, catalog: Catalog):
    scan = Scan("a", catalog.streams["a"].schema, 3)
    for query in (
        f"SELECT * FROM a {text}",
        f"SELECT * FROM a AS w {text}",
        f"SELECT * FROM a {text} w",
    ):
        assert bind_query(query, catalog) == Window(scan, spec)
    assert bind_window(text, scan) == spec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("[RANGE 10 SECONDS]", WindowSpec(range=10 * SECOND)),
        ("[RANGE 7]", WindowSpec(range=7)),
        (
            "[RANGE INTERVAL '1' HOUR SLIDE 1 MINUTE]",
            WindowSpec(range=3600 * SECOND, slide=60 * SECOND),
        ),
        (
            "[TUMBLE INTERVAL '1' HOUR OFFSET INTERVAL 5 MINUTES]",
            WindowSpec(
                hop=3600 * SECOND,
                slide=3600 * SECOND,
                offset=300 * SECOND,
                bounds=Bounds(TIMESTAMP, 3600 * SECOND),
            ),
        ),
        ("[AFTER '2024-01-01 00:00:00']", WindowSpec(after=JAN_2024)),
        ("[AFTER TIMESTAMP '2024-01-01 00:00:00.5']", WindowSpec(after=JAN_2024 + SECOND // 2)),
        ("[BEFORE '2024-01-02']", WindowSpec(before=JAN_2024 + DAY)),
        ("[FIXED 1 DAY START '2024-01-01']", WindowSpec(fixed=DAY, origin=JAN_2024)),
        ("[SESSION 30 SECONDS]", WindowSpec(session=30 * SECOND)),
    ],
)
def test_windows_in_timestamps(text: str, spec: WindowSpec, catalog: Catalog):
    found = bind_query(f"SELECT * FROM temperature {text}", catalog)
    assert isinstance(found, Window)
    assert found.spec == spec


@pytest.mark.parametrize(
    "source",
    ["all_of_it", "(SELECT * FROM temperature)", "(SELECT * FROM (SELECT t.* FROM temperature t))"],
)
def test_a_window_over_an_identity_is_a_window_over_the_stream(source: str, catalog: Catalog):
    found = bind_query(f"SELECT * FROM {source} [ROWS 5]", catalog)
    assert found == bind_query("SELECT * FROM temperature [ROWS 5]", catalog)


def test_windows_over_relations(catalog: Catalog):
    assert plan("SELECT * FROM recent [RANGE 1 SECOND]", catalog) == tree(
        "Window [RANGE 1 SECOND]",
        "  Window [PARTITION BY City ROWS 20]",
        "    Scan temperature (sensor, City, celsius, t) time t",
    )
    text = "SELECT m FROM (SELECT max(x) m, k FROM a [RANGE 5] GROUP BY k) [PARTITION BY k ROWS 2]"
    assert plan(text, catalog) == tree(
        "Project m",
        "  Window [PARTITION BY k ROWS 2]",
        "    Project max(x) AS m, k",
        "      Aggregate max(x) by k",
        "        Window [RANGE 5]",
        "          Scan a (k, x, n, t) time t",
    )
    assert plan("SELECT k FROM ISTREAM(SELECT k FROM a [ROWS 2]) s [ROWS 3]", catalog) == tree(
        "Window [ROWS 3]",
        "  ISTREAM",
        "    Project k",
        "      Window [ROWS 2]",
        "        Scan a (k, x, n, t) time t",
    )


def test_a_delivered_stream_is_a_relation_unless_it_says_otherwise(catalog: Catalog):
    assert bind_query("SELECT * FROM a", catalog) == Window(
        Scan("a", catalog.streams["a"].schema, 3), WindowSpec()
    )
    assert isinstance(bind_query("SELECT * FROM ISTREAM(SELECT k FROM a)", catalog), Window)
    assert isinstance(bind_query("(ISTREAM(SELECT k FROM a))", catalog), ToStream)


# Relation to stream


@pytest.mark.parametrize("kind", ["istream", "dstream", "rstream"])
def test_relation_to_stream(kind: str, catalog: Catalog):
    found = bind_query(f"{kind.upper()} (SELECT k FROM a [ROWS 5])", catalog)
    assert found == ToStream(kind, bind_query("SELECT k FROM a [ROWS 5]", catalog), ())


def test_rstream_notes_its_pulses(catalog: Catalog):
    text = """RSTREAM (SELECT a.k FROM a [RANGE 10 SLIDE 4 START 3], b [RANGE 5 SLIDE 2]
                        WHERE a.k = b.k)"""
    assert bind_query(text, catalog).pulses == ((2, 0), (4, 3))
    assert bind_query(text.replace("RSTREAM", "ISTREAM"), catalog).pulses == ()
    assert bind_query(f"SELECT * FROM {text} r", catalog).input.pulses == ((2, 0), (4, 3))


# Names, stars, expressions


def test_names_ignore_case_and_keep_their_spelling(catalog: Catalog):
    found = bind_query("select CITY, T.Sensor as Id from TEMPERATURE t", catalog)
    assert found.schema.names == ("City", "Id")
    assert found.exprs == (Column(1, pa.string(), "City"), Column(0, pa.int32(), "sensor"))


def test_output_names(catalog: Catalog):
    text = (
        "SELECT AVG(w.x), COUNT(*), Count(DISTINCT k), n + 1 AS m, sum(x)  /  2 FROM a w GROUP BY n"
    )
    assert bind_query(text, catalog).schema.names == (
        "avg(x)",
        "count(*)",
        "count(distinct k)",
        "m",
        "sum(x) / 2",
    )


def test_stars(catalog: Catalog):
    text = "SELECT b.*, a.x FROM a, b WHERE a.k = b.k"
    assert bind_query(text, catalog).schema.names == ("k", "y", "u", "x")
    text = "SELECT *, x + 1 AS more FROM a"
    assert bind_query(text, catalog).schema.names == ("k", "x", "n", "t", "more")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n + 1", "n + 1"),
        ("-n", "-n"),
        ("-2147483648", "-2147483648"),
        ("(n + 1) * 2", "(n + 1) * 2"),
        ("n - (n - 1)", "n - (n - 1)"),
        ("n - 1 - 1", "n - 1 - 1"),
        ("x / 2", "x / 2.0"),
        ("n DIV 2", "CAST(n AS BIGINT) DIV 2"),
        ("n % 2", "n % 2"),
        ("NOT n = 1 AND x > 2 OR k LIKE 'a%'", "NOT n = 1 AND x > 2.0 OR k LIKE 'a%'"),
        ("n = 1 AND (x > 2 OR k <> 'a')", "n = 1 AND (x > 2.0 OR k <> 'a')"),
        ("n BETWEEN 1 AND 3", "n >= 1 AND n <= 3"),
        ("n NOT BETWEEN 1 AND 3", "NOT (n >= 1 AND n <= 3)"),
        ("n IN (1, 2)", "n IN (1, 2)"),
        ("k NOT IN ('a')", "NOT k IN ('a')"),
        ("k IS NULL", "k IS NULL"),
        ("k IS NOT NULL", "k IS NOT NULL"),
        ("k IS NOT DISTINCT FROM 'a'", "k <=> 'a'"),
        ("k NOT LIKE 'it''s'", "NOT k LIKE 'it''s'"),
        ("k || 'x'", "concat(k, 'x')"),
        ("CASE WHEN n > 1 THEN 1 ELSE 2.5 END", "CASE WHEN n > 1 THEN 1.0 ELSE 2.5 END"),
        ("CASE n WHEN 1 THEN 'a' END", "CASE WHEN n = 1 THEN 'a' ELSE NULL END"),
        ("IF(n > 1, k, NULL)", "CASE WHEN n > 1 THEN k ELSE NULL END"),
        ("CAST(n AS BIGINT)", "CAST(n AS BIGINT)"),
        ("n::STRING", "CAST(n AS STRING)"),
        ("k::INT < n", "CAST(k AS INT) < n"),
        ("CAST(k AS DOUBLE PRECISION)", "CAST(k AS DOUBLE)"),
        ("CAST(n AS VARCHAR(10))", "CAST(n AS STRING)"),
        ("upper(k)", "upper(k)"),
        ("LEFT(k, 2)", "left(k, 2)"),
        ("coalesce(n, 0)", "coalesce(n, 0)"),
        ("TRUE", "TRUE"),
        ("DATE '2024-01-31'", "DATE '2024-01-31'"),
        ("TIMESTAMP '2024-01-31 12:00:00'", "TIMESTAMP '2024-01-31 12:00:00'"),
        ('"k"', "k"),
        ("`k`", "k"),
        ("1e3", "1000.0"),
        (".5", "0.5"),
        ("3000000000", "3000000000"),
    ],
)
def test_expressions(text: str, expected: str, catalog: Catalog):
    bound, _ = bind_scalar(text, catalog.streams["a"].schema)
    assert expr_text(bound) == expected


def test_times_and_intervals(catalog: Catalog):
    schema = catalog.streams["temperature"].schema
    later, name = bind_scalar("t + INTERVAL 5 SECONDS AS later", schema)
    assert (expr_text(later), name) == ("time_add(t, 5000000)", "later")
    assert expr_text(bind_scalar("INTERVAL '5' SECONDS + t", schema)[0]) == expr_text(later)
    earlier, _ = bind_scalar("t - INTERVAL '1 MINUTE'", schema)
    assert expr_text(earlier) == "time_add(t, -60000000)"
    assert earlier.type == TIMESTAMP
    condition, _ = bind_scalar("t > '2024-01-31'", schema)
    assert expr_text(condition) == "t > TIMESTAMP '2024-01-31 00:00:00'"
    assert expr_text(bind_scalar("EXTRACT(HOUR FROM t)", schema)[0]) == "hour(t)"


def test_aggregates_by_text(catalog: Catalog):
    schema = catalog.streams["a"].schema
    x = Column(1, pa.float64(), "x")
    assert bind_aggregate("AVG(x) AS mean", schema) == (
        AggregateCall("avg", x, pa.float64()),
        "mean",
    )
    assert bind_aggregate("count(*)", schema)[0] == AggregateCall("count", None, pa.int64())


# WHERE, GROUP BY, HAVING, DISTINCT, ORDER BY .. LIMIT


def test_group_by(catalog: Catalog):
    text = "SELECT k, AVG(x) AS mean FROM a [RANGE 5] WHERE n > 1 GROUP BY k HAVING COUNT(*) > 2"
    assert plan(text, catalog) == tree(
        "Project k, avg(x) AS mean",
        "  Filter count(*) > 2",
        "    Aggregate avg(x), count(*) by k",
        "      Filter n > 1",
        "        Window [RANGE 5]",
        "          Scan a (k, x, n, t) time t",
    )


@pytest.mark.parametrize("keys", ["upper(k)", "1", "g", "G", "UPPER(a.k)"])
def test_group_by_expression_position_alias(keys: str, catalog: Catalog):
    text = f"SELECT upper(k) AS g, count(*) AS n FROM a GROUP BY {keys}"
    found = bind_query(text, catalog)
    assert isinstance(found, Aggregate)
    assert found.names == ("g", "n")
    assert [expr_text(k) for k in found.keys] == ["upper(k)"]


def test_aggregates_inside_expressions_are_computed_once(catalog: Catalog):
    text = "SELECT n * 2 + max(x) - min(x) AS r, max(x) FROM a GROUP BY n * 2"
    assert plan(text, catalog) == tree(
        "Project CAST(n * 2 AS DOUBLE) + max(x) - min(x) AS r, max(x)",
        "  Aggregate max(x), min(x) by n * 2",
        "    Scan a (k, x, n, t) time t",
    )


def test_global_aggregate_and_keys_only(catalog: Catalog):
    assert plan("SELECT count(*) FROM a", catalog) == tree(
        "Aggregate count(*)", "  Scan a (k, x, n, t) time t"
    )
    found = bind_query("SELECT k FROM a GROUP BY k", catalog)
    assert isinstance(found, Aggregate)
    assert found.aggregates == ()


def test_filter_of_an_aggregate(catalog: Catalog):
    text = "SELECT count(*) FILTER (WHERE n > 1) AS c, sum(x) FILTER (WHERE k = 'a') AS s FROM a"
    assert plan(text, catalog) == tree(
        "Aggregate count(CASE WHEN n > 1 THEN 1 ELSE NULL END) AS c, "
        "sum(CASE WHEN k = 'a' THEN x ELSE NULL END) AS s",
        "  Scan a (k, x, n, t) time t",
    )


def test_having_and_order_by_know_aliases(catalog: Catalog):
    text = "SELECT k, max(x) AS m FROM a GROUP BY k HAVING m > 1 ORDER BY m DESC, k LIMIT 3"
    assert plan(text, catalog) == tree(
        "TopK 3 by m DESC, k",
        "  Filter m > 1.0",
        "    Aggregate max(x) AS m by k",
        "      Scan a (k, x, n, t) time t",
    )


def test_distinct(catalog: Catalog):
    found = bind_query("SELECT DISTINCT k FROM a", catalog)
    assert isinstance(found, Distinct)
    assert isinstance(found.input, Project)


def test_order_by_limit(catalog: Catalog):
    found = bind_query("SELECT k, x FROM a ORDER BY 2 DESC, k NULLS LAST LIMIT 5", catalog)
    assert isinstance(found, TopK)
    assert found.limit == 5
    assert found.order == (
        SortKey(Column(1, pa.float64(), "x"), True, False),
        SortKey(Column(0, pa.string(), "k"), False, False),
    )


def test_limit_alone_is_by_all_columns(catalog: Catalog):
    found = bind_query("SELECT k, x FROM a LIMIT 5", catalog)
    assert [expr_text(key.expr) for key in found.order] == ["k", "x"]


def test_order_by_a_column_that_is_not_selected(catalog: Catalog):
    assert plan("SELECT k FROM a ORDER BY x + n LIMIT 5", catalog) == tree(
        "Project k",
        "  TopK 5 by order 1",
        "    Project k, x + CAST(n AS DOUBLE) AS order 1",
        "      Scan a (k, x, n, t) time t",
    )
    text = "SELECT k FROM a GROUP BY k ORDER BY count(*) DESC LIMIT 1"
    assert plan(text, catalog) == tree(
        "Project k",
        "  TopK 1 by order 1 DESC",
        "    Aggregate count(*) AS order 1 by k",
        "      Scan a (k, x, n, t) time t",
    )


# Joins


def test_join_on(catalog: Catalog):
    text = "SELECT a.k, y FROM a [RANGE 5] JOIN b [ROWS 3] ON a.k = b.k AND a.x > b.y AND n > 1"
    assert plan(text, catalog) == tree(
        "Project k, y",
        "  Join on left k = right k where left x > CAST(right y AS DOUBLE)",
        "    Filter n > 1",
        "      Window [RANGE 5]",
        "        Scan a (k, x, n, t) time t",
        "    Window [ROWS 3]",
        "      Scan b (k, y, u) time u",
    )


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a.k, y FROM a JOIN b ON a.k = b.k",
        "SELECT a.k, y FROM a INNER JOIN b ON b.k = a.k",
        "SELECT a.k, y FROM a, b WHERE a.k = b.k",
        "SELECT a.k, y FROM a CROSS JOIN b WHERE b.k = a.k",
        "SELECT k, y FROM a JOIN b USING (k)",
    ],
)
def test_ways_to_write_a_join(text: str, catalog: Catalog):
    found = bind_query(text, catalog)
    assert isinstance(found, Project)
    join = found.input
    assert isinstance(join, Join)
    assert join.left_keys == (Column(0, pa.string(), "k"),)
    assert join.right_keys == (Column(0, pa.string(), "k"),)
    assert join.residual is None


def test_keys_are_widened_to_one_type(catalog: Catalog):
    found = bind_query("SELECT a.k FROM a, b WHERE a.n = b.y", catalog).input
    assert found.left_keys == (Cast(Column(2, pa.int32(), "n"), pa.int64()),)
    assert found.right_keys == (Column(1, pa.int64(), "y"),)


def test_join_without_equality(catalog: Catalog):
    found = bind_query("SELECT a.k FROM a, b WHERE a.t < b.u", catalog).input
    assert isinstance(found, Join)
    assert (found.left_keys, found.right_keys) == ((), ())
    assert isinstance(found.residual, Call)
    assert bind_query("SELECT a.k, y FROM a [NOW], b [ROWS 2]", catalog).input.residual is None


def test_using_shows_a_column_once(catalog: Catalog):
    text = "SELECT * FROM a JOIN b USING (k)"
    assert bind_query(text, catalog).schema.names == ("k", "x", "n", "t", "y", "u")
    text = "SELECT b.k, y FROM a JOIN b USING (k)"
    assert bind_query(text, catalog).schema.names == ("k", "y")


def test_items_with_an_equality_come_first(catalog: Catalog):
    text = "SELECT a.k, b.y, c.z FROM a, b, c WHERE a.k = c.k AND c.z = b.k AND a.t + b.u > c.v"
    assert plan(text, catalog) == tree(
        "Project k, y, z",
        "  Join on left z = right k where left t + right u > left v",
        "    Join on left k = right k",
        "      Scan a (k, x, n, t) time t",
        "      Scan c (k, z, v) time v",
        "    Scan b (k, y, u) time u",
    )


def test_star_keeps_the_order_of_the_text(catalog: Catalog):
    text = "SELECT * FROM a w, b, (SELECT k AS ck, z, v FROM c) WHERE w.k = ck AND z = b.k"
    inner = "SELECT w.*, b.k AS bk, y, u, ck, z, v"
    text = text.replace("SELECT *", inner, 1)
    expected = ("k", "x", "n", "t", "bk", "y", "u", "ck", "z", "v")
    assert bind_query(text, catalog).schema.names == expected


def test_join_with_a_table(catalog: Catalog):
    found = bind_query(
        "SELECT sensor FROM temperature, city WHERE name = city AND lat > 3", catalog
    )
    join = found.input
    assert isinstance(join.right, Filter)
    assert isinstance(join.right.input, TableScan)


def test_constant_conditions_stay_on_top(catalog: Catalog):
    assert plan("SELECT a.k FROM a JOIN b USING (k) WHERE 1 = 2", catalog) == tree(
        "Project k",
        "  Filter 1 = 2",
        "    Join on left k = right k",
        "      Scan a (k, x, n, t) time t",
        "      Scan b (k, y, u) time u",
    )


def test_self_join(catalog: Catalog):
    text = "SELECT p.k, q.x FROM a [ROWS 1] p, a [ROWS 2] q WHERE p.k = q.k"
    assert bind_query(text, catalog).exprs == (
        Column(0, pa.string(), "k"),
        Column(5, pa.float64(), "x"),
    )


# Sub-queries, set operations, WITH


def test_union(catalog: Catalog):
    text = "SELECT k, n FROM a UNION ALL SELECT k, y FROM b UNION ALL (SELECT k, v FROM c)"
    found = bind_query(text, catalog)
    assert isinstance(found, UnionAll)
    assert found.schema.names == ("k", "n")
    assert found.schema.types == (pa.string(), pa.int64())
    assert len(found.members) == 3
    assert isinstance(bind_query("SELECT k FROM a UNION SELECT k FROM b", catalog), Distinct)


def test_intersect_binds_tighter(catalog: Catalog):
    text = "SELECT k FROM a EXCEPT ALL SELECT k FROM b INTERSECT SELECT k FROM c"
    found = bind_query(text, catalog)
    assert isinstance(found, SetOp)
    assert (found.kind, found.all) == ("except", True)
    assert isinstance(found.right, SetOp)
    assert (found.right.kind, found.right.all) == ("intersect", False)
    grouped = bind_query(
        "(SELECT k FROM a EXCEPT ALL SELECT k FROM b) INTERSECT SELECT k FROM c", catalog
    )
    assert grouped.kind == "intersect"


def test_order_by_after_a_set_operation(catalog: Catalog):
    text = "SELECT k, n FROM a UNION ALL SELECT k, y FROM b ORDER BY n + 1 DESC, 1 LIMIT 2"
    found = bind_query(text, catalog)
    assert isinstance(found, TopK)
    assert expr_text(found.order[0].expr) == "n + 1"
    assert found.order[1].expr == Column(0, pa.string(), "k")


def test_with(catalog: Catalog):
    text = """WITH w AS (SELECT k, max(x) AS m FROM a GROUP BY k), v AS (SELECT m FROM w)
              SELECT * FROM v"""
    nested = "SELECT m FROM (SELECT k, max(x) AS m FROM a GROUP BY k) w"
    assert bind_query(text, catalog) == bind_query(nested, catalog)


def test_words_that_are_names(catalog: Catalog):
    names = load(
        'CREATE STREAM stream (start INT, timestamp TIMESTAMP, date DATE, "end" INT, rows INT)'
        " USING replay TIMESTAMP BY timestamp"
    )
    text = 'SELECT start, timestamp, date, "end" AS finish, rows range FROM stream [ROWS 5] window'
    assert bind_query(text, names).schema.names == ("start", "timestamp", "date", "finish", "range")


# Rendering


def test_rendering_with_patterns(catalog: Catalog):
    assert render_plan(catalog.queries["athens"].plan, patterns=True) == tree(
        "ISTREAM  -- monotonic",
        "  Aggregate avg(celsius) AS mean by City  -- strict",
        "    Filter City = 'ATHENS'  -- strict",
        "      Window [PARTITION BY City ROWS 20]  -- strict",
        "        Scan temperature (sensor, City, celsius, t) time t  -- monotonic",
    )


def test_rendering_of_every_node(catalog: Catalog):
    text = """
    RSTREAM (SELECT DISTINCT a.k FROM a [RANGE 10 SLIDE 4 START 3] JOIN city ON k = name
             EXCEPT ALL (SELECT k FROM b [BEFORE 9] UNION SELECT k FROM c ORDER BY k LIMIT 2))
    """
    assert plan(text, catalog) == tree(
        "RSTREAM at pulses every 4 from 3",
        "  Except all",
        "    Distinct",
        "      Project k",
        "        Join on left k = right name",
        "          Window [RANGE 10 SLIDE 4 START 3]",
        "            Scan a (k, x, n, t) time t",
        "          TableScan city (name, lat)",
        "    TopK 2 by k",
        "      Distinct",
        "        UnionAll",
        "          Project k",
        "            Window [BEFORE 9]",
        "              Scan b (k, y, u) time u",
        "          Project k",
        "            Scan c (k, z, v) time v",
    )


def test_literals_are_typed(catalog: Catalog):
    schema = catalog.streams["a"].schema
    assert bind_scalar("1", schema)[0] == Literal(1, pa.int32())
    assert bind_scalar("3000000000", schema)[0] == Literal(3_000_000_000, pa.int64())
    assert bind_scalar("1.5", schema)[0] == Literal(1.5, pa.float64())
    assert bind_scalar("'a'", schema)[0] == Literal("a", pa.string())
