"""Secrets are shown nowhere: not in errors, plans, descriptions, files or the shell's history."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock import masking, sinks
from penstock.asking.encoding import Declared, declared_in
from penstock.catalog import SinkDef, StreamDef, TableDef, has_references, opened
from penstock.cli import app
from penstock.cli.shell import ShellHistory, opened_history
from penstock.cql import parse_script
from penstock.errors import ConfigError, DataError, PenstockError, QueryError, shown_cause
from penstock.expr import types
from penstock.masking import hide, masked, masked_script, shown_option, without_passwords
from penstock.model import Field, Schema
from penstock.options import PUBLIC, Secret, refers
from penstock.session import Session
from penstock.sources.formats import SOURCE_FORMATS
from penstock.spark.failures import root_cause
from tests.postgres import PASSWORD, USER, PostgresServer

CANARY = "kanari-4711-vogel"
SCHEMA = Schema((Field("k", types.STRING),))


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    """Each test begins with a process that knows no secrets."""
    monkeypatch.setattr(masking, "_hidden", {})
    monkeypatch.setattr(masking, "_pattern", None)


# What is public


def test_options_are_secret_unless_their_format_says_otherwise():
    for format, name in [
        ("jdbc", "passphrase"),
        ("jdbc", "apiKey"),
        ("kafka", "kafka.sasl.jaas.config"),
        ("com.example.Source", "path"),
        ("csv", "fs.s3a.key"),
        ("postgresql", "password"),
    ]:
        assert shown_option(format, name, CANARY) == "***"
    for format, name in [("jdbc", "dbTable"), ("replay", "path"), ("kafka", "subscribe")]:
        assert shown_option(format, name, "orders") == "orders"


def test_every_option_of_our_own_formats_is_public_except_passwords():
    known = [*sinks.SINK_FORMATS.items(), *SOURCE_FORMATS.items()]
    secret = {
        (name, option)
        for name, found in known
        for option in found.options or ()
        if option.lower() not in PUBLIC[name]
    }
    assert secret == {("postgresql", "password")}


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://u:p%40ss:w/@h:1/d", "postgresql://u:***@h:1/d"),
        ("postgresql://u@h/d?sslmode=require", "postgresql://u@h/d?sslmode=require"),
        ("postgresql://h/d?user=a&pwd=x&extra=y", "postgresql://h/d?user=a&pwd=***&extra=***"),
        ("https://ghp_abc@example.com/x?sig=1#token", "https://***@example.com/x?sig=***#***"),
        (
            "jdbc:sqlserver://h:1433;user=sa;password={a;b};encrypt=true",
            "jdbc:sqlserver://h:1433;user=sa;password=***;***;encrypt=true",
        ),
        ("jdbc:oracle:thin:scott/tiger@//h:1521/s", "jdbc:oracle:thin:scott/***@//h:1521/s"),
        ("host=h user=u password='a b' port=1", "host=h user=u password=*** port=1"),
        ("s3a://KEY:secret/x@bucket/path", "s3a://KEY:***@bucket/path"),
        ("data/part-?.csv", "data/part-?.csv"),
        ("data/key=5/day=3", "data/key=5/day=3"),
    ],
)
def test_addresses(address, shown):
    assert without_passwords(address) == shown
    assert len(without_passwords(address, same_length=True)) == len(address)


def test_secrets_are_known_by_value_in_every_spelling():
    hide("pass word'42/x")
    for text in ("pass word'42/x", "pass%20word%2742%2Fx", "pass word''42/x", "pass word\\'42/x"):
        assert masked(f"a {text} b") == "a *** b"
    hide("-----BEGIN KEY-----\nabcdefghijklmnop\n")
    assert masked("bad line abcdefghijklmnop") == "bad line ***"


def test_secrets_are_known_in_either_case():
    """A driver may write the names of hosts, into which a password may have come, in small."""
    hide("Hunter-Two-Is-Long")
    for text in ("Hunter-Two-Is-Long", "hunter-two-is-long", "HUNTER-TWO-IS-LONG"):
        assert masked(f"no host {text} known") == "no host *** known"


def test_a_password_with_an_at_sign_is_known_by_its_parts():
    """A driver that cuts an address at the first @ takes the rest of the password for a host."""
    address = "postgresql://me:first@Second-Half@h/d"
    masking.hide_address(address)
    assert without_passwords(address) == "postgresql://me:***@h/d"
    assert masked("could not translate host name Second-Half@h") == (
        "could not translate host name ***@h"
    )
    assert masked("no host second-half") == "no host ***"
    assert masked("password first@Second-Half") == "password ***"


def test_short_secrets_and_ordinary_words_do_not_make_texts_unreadable():
    for text in ("abc", "true", "latest", "path1"):
        hide(text)
    assert masked("abc is true, the latest; mypath12") == "abc is true, the latest; mypath12"
    assert masked("got 'path1'") == "got '***'"
    assert shown_option("jdbc", "passphrase", "abc") == "***"


# Errors


def test_every_error_masks_what_is_secret():
    hide(CANARY)
    for kind in (PenstockError, ConfigError, DataError):
        assert CANARY not in f"{kind(f'got {CANARY}')} {kind(f'got {CANARY}')!r}"
    assert CANARY not in str(QueryError(f"got {CANARY}", f"SELECT '{CANARY}'", 7, 20))
    told = root_cause(Exception(f"java.sql.SQLException: no login with {CANARY}"))
    assert "no login with ***" in str(told)
    assert shown_cause(Exception(CANARY)) is None
    plain = Exception("plain")
    assert shown_cause(plain) is plain


SYNTAX = [
    f"CREATE SINK s USING postgresql OPTIONS (url 'u', password '{CANARY}' oops 'x')",
    f"CREATE SINK s USING postgresql OPTIONS (password '{CANARY}', , table 't')",
    f"CREATE SINK s USING postgresql OPTIONS (password {CANARY.replace('-', '')})",
    f"CREATE SINK s USING postgresql OPTIONS (password -'{CANARY}')",
    f"CREATE SINK s USING postgresql OPTIONS (password '{CANARY}', password 'b')",
    f"CREATE SINK s USING postgresql OPTIONS (password '{CANARY}'",
    f"CREATE SINK s USING postgresql OPTIONS (password '{CANARY}",
    f"CREATE SINK s USING postgresql OPTIONS (url 'a, password '{CANARY}')",
    f"CREATE SINK 's USING postgresql OPTIONS (password '{CANARY}')",
    f"CREATE SINK \"s USING postgresql OPTIONS (password '{CANARY}')",
    f"CREAT SINK s USING jdbc OPTIONS (passphrase '{CANARY}')",
    f"CREATE SINK s USING jdbc OPTIONS password '{CANARY}'",
    f"CREATE SINK s USING jdbc OPTIONS ('{CANARY}')",
    f'CREATE SINK s USING jdbc OPTIONS ("{CANARY}")',
    f'CREATE SINK s USING jdbc OPTIONS (password "{CANARY}")',
    f"CREATE SINK s USING jdbc OPTIONS (user 'a' '{CANARY}')",
    f"CREATE SINK s USING jdbc OPTIONS (url 'jdbc:x://a:{CANARY}@h/d', , a 'b')",
    f"CREATE SINK s USING jdbc OPTIONS (url 'jdbc:x://h/d?apiKey={CANARY}' x)",
    f"CREATE SINK s USING jdbc OPTIONS (url SECRET '{CANARY}' x)",
    f"CREATE SINK s USING jdbc OPTIONS (url SECRET {CANARY.replace('-', '')})",
    f"CREATE SINK s USING jdbc OPTIONS (password ('{CANARY}'))",
    f"CREATE SINK s USING jdbc OPTIONS (password '{CANARY}') OPTIONS (user 'x')",
    f"CREATE SINK s USING jdbc OPTIONS (password '{CANARY}') NOW",
    f"CREATE SINK s USING jdbc OPTIONS (password '{CANARY}'); SELEC",
    f"CREATE SINK s USING jdbc -- OPTIONS (password '{CANARY}')\n WHAT",
    f"CREATE SINK s USING jdbc /* OPTIONS (password '{CANARY}') */ WHAT",
    f"CREATE SINK s USING jdbc OPTIONS (password '{CANARY}', /* half",
    f"CREATE SINK s USING com.example.Source OPTIONS (path '{CANARY}') NOW",
    f"CREATE STREAM s (a INT) USING kafka OPTIONS (kafka.sasl.jaas.config '{CANARY}') NOW",
    f"CREATE TABLE s (a INT USING jdbc OPTIONS (password = '{CANARY}')",
]


@pytest.mark.parametrize("script", SYNTAX)
def test_a_syntax_error_echoes_no_secret(script):
    with pytest.raises(QueryError) as told:
        parse_script(script)
    assert CANARY not in str(told.value)
    assert CANARY.replace("-", "") not in str(told.value)


def test_what_is_public_is_echoed():
    script = "CREATE STREAM s (a INT) USING replay OPTIONS (path 'a b.csv', speed '60') NOW"
    assert masked_script(script) == script
    assert masked_script("SELECT options, 'x' FROM s") == "SELECT options, 'x' FROM s"
    script = "CREATE SINK s USING jdbc OPTIONS (password 'env:NAME', url SECRET 'file:/a/b')"
    assert masked_script(script) == script
    script = "CREATE SINK s USING jdbc OPTIONS (password\n 'a\nb') x"
    assert masked_script(script) == "CREATE SINK s USING jdbc OPTIONS (password\n '*\n*') x"


BOUND = [
    "CREATE SINK s OPTIONS (path '{0}')",
    "CREATE SINK s USING postgresql OPTIONS (url 'postgresql://u:{0}@h/d', changes 'view')",
    "CREATE SINK s USING postgresql OPTIONS (url '{0}', password '{0}', table 't')",
    "CREATE SINK s USING postgresql OPTIONS (url SECRET '{0}', table 't')",
    "CREATE SINK s USING postgresql OPTIONS (url 'postgresql://h', table 'a.b.c', password '{0}')",
    "CREATE SINK s USING postgresql OPTIONS (url 'postgresql://h/d', passwort '{0}')",
    "CREATE SINK s USING jdbc OPTIONS (token '{0}', changes 'sometimes')",
    "CREATE STREAM s (a INT) USING kafka OPTIONS (jaas '{0}') TIMESTAMP BY b",
    "CREATE STREAM s (a INT) USING replay OPTIONS (path '{0}', pwd '{0}') TIMESTAMP BY a",
    "CREATE STREAM s (a INT) USING replay OPTIONS (path SECRET '{0}') TIMESTAMP BY a",
    "CREATE TABLE s (a INT, A INT) USING jdbc OPTIONS (token '{0}')",
    "CREATE TABLE s (a INT) USING csv OPTIONS (path SECRET '{0}')",
    "CREATE TABLE s (a INT) USING csv OPTIONS (path 's3a://k:{0}@b/c.csv', x '{0}') VALID FROM q",
]


@pytest.mark.parametrize("statement", BOUND)
def test_an_error_of_binding_echoes_no_secret(statement):
    session = Session(autostart=False)
    with pytest.raises(PenstockError) as told:
        session.sql(statement.format(CANARY))
    assert CANARY not in str(told.value)


# What is shown of what is declared

DECLARED = f"""
CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t;
CREATE STREAM topic (value STRING, t BIGINT) USING kafka
  OPTIONS (kafka.bootstrap.servers 'h:1', kafka.sasl.jaas.config '{CANARY}') TIMESTAMP BY t;
