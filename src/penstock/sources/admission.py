"""Admission: how many rows the next micro-batch may take so that it lasts about as long as asked.

A batch costs about ``a + b * rows`` seconds: a fixed part that Spark needs for any job, and work
that follows the rows.  Both are fitted to the last batches by least squares, and the next batch
gets ``(target - a) / b`` rows.  When the fixed part alone takes half of the target, the target is
twice the fixed part: smaller batches would only do less work in the same time.  Batches of one size
cannot tell the two parts apart, so every fourth one is of another size on purpose.

Answers do not depend on it, since they do not depend on how rows are cut into batches.  The number
goes to the planning process of each source through a small file in the checkpoint folder, replaced
by one rename; where there is none, ``batch.rows`` holds.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from penstock.runs.files import replace_file

FILE = "admission.json"

LEAST_ROWS = 1_000
"""A batch is never made smaller: below this, a job costs more than its rows."""

FIRST_ROWS = 100_000
"""Rows of the first batches, before anything has been measured."""

_SHRINK, _GROW = 4.0, 2.0
"""The limit shrinks and grows at most by these factors at once."""

_PROBE_EVERY = 4

_REMEMBERED = 12

_TRUSTED = 6
"""So many batches must be known before the target is stretched for the fixed part."""


class Admission:
    """The limit of rows per batch of Penstock's own sources, adapted after each batch.

    ``seconds`` is the wanted time of a batch (0: do not adapt), ``most`` the setting batch.rows.
    """

    def __init__(self, folder: str | Path, seconds: float, most: int) -> None:
        self.path = str(Path(folder).absolute() / FILE)
        self._target = seconds
        self._most = most
        self._least = min(LEAST_ROWS, most)
        self._warm = False
        self._recent: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)
        first = _read(self.path, "total", min(FIRST_ROWS, most)) if seconds else most
        self.rows = self._within(first)
        self._sources = 1
        self._allowed = self.rows
        self._noted = 0

    def start(self) -> None:
        """Publish the limit; the first batch has to wait for workers to start: it is no guide."""
        self._warm = False
        self._publish()

    def note(self, came: Mapping[str, int], seconds: float) -> None:
        """Take note of a batch with the rows that came of each stream; set the next one's limit."""
        rows = sum(came.values())
        if not self._warm:
            self._warm = True
            return
        if not self._target or rows == 0:
            return
        self._recent.append((rows, seconds))
        if rows * 2 < self._allowed and seconds <= self._target:
            return  # it took all there was, in time: nothing says that the limit is wrong
        fixed, each = fit(list(self._recent))
        if len(self._recent) < _TRUSTED:
            fixed = min(fixed, self._target / 2)
        wanted = (max(self._target, 2 * fixed) - fixed) / each
        self.rows = self._within(min(max(wanted, self.rows / _SHRINK), self.rows * _GROW))
        self._allowed = self.rows
        self._noted += 1
        if self._noted % _PROBE_EVERY == 0:
            small = self.rows < 1.5 * self._least
            self._allowed = self._within(self.rows * _GROW if small else self.rows / 2)
        self._sources = sum(count > 0 for count in came.values())
        self._publish()

    def _within(self, rows: float) -> int:
        return max(self._least, min(int(rows), self._most))

    def _publish(self) -> None:
        if not self._target:
            Path(self.path).unlink(missing_ok=True)
            return
        share = max(self._least, self._allowed // self._sources)
        content = json.dumps({"total": self.rows, "rows": share})
        replace_file(Path(self.path), content.encode(), fsync=False)


def fit(batches: list[tuple[int, float]]) -> tuple[float, float]:
    """Return the fixed seconds of a batch, and the seconds of each row, above 0.

    Where batches have nearly one size, all time is put on the rows.  Where larger ones took no
    longer, all of it is fixed.
    """
    rows = np.array([r for r, _ in batches], np.float64)
    seconds = np.array([s for _, s in batches], np.float64)
    mean, usual = float(rows.mean()), float(seconds.mean())
    spread = rows - mean
    each = usual / mean
    if np.abs(spread).max() > 0.1 * mean:
        slope = float((spread * (seconds - usual)).sum() / (spread * spread).sum())
        each = min(max(slope, 0.0), each)
    return usual - each * mean, max(each, 1e-9)


def admitted(path: str | None, otherwise: int) -> int:
    """Return the limit that is in force for one source, or ``otherwise`` where none is told."""
    return otherwise if path is None else min(otherwise, _read(path, "rows", otherwise))


def _read(path: str, name: str, otherwise: int) -> int:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, ArithmeticError):
        return max(1, int(json.loads(Path(path).read_text())[name]))
    return otherwise
