"""Where a row of a file stands, for who has to correct it: file and line, or file and row."""

from __future__ import annotations

from collections.abc import Callable

from penstock.sources.readers.base import open_input

_LINES = ("csv", "text", "json")
_PIECE = 1 << 20

Place = Callable[[int], str]
"""Tells where the row of a slice stands that has a position."""


def place_in(path: str, kind: str, first: int) -> Place:
    """Return what tells the places of the rows of a slice that begins at ``first`` of a file.

    Lines are counted only when somebody asks.
    """

    def told(position: int) -> str:
        if kind not in _LINES:
            return f"file {path}, row {first + position + 1}"
        before = _lines_before(path, first) if first else int(kind != "json")
        return f"file {path}, line {before + position + 1}"

    return told


def _lines_before(path: str, first: int) -> int:
    count = 0
    with open_input(path) as source:
        while first > 0:
            data = source.read(min(_PIECE, first))
            if not data:
                break
            count += data.count(b"\n")
            first -= len(data)
    return count
