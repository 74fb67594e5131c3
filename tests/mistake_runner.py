"""The page of mistakes: its plain-text format, how it is checked, and the command that rewrites it.

``tests/mistakes.test`` holds statements that people bring from other systems or mistype, and what
each of them gets::

    = A heading

    declare
    CREATE STREAM s (k STRING, t TIMESTAMP) USING memory TIMESTAMP BY t;

    SELECT k FROM s EMIT CHANGES
    ----
    leave EMIT CHANGES out: every query gives its changes ..
      at EMIT CHANGES
    instead SELECT k FROM s

A block ends at an empty line.  Below the dashes stands the sentence and the part of the text that
is underlined, for each mistake; a doubt begins with ``warning:``; ``works`` stands where there is
nothing to say.  ``instead`` is what the sentence leads to: it must work, without a doubt.

``python -m tests.mistake_runner --rewrite`` fills in the sentences and keeps what is instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.catalog import Catalog
from penstock.cql import bind, parse_script
from penstock.cql.binding.statements import Create, Explain, Select
from penstock.errors import QueryError, QueryWarning, ScriptError
from penstock.session.scripts import bound_script

PAGE = Path(__file__).parent / "mistakes.test"
_DASHES = "----"
_INSTEAD = "instead "


@dataclass(frozen=True)
class Mistake:
    """A block of the page: the statement, what is said, and what to write instead."""

    heading: str
    line: int
    text: str
    expected: tuple[str, ...]
    instead: str

    def __str__(self) -> str:
        return f"line {self.line}: {' '.join(self.text.split())[:60]}"


@dataclass(frozen=True)
class Page:
    """What is declared on the page, and its blocks."""

    declared: str
    mistakes: tuple[Mistake, ...]


def read(text: str) -> Page:
    """Take the page apart."""
    declared, heading, found = "", "", []
    for line, block in _blocks(text):
        if block[0].startswith("= "):
            heading = block[0].removeprefix("= ")
        elif block[0] == "declare":
            declared += "\n".join(block[1:]) + "\n"
        elif not block[0].startswith("#"):
            found.append(_mistake(heading, line, block))
    return Page(declared, tuple(found))


def _blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    block: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.strip():
            block.append(line)
        elif block:
            yield number - len(block), block
            block = []


def _mistake(heading: str, line: int, block: list[str]) -> Mistake:
    dashes = block.index(_DASHES) if _DASHES in block else len(block)
    below = block[dashes + 1 :]
    at = next((i for i, text in enumerate(below) if text.startswith(_INSTEAD)), len(below))
    instead = "\n".join(below[at:]).removeprefix(_INSTEAD)
    return Mistake(heading, line, "\n".join(block[:dashes]), tuple(below[:at]), instead)


def catalog_of(page: Page) -> Catalog:
    """Return what the page declares."""
    catalog = Catalog()
    for parsed in parse_script(page.declared):
        statement = bind(parsed, catalog)
        assert isinstance(statement, Create)
        catalog.add(statement.definition)
    return catalog


def told(text: str, catalog: Catalog) -> list[str]:
    """Return what is said about a statement."""
    try:
        bound = bound_script(text, catalog)
    except ScriptError as error:
        return [line for one in error.errors for line in _lines(one)] + [f"({error.summary})"]
    except QueryError as error:
        return _lines(error)
    doubts = [
        doubt
        for _, statement in bound
        if isinstance(statement, Create | Explain | Select)
        for doubt in statement.warnings
    ]
    return [line for doubt in doubts for line in _lines(doubt)] or ["works"]


def _lines(one: QueryError | QueryWarning) -> list[str]:
    before = "warning: " if isinstance(one, QueryWarning) else ""
    marked = " ".join((one.sql or "")[one.start : one.end].split())
    return [before + one.message, f"  at {marked}"]


def rewritten(text: str) -> str:
    """Return the page with the sentences as they are now."""
    page = read(text)
    catalog = catalog_of(page)
    lines = text.splitlines()
    for mistake in reversed(page.mistakes):
        first = mistake.line - 1
        last = first
        while last < len(lines) and lines[last].strip():
            last += 1
        kept = f"{_INSTEAD}{mistake.instead}".splitlines() if mistake.instead else []
        said = told(mistake.text, catalog)
        lines[first:last] = [*mistake.text.splitlines(), _DASHES, *said, *kept]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Rewrite the page of mistakes.")
    parser.add_argument("--rewrite", action="store_true", required=True)
    parser.parse_args()
    PAGE.write_text(rewritten(PAGE.read_text()))


if __name__ == "__main__":
    main()
