"""The pages of the documentation, taken apart: their blocks of code, and their commands.

A block is what stands between two fences.  A command is a line of a shell block, a line after ``$``
in a block of text, or a text between backticks that begins as a command does.
"""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.model import Schema
from penstock.nested.shapes import is_array, is_map, is_struct

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
]

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(
    r"`((?:(?:\.venv/bin/)?penstock|make|pip install|python -m) [^`]+|make|pytest)`"
)


@dataclass(frozen=True)
class Block:
    """What stands between two fences of a page; ``heading`` is the chapter that it is in."""

    page: str
    line: int
    language: str
    text: str
    heading: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.language or 'no language'})"


@dataclass(frozen=True)
class Command:
    """A command of a page, and what the page says that it prints."""

    page: str
    line: int
    text: str
    printed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {self.text}"


def name_of(page: Path) -> str:
    """Return how a page is called here."""
    return str(page.relative_to(ROOT))


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    text = page.read_text()
    found = []
    for fence in _FENCE.finditer(text):
        before = text[: fence.start()]
        headings = re.findall(r"^#+ (.+)$", before, re.MULTILINE)
        inside = textwrap.dedent(fence[3])
        line = before.count("\n") + 1
        found.append(Block(name_of(page), line, fence[2], inside, headings[-1]))
    return found


def commands_of(page: Path) -> Iterator[Command]:
    """Yield the commands of a page: of its blocks, then those between backticks."""
    for block in blocks_of(page):
        yield from _commands_of_block(block)
    text = _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), page.read_text())
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    for inline in _INLINE.finditer(text):
        line = text[: inline.start()].count("\n") + 1
        yield Command(name_of(page), line, " ".join(inline[1].split()))


def _commands_of_block(block: Block) -> Iterator[Command]:
    lines = block.text.splitlines()
    if block.language == "sh":
        for number, line in enumerate(lines, block.line + 1):
            yield Command(block.page, number, re.sub(r"\s+#.*", "", line).strip())
    elif block.text.startswith("$ "):
        yield Command(block.page, block.line + 1, lines[0].removeprefix("$ "), tuple(lines[1:]))


def options_of(page: Path) -> set[str]:
    """Return the options that a page names between backticks, such as ``--once``."""
    text = _FENCE.sub("", page.read_text())
    spans = [span for span in re.findall(r"`([^`\n]+)`", text) if not span.startswith("python")]
    return {option for span in spans for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", span)}


# Forms of statements


@dataclass(frozen=True)
class Choice:
    """A part of a form in brackets: its alternatives, and whether it may be left out."""

    optional: bool
    alternatives: tuple[Form, ...]


Form = tuple[str | Choice, ...]
"""Plain text and choices, in order."""


def form_of(text: str) -> Form:
    """Read a form such as ``DROP [IF EXISTS] {STREAM | TABLE}``."""
    tokens = re.findall(r"[\[\]{}|]|[^\[\]{}|]+", text)
    (form,) = _alternatives(tokens)
    assert not tokens, f"a bracket is not open: {tokens}"
    return form


def _alternatives(tokens: list[str]) -> tuple[Form, ...]:
    found: list[list[str | Choice]] = [[]]
    while tokens and tokens[0] not in "]}":
        token = tokens.pop(0)
        if token == "|":
            found.append([])
        elif token in "[{":
            found[-1].append(Choice(token == "[", _alternatives(tokens)))
            assert tokens.pop(0) == {"[": "]", "{": "}"}[token]
        else:
            found[-1].append(token)
    return tuple(tuple(form) for form in found)


def shortest(form: Form) -> str:
    """Return what is left of a form without all that may be left out."""
    return "".join(_least(part) for part in form)


def _least(part: str | Choice) -> str:
    if isinstance(part, str):
        return part
    return "" if part.optional else shortest(part.alternatives[0])


def longest(form: Form) -> str:
    """Return a form with all its parts, the last of each that exclude one another."""
    return "".join(p if isinstance(p, str) else longest(p.alternatives[-1]) for p in form)


def variants(form: Form) -> Iterator[str]:
    """Yield the shortest text of a form, then every one with a single choice made otherwise."""
    yield shortest(form)
    for place, part in enumerate(form):
        if isinstance(part, Choice):
            for alternative in part.alternatives:
                for text in variants(alternative):
                    yield shortest((*form[:place], text, *form[place + 1 :]))


# What is printed


def on_screen(printed: Sequence[str], screen: str) -> bool:
    """Whether lines of a page stand on a screen, one below the other; ``...`` ends them.

    What differs from run to run counts as equal: numbers of batches, seconds, rates.
    """
    wanted = [_masked(line) for line in printed]
    for number, line in enumerate(wanted):
        if line.strip() in ("...", "…"):
            wanted = wanted[:number]
            break
    shown = [_masked(line) for line in screen.splitlines()]
    last = len(shown) - len(wanted)
    return any(shown[first : first + len(wanted)] == wanted for first in range(last + 1))


def _masked(line: str) -> str:
    return re.sub(r"\bbatch \d+|\d[\d,.]* (?:rows/s|s)\b", "#", line.rstrip())


# Rows for whatever a page declares


def rows_for(schema: Schema, time: int | None, count: int = 40) -> list[tuple[Any, ...]]:
    """Return some rows of a stream or table, the same each time, in order of their time."""
    chance = random.Random(11)
    begin = datetime(2024, 3, 11, 10)
    rows = []
    for number in range(count):
        now = begin + timedelta(seconds=70 * number)
        values = [_value(kind, chance, now) for kind in schema.types]
        if time is not None:
            values[time] = now if pa.types.is_timestamp(schema.types[time]) else 10 * number
        rows.append(tuple(values))
    return rows


def _value(kind: pa.DataType, chance: random.Random, now: datetime) -> Any:
    if pa.types.is_timestamp(kind):
        return now - timedelta(seconds=chance.randrange(300))
    if pa.types.is_date(kind):
        return date(2024, 3, chance.randrange(1, 28))
    if pa.types.is_boolean(kind):
        return chance.random() < 0.5
    if pa.types.is_integer(kind):
        return chance.randrange(5)
    if pa.types.is_floating(kind):
        return round(chance.uniform(0, 50), 2)
    if pa.types.is_decimal(kind):
        return Decimal(chance.randrange(5000)).scaleb(-kind.scale)
    if is_map(kind):
        return {_value(kind.key_type, chance, now): _value(kind.item_type, chance, now)}
    if is_struct(kind):
        return {f.name: _value(f.type, chance, now) for f in kind}
    if is_array(kind):
        return [_value(kind.value_type, chance, now) for _ in range(chance.randrange(1, 3))]
    return chance.choice(["a", "b", "closed"])
