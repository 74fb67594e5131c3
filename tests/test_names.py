"""Names become parts of file names: which ones can be used, and that no file lies elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.catalog import check_name, folder_name
from penstock.errors import QueryError
from penstock.session import Session

STREAM = "CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t;"

REFUSED = {
    "long": "x" * 101,
    "very long": "x" * 230,
    "empty": "",
    "dots": "..",
    "dot": ".",
    "spaces": "   ",
    "dots and spaces": " . ",
    "nul": "a\0b",
    "line": "a\nb",
    "escape": "a\x1b[31m",
    "too long in a file": "\N{WATER WAVE}" * 20,
}

TAKEN = [
    "../x",
    "/etc/passwd",
    "..%2Fx",
    ".hidden",
    "a b",
    " a ",
    "-" * 100,
    "x" * 100,
    "ΘΕΡΜΟΚΡΑΣΙΑ",
    'with "quotes"',
    "semi;colon",
    "a\\b",
    "CON",
    "q-0000000000.jsonl",
]

CREATED = {
    "stream": "CREATE STREAM {} (k STRING, t BIGINT) USING memory TIMESTAMP BY t",
    "table": "CREATE TABLE {} (k STRING) USING jdbc OPTIONS (url 'jdbc:x')",
    "sink": "CREATE SINK {} USING blackhole",
    "view": "CREATE VIEW {} AS SELECT k FROM s [RANGE 5]",
    "materialized view": "CREATE MATERIALIZED VIEW {} AS SELECT k FROM s [RANGE 5]",
    "query": "CREATE QUERY {} AS SELECT k FROM s [RANGE 5]",
}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.parametrize("kind", CREATED)
@pytest.mark.parametrize("why", REFUSED)
def test_names_that_are_refused(kind, why):
    session = Session(autostart=False)
    session.sql(STREAM)
    name = quoted(REFUSED[why])
    with pytest.raises(QueryError) as told:
        session.sql(CREATED[kind].format(name))
    error = told.value
    assert f"the name of a {kind} must have 1 to 100 characters" in str(error)
    assert error.sql is not None
    assert error.sql[error.start : error.end] == name
    assert "\0" not in error.message
    assert "\x1b" not in error.message


@pytest.mark.parametrize("why", REFUSED)
def test_names_that_are_refused_from_python(why):
    session = Session(autostart=False)
    session.sql(STREAM)
    relation = session.stream("s").window(range=5)
    for start in (
        lambda: relation.start(REFUSED[why]),
        lambda: relation.materialize(REFUSED[why]),
        lambda: session.register(REFUSED[why], relation.node),
    ):
        with pytest.raises(QueryError, match="must have 1 to 100 characters"):
            start()
    assert not session.handles()


@pytest.mark.parametrize("kind", CREATED)
@pytest.mark.parametrize("name", TAKEN)
def test_names_that_are_taken(kind, name):
    session = Session(autostart=False)
    session.sql(STREAM)
    session.sql(CREATED[kind].format(quoted(name)))
    assert session.catalog.of_kind(kind.removeprefix("materialized "))[name.lower()].name == name


@settings(deadline=None)
@given(st.text(min_size=1, max_size=100))
def test_a_folder_of_a_name_is_one_step_and_no_two_are_the_same(name):
    found = folder_name(name)
    assert Path("spool", found).name == found
    assert found not in (".", "..")
    assert "\0" not in found
    try:
        check_name("stream", name)
    except QueryError:
        return
    assert len(found.encode()) <= 255


def test_simple_names_are_folders_as_they_are():
    for name in ("temperature", "my stream", "Κρήτη", "a-b_c.d", "x" * 100):
        assert folder_name(name) == name
    assert folder_name("../x") == "%2E.%2Fx"
    assert len({folder_name(n) for n in ("a/b", "a%2Fb", "a%252Fb")}) == 3


@pytest.mark.spark
def test_files_of_strange_names_lie_where_they_should(spark, tmp_path):
    """Every kind of name as stream, query and sink, in a real run; nothing is written elsewhere."""
    files = tmp_path / "in"
    files.mkdir()
    (files / "a.csv").write_text("k,t\na,1\nb,2\nc,3\n")
    root = tmp_path / "run"
    got: list[str] = []
    with Session(spark, checkpoint=root / "checkpoint", autostart=False) as session:
        for at, name in enumerate(TAKEN):
            if at == 0:
                session.sql(
                    f"CREATE STREAM {quoted('-' * 100)} (k STRING, t BIGINT) USING csv "
                    f"OPTIONS (path '{files}') TIMESTAMP BY t"
                )
            stream = quoted(f"{name[:90]}~{at}") if name != "-" * 100 else quoted(name)
            if name != "-" * 100:
                session.sql(
                    f"CREATE SINK {quoted('late' + str(at))} USING jsonl "
                    f"OPTIONS (path '{root}/late{at}'); "
                    f"CREATE STREAM {stream} (k STRING, t BIGINT) USING memory TIMESTAMP BY t "
                    f"LATE INTO {quoted('late' + str(at))}"
                )
            session.sql(
                f"CREATE SINK {quoted(name)} USING jsonl OPTIONS (path '{root}/out{at}'); "
                f"CREATE SINK {quoted('c' + str(at))} USING callback; "
                f"CREATE QUERY {quoted(name)} INTO {quoted(name)} AS ISTREAM (SELECT k FROM "
                f"{stream} [NOW]); "
                f"CREATE QUERY {quoted(name[:90] + '+')} INTO {quoted('c' + str(at))} AS ISTREAM "
                f"(SELECT k FROM {stream} [NOW])"
            )
            session.callback(f"c{at}", lambda _, rows: got.extend(rows["k"].to_pylist()))
        session.start()
        for at, name in enumerate(TAKEN):
            if name != "-" * 100:
                session.push(f"{name[:90]}~{at}", [("a", 5), ("b", 6), ("late", 1)])
                session.finish(f"{name[:90]}~{at}")
        session.await_idle()
        session.stop()
        session.check()
        for at, name in enumerate(TAKEN):
            lines = [
                json.loads(line)["k"]
                for path in sorted((root / f"out{at}").glob("*.jsonl"))
                for line in path.read_text().splitlines()
            ]
            assert lines == ["a", "b"], name
    assert sorted(got) == sorted(["a", "b"] * len(TAKEN))
    assert {path.name for path in tmp_path.iterdir()} == {"in", "run"}
    assert len(list((root / "checkpoint" / "spool").iterdir())) == len(TAKEN)
