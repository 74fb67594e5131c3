"""The log of a sink folder: one line for every delivered batch, each chained to the one before.

A line says what the file of a batch must hold: rows, bytes, a checksum, and the lineage of the
batch.  It is forced to disk before the file gets its name, so a file without a line, or a line that
does not fit, was not made by a run that went on as it should.  A last line without an end was cut
short by a crash and was never counted on.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.errors import StateError
from penstock.runs.files import replace_file, sync_folder
from penstock.runs.manifest import canonical


@dataclass(frozen=True)
class Entry:
    """What was delivered in a batch."""

    batch: int
    lineage: str
    rows: int
    bytes: int
    crc: int


class DeliveryLog:
    """The log of one query's files in a sink folder."""

    def __init__(self, path: Path, fsync: bool) -> None:
        self.path = path
        self._fsync = fsync
        self._end = -1
        self._chain = ""

    def read(self) -> list[Entry]:
        """Return all lines; a log that was altered is refused."""
        return list(self._entries())

    def _entries(self) -> Iterator[Entry]:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            data = b""
        end, chain, last = 0, "", -1
        for line in data.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            try:
                found = json.loads(line)
                told = found.pop("chain")
                entry = Entry(**found)
                fits = told == _chained(chain, entry) and entry.batch > last
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                fits = False
            if not fits:
                raise StateError(
                    f"the log {self.path} must list the batches that were delivered, one after "
                    f"another, but the line at byte {end} was altered; bring the file back from a "
                    f"copy, or give the query a new sink"
                )
            yield entry
            end, chain, last = end + len(line), told, entry.batch
        self._end, self._chain = end, chain

    def append(self, entry: Entry) -> None:
        """Add a line, and force it to disk."""
        if self._end < 0:
            self.read()
        chain = _chained(self._chain, entry)
        line = canonical(asdict(entry) | {"chain": chain}).encode() + b"\n"
        is_new = not self.path.exists()
        with open(self.path, "ab") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            self._check_alone()
            log.truncate(self._end)
            log.write(line)
            log.flush()
            if self._fsync:
                os.fsync(log.fileno())
        if is_new and self._fsync:
            sync_folder(self.path.parent)
        self._end, self._chain = self._end + len(line), chain

    def _check_alone(self) -> None:
        """Check that nobody else has added a line: what is more is a line cut short by a crash."""
        with open(self.path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(min(self._end, size))
            more = log.read()
        if size < self._end or b"\n" in more:
            raise StateError(
                f"the log {self.path} must be written by one run alone, but another one, of a copy "
                f"of the checkpoint, has written to it; stop one of them, and take the sink back "
                f"by penstock checkpoint rewind-sink"
            )

    def replace(self, entries: Iterable[Entry]) -> None:
        """Put other lines in place of all."""
        chain, lines = "", []
        for entry in entries:
            chain = _chained(chain, entry)
            lines.append(canonical(asdict(entry) | {"chain": chain}).encode() + b"\n")
        data = b"".join(lines)
        replace_file(self.path, data, self._fsync, shared=True)
        self._end, self._chain = len(data), chain


def _chained(before: str, entry: Entry) -> str:
    text = before + canonical(asdict(entry))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
