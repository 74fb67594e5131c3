"""Queues between operators: what an operator makes is stored once for all its readers.

Each reader is at its own place, and a message is freed when the last one has passed [E 5.3.3,
D 3.2].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from penstock.model import Batch, Message


class Stored:
    """A message that ``readers`` have still to take, of train number ``train``.

    ``made``: an operator has made it; otherwise it came from outside.  ``spilled``: its rows lie in
    a file.  ``size`` is that of its rows, if it is known already.
    """

    __slots__ = ("bytes", "made", "message", "readers", "rows", "spilled", "train")

    def __init__(
        self, message: Message, train: int, made: bool = False, size: int | None = None
    ) -> None:
        self.message = message
        self.train = train
        self.made = made
        self.spilled = False
        self.readers = 0
        self.rows = self.bytes = 0
        if isinstance(message, Batch):
            self.rows = len(message)
            self.bytes = message.nbytes if size is None else size


class Queue:
    """What waits for one port of an operator, first in, first out [A].

    ``rows`` and ``bytes`` are those that wait in it; ``columns`` are those that the reader needs,
    None: all.
    """

    def __init__(self, columns: Sequence[int] | None = None) -> None:
        self._waiting: deque[Stored] = deque()
        self._taken = 0
        """Rows of the first message that are taken already."""
        self._columns = columns
        self.rows = self.bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def train(self) -> int:
        """The train of what comes next; something must wait."""
        return self._waiting[0].train

    def put(self, stored: Stored) -> None:
        """Add a message."""
        stored.readers += 1
        self._waiting.append(stored)
        self.rows += stored.rows
        self.bytes += stored.bytes

    def take(self, most: int = 0) -> tuple[Message, Stored | None]:
        """Return the next message, at most so many of its rows (0: all), and what has left.

        That is what was stored if all its rows are taken now, otherwise nothing.
        """
        stored = self._waiting[0]
        message = stored.message
        if isinstance(message, Batch):
            first, last = self._taken, len(message)
            if most and last - first > most:
                last = first + most
            self.rows -= last - first
            self.bytes -= self._share(stored, last) - self._share(stored, first)
            if (first, last) != (0, len(message)):
                message = message.slice(first, last)
            if self._columns is not None:
                message = message.with_columns([message.columns[c] for c in self._columns])
            if last < stored.rows:
                self._taken = last
                return message, None
        self._waiting.popleft()
        self._taken = 0
        stored.readers -= 1
        return message, stored

    @staticmethod
    def _share(stored: Stored, rows: int) -> int:
        return stored.bytes * rows // max(1, stored.rows)
