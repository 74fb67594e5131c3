"""Whose end decides about a result: holders after what was told, and children of several holders.

Of the holders of the rows that make a result [C 3.1, 3.3],

* none open: the result is determined; so it is when its end is at or below ``until``, because a
  holder that was not told below ``until`` ends there or later;
* one open, or the same one several times: the result shares it;
* two open: the result gets a new holder, the child of both (`penstock.runs.children.Children`).

A result of more than two open holders has a child of the first two, then a child of that child and
the third, and so on; each generation is kept on a shelf of its own, so that what is told passes
through all of them in one turn.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.model import I64, INF, Ends
from penstock.runs.children import Children


def applied(told: Ends, end: I64, holder: I64) -> tuple[I64, I64]:
    """Return ends and holders of rows after what was told: a told row is determined."""
    known = told.told(holder)
    if known is None:
        return end, holder
    return np.minimum(end, known), np.where(known < INF, 0, holder)


def joint_holders(
    left: I64 | None,
    right: I64 | None,
    shared: bool,
    end: I64,
    until: int,
    children: Children,
    new_holders: Callable[[int], I64],
) -> I64:
    """Return the holder of each result of two rows; two open parents get a child.

    Results of the same two parents share their child; unless holders are ``shared`` by several
    rows of a side, there are none.
    """
    if left is None or right is None:
        one = right if left is None else left
        if one is None:
            return np.zeros(len(end), np.int64)
        return np.where(end <= until, 0, one)
    holder = np.where(end <= until, 0, np.where(left == 0, right, left))
    both = np.flatnonzero((holder != 0) & (right != 0) & (left != right) & (left != 0))
    if len(both) == 0:
        return holder
    if not shared:
        child = new_holders(len(both))
        holder[both] = child
        children.adopt(left[both], right[both], child, end[both])
        return holder
    order = both[np.lexsort((right[both], left[both]))]
    left, right = left[order], right[order]
    new = np.ones(len(order), bool)
    new[1:] = (left[1:] != left[:-1]) | (right[1:] != right[:-1])
    first = np.flatnonzero(new)
    child = new_holders(len(first))
    holder[order] = child[np.cumsum(new) - 1]
    over = np.maximum.reduceat(end[order], first)
    children.adopt(left[first], right[first], child, over)
    return holder