CREATE TABLE people (k STRING) USING jdbc
  OPTIONS (url 'jdbc:x://h/d?user=u&pwd={CANARY}', apiKey '{CANARY}', dbtable 'people');
CREATE TABLE more (k STRING) USING jdbc OPTIONS (url SECRET '{CANARY}', password 'env:PG_PASSWORD');
CREATE SINK db USING jdbc OPTIONS (url 'jdbc:x://u:{CANARY}@h', passphrase '{CANARY}', dbtable 'x');
CREATE SINK own USING postgresql OPTIONS (url 'postgresql://u@h/d', password 'file:/run/secrets/pg',
  table 't');
CREATE VIEW v AS SELECT k FROM s [RANGE 5] WHERE k <> '{CANARY}';
CREATE QUERY q INTO db AS SELECT v.k FROM v JOIN people ON v.k = people.k;
"""


def test_nothing_that_is_shown_holds_a_secret():
    with Session(autostart=False) as session:
        session.sql(DECLARED)
        kinds = (session.catalog.streams, session.catalog.tables, session.catalog.sinks)
        texts = [session.query("q").explain(), *map(repr, kinds)]
        texts += [session.sql(f"SHOW {w}") for w in ("STREAMS", "TABLES", "SINKS", "VIEWS")]
        names = ("s", "topic", "people", "more", "db", "own", "v", "q")
        texts += [session.sql(f"DESCRIBE {name}") for name in names]
        kinds_of = ("STREAM", "STREAM", "TABLE", "TABLE", "SINK", "SINK", "VIEW", "QUERY")
        for kind, name in zip(kinds_of, names, strict=True):
            texts.append(session.sql(f"SHOW CREATE {kind} {name}"))
            assert texts[-1].startswith(f"CREATE {kind}")
        texts += [session.sql("EXPLAIN QUERY q"), session.sql("SHOW QUERIES")]
        for text in texts:
            assert CANARY not in (text if isinstance(text, str) else str(text.to_pylist()))
        shown = {r["name"]: r["value"] for r in session.sql("DESCRIBE SINK own").to_pylist()}
        assert shown["password"] == "file:/run/secrets/pg"
        shown = {r["name"]: r["value"] for r in session.sql("DESCRIBE SINK db").to_pylist()}
        assert shown.pop("USING") == "jdbc"
        assert shown == {"url": "jdbc:x://u:***@h", "passphrase": "***", "dbtable": "x"}


def test_the_catalog_file_holds_no_secret():
    session = Session(autostart=False)
    session.sql(DECLARED.replace(f"WHERE k <> '{CANARY}'", ""))
    data = Declared(session.catalog, {}).to_bytes()
    assert CANARY.encode() not in data
    again = declared_in(data).catalog.tables
    assert again["people"].options == {
        "url": "jdbc:x://h/d?user=u&pwd=***",
        "apikey": "***",
        "dbtable": "people",
    }
    assert again["more"].options == {"url": "***", "password": "env:PG_PASSWORD"}
    assert Declared(declared_in(data).catalog, {}).to_bytes() == data


def test_a_marked_reference_survives_the_catalog_file():
    session = Session(autostart=False)
    session.sql("CREATE TABLE t (k STRING) USING csv OPTIONS (path SECRET 'env:PLACE')")
    again = declared_in(Declared(session.catalog, {}).to_bytes()).catalog.tables["t"]
    assert isinstance(again.options["path"], Secret)
    assert has_references(again)


def test_check_and_explain_show_no_secret(tmp_path):
    script = tmp_path / "a.sql"
    runner = CliRunner()
    for text in (DECLARED, DECLARED + "SELEC", DECLARED + f"SELECT '{CANARY}' FROM nothing;"):
        script.write_text(text)
        for words in (["check"], ["explain"]):
            told = runner.invoke(app, [*words, str(script)])
            assert CANARY not in told.output
            assert CANARY not in (told.stderr or "")


# References


def test_references_are_looked_up_when_something_is_opened(tmp_path, monkeypatch):
    place = tmp_path / "secret"
    place.write_text(f"{CANARY}\n")
    monkeypatch.setenv("DB_USER", "someone-else")
    sink = SinkDef("s", "jdbc", {"password": f"file:{place}", "user": Secret("env:DB_USER")})
    found = opened(sink)
    assert dict(found.options) == {"password": CANARY, "user": "someone-else"}
    assert masked(f"x {CANARY} someone-else") == "x *** ***"
    assert CANARY not in repr(found)
    assert shown_option("jdbc", "password", found.options["password"]) == "***"
    assert pickle.loads(pickle.dumps(found)).options == found.options


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"password": "env:NO_SUCH_NAME"}, "environment variable NO_SUCH_NAME, but there is no"),
        (
            {"password": "file:/no/such/file"},
            "file '/no/such/file', but it cannot be read: No such",
        ),
        ({"url": Secret("env:NO_SUCH_NAME")}, "option url of sink s must be in the environment"),
    ],
)
def test_a_reference_to_nothing_is_a_sentence(options, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        opened(SinkDef("s", "jdbc", options))


def test_what_is_a_reference():
    assert refers("jdbc", "password", "env:A")
    assert refers("com.example.Source", "key", "file:/a")
    assert not refers("com.example.Source", "location", "file:/a")
    assert refers("com.example.Source", "location", "file:/a", marked=True)
    assert not refers("csv", "path", "env:A")
    assert not refers("jdbc", "password", "environment")
    assert not has_references(TableDef("t", SCHEMA, "csv", {"path": "file:/data/x.csv"}))


def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    page = (Path(__file__).parent.parent / "docs" / "sources-and-sinks.md").read_text()
    section = page.partition("## Secrets")[2].partition("\n## ")[0]
    script = section.partition("```sql\n")[2].partition("```")[0]
    place = tmp_path / "staff"
    place.write_text("the second\n")
    monkeypatch.setenv("PLANT_PASSWORD", "the first")
    monkeypatch.setenv("STAFF_URL", "jdbc:x://h/staff")
    session = Session(autostart=False)
    session.sql(script.replace("/run/secrets/staff", str(place)))
    assert opened(session.catalog.sinks["alarms"]).options["password"] == "the first"
    options = opened(session.catalog.tables["staff"]).options
    assert (options["url"], options["password"]) == ("jdbc:x://h/staff", "the second")


def test_a_script_with_references_can_be_checked_without_the_secrets(tmp_path):
    script = tmp_path / "a.sql"
    script.write_text(
        "CREATE SINK s USING postgresql OPTIONS (url SECRET 'env:NO_SUCH_NAME', table 't');\n"
        "CREATE TABLE t (k STRING) USING csv OPTIONS (path SECRET 'file:/no/such/file');"
    )
    assert CliRunner().invoke(app, ["check", str(script)]).exit_code == 0


def test_files_of_streams_cannot_be_secret():
    with pytest.raises(ConfigError, match="path of stream s must not be SECRET"):
        Session(autostart=False).sql(
            "CREATE STREAM s (t BIGINT) USING replay OPTIONS (path SECRET 'env:A') TIMESTAMP BY t"
        )


def test_definitions_of_python_are_known_too():
    StreamDef("s", SCHEMA, "kafka", {"kafka.sasl.jaas.config": CANARY}, 0)
    assert masked(CANARY) == "***"
    table = TableDef("t", SCHEMA, "jdbc", {"fetchsize": 10, "pin": 471147, "password": "env:A"})
    session = Session(autostart=False)
    session.catalog.add(table)
    assert has_references(table)
    again = declared_in(Declared(session.catalog, {}).to_bytes()).catalog.tables["t"]
    assert again.options == {"fetchsize": "10", "pin": "***", "password": "env:A"}


# PostgreSQL


@pytest.fixture(scope="module")
def server():
    found = PostgresServer()
    yield found
    found.remove()


def postgres_sink(server, **options):
    url = server.url(password=None).replace(f"{USER}@", "")
    return SinkDef("s", "postgresql", {"url": url, "table": "secrets", **options})


def open_sink(definition):
    return sinks.open_sink(definition, sinks.SinkRequest("q", "stream", SCHEMA))


def test_user_and_password_beside_the_url(server, tmp_path, monkeypatch):
    monkeypatch.setenv("PG_PASSWORD", PASSWORD)
    open_sink(postgres_sink(server, user=USER, password="env:PG_PASSWORD")).close()
    place = tmp_path / "password"
    place.write_text(PASSWORD + "\n")
    open_sink(postgres_sink(server, user=USER, password=f"file:{place}")).close()
    monkeypatch.setenv("PG_URL", server.url())
    open_sink(postgres_sink(server, url=Secret("env:PG_URL"))).close()


@pytest.mark.parametrize("how", ["option", "url", "secret url", "no server"])
def test_a_wrong_password_is_not_told(server, how, monkeypatch):
    options = {"user": USER, "password": CANARY}
    if how != "option":
        options = {"url": server.url(password=CANARY)}
    if how == "secret url":
        monkeypatch.setenv("PG_URL", server.url(password=CANARY))
        options = {"url": Secret("env:PG_URL")}
    if how == "no server":
        options = {"url": f"postgresql://{USER}:{CANARY}@127.0.0.1:1/d"}
    with pytest.raises(ConfigError) as told:
        open_sink(postgres_sink(server, **options))
    assert CANARY not in str(told.value)
    assert "PostgreSQL says" in str(told.value)
    if how == "secret url":
        assert "of a secret url" in str(told.value)


# The shell


def test_the_history_of_the_shell_holds_no_secret(tmp_path):
    path = tmp_path / "history"
    path.touch(mode=0o644)
    history = opened_history(path)
    assert isinstance(history, ShellHistory)
    typed = f"CREATE SINK s USING jdbc OPTIONS (\n  password '{CANARY}',\n  user 'me');"
    history.append_string(typed)
    assert len(list(opened_history(path).load_history_strings())) == 1  # the whole statement
    assert CANARY not in path.read_text()
    assert "user 'me'" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


# A whole run


@pytest.mark.spark
def test_a_run_leaves_no_secret_behind(tmp_path, server):
    """The files of a checkpoint, the output, and the list of processes of a real run."""
    data = tmp_path / "in.csv"
    data.write_text("k,t\n" + "".join(f"a,{i}\n" for i in range(20)))
    people = tmp_path / "people.csv"
    people.write_text("k\na\n")
    url = server.url(password=None)
    script = tmp_path / "a.sql"
    script.write_text(f"""
        CREATE STREAM s (k STRING, t BIGINT) USING replay OPTIONS (path '{data}') TIMESTAMP BY t;
        CREATE TABLE people (k STRING) USING csv
          OPTIONS (path '{people}', header 'true', unknown '{CANARY}');
        CREATE SINK db USING postgresql
          OPTIONS (url '{url}&application_name=x', password 'env:PG_PASSWORD', table 'seen');
        CREATE SINK bad USING jdbc
          OPTIONS (url 'jdbc:nothing://h/d?password={CANARY}', dbtable 'x', token '{CANARY}');
        CREATE QUERY q INTO db AS ISTREAM (SELECT s.k FROM s [NOW] JOIN people ON s.k = people.k);
        CREATE QUERY r INTO bad AS ISTREAM (SELECT k FROM s [NOW]);
    """)
    command = [Path(sys.executable).with_name("penstock"), "run", script]
    running = subprocess.Popen(
        [*command, "--checkpoint", tmp_path / "c"],
        env={**os.environ, "PG_PASSWORD": PASSWORD},
        stdout=(tmp_path / "output").open("w"),
        stderr=subprocess.STDOUT,
    )
    processes = set()
    while running.poll() is None:
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                processes.add(place.read_bytes())
        time.sleep(0.2)
    output = (tmp_path / "output").read_text()
    assert running.returncode == 1, output
    assert "must be written by Spark as format 'jdbc' (sink bad), but: No suitable driver" in output
    assert "java." not in output
    files = [p for p in (tmp_path / "c").rglob("*") if p.is_file()]
    assert any(b'"people"' in p.read_bytes() for p in files)
    assert any(b"java" in line for line in processes)
    for secret in (CANARY, PASSWORD, json.dumps(PASSWORD)):
        assert secret not in output
        assert not [line for line in processes if secret.encode() in line]
        assert not [p for p in files if secret.encode() in p.read_bytes()]
