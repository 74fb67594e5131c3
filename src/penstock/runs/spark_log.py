"""What Spark itself keeps in a checkpoint, and how far a manifest trusts it.

Spark writes ``offsets/N`` when it has planned batch N, and ``commits/N`` when the batch is done;
sources that it reads itself keep lists below ``sources/``.  None of it is forced to disk by Spark,
and little of it is checked.  So manifests decide:

* A manifest holds the digests of what Spark had when it was written.  What differs is refused.
* What goes further than the newest manifest belongs to a batch that never happened.  It is set
  aside, so that Spark plans the batch anew.  So are the checksums that Hadoop writes beside Spark's
  files: those of manifests are stronger, and one that is damaged would stop Spark.
* A batch that Spark calls done and that has no manifest means that manifests were lost: refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import StateError
from penstock.runs.files import sync_file
from penstock.runs.manifest import Manifest, digest_of

OWN_SOURCE = "streams"
"""The name under which Spark keeps the offsets of streams whose batches Penstock plans."""

_NUMBER = re.compile(r"(\d{1,18})(\.compact)?")
_HELP = "bring the file back from a copy, or use another --checkpoint"


class SparkLog:
    """The folder in which Spark keeps the log of a pipeline's query."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self._known: dict[str, tuple[tuple[int, int, int], str]] = {}

    # -- writing a manifest ----------------------------------------------------------------------

    def offsets_digest(self, batch: int) -> str:
        """Return the digest of the offsets that Spark planned a batch with."""
        path = self.folder / "offsets" / str(batch)
        try:
            return digest_of(path.read_bytes())
        except OSError as error:
            raise StateError(
                f"Spark's offsets of batch {batch} must be readable in {path}, got: "
                f"{error.strerror}; the checkpoint is damaged: {_HELP}"
            ) from error

    def planned(self, batch: int, stream: str) -> dict[str, Any]:
        """Return where a batch ends in a stream whose batches Penstock plans; empty: not in it."""
        for line in (self.folder / "offsets" / str(batch)).read_text().splitlines():
            source, _, offset = line.partition(":")
            if source == OWN_SOURCE:
                found: dict[str, Any] = json.loads(offset).get(stream, {})
                return found
        return {}

    def digests(self) -> dict[str, str]:
        """Return the digests of the other files that Spark would read when it starts again."""
        names = ["metadata", *self._source_files()]
        return {name: self._digest(name) for name in names if (self.folder / name).exists()}

    def sync(self, batch: int) -> None:
        """Force to disk what Spark has written for a batch."""
        offsets = self.folder / "offsets"
        for file in (offsets / str(batch), offsets, self.folder / "metadata"):
            sync_file(file)

    def _source_files(self) -> Iterator[str]:
        """Yield the lists of sources: of each the newest whole one, and those that came after."""
        root = self.folder / "sources"
        if not root.is_dir():
            return
        for folder, _, names in sorted(os.walk(root)):
            numbered = {name: _NUMBER.fullmatch(name) for name in names}
            found = sorted((int(m[1]), name) for name, m in numbered.items() if m)
            whole = max((n for n, name in found if name.endswith(".compact")), default=-1)
            for number, name in found:
                if number >= whole:
                    yield str(Path(folder, name).relative_to(self.folder))

    def _digest(self, name: str) -> str:
        path = self.folder / name
        found = path.stat()
        stamp = found.st_size, found.st_mtime_ns, found.st_ino
        known = self._known.get(name)
        if known is None or known[0] != stamp:
            known = self._known[name] = stamp, digest_of(path.read_bytes())
        return known[1]

    # -- opening a checkpoint --------------------------------------------------------------------

    def check(self, retained: Sequence[Manifest]) -> None:
        """Check that Spark's log agrees with the manifests; ``retained`` are in order."""
        newest = retained[-1].batch if retained else -1
        committed = self._numbers("commits")
        planned = self._numbers("offsets")
        for name, found, most in (("commits", committed, newest), ("offsets", planned, newest + 1)):
            if found and max(found) > most:
                path = self.folder / name / str(max(found))
                last = "there is none" if newest < 0 else f"the newest one is of batch {newest}"
                raise StateError(
                    f"Spark's log must not go beyond the manifests, but {path} is there and "
                    f"{last}: manifests up to {max(found):010d}.json were lost, or the file does "
                    f"not belong there. Nothing was changed: bring the manifests back from a copy, "
                    f"or take the file away"
                )
        if not retained:
            return
        for manifest in retained:
            needed = manifest.batch >= newest - 1
            if needed or manifest.batch in planned:
                self.check_offsets(manifest)
        if committed:
            self._check_commit(self.folder / "commits" / str(max(committed)))
        for name, digest in retained[-1].logs.items():
            self._check_file(name, digest, newest)

    def check_offsets(self, manifest: Manifest) -> None:
        """Check that Spark's offsets of a manifest's batch are still those it was made with.

        They say where the next batch begins: if they changed, rows would be lost or come twice.
        """
        if self.offsets_digest(manifest.batch) != manifest.offsets:
            path = self.folder / "offsets" / str(manifest.batch)
            raise StateError(
                f"Spark's offsets in {path} must be those that batch {manifest.batch} was made "
                f"with, but the file was altered: rows would be lost or come twice; {_HELP}"
            )

    def _check_commit(self, path: Path) -> None:
        try:
            version, _, content = path.read_text().partition("\n")
            fine = version in ("v1", "v2") and isinstance(json.loads(content), dict)
        except (OSError, ValueError, RecursionError):
            fine = False
        if not fine:
            raise StateError(
                f"Spark's commit in {path} must be one of its own, but the file was altered; take "
                f"it away, and the batch is compared with its manifest and taken as done"
            )

    def _check_file(self, name: str, digest: str, batch: int) -> None:
        path = self.folder / name
        try:
            same = digest_of(path.read_bytes()) == digest
        except OSError as error:
            raise StateError(
                f"Spark's file {path} must be there, because the manifest of batch {batch} counts "
                f"on it, got: {error.strerror}; {_HELP}"
            ) from error
        if not same:
            raise StateError(
                f"Spark's file {path} must be as it was when batch {batch} was committed, but it "
                f"was altered: rows would be lost or come twice; {_HELP}"
            )

    def beyond(self, newest: Manifest | None) -> list[Path]:
        """Return the files that belong to no committed batch, and Hadoop's checksums."""
        batch = -1 if newest is None else newest.batch
        found = [self.folder / "offsets" / str(n) for n in self._numbers("offsets") if n > batch]
        known = {} if newest is None else newest.logs
        if known:
            listed = [name for name in self._source_files() if name not in known]
            found += [self.folder / name for name in listed]
        return [*found, *sorted(self.folder.rglob(".*.crc"))]

    def drop_unfinished(self) -> None:
        """Remove what Spark was writing when it was stopped before it had planned a batch.

        A temporary file is enough for Spark to refuse a folder without batches as used; beside
        batches it does no harm and stays.
        """
        if not self.is_empty():
            return
        for name in ("offsets", "commits"):
            for path in (self.folder / name).glob(".*"):
                path.unlink(missing_ok=True)

    def is_empty(self) -> bool:
        """Whether Spark has neither planned nor done a batch."""
        return not self._numbers("offsets") and not self._numbers("commits")

    def _numbers(self, name: str) -> set[int]:
        try:
            names = os.listdir(self.folder / name)
        except FileNotFoundError:
            return set()
        return {int(n) for n in names if n.isascii() and n.isdecimal() and len(n) < 19}
