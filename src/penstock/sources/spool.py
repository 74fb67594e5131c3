"""Spools: the rows that a program pushes into a memory stream, kept as chained Arrow files.

A file appears by one rename and never changes; its name tells its place in the chain (`links`).
``head`` tells how far the chain goes, and is replaced after each push: files beyond it are those of
a push that was cut short and count, but a file before it that is missing was lost.  ``finished``
says the same of the end of the stream.  So a stream over a spool can be restarted like any other,
and what was lost, altered or brought back from an older copy is refused.

Nothing here lists the folder for each push or batch: what is known is kept, and the folder is
looked at again only when ``head`` tells of files that are not known yet.
"""

from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from penstock.errors import DataError, StateError
from penstock.model import Schema
from penstock.runs.files import (
    is_leftover,
    locked,
    make_folder,
    read_file,
    replace_file,
    room_for,
)
from penstock.sources.links import (
    SUFFIX,
    ChainEnd,
    Link,
    Told,
    after,
    check_bytes,
    check_partition,
    link_of,
)
from penstock.sources.offsets import START, Place, bad_position, chained
from penstock.sources.pushed import as_table
from penstock.sources.readers.base import Descriptor

FILE_ROWS = 1 << 18
"""Most rows of one spool file: larger pushes are split."""

_HEAD = "head"
_FINISHED = "finished"
_LOCK = "lock"
_COPY = "bring the whole spool folder back from a copy, or use another --checkpoint"

_written: dict[Path, ChainEnd] = {}
"""The heads that this process wrote last, by folder: where one is still there, nothing is amiss."""


@dataclass(frozen=True)
class SpoolPosition(Place):
    """How many files of a spool have been taken, the arrival number of the next row, the chain."""

    taken: int = 0
    ordinal: int = 0
    done: bool = False
    chain: str = START

    @property
    def reached(self) -> ChainEnd:
        """What the next file must fit."""
        return ChainEnd(self.taken, self.ordinal, self.chain)


