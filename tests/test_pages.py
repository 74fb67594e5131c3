"""Every block and every command of the documentation is run as it is printed.

What is run is taken from the pages, not listed here.  Each block has a rule by its language; a
block without one fails.  Listed here is only what pages leave out: declarations of streams that a
fragment reads, and which test makes the output that a page shows.  Commands are in
`test_page_commands`.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from penstock.catalog import Catalog, StreamDef, TableDef
from penstock.cql import bind
from penstock.cql.binding.statements import Change, Create
from penstock.cql.grammar.parse import parse_script
from penstock.cql.grammar.syntax import AlterSyntax, CreateSyntax, ExplainSyntax, SetSyntax
from penstock.extensions import extension
from penstock.session import Session
from penstock.session.checking import ScriptCheck
from penstock.spark import engine
from penstock.testing import Rig
from tests.pages import (
    PAGES,
    ROOT,
    Block,
    blocks_of,
    form_of,
    longest,
    on_screen,
    rows_for,
    variants,
)

BLOCKS = [block for page in PAGES for block in blocks_of(page)]

PREAMBLES = {
    "docs/language.md": """
        CREATE STREAM humidity (sensor INT, city STRING, percent DOUBLE, t TIMESTAMP)
          USING replay OPTIONS (path 'examples/cities/data/humidity.csv') TIMESTAMP BY t;
        CREATE STREAM trades (symbol STRING, price DOUBLE, at TIMESTAMP)
          USING memory TIMESTAMP BY at;
        CREATE STREAM quotes (symbol STRING, bid DOUBLE, at TIMESTAMP) USING memory TIMESTAMP BY at;
        CREATE STREAM orders (id INT, price DOUBLE, t TIMESTAMP) USING memory TIMESTAMP BY t;
        CREATE STREAM bid (auction INT, price DOUBLE, t TIMESTAMP) USING memory TIMESTAMP BY t;
        CREATE STREAM auction (id INT, t TIMESTAMP) USING memory TIMESTAMP BY t;
        CREATE STREAM payments (id INT, amount DOUBLE, t TIMESTAMP) USING memory TIMESTAMP BY t;
    """,
}
"""What the fragments of a page read and the page does not declare."""

ANSWERS = {
    "docs/language.md": "test_one_time_queries_are_typed_into_the_shell",
    "docs/priorities.md": "test_lane_seen.test_explain_says_what_the_page_says",
    "docs/scheduling.md": "test_schedule.test_the_progress_chart_of_the_page",
    "docs/semantics.md": "test_the_sentence_about_rows_that_wait",
    "docs/sources-and-sinks.md": "test_the_lines_of_the_text_format",
    "docs/testing.md": "test_a_difference_is_told_as_printed",
}
"""Which test makes the block of text that a page shows without a command."""

ONE_TIME = ("docs/language.md", "One-time queries")
"""Where a SELECT is asked once; `test_page_commands` types these into the shell."""

COMING_FROM = "docs/coming-from.md"
FOREIGN = ("spark", "pyspark", "flink", "ksqldb", "esper", "risingwave", "materialize")
"""The page with texts of other systems, and how these are called; `test_coming_from` has them."""

DRAWINGS = {
    "The walk of a row": "a drawing",
    "The checkpoint folder": "test_page_commands.test_the_drawing_of_the_checkpoint_folder",
}
"""Blocks without a language, by their headings."""


def rule_of(block: Block) -> str:
    """Return how a block is run; nothing: nobody does."""
    if block.language in ("sql", "python", "sh", "toml"):
        return block.language
    if block.page == COMING_FROM and block.language in FOREIGN:
        return "foreign"
    if block.language == "text":
        if block.text.startswith("$ "):
            return "sh"
        if re.match(r"CREATE|\[WITH", block.text):
            return "syntax"
        if block.page in ANSWERS:
            return "answer"
    if not block.language and block.heading in DRAWINGS:
        return "drawing"
    return ""


def blocks(rule: str, page: str = "") -> list[Block]:
    """Return the blocks with a rule, of one page or of all."""
    return [b for b in BLOCKS if rule_of(b) == rule and page in ("", b.page)]


def pages(rule: str) -> list[str]:
    return sorted({block.page for block in blocks(rule)})


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_somebody_runs_this_block(block: Block) -> None:
    assert rule_of(block), f"nobody runs this block: {block}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_fence_is_overlooked(page: Path) -> None:
    fences = re.findall(r"^\s*(?:```|~~~)", page.read_text(), re.MULTILINE)
    assert len(fences) == 2 * len(blocks_of(page))


def test_a_block_of_another_kind_has_no_rule() -> None:
    for language, page in (("yaml", "README.md"), ("text", "README.md"), ("", "docs/index.md")):
        assert not rule_of(Block(page, 7, language, "key: value\n", "A heading"))


def test_what_is_printed_is_compared_line_by_line() -> None:
    screen = "starting\nq, batch 7\n│ 1 │ 2.5 │\n│ 2 │ 3.5 │\n3 rows, 4.1 s\n"
    assert on_screen(["q, batch 0", "│ 1 │ 2.5 │", "   ..."], screen)
    assert on_screen(["│ 2 │ 3.5 │", "3 rows, 0.2 s"], screen)
    assert not on_screen(["│ 1 │ 2.6 │"], screen)
    assert not on_screen(["q, batch 0", "│ 2 │ 3.5 │"], screen)
    assert not on_screen(["│ 2 │ 3.5 │", "4 rows, 0.2 s"], screen)


def test_each_page_shows_one_answer() -> None:
    assert [block.page for block in blocks("answer")] == sorted(ANSWERS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples, in which the test is."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def plant(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package of the page about sinks is installed, as its blocks say."""
    (declared,) = blocks("toml")
    (code,) = blocks("python", declared.page)
    (group,) = tomllib.loads(declared.text)["project"]["entry-points"].items()
    ((name, place),) = group[1].items()
    module, _, _ = place.partition(":")
    path = folder.joinpath("site", *module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True)
    path.write_text(code.text)
    info = folder / "site" / "plant-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plant\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group[0]}]\n{name} = {place}\n")
    monkeypatch.syspath_prepend(str(folder / "site"))
    extension.cache_clear()
    yield
    extension.cache_clear()


