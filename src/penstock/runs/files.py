"""Files that survive a crash: forced to disk, put in their place by one rename, or not at all.

What Penstock keeps is for the user alone: its folders are 0700, its files 0600.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import StateError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


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
    return os.open(path, flags, 0o600)


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
    path: Path, data: bytes, fsync: bool, written: Callable[[], None] | None = None
) -> None:
    """Put a file in its place: temporary file, fsync, rename, fsync of the folder.

    ``written`` is called between the writing and the rename.
    """
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb", opener=private) as sink:
        sink.write(data)
        sink.flush()
        if fsync:
            os.fsync(sink.fileno())
    if written is not None:
        written()
    os.replace(temporary, path)
    if fsync:
        sync_folder(path.parent)


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
