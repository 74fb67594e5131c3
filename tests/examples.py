"""How many random examples a test tries: as many as it says, or a share of them in ``make quick``.

Examples are the same on every run, so those of ``make quick`` are a part of those of ``make test``.
"""

from __future__ import annotations

SHARE = 0.3
"""Of the examples of ``make test``, how many ``make quick`` tries."""
LEAST = 5

_share = 1.0


def few() -> None:
    """Try only a share of the examples from now on; the tests must not be imported yet."""
    global _share
    _share = SHARE


def examples(count: int) -> int:
    """Return how many of a test's examples are tried."""
    return count if _share == 1.0 else min(count, max(LEAST, round(count * _share)))