# Statements


def scripts(page: str) -> list[str]:
    """Return the statements of a page as scripts; a name that is declared again begins another.

    A SELECT that stands alone is a query here.  One-time queries have a test of their own.
    """
    found: list[str] = []
    names: set[str] = set()
    for block in blocks("sql", page):
        statements = []
        declared = set()
        for number, parsed in enumerate(parse_script(block.text)):
            if isinstance(parsed.syntax, CreateSyntax):
                declared.add(parsed.syntax.name.text)
                statements.append(f"{parsed.sql};")
            elif isinstance(parsed.syntax, SetSyntax | AlterSyntax):
                statements.append(f"{parsed.sql};")
            elif isinstance(parsed.syntax, ExplainSyntax):
                continue  # `test_statements_about_queries` runs it
            elif (page, block.heading) != ONE_TIME:
                name = f"line_{block.line}_{number}"
                statements.append(f"CREATE QUERY {name} AS {parsed.sql};")
        if not found or declared & names:
            names = set()
            found.append(PREAMBLES.get(page, ""))
        names |= declared
        found[-1] += "\n".join(["", *statements])
    return found


def catalog_of(script: str) -> Catalog:
    """Return what a script declares."""
    catalog = Catalog()
    for parsed in parse_script(script):
        statement = bind(parsed, catalog)
        if not isinstance(statement, Change):
            assert isinstance(statement, Create)
            put = catalog.replace if statement.replaces else catalog.add
            put(statement.definition)
    return catalog


def make_files(catalog: Catalog) -> None:
    """Write rows into the files that a script reads and nobody has made."""
    for declared in [*catalog.streams.values(), *catalog.tables.values()]:
        path = Path(declared.options.get("path", "."))
        if path.exists():
            continue
        table = pa.Table.from_pylist(
            [dict(zip(declared.schema.names, row, strict=True)) for row in rows_of(declared)],
            pa.schema(zip(declared.schema.names, declared.schema.types, strict=True)),
        )
        if declared.format == "parquet":
            path.mkdir(parents=True)
            pyarrow.parquet.write_table(table, path / "part.parquet")
        else:
            place = path if path.suffix else path / "part.csv"
            place.parent.mkdir(parents=True, exist_ok=True)
            pyarrow.csv.write_csv(table, place)


def rows_of(declared: StreamDef | TableDef) -> list[tuple[Any, ...]]:
    time = declared.time if isinstance(declared, StreamDef) else None
    return rows_for(declared.schema, time)


def feed(rig: Rig, stream: StreamDef) -> None:
    """Feed some rows, to each source partition if they are declared."""
    rows, count = rows_of(stream), stream.timing.partitions
    for partition in range(count or 1):
        some = rows[partition :: count or 1]
        rig.feed(stream.name, some, partition=partition if count else None)


