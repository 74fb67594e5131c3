"""A side of a benchmark that runs in a process of its own, and is asked by lines."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Job:
    """A running side. Every line that it is sent is answered by one line of JSON."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self.last: dict[str, Any] = {}

    def ask(self, order: str) -> float:
        """Return the seconds that it took; the whole answer is in ``last``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                self.last = json.loads(line)
                return float(self.last["seconds"])
        raise SystemExit(f"a side has ended; it said: {self._log.read_text()[-2000:]}")


@contextmanager
def started(
    command: Sequence[object],
    log: Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Start a process that ends when its standard input does; its errors go to ``log``."""
    with open(log, "w") as errors:
        process = subprocess.Popen(  # noqa: S603 - commands are made here, not given by users
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=folder,
        )
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def running(
    command: Sequence[object],
    log: Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Iterator[Job]:
    """Start a side."""
    with started(command, log, environment, folder) as process:
        yield Job(process, log)
