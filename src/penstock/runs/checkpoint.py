"""The checkpoint folder of one pipeline: opened with care, committed to, swept.

Opening reads and compares, and changes nothing: manifests must follow one another without a gap,
Spark's log must agree with them, and every file that they name must be there.  Only when all of
that holds, and the sinks agree too, is anything swept (`settle`).

Nothing is deleted at once.  A segment that is not needed any more goes to ``trash/<batch>``, and is
deleted when so many batches more are committed as manifests are retained.  So the results of every
retained manifest can be delivered again, and a manifest that was lost and is put back finds its
files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.errors import StateError
from penstock.runs.failpoints import passing
from penstock.runs.fence import Fence
from penstock.runs.files import make_folder, replace_file, room_for, sync_folder
from penstock.runs.manifest import (
    FORMAT,
    Manifest,
    batches_in,
    canonical,
    damaged,
    digest_of,
    manifest_path,
    read_manifest,
    read_sealed,
)
from penstock.runs.spark_log import SparkLog

_RUN = "run.json"
"""The file that names the checkpoint: it is there before anything else."""

_FLEETING = ".exchange"
"""The end of names of files that only pass rows on: no manifest names them, ever."""


class Checkpoint:
    """The checkpoint folder of one pipeline: manifests, segments, Spark's own files, a lock."""

    def __init__(self, folder: str, fsync: bool = True, retain: int = 10) -> None:
        self.folder = Path(folder).absolute()
        self.segments = str(self.folder / "segments")
        self.spark = str(self.folder / "spark")
        self.log = SparkLog(self.spark)
        self._manifests = self.folder / "manifest"
        self._trash = self.folder / "trash"
        self._fsync = fsync
        self._retain = retain
        self._fence = Fence(self.folder, fsync)
        self._what = f"checkpoint {self.folder}"
        with room_for(self._what):
            try:
                if not self.folder.is_dir():  # a folder that the user made stays as it is
                    make_folder(self.folder)
            except (FileExistsError, NotADirectoryError) as error:
                raise StateError(
                    f"the checkpoint must be a folder that can be written, got {folder}: {error}"
                ) from error

    @property
    def word(self) -> str:
        """The word of this process, which goes into the lineage of its batches."""
        return self._fence.word

    def lock(self) -> None:
        """Take the checkpoint for this process, or say who has it."""
        self._fence.take()

    def check_ours(self) -> None:
        """Check that no other process has taken the checkpoint since we locked it."""
        self._fence.check()

    def unlock(self) -> None:
        """Give the checkpoint back."""
        self._fence.release()

    # -- opening ---------------------------------------------------------------------------------

    def open(self) -> list[Manifest]:
        """Return the manifests that are kept, oldest first; none in a new checkpoint.

        What does not fit together is refused, and nothing is changed then.
        """
        retained = self._retained()
        self._identity(retained)
        self.log.check(retained)
        if retained:
            self.check_files(retained[-1])
        return retained

    def _retained(self) -> list[Manifest]:
        stray = [
            name
            for name in sorted(self._names(self._manifests))
            if not name.endswith(".tmp") and name != _RUN and not _is_manifest(name)
        ]
        if stray:
            raise StateError(
                f"the folder {self._manifests} must hold manifests only, but {stray[0]} is none; "
                f"nothing was changed: take the file away, or bring the folder back from a copy"
            )
        batches = sorted(batches_in(self._manifests))
        found: list[Manifest] = []
        for batch in batches:
            if found and batch != found[-1].batch + 1:
                lost = manifest_path(self._manifests, found[-1].batch + 1)
                raise StateError(
                    f"manifests must follow one another, but {lost} is missing, and there is one "
                    f"of batch {batch}; nothing was changed: bring it back from a copy, or take "
                    f"away the one that does not belong there"
                )
            manifest = self.read(batch)
            assert manifest is not None
            if found and manifest.parent != found[-1].digest:
                raise damaged(
                    manifest_path(self._manifests, batch),
                    f"must follow that of batch {batch - 1}, but it was made after another one: "
                    f"one of the two is of another copy",
                )
            found.append(manifest)
        return found

    def _identity(self, retained: Sequence[Manifest]) -> None:
        """Find the name of the checkpoint; a new one gets a name."""
        path = self._manifests / _RUN
        known = read_sealed(path)
        if known is None and not retained and self._is_new():
            with room_for(self._what):
                for part in (self._manifests, Path(self.segments)):
                    make_folder(part)
                named = {"format": FORMAT, "run": uuid.uuid4().hex}
                named["digest"] = digest_of(canonical(named))
                replace_file(path, canonical(named).encode(), self._fsync)
                if self._fsync:
                    sync_folder(self.folder)
            self.run = str(named["run"])
            return
        if known is None:
            lost = path if self._manifests.is_dir() else self._manifests
            raise StateError(
                f"{lost} must be there, because {self.folder} has been used as a checkpoint; "
                f"nothing was changed: bring it back from a copy (is a disk not mounted?), or use "
                f"another --checkpoint"
            )
        self.run = str(known["run"])
        for manifest in retained:
            if manifest.run != self.run:
                raise damaged(
                    manifest_path(self._manifests, manifest.batch),
                    f"must be of this checkpoint, which {path} names, but it is of another one",
                )

    def _is_new(self) -> bool:
        """Whether nothing in the folder shows that a batch was ever run on it."""
        delivered = self._names(self.folder / "delivered")
        return self.log.is_empty() and not self._names(Path(self.segments)) and not delivered

    def _names(self, folder: Path) -> list[str]:
        try:
            return os.listdir(folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StateError(
                f"the folder {folder} must be readable, got: {error.strerror}"
            ) from error

    def read(self, batch: int) -> Manifest | None:
        """Return the manifest of a batch if there is one."""
        path = manifest_path(self._manifests, batch)
        manifest = read_manifest(path, batch)
        if manifest is not None:
            self._fence.check_manifest(path, manifest.epoch)
        return manifest

    def latest(self) -> Manifest | None:
        """Return the newest manifest, or None in a fresh checkpoint.

        A damaged one is an error, and not passed over: what came after the one before it may have
        been delivered.
        """
        batches = sorted(batches_in(self._manifests))
        return self.read(batches[-1]) if batches else None

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
        place = manifest.catalog
        if place:
            path = Path(self.segments, place["file"])
            if digest_of(path.read_bytes()[: place["length"]]) != place["digest"]:
                raise StateError(
                    f"the file {path} must be as it was when batch {manifest.batch} was committed, "
                    f"but it was altered; the checkpoint is damaged: bring it back from a copy, or "
                    f"use another --checkpoint"
                )

    # -- writing ---------------------------------------------------------------------------------

    def store(self, name: str, data: bytes) -> dict[str, Any]:
        """Write a file beside the segments, unless it is there, and return its place."""
        path = Path(self.segments, name)
        place = {"file": name, "offset": 0, "length": len(data), "digest": digest_of(data)}
        if not path.exists():
            with room_for(self._what):
                replace_file(path, data, self._fsync)
        return place

    def commit(self, manifest: Manifest) -> None:
        """Write a manifest: temporary file, fsync, rename, fsync of the folder.

        All that it names is on disk before: tasks have forced their files, the folder's names and
        Spark's offsets are forced here.
        """
        self._fence.check()
        manifest.epoch = self._fence.epoch
        path = manifest_path(self._manifests, manifest.batch)
        with room_for(self._what):
            if self._fsync:
                self.log.sync(manifest.batch)
                sync_folder(self.segments)
            replace_file(path, manifest.encode(), self._fsync, lambda: passing("manifest-temp"))
        self._fence.check()
        passing("manifest-renamed")

    # -- sweeping --------------------------------------------------------------------------------

    def settle(self, newest: Manifest | None) -> None:
        """Set aside what belongs to a batch that was never committed: Spark plans it anew."""
        self._fence.check()
        batch = -1 if newest is None else newest.batch
        for path in self.log.beyond(newest):
            self._discard(path, batch)
        self.sweep(set() if newest is None else newest.files(), batch)

    def sweep(self, needed: set[str], batch: int) -> int:
        """Put segments that are not needed after a batch into the trash; return how many went.

        Old manifests are deleted, and with them what lies in the trash for so long.
        """
        self._fence.check()
        gone = 0
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.segments):
                if entry.name not in needed:
                    self._discard(Path(entry.path), batch)
                    gone += 1
                    passing("sweep-middle")
        for old in sorted(batches_in(self._manifests))[: -(self._retain + 1)]:
            manifest_path(self._manifests, old).unlink(missing_ok=True)
        for unfinished in self._manifests.glob("*.tmp"):
            unfinished.unlink(missing_ok=True)
        for name in self._names(self._trash):
            if name.isdecimal() and int(name) < batch - self._retain:
                shutil.rmtree(self._trash / name, ignore_errors=True)
        return gone

    def _discard(self, path: Path, batch: int) -> None:
        with contextlib.suppress(FileNotFoundError), room_for(self._what):
            if path.name.endswith(_FLEETING):
                path.unlink()
                return
            folder = self._trash / str(max(batch, 0))
            make_folder(self._trash)
            make_folder(folder)
            os.replace(path, folder / path.name)

    def found(self, name: str) -> str:
        """Return the folder that holds a segment: an old one may be in the trash."""
        if not Path(self.segments, name).exists():
            for batch in self._names(self._trash):
                if (self._trash / batch / name).exists():
                    return str(self._trash / batch)
        return self.segments


def _is_manifest(name: str) -> bool:
    return len(name) == 15 and name[:10].isdecimal() and name.isascii() and name[10:] == ".json"
