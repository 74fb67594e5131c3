"""Small files beside a checkpoint: readable by their owner only, in their place by one rename.

The modes are given when a file or folder is made, so they hold whatever the umask allows.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.errors import StateError
from penstock.runs.files import sync_folder

_FILE = 0o600


def put_file(path: Path, data: Any, fsync: bool, sync_names: bool = True) -> None:
    """Write a file under a hidden name, force it to disk, and rename it.

    ``sync_names`` forces the rename to disk as well.
    """
    hidden = path.parent / f".{path.name}.tmp"
    handle = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        if fsync:
            os.fsync(file.fileno())
    os.replace(hidden, path)
    if fsync and sync_names:
        sync_folder(path.parent)


def is_leftover(name: str) -> bool:
    """Whether a name is that of a file whose writing was cut short."""
    return name.startswith(".") and name.endswith(".tmp")


def open_to_append(path: Path) -> Any:
    """Open a file for reading, and for writing at its end; it is made if there is none."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, _FILE)
    return os.fdopen(handle, "r+b")


def read_file(path: Path) -> bytes | None:
    """Return what a file holds, None if there is no such file."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock on a file, and hold it: against other threads and other processes."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, _FILE)
        try:
            lock(handle, path)
            if _is_still(handle, path):
                yield
                return
        finally:
            os.close(handle)


def lock(handle: int, path: Path) -> None:
    """Wait for the lock on an open file; it goes when the file is closed."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        raise StateError(
            f"the file {path} must be on a file system with locks, but: {error}; use a checkpoint "
            f"on a local disk"
        ) from None


def _is_still(handle: int, path: Path) -> bool:
    """Whether a path names the file that is open, and not one that was made after it."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
