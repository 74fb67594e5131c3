"""The names of spool files: each tells the file's place in the chain of all of them.

``<number>-<first ordinal>-<rows>[p<partition>][h<heartbeat>]-<chain before>-<chain>.arrow``, where
the chain of a file is a digest of the chain before it, its numbers and its bytes.  So one file can
be checked alone, two that were swapped are both wrong, and the names of neighbours must fit one
another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import DataError, StateError
from penstock.sources.offsets import START, chained

SUFFIX = ".arrow"
_NAME = re.compile(
    r"(\d{10})-(\d+)-(\d+)(?:p(\d+))?(?:h(-?\d{1,19}))?-([0-9a-f]{16})-([0-9a-f]{16})\.arrow"
)

MOST_PARTITIONS = (1 << 20) - 1


def check_partition(partition: int | None, declared: int | None = None) -> None:
    """Check the number of a source partition to which rows are pushed; ``declared`` are so many."""
    if declared is not None and (partition is None or partition not in range(declared)):
        raise DataError(
            f"the partition of pushed rows must be a number from 0 to {declared - 1}, because the "
            f"stream declares PARTITIONS {declared}, got {partition!r}"
        )
    if partition is None:
        return
    whole = isinstance(partition, int) and not isinstance(partition, bool)
    if not whole or not 0 <= partition < MOST_PARTITIONS:
        raise DataError(
            f"the partition of pushed rows must be a whole number from 0 to {MOST_PARTITIONS - 1}, "
            f"got {partition!r}; number the writers of the stream"
        )


@dataclass(frozen=True)
class Told:
    """What a push says beside its rows: the source partition, and a heartbeat that holds then."""

    partition: int | None = None
    heartbeat: int | None = None

    def __str__(self) -> str:
        partition = "" if self.partition is None else f"p{self.partition}"
        return partition + ("" if self.heartbeat is None else f"h{self.heartbeat}")


@dataclass(frozen=True)
class Link:
    """A file of a spool: its number, the arrival number of its first row, and its rows."""

    number: int
    first: int
    rows: int
    before: str
    chain: str
    told: Told = field(default_factory=Told)

    @property
    def name(self) -> str:
        """The name of the file."""
        rows = f"{self.rows}{self.told}"
        return f"{self.number:010d}-{self.first}-{rows}-{self.before}-{self.chain}{SUFFIX}"

    def partition_of(self) -> dict[str, Any]:
        """Return what a descriptor of the file says of its source partition."""
        number, heartbeat = self.told.partition, self.told.heartbeat
        found: dict[str, Any] = {} if heartbeat is None else {"floor": heartbeat}
        return (
            found
            if number is None
            else {
                **found,
                "partition": str(number),
                "number": number + 1,  # 0 is the partition without a number
            }
        )

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

    def link(self, data: memoryview, rows: int, told: Told) -> Link:
        """Return the link of a file that comes next."""
        chain = _chain(self.files, self.rows, f"{rows}{told}", self.chain, data)
        return Link(self.files, self.rows, rows, self.chain, chain, told)

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
    told = Told(*(None if text is None else int(text) for text in (found[4], found[5])))
    link = Link(int(found[1]), int(found[2]), int(found[3]), found[6], found[7], told)
    return link if link.name == name else None


def check_bytes(path: str, data: memoryview) -> None:
    """Check that the bytes of a spool file are those that its name tells."""
    link = link_of(Path(path).name)
    if link is None:
        raise StateError(
            f"the name of the spool file '{path}' must end in two digests; it was made by another "
            f"version of Penstock, or renamed: use another --checkpoint"
        )
    rows = f"{link.rows}{link.told}"
    if _chain(link.number, link.first, rows, link.before, data) != link.chain:
        raise StateError(
            f"the spool file '{path}' must hold what was pushed, but its bytes do not fit the "
            f"digest in its name; it is damaged: bring it back from a copy, or use another "
            f"--checkpoint"
        )


def _chain(number: int, first: int, rows: str, before: str, data: memoryview) -> str:
    return chained(before, f" {number} {first} {rows}\n".encode(), data)
