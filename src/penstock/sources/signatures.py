"""What an input file was when it was first seen, and the sentence that says how it has changed.

A signature is a name, a size and a modification time in nanoseconds.  Contents are not compared: a
file of the same size and time counts as the same.  Copies that keep times keep them whole (``cp
-p``, ``rsync -a``) or cut to seconds (``tar``): both count as the same time.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from penstock.errors import DataError, StateError
from penstock.runs.files import (
    lock,
    make_folder,
    open_to_append,
    read_file,
    replace_file,
    room_for,
)
from penstock.sources.offsets import START, chained

LIST = "files.jsonl"
_UNITS = (1, 100, 1_000, 1_000_000, 1_000_000_000)
"""Nanoseconds to which file systems and archives cut a modification time."""


@dataclass(frozen=True)
class Signature:
    """The name of a file, its bytes, and when it was last written, in nanoseconds."""

    name: str
    size: int
    time: int


def signature(stream: str, path: str) -> Signature:
    """Return the signature that a file has now."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"the file '{path}' of stream {stream} must stay until its rows have been read, but "
            f"it is gone; bring it back, or start with a new checkpoint"
        ) from None
    return Signature(os.path.basename(path), found.st_size, found.st_mtime_ns)


def check_unchanged(stream: str, path: str, known: Signature) -> None:
    """Check that a file is as it was when it was first seen; if not, say what has changed."""
    now = signature(stream, path)
    if now.size != known.size:
        raise DataError(
            f"the file '{path}' of stream {stream} must stay as it was until its rows have been "
            f"read, but it had {known.size} bytes and has {now.size} now; bring the old file back, "
            f"or start with a new checkpoint"
        )
    if not _same_time(known.time, now.time):
        then = _shown(known.time)
        raise DataError(
            f"the file '{path}' of stream {stream} must stay as it was until its rows have been "
            f"read, but it was last written at {then} and now at {_shown(now.time)}; if its "
            f"contents are the same, restore the time (touch -d '{then}' {shlex.quote(path)}, "
            f"touch -r, cp -p), else bring the old file back, or start with a new checkpoint"
        )


def _same_time(known: int, now: int) -> bool:
    return any(known - known % unit == now for unit in _UNITS)


def _shown(time: int) -> str:
    seconds, rest = divmod(time, 1_000_000_000)
    at = datetime.fromtimestamp(seconds, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}.{rest:09d}Z"


def digest(files: Sequence[Signature]) -> str:
    """Return the digest of some files, in their order."""
    chain = START
    for file in files:
        chain = chained(chain, _text(file))
    return chain


def _text(file: Signature) -> bytes:
    return json.dumps([file.name, file.size, file.time]).encode()


def _line(chain: str, file: Signature) -> bytes:
    told = {"name": file.name, "size": file.size, "time": file.time, "chain": chain}
    return json.dumps(told).encode() + b"\n"


class FileList:
    """Signatures in a file beside the checkpoint, a JSON line each, only ever appended to.

    Each line ends with the digest of all lines up to it, so that damage is seen and a position can
    tell, with one digest, all the files that it counts on.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / LIST
        self.files: list[Signature] = []
        self._chains = [START]
        self._length = 0

    def digest(self, count: int) -> str | None:
        """Return the digest of the first files, None if there are fewer."""
        return self._chains[count] if count < len(self._chains) else None

    def refresh(self) -> None:
        """Read what was appended; a last line that a crash cut short was never counted on."""
        data = read_file(self.path) or b""
        self._take(data)

    def append(self, found: Sequence[Signature]) -> None:
        """Add files that are not in the list yet, and force the list to disk."""
        make_folder(self.path.parent)
        with room_for(f"the list {self.path}"), open_to_append(self.path) as kept:
            lock(kept.fileno(), self.path)
            self._take(kept.read())
            known = {file.name for file in self.files}
            lines = b""
            for file in found:
                if file.name not in known:
                    lines += self._add(file, chained(self._chains[-1], _text(file)))
            kept.seek(self._length - len(lines))
            kept.truncate()
            kept.write(lines)
            kept.flush()
            os.fsync(kept.fileno())

    def replace(self, files: Sequence[Signature]) -> None:
        """Put a whole new list in the place of this one, if it is another."""
        self.files, self._chains, self._length = [], [START], 0
        data = b"".join(self._add(file, chained(self._chains[-1], _text(file))) for file in files)
        if read_file(self.path) != data:
            make_folder(self.path.parent)
            with room_for(f"the list {self.path}"):
                replace_file(self.path, data, fsync=True)

    def _add(self, file: Signature, chain: str) -> bytes:
        line = _line(chain, file)
        self.files.append(file)
        self._chains.append(chain)
        self._length += len(line)
        return line

    def _take(self, data: bytes) -> None:
        if len(data) < self._length:
            self.files, self._chains, self._length = [], [START], 0
        whole = data.rfind(b"\n") + 1
        for line in data[self._length : whole].split(b"\n")[:-1]:
            file = _parsed(line)
            chain = None if file is None else chained(self._chains[-1], _text(file))
            if file is None or chain is None or _line(chain, file) != line + b"\n":
                raise StateError(
                    f"the list of files {self.path} must hold a name, a size, a time and a digest "
                    f"of all before in line {len(self.files) + 1}, got {line[:80]!r}; it is "
                    f"damaged: bring it back from a copy, or use another --checkpoint"
                )
            self._add(file, chain)


def _parsed(line: bytes) -> Signature | None:
    try:
        told = json.loads(line)
        return Signature(str(told["name"]), int(told["size"]), int(told["time"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
