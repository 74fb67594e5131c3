"""Traffic for Linear Road: cars on expressways of 100 miles, each with two directions.

As published: a mile is a segment, a car reports every 30 seconds, drives in three lanes, comes by
a ramp (lane 0) and leaves by one (lane 4); the reports a second of an expressway grow from few to
many over the whole time; of a hundred reports, now and then one comes with a question about the
account or the past.  The published simulator is a program of its own, so what single cars do here
differs: the more cars are in a segment, the slower they are; two cars crash in one place now and
then, stand there for some minutes, and slow down who comes behind them.

Cars are simulated second by second: those whose turn it is report and drive on for 30 seconds.  The
same numbers always give the same traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from penstock.bench.event_folders import appearing, held_note, refuse
from penstock.errors import ConfigError

SEGMENTS, SEGMENT = 100, 5280
"""Of an expressway, and the feet of one."""
ROAD = SEGMENTS * SEGMENT
EVERY = 30
"""Seconds between two reports of a car."""
FEET = 44
"""What a mile an hour is in `EVERY` seconds."""
ENTRY, EXIT = 0, 4
REPORT, BALANCE, SPENDING = 0, 2, 3
"""Types of rows."""
BALANCES = 5 / 6
"""Of all questions, those about an account."""
TURNS_APART = 11
"""Seconds between the reports of two cars that crash."""
FREE_SPEED, SLOWER = 62, 6
"""Miles an hour of an empty road; so many cars in a segment take one of them."""
REACH = 5
"""Segments in which an accident is felt."""
AGAIN = 0.3
"""Of those who come, so many were there before."""
MOST_TOLL = 90
COLUMNS = ("type", "time", "vid", "spd", "xway", "lane", "dir", "seg", "pos",
           "qid", "s_init", "s_end", "dow", "tod", "day")  # fmt: skip
HISTORY = ("vid", "day", "xway", "toll")
_NOTE = "linear-road.json"

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Traffic:
    """Which traffic: how many expressways, for how long, and how it grows.

    An expressway has ``first`` reports a second in the beginning and ``last`` in the end.  Cars
    come in the middle ``busy`` segments more often than elsewhere.  Every ``accident_every``
    seconds there is an accident on each expressway, which takes about ``accident_lasts``.  ``days``
    is how far the history of each car goes back, ``asked`` the share of reports that come with a
    question.
    """

    expressways: int = 3
    seconds: int = 10_800
    seed: int = 1
    first: float = 15.0
    last: float = 1_700.0
    busy: int = 80
    accident_every: int = 1_200
    accident_lasts: int = 900
    days: int = 69
    asked: float = 0.006

    def __post_init__(self) -> None:
        if min(self.expressways, self.seconds, self.days) < 1 or self.seed < 0:
            raise ConfigError(
                f"expressways, seconds and days must be above 0 and the seed not below, got "
                f"{self.expressways}, {self.seconds}, {self.days} and {self.seed}"
            )
        if not 0 < self.first <= self.last <= 100_000:
            raise ConfigError(
                f"reports a second must be above 0, must not become fewer, and must be at most "
                f"100,000, got {self.first:g} to {self.last:g}"
            )
        if not 0 <= self.asked <= 1:
            raise ConfigError(f"the share of questions must be from 0 to 1, got {self.asked:g}")
        if not 1 <= self.busy <= SEGMENTS or min(self.accident_every, self.accident_lasts) < 1:
            raise ConfigError(
                f"there must be 1 to {SEGMENTS} busy segments and times of accidents above 0, got "
                f"{self.busy}, {self.accident_every} and {self.accident_lasts}"
            )

    def reports(self, second: int) -> int:
        """Return how many reports an expressway has at some second."""
        return round(self.first + (self.last - self.first) * second / self.seconds)


class Simulation:
    """The cars, by the second of their turn, and what they report."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.vehicles = 0
        """Numbers of vehicles that were given."""
        self._chance = np.random.default_rng([traffic.seed, traffic.expressways])
        empty = {name: np.zeros(0, np.int64) for name in _CAR}
        self._turns = [dict(empty) for _ in range(EVERY)]
        self._crowd = np.zeros((traffic.expressways, 2, SEGMENTS), np.int64)
        self._gone = [np.zeros(0, np.int64) for _ in range(3 * EVERY)]
        """Vehicles that left so many seconds ago."""
        self._resting = np.zeros(0, np.int64)
        self._accidents: list[tuple[int, int, int, int]] = []
        """Expressway, direction, segment, and until when."""
        self._questions = 0

    def second(self, now: int) -> dict[str, Numbers]:
        """Return what is reported at a second, and let those who reported drive on."""
        self._accidents = [felt for felt in self._accidents if felt[-1] > now]
        cars = self._turns[now % EVERY]
        cars = _joined([cars, self._newcomers(cars["xway"], now)])
        if now % self.traffic.accident_every == self.traffic.accident_every // 2:
            self._crash(cars, now)
        rows = self._rows(cars, now)
        self._turns[now % EVERY] = self._driven(cars, now)
        return rows

    def _newcomers(self, there: Numbers, now: int) -> dict[str, Numbers]:
        """Return cars at their ramps, as many as are missing on the expressways."""
        reporting = np.bincount(there, minlength=self.traffic.expressways)
        missing = np.maximum(self.traffic.reports(now) - reporting, 0)
        xway = np.repeat(np.arange(self.traffic.expressways), missing)
        count, chance = len(xway), self._chance
        margin = (SEGMENTS - self.traffic.busy) // 2
        inner = chance.integers(margin, SEGMENTS - margin, count)
        seg = np.where(chance.random(count) < 0.7, inner, chance.integers(0, SEGMENTS, count))
        ahead = chance.integers(2, 30, count)
        way = chance.integers(0, 2, count)
        vid = self._numbers(count, now)
        np.add.at(self._crowd, (xway, way, seg), 1)
        return {
            "vid": vid,
            "xway": xway,
            "dir": way,
            "pos": seg * SEGMENT + chance.integers(0, SEGMENT, count),
            "lane": np.full(count, ENTRY),
            "spd": chance.integers(20, 40, count),
            "goal": np.clip(seg + np.where(way == 0, ahead, -ahead), 0, SEGMENTS - 1),
            "until": np.zeros(count, np.int64),
        }

    def _numbers(self, count: int, now: int) -> Numbers:
        """Return numbers of vehicles: some that were there before, and new ones."""
        place = now % len(self._gone)
        rested = np.concatenate([self._resting, self._gone[place]])
        self._gone[place] = np.zeros(0, np.int64)
        again = min(int(count * AGAIN), len(rested))
        self._resting = rested[again:]
        first = self.vehicles
        self.vehicles += count - again
        return np.concatenate([rested[:again], np.arange(first, self.vehicles)])

    def _crash(self, cars: dict[str, Numbers], now: int) -> None:
        """Let a car whose turn it is and a later one stop in one place, on each expressway."""
        later = self._turns[(now + TURNS_APART) % EVERY]
        able, others = _driving(cars), _driving(later)
        place, theirs = _segment_of(cars)[able], _segment_of(later)[others]
        both = np.intersect1d(place, theirs)
        for xway in range(self.traffic.expressways):
            here = both[both // (2 * SEGMENTS) == xway]
            if not len(here):
                continue
            where = self._chance.choice(here)
            one, other = able[place == where][0], others[theirs == where][0]
            for name in ("pos", "lane"):
                later[name][other] = cars[name][one]
            lasts = self.traffic.accident_lasts
            for group, car in ((cars, one), (later, other)):  # one is gone before the other
                end = now + int(lasts * self._chance.uniform(0.6, 1.4))
                group["until"][car] = end
                group["spd"][car] = 0
                way, seg = int(group["dir"][car]), int(group["pos"][car]) // SEGMENT
                self._accidents.append((xway, way, seg, end))

    def _rows(self, cars: dict[str, Numbers], now: int) -> dict[str, Numbers]:
        """Return the reports of cars in any order, each with its question behind it."""
        count = len(cars["vid"])
        order = self._chance.permutation(count)
        told = {name: cars[name][order] for name in ("vid", "spd", "xway", "lane", "dir", "pos")}
        kind = self._chance.random(count)
        asks = kind < self.traffic.asked
        asked = np.where(kind < self.traffic.asked * BALANCES, BALANCE, SPENDING)
        rows = np.concatenate([np.arange(count), np.flatnonzero(asks)])
        behind = np.argsort(rows, kind="stable")
        types = np.concatenate([np.full(count, REPORT), asked[asks]])
        rows, types = rows[behind], types[behind]
        nothing = np.full(len(rows), -1)
        found = dict.fromkeys(COLUMNS, nothing)
        found |= {"type": types, "time": np.full(len(rows), now), "vid": told["vid"][rows]}
        report = types == REPORT
        for name in ("spd", "lane", "dir", "pos"):
            found[name] = np.where(report, told[name][rows], -1)
        found["seg"] = np.where(report, told["pos"][rows] // SEGMENT, -1)
        found["xway"] = np.where(types == BALANCE, -1, told["xway"][rows])
        found["qid"] = np.where(report, -1, self._questions + np.cumsum(~report))
        day = self._chance.integers(1, self.traffic.days + 1, len(rows))
        found["day"] = np.where(types == SPENDING, day, -1)
        self._questions += int((~report).sum())
        return found

    def _driven(self, cars: dict[str, Numbers], now: int) -> dict[str, Numbers]:
        """Return cars where they are at their next turn; those that have left are gone."""
        gone = cars["lane"] == EXIT
        held = now % len(self._gone)
        self._gone[held] = np.concatenate([self._gone[held], cars["vid"][gone]])
        self._leave(cars, gone)
        cars = {name: values[~gone] for name, values in cars.items()}
        chance, seg = self._chance, cars["pos"] // SEGMENT
        stands = cars["until"] > now
        crowd = self._crowd[cars["xway"], cars["dir"], seg]
        spd = FREE_SPEED - crowd // SLOWER + chance.integers(-6, 7, len(seg))
        for xway, way, place, _ in self._accidents:
            before = place - seg if way == 0 else seg - place
            near = (cars["xway"] == xway) & (cars["dir"] == way)
            near &= (before >= 0) & (before < REACH)
            spd[near] = np.minimum(spd[near], 24)
        spd = np.where(stands, 0, np.clip(spd, 8, 100))
        moved = cars["pos"] + np.where(cars["dir"] == 0, 1, -1) * spd * FEET
        pos = np.clip(moved, 0, ROAD - 1)
        to = pos // SEGMENT
        past = np.where(cars["dir"] == 0, to - cars["goal"], cars["goal"] - to)
        leaves = (past > 0) | (past == 0) & (chance.random(len(seg)) < 0.5) | (moved != pos)
        leaves &= ~stands
        lane = np.where(cars["lane"] == ENTRY, chance.integers(1, 4, len(seg)), cars["lane"])
        np.add.at(self._crowd, (cars["xway"], cars["dir"], seg), -1)
        np.add.at(self._crowd, (cars["xway"], cars["dir"], to), 1)
        until = np.where(stands, cars["until"], 0)
        lane = np.where(leaves, EXIT, lane)
        return cars | {"pos": pos, "spd": spd, "lane": lane, "until": until}

    def _leave(self, cars: dict[str, Numbers], gone: npt.NDArray[np.bool_]) -> None:
        seg = cars["pos"][gone] // SEGMENT
        np.add.at(self._crowd, (cars["xway"][gone], cars["dir"][gone], seg), -1)


_CAR = ("vid", "xway", "dir", "pos", "lane", "spd", "goal", "until")


def _driving(cars: dict[str, Numbers]) -> Numbers:
    return np.flatnonzero((cars["lane"] != ENTRY) & (cars["lane"] != EXIT) & (cars["until"] == 0))


def _segment_of(cars: dict[str, Numbers]) -> Numbers:
    """Return a number for the segment of each car, over all expressways and both directions."""
    return (cars["xway"] * 2 + cars["dir"]) * SEGMENTS + cars["pos"] // SEGMENT


def _joined(parts: list[dict[str, Numbers]]) -> dict[str, Numbers]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def parts(traffic: Traffic, simulation: Simulation | None = None) -> Iterator[pa.Table]:
    """Yield what is reported, a minute at a time."""
    cars = simulation or Simulation(traffic)
    for begin in range(0, traffic.seconds, 60):
        seconds = range(begin, min(begin + 60, traffic.seconds))
        yield table_of([cars.second(now) for now in seconds])


def table_of(seconds: list[dict[str, Numbers]]) -> pa.Table:
    """Return what was reported in some seconds as the rows of a file."""
    rows = _joined(seconds)
    return pa.table({name: pa.array(rows[name]).cast(_type(name)) for name in COLUMNS})


def _type(name: str) -> pa.DataType:
    return pa.int64() if name == "time" else pa.int32()


def histories(traffic: Traffic, vehicles: int) -> Iterator[pa.Table]:
    """Yield what each vehicle has spent on each of the days before, on one expressway a day."""
    chance = np.random.default_rng([traffic.seed, traffic.expressways, 1])
    for first in range(0, vehicles, 10_000):
        vid = np.repeat(np.arange(first, min(first + 10_000, vehicles)), traffic.days)
        day = np.tile(np.arange(1, traffic.days + 1), len(vid) // traffic.days)
        xway = chance.integers(0, traffic.expressways, len(vid))
        values = (vid, day, xway, chance.integers(0, MOST_TOLL + 1, len(vid)))
        yield pa.table({n: pa.array(v, pa.int32()) for n, v in zip(HISTORY, values, strict=True)})


def prepared(
    place: Path, traffic: Traffic, progress: Callable[[float], None] = lambda share: None
) -> Path:
    """Return the folder with the files of this traffic; make them unless they are there.

    A folder appears by one rename when it is whole.  One with other files is never touched.
    """
    note = asdict(traffic)
    if place.exists():
        held = held_note(place, _NOTE, "Linear Road's traffic")
        if held != note:
            refuse(place, note, held)
        progress(1.0)
        return place
    with appearing(place, _NOTE, note) as making:
        cars = Simulation(traffic)
        write(making / "traffic.csv", _counted(parts(traffic, cars), traffic, progress))
        write(making / "history.csv", histories(traffic, cars.vehicles))
    return place


def _counted(
    tables: Iterator[pa.Table], traffic: Traffic, progress: Callable[[float], None]
) -> Iterator[pa.Table]:
    for minute, table in enumerate(tables, 1):
        yield table
        progress(min(minute * 60 / traffic.seconds, 1.0))


def write(path: Path, tables: Iterator[pa.Table]) -> None:
    """Write a file of csv with a header."""
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
    first = next(tables)
    with open(path, "wb") as file:
        file.write(",".join(first.column_names).encode() + b"\n")
        for table in chain([first], tables):
            pyarrow.csv.write_csv(table, file, options)
