"""Which results of a shared join a query has, and for how long.

The join has, for each input, the largest window of all queries that share it, and its results carry
their lag (`penstock.kernels.lags`).  A result of rows that started at ``s1`` and ``s2`` is valid in
``[max(s1, s2), min(s1 + w1, s2 + w2))`` for a query with windows ``w1`` and ``w2``: not at all
unless ``-w1 < lag < w2``, and its start is the same for all windows.  There is no state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from penstock.model import I64, INF, Batch, Closed, Mask, Message, to_numpy
from penstock.operators.base import Operator
from penstock.operators.spec import Spec


@dataclass(frozen=True)
class RouteSpec(Spec):
    """Keep the results of a shared join that two windows have, while they have them.

    Rows that started before ``since`` do not count.
    """

    left: int
    right: int
    since: int | None = None

    key = "route/1"
    sliced = False
    holders = "none"

    def build(self) -> RouteOperator:
        return RouteOperator(self)


class RouteOperator(Operator):
    """Gives a query its rows of a shared join."""

    def __init__(self, spec: RouteSpec) -> None:
        self._left, self._right, self._since = spec.left, spec.right, spec.since

    def on_rows(self, port: int, rows: Batch) -> Iterable[Message]:
        mine = rows.take(self._mine(rows.start, to_numpy(rows.columns[-1])))
        if len(mine) == 0:
            return ()
        start = mine.start
        end = start + self._remaining(to_numpy(mine.columns[-1]))
        if int(start.max()) > INF - max(self._left, self._right):
            end[end < start] = INF
        return (Batch(mine.columns[:-1], start, end, mine.holder),)

    def on_closed(self, port: int, closed: Closed) -> Iterable[Message]:
        return (closed,)

    def _mine(self, start: I64, lag: I64) -> Mask:
        mine: Mask = (lag > -self._left) & (lag < self._right)
        since = self._since
        if since is not None and int(start.min()) - max(self._left, self._right) < since:
            mine &= start - np.abs(lag) >= since  # when the older row started
        return mine

    def _remaining(self, lag: I64) -> I64:
        """Return how long results are valid."""
        left: I64 = self._left + np.minimum(lag, 0)
        right: I64 = self._right - np.maximum(lag, 0)
        return np.minimum(left, right)
