"""Progress charts: how the size of an element shrinks on its way, and the segments of Chain [D].

A chart begins at ``(0, 1)``; each operator adds a point: the time until the element has passed it,
and what is left of its size.  A segment goes from one point to the later one with the steepest
descent: the operators in it are run together, and its slope is its priority.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]
"""Time and size."""

INSTANT = 1e-15
"""What work takes at least: of elements of which nothing is left it takes none."""


@dataclass(frozen=True)
class Segment:
    """The operators ``[first, last)`` of a path, and what they take away per unit of time."""

    first: int
    last: int
    slope: float


def chart(costs: Sequence[float], selectivities: Sequence[float], size: float = 1.0) -> list[Point]:
    """Return the chart of operators one after another, for elements of some size."""
    points = [(0.0, size)]
    for cost, selectivity in zip(costs, selectivities, strict=True):
        time, size = points[-1]
        points.append((time + cost, size * selectivity))
    return points


def segments(points: Sequence[Point]) -> list[Segment]:
    """Divide a chart into segments of steepest descent; of equal ones the longest."""
    found, at = [], 0
    while at + 1 < len(points):
        time, size = points[at]
        slopes = [(size - s) / max(t - time, INSTANT) for t, s in points[at + 1 :]]
        steepest = max(slopes)
        last = max(n for n, slope in enumerate(slopes) if slope >= steepest - 1e-12)
        found.append(Segment(at, at + 1 + last, steepest))
        at += 1 + last
    return found
