"""The paths of a fragment from where rows come in to where they leave, with their charts [D].

A join is in the path of each of its inputs; what is measured of it per row that comes counts for
both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.schedule.board import Board
from penstock.schedule.chart import INSTANT, Point, Segment, segments

MOST_PATHS = 4096
"""Where there are more, the others' operators keep the order of their own slope."""


@dataclass(frozen=True)
class Line:
    """Operators that an element passes one after another, its chart, and its segments."""

    operators: tuple[int, ...]
    points: tuple[Point, ...]
    segments: tuple[Segment, ...]

    @staticmethod
    def of(operators: Sequence[int], points: Sequence[Point]) -> Line:
        return Line(tuple(operators), tuple(points), tuple(segments(points)))


def size_in(board: Board, at: int) -> float:
    """Return the bytes of a row that comes to an operator."""
    return board.of(at).size


def size_out(board: Board, at: int) -> float:
    """Return the bytes that are left of a row that has come to an operator.

    What leaves the fragment is left to others.
    """
    known = board.of(at)
    return known.rows * known.made if board.consumers.get(at) else 0.0


def shrinks(board: Board, at: int) -> float:
    """Return how many bytes an operator takes away per second of work."""
    return (size_in(board, at) - size_out(board, at)) / board.of(at).cost


def paths(board: Board, first: Sequence[int]) -> Iterator[list[int]]:
    """Yield the ways from some operators to where rows leave, `MOST_PATHS` at most."""
    waiting = [[at] for at in reversed(first)]
    found = 0
    while waiting and found < MOST_PATHS:
        way = waiting.pop()
        after = board.consumers.get(way[-1], ())
        if not after:
            found += 1
            yield way
        waiting += [[*way, at] for at in reversed(after)]


def seconds_to_answer(board: Board) -> dict[int, float]:
    """Return what a row of an answer costs from each operator on, by the cheapest path."""
    seconds: dict[int, float] = {}
    for at in reversed(board.positions):
        known = board.of(at)
        after = min((seconds[c] for c in board.consumers.get(at, ())), default=0.0)
        # of so many rows one leaves, for which alone the operators behind it work
        seconds[at] = known.cost / known.rows + after if known.rows else math.inf
    return seconds


def weights(board: Board) -> dict[int, float]:
    """Return for each operator the largest WEIGHT of the queries that need it."""
    found: dict[int, float] = {}
    for at in reversed(board.positions):
        after = [found[c] for c in board.consumers.get(at, ())]
        found[at] = max(after, default=board.promise(at).weight)
    return found


def chart_of(board: Board, way: Sequence[int], rows: float = 1.0) -> list[Point]:
    """Return the chart of operators one after another, for ``rows`` rows that come to the first."""
    points = [(0.0, rows * size_in(board, way[0]))] if way else []
    for at in way:
        known = board.of(at)
        spent = points[-1][0] + rows * known.cost
        points.append((spent, rows * size_out(board, at)))
        rows *= known.rows
    return points


def chain_lines(board: Board) -> Iterator[Line]:
    """Yield every path with the segments of Chain."""
    for way in paths(board, board.leaves):
        yield Line.of(way, chart_of(board, way))


def shared_lines(board: Board) -> Iterator[Line]:
    """Yield the parts of shared Chain: prefixes, the readers of what is shared, the rests.

    The readers of one output form one segment with their mean selectivity.
    """
    waiting = [(at, 1.0) for at in board.leaves]
    seen: set[int] = set()
    while waiting:
        at, rows = waiting.pop()
        if at in seen:
            continue
        way, came = [at], rows
        while True:
            seen.add(at)
            rows *= board.of(at).rows
            after = [c for c in board.consumers.get(at, ()) if c not in seen]
            if len(after) != 1 or len(board.consumers[at]) > 1:
                break
            at = after[0]
            way.append(at)
        yield Line.of(way, chart_of(board, way, came))
        if len(after) > 1:
            yield _serial(board, after, rows)
            seen.update(after)
            for reader in after:
                left = rows * board.of(reader).rows
                waiting += [(c, left) for c in board.consumers.get(reader, ())]
        elif after:
            waiting.append((after[0], rows))


def _serial(board: Board, readers: Sequence[int], rows: float) -> Line:
    """Return the readers of a shared output as one segment."""
    size = rows * size_in(board, readers[0])
    spent = rows * sum(board.of(at).cost for at in readers)
    left = rows * sum(size_out(board, at) for at in readers) / len(readers)
    slope = (size - left) / max(spent, INSTANT)
    points = ((0.0, size), (spent, left))
    return Line(tuple(readers), points, (Segment(0, len(readers), slope),))


def merged_lines(board: Board) -> Iterator[Line]:
    """Yield one chart for all that is made of an input, in which shared outputs are stored once.

    The readers of an output come one after another, then what follows each of them.
    """
    for leaf in board.leaves:
        order = list(_in_line(board, leaf))
        points = [(0.0, size_in(board, leaf))]
        comes = {leaf: 1.0}
        live: dict[int, tuple[float, int]] = {leaf: (size_in(board, leaf), 1)}
        of_reader: dict[int, list[int]] = {leaf: [leaf]}
        for at in order:
            known, rows = board.of(at), comes[at]
            for output in of_reader[at]:
                size, readers = live[output]
                live[output] = (size, readers - 1)
            after = [c for c in board.consumers.get(at, ()) if c in order]
            key = -1 - at
            live[key] = (rows * size_out(board, at), len(after))
            for c in after:
                comes[c] = comes.get(c, 0.0) + rows * known.rows
                of_reader.setdefault(c, []).append(key)
            held = sum(size for size, readers in live.values() if readers)
            points.append((points[-1][0] + rows * known.cost, held))
        yield Line.of(order, points)


def _in_line(board: Board, leaf: int) -> Iterator[int]:
    """Yield the operators behind a leaf: those that read one output together, then each rest."""
    yield leaf
    seen = {leaf}
    waiting = [leaf]
    while waiting:
        readers = [c for c in board.consumers.get(waiting.pop(), ()) if c not in seen]
        seen.update(readers)
        yield from readers
        waiting += reversed(readers)
