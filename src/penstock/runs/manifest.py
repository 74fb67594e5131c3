"""Manifests: one atomic file per batch that says what exists. Its rename is the only commit point.

``<checkpoint>/manifest/<batch>.json`` lists the live state runs of every shard, the result runs of
the batch, how far each stream has come, and which queries run since when.  A file that no manifest
names is garbage of a crash and is swept.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import StateError

FORMAT = 1


@dataclass
class Manifest:
    """Everything that is true after a batch."""

    batch: int = -1
    format: int = FORMAT
    shards: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    queries: dict[str, dict[str, Any]] = field(default_factory=dict)
    progress: dict[str, dict[str, Any]] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)

    def files(self) -> set[str]:
        """Return the names of all segment files that this manifest needs."""
        found = {r["place"]["file"] for r in self.results}
        found |= {r["place"]["file"] for r in self.rejects}
        for shard in self.states:
            for state in shard.values():
                for runs in state["runs"].values():
                    found |= {run["place"]["file"] for run in runs}
        return found


class Checkpoint:
    """The checkpoint folder of one pipeline: manifests, segments, Spark's own files, a lock."""

    def __init__(self, folder: str, fsync: bool = True, retain: int = 10) -> None:
        self.folder = Path(folder).absolute()
        self.segments = str(self.folder / "segments")
        self.spark = str(self.folder / "spark")
        self._manifests = self.folder / "manifest"
        self._fsync = fsync
        self._retain = retain
        self._lock: int | None = None
        try:
            for part in (self.folder, Path(self.segments), self._manifests):
                part.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(
                f"the checkpoint must be a folder that can be written, got {folder}: {error}"
            ) from error

    def lock(self) -> None:
        """Take the checkpoint for this process, or say who has it."""
        path = self.folder / "lock"
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(handle, 200).decode(errors="replace") or "another process"
            os.close(handle)
            raise StateError(
                f"a checkpoint must be used by one process at a time, but {self.folder} is held by "
                f"{owner}; stop it or give another --checkpoint"
            ) from None
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()}".encode())
        self._lock = handle

    def unlock(self) -> None:
        """Give the checkpoint back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def latest(self) -> Manifest | None:
        """Return the newest manifest, or None in a fresh checkpoint."""
        batches = sorted(self._batches())
        return self.read(batches[-1]) if batches else None

    def read(self, batch: int) -> Manifest | None:
        """Return the manifest of a batch if there is one."""
        path = self._path(batch)
        try:
            content = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StateError(f"the manifest {path} must be JSON, got: {error}") from error
        if content.get("format") != FORMAT:
            raise StateError(
                f"the manifest {path} must have format {FORMAT}, got {content.get('format')}; it "
                f"was made by another version of Penstock"
            )
        return Manifest(**content)

    def commit(self, manifest: Manifest) -> None:
        """Write a manifest: temporary file, fsync, rename, fsync of the folder."""
        path = self._path(manifest.batch)
        temporary = path.with_suffix(".tmp")
        with open(temporary, "w") as sink:
            json.dump(asdict(manifest), sink)
            sink.flush()
            if self._fsync:
                os.fsync(sink.fileno())
        os.replace(temporary, path)
        if self._fsync:
            handle = os.open(self._manifests, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def sweep(self, needed: set[str]) -> int:
        """Delete segments that are not needed, and old manifests; return how many segments went."""
        gone = 0
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.segments):
                if entry.name not in needed:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(entry.path)
                        gone += 1
        for batch in sorted(self._batches())[: -(self._retain + 1)]:
            self._path(batch).unlink(missing_ok=True)
        return gone

    def _batches(self) -> Iterator[int]:
        for path in self._manifests.glob("*.json"):
            if path.stem.isdigit():
                yield int(path.stem)

    def _path(self, batch: int) -> Path:
        return self._manifests / f"{batch:010d}.json"
