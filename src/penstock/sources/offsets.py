"""Positions as Spark's offset log keeps them: one JSON object per stream, checked when read back.

A manifest holds a digest of Spark's offsets, so what a position says can be trusted, and what it
holds a digest of can be checked.  The checks here are for what no manifest knows yet.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from penstock.errors import StateError

START = "0" * 16
"""The chain of nothing at all."""

_CHAIN = re.compile(r"[0-9a-f]{16}")
_MOST = 2**63


def chained(before: str, *parts: bytes | memoryview) -> str:
    """Return a digest of some bytes and of all that came before them."""
    known = hashlib.sha256(before.encode())
    for part in parts:
        known.update(part)
    return known.hexdigest()[:16]


@dataclass(frozen=True)
class Place:
    """What the positions of all kinds of streams share.

    Texts are digests.  Numbers are not negative; there may be tuples of them.  What is ``hints``
    may be missing, and any number is right.
    """

    hints: ClassVar[frozenset[str]] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """As Spark's offset log keeps it."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Any, stream: str = "?") -> Self:
        """The inverse of `to_json`; a StateError says what is wrong with it."""
        names = [field.name for field in fields(cls)]
        if isinstance(found, dict):
            missing = cls.hints - found.keys()
            names = [name for name in names if name not in missing]
        if not isinstance(found, dict) or sorted(found) != sorted(names):
            raise StateError(
                f"the position of stream {stream} in Spark's offsets must have {', '.join(names)}, "
                f"got {_shown(found)}; it was made by another version of Penstock or is damaged: "
                f"use another --checkpoint"
            )
        types = get_type_hints(cls)
        for name in names:
            if not _fits(found[name], types[name]):
                raise bad_position(stream, f"{name} is {found[name]!r}")
        return cls(**{name: _whole(value) for name, value in found.items()})


def bad_position(stream: str, problem: str) -> StateError:
    """Return the error of a position that no batch can have ended at."""
    return StateError(
        f"the position of stream {stream} in Spark's offsets must be one that a batch ended at, "
        f"but {problem}; the checkpoint is damaged: bring its folder 'spark' back from a copy, or "
        f"use another --checkpoint"
    )


def _fits(value: Any, type: Any) -> bool:
    if type is bool:
        return isinstance(value, bool)
    if type is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST
    if get_origin(type) is tuple:
        parts = get_args(type)
        if not isinstance(value, list | tuple):
            return False
        if parts[-1] is Ellipsis:
            return all(_fits(each, parts[0]) for each in value)
        return len(value) == len(parts) and all(map(_fits, value, parts))
    return isinstance(value, str) and _CHAIN.fullmatch(value) is not None


def _whole(value: Any) -> Any:
    """Return a value with tuples for the lists of JSON."""
    return tuple(map(_whole, value)) if isinstance(value, list | tuple) else value


def _shown(found: Any) -> str:
    return ", ".join(sorted(map(str, found))) if isinstance(found, dict) else repr(found)[:80]
