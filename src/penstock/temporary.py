"""Temporary folders: one for each process, swept by a later one when the process was killed.

``<tmp>/penstock-<user>/<process>-<random>/`` holds everything that a process needs for a while: a
temporary checkpoint, what Spark starts from and what Spark itself writes.  Its file ``lock`` is
locked while the process lives; the lock goes with the process, however that ends.  A start removes
the folders that nobody locks.  Folders are made, locked and looked at under the lock of the parent,
so that none is removed between its making and its locking.

What a task cannot hold in memory goes into files without names.  They are where Spark has its own
such files, if it says so, and nothing of them is left when the process has ended.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_LOCK = "lock"
_NAME = re.compile(r"\d+-[0-9a-f]{12}")


@dataclass(frozen=True)
class _Own:
    """The folder of a process, and the handle that locks it."""

    process: int
    path: Path
    handle: int


_making = threading.Lock()
_own: _Own | None = None


def own_folder() -> Path:
    """Return the folder of this process; it is made when it is first asked for."""
    global _own
    with _making:
        if _own is None or _own.process != os.getpid() or not _own.path.is_dir():
            _own = _made(_parent())
            atexit.register(_remove, _own)
        return _own.path


def new_folder(purpose: str) -> Path:
    """Return a new folder, for its owner only; it is gone when the process has ended."""
    return Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=own_folder()))


def nameless_file() -> BinaryIO:
    """Return an open file that has no name: it goes with the last who has it open or mapped."""
    return tempfile.TemporaryFile(dir=space(), buffering=0)


def space() -> str:
    """Return the folder with room for files without names."""
    for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if folder and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return tempfile.gettempdir()


def _parent() -> Path:
    """Return the folder of this user; another one if somebody else has taken its name."""
    path = Path(tempfile.gettempdir(), f"penstock-{os.getuid()}")
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    private = stat.S_IMODE(found.st_mode) & 0o077 == 0
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and private:
        return path
    return Path(tempfile.mkdtemp(prefix="penstock-"))


def _made(parent: Path) -> _Own:
    with _locked(parent / _LOCK):
        process = os.getpid()
        path = parent / f"{process}-{secrets.token_hex(6)}"
        path.mkdir(mode=0o700)
        handle = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        with suppress(OSError):  # a file system without locks: then nothing is swept either
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        dead = [other for other in _others(parent, path) if _is_dead(other)]
    for other in dead:
        shutil.rmtree(other, ignore_errors=True)
    return _Own(process, path, handle)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _others(parent: Path, own: Path) -> Iterator[Path]:
    for path in parent.iterdir():
        if path != own and _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            yield path


def _is_dead(folder: Path) -> bool:
    """Whether nobody locks a folder. It has no lock when its making, or removal, was cut short."""
    try:
        handle = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _remove(own: _Own) -> None:
    """Remove the folder of this process at its end; a fork of it leaves the folder alone."""
    if own.process == os.getpid():
        shutil.rmtree(own.path, ignore_errors=True)
