"""The normal queue between two operators: first in, first out [A]."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from penstock.model import Message


class Queue(Protocol):
    """What a fragment needs of a queue; a message (a train of rows) is the unit of work."""

    def put(self, message: Message) -> None:
        """Add a message."""

    def take(self) -> Message:
        """Remove and return the next message."""

    def __len__(self) -> int: ...


class Fifo:
    """A queue in order of arrival."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()

    def put(self, message: Message) -> None:
        self._messages.append(message)

    def take(self) -> Message:
        return self._messages.popleft()

    def __len__(self) -> int:
        return len(self._messages)
