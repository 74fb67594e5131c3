"""Sources first: an operator runs when nothing before it has work. One pass empties a fragment."""

from __future__ import annotations

from collections.abc import Sequence


class Topological:
    """Always the ready operator that is nearest to the sources (Aurora's min-cost order [A])."""

    def next(self, ready: Sequence[int]) -> int:
        return ready[0]
