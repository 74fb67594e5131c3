"""What the driver tells the source, which is planned in a process of its own, by two small files.

* A *tick* says that a batch is due although no rows have come: a number larger than any before it.
  The source's offset holds the last one that it has seen, so a new one makes a batch.
* Streams that are *held* are not read for now: they are further ahead of others than their STEP.

Both are in the checkpoint folder, and no answer depends on them.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from penstock.runs.files import replace_file

FILE = "tick"
HELD = "held.json"
STREAM = ""
"""Under this name, which no stream has, an offset holds the last tick."""

_LOOKS = 0.01
"""Seconds between two looks at whether a batch is due."""

_PATIENCE = 1.0
"""Seconds after which a tick that made no batch is given again."""


def last_tick(folder: str | Path | None) -> int:
    """Return the newest tick; 0 where there is none."""
    if folder is not None:
        with contextlib.suppress(OSError, ValueError):
            return int((Path(folder) / FILE).read_text())
    return 0


def hold(folder: str | Path, streams: Iterable[str]) -> None:
    """Hold some streams, and no others."""
    content = json.dumps(sorted(streams)).encode()
    replace_file(Path(folder) / HELD, content, fsync=False)


def held(folder: str | Path | None) -> frozenset[str]:
    """Return the streams that are not to be read for now."""
    if folder is not None:
        with contextlib.suppress(OSError, ValueError, TypeError):
            return frozenset(json.loads((Path(folder) / HELD).read_text()))
    return frozenset()


class Ticker:
    """Writes a tick whenever ``is_due`` says so; ``batch`` tells the newest batch."""

    def __init__(
        self, folder: str | Path, is_due: Callable[[], bool], batch: Callable[[], int]
    ) -> None:
        self._path = Path(folder) / FILE
        self._is_due = is_due
        self._batch = batch
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look, in a thread of its own."""
        self.stop()
        self._stopped.clear()
        self._thread = threading.Thread(target=self._look, name="penstock-ticker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None

    def _look(self) -> None:
        while not self._stopped.wait(_LOOKS):
            if self._is_due():
                replace_file(self._path, str(time.time_ns()).encode(), fsync=False)
                self._await_batch(self._batch())

    def _await_batch(self, before: int) -> None:
        until = time.monotonic() + _PATIENCE
        while self._batch() == before and time.monotonic() < until:
            if self._stopped.wait(_LOOKS):
                return