@pytest.mark.usefixtures("plant")
@pytest.mark.parametrize("page", pages("sql"))
def test_the_statements_of_a_page_run(page: str) -> None:
    """`penstock check` has nothing to say, and the oracle gives the same answers."""
    for script in scripts(page):
        catalog = catalog_of(script)
        make_files(catalog)
        rig = Rig(script, tables={name: rows_of(t) for name, t in catalog.tables.items()})
        with Session(autostart=False) as session:
            checked = ScriptCheck(session)
            checked.check(script)
            assert not [str(error) for error, _ in checked.mistakes]
            assert not checked.notes
        for name in catalog.streams:
            rig.sql(f"CREATE QUERY all_of_{name} AS SELECT * FROM {name} [ROWS 3];")
        for stream in catalog.streams.values():
            feed(rig, stream)
        if catalog.streams:
            rig.end()
            rig.assert_oracle()


@pytest.mark.usefixtures("plant")
def test_statements_about_queries() -> None:
    """The statements of the table about running queries, each as its first column prints it."""
    page = (ROOT / "docs/language.md").read_text()
    table = page.partition("\n## Running queries\n")[2].partition("\n## ")[0]
    first = "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `"))
    texts = re.findall(r"`([A-Z]+ [^`]+)`", first)
    assert len(texts) > 8
    (script, *_) = scripts("docs/language.md")
    make_files(catalog_of(script))
    for text in texts:
        with Session(autostart=False) as session:
            session.sql(script)
            of_stream = text.startswith(("SHOW CREATE STREAM", "DESCRIBE"))
            stated = re.sub(r"\bname\b", "temperature" if of_stream else "hot", text)
            stated = re.sub(r"(?<=EXPLAIN )query", "SELECT * FROM temperature", stated)
            stated = re.sub(r"( \.\.)? AS query", " AS SELECT * FROM temperature", stated)
            stated = stated.replace("SELECT ...", "SELECT city FROM temperature")
            assert session.sql(stated) is not None or stated.startswith(("DROP", "SET")), text


# Forms of statements

FORMS = (
    (r"column type, \.\.\.", "k STRING, x DOUBLE, u TIMESTAMP, t TIMESTAMP"),
    (r"key 'value', \.\.\.", "path 'a'"),
    (r"USING format", "USING memory"),
    (r"BY column", "BY t"),
    (r"UNTIL column", "UNTIL u"),
    (r"EXCEPT \(column, \.\.\.\)", "EXCEPT (x)"),
    (r"item\.\*", "a.*"),
    (r"OFFSET m", "OFFSET 1"),
    (r"FROM column", "FROM u"),
    (r"TO column", "TO t"),
    (r"duration", "5 SECONDS"),
    (r"share %", "99 %"),
    (r"number", "4"),
    (r"WHEN condition", "WHEN x > 3"),
    (r"TIME expression", "TIME u"),
    (r"PRIORITY expression", "PRIORITY 1"),
    (r"EARLY INTO sink", "EARLY INTO soon"),
    (r"(INTO|DEADLETTER) sink", r"\1 out"),
    (r"ON \(column, \.\.\.\)", "ON (k)"),
    (r"\(window\)", "(PARTITION BY k ORDER BY t)"),
    (r"QUALIFY condition", "QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY t) < 3"),
    (r"HAVING condition", "HAVING COUNT(*) > 1"),
    (r"WHERE condition", "WHERE a.x > 1"),
    (
        r"MATCH_CONDITION \(comparison\)(\s+)ON condition",
        r"MATCH_CONDITION (a.x > b.x)\1ON a.k = b.k",
    ),
    (r"comparison", "a.x >= b.x"),
    (r"(ASOF.*)ON condition", r"\1ON a.k = b.k AND a.t >= b.t"),
    (r"ON condition", "ON a.k = b.k AND a.x < b.x"),
    (r"MATCH_CONDITION(.*)USING \(column, \.\.\.\)", r"MATCH_CONDITION\1USING (k)"),
    (r"(ASOF.*)USING \(column, \.\.\.\)", r"\1USING (k, x)"),
    (r"USING \(column, \.\.\.\)", "USING (k)"),
    (r"expression", "a.k"),
    (r"\bname\b", "fresh"),
    (r"LIMIT n", "LIMIT 3"),
    (r"\bquery\b", "SELECT k FROM r [ROWS 2]"),
    (r"FROM item", "FROM s [ROWS 3] a"),
    (r"item", "r [ROWS 3] b"),
    (r", \.\.\.| \.\.\.", ""),
)
"""What stands for the words of a form that are not meant literally, in this order."""