class SpoolFiles:
    """The files of a spool as a reader sees them."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._head = str(self._folder / _HEAD)
        self._links: dict[int, Link] = {}
        self._looked_at: ChainEnd | None = None
        self._followed: ChainEnd | None = None
        """The head whose last file was found without listing the folder."""
        self._oldest: deque[Link] = deque()

    def stamp(self) -> tuple[int, int]:
        """Return what changes with every push, and costs next to nothing to look at."""
        try:
            found = os.stat(self._head)
        except FileNotFoundError:
            return 0, 0
        return found.st_mtime_ns, found.st_ino

    def rows(self) -> int:
        """Return how many rows have been pushed so far."""
        head = _read_mark(self._folder / _HEAD)
        return 0 if head is None else head.rows

    def end(self) -> SpoolPosition:
        """Return the position behind everything that is there now."""
        finished, head = self._marks()
        reached = head or ChainEnd()
        while (link := self._next(reached, head)) is not None:
            reached = after(link)
        self._check_end(reached, finished)
        return SpoolPosition(reached.files, reached.rows, finished is not None, reached.chain)

    def advance(
        self, start: SpoolPosition, limit: int, target: SpoolPosition | None = None
    ) -> SpoolPosition:
        """Return where a batch from ``start`` of about ``limit`` rows ends: at least one file on.

        It does not go further than ``target``.
        """
        finished, head = self._marks()
        self._check(start, head)
        reached, done = start.reached, start.done
        while True:
            if target is not None and reached.files >= target.taken:
                done = done or target.done
                break
            link = self._next(reached, head)
            if link is None:
                self._check_end(reached, finished)
                done = done or finished is not None
                break
            if start.done:
                raise StateError(
                    f"the spool {self._folder} must have no files after its end, but has "
                    f"'{link.name}', pushed after the file '{_FINISHED}' was lost; {_COPY}"
                )
            if reached.files > start.taken and link.end - start.ordinal > limit:
                break
            reached = after(link)
        return SpoolPosition(reached.files, reached.rows, done, reached.chain)

    def slices(self, stream: str, start: SpoolPosition, end: SpoolPosition) -> list[Descriptor]:
        """Return the descriptors of the files between two positions; the last may be final."""
        if end.taken < start.taken or (start.done and end != start):
            raise bad_position(stream, f"it goes from {start} back to {end}")
        head = self._marks()[1]
        self._check(start, head)
        reached, found = start.reached, []
        while reached.files < end.taken:
            link = self._next(reached, head)
            if link is None:
                raise self._too_short(end)
            path = str(self._folder / link.name)
            last = end.done and link.number + 1 == end.taken
            if link.rows == 0:  # only a promise: nobody reads the file
                check_bytes(path, memoryview(read_file(Path(path)) or b""))
            made = Descriptor(stream, path, 0, link.rows, link.first, final=last)
            found.append(made._replace(**link.partition_of()))
            reached = after(link)
        if reached != end.reached:
            raise self._other_chain(end, f"its files reach {reached}")
        if end.done and not found:
            found.append(Descriptor(stream, "", 0, 0, end.ordinal, final=True))
        return found

    def prune(self, ordinal: int, files: int) -> None:
        """Remove files whose rows are all before an arrival number, but never the newest file.

        Files that only promise something have no rows: so only the first ``files``, which were
        taken, are removed.  The oldest goes first, so that what is left has no gaps.  It is cheap
        to call often.
        """
        if len(self._oldest) < 2:
            head = _read_mark(self._folder / _HEAD)
            known = self._oldest[-1].number + 1 if self._oldest else 0
            if head is None or head.files <= known:
                return
            links = _listed(self._folder)
            self._oldest = deque(links[number] for number in sorted(links))
        while len(self._oldest) > 1 and (
            self._oldest[0].end <= ordinal and self._oldest[0].number < files
        ):
            (self._folder / self._oldest[0].name).unlink(missing_ok=True)
            self._oldest.popleft()

    def _marks(self) -> tuple[ChainEnd | None, ChainEnd | None]:
        """Return what ``finished`` and ``head`` say, read in this order.

        What the first says is then true of the second, and of the files.
        """
        finished = _read_mark(self._folder / _FINISHED)
        data = read_file(self._folder / _HEAD)
        head = _mark(self._folder / _HEAD, data)
        if head is None:
            self._look(None)
            if self._links:  # it may have been written in between
                head = _read_mark(self._folder / _HEAD)
            if head is None and (self._links or finished is not None):
                raise _no_head(self._folder)
        elif finished is None and data == _encoded(head, finished=True):
            finished = _read_mark(self._folder / _FINISHED)  # it may have come in between
            if finished is None:
                raise StateError(
                    f"the file '{self._folder / _FINISHED}' must tell where the spool ends, "
                    f"because the stream was finished, but it is gone; {_COPY}"
                )
        return finished, head

    def _look(self, head: ChainEnd | None) -> bool:
        """List the folder, unless that was done for this head; tell whether it was not."""
        if head is not None and head == self._looked_at:
            return False
        self._links = _listed(self._folder)
        self._looked_at = head
        return True

    def _check(self, start: SpoolPosition, head: ChainEnd | None) -> None:
        """Check that a position is one of this spool."""
        if start.reached in (ChainEnd(), head):
            return
        if start.taken not in self._links and self._only(start.reached, head) is None:
            self._look(head)
        link = self._links.get(start.taken)
        if link is not None:
            if not start.reached.fits(link):
                raise self._other_chain(start, f"the next file is '{link.name}'")
            return
        last = self._links.get(start.taken - 1)
        if last is not None and after(last) == start.reached:
            return
        if head is not None and head.files == start.taken:
            raise self._other_chain(start, f"its head says {head}")
        if self._next(start.reached, head) is None:
            raise self._too_short(start)

    def _next(self, reached: ChainEnd, head: ChainEnd | None) -> Link | None:
        """Return the file that comes next, None if there is none yet."""
        link = self._links.get(reached.files) or self._only(reached, head)
        if link is None and reached == head == self._followed:
            return None
        if link is None and self._look(head):
            link = self._links.get(reached.files)
        if link is None:
            highest = max(self._links, default=-1)
            if highest > reached.files or (head is not None and head.files > reached.files):
                raise self._gap(reached)
            return None
        if not reached.fits(link):
            before = self._links.get(link.number - 1)
            known = "" if before is None else f", as '{before.name}' says"
            raise StateError(
                f"the spool file '{self._folder / link.name}' must come after {reached}{known}, "
                f"but its own name says otherwise; one of them was renamed, or is of another "
                f"spool: {_COPY}"
            )
        return link

    def _only(self, reached: ChainEnd, head: ChainEnd | None) -> Link | None:
        """Return the file that comes next if it is the only one: head tells its name, mostly.

        So who follows pushes one by one need not list the folder for each of them.
        """
        if head is None or head.files != reached.files + 1:
            return None
        rows = head.rows - reached.rows
        link = Link(reached.files, reached.rows, rows, reached.chain, head.chain)
        if not os.path.exists(self._folder / link.name):
            return None
        self._links, self._looked_at, self._followed = {link.number: link}, None, head
        return link

    def _check_end(self, reached: ChainEnd, finished: ChainEnd | None) -> None:
        """Check that the files end where ``finished``, if it is there, says that they do."""
        if finished is not None and finished != reached:
            raise StateError(
                f"the file '{self._folder / _FINISHED}' must tell where the spool ends, at "
                f"{reached}, got {finished}; files are missing, or it is of another time: {_COPY}"
            )

    def _gap(self, reached: ChainEnd) -> StateError:
        number = reached.files
        lowest = min(self._links, default=number)
        if lowest > number and lowest > 0:
            return StateError(
                f"the spool {self._folder} must have its file number {number} "
                f"('{number:010d}-*{SUFFIX}'), but begins with number {lowest}: the checkpoint is "
                f"older than its spool, whose first files were no longer needed, or they were "
                f"lost; {_COPY}"
            )
        return StateError(
            f"the spool {self._folder} must have no gaps, but its file number {number} "
            f"('{number:010d}-*{SUFFIX}') is gone; bring it back from a copy, or use another "
            f"--checkpoint"
        )

    def _too_short(self, position: SpoolPosition) -> StateError:
        return StateError(
            f"the spool {self._folder} must have the {position.taken} files that were read, but "
            f"ends before; it was deleted, or is an older copy than the checkpoint: {_COPY}"
        )

    def _other_chain(self, position: SpoolPosition, found: str) -> StateError:
        return StateError(
            f"the spool {self._folder} must be the one that was read up to {position.reached}, "
            f"but {found}; its files were replaced: {_COPY}"
        )


class Spool:
    """The writing end of a memory stream; threads and processes may push at the same time."""

    def __init__(self, folder: str | Path, schema: Schema, fsync: bool = True) -> None:
        self._folder = Path(folder).absolute()
        make_folder(self._folder)
        self._schema = schema
        self._fsync = fsync

    def push(self, rows: Any, partition: int | None = None) -> None:
        """Add rows: dicts or tuples in a list, an Arrow table or batch, or a pandas DataFrame.

        ``partition`` is the source partition that they belong to; None: there is only one.
        """
        self._add(as_table(rows, self._schema), partition, None)

    def heartbeat(self, time: int, partition: int | None = None) -> None:
        """Promise that no row below a time follows, in one source partition or in the only one."""
        self._add(as_table([], self._schema), partition, time)

    def _add(self, table: pa.Table, partition: int | None, heartbeat: int | None) -> None:
        check_partition(partition)
        with room_for(f"the spool {self._folder}"), locked(self._folder / _LOCK):
            reached = self._reached()
            if read_file(self._folder / _HEAD) == _encoded(reached, finished=True) or (
                _read_mark(self._folder / _FINISHED) is not None
            ):
                raise DataError(
                    "rows must be pushed before finish(), but this stream is finished; "
                    "make a new one"
                )
            _written.pop(self._folder, None)  # if this fails, the folder is looked at again
            for first in range(0, max(table.num_rows, heartbeat is not None), FILE_ROWS):
                some = table.slice(first, FILE_ROWS)
                reached = self._write(reached, some, Told(partition, heartbeat))
            if table.num_rows or heartbeat is not None:
                self._put_head(reached)

    def finish(self) -> None:
        """Say that no more rows will come: the stream ends after those already pushed."""
        with room_for(f"the spool {self._folder}"), locked(self._folder / _LOCK):
            reached = self._reached()
            self._put_head(reached)
            replace_file(self._folder / _FINISHED, _encoded(reached), self._fsync)
            self._put_head(reached, finished=True)

    def _reached(self) -> ChainEnd:
        """Return how far the files go; the folder is listed only where someone else was at work."""
        head = _read_mark(self._folder / _HEAD)
        if head is not None and head == _written.get(self._folder):
            return head
        for name in os.listdir(self._folder):
            if is_leftover(name):
                (self._folder / name).unlink(missing_ok=True)
        links = _listed(self._folder)
        if head is None:
            if links or (self._folder / _FINISHED).exists():
                raise _no_head(self._folder)
            self._put_head(ChainEnd())
            return ChainEnd()
        last = links.get(head.files - 1)
        if head.files and (last is None or after(last) != head):
            raise StateError(
                f"the spool {self._folder} must have its last file, number {head.files - 1} "
                f"('{head.files - 1:010d}-*-{head.chain}{SUFFIX}'), but it is gone; {_COPY}"
            )
        while (link := links.get(head.files)) is not None and head.fits(link):
            head = after(link)  # pushed, but the process ended before its head was in place
        if any(number >= head.files for number in links):
            raise StateError(
                f"the spool {self._folder} must have no files behind its end, {head}, but has "
                f"'{links[max(links)].name}'; {_COPY}"
            )
        return head

    def _write(self, reached: ChainEnd, table: pa.Table, told: Told) -> ChainEnd:
        sink = pa.BufferOutputStream()
        with pyarrow.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        data = memoryview(sink.getvalue())
        link = reached.link(data, table.num_rows, told)
        replace_file(self._folder / link.name, data, self._fsync)
        return after(link)

    def _put_head(self, reached: ChainEnd, finished: bool = False) -> None:
        """Replace the head; a rename that a power cut undoes leaves an older one, which will do."""
        data = _encoded(reached, finished)
        replace_file(self._folder / _HEAD, data, self._fsync, sync_names=False)
        _written[self._folder] = reached


def _listed(folder: Path) -> dict[int, Link]:
    """Return the files of a spool by their numbers."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    links: dict[int, Link] = {}
    for name in names:
        if not name.endswith(SUFFIX):
            continue
        link = link_of(name)
        if link is None:
            raise StateError(
                f"the names of the files in the spool {folder} must tell number, first row, rows "
                f"and two digests, got '{name}'; it was made by another version of Penstock, or "
                f"renamed: use another --checkpoint"
            )
        if link.number in links:
            raise StateError(
                f"the spool {folder} must have one file number {link.number}, got '{name}' and "
                f"'{links[link.number].name}'; two spools were mixed: {_COPY}"
            )
        links[link.number] = link
    return links


