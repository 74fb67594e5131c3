"""Formats that installed packages bring, found by the names of their entry points.

A package declares ``[project.entry-points."penstock.sinks"]`` (or ``"penstock.sources"``) with the
name of a format and the class or object that is the format.  Nothing is imported before a script
says ``USING`` that name.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Any

SOURCES = "penstock.sources"
SINKS = "penstock.sinks"


@cache
def extension(group: str, name: str) -> Any:
    """Return what a package brings under a name, in lower case; None if no package does.

    A class is given as an object of it.  What the package raises when it is imported passes.
    """
    for found in metadata.entry_points(group=group):
        if found.name.lower() == name:
            brought = found.load()
            return brought() if isinstance(brought, type) else brought
    return None


def public_options(name: str) -> frozenset[str]:
    """Return the options, in lower case, that the formats of this name say everybody may see."""
    told: set[str] = set()
    for group in (SOURCES, SINKS):
        try:
            told.update(str(option).lower() for option in extension(group, name).public)
        except Exception:  # noqa: S112 (without a format that says so, nothing is public)
            continue
    return frozenset(told)
