"""What goes beside Spark, through files: states to the tasks, and rows on one machine.

A task gets the states of its own shard: the driver writes those of all shards into one file, and
each task reads its part.  Sent with the function, all states would go to every task.

Spark's shuffle takes a blob from Python to the JVM, compresses it, writes and reads it, and gives
it to Python again.  Where all tasks share a machine, a task writes its large blobs into one file
beside the segments instead, and only their places go through the shuffle; readers map the file into
memory.  Such a file is named by no manifest, so it is swept with the segments that no one needs:
after its batch, or after a crash.  Nothing of it must survive, so it is never forced to disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import StateError
from penstock.physical.parcels import REPORT_STAGE, Parcel
from penstock.runs.files import private, room_for, write_at

AWAY = 1 << 8
"""Added to the kind of a parcel whose blob is in a file; its own blob says where."""

LEAST_BYTES = 1 << 15
"""Smaller blobs travel through Spark: a place is not much smaller, and costs opening a file."""

_ALIGN = 64


def send(parcels: Iterable[Parcel], folder: str, prefix: str) -> Iterator[Parcel]:
    """Put large blobs into a new file of ``folder``; pass on all parcels, in their order.

    Reports stay as they are: the driver, who gets them, reads no such files.
    """
    path = Path(folder, f"{prefix}-{uuid.uuid4().hex}.exchange")
    handle = -1
    size = 0
    try:
        for parcel in parcels:
            if len(parcel.blob) < LEAST_BYTES or parcel.stage == REPORT_STAGE:
                yield parcel
                continue
            with room_for(f"checkpoint {Path(folder).parent}"):
                if handle < 0:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                size += -size % _ALIGN
                write_at(handle, memoryview(parcel.blob), size)
            place = [path.name, size, len(parcel.blob)]
            size += len(parcel.blob)
            yield replace(parcel, kind=parcel.kind + AWAY, blob=json.dumps(place).encode())
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)  # nobody knows of it
        raise
    finally:
        if handle >= 0:
            os.close(handle)


def receive(parcels: Iterable[Parcel], folder: str, stage: int) -> Iterator[Parcel]:
    """Bring back the blobs of the parcels for ``stage``; those for later stages pass as they are.

    Blobs are views of the mapped files, which stay readable even when their names are gone.
    """
    maps: dict[str, pa.Buffer] = {}
    for parcel in parcels:
        if parcel.kind < AWAY or parcel.stage != stage:
            yield parcel
            continue
        name, offset, length = json.loads(bytes(parcel.blob))
        if name not in maps:
            try:
                with pa.memory_map(str(Path(folder, name))) as mapped:
                    maps[name] = mapped.read_buffer()
            except OSError as error:
                raise _lost(Path(folder, name), "tasks exchange rows", error) from error
        blob = maps[name].slice(offset, length)
        yield replace(parcel, kind=parcel.kind - AWAY, blob=blob, mapped=True)


def share_states(folder: str, batch: int, states: Iterable[Mapping[str, Any]]) -> str:
    """Write the states of all shards into a new file of ``folder`` and return its name.

    It begins with the place of each shard's part: two numbers of 8 bytes.
    """
    parts = [json.dumps(one, separators=(",", ":")).encode() for one in states]
    sizes = np.array([len(part) for part in parts], "<i8")
    places = np.stack((np.cumsum(sizes) - sizes + 16 * len(parts), sizes), axis=1)
    path = Path(folder, f"{batch}-states-{uuid.uuid4().hex}.exchange")
    with room_for(f"checkpoint {Path(folder).parent}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb", opener=private) as sink:
            sink.write(places.tobytes())
            sink.writelines(parts)
    return path.name


def states_of(folder: str, name: str, shard: int) -> dict[str, Any]:
    """Return the states of one shard."""
    try:
        with open(Path(folder, name), "rb") as source:
            source.seek(16 * shard)
            offset, size = np.frombuffer(source.read(16), "<i8").tolist()
            source.seek(offset)
            states: dict[str, Any] = json.loads(source.read(size))
            return states
    except (OSError, ValueError) as error:
        raise _lost(Path(folder, name), "tasks get their states", error) from error


def _lost(path: Path, what: str, error: Exception) -> StateError:
    return StateError(
        f"the file {path}, through which {what}, must be readable until its batch is done, got: "
        f"{error}; nothing is lost: run the same command again"
    )
