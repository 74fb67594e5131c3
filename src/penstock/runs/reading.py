"""Reading a checkpoint while another process writes it: without a lock, without a trace.

Runs never change, and the newest manifest names all that are needed, so a reader needs nothing but
time: the writer sweeps files that its two newest manifests do not name.  A mapped file stays
readable when it is deleted; so a reader maps *all* files that it wants before it reads any, and if
one is gone already, it begins again with the newest manifest, which is then a newer one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from penstock.errors import InternalError, StateError
from penstock.runs.manifest import Manifest, batches_in, manifest_path, read_manifest
from penstock.runs.segments import read_mapped, section_of

_ATTEMPTS = 50
"""So often a reader may find that a newer batch has swept its files."""

T = TypeVar("T")


class Gone(Exception):  # noqa: N818 (it is no fault: the writer was faster)
    """A file that a manifest names is not there any more."""


class MappedRuns:
    """The runs of some files, all mapped when this is made. Nothing can be written."""

    def __init__(self, folder: str | Path, files: Iterable[str]) -> None:
        self._paths = {name: str(Path(folder, name)) for name in sorted(files)}
        self._mapped: dict[str, pa.Buffer] = {}
        for name, path in self._paths.items():
            try:
                with pa.memory_map(path) as mapped:
                    self._mapped[name] = mapped.read_buffer()
            except FileNotFoundError as error:
                raise Gone(path) from error
            except (OSError, pa.ArrowException) as error:
                raise StateError(f"the run file {path} must be readable, got: {error}") from error

    def read(self, place: dict[str, Any]) -> pa.Table:
        """Return the table at a place."""
        name = place["file"]
        return read_mapped(self._paths[name], place, self._mapped[name])

    fetch = read

    def write(self, table: pa.Table) -> dict[str, Any]:
        raise InternalError("a checkpoint that is only read has no place for a run")

    def bytes(self, place: dict[str, Any]) -> bytes:
        """Return the bytes at a place."""
        name = place["file"]
        return bytes(section_of(self._paths[name], place, self._mapped[name]))


class CheckpointReader:
    """A checkpoint folder of which somebody else may be the owner."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()
        self.segments = self.folder / "segments"
        self._manifests = self.folder / "manifest"

    def newest(self) -> Manifest | None:
        """Return the newest manifest; None if no batch has been committed."""
        while True:
            last = max(batches_in(self._manifests), default=None)
            if last is None:
                return None
            found = read_manifest(manifest_path(self._manifests, last), last)
            if found is not None:  # it is swept only when newer ones are there
                return found

    def read(self, work: Callable[[Manifest], T]) -> T | None:
        """Return what ``work`` makes of the newest manifest; None if there is none.

        ``work`` maps files with `runs`; when one is gone it is called again, with a newer manifest.
        """
        last = -1
        for _ in range(_ATTEMPTS):
            manifest = self.newest()
            if manifest is None:
                return None
            try:
                return work(manifest)
            except Gone as gone:
                if manifest.batch == last:
                    raise StateError(
                        f"the run file {gone} must be there, because the manifest of batch "
                        f"{last} names it, but it is gone; the checkpoint is damaged"
                    ) from None
                last = manifest.batch
        raise StateError(
            f"{self.folder} must keep its files for long enough to be read, but {_ATTEMPTS} times "
            f"a newer batch had swept them; make batches larger (--set batch.seconds=…)"
        )

    def runs(self, files: Iterable[str]) -> MappedRuns:
        """Map some segment files."""
        return MappedRuns(self.segments, files)


def file_name(data: bytes) -> str:
    """Return the name of a file that is known by what it holds."""
    return f"catalog-{hashlib.sha256(data).hexdigest()[:32]}.json"
