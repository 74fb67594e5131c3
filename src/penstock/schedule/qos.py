"""Quality of service: the query first whose utility falls fastest per second of work [E 4.4.1].

A query says how soon it wants its answers and how much they count (`WITHIN`, `WEIGHT`).  An answer
is worth its weight in time, and the less the later it comes; nothing when it takes twice as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.schedule.board import Board, Promise

_ALIKE = 2.0
"""What differs in worth per second by less than this factor is given up alike."""

_LOOKS = 30
"""A choice holds for about this part of the time that is left."""


@dataclass
class Way:
    """The operators that an answer needs, in order, and what waits for them.

    ``seconds`` is the work, ``messages`` how many there are, ``oldest`` the train of the first.
    """

    operators: tuple[int, ...]
    promise: Promise
    seconds: float = 0.0
    messages: int = 0
    oldest: int = 0

    def look(self, board: Board) -> None:
        """Find out what waits."""
        come: dict[int, float] = {}
        self.seconds, self.messages = 1e-9, 0
        for at in self.operators:
            if board.waits(at):
                if not self.messages or board.oldest(at) < self.oldest:
                    self.oldest = board.oldest(at)
                self.messages += 1 + sum(map(len, board.queues[at]))
            rows = come.get(at, 0.0) + board.rows(at)
            if rows:
                known = board.of(at)
                self.seconds += rows * known.cost
                for after in board.consumers.get(at, ()):
                    come[after] = come.get(after, 0.0) + rows * known.rows

    def left(self, age: float) -> float:
        """Return the seconds until the answers should be there."""
        return math.inf if self.promise.within is None else self.promise.within - age

    @property
    def own(self) -> float:
        """The seconds that one train takes."""
        return self.seconds / self.messages

    @property
    def density(self) -> float:
        """What a second of work brings, in time."""
        return self.promise.weight / self.own


def in_time(ways: Sequence[Way], age: float) -> list[tuple[Way, float]]:
    """Return the ways to run, by the time that is left, with the share that can be in time.

    Where there is not time for all, most is given up of what is worth least per second.
    """
    order = sorted(ways, key=lambda way: (way.left(age), way.oldest))
    order = [way for way in order if way.left(age) > way.own]
    shares = [1.0] * len(order)
    work = 0.0
    for last, way in enumerate(order):
        work += way.seconds
        while work > way.left(age) + 1e-12:
            kept = [n for n in range(last + 1) if shares[n] > 0]
            least = min(order[n].density for n in kept)
            group = [n for n in kept if order[n].density <= _ALIKE * least]
            held = sum(shares[n] * order[n].seconds for n in group)
            cut = min(1.0, (work - way.left(age)) / held)
            for n in group:
                shares[n] = 0.0 if cut == 1.0 else shares[n] * (1 - cut)
            work = sum(shares[n] * order[n].seconds for n in range(last + 1))
    return list(zip(order, shares, strict=True))


class Qos:
    """Runs the query that should be first, for a while, then chooses again.

    Those that can be answered in time come by the time that is left, then the oldest train.  What
    is late already follows by what it is still worth per second of work.
    """

    def open(self, board: Board) -> None:
        self.board = board
        outputs = [at for at in board.positions if not board.consumers.get(at)]
        makers = _makers(board)
        self._ways = {at: Way(_below(makers, at), board.promise(at)) for at in outputs}
        self._through: dict[int, list[int]] = {}
        for output, way in self._ways.items():
            for at in way.operators:
                self._through.setdefault(at, []).append(output)
        self._changed: set[int] = set()
        self._ready: set[int] = set()
        self._chosen: int | None = None
        self._until = 0.0

    def ready(self, at: int) -> None:
        self._ready.add(at)
        self._changed.update(self._through.get(at, ()))

    def next(self) -> int | None:
        at = self._nearest(self._chosen)
        if at is None:
            self._chosen = self._choose()
            at = self._nearest(self._chosen)
        if at is None:  # nobody's answer waits for it, or a train is to be admitted
            self._ready = {one for one in self._ready if self.board.is_ready(one)}
            if not self._ready:
                return None
            at = min(self._ready)
        if at == self._chosen and self.board.age() >= self._until:
            self._chosen = None
        self._ready.discard(at)
        self._changed.update(self._through.get(at, ()))
        return at

    def _nearest(self, output: int | None) -> int | None:
        """Return the operator with work that is nearest to an answer."""
        if output is None:
            return None
        return next(
            (at for at in reversed(self._ways[output].operators) if self.board.waits(at)), None
        )

    def _choose(self) -> int | None:
        for output in self._changed:
            self._ways[output].look(self.board)
        self._changed.clear()
        waiting = {output: way for output, way in self._ways.items() if way.messages}
        if not waiting:
            return None
        age = self.board.age()
        for way, share in in_time(list(waiting.values()), age):
            if share * way.messages >= 1 / 2:
                self._until = age + min(way.left(age), way.seconds) / _LOOKS
                return way.operators[-1]
        self._until = 0.0

        def worth(output: int) -> tuple[float, int]:
            way = waiting[output]
            return (-way.promise.utility(age + way.own) / way.own, way.oldest)

        return min(waiting, key=worth)


def _makers(board: Board) -> dict[int, list[int]]:
    """Return for each operator those whose output it reads."""
    found: dict[int, list[int]] = {}
    for at, readers in board.consumers.items():
        for reader in readers:
            found.setdefault(reader, []).append(at)
    return found


def _below(makers: dict[int, list[int]], output: int) -> tuple[int, ...]:
    """Return an operator and all that it needs, in order."""
    found, waiting = set[int](), [output]
    while waiting:
        at = waiting.pop()
        if at not in found:
            found.add(at)
            waiting += makers.get(at, ())
    return tuple(sorted(found))
