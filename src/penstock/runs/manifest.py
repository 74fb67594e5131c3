"""Manifests: one atomic file per batch that says what exists. Its rename is the only commit point.

``<checkpoint>/manifest/<batch>.json`` lists the live state runs of every shard, the result runs of
the batch, how far each stream has come, which queries run since when, and what each sink has got.
A manifest carries a digest of itself, that of the manifest before it, and those of what Spark keeps
for its batch: what is damaged, stale or out of place is refused, never guessed.

The *lineage* of a batch is a digest of all that led to it: the manifest before, the process that
made it, and what came in.  Two runs never share one, nor do two copies of a checkpoint that were
both continued.  It goes with every delivery.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import StateError

FORMAT = 6
"""5: streams have source partitions, each with its own progress (`penstock.physical.progress`).
6: what was measured of operators; one of format 5 is continued, without it."""

READABLE = (5, FORMAT)

_NAME = re.compile(r"\d{10}\.json")


@dataclass
class Manifest:
    """Everything that is true after a batch.

    ``run`` names the checkpoint, ``parent`` is the digest of the manifest before.  ``epoch`` is the
    epoch of the process that wrote it, ``offsets`` the digest of Spark's offsets of the batch,
    ``logs`` those of other files that Spark keeps, by name.  ``inputs`` is what each stream
    brought: rows, the sum of their hashes, and of which columns; ``contents`` is the same for the
    tables that the batch read.  ``catalog`` is the place of a file that tells readers what is
    declared; empty where nobody wrote one.  ``hot`` are the keys of joins that are split from the
    next batch on, by the inputs of the join.  ``measured`` is what is known of the work of
    operators, by digest.  ``streams`` says how each stream is read, ``outlets`` what sinks got.
    ``lane`` is how far the batches know the journal of turns; empty where there never was one.
    """

    batch: int = -1
    format: int = FORMAT
    digest: str = ""
    run: str = ""
    parent: str = ""
    lineage: str = ""
    epoch: int = 0
    offsets: str = ""
    logs: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    contents: dict[str, dict[str, Any]] = field(default_factory=dict)
    shards: int = 0
    lifetime: str = "direct"
    numbers: dict[str, int] = field(default_factory=dict)
    queries: dict[str, dict[str, Any]] = field(default_factory=dict)
    streams: dict[str, dict[str, Any]] = field(default_factory=dict)
    progress: dict[str, dict[str, Any]] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    outlets: dict[str, dict[str, Any]] = field(default_factory=dict)
    catalog: dict[str, Any] = field(default_factory=dict)
    hot: dict[str, dict[str, Any]] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)
    lane: dict[str, Any] = field(default_factory=dict)

    def follow(self, before: Manifest, word: str) -> None:
        """Take the place behind another manifest; ``word`` is that of the process."""
        self.run = before.run
        self.parent = before.digest
        led = [before.lineage, before.digest, word, self.batch, self.offsets]
        self.lineage = digest_of(canonical([*led, self.inputs, self.contents]))[:32]

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
        for progress in self.progress.values():
            for closed in progress.get("closed", ()):
                yield closed["place"]
        for shard in self.states:
            for state in shard.values():
                for runs in state["runs"].values():
                    for run in runs:
                        yield run["place"]

    def encode(self) -> bytes:
        """Return the manifest as a file holds it: JSON that begins with its own digest."""
        body = canonical({name: value for name, value in vars(self).items() if name != "digest"})
        self.digest = digest_of(body)
        return f'{{"digest":"{self.digest}",{body[1:]}\n'.encode()


def canonical(content: Any) -> str:
    """Return JSON that is the same for equal contents."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def digest_of(content: str | bytes) -> str:
    """Return the digest of a text, or of the bytes of a file."""
    data = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()


def batches_in(folder: Path) -> Iterator[int]:
    """Yield the batches whose manifests are in a folder, in no order."""
    for path in folder.glob("*.json"):
        if _NAME.fullmatch(path.name):
            yield int(path.stem)


def manifest_path(folder: Path, batch: int) -> Path:
    """Return where the manifest of a batch lies."""
    return folder / f"{batch:010d}.json"


def read_manifest(path: Path, batch: int) -> Manifest | None:
    """Return the manifest of a batch if it is there; one that is damaged is refused."""
    content = read_sealed(path)
    if content is None:
        return None
    if content["batch"] != batch:
        raise damaged(path, f"must be of batch {batch}, got {content['batch']}")
    return Manifest(**content)


def read_sealed(path: Path) -> dict[str, Any] | None:
    """Return the object of a JSON file that carries its own digest; None if it is not there."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"the file {path} must be readable, got: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"must be JSON, got: {error}") from error
    if not isinstance(content, dict):
        raise damaged(path, f"must be a JSON object, got {type(content).__name__}")
    if content.get("format", FORMAT) not in READABLE:
        raise StateError(
            f"the manifest {path} must have format {FORMAT}, got {content['format']}; it was "
            f"made by another version of Penstock"
        )
    own = content.pop("digest", None)
    if own != digest_of(canonical(content)):
        raise damaged(path, "must have the digest that it carries, but it was altered")
    return {**content, "digest": own}


def damaged(path: Path, what: str) -> StateError:
    """Return the error of a file of the checkpoint that is not as it was written."""
    return StateError(
        f"the manifest {path} {what}; the checkpoint is damaged: bring the file back from a copy, "
        f"or use another --checkpoint"
    )
