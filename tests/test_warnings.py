"""All mistakes of a script at once, doubts about what can be run, and suggestions that convince."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.cli.shell import Shell
from penstock.cql import bind_window
from penstock.errors import QueryError, QueryWarning, ScriptError, closest, suggest
from penstock.expr.functions import resolve_call, unknown_function
from penstock.session import Session
from penstock.session.scripts import bound_script

STREAM = "CREATE STREAM s (k STRING, n INT, t TIMESTAMP) USING memory TIMESTAMP BY t;\n"
WRONG = """\
CREATE STREAM r (k STRING, t TIMESTAMP) USING memory TIMESTAMP BY tt;
CREATE VIEW v AS SELECT k FROM r;
CREATE QUERY q AS SELECT kk FROM s;
CREATE QUERY p AS SELECT k FROM v;
SELECT k FROM s EMIT CHANGES;
"""


@pytest.fixture
def session():
    with Session(autostart=False) as made:
        made.sql(STREAM)
        yield made


# ---- all mistakes


def test_a_script_tells_all_its_mistakes_and_runs_nothing(session: Session) -> None:
    with pytest.raises(ScriptError, match="stream r has no column 'tt'") as caught:
        session.sql("CREATE VIEW fine AS SELECT k FROM s;\n" + WRONG)
    error = caught.value
    assert [e.message.split(";")[0].split(":")[0] for e in error.errors] == [
        "stream r has no column 'tt'",
        "there is no column 'kk'",
        "leave EMIT CHANGES out",
    ]
    assert error.unread == 2
    shown = str(error)
    assert shown.count("^") > 3
    assert shown.count("   2 | ") == 1
    assert "3 mistakes; 2 statements read what has a mistake, and were not looked at" in shown
    assert not session.catalog.views
    assert not session.catalog.queries


@pytest.mark.parametrize(
    "broken",
    [
        "CREATE STREAM IF NOT EXISTS v (k STRING, t TIMESTAMP) USING memory TIMESTAMP BY t WITH ()",
        "CREATE TEMPORARY VIEW v AS SELECT k FROM s",
        "CREATE OR REPLACE TABLE v (k STRING) WITH (path = 'x')",
        'CREATE STREAMING TABLE "v" AS SELECT k FROM s',
        "CREATE MATERIALIZED VIEW v AS SELECT k FORM s",
    ],
)
def test_what_reads_something_broken_is_not_told(session: Session, broken: str) -> None:
    with pytest.raises(QueryError) as caught:
        session.sql(
            f"{broken}; CREATE QUERY q AS SELECT k FROM v; CREATE QUERY p AS SELECT 1 FROM v"
        )
    assert not isinstance(caught.value, ScriptError)
    assert "there is no stream" not in str(caught.value)


def test_one_mistake_is_raised_as_it_is(session: Session) -> None:
    with pytest.raises(QueryError) as caught:
        session.sql("SELECT kk FROM s; SELECT k FROM s;")
    assert type(caught.value) is QueryError
    assert not session.catalog.queries


def test_statements_see_what_those_before_them_declare_and_drop(session: Session) -> None:
    session.sql(
        "CREATE VIEW v AS SELECT k FROM s; CREATE QUERY q AS SELECT k FROM v; DROP QUERY q;"
        "DROP VIEW v; CREATE VIEW v AS SELECT n FROM s; CREATE VIEW IF NOT EXISTS v AS SELECT k"
        " FROM s; SELECT n FROM v; DROP QUERY select_1; CREATE MATERIALIZED VIEW m AS SELECT n FROM"
        " v; DROP MATERIALIZED VIEW m"
    )
    assert session.catalog.views["v"].plan.schema.names == ("n",)
    assert not session.catalog.queries
    with pytest.raises(QueryError, match="there is no query 'q'"):
        session.sql("CREATE QUERY q AS SELECT n FROM v; DROP QUERY q; PAUSE QUERY q")


def test_a_catalog_is_not_changed_by_looking(session: Session) -> None:
    before = session.catalog.copy()
    planned = bound_script("CREATE VIEW v AS SELECT k FROM s; DROP STREAM s", session.catalog)
    assert len(planned) == 2
    assert session.catalog == before


def test_questions_of_the_shell_are_looked_at_too(session: Session) -> None:
    session.sql("CREATE MATERIALIZED VIEW m AS SELECT k FROM s [RANGE 5 SECONDS]")
    with pytest.raises(ScriptError) as caught:
        session.sql("SELECT kk FROM m; SELECT k FROM mm; SELECT k FROM m", one_time=True)
    assert len(caught.value.errors) == 2


@pytest.mark.parametrize("command", ["run", "explain", "check"])
def test_commands_tell_all_mistakes(tmp_path: Path, command: str) -> None:
    script = tmp_path / "script.sql"
    script.write_text(STREAM + WRONG)
    result = CliRunner().invoke(app, [command, str(script)])
    assert result.exit_code == 1
    told = [line for line in result.stderr.splitlines() if line.startswith("query error:")]
    assert len(told) == 3
    assert "2 statements read what has a mistake, and were not looked at" in result.stderr
    assert "Spark" not in result.stderr


# ---- warnings


def test_doubts_are_warnings_of_python(session: Session) -> None:
    with pytest.warns(QueryWarning, match="keeps its group") as caught:
        session.sql("CREATE QUERY q AS SELECT k, COUNT(*) AS c FROM s GROUP BY k")
    assert Path(caught[0].filename) == Path(__file__)
    (doubt,) = session.warnings
    assert doubt.about == "q"
    assert "^" in str(doubt)


def test_doubts_are_told_to_whoever_asks(session: Session) -> None:
    heard: list[QueryWarning] = []
    session.on_warning.append(heard.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.sql("CREATE QUERY q AS SELECT k FROM s LIMIT 5; SELECT n FROM s LIMIT 3")
    assert [w.about for w in heard] == ["q", ""]
    assert session.warnings == heard


def test_explain_shows_doubts(session: Session) -> None:
    session.on_warning.append(lambda _: None)
    handle = session.sql("CREATE QUERY q AS SELECT k FROM s [RANGE 5]")
    line = "warning: 5 without a unit is 5 microseconds"
    assert line in handle.explain()
    assert line in session.sql("EXPLAIN QUERY q")
    assert line in session.sql("EXPLAIN SELECT k FROM s [RANGE 5]")
    assert "warning" not in session.sql("EXPLAIN SELECT k FROM s [RANGE 5 SECONDS]")
    session.sql("DROP QUERY q; CREATE QUERY q AS SELECT k FROM s [RANGE 5 SECONDS]")
    assert "warning" not in session.sql("EXPLAIN QUERY q")
    assert not session.warnings


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, COUNT(*) AS c FROM s [RANGE UNBOUNDED] GROUP BY k",
        "SELECT k, COUNT(*) AS c FROM s [ROWS 5] GROUP BY k",
        "SELECT k, COUNT(*) AS c FROM s [AFTER '2024-01-01'] GROUP BY k",
        "SELECT COUNT(*) AS c FROM s",
        "SELECT c, COUNT(*) AS d FROM (SELECT k, COUNT(*) AS c FROM s [NOW] GROUP BY k) GROUP BY c",
        "SELECT a.k, COUNT(*) AS c FROM s [NOW] a JOIN s b ON a.k = b.k GROUP BY a.k",
        "SELECT k, COUNT(*) AS c FROM closing GROUP BY k",
        "SELECT n / 10.0 AS d, COUNT(*) AS c FROM s [ROWS 5] GROUP BY n / 10.0",
        "SELECT n / 10 AS d FROM s WHERE n / 10 = 2.5",
        "SELECT k FROM s [RANGE 5 MICROSECONDS]",
        "SELECT k FROM s WHERE k IS NULL AND k <=> NULL",
    ],
)
def test_what_is_meant_gives_no_doubt(session: Session, query: str) -> None:
    session.sql(
        "CREATE STREAM closing (k STRING, t TIMESTAMP) USING memory TIMESTAMP BY t SLACK 0 "
        "PUNCTUATION WHEN k = 'end' ON (k)"
    )
    session.sql(query)
    assert not session.warnings


def test_commands_print_doubts(tmp_path: Path) -> None:
    script = tmp_path / "script.sql"
    script.write_text(STREAM + "CREATE QUERY q AS SELECT k FROM s LIMIT 5;")
    result = CliRunner().invoke(app, ["check", str(script)])
    assert result.exit_code == 0
    assert "warning: LIMIT 5 without ORDER BY" in result.stderr
    assert "^^^^^^^" in result.stderr
    result = CliRunner().invoke(app, ["explain", str(script)])
    assert "warning: LIMIT 5 without ORDER BY" in result.stdout
    assert "warning" not in result.stderr


def test_the_shell_prints_all_mistakes(session: Session) -> None:
    console = Console(record=True, width=200)
    assert not Shell(session, console).run("SELECT kk FROM s; SELECT nn FROM s;")
    shown = console.export_text()
    assert "there is no column 'kk'" in shown
    assert "there is no column 'nn'" in shown
    assert "2 mistakes; nothing was run" in shown


def test_windows_in_python_give_doubts(session: Session) -> None:
    with pytest.warns(QueryWarning, match="5 without a unit is 5 microseconds"):
        session.stream("s").window("RANGE 5")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bind_window("[RANGE 5 SECONDS]", session.catalog.relation("s"))


# ---- suggestions


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("celcius", ["celsius", "city"], "celsius"),
        ("windowstart", ["window_start", "window_end"], "window_start"),
        ("temp", ["temperature", "time"], "temperature"),
        ("te", ["temperature", "time"], None),
        ("start", ["window_start", "window_end"], "window_start"),
        ("window", ["window_start", "window_end"], None),
        ("turbien", ["turbine"], "turbine"),
        ("aa", ["a", "b"], "a"),
        ("now", ["pow", "not"], None),
        ("corr", ["or", "floor"], None),
        ("use", ["pause"], None),
        ("x", ["y"], None),
        ("", ["y"], None),
        ("PRICE_", ["price"], "price"),
    ],
)
def test_suggestions_convince(name: str, known: list[str], found: str | None) -> None:
    assert closest(name, known) == found


def test_known_names_are_listed_beside_a_suggestion() -> None:
    assert suggest("celcius", ["celsius", "k"]) == "did you mean 'celsius'? known: celsius, k"
    assert suggest("x", []) == "there are none yet"


def test_functions_are_suggested_by_meaning() -> None:
    for name, sentence in (
        ("average", "did you mean 'avg'?"),
        ("STRLEN", "did you mean 'length'?"),
        ("lenght", "did you mean 'length'?"),
        ("rand", "no chance in it"),
        ("current_timestamp", "the time of a query is that of its rows"),
        ("qwertz", "SHOW FUNCTIONS lists those that there are"),
    ):
        assert sentence in unknown_function(name)
    with pytest.raises(QueryError, match="there is no function 'ot'; SHOW FUNCTIONS"):
        resolve_call("ot", [])
