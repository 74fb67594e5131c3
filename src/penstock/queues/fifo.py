"""The normal queue between two operators: first in, first out [A]."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from penstock.model import Batch, Message


class Queue(Protocol):
    """What a fragment needs of a queue; a message (a train of rows) is the unit of work.

    ``rows`` and ``bytes`` are those of the rows that wait in it.
    """

    rows: int
    bytes: int

    def put(self, message: Message) -> None:
        """Add a message."""

    def take(self) -> Message:
        """Remove and return the next message."""

    def __len__(self) -> int: ...


class Fifo:
    """A queue in order of arrival."""

    def __init__(self) -> None:
        self._messages: deque[tuple[Message, int]] = deque()
        self.rows = self.bytes = 0

    def put(self, message: Message) -> None:
        size = 0
        if isinstance(message, Batch):
            size = message.nbytes
            self.rows += len(message)
            self.bytes += size
        self._messages.append((message, size))

    def take(self) -> Message:
        message, size = self._messages.popleft()
        if isinstance(message, Batch):
            self.rows -= len(message)
            self.bytes -= size
        return message

    def __len__(self) -> int:
        return len(self._messages)