DECLARED = """
    CREATE STREAM s (k STRING, x DOUBLE, t TIMESTAMP) USING memory TIMESTAMP BY t;
    CREATE STREAM r (k STRING, x DOUBLE, t TIMESTAMP) USING memory TIMESTAMP BY t PRIORITY 1;
    CREATE SINK out USING memory;
    CREATE SINK soon USING memory;
"""


def stated(variant: str) -> str:
    """Return a statement of a form; window functions read a stream without a window."""
    for pattern, text in FORMS:
        variant = re.sub(pattern, text, variant)
    if re.search("QUALIFY|WINDOW", variant):
        variant = variant.replace("s [ROWS 3] a", "s a")
    return " ".join(variant.split())


def forms(block: Block) -> list[str]:
    return [text for text in re.split(r"(?<=;)\n", block.text) if text.strip()]


@pytest.mark.parametrize("block", blocks("syntax"), ids=str)
def test_a_form_is_understood_in_all_its_variants(block: Block) -> None:
    """Each part that may be left out, alone; of declarations also all parts together."""
    for text in forms(block):
        form = form_of(text)
        whole = [longest(form)] if text.startswith("CREATE") else []
        for variant in dict.fromkeys([*variants(form), *whole]):
            with Session(autostart=False) as session:
                session.sql(DECLARED)
                statement = stated(variant)
                (parsed,) = parse_script(statement)
                assert bind(parsed, session.catalog), statement


# Python


NEEDS_SPARK = re.compile(r"\bSession\(")
"""What a page's Python says where it needs Spark."""


def python(page: str) -> str:
    """Return the blocks of a page as one program."""
    return "\n".join(block.text for block in blocks("python", page))


def run_python(page: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks("python", page):
        if 'open_checkpoint("checkpoint")' in block.text:
            Path("checkpoint").symlink_to(names["session"]._folder)
        program = "\n" * block.line + block.text
        exec(compile(program, page, "exec"), names)
    return names


@pytest.mark.usefixtures("plant")
@pytest.mark.parametrize("page", [p for p in pages("python") if not NEEDS_SPARK.search(python(p))])
def test_the_python_of_a_page_runs(page: str) -> None:
    """Its blocks are one module, and every test in it passes."""
    names = run_python(page)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == len(re.findall(r"^def test_", python(page), re.MULTILINE))
    for test in tests:
        test()


@pytest.fixture
def embedded(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The Spark that a session of Penstock would start is the one of all tests."""
    monkeypatch.setattr(engine, "own_session", lambda *_: spark)
    return spark


@pytest.mark.spark
@pytest.mark.parametrize("page", [p for p in pages("python") if NEEDS_SPARK.search(python(p))])
def test_the_python_of_a_page_runs_on_spark(
    page: str, embedded: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a comment says about what is printed is printed."""
    names = run_python(page)
    session = names["session"]
    try:
        printed = capsys.readouterr().out
        for said in re.findall(r'#.*"(valid at .*), batch \d+"', python(page)):
            assert said in printed
        assert session.await_end(100)
        for query in session.handles():
            assert query.status()["state"] == "ended"
            assert query.status()["rows"] or query.rows().num_rows
    finally:
        session.close()


# What pages show


def test_a_difference_is_told_as_printed() -> None:
    """An end that is half a minute too late."""
    (block,) = blocks("answer", "docs/testing.md")
    program = python(block.page).replace('"10:01:00")])', '"10:01:30")])')
    names: dict[str, Any] = {}
    exec(compile(program, block.page, "exec"), names)
    with pytest.raises(AssertionError) as told:
        names["test_two_clicks_within_a_minute_are_busy"]()
    assert f"AssertionError: {told.value}".splitlines() == block.text.splitlines()


@pytest.mark.spark
def test_the_sentence_about_rows_that_wait(spark: Any) -> None:
    (block,) = blocks("answer", "docs/semantics.md")
    (declared,) = blocks("sql", "docs/semantics.md")
    with Session(spark) as session:
        stream = re.sub(r"\s+PUNCTUATION.*;", ";", declared.text)
        session.sql(f"{stream} CREATE QUERY q AS SELECT COUNT(*) AS n FROM bids [RANGE 1 HOUR]")
        session.push("bids", [(n, "bid", 5, "2024-03-11 10:00:09") for n in range(3)])
        (told,) = session.await_idle()
        assert told.endswith(block.text.strip())


def test_the_lines_of_the_text_format() -> None:
    """They are the first lines of a file of the examples, which a script reads."""
    (block,) = blocks("answer", "docs/sources-and-sinks.md")
    assert (ROOT / "examples/cities/data/temperature.txt").read_text().startswith(block.text)
    readers = [p for p in ROOT.glob("examples/cities/*.sql") if "temperature.txt" in p.read_text()]
    assert readers
