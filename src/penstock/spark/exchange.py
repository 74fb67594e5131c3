"""The way of rows between the tasks of one machine: through a file, not through the JVM.

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
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from penstock.errors import StateError
from penstock.physical.parcels import REPORT_STAGE, Parcel
from penstock.runs.files import room_for

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
                _write(handle, memoryview(parcel.blob), size)
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
                raise StateError(
                    f"the file {Path(folder, name)}, through which tasks exchange rows, must be "
                    f"readable until its batch is done, got: {error}; nothing is lost: run the "
                    f"same command again"
                ) from error
        yield replace(parcel, kind=parcel.kind - AWAY, blob=maps[name].slice(offset, length))


def _write(handle: int, data: memoryview, offset: int) -> None:
    """Write all of ``data``: one call writes at most 2 GB."""
    while len(data):
        written = os.pwrite(handle, data, offset)
        data, offset = data[written:], offset + written
