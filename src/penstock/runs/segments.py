"""Segment files: all runs that one task writes in one batch, in one immutable file.

A segment holds Arrow IPC streams one after another, each beginning at a multiple of 64 bytes; a
place is ``{"file", "offset", "length", "crc"}``, and the checksum of a run is compared when a
process reads it for the first time.  Names are unique to the attempt of a task, so a repeated
or speculative attempt never touches another one's file; only the manifest says which ones count.
Readers map the file into memory: opening a run of any size costs the same.  So does the writer, who
keeps nothing of what it has written: a state larger than memory is only ever visited.
"""

from __future__ import annotations

import contextlib
import os
import uuid
import zlib
from collections import OrderedDict
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import pyarrow as pa

from penstock.errors import StateError
from penstock.runs.failpoints import passing
from penstock.runs.files import make_folder, private, room_for
from penstock.runs.mappings import MappedFile

_ALIGN = 64
_OPEN_FILES = 256
_CHECKED_RUNS = 1 << 14
_maps: OrderedDict[str, MappedFile] = OrderedDict()
_checked: OrderedDict[tuple[str, int], None] = OrderedDict()
"""The runs whose checksums this process has compared."""


class _Summed:
    """A file that is written through, and the checksum of what went through it."""

    closed = False

    def __init__(self, sink: BinaryIO) -> None:
        self.crc = 0
        self._sink = sink

    def write(self, data: Any) -> int:
        self.crc = zlib.crc32(data, self.crc)
        return self._sink.write(data)

    def tell(self) -> int:
        return self._sink.tell()

    def flush(self) -> None:
        self._sink.flush()

    def close(self) -> None:
        """The file stays open for the next run."""


class SegmentStorage:
    """Reads runs from the segments of a folder and writes new ones into one segment.

    Used in a ``with`` statement it is closed at the end, or its file deleted after an error.
    """

    def __init__(self, folder: str, prefix: str, fsync: bool = True) -> None:
        self.folder = folder
        self.file = f"{prefix}-{uuid.uuid4().hex}.seg"
        self._fsync = fsync
        self._sink: BinaryIO | None = None
        self._size = 0

    def write(self, table: pa.Table) -> dict[str, Any]:
        """Append a table and return its place."""
        table = table.combine_chunks()
        with room_for(f"checkpoint {Path(self.folder).parent}"):
            if self._sink is None:
                if not os.path.isdir(self.folder):
                    make_folder(self.folder)
                self._sink = open(Path(self.folder, self.file), "xb", opener=private)  # noqa: SIM115
            padding = -self._size % _ALIGN
            self._sink.write(b"\0" * padding)
            offset = self._size + padding
            summed = _Summed(self._sink)
            with pa.ipc.new_stream(pa.PythonFile(summed, "w"), table.schema) as writer:
                writer.write_table(table)
            self._size = self._sink.tell()
            passing("run-written")
        length = self._size - offset
        return {"file": self.file, "offset": offset, "length": length, "crc": summed.crc}

    def read(self, place: dict[str, Any]) -> pa.Table:
        """Return the table at a place, one chunk per column."""
        if place["file"] == self.file:
            if self._sink is not None:
                self._sink.flush()
            return _read(self.folder, place, trusted=True)
        return read_segment(self.folder, place)

    def fetch(self, place: dict[str, Any]) -> pa.Table:
        """Return the table at a place, read and not mapped, also from the unfinished segment."""
        if place["file"] == self.file and self._sink is not None:
            self._sink.flush()
        return fetch_segment(self.folder, place, trusted=place["file"] == self.file)

    def close(self) -> None:
        """Finish the segment: from now on it can be read by others."""
        if self._sink is not None:
            with room_for(f"checkpoint {Path(self.folder).parent}"):
                self._sink.flush()
                if self._fsync:
                    os.fsync(self._sink.fileno())
                self._sink.close()
                self._sink = None
                passing("run-synced")

    def discard(self) -> None:
        """Delete the segment: nobody knows of it yet."""
        if self._sink is not None:
            sink, self._sink = self._sink, None
            with contextlib.suppress(OSError):  # what is not written yet does not matter any more
                sink.close()
        Path(self.folder, self.file).unlink(missing_ok=True)

    def __enter__(self) -> SegmentStorage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            try:
                self.close()
            except BaseException:
                self.discard()
                raise
        else:
            self.discard()


