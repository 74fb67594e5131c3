"""Times of one zone as times of another, by the tables of time zones that Python finds.

A table says at which instants the clocks of a zone were changed, and by how much they are ahead of
UTC from then on.  It is read once per process from the file of the zone (TZif, RFC 8536).  What the
file says of the years behind its last instant is a rule; it is written out for 400 years, after
which the calendar, weekdays included, begins again.  So a whole column is one binary search.

A time that the clocks of a zone leave out is taken by the offset before, and so is one that they
show twice: as Java does, and so Spark.
"""

from __future__ import annotations

import re
import struct
import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import DataError, QueryError
from penstock.expr.library.arrays import null_mask, numbers, numpy_of, spread
from penstock.expr.nodes import Expr, Literal
from penstock.expr.signatures import TEXT, TIME, Rule, Types, function, takes
from penstock.expr.types import BIGINT
from penstock.model import I64, INF, TIMESTAMP

_SECOND = 1_000_000
_DAY = 86_400
_CYCLE = 146_097 * _DAY
"""The seconds of 400 years."""
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{2}))?")
_UTC = frozenset(("Z", "UTC", "GMT", "UT"))
_FARTHEST = 18 * 3600


@dataclass(frozen=True)
class Zone:
    """The offsets of a zone in seconds: ``offsets[i]`` holds below ``changes[i]``, the last behind.

    Times at or behind ``cycle`` are those of 400 years before, or of a multiple of that.
    """

    changes: I64
    offsets: I64
    cycle: int = INF

    def of_utc(self, second: I64) -> I64:
        """Return the offsets at instants."""
        return self._found(self.changes, second)

    def of_clock(self, second: I64) -> I64:
        """Return the offsets at times that the clocks of the zone show."""
        return self._found(self.changes + np.maximum(self.offsets[:-1], self.offsets[1:]), second)

    def _found(self, changes: I64, second: I64) -> I64:
        if len(changes) == 0:
            return np.full(len(second), self.offsets[0])
        again = np.maximum(second - self.cycle, -1) // _CYCLE + 1 if self.cycle < INF else 0
        found: I64 = self.offsets[np.searchsorted(changes, second - again * _CYCLE, "right")]
        return found


def _fixed(seconds: int) -> Zone:
    return Zone(np.empty(0, np.int64), np.array([seconds], np.int64))


@cache
def zone_of(name: str) -> Zone:
    """Return a zone by its name, such as Europe/Athens, or by its offset, such as +02:00."""
    if name in _UTC:
        return _fixed(0)
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        seconds = int(offset[2]) * 3600 + int(offset[3] or 0) * 60
        if seconds <= _FARTHEST and int(offset[3] or 0) < 60:
            return _fixed(-seconds if offset[1] == "-" else seconds)
    elif "/" in name and name in _names():
        return _read(_file(name), name)
    near = [known for known in _names() if known.rpartition("/")[2].lower() == name.lower()]
    hint = f"; did you mean {min(near)!r}?" if near and near != [name] else ""
    raise DataError(
        "a time zone must be the name of a region such as 'Europe/Athens', 'UTC', or an offset up "
        f"to 18 hours such as '+02:00', got {name!r}{hint}"
    )


@cache
def _names() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def _file(name: str) -> bytes:
    """Return the table of a zone: that of the machine, else that of the package ``tzdata``."""
    for folder in zoneinfo.TZPATH:
        path = Path(folder, name)
        if path.is_file():
            return path.read_bytes()
    return resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()


_COUNTS = struct.Struct(">4sc15x6l")


def _read(content: bytes, name: str) -> Zone:
    """Read a table; of files with two parts the second, whose times have 64 bits."""
    magic, version, *counts = _COUNTS.unpack_from(content)
    at, width = _COUNTS.size, 4
    if magic == b"TZif" and version >= b"2":
        at += _length(counts, width)
        magic, _, *counts = _COUNTS.unpack_from(content, at)
        at, width = at + _COUNTS.size, 8
    if magic != b"TZif":
        raise DataError(f"the table of the time zone {name!r} must be a TZif file")
    _, _, _, times, types, _ = counts
    end = at + _length(counts, width)
    changes = np.frombuffer(content, f">i{width}", times, at).astype(np.int64)
    which = np.frombuffer(content, np.uint8, times, at + times * width)
    kinds = [
        struct.unpack_from(">l", content, at + times * (width + 1) + 6 * i)[0] for i in range(types)
    ]
    offsets = np.array(kinds, np.int64)[np.concatenate(([0], which)).astype(np.int64)]
    rule = content[end + 1 : content.index(b"\n", end + 1)].decode() if width == 8 else ""
    return _continued(changes, offsets, rule, name)


def _length(counts: list[int], width: int) -> int:
    utc, standard, leaps, times, types, letters = counts
    return times * (width + 1) + types * 6 + letters + leaps * (width + 4) + standard + utc


