"""How the files of a stream are cut into batches: side by side, or one after the other.

*Side by side*, each file is a source partition of its own.  The files have an order, in which they
are begun: by the first time of each.  A batch takes rows of those that are furthest behind in time,
of several at once so that all cores have work.  So files that follow one another are read one after
the other, a few at a time, and files that cover the same time are read evenly: what waits for the
slowest stays small.

Which rows are late must not depend on how batches are cut.  So files that are not begun yet hold
the stream back, together, as one more partition (`UNREAD`): its heartbeat is the one that the next
of them will have behind its first rows.  A file that is begun therefore finds a heartbeat of the
stream that makes none of its rows late.

*One after the other*, in a given order, the files are one sequence of rows and one partition.

Every round of a loop begins when the one before is over; side by side, its files are new
partitions.

A position holds how many files were begun and the places in those that are not done, so it stays
small however many files there were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from os.path import basename
from typing import NamedTuple, Protocol

from penstock.catalog import StreamDef
from penstock.errors import ConfigError
from penstock.model import INF, MIN_TIME
from penstock.sources.cuts import Cuts
from penstock.sources.offsets import START, Place, bad_position
from penstock.sources.readers.base import Descriptor, option

PARALLEL, NAME, TIME = ORDERS = ("parallel", "name", "time")
"""Side by side, each a source partition of its own; one after the other by their names; one after
the other by the least time of each."""

UNREAD = "/unread"
"""The partition that stands for the files that are not begun yet; no file has such a name."""


def order_of(definition: StreamDef) -> str:
    """Return the order in which the files of a stream are read."""
    given = (option(definition, "order") or PARALLEL).strip().lower()
    if given not in ORDERS:
        raise ConfigError(
            f"the option order of stream {definition.name} must be 'parallel' (each file is a "
            f"source partition of its own), 'name' or 'time' (one file after the other, by name or "
            f"by least time), got '{given}'"
        )
    return given


@dataclass(frozen=True)
class Places(Place):
    """Where a stream stands in its files.

    Of the ``known`` files so many were ``begun``; ``open`` are those that are not done: number of
    the file, place in it, and rows before that, of the file or of the sequence.  ``ordinal`` counts
    all rows, ``listed`` is a digest of the files that are known.  ``due`` is when a replay with a
    pace was to be here, in nanoseconds of the clock that the processes of a machine share; 0: it
    has no pace, or its clock has not begun.
    """

    hints = frozenset({"due"})

    known: int = 0
    begun: int = 0
    open: tuple[tuple[int, int, int], ...] = ()
    ordinal: int = 0
    round: int = 0
    period: int = 0
    done: bool = False
    listed: str = START
    due: int = field(default=0, compare=False)

    @property
    def shift(self) -> int:
        """What is added to times in this round."""
        return self.round * self.period

    @property
    def begins(self) -> bool:
        """Whether nothing has been read yet."""
        return not (self.begun or self.round or self.done)


class Take(NamedTuple):
    """What a batch may take; ``until``: no rows behind the first later than this time."""

    rows: int
    bytes: int | None = None
    files: int = 2**62
    until: int | None = None


class Shelf(Protocol):
    """The files of a stream, in the order in which they are begun."""

    paths: list[str]

    @property
    def stream(self) -> str:
        """The name of the stream."""

    @property
    def rounds(self) -> int | None:
        """How often they are read; None: for ever, 0: they are watched, and others may follow."""

    @property
    def cuts(self) -> Cuts:
        """What cuts them."""

    def check_file(self, file: int) -> None:
        """Check that a file is as it was when it was first seen."""


@dataclass
class _Walk:
    """A position on its way, and what was taken: by round and file its first and last place."""

    known: int
    begun: int
    open: dict[int, tuple[int, int]]
    round: int
    rows: int = 0
    taken: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)


class SideBySide:
    """Cuts the files of a shelf into batches; ``width`` of them are read at once.

    ``slack`` is that of the stream, None: it is measured.  ``in_order``: the files are one sequence
    of rows, read one after the other.
    """

    def __init__(self, shelf: Shelf, width: int, slack: int | None, in_order: bool = False) -> None:
        self._shelf = shelf
        self._width = max(width, 1)
        self._slack = slack
        self._in_order = in_order

    # -- going on ----------------------------------------------------------------------------------

    def advance(self, start: Places, take: Take) -> tuple[Places, list[Descriptor]]:
        """Return where a batch ends, and its slices.

        It takes at least one row where there is one.  When a finite source ends there, the
        position is done and the last slice is final; one that ends without a slice has one of no
        rows.
        """
        self.check(start)
        walk = _Walk(
            start.known, start.begun, {f: (at, row) for f, at, row in start.open}, start.round
        )
        done, seen = start.done, bool(start.begun)
        rows, size, files = take.rows, take.bytes, take.files
        while not done:
            if not walk.open and walk.begun == walk.known:
                if not self._goes_on(walk.round) or not seen:
                    done = self._shelf.rounds != 0
                    break
                walk.round, walk.begun, seen = walk.round + 1, 0, False
            before = walk.rows, len(walk.open), walk.begun
            left = rows - walk.rows
            self._skip_empty(walk)
            if left > 0 and (size is None or size > 0):
                size = self._pass(walk, take._replace(rows=left, bytes=size, files=files), start)
            self._skip_empty(walk)
            seen = seen or walk.rows > before[0]
            cut_short = self._in_order and walk.open
            if cut_short or before == (walk.rows, len(walk.open), walk.begun):
                break
        still = tuple((file, *walk.open[file]) for file in sorted(walk.open))
        end = replace(
            start,
            begun=walk.begun,
            open=still,
            ordinal=start.ordinal + walk.rows,
            round=walk.round,
            done=done,
        )
        return end, self._described(start, end, walk.taken)

    def _goes_on(self, round: int) -> bool:
        rounds = self._shelf.rounds
        return rounds is None or round + 1 < rounds

    def _pass(self, walk: _Walk, take: Take, start: Places) -> int | None:
        """Take a share of the rows from each of the files that are furthest behind."""
        shift = walk.round * start.period
        chosen = self._furthest_behind(walk, take, shift)
        rows, size = take.rows, take.bytes
        for place, file in enumerate(chosen):
            others = len(chosen) - place
            share = -(-rows // others)
            path = self._shelf.paths[file]
            self._shelf.check_file(file)
            first, last = self._shelf.cuts.bounds(path)
            at, row = walk.open.get(file, (first, self._first_row(start.ordinal + walk.rows)))
            if file > walk.begun:
                continue  # one before it was not begun after all
            if at >= last:
                walk.begun = file + 1
                continue
            if take.until is not None:
                due = take.until - shift
                share = min(share, self._shelf.cuts.rows_until(path, at, due, share))
            if share <= 0 or (size is not None and size <= 0):
                continue
            most = None if size is None else -(-size // others)
            end, taken, spent = self._shelf.cuts.within(path, at, share, most)
            begin, _, number = walk.taken.get((walk.round, file), (at, at, row))
            walk.taken[walk.round, file] = begin, end, number
            walk.open[file] = end, row + taken
            walk.begun = max(walk.begun, file + 1)
            walk.rows += taken
            rows -= taken
            size = None if size is None else size - spent
            if end >= last:
                del walk.open[file]
                self._shelf.cuts.forget(path)
        return size

    def _first_row(self, before: int) -> int:
        """Return the number of a file's first row, where so many rows were read before."""
        return before if self._in_order else 0

    def _skip_empty(self, walk: _Walk) -> None:
        """Pass over files without rows that are next, so that an end is seen at once."""
        while walk.begun < walk.known and self._is_empty(walk.begun):
            walk.begun += 1

    def _is_empty(self, file: int) -> bool:
        self._shelf.check_file(file)
        first, last = self._shelf.cuts.bounds(self._shelf.paths[file])
        return first >= last

    def _furthest_behind(self, walk: _Walk, take: Take, shift: int) -> list[int]:
        """Return the files of which the batch takes rows next, those furthest behind first."""
        found = self._in_line(walk) if self._in_order else list(self._by_time(walk))
        if take.until is not None and not self._in_order:
            found = [(time, file) for time, file in found if time + shift <= take.until]
        touched = {file for round, file in walk.taken if round == walk.round}
        room = take.files - len(walk.taken)
        chosen: list[int] = []
        for _, file in sorted(found):
            if file not in touched:
                if room <= 0:
                    continue
                room -= 1
            chosen.append(file)
            if len(chosen) == self._width:
                break
        return chosen

    def _in_line(self, walk: _Walk) -> list[tuple[int, int]]:
        """Return the one file that comes next, if there is one."""
        file = next(iter(walk.open), walk.begun)
        return [(MIN_TIME, file)] if file < walk.known else []

    def _by_time(self, walk: _Walk) -> Iterator[tuple[int, int]]:
        """Yield the files that may be read now, with the time at which each stands."""
        cuts, paths = self._shelf.cuts, self._shelf.paths
        for file, (at, _) in walk.open.items():
            self._shelf.check_file(file)
            time = cuts.time_at(paths[file], at)
            yield MIN_TIME if time is None else time, file
        latest = MIN_TIME
        for file in range(walk.begun, min(walk.begun + self._width, walk.known)):
            latest = max(latest, self._first(file))  # they are begun in their order
            yield latest, file

    def _first(self, file: int) -> int:
        """Return the heartbeat that a file may have before it is begun, but for the slack."""
        self._shelf.check_file(file)
        cuts, path = self._shelf.cuts, self._shelf.paths[file]
        time = cuts.least_time(path) if self._slack is None else cuts.first_time(path)
        return MIN_TIME if time is None else time

    def time_at(self, position: Places) -> int | None:
        """Return the time of the row that comes next, as far as it is known."""
        cuts, paths = self._shelf.cuts, self._shelf.paths
        times = [cuts.time_at(paths[file], at) for file, at, _ in position.open]
        shift = position.shift
        if position.begun < position.known:
            times.append(cuts.time_at(paths[position.begun], -1))
        elif not position.open and self._goes_on(position.round) and paths:
            times.append(cuts.time_at(paths[0], -1))
            shift += position.period
        known = [time for time in times if time is not None]
        return min(known) + shift if known else None

    # -- what lies between two positions -----------------------------------------------------------

    def between(self, first: Places, last: Places) -> list[Descriptor]:
        """Return the slices between two positions that were reached before."""
        self.check(first)
        self.check(last)
        self._check_order(first, last)
        taken: dict[tuple[int, int], tuple[int, int, int]] = {}
        rows = 0
        for round in range(first.round, last.round + 1):
            before = _state(first, round == first.round, False)
            after = _state(last, round == last.round, True)
            for file in sorted({*before[1], *range(before[0], after[0])}):
                begin, number = before[1].get(file, (-1, self._first_row(first.ordinal + rows)))
                rows += self._counted(taken, (round, file), (begin, number), after[1].get(file))
        if rows != last.ordinal - first.ordinal:
            raise bad_position(
                self._shelf.stream,
                f"row {last.ordinal} is said to be reached, where it is {first.ordinal + rows}",
            )
        return self._described(first, last, taken)

    def _counted(
        self,
        taken: dict[tuple[int, int], tuple[int, int, int]],
        key: tuple[int, int],
        begin: tuple[int, int],
        end: tuple[int, int] | None,
    ) -> int:
        """Note the part of a file that a batch took, and return its rows."""
        self._shelf.check_file(key[1])
        path = self._shelf.paths[key[1]]
        first, last = self._shelf.cuts.bounds(path)
        at, number = max(begin[0], first), begin[1]
        to = last if end is None else end[0]
        if to < at:
            raise bad_position(self._shelf.stream, f"it goes back in '{path}'")
        if to == at:
            return 0
        rows = self._shelf.cuts.rows_between(path, at, to)
        if end is not None and number + rows != end[1]:
            raise bad_position(
                self._shelf.stream, f"{end[1]} rows of '{path}' are said to be read, not {rows}"
            )
        taken[key] = at, to, number
        return rows

    def _check_order(self, first: Places, last: Places) -> None:
        back = (last.round, last.begun, last.ordinal, last.known) < (
            first.round,
            first.begun,
            first.ordinal,
            first.known,
        )
        known = {file for file, _, _ in first.open} | set(range(first.begun, last.known))
        revived = first.round == last.round and not {f for f, _, _ in last.open} <= known
        if back or revived or last.ordinal < first.ordinal or first.done:
            raise bad_position(self._shelf.stream, f"it goes from {first} back to {last}")

    def _described(
        self, first: Places, last: Places, taken: dict[tuple[int, int], tuple[int, int, int]]
    ) -> list[Descriptor]:
        """Return the descriptors of what was taken, and what must be known of all other files."""
        open_now = {(last.round, file): (at, row) for file, at, row in last.open}
        slices = []
        for key in sorted(taken):
            begin, end, number = taken[key]
            made = self._descriptor(key, begin, end, number, first.period)
            slices.append(made._replace(ends=not self._in_order and key not in open_now))
        if not self._in_order:
            for key, (at, row) in open_now.items():
                if key not in taken:  # it waits for its turn, and is not silent
                    slices.append(self._descriptor(key, at, at, row, first.period))
            if slices or last.done:
                slices += self._unread(first, last)
        if last.done:
            if not slices:
                slices = [Descriptor(self._shelf.stream, "", 0, 0, last.ordinal)]
            slices[-1] = slices[-1]._replace(final=True)
        return slices

    def _descriptor(
        self, key: tuple[int, int], first: int, last: int, row: int, period: int
    ) -> Descriptor:
        round, file = key
        path, count = self._shelf.paths[file], len(self._shelf.paths)
        made = Descriptor(self._shelf.stream, path, first, last, row, round * period)
        if self._in_order:
            return made
        name = basename(path) if round == 0 else f"{basename(path)}/{round + 1}"
        return made._replace(partition=name, number=file + round * count)

    def _unread(self, first: Places, last: Places) -> Iterator[Descriptor]:
        """Tell the heartbeat of the files that are not begun, or that there are none any more."""
        told = Descriptor(self._shelf.stream, "", 0, 0, 0, partition=UNREAD)
        if last.begun < last.known:
            file, shift = last.begun, last.shift
        elif self._goes_on(last.round) and not last.done and self._shelf.paths:
            file, shift = 0, last.shift + last.period
        else:
            if first.begun < last.known or self._goes_on(first.round):
                yield told._replace(ends=True)
            return
        least = self._first(file)
        if least == MIN_TIME:
            yield told
        else:
            floor = least + shift - (self._slack or 0)
            yield told._replace(floor=min(max(floor, MIN_TIME), INF - 1))

    # -- positions ---------------------------------------------------------------------------------

    def check(self, position: Places) -> None:
        """Check that a position can be one of these files; places must be line starts, or rows."""
        problem = self._problem(position)
        if problem is not None:
            raise bad_position(self._shelf.stream, problem)

    def _problem(self, position: Places) -> str | None:
        count, rounds = len(self._shelf.paths), self._shelf.rounds
        numbers = [file for file, _, _ in position.open]
        if position.known > count or (rounds != 0 and position.known != count):
            return f"there are {count} files, not {position.known}"
        if position.begun > position.known:
            return f"{position.begun} of {position.known} files are begun"
        if numbers != sorted(set(numbers)) or any(file >= position.begun for file in numbers):
            return f"files {numbers} are said to be begun, of {position.begun}"
        if position.done and (rounds == 0 or numbers or position.begun < position.known):
            return "files are left at its end"
        if rounds == 0 and (position.round or position.period):
            return "a watched folder has no rounds"
        if rounds == 1 and position.period:
            return f"one round has no period, got {position.period}"
        if rounds and position.round >= rounds:
            return f"it is in round {position.round + 1} of {rounds}"
        if position.begins and position.ordinal:
            return f"no file is read, but {position.ordinal} rows are"
        if sum(row for _, _, row in position.open) > position.ordinal:
            return f"there are more rows in its files than {position.ordinal}"
        for file, at, row in position.open:
            self._shelf.check_file(file)
            path = self._shelf.paths[file]
            first, last = self._shelf.cuts.bounds(path)
            if not first < at < last or not row or not self._shelf.cuts.is_row(path, at):
                return f"no row begins at {at} of '{path}'"
        return None


def _state(position: Places, here: bool, ended: bool) -> tuple[int, dict[int, tuple[int, int]]]:
    """Return how many files are begun in a round, and the places in those that are open."""
    if here:
        return position.begun, {file: (at, row) for file, at, row in position.open}
    return (position.known if ended else 0), {}
