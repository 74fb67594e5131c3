"""Ledgers: the last batch that a sink outside our reach has got, kept beside the checkpoint.

A sink that cannot tell what it holds is asked nothing: the ledger says what was delivered.  A crash
between the delivery and the ledger's entry delivers that one batch again, which is why such sinks
also get the batch number.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

from penstock.errors import StateError
from penstock.runs.deliveries import NOTHING, Held
from penstock.runs.files import make_folder, replace_file, room_for
from penstock.runs.manifest import canonical, digest_of


class Ledger:
    """The delivered batches of one query; kept in memory only when there is no folder."""

    def __init__(self, folder: Path | None, query: str) -> None:
        self._path = None if folder is None else folder / f"{quote(query, safe='')}.json"
        self._last = NOTHING
        if self._path is not None and self._path.exists():
            self._last = self._read(self._path)

    def _read(self, path: Path) -> tuple[int, str]:
        try:
            found = json.loads(path.read_bytes())
            told = found.pop("digest")
            if told == digest_of(canonical(found)):
                return int(found["batch"]), str(found["lineage"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        raise StateError(
            f"the ledger '{path}' must say which batch was delivered last, but it is damaged; "
            f"bring it back from a copy, or take it away and go on by --allow-change with what "
            f"comes"
        )

    def held(self) -> Held | None:
        """Return what the ledger says; None if it goes with the process."""
        if self._path is None:
            return None
        batch, lineage = self._last
        return Held(f"the ledger '{self._path}'", batch, lineage, repeatable=False)

    def has(self, batch: int) -> bool:
        """Whether a batch was delivered."""
        return batch <= self._last[0]

    def add(self, batch: int, lineage: str = "") -> None:
        """Write down that a batch was delivered."""
        self._last = batch, lineage
        if self._path is not None:
            entry = {"batch": batch, "lineage": lineage}
            sealed = entry | {"digest": digest_of(canonical(entry))}
            with room_for(f"the ledger '{self._path}'"):
                make_folder(self._path.parent)
                replace_file(self._path, canonical(sealed).encode(), fsync=True)
