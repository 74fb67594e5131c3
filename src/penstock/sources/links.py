"""The names of spool files: each tells the file's place in the chain of all of them.

``<number>-<first ordinal>-<rows>-<chain before>-<chain>.arrow``, where the chain of a file is a
digest of the chain before it, its numbers and its bytes.  So one file can be checked alone, two
that were swapped are both wrong, and the names of neighbours must fit one another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import StateError
from penstock.sources.offsets import START, chained

SUFFIX = ".arrow"
_NAME = re.compile(r"(\d{10})-(\d+)-(\d+)-([0-9a-f]{16})-([0-9a-f]{16})\.arrow")


@dataclass(frozen=True)
class Link:
    """A file of a spool: its number, the arrival number of its first row, and its rows."""

    number: int
    first: int
    rows: int
    before: str
    chain: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"{self.number:010d}-{self.first}-{self.rows}-{self.before}-{self.chain}{SUFFIX}"

    @property
    def end(self) -> int:
        """The arrival number of the row after the last."""
        return self.first + self.rows


@dataclass(frozen=True)
class ChainEnd:
    """So many files, with so many rows, that end in this chain: what comes next must fit it."""

    files: int = 0
    rows: int = 0
    chain: str = START

    def __str__(self) -> str:
        return f"{self.files} files with {self.rows} rows (digest {self.chain})"

    def link(self, data: memoryview, rows: int) -> Link:
        """Return the link of a file that comes next."""
        chain = _chain(self.files, self.rows, rows, self.chain, data)
        return Link(self.files, self.rows, rows, self.chain, chain)

    def fits(self, link: Link) -> bool:
        """Whether a file is the one that comes next."""
        return (link.number, link.first, link.before) == (self.files, self.rows, self.chain)


def after(link: Link) -> ChainEnd:
    """Return what is reached with a file."""
    return ChainEnd(link.number + 1, link.end, link.chain)


def link_of(name: str) -> Link | None:
    """Return what a name tells, None if it is not the name of a spool file."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    link = Link(int(found[1]), int(found[2]), int(found[3]), found[4], found[5])
    return link if link.name == name else None


def check_bytes(path: str, data: memoryview) -> None:
    """Check that the bytes of a spool file are those that its name tells."""
    link = link_of(Path(path).name)
    if link is None:
        raise StateError(
            f"the name of the spool file '{path}' must end in two digests; it was made by another "
            f"version of Penstock, or renamed: use another --checkpoint"
        )
    if _chain(link.number, link.first, link.rows, link.before, data) != link.chain:
        raise StateError(
            f"the spool file '{path}' must hold what was pushed, but its bytes do not fit the "
            f"digest in its name; it is damaged: bring it back from a copy, or use another "
            f"--checkpoint"
        )


def _chain(number: int, first: int, rows: int, before: str, data: memoryview) -> str:
    return chained(before, f" {number} {first} {rows}\n".encode(), data)
