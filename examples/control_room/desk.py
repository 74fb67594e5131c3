"""The desk of the control room: what the sinks hold, and alarms that are raised by hand.

While the demo runs, from a second terminal:

    .venv/bin/python examples/control_room/desk.py 17 oil on the floor

An alarm goes into the memory stream ``calls`` of the process that runs the queries, as
``penstock push`` would put it there.  Its time is that which the control room's screen has reached.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from generate import LENGTH, START, turbines

import penstock

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "demo-output"
ANSWERS = OUTPUT / "answers"
CHECKPOINT = OUTPUT / "checkpoint"
TURBINES = len(turbines())

Row = dict[str, Any]


class Answers:
    """The rows of one sink. Files never change, so each is read once; a view's is read again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._rows: list[Row] = []
        self._read: set[str] = set()

    def rows(self) -> list[Row]:
        """Everything that has come so far; of a view, what it holds now."""
        for path in sorted((ANSWERS / self.name).glob("*.jsonl")):
            if path.stem.endswith("-view"):
                return parsed(path)
            if path.name not in self._read:
                self._read.add(path.name)
                self._rows += parsed(path)
        return self._rows


def parsed(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


LENGTH_OF_DATA = datetime.fromtimestamp(LENGTH) - datetime.fromtimestamp(0)


def clock(text: str | None) -> datetime:
    """The time of an answer; an answer without an end holds until the end of the data."""
    return datetime.fromisoformat(text) if text else START.to_pydatetime() + LENGTH_OF_DATA


def reached(hottest: Answers) -> datetime | None:
    """The time that the control room has reached: up to it answers are final."""
    return max((clock(row["_time"]) for row in hottest.rows()), default=None)


class Desk:
    """Raises alarms, and promises that older ones do not follow: so nobody waits for them."""

    def __init__(self) -> None:
        self._hottest = Answers("hottest")
        self._calls: Any = None
        self._reached: datetime | None = None
        self.finished = False

    def opens(self) -> bool:
        """Whether alarms can be raised: the queries have begun and nobody has ended the stream."""
        now = reached(self._hottest)
        if self.finished or now is None:
            return False
        if self._calls is None:
            self._calls = penstock.open_checkpoint(CHECKPOINT).writer("calls")
        return True

    def call(self, turbine: int, text: str) -> None:
        """Raise an alarm, now."""
        now = reached(self._hottest)
        self._calls.push([(turbine, text, time.time(), now)])

    def follow(self) -> None:
        """Promise what the screen showed before: others may still raise an alarm of that time."""
        now = reached(self._hottest)
        if now is not None and now != self._reached:
            if self._reached is not None:
                self._calls.heartbeat(self._reached)
            self._reached = now

    def finish(self) -> None:
        """End the stream of alarms."""
        self.finished = True
        self._calls.finish()


def main() -> None:
    if len(sys.argv) < 3 or not sys.argv[1].isdigit() or not 1 <= int(sys.argv[1]) <= TURBINES:
        sys.exit(f"give a turbine from 1 to {TURBINES} and what has happened: 17 oil on the floor")
    desk = Desk()
    if not desk.opens():
        sys.exit("nobody is in the control room: start `make demo`, and wait for the first answers")
    try:
        desk.call(int(sys.argv[1]), " ".join(sys.argv[2:]))
    except penstock.PenstockError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
