"""Manifests: one atomic file per batch that says what exists. Its rename is the only commit point.

``<checkpoint>/manifest/<batch>.json`` lists the live state runs of every shard, the result runs of
the batch, how far each stream has come, and which queries run since when.  A file that no manifest
names is garbage of a crash and is swept.  A manifest carries a digest of itself and one of the
offsets that Spark planned its batch with: what is damaged is refused, never guessed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import StateError
from penstock.runs.failpoints import passing
from penstock.runs.fence import Fence
from penstock.runs.files import replace_file, room_for, sync_file, sync_folder

FORMAT = 2


@dataclass
class Manifest:
    """Everything that is true after a batch.

    ``epoch`` is the turn of the process that wrote it, ``offsets`` the digest of Spark's offsets of
    the batch, ``inputs`` what each stream brought: rows, the sum of their hashes, and of which
    columns; ``contents`` is the same for the tables that the batch read.  ``catalog`` is the place
    of a file that tells readers what is declared; empty where nobody wrote one.  ``hot`` are the
    keys of joins that are split from the next batch on, by the inputs of the join.
    """

    batch: int = -1
    format: int = FORMAT
    epoch: int = 0
    offsets: str = ""
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    contents: dict[str, dict[str, Any]] = field(default_factory=dict)
    shards: int = 0
    lifetime: str = "direct"
    numbers: dict[str, int] = field(default_factory=dict)
    queries: dict[str, dict[str, Any]] = field(default_factory=dict)
    progress: dict[str, dict[str, Any]] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    catalog: dict[str, Any] = field(default_factory=dict)
    hot: dict[str, dict[str, Any]] = field(default_factory=dict)

    def files(self) -> set[str]:
        """Return the names of all segment files that this manifest needs."""
        return {place["file"] for place in self._places()}

    def sizes(self) -> dict[str, int]:
        """Return the least size of every segment file that this manifest needs."""
        sizes: dict[str, int] = {}
        for place in self._places():
            end = place["offset"] + place["length"]
            sizes[place["file"]] = max(sizes.get(place["file"], 0), end)
        return sizes

    def _places(self) -> Iterator[dict[str, Any]]:
        if self.catalog:
            yield self.catalog
        for described in (*self.results, *self.rejects):
            yield described["place"]
        for shard in self.states:
            for state in shard.values():
                for runs in state["runs"].values():
                    for run in runs:
                        yield run["place"]

    def encode(self) -> bytes:
        """Return the manifest as a file holds it: JSON that begins with its own digest."""
        body = _canonical(vars(self))
        return f'{{"digest":"{_digest(body)}",{body[1:]}\n'.encode()


def _canonical(content: dict[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Checkpoint:
    """The checkpoint folder of one pipeline: manifests, segments, Spark's own files, a lock."""

    def __init__(self, folder: str, fsync: bool = True, retain: int = 10) -> None:
        self.folder = Path(folder).absolute()
        self.segments = str(self.folder / "segments")
        self.spark = str(self.folder / "spark")
        self._manifests = self.folder / "manifest"
        self._fsync = fsync
        self._retain = retain
        self._fence = Fence(self.folder, fsync)
        try:
            for part in (self.folder, Path(self.segments), self._manifests):
                part.mkdir(parents=True, exist_ok=True)
            if fsync:
                sync_folder(self.folder)
        except OSError as error:
            raise StateError(
                f"the checkpoint must be a folder that can be written, got {folder}: {error}"
            ) from error

    def lock(self) -> None:
        """Take the checkpoint for this process, or say who has it."""
        self._fence.take()

    def unlock(self) -> None:
        """Give the checkpoint back."""
        self._fence.release()

    def latest(self) -> Manifest | None:
        """Return the newest manifest, or None in a fresh checkpoint.

        A damaged one is an error, and not passed over: what came after the one before it may have
        been delivered.
        """
        batches = sorted(batches_in(self._manifests))
        return self.read(batches[-1]) if batches else None

    def read(self, batch: int) -> Manifest | None:
        """Return the manifest of a batch if there is one."""
        path = self._path(batch)
        manifest = read_manifest(path, batch)
        if manifest is not None:
            self._fence.check_manifest(path, manifest.epoch)
        return manifest

    def store(self, name: str, data: bytes) -> dict[str, Any]:
        """Write a file beside the segments, unless it is there, and return its place."""
        path = Path(self.segments, name)
        place = {"file": name, "offset": 0, "length": len(data)}
        if not path.exists():
            with room_for(f"checkpoint {self.folder}"):
                replace_file(path, data, self._fsync)
        return place

    def offsets_digest(self, batch: int) -> str:
        """Return the digest of the offsets that Spark planned a batch with."""
        path = Path(self.spark, "offsets", str(batch))
        try:
            return hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise StateError(
                f"Spark's offsets of batch {batch} must be readable in {path}, got: "
                f"{error.strerror}; the checkpoint is damaged"
            ) from error

    def check_offsets(self, manifest: Manifest) -> None:
        """Check that Spark's offsets of a manifest's batch are still those it was made with.

        They say where the next batch begins: if they changed, rows would be lost or come twice.
        """
        if self.offsets_digest(manifest.batch) != manifest.offsets:
            path = Path(self.spark, "offsets", str(manifest.batch))
            raise StateError(
                f"Spark's offsets in {path} must be those that batch {manifest.batch} was made "
                f"with, but the file was altered: rows would be lost or come twice. Bring the file "
                f"back from a copy, or use another --checkpoint"
            )

    def commit(self, manifest: Manifest) -> None:
        """Write a manifest: temporary file, fsync, rename, fsync of the folder.

        All that it names is on disk before: tasks have forced their files, the folder's names and
        Spark's offsets are forced here.
        """
        self._fence.check()
        manifest.epoch = self._fence.epoch
        path = self._path(manifest.batch)
        with room_for(f"checkpoint {self.folder}"):
            if self._fsync:
                offsets = Path(self.spark, "offsets")
                for file in (offsets / str(manifest.batch), offsets, Path(self.spark, "metadata")):
                    sync_file(file)
                sync_folder(self.segments)
            replace_file(path, manifest.encode(), self._fsync, lambda: passing("manifest-temp"))
        self._fence.check()
        passing("manifest-renamed")

    def sweep(self, needed: set[str]) -> int:
        """Delete segments that are not needed, and old manifests; return how many segments went."""
        self._fence.check()
        gone = 0
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.segments):
                if entry.name not in needed:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(entry.path)
                        gone += 1
                        passing("sweep-middle")
        for batch in sorted(batches_in(self._manifests))[: -(self._retain + 1)]:
            self._path(batch).unlink(missing_ok=True)
        for unfinished in self._manifests.glob("*.tmp"):
            unfinished.unlink(missing_ok=True)
        return gone

    def check_files(self, manifest: Manifest) -> None:
        """Check that every file that a manifest names is there, with all its runs."""
        for name, size in manifest.sizes().items():
            path = Path(self.segments, name)
            try:
                found = path.stat().st_size
            except OSError as error:
                raise StateError(
                    f"the run file {path} must be there, because the manifest of batch "
                    f"{manifest.batch} names it, got: {error.strerror}; the checkpoint is damaged"
                ) from error
            if found < size:
                raise StateError(
                    f"the run file {path} must have at least {size} bytes, got {found}; the "
                    f"checkpoint is damaged"
                )

    def _path(self, batch: int) -> Path:
        return manifest_path(self._manifests, batch)


