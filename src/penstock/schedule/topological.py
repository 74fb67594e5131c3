"""Sources first: an operator runs when nothing before it has work, Aurora's min-cost order [A]."""

from __future__ import annotations

from penstock.schedule.ranked import Rank, Ranked


class Topological(Ranked):
    """Always the ready operator that is nearest to the sources: one pass empties a fragment."""

    def rank(self, at: int) -> Rank:
        return (at,)
