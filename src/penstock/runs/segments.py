"""Segment files: all runs that one task writes in one batch, in one immutable file.

A segment holds Arrow IPC streams one after another, each beginning at a multiple of 64 bytes; a
place is ``{"file", "offset", "length"}``.  Names are unique to the attempt of a task, so a repeated
or speculative attempt never touches another one's file; only the manifest says which ones count.
Readers map the file into memory: opening a run of any size costs the same.
"""

from __future__ import annotations

import os
import uuid
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from penstock.errors import StateError

_ALIGN = 64
_OPEN_FILES = 256
_maps: OrderedDict[str, pa.Buffer] = OrderedDict()


class SegmentStorage:
    """Reads runs from the segments of a folder and writes new ones into one segment."""

    def __init__(self, folder: str, prefix: str, fsync: bool = True) -> None:
        self.folder = folder
        self.file = f"{prefix}-{uuid.uuid4().hex}.seg"
        self._fsync = fsync
        self._sink: BinaryIO | None = None
        self._size = 0
        self._fresh: dict[int, pa.Table] = {}

    def write(self, table: pa.Table) -> dict[str, Any]:
        """Append a table and return its place."""
        if self._sink is None:
            Path(self.folder).mkdir(parents=True, exist_ok=True)
            self._sink = open(Path(self.folder, self.file), "xb")  # noqa: SIM115
        padding = -self._size % _ALIGN
        self._sink.write(b"\0" * padding)
        offset = self._size + padding
        table = table.combine_chunks()
        with pa.ipc.new_stream(self._sink, table.schema) as writer:
            writer.write_table(table)
        self._size = self._sink.tell()
        self._fresh[offset] = table
        return {"file": self.file, "offset": offset, "length": self._size - offset}

    def read(self, place: dict[str, Any]) -> pa.Table:
        """Return the table at a place, one chunk per column."""
        if place["file"] == self.file:
            return self._fresh[place["offset"]]
        return read_segment(self.folder, place)

    def close(self) -> None:
        """Finish the segment: from now on it can be read by others."""
        if self._sink is not None:
            self._sink.flush()
            if self._fsync:
                os.fsync(self._sink.fileno())
            self._sink.close()
            self._sink = None


def read_segment(folder: str, place: dict[str, Any]) -> pa.Table:
    """Read one run of a finished segment."""
    path = str(Path(folder, place["file"]))
    buffer = _maps.get(path)
    if buffer is None:
        try:
            with pa.memory_map(path) as mapped:
                buffer = mapped.read_buffer()
        except (OSError, pa.ArrowException) as error:
            raise StateError(
                f"the run file {place['file']} must be readable, got: {error}; the checkpoint in "
                f"{folder} is damaged or was moved"
            ) from error
        _maps[path] = buffer
        while len(_maps) > _OPEN_FILES:
            _maps.popitem(last=False)
    else:
        _maps.move_to_end(path)
    if place["offset"] + place["length"] > buffer.size:
        raise StateError(
            f"the run file {place['file']} must have at least {place['offset'] + place['length']} "
            f"bytes, got {buffer.size}; the checkpoint in {folder} is damaged"
        )
    section = buffer.slice(place["offset"], place["length"])
    try:
        table = pa.ipc.open_stream(section).read_all()
    except (pa.ArrowException, OSError) as error:
        raise StateError(
            f"the run at {place['offset']} of {place['file']} must be an Arrow stream, got: "
            f"{error}; the checkpoint in {folder} is damaged"
        ) from error
    return table if table.num_rows == 0 else table.combine_chunks()
