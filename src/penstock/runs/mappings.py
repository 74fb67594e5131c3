"""Files that are mapped into memory, and how their pages are given back.

What is read through a mapping counts as resident memory of the process until the kernel needs the
page elsewhere, which may be never.  `release` gives such pages back at once.  Mappings are shared
and never written, so nothing is lost: arrays that were handed out stay valid, and a page that is
touched again comes back from the file, mostly from the kernel's cache.

Only large files are given back; a Python mapping keeps a file descriptor, so small ones are mapped
by Arrow, which does not.
"""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from pathlib import Path
from typing import Any

import pyarrow as pa

LARGE = 1 << 20
"""Bytes from which a file's pages are worth giving back."""

_STATISTICS = Path("/proc/self/statm")
_PAGE = mmap.PAGESIZE
_NO_DESCRIPTOR: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
_large: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_elsewhere: list[int] = []
"""At most one number: the resident bytes of files that are not ours, such as libraries."""


class MappedFile:
    """A file mapped for reading. The mapping lives as long as this object or any part of it."""

    def __init__(self, path: str) -> None:
        self._mapping: mmap.mmap | None = None
        if os.stat(path).st_size < LARGE:
            with pa.memory_map(path) as mapped:
                self.buffer = mapped.read_buffer()
            return
        with open(path, "rb") as file:
            self._mapping = _mapped(file.fileno())
        self.buffer = _given_back(self._mapping)

    @property
    def is_large(self) -> bool:
        return self._mapping is not None

    def release(self, offset: int, length: int) -> None:
        """Give back the pages that lie wholly or partly in a range."""
        if self._mapping is not None:
            first = offset - offset % _PAGE
            _give_back(self._mapping, first, min(offset + length, len(self._mapping)) - first)


def map_open(handle: int) -> pa.Buffer:
    """Map all of an open file; the mapping lives as long as any part of the buffer."""
    return _given_back(_mapped(handle))


def release() -> None:
    """Give back the pages of all large mapped files, and what the allocator keeps for later."""
    for mapping in tuple(_large):
        _give_back(mapping, 0, len(mapping))
    pa.default_memory_pool().release_unused()


def release_beyond(limit: int) -> bool:
    """Release if more than ``limit`` bytes of mapped files are resident; return whether it did.

    Where the system does not tell, nothing is released.
    """
    resident = resident_file_bytes()
    if resident is None or resident - (_elsewhere[0] if _elsewhere else 0) <= limit:
        return False
    release()
    _elsewhere[:] = [resident_file_bytes() or 0]
    return True


def resident_file_bytes() -> int | None:
    """Return how many bytes of files are in this process's memory; None if nobody knows."""
    try:
        return int(_STATISTICS.read_bytes().split()[2]) * _PAGE
    except OSError:
        return None


def _mapped(handle: int) -> mmap.mmap:
    return mmap.mmap(handle, 0, access=mmap.ACCESS_READ, **_NO_DESCRIPTOR)


def _given_back(mapping: mmap.mmap) -> pa.Buffer:
    """Return a mapping as a buffer; its pages are given back with those of all large files."""
    _large.add(mapping)
    return pa.py_buffer(mapping)


def _give_back(mapping: mmap.mmap, first: int, length: int) -> None:
    if hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED, first, length)
