"""Messages between the driver and the process of the lane, over a pair of sockets.

Both ends are one program: the driver makes the pair and starts the process with one end of it, and
nobody else can open it.  So messages are pickled, as those to Spark's workers are; none of them is
ever written to a file.
"""

from __future__ import annotations

import pickle
import socket
import struct
import time
from typing import Any

_LENGTH = struct.Struct("<Q")


class Talk:
    """Messages over a socket; none takes longer than it may, whatever the other end does."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def send(self, message: Any, seconds: float | None = None) -> None:
        """Send a message; TimeoutError: the other end does not take it."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._socket.settimeout(seconds)
        self._socket.sendall(_LENGTH.pack(len(data)))
        self._socket.sendall(data)

    def recv(self, seconds: float | None = None) -> Any:
        """Return the next message; EOFError: the other end is gone."""
        until = None if seconds is None else time.monotonic() + seconds
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, until))
        return pickle.loads(self._read(length, until))  # noqa: S301

    def _read(self, length: int, until: float | None) -> bytearray:
        found = bytearray(length)
        rest = memoryview(found)
        while len(rest):
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            read = self._socket.recv_into(rest)
            if read == 0:
                raise EOFError
            rest = rest[read:]
        return found

    def close(self) -> None:
        self._socket.close()
