"""The page of mistakes: what people type who come from elsewhere, and the sentence each gets."""

from __future__ import annotations

import pytest

from penstock.catalog import Catalog
from penstock.errors import NotSupportedError, QueryError
from penstock.session.scripts import bound_script
from tests.mistake_runner import PAGE, Mistake, catalog_of, read, rewritten, told

TEXT = PAGE.read_text()
FOUND = read(TEXT)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return catalog_of(FOUND)


@pytest.mark.parametrize("mistake", FOUND.mistakes, ids=str)
def test_the_sentence(mistake: Mistake, catalog: Catalog) -> None:
    assert told(mistake.text, catalog) == list(mistake.expected)


@pytest.mark.parametrize("mistake", [m for m in FOUND.mistakes if m.instead], ids=str)
def test_what_is_instead_works(mistake: Mistake, catalog: Catalog) -> None:
    assert told(mistake.instead, catalog) == ["works"]


def test_there_are_a_hundred() -> None:
    said = [m for m in FOUND.mistakes if m.expected != ("works",)]
    assert len(said) >= 100
    assert len([m for m in said if m.instead]) >= 80


def test_no_sentence_is_that_of_a_parser() -> None:
    vague = [m for m in FOUND.mistakes if "was not expected here" in " ".join(m.expected)]
    assert not vague


def test_the_page_is_rewritten_as_it_is() -> None:
    assert rewritten(TEXT) == TEXT


def test_the_kinds_of_errors(catalog: Catalog) -> None:
    for text, kind in (
        ("SELECT * FROM bids MATCH_RECOGNIZE (ORDER BY t)", NotSupportedError),
        ("SELECT channel FROM bids EMIT CHANGES", QueryError),
    ):
        with pytest.raises(QueryError) as caught:
            bound_script(text, catalog)
        assert type(caught.value) is kind