def batches_in(folder: Path) -> Iterator[int]:
    """Yield the batches whose manifests are in a folder, in no order."""
    for path in folder.glob("*.json"):
        if path.stem.isdigit():
            yield int(path.stem)


def manifest_path(folder: Path, batch: int) -> Path:
    """Return where the manifest of a batch lies."""
    return folder / f"{batch:010d}.json"


def read_manifest(path: Path, batch: int) -> Manifest | None:
    """Return the manifest of a batch if it is there; one that is damaged is refused."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise _damaged(path, f"must be JSON, got: {error}") from error
    if not isinstance(content, dict):
        raise _damaged(path, f"must be a JSON object, got {type(content).__name__}")
    if content.get("format", FORMAT) != FORMAT:
        raise StateError(
            f"the manifest {path} must have format {FORMAT}, got {content['format']}; it was "
            f"made by another version of Penstock"
        )
    if content.pop("digest", None) != _digest(_canonical(content)):
        raise _damaged(path, "must have the digest that it carries, but it was altered")
    if content["batch"] != batch:
        raise _damaged(path, f"must be of batch {batch}, got {content['batch']}")
    return Manifest(**content)


def _damaged(path: Path, what: str) -> StateError:
    return StateError(
        f"the manifest {path} {what}; the checkpoint is damaged: bring the file back from a copy, "
        f"or use another --checkpoint"
    )
