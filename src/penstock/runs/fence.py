"""The fence of a checkpoint: a lock that one process holds, and the number of its epoch.

The lock keeps a second process out.  Where it cannot, because the file was deleted or the file
system forgets locks, the *epoch* does: every process that takes the lock writes the next number
into the file ``epoch``, and whoever finds another number than its own there has lost the
checkpoint: also a smaller one, which a process writes that took it after the file was lost.
"""

from __future__ import annotations

import fcntl
import os
import socket
import uuid
from datetime import UTC, datetime
from pathlib import Path

from penstock.errors import StateError
from penstock.runs.files import replace_file, room_for


class Fence:
    """Keeps a checkpoint to one process. ``epoch`` is 0 while the lock is not held.

    ``word`` is one that no other process has, also not one that runs on a copy.
    """

    def __init__(self, folder: Path, fsync: bool) -> None:
        self.epoch = 0
        self.word = uuid.uuid4().hex
        self._folder = folder
        self._lock = folder / "lock"
        self._epoch = folder / "epoch"
        self._fsync = fsync
        self._handle: int | None = None

    def take(self) -> None:
        """Take the lock and the next epoch, or say who has it."""
        with room_for(f"checkpoint {self._folder}"):
            handle = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(handle, 200).decode(errors="replace") or "another process"
            os.close(handle)
            raise StateError(
                f"a checkpoint must be used by one process at a time, but {self._folder} is held "
                f"by {owner}; stop it or give another --checkpoint"
            ) from None
        self._handle = handle
        since = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
        try:
            with room_for(f"checkpoint {self._folder}"):
                os.ftruncate(handle, 0)
                holder = f"process {os.getpid()} on {socket.gethostname()} since {since}"
                os.write(handle, holder.encode())
                epoch = self._read() + 1
                replace_file(self._epoch, f"{epoch}\n".encode(), self._fsync)
        except BaseException:
            self.release()
            raise
        self.epoch = epoch

    def release(self) -> None:
        """Give the lock back."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
            self.epoch = 0

    def check(self) -> None:
        """Check that no other process has taken the checkpoint since we did."""
        if self.epoch and (found := self._read()) != self.epoch:
            raise StateError(
                f"a checkpoint must be used by one process at a time, but {self._folder} was taken "
                f"by another one (epoch {found}) while this one (epoch {self.epoch}) was running; "
                f"this one stops, and has delivered nothing that the other one does not know"
            )

    def check_manifest(self, path: Path, epoch: int) -> None:
        """Check that a manifest was not written by a process that came after us."""
        if self.epoch and epoch > self.epoch:
            raise StateError(
                f"the manifest {path} must be of an earlier epoch than this process's, "
                f"{self.epoch}, got {epoch}: another process uses the checkpoint, or its file "
                f"'epoch' was lost; stop the other one, or write {epoch} into {self._epoch}"
            )

    def _read(self) -> int:
        try:
            text = self._epoch.read_text("ascii", "replace").strip()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise StateError(
                f"the file {self._epoch} must be readable, got: {error.strerror}"
            ) from error
        if not (text.isascii() and text.isdecimal()) or len(text) > 18:
            raise StateError(
                f"the file {self._epoch} must hold a number, got '{text[:40]}'; write the largest "
                f"'epoch' of the manifests into it"
            )
        return int(text)
