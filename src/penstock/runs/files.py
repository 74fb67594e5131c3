"""Files that survive a crash: forced to disk, put in their place by one rename, or not at all.

What Penstock keeps is for the user alone: its folders are 0700, its files 0600.  The modes are
given when a file or folder is made, so they hold whatever the umask allows.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.errors import StateError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_FILE = 0o600


def make_folder(folder: str | Path) -> None:
    """Make a folder that only the user can look into; one of his that is there is closed."""
    path = Path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.stat()
    if found.st_mode & 0o077 and found.st_uid == os.geteuid():
        path.chmod(0o700)


def private(path: str, flags: int) -> int:
    """Open a file that only the user can read: an opener for `open`."""
    return os.open(path, flags, _FILE)


def sync_folder(folder: str | Path) -> None:
    """Force the names in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: str | Path) -> None:
    """Force a file that someone else wrote to disk; one that is not there is passed over."""
    try:
        sync_folder(path)
    except FileNotFoundError:
        return


def replace_file(
    path: Path,
    data: Any,
    fsync: bool,
    written: Callable[[], None] | None = None,
    sync_names: bool = True,
    shared: bool = False,
) -> None:
    """Put a file in its place: written under a hidden name, forced to disk, and renamed.

    ``written`` is called between the writing and the rename.  ``sync_names`` forces the rename to
    disk as well.  ``shared``: others may read the file, and other processes replace it too.
    """
    owner = f".{os.getpid()}" if shared else ""
    hidden = path.with_name(f".{path.name}{owner}.tmp")
    with open(hidden, "wb", opener=None if shared else private) as sink:
        sink.write(data)
        sink.flush()
        if fsync:
            os.fsync(sink.fileno())
    if written is not None:
        written()
    os.replace(hidden, path)
    if fsync and sync_names:
        sync_folder(path.parent)


def write_at(handle: int, data: memoryview, offset: int) -> None:
    """Write all of ``data`` into an open file: one call writes at most 2 GB."""
    while len(data):
        written = os.pwrite(handle, data, offset)
        data, offset = data[written:], offset + written


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


@contextmanager
def room_for(what: str) -> Iterator[None]:
    """Turn a disk that is full, or may not be written, into a sentence that says what to do."""
    try:
        yield
    except OSError as error:
        told = os.strerror(error.errno or 0)
        if error.errno in _FULL:
            raise StateError(
                f"the disk of {what} is full ({told}); nothing is lost: free some space and run "
                f"the same command again"
            ) from error
        if error.errno in _FORBIDDEN:
            raise StateError(
                f"{what} must be writable, but {error.filename or 'a file of it'} is not ({told}); "
                f"nothing is lost: allow it and run the same command again"
            ) from error
        raise
