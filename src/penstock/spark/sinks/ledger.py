"""Ledgers: the last batch that a sink outside our reach has got, kept beside the checkpoint.

A sink that cannot tell what it holds is asked nothing: the ledger says what was delivered.  A crash
between the delivery and the ledger's entry delivers that one batch again, which is why such sinks
also get the batch number.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from urllib.parse import quote

from penstock.errors import StateError


class Ledger:
    """The delivered batches of one query; kept in memory only when there is no folder."""

    def __init__(self, folder: Path | None, query: str) -> None:
        self._path = None if folder is None else folder / f"{quote(query, safe='')}.json"
        self._last = -1
        if self._path is not None and self._path.exists():
            try:
                self._last = int(json.loads(self._path.read_text())["batch"])
            except (ValueError, KeyError, TypeError):
                raise StateError(
                    f"the ledger '{self._path}' must say which batch was delivered last, but it is "
                    f'damaged; look into the sink and write {{"batch": <number>}} into it'
                ) from None

    def has(self, batch: int) -> bool:
        """Whether a batch was delivered."""
        return batch <= self._last

    def add(self, batch: int) -> None:
        """Write down that a batch was delivered."""
        self._last = batch
        if self._path is not None:
            _write(self._path, json.dumps({"batch": batch}))


def run_identity(folder: Path | None) -> str | None:
    """Return the identity of a checkpoint, made when it is first asked for; None without one."""
    if folder is None:
        return None
    path = folder / "identity"
    if not path.exists():
        _write(path, uuid.uuid4().hex)
    return path.read_text().strip()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.tmp")
    with open(hidden, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(hidden, path)