_NAME = r"(?:<[^>]+>|[A-Za-z]+)"
_CLOCK = r"[+-]?[0-9]{1,3}(?::[0-9]{2}){0,2}"
_DATE = rf"M([0-9]+)\.([1-5])\.([0-6])(?:/({_CLOCK}))?"
_RULE = re.compile(rf"{_NAME}({_CLOCK})(?:{_NAME}({_CLOCK})?,{_DATE},{_DATE})?")


def _continued(changes: I64, offsets: I64, text: str, name: str) -> Zone:
    """Add what a rule says of the years behind the last change."""
    if not text:
        return Zone(changes, offsets)
    rule = _RULE.fullmatch(text)
    if rule is None:
        raise DataError(f"the rule of the time zone {name!r} must be known, got {text!r}")
    standard = -_seconds(rule[1])
    last = int(changes[-1]) if len(changes) else -_CYCLE * 5
    if rule[3] is None:
        if int(offsets[-1]) == standard:
            return Zone(changes, offsets)
        raise DataError(f"the rule of the time zone {name!r} must go on from its table")
    summer = standard + 3600 if rule[2] is None else -_seconds(rule[2])
    first = int(np.int64(last).astype("M8[s]").astype("M8[Y]").astype(np.int64))
    years = np.arange(first, first + 402)
    begins = _dates(years, *rule.group(3, 4, 5, 6)) - standard
    ends = _dates(years, *rule.group(7, 8, 9, 10)) - summer
    more = np.concatenate((begins, ends))
    order = np.argsort(more)
    order = order[more[order] > last]
    ahead = np.repeat([summer, standard], len(years))
    cycle = int(np.int64(first + 1).astype("M8[Y]").astype("M8[s]").astype(np.int64)) + _CYCLE
    return Zone(
        np.concatenate((changes, more[order])), np.concatenate((offsets, ahead[order])), cycle
    )


def _seconds(clock: str) -> int:
    """Return a time of a rule, which may have a sign and more hours than a day."""
    parts = [int(part) for part in clock.lstrip("+-").split(":")]
    seconds = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
    return -seconds if clock.startswith("-") else seconds


def _dates(years: I64, month: str, week: str, weekday: str, clock: str | None) -> I64:
    """Return the clock times of the n-th weekday of a month, 5 for the last, in years from 1970."""
    months = (years * 12 + int(month) - 1).astype("M8[M]")
    first = months.astype("M8[D]").astype(np.int64)
    following = (months + 1).astype("M8[D]").astype(np.int64)
    day = first + (int(weekday) - (first + 4)) % 7 + 7 * (int(week) - 1)  # day 0 was a Thursday
    day = np.where(day >= following, day - 7, day)
    found: I64 = day * _DAY + _seconds(clock or "2")
    return found


def _shifted(usage: str, to_zone: bool) -> Any:
    """Return the kernel that shifts times by the offset of a zone, to its clocks or to UTC."""

    def shift(time: Any, zone: Any) -> pa.Array:
        if isinstance(zone, pa.Scalar):
            zone, names = None, [zone.as_py()]
            if names[0] is None:
                return pa.nulls(len(time), TIMESTAMP)
            null, which = null_mask(time), np.zeros(len(time), np.int64)
        else:
            _, (time, zone) = spread(time, zone)
            encoded = zone.dictionary_encode()
            names, which = encoded.dictionary.to_pylist(), numpy_of(encoded.indices)
            null = null_mask(time, zone)
        micros = numpy_of(time.cast(BIGINT))
        offset = np.zeros(len(micros), np.int64)
        for number, name in enumerate(names):
            mine = np.flatnonzero((which == number) & ~null)
            if len(mine):
                found, second = zone_of(name), micros[mine] // _SECOND
                offset[mine] = found.of_utc(second) if to_zone else -found.of_clock(second)
        moved = micros + offset * _SECOND
        if (((offset > 0) & (moved < micros)) | ((offset < 0) & (moved > micros))).any():
            raise DataError(f"{usage} must give a time in the range of TIMESTAMP")
        return numbers(moved, BIGINT, null).cast(TIMESTAMP)

    return shift


def _checked(usage: str) -> Rule:
    """Return the rule of a time and a zone; a zone that is a literal is looked up at once."""
    rule = takes(TIME, TEXT, gives=TIMESTAMP)

    def checked(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
        found = rule(args)
        zone = args[1]
        if isinstance(zone, Literal) and zone.value is not None:
            try:
                zone_of(zone.value)
            except DataError as error:
                raise QueryError(f"function {usage} cannot use its constant: {error}") from None
        return found

    return checked


_FROM, _TO = "from_utc_timestamp(t, zone)", "to_utc_timestamp(t, zone)"

FUNCTIONS = (
    function(
        _FROM,
        _checked(_FROM),
        _shifted(_FROM, True),
        "What the clocks of a zone show when it is t in UTC. A zone is a region such as "
        "'Europe/Athens', 'UTC', or an offset such as '+02:00'.",
        spark=None,
        total=False,
    ),
    function(
        _TO,
        _checked(_TO),
        _shifted(_TO, False),
        "When it is t on the clocks of a zone, the time in UTC. Of a time that the clocks show "
        "twice it is the earlier one; one that they leave out is later by what they leave out.",
        spark=None,
        total=False,
    ),
)
