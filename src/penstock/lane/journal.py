"""The journal of turns: what the lane has answered, with the answers, before anybody gets them.

A turn is computed, then its record is appended here and forced to disk, then it is delivered.  So
which rows the lane has answered is decided once, in one place, and nothing is computed again after
a crash: turns that a sink has not got are delivered from here, under the same numbers.

``<checkpoint>/lane/<first turn>.log`` are the files, each with some turns, one record after
another (`penstock.lane.records`).  Records are chained by digests over all files: what is altered,
reordered, lost or mixed with another copy is refused.  The last file is never deleted, so a folder
that holds nothing was lost, unless there never was a turn.  A manifest says how far its batches
know the journal (`Mark`), which tells a journal or a manifest that was brought back from an older
copy.

Opening reads and compares, and changes nothing.  A record at the very end that was cut short by a
crash was never counted on; it is cut off when the next turn comes.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from penstock.errors import StateError
from penstock.lane.records import Content, Place, Rows, Turn, damaged, encode, read_records
from penstock.runs.deliveries import Delivered
from penstock.runs.failpoints import passing
from penstock.runs.files import make_folder, private, room_for, sync_folder, write_at
from penstock.sources.offsets import START, chained

__all__ = ["Journal", "Mark", "Rows", "Turn"]

FOLDER = "lane"
_NAME = re.compile(r"(\d{10})\.log")


@dataclass(frozen=True)
class Mark:
    """How far a manifest knows the journal.

    The rows of all turns up to ``turn`` are in its batches, and ``chain`` is the digest after that
    turn.  ``last`` is the last turn there was when the manifest was made: what it says of outlets
    is what they had got by then.
    """

    turn: int
    chain: str
    last: int = 0

    @staticmethod
    def start(run: str) -> Mark:
        """Return the mark of a checkpoint, which ``run`` names, before its first turn."""
        return Mark(0, chained(START, run.encode()))

    @staticmethod
    def of(found: Mapping[str, Any], run: str) -> Mark:
        """Return what a manifest holds; nothing is held before the first turn."""
        return Mark(**found) if found else Mark.start(run)

    def describe(self) -> dict[str, Any]:
        """As a manifest keeps it."""
        return asdict(self)


@dataclass
class _Segment:
    """A file of the journal: its first turn, how many there are, and where the last one ends."""

    path: Path
    first: int
    turns: int = 0
    end: int = 0

    @property
    def last(self) -> int:
        return self.first + self.turns - 1


class Journal:
    """The turns that are kept, oldest first, and the file where the next one is written.

    Of the turns the rows are in memory; results are read when they are asked for.  Turns may be
    appended by one thread while others read, rotate and prune.

    ``still_ours`` fails when another process has taken the checkpoint.  It is asked before a turn
    is written, and again when it is on disk: if it is ours then, whoever takes it later finds the
    turn.  Otherwise the turn is taken back, and nobody gets it.
    """

    def __init__(
        self, folder: Path, after: Mark, fsync: bool, still_ours: Callable[[], None]
    ) -> None:
        self._checkpoint = folder
        self._folder = folder / FOLDER
        self._fsync = fsync
        self._still_ours = still_ours
        self._lock = threading.RLock()
        self._segments: list[_Segment] = []
        self._turns: deque[Turn] = deque()
        self._told: dict[str, Delivered] = {}
        self._handle: int | None = None
        self._full = self._broken = False
        self._settled_chain = after.chain
        self.settled = after.turn
        """The rows of turns up to this one are all in batches that are committed."""
        self.last = after.turn
        """The number of the last turn; 0: there was none."""
        self.chain = after.chain
        """The digest of the last turn and of all before it."""

    # -- opening ---------------------------------------------------------------------------------

    @staticmethod
    def open(
        folder: str | Path,
        after: Mark,
        batch: int,
        told: Mapping[str, Delivered] | None = None,
        fsync: bool = True,
        still_ours: Callable[[], None] = lambda: None,
    ) -> Journal:
        """Open the journal of a checkpoint, which must go on from what its newest manifest says.

        ``batch`` is the batch of that manifest, ``told`` what it says of the lane's outlets.
        """
        journal = Journal(Path(folder), after, fsync, still_ours)
        chain: str | None = None
        firsts = journal._firsts()
        for first in firsts:
            path = journal._path(first)
            journal._check_next(path, first)
            content = read_records(path, chain, is_last=first == firsts[-1])
            journal._enter(path, first, content)
            if content.turns:
                chain = content.turns[-1].chain
            if first == firsts[0]:
                journal._check_beginning(first, content.before, after)
        journal._check_end(after, batch)
        journal._told = dict(told or {})
        for turn in journal._turns:
            if turn.number > after.last:
                journal._told |= turn.told
        return journal

    def _firsts(self) -> list[int]:
        """Return the first turns of all files, by their names."""
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StateError(
                f"the folder {self._folder} of the journal of turns must be readable, got: "
                f"{error.strerror}; nothing was changed: bring it back from a copy"
            ) from error
        for name in names:
            if not _NAME.fullmatch(name):
                raise StateError(
                    f"the folder {self._folder} must hold files of the journal of turns only, but "
                    f"{name} is none; nothing was changed: take the file away, or bring the folder "
                    f"back from a copy"
                )
        return [int(name[:10]) for name in names]

    def _check_next(self, path: Path, first: int) -> None:
        """Check that the next file begins where the one before ends."""
        if self._segments and first != self._segments[-1].last + 1:
            lost = self._path(self._segments[-1].last + 1)
            raise StateError(
                f"the files of the journal of turns must follow one another, but {lost} is "
                f"missing, and there is {path.name}; nothing was changed: bring the folder "
                f"{self._folder} back from a copy, or use another --checkpoint"
            )

    def _enter(self, path: Path, first: int, content: Content) -> None:
        """Take over the turns of the next file."""
        for number, turn in enumerate(content.turns, first):
            if turn.number != number:
                raise damaged(path, 0, f"must be of turn {first}, which its name tells")
        self._segments.append(_Segment(path, first, len(content.turns), content.end))
        self._turns.extend(content.turns)

    def _check_beginning(self, first: int, before: str | None, after: Mark) -> None:
        """Check that the first file does not begin after what the manifest knows."""
        if first > after.turn + 1:
            raise self._refused(
                after,
                f"it begins with turn {first}: what came before was deleted after a later batch, "
                f"so the manifests are an older copy, or files were lost",
            )
        if first == after.turn + 1 and before not in (None, after.chain):
            raise self._refused(after, "it goes on from other turns: one of them is of a copy")

    def _check_end(self, after: Mark, batch: int) -> None:
        """Check that the turns reach what the manifest knows, and where they end."""
        if self._turns:
            newest = self._turns[-1]
            self.last, self.chain = newest.number, newest.chain
            same = [turn for turn in self._turns if turn.number == after.turn]
            if same and same[0].chain != after.chain:
                raise self._refused(after, f"its turn {after.turn} is another one: it is of a copy")
            if newest.batch > batch:
                raise self._refused(
                    after,
                    f"turn {newest.number} was answered with batch {newest.batch}, and the newest "
                    f"manifest is of batch {batch}: the manifests are an older copy",
                )
        least = max(after.turn, after.last)
        if (self._turns[-1].number if self._turns else 0) < least:
            ends = f"it ends with turn {self._turns[-1].number}" if self._turns else "it is empty"
            raise self._refused(
                after, f"{ends}, and there were {least}: it is an older copy, or files were lost"
            )

    def _refused(self, after: Mark, what: str) -> StateError:
        return StateError(
            f"the journal of turns in {self._folder} must go on from turn {after.turn}, up to "
            f"which the batches of this checkpoint have its rows, but {what}. Going on would lose "
            f"answers or give them twice. Nothing was changed: bring manifests and journal back "
            f"from copies of the same time, or use another --checkpoint"
        )

    # -- reading ---------------------------------------------------------------------------------

    def turns(self, since: int = 0) -> Iterator[Turn]:
        """Return the turns that are kept after one, oldest first."""
        with self._lock:
            kept = [turn for turn in self._turns if turn.number > since]
        return iter(kept)

    @property
    def told(self) -> dict[str, Delivered]:
        """What each outlet of the lane has got when it has got all turns, for manifests."""
        with self._lock:
            return dict(self._told)

    def tell(self, told: Mapping[str, Delivered]) -> None:
        """Correct what outlets have got: those of dropped queries, and those that begin anew."""
        with self._lock:
            self._told |= told

    def settle(self, turn: int) -> Mark:
        """Return the mark of a manifest whose batches have all rows of the turns up to one.

        What the manifest says of outlets must be read from `told` after that.
        """
        with self._lock:
            known = {kept.number: kept.chain for kept in self._turns}
            if turn not in known and turn != self.settled:
                raise ValueError(f"turn {turn} must be one that is kept, or {self.settled}")
            chain = known.get(turn, self._settled_chain)
            self.settled, self._settled_chain = turn, chain
            return Mark(turn, chain, self.last)

    # -- writing ---------------------------------------------------------------------------------

    def append(self, turn: Turn) -> Turn:
        """Number a turn and write it down; when this returns, it stays.

        If it fails the turn does not count, and the journal takes no more: the run must end.
        """
        with self._lock:
            numbered = replace(turn, number=self.last + 1)
            record = encode(numbered, self.chain, self._told)
            self._still_ours()
            with room_for(f"checkpoint {self._checkpoint}"):
                passing("lane-journal-before")
                segment = self._writable()
                place = Place(segment.path, segment.end, len(record.data), self.chain)
                self._write(segment, memoryview(record.data))
            kept = record.turn(place, turn.rows)
            segment.turns += 1
            segment.end += len(record.data)
            self._turns.append(kept)
            self._told |= kept.told
            self.last, self.chain = kept.number, kept.chain
            passing("lane-journal-after")
            return replace(kept, results=turn.results)

    def _writable(self) -> _Segment:
        """Return the file for the next turn, open and without anything behind its last turn."""
        if self._broken:
            raise StateError(
                f"the journal of turns in {self._folder} must be opened again after a turn could "
                f"not be written; run the same command again"
            )
        if not self._segments or self._full:
            self._begin_segment()
        segment = self._segments[-1]
        if self._handle is None:
            self._handle = os.open(segment.path, os.O_RDWR)
            os.ftruncate(self._handle, segment.end)
        return segment

    def _begin_segment(self) -> None:
        is_new = not self._folder.is_dir()
        make_folder(self._folder)
        path = self._path(self.last + 1)
        try:
            self._handle = private(str(path), os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            raise self._not_alone(path) from None
        if self._fsync:
            sync_folder(self._folder)
            if is_new:
                sync_folder(self._checkpoint)
        self._segments.append(_Segment(path, self.last + 1))
        self._full = False

    def _write(self, segment: _Segment, data: memoryview) -> None:
        """Append a record and force it to disk; what fails is taken back."""
        handle = self._handle
        assert handle is not None
        self._check_alone(segment, handle)
        half = len(data) // 2
        try:
            write_at(handle, data[:half], segment.end)
            passing("lane-journal-torn")
            write_at(handle, data[half:], segment.end + half)
            if self._fsync:
                os.fdatasync(handle)
            self._still_ours()
        except BaseException:
            self._broken = True
            with contextlib.suppress(OSError):
                os.ftruncate(handle, segment.end)
                os.fsync(handle)
            raise

    def _check_alone(self, segment: _Segment, handle: int) -> None:
        """Check that nobody else has written to the file, deleted or replaced it."""
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(segment.path)
            if os.path.samestat(found, os.fstat(handle)) and found.st_size == segment.end:
                return
        raise self._not_alone(segment.path)

    def _not_alone(self, path: Path) -> StateError:
        self._broken = True
        return StateError(
            f"the journal file {path} must be written by one process alone, but another "
            f"one has changed it; stop one of them, and run the same command again"
        )

    def rotate(self) -> None:
        """Let the next turn begin a new file, unless the last one is empty."""
        with self._lock:
            if not self._segments or not self._segments[-1].turns or self._full:
                return
            with room_for(f"checkpoint {self._checkpoint}"):
                self._writable()  # nothing may be left behind the last turn of a file
            self.close()
            self._full = True

    def prune(self, through: int) -> None:
        """Delete the files all of whose turns are at or before one, but never the last of them.

        They must all be in committed batches, and every sink must have got them.
        """
        with self._lock:
            if self._has_next() and self._segments[0].last <= through:
                self._still_ours()
            while self._has_next() and self._segments[0].last <= through:
                segment = self._segments.pop(0)
                segment.path.unlink(missing_ok=True)
                if self._fsync:  # in order: what is left must have no gap
                    sync_folder(self._folder)
                for _ in range(segment.turns):
                    self._turns.popleft()

    def _has_next(self) -> bool:
        """Whether there are turns in a file after the first."""
        return len(self._segments) > 1 and self._segments[1].turns > 0

    def close(self) -> None:
        """Close the file; the next turn opens it again."""
        with self._lock:
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None

    def _path(self, first: int) -> Path:
        return self._folder / f"{first:010d}.log"
