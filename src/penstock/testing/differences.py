"""Comparing two bags of rows, and saying in words how they differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from penstock.reference import Steps

Row = tuple[Any, ...]

_SHOWN = 20
"""Most rows of a column that a message shows."""


_LAST_BITS = 1e-13
"""How far numbers that may differ at all may do so in any case, in parts of their size."""


def apart(found: Iterable[Row], expected: Iterable[Row], within: float) -> tuple[list[Row], ...]:
    """Return the missing and the unexpected rows; numbers may differ by ``within``, if above 0."""
    has, wants = Counter(found), Counter(expected)
    missing, unexpected = list((wants - has).elements()), list((has - wants).elements())
    if within > 0:
        for row in list(missing):
            match = next((r for r in unexpected if _near(r, row, within)), None)
            if match is not None:
                missing.remove(row)
                unexpected.remove(match)
    return missing, unexpected


def alike(found: Steps, expected: Steps, within: float) -> bool:
    """Return whether two relations agree at every instant, up to ``within``."""
    instants = sorted({time for steps in (found, expected) for time, _ in steps})
    sides: list[tuple[Steps, int]] = [(found, -1), (expected, -1)]
    for time in instants:
        bags: list[Iterable[Row]] = []
        for i, (steps, at) in enumerate(sides):
            while at + 1 < len(steps) and steps[at + 1][0] <= time:
                at += 1
            sides[i] = steps, at
            bags.append(steps[at][1].elements() if at >= 0 else ())
        if any(apart(bags[0], bags[1], within)):
            return False
    return True


def _near(a: Any, b: Any, within: float) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_near(x, y, within) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float | int) and not isinstance(b, bool):
        return math.isclose(a, b, rel_tol=_LAST_BITS, abs_tol=within) or (a != a and b != b)
    return bool(a == b)


def sentence(
    what: str, missing: list[Row], unexpected: list[Row], text: Callable[[Row], str]
) -> str:
    """Return a sentence and, below it, the missing and the unexpected rows side by side."""
    parts = [
        f"{len(rows)} {'row is' if len(rows) == 1 else 'rows are'} {word}"
        for rows, word in ((missing, "missing"), (unexpected, "unexpected"))
        if rows
    ]
    left, right = (["missing", *_texts(missing, text)], ["unexpected", *_texts(unexpected, text)])
    width = max(map(len, left))
    height = max(len(left), len(right))
    lines = [
        f"  {(left[i] if i < len(left) else ''):<{width}} | "
        f"{right[i] if i < len(right) else ''}".rstrip()
        for i in range(height)
    ]
    return "\n".join([f"{what}: {' and '.join(parts)}", *lines])


def _texts(rows: list[Row], text: Callable[[Row], str]) -> list[str]:
    shown = [text(row) for row in rows[:_SHOWN]]
    more = len(rows) - len(shown)
    return [*shown, f"… and {more} more"] if more else shown
