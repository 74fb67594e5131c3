"""Files that survive a crash: forced to disk, put in their place by one rename, or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import StateError

_FULL = (errno.ENOSPC, errno.EDQUOT)


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
    with open(temporary, "wb") as sink:
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
    """Turn a full disk into a sentence that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise StateError(
            f"the disk of {what} is full ({os.strerror(error.errno)}); nothing is lost: free some "
            f"space and run the same command again"
        ) from error
