"""The page for users of other systems: both texts of each pair are tried.

Those of Penstock are run against the oracle by `test_pages`.  Of the others, those that run as they
are must give the same stream of results, and all the rest must be told what to write.
"""

from __future__ import annotations

import re

import pytest

from penstock.algebra import streams_of
from penstock.catalog import Catalog
from penstock.cql import bind_query
from penstock.cql.grammar.parse import parse_script
from penstock.cql.grammar.syntax import QuerySyntax
from penstock.errors import QueryError
from penstock.session import Session
from penstock.session.checking import ScriptCheck
from penstock.session.scripts import bound_script
from penstock.testing import Rig
from tests.pages import ROOT, Block, blocks_of
from tests.test_pages import COMING_FROM, FOREIGN, catalog_of, feed, scripts

BLOCKS = blocks_of(ROOT / COMING_FROM)
DECLARED = BLOCKS[0].text
PAIRS = list(zip(BLOCKS[1::2], BLOCKS[2::2], strict=True))
RUN_AS_THEY_ARE = 7


def bound(text: str, catalog: Catalog) -> bool:
    """Whether a text can be run."""
    try:
        bound_script(text, catalog)
    except QueryError:
        return False
    return True


def pairs_that_run() -> list[tuple[Block, Block]]:
    catalog = catalog_of(DECLARED)
    return [(a, b) for a, b in PAIRS if a.language != "pyspark" and bound(a.text, catalog)]


def test_each_text_of_others_has_one_of_ours_beside_it() -> None:
    assert len(PAIRS) >= 25
    for theirs, ours in PAIRS:
        assert theirs.language in FOREIGN
        assert ours.language == "sql"
    headings = {block.heading for block, _ in PAIRS}
    assert headings == {
        "Spark Structured Streaming",
        "Flink SQL",
        "ksqlDB",
        "Esper",
        "RisingWave and Materialize",
    }


@pytest.mark.parametrize(("theirs", "ours"), pairs_that_run(), ids=str)
def test_a_text_that_runs_as_it_is_gives_the_same_results(theirs: Block, ours: Block) -> None:
    (parsed,) = parse_script(ours.text)
    assert isinstance(parsed.syntax, QuerySyntax)
    rig = Rig(
        f"{DECLARED} CREATE QUERY theirs AS ISTREAM ({theirs.text}); "
        f"CREATE QUERY ours AS ISTREAM ({parsed.sql});"
    )
    read = streams_of(bind_query(parsed.sql, catalog_of(DECLARED)))
    for name in read:
        feed(rig, rig.catalog.get("stream", name))
    rig.end()
    assert rig.rows("ours")
    assert sorted(rig.rows("theirs")) == sorted(rig.rows("ours"))


def test_how_many_run_as_they_are() -> None:
    assert len(pairs_that_run()) >= RUN_AS_THEY_ARE


@pytest.mark.parametrize(
    "theirs", [a for a, _ in PAIRS if a.language != "pyspark" and a not in dict(pairs_that_run())],
    ids=str,
)  # fmt: skip
def test_a_text_that_does_not_run_is_led_home(theirs: Block) -> None:
    with pytest.raises(QueryError) as caught:
        bound_script(theirs.text, catalog_of(DECLARED))
    assert "was not expected here" not in caught.value.message
    assert re.search(r"write |CREATE |leave|ASOF|FROM \w+ \[|join", caught.value.message)


def test_our_texts_give_no_doubts() -> None:
    for script in scripts(COMING_FROM):
        with Session(autostart=False) as session:
            checked = ScriptCheck(session, data=False)
            checked.check(script)
            assert not [str(doubt) for doubt in checked.warnings]


def test_the_table_of_windows() -> None:
    """Each window of Esper in the table gets the one beside it."""
    page = (ROOT / COMING_FROM).read_text()
    rows = re.findall(r"^\| `(bids[#(][^`]+)` \| `(bids[^`]*)` \|$", page, re.MULTILINE)
    assert len(rows) >= 8
    for theirs, ours in rows:
        with pytest.raises(QueryError) as caught:
            parse_script(f"SELECT * FROM {theirs}")
        wanted = ours.replace(" .. ", " ")
        assert f"FROM {wanted}" in caught.value.message.replace(" .. ", " ")