def read_segment(folder: str, place: dict[str, Any]) -> pa.Table:
    """Read one run of a finished segment."""
    return _read(folder, place, trusted=False)


def forget_deleted() -> None:
    """Let go of large files that are deleted: as long as they are mapped, the disk keeps them."""
    for path in [path for path, mapped in _maps.items() if mapped.is_large]:
        if not os.path.exists(path):
            del _maps[path]


def _read(folder: str, place: dict[str, Any], trusted: bool) -> pa.Table:
    """Read one run; the process that wrote it trusts it."""
    path = str(Path(folder, place["file"]))
    least = place["offset"] + place["length"]
    mapped = _mapped(path, least)
    section = section_of(path, place, mapped.buffer)
    if not trusted:
        _check(path, place, mapped, section)
    return _decoded(path, place, section)


def read_mapped(path: str, place: dict[str, Any], mapping: pa.Buffer) -> pa.Table:
    """Read one run of a finished segment that the caller has mapped: no other file is touched."""
    section = section_of(path, place, mapping)
    compare(path, place, section)
    return _decoded(path, place, section)


def section_of(path: str, place: dict[str, Any], mapping: pa.Buffer) -> pa.Buffer:
    """Return the bytes at a place of a mapped file, which must be long enough."""
    least = place["offset"] + place["length"]
    if least > mapping.size:
        raise StateError(
            f"the run file {path} must have at least {least} bytes, got {mapping.size}; the "
            f"checkpoint is damaged"
        )
    return mapping.slice(place["offset"], place["length"])


def _decoded(path: str, place: dict[str, Any], section: pa.Buffer) -> pa.Table:
    try:
        table = pa.ipc.open_stream(section).read_all()
    except (pa.ArrowException, OSError) as error:
        raise StateError(
            f"the run at {place['offset']} of {path} must be an Arrow stream, got: {error}; the "
            f"checkpoint is damaged"
        ) from error
    return table if table.num_rows == 0 else table.combine_chunks()


def _mapped(path: str, least: int) -> MappedFile:
    """Return a mapping of a file, a new one if the file may have grown."""
    mapped = _maps.get(path)
    if mapped is not None and mapped.buffer.size >= least:
        _maps.move_to_end(path)
        return mapped
    try:
        mapped = MappedFile(path)
    except (OSError, pa.ArrowException) as error:
        raise StateError(
            f"the run file {path} must be readable, got: {error}; the checkpoint is damaged or "
            f"was moved"
        ) from error
    _maps[path] = mapped
    _maps.move_to_end(path)
    while len(_maps) > _OPEN_FILES:
        _maps.popitem(last=False)
    return mapped


def fetch_segment(folder: str, place: dict[str, Any], trusted: bool) -> pa.Table:
    """Read one run of a segment into memory of its own."""
    path = str(Path(folder, place["file"]))
    try:
        with open(path, "rb") as file:
            file.seek(place["offset"])
            section = pa.py_buffer(file.read(place["length"]))
        if not trusted:
            compare(path, place, section)
        return pa.ipc.open_stream(section).read_all()
    except (OSError, pa.ArrowException) as error:
        raise StateError(
            f"the run at {place['offset']} of {path} must be an Arrow stream, got: {error}; the "
            f"checkpoint is damaged"
        ) from error


def _check(path: str, place: dict[str, Any], mapped: MappedFile, section: pa.Buffer) -> None:
    """Compare the checksum of a mapped run, once in this process: it reads all of it."""
    if compare(path, place, section):
        mapped.release(place["offset"], place["length"])


def compare(path: str, place: dict[str, Any], section: pa.Buffer) -> bool:
    """Compare the checksum of a run; return whether that was done now and not before."""
    key = path, place["offset"]
    if key in _checked:
        return False
    if zlib.crc32(section) != place["crc"]:
        raise StateError(
            f"the run at {place['offset']} of {path} must have the checksum that its manifest "
            f"says, but the file was altered; the checkpoint is damaged: bring the file back from "
            f"a copy, or use another --checkpoint"
        )
    _checked[key] = None
    while len(_checked) > _CHECKED_RUNS:
        _checked.popitem(last=False)
    return True
