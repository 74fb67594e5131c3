"""Which answers leave at once, in order of arrival, without waiting for the heartbeat.

An answer must wait where something that comes later can change it.  In a *row-wise* plan nothing
can: a row of a stream is selected, projected and given a validity ``[birth, death)`` that follows
from its own time ``t``.  Rows of other times, of other streams, or of the same time, change
nothing about it, so the relation is the same bag of ``(values, birth, death)`` however long one
waits.  Row-wise are scans, selections, projections, windows by time, unions of such plans, and
inner joins of one with a static table whose rows are valid for all time: the partners of a row are
known when it comes, and each pair lives as long as the row does.

What leaves depends on how the answer is delivered:

* *intervals*: each row as it is.  Both ends are known at birth, so it may leave at once.
* *stream* (ISTREAM): ``max(n(v, t) - n(v, t-1), 0)`` copies of ``v``, where ``n`` counts copies in
  the snapshot.  That is the number of births of ``v`` at ``t`` less its deaths at ``t``: a birth
  that meets the death of an equal row leaves nothing.  So births may leave at once if none can
  meet a death.  Two equal rows that are born together are two births, and leave as two.
* *log*: births and deaths, where both meet they cancel.  Deaths come later than births and are
  final only with the heartbeat, so only a log without deaths leaves at once.
* a *view*, its *delta* and what is *kept* are snapshots, and those wait.  DSTREAM and RSTREAM wait:
  they say what is true at the end of an instant.

Births meet no deaths

1. if no row dies: no window, ``RANGE UNBOUNDED``, landmarks; or
2. if the answer has the time of its stream as a column, and births follow from it in one way.
   Equal rows then have equal ``t``, so they are born together at ``f(t)``, and each dies after its
   birth: at ``g(t) > f(t)``, because ghosts, with ``g(t) = f(t)``, are no rows.  A birth of ``v``
   is at ``f(t)`` and every death of ``v`` is later.  This holds for ``SLIDE`` too, where ``f(t)``
   is a pulse.  It does not hold for ``HOP`` with ``window_start`` or ``window_end``, whose rows are
   cut at pulses: each is born several times.

Without the time column two rows of ``[NOW]`` at 5 and 6 with equal values meet: the death of the
first and the birth of the second are both at 6, and they cancel.

A union of several branches needs the same of all rows together: no row of any branch dies, or one
column is the time in every branch, and ``f`` is the same in all of them: with ``f = up`` in one
branch and ``f(t) = t`` in another, a row of the second could die at the pulse at which an equal row
of the first is born.  Which streams the branches read does not matter.

Two joins in one plan wait: whether they become one operator is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock import algebra
from penstock.algebra import Node
from penstock.expr.nodes import Column
from penstock.windows import WindowSpec

_AT_ITS_TIME = WindowSpec()
"""Stands for all windows in which a row is born at its own time."""


@dataclass(frozen=True)
class _Rows:
    """What is known of the rows of a row-wise plan.

    ``dies``: some have an end.  ``times`` are the columns that hold the time of the stream.
    ``births`` is the window by which births follow from it; None: in different ways.
    """

    dies: bool
    times: frozenset[int]
    births: WindowSpec | None = _AT_ITS_TIME

    @property
    def never_meet(self) -> bool:
        """Whether the birth of a row never meets the death of an equal one."""
        return not self.dies or (bool(self.times) and self.births is not None)


def at_once(plan: Node, mode: str) -> Node | None:
    """Return the relation whose rows are the answer as they come; None: the answer must wait."""
    if isinstance(plan, algebra.ToStream):
        rows = _rows(plan.input) if plan.kind == "istream" else None
        return _plain(plan.input) if rows is not None and rows.never_meet else None
    rows = _rows(plan)
    if rows is None:
        return None
    ready = {"intervals": True, "stream": not rows.dies, "log": not rows.dies}
    return _plain(plan) if ready.get(mode, False) else None


def _rows(node: Node) -> _Rows | None:
    """Return what is known of the rows of a plan; None if it is not row-wise."""
    match node:
        case algebra.Scan():
            read = range(len(node.schema)) if node.columns is None else node.columns
            return _Rows(False, frozenset(i for i, c in enumerate(read) if c == node.time))
        case algebra.Filter(below, _):
            return _rows(below)
        case algebra.Project(below, exprs, _):
            rows = _rows(below)
            if rows is None:
                return None
            columns = {i: e.index for i, e in enumerate(exprs) if isinstance(e, Column)}
            return replace(rows, times=frozenset(i for i, c in columns.items() if c in rows.times))
        case algebra.ToStream("istream", below, _):
            rows = _rows(below)  # with no deaths, births are the relation itself
            return None if rows is None or rows.dies else rows
        case algebra.Window(below, spec):
            rows = _rows(below)
            kinds = algebra.Window | algebra.Join
            plain = not any(isinstance(n, kinds) for n in algebra.walk(below))
            if rows is None or not plain or not spec.by_time:
                return None
            cut = spec.bounds is not None and spec.hop != spec.slide
            return _Rows(not spec.unbounded, rows.times, None if cut else _births(spec))
        case algebra.UnionAll(members):
            return _union([_rows(member) for member in members])
        case algebra.Join(left, right, kind="inner") if _is_timeless(right) and not _joins(left):
            return _rows(left)
        case algebra.Join(left, right, kind="inner") if _is_timeless(left) and not _joins(right):
            rows, width = _rows(right), len(left.schema)
            return None if rows is None else replace(rows, times=_moved(rows.times, width))
    return None


def _is_timeless(node: Node) -> bool:
    """Whether a node brings the rows of a table, at most selected and projected, for all time."""
    match node:
        case algebra.TableScan():
            return node.valid_from is None and node.valid_to is None
        case algebra.Filter(below, _) | algebra.Project(below, _, _):
            return _is_timeless(below)
    return False


def _joins(node: Node) -> bool:
    return any(isinstance(n, algebra.Join) for n in algebra.walk(node))


def _moved(columns: frozenset[int], by: int) -> frozenset[int]:
    return frozenset(column + by for column in columns)


def _births(spec: WindowSpec) -> WindowSpec:
    """Return what decides when rows are born: nothing where that is their own time."""
    rest = replace(
        spec, range=None, now=False, fixed=None, after=None, before=None, origin=None
    )  # these say when rows end, or which rows are no part of it
    return _AT_ITS_TIME if rest == WindowSpec() else spec


def _union(members: list[_Rows | None]) -> _Rows | None:
    known = [rows for rows in members if rows is not None]
    if len(known) < len(members):
        return None
    births = {rows.births for rows in known}
    times = frozenset.intersection(*(rows.times for rows in known))
    same = births.pop() if len(births) == 1 else None
    return _Rows(any(rows.dies for rows in known), times, same)


def _plain(node: Node) -> Node:
    """Return a row-wise relation without ISTREAM: there it changes nothing."""
    node = algebra.with_inputs(node, tuple(_plain(n) for n in algebra.inputs(node)))
    return node.input if isinstance(node, algebra.ToStream) else node