def _encoded(reached: ChainEnd, finished: bool = False) -> bytes:
    told = f"{reached.files} {reached.rows} {reached.chain}"
    if finished:
        told += f" {_FINISHED}"
    return json.dumps({"reached": told, "digest": chained(START, told.encode())}).encode() + b"\n"


def _read_mark(path: Path) -> ChainEnd | None:
    """Return what ``head`` or ``finished`` says, None if there is no such file."""
    return _mark(path, read_file(path))


def _mark(path: Path, data: bytes | None) -> ChainEnd | None:
    """Return what the bytes of ``head`` or ``finished`` say."""
    if data is None:
        return None
    try:
        files, rows, chain = str(json.loads(data)["reached"]).split(" ")[:3]
        reached = ChainEnd(int(files), int(rows), chain)
    except (ValueError, TypeError, KeyError):
        reached = None
    if reached is None or data not in (_encoded(reached), _encoded(reached, finished=True)):
        raise StateError(
            f"the file '{path}' must tell how many files and rows a spool has, got {data[:80]!r}; "
            f"it is damaged: bring it back from a copy, or use another --checkpoint"
        )
    return reached


def _no_head(folder: Path) -> StateError:
    return StateError(
        f"the spool {folder} must have a file '{_HEAD}', but it is gone; bring it back from a "
        f"copy, or use another --checkpoint"
    )
