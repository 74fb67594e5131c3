"""What Linear Road must answer, in plain Python: the published definitions, minute by minute.

Nothing of Penstock, NumPy or Arrow is used.  M(t) = t // 60 is the minute of a second; what is said
in a minute rests on the statistics and accidents of the minutes before it.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]
Place = tuple[int, int, int]
"""Expressway, direction and segment."""
EXIT = 4


@dataclass(frozen=True)
class Given:
    """All rows of the input in the order of their times, and the history."""

    traffic: list[dict[str, int]]
    history: dict[tuple[int, int, int], int]

    @property
    def reports(self) -> list[dict[str, int]]:
        return [row for row in self.traffic if row["type"] == 0]


def read(folder: Path) -> Given:
    """Read the files of a folder."""
    with (folder / "history.csv").open(newline="") as file:
        history = {
            (int(row["vid"]), int(row["day"]), int(row["xway"])): int(row["toll"])
            for row in csv.DictReader(file)
        }
    with (folder / "traffic.csv").open(newline="") as file:
        traffic = [{name: int(text) for name, text in row.items()} for row in csv.DictReader(file)]
    return Given(traffic, history)


@dataclass
class Answers:
    """What is to come out, by query: streams as rows with their time behind them."""

    toll_notices: list[Row] = field(default_factory=list)
    accident_alerts: list[Row] = field(default_factory=list)
    balance_answers: list[Row] = field(default_factory=list)
    spending_answers: list[Row] = field(default_factory=list)
    segments: dict[int, dict[Place, Row]] = field(default_factory=dict)
    """For each minute what is known in it of the segments: cars, LAV and toll."""

    @property
    def segment_statistics(self) -> list[Row]:
        """Return the same as rows, with the seconds from which and until which they hold."""
        return [
            (*place, *told, minute * 60, minute * 60 + 60)
            for minute, segments in self.segments.items()
            for place, told in segments.items()
        ]


def answers(given: Given) -> Answers:
    """Evaluate everything."""
    found = Answers()
    reports = given.reports
    last = max(row["time"] for row in given.traffic) // 60
    cars, speeds = statistics(reports)
    accidents = accident_minutes(reports, last)
    for minute in range(last + 7):  # what was five minutes ago counts
        found.segments[minute] = tolls(minute, cars, speeds, accidents)
    latest: dict[int, dict[str, int]] = {}
    owed: dict[int, int] = {}
    balance: dict[int, int] = defaultdict(int)
    for _, rows in _seconds(given.traffic):
        for row in rows:
            if row["type"] == 0:
                _crossed(row, latest.get(row["vid"]), found, accidents, owed, balance)
                latest[row["vid"]] = row
        for row in rows:  # an account is asked for as it is behind the reports of its second
            head = (row["qid"], row["time"], row["vid"])
            if row["type"] == 2:
                found.balance_answers.append((*head, balance[row["vid"]], row["time"]))
            if row["type"] == 3:
                toll = given.history.get((row["vid"], row["day"], row["xway"]))
                found.spending_answers.append((*head, toll, row["time"]))
    return found


def _seconds(rows: list[dict[str, int]]) -> Iterator[tuple[int, list[dict[str, int]]]]:
    by_time: dict[int, list[dict[str, int]]] = defaultdict(list)
    for row in rows:
        by_time[row["time"]].append(row)
    yield from sorted(by_time.items())


def _crossed(
    row: dict[str, int],
    before: dict[str, int] | None,
    found: Answers,
    accidents: dict[int, set[Place]],
    owed: dict[int, int],
    balance: dict[int, int],
) -> None:
    """See what a report leads to, when it is the first one from a segment."""
    begins = before is None or before["time"] < row["time"] - 30
    if not begins and before is not None and before["seg"] == row["seg"]:
        return
    time, vid = row["time"], row["vid"]
    if not begins:
        balance[vid] += owed[vid]
    place = (row["xway"], row["dir"], row["seg"])
    _, lav, toll = found.segments[time // 60].get(place, (None, None, 0))
    owed[vid] = toll
    if row["lane"] == EXIT:
        return
    found.toll_notices.append((vid, time, lav, toll, time))
    for seg in ahead(place):
        if (*place[:2], seg) in accidents.get(time // 60 - 1, ()):
            found.accident_alerts.append((vid, time, seg, time))


def ahead(place: Place) -> list[int]:
    """Return a segment and the four downstream of it."""
    _, way, seg = place
    return [seg + step if way == 0 else seg - step for step in range(5)]


def statistics(
    reports: list[dict[str, int]],
) -> tuple[dict[int, dict[Place, int]], dict[int, dict[Place, float]]]:
    """Return by minute and segment how many cars there were, and the average of their averages."""
    speeds: dict[tuple[int, Place], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in reports:
        place = (row["xway"], row["dir"], row["seg"])
        speeds[row["time"] // 60, place][row["vid"]].append(row["spd"])
    cars: dict[int, dict[Place, int]] = defaultdict(dict)
    averages: dict[int, dict[Place, float]] = defaultdict(dict)
    for (minute, place), by_car in speeds.items():
        cars[minute][place] = len(by_car)
        averages[minute][place] = sum(sum(s) / len(s) for s in by_car.values()) / len(by_car)
    return cars, averages


def accident_minutes(reports: list[dict[str, int]], last: int) -> dict[int, set[Place]]:
    """Return by minute the segments in which there was an accident at some second of it.

    A car has stopped from its fourth report from one place on until its next report is due, or
    comes: two of them at one place and time are an accident.
    """
    recent: dict[int, list[dict[str, int]]] = defaultdict(list)
    stopped: dict[int, tuple[int, tuple[int, ...]]] = {}
    """By car: until when it is taken to stand, and where."""
    news: dict[int, list[dict[str, int]]] = dict(_seconds(reports))
    found: dict[int, set[Place]] = defaultdict(set)
    for time in range((last + 2) * 60):  # the last one stands on for a while
        for row in news.get(time, ()):
            kept = recent[row["vid"]] = [*recent[row["vid"]][-3:], row]
            places = {_spot(r) for r in kept}
            stopped.pop(row["vid"], None)
            if len(kept) == 4 and len(places) == 1 and kept[0]["time"] > time - 120:
                stopped[row["vid"]] = kept[0]["time"] + 120, _spot(row)
        standing: dict[tuple[int, ...], int] = defaultdict(int)
        for until, spot in stopped.values():
            if time < until:
                standing[spot] += 1
        for (xway, _, way, seg, _), count in standing.items():
            if count > 1:
                found[time // 60].add((xway, way, seg))
    return found


def _spot(row: dict[str, int]) -> tuple[int, ...]:
    return row["xway"], row["lane"], row["dir"], row["seg"], row["pos"]


def tolls(
    minute: int,
    cars: dict[int, dict[Place, int]],
    speeds: dict[int, dict[Place, float]],
    accidents: dict[int, set[Place]],
) -> dict[Place, Row]:
    """Return what is known of the segments in a minute: cars of the last one, LAV, toll."""
    five = [speeds.get(minute - back, {}) for back in range(1, 6)]
    found: dict[Place, Row] = {}
    for place in {place for some in five for place in some}:
        some = [averages[place] for averages in five if place in averages]
        lav = sum(some) / len(some)
        count = cars.get(minute - 1, {}).get(place)
        stuck = any((*place[:2], seg) in accidents.get(minute - 1, ()) for seg in ahead(place))
        toll = 0
        if lav < 40 and count is not None and count > 50 and not stuck:
            toll = 2 * (count - 50) ** 2
        found[place] = (count, lav, toll)
    return found
