"""Failure points: named places where a test makes the program die, fail, wait or find no disk.

``PENSTOCK_FAIL="point=action[@n]"``, several of them separated by commas, acts when a point is
passed for the n-th time (the first, if it is not said), once.  Passages are counted over all
processes of a run: the tasks in Spark's Python workers get the orders with their job.  When the
variable is not set, passing a point costs one comparison.

Actions: ``kill`` ends the process that passes, as a power cut would; ``crash`` ends the driver
too, when a worker passes; ``raise`` fails; ``sleep:seconds`` waits; ``nospace`` is a full disk.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from penstock.errors import ConfigError, StateError, suggest
from penstock.temporary import new_folder

VARIABLE = "PENSTOCK_FAIL"

POINTS = {
    "lock-taken": "the checkpoint is locked, nothing has been read yet",
    "offsets-read": "Spark has planned a batch, its tasks have not begun",
    "run-written": "a task has written a run, its file is not closed",
    "run-synced": "a task has closed its file and forced it to disk",
    "tasks-done": "a task is done, others are not",
    "merge-before-manifest": "runs have been merged, no manifest knows it yet",
    "manifest-temp": "the manifest is written under a temporary name",
    "manifest-renamed": "the manifest is committed",
    "sink-before": "a sink has not got the batch yet",
    "sink-transaction": "a database has got the batch, its transaction is not committed",
    "sink-committed": "the transaction is committed, nobody has been told yet",
    "sink-after": "a sink has got the batch",
    "sweep-middle": "some of the files that are not needed any more are deleted",
    "before-return": "the batch is delivered, Spark has not written its own commit",
    "query-added": "a query has been added between two batches",
    "query-dropped": "a query has been dropped between two batches",
    "query-replaced": "a query gets another text between two batches",
    "lane-handed-over": "a batch has been given its rows, what of them the lane answered is known",
    "lane-answered": "the process of the lane has answered rows, nobody knows it yet",
    "lane-journal-before": "the lane has answered rows, its journal does not know it yet",
    "lane-journal-torn": "half of a turn is written into the journal",
    "lane-journal-after": "the turn is in the journal, on disk, nobody has got it yet",
    "lane-deliver-before": "a sink has not got the turn yet",
    "lane-deliver-after": "a sink has got the turn",
}
"""Every failure point, and where it is."""

ACTIONS = ("kill", "crash", "raise", "sleep", "nospace")


@dataclass(frozen=True)
class Orders:
    """What is to happen where; ``folder`` counts the passages, ``driver`` is a process."""

    text: str
    folder: str = ""
    driver: int = 0


_orders = Orders(os.environ.get(VARIABLE, ""))


def passing(point: str) -> None:
    """Say that a failure point is passed."""
    if _orders.text:
        _pass(point)


def arm(text: str) -> None:
    """Give orders to this process, in place of those of the environment; none with ``""``."""
    global _orders
    _orders = Orders(text)


def orders() -> str:
    """Return the orders as a task takes them with it: an empty text when there are none."""
    if not _orders.text:
        return ""
    found = _counting()
    return json.dumps([found.text, found.folder, found.driver])


def obey(carried: str) -> None:
    """Take over the orders that a task has brought along."""
    global _orders
    if carried or _orders.text:
        _orders = Orders(*json.loads(carried)) if carried else Orders("")


def _counting() -> Orders:
    """Return the orders, with the folder where passages are counted."""
    global _orders
    if not _orders.folder:
        folder = str(new_folder("fail"))
        _orders = Orders(_orders.text, folder, os.getpid())
    return _orders


def _pass(point: str) -> None:
    failures = parse(_orders.text)
    if point not in failures:
        return
    action, number = failures[point]
    if _count(Path(_counting().folder, point)) != number:
        return
    name, _, argument = action.partition(":")
    if name == "sleep":
        time.sleep(float(argument))
    elif name == "raise":
        raise StateError(f"the failure point {point} was told to raise")
    elif name == "nospace":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    else:
        if name == "crash" and _orders.driver != os.getpid():
            os.kill(_orders.driver, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def _count(path: Path) -> int:
    """Count a passage; every one of all processes gets a number of its own, from 1."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, b".")
        return os.lseek(handle, 0, os.SEEK_CUR)
    finally:
        os.close(handle)


@lru_cache(maxsize=16)
def parse(text: str) -> dict[str, tuple[str, int]]:
    """Return the action and the passage of each point that a text names."""
    found: dict[str, tuple[str, int]] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        point, _, rest = item.partition("=")
        action, _, number = rest.partition("@")
        name, _, argument = action.partition(":")
        if point not in POINTS:
            raise ConfigError(
                f"{VARIABLE} must name a failure point, got '{point}'; {suggest(point, POINTS)}"
            )
        timed = name == "sleep"
        if name not in ACTIONS or timed != bool(argument) or not (number or "1").isdecimal():
            raise ConfigError(
                f"{VARIABLE} must say point=action or point=action@n with an action of "
                f"{', '.join(ACTIONS)} (sleep:seconds), got '{item}'"
            )
        found[point] = action, int(number or "1")
    return found
