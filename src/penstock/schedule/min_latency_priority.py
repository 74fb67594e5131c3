"""Highest priority joined with least latency, which the paper [A 5] leaves open.

What is important goes first, as under `highestpriority`.  Among what is equally important, and that
is most of the work, the whole path to the answer that costs least is run, as under `minlatency`.
It differs from `highestpriority` only where paths cost differently: on the paper's plan both give
the same latencies (docs/papers.md).
"""

from __future__ import annotations

from penstock.schedule.board import Board
from penstock.schedule.highest_priority import HighestPriority
from penstock.schedule.paths import seconds_to_answer
from penstock.schedule.ranked import Rank


class MinLatencyPriority(HighestPriority):
    """The most important work, and of that what gives a row of an answer soonest."""

    def open(self, board: Board) -> None:
        super().open(board)
        self._seconds = seconds_to_answer(board)

    def rank(self, at: int) -> Rank:
        own, weight, *rest = super().rank(at)
        return (own, weight, self._seconds[at], *rest)
