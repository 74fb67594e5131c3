"""Makes the data of the city queries: small streams, always the same for one seed.

``temperature.txt`` and ``humidity.txt`` are text files whose first line is the schema; their time
counts seconds, and there is one sensor of each kind in every city.  The csv files hold streams with
timestamps: temperature of two sensors per city, humidity, trades of shares and logins.
``positions.csv`` tells where vehicles are; its time counts seconds.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

START = datetime(2004, 1, 31, 22, 0, 0)
HOURS = 4
CITIES = {
    # city: its mean temperature on a winter night, its mean humidity
    "ATHENS": (11.5, 62),
    "THESSALONIKI": (6.8, 70),
    "PATRA": (12.1, 68),
    "HERAKLION": (14.2, 60),
    "LARISSA": (4.9, 76),
    "VOLOS": (8.7, 71),
    "KAVALA": (7.3, 69),
    "CORFU": (11.0, 75),
    "IOANNINA": (3.6, 80),
    "KALAMATA": (12.6, 66),
    "CHANIA": (13.9, 61),
    "RHODES": (14.8, 64),
}
SHARES = ["ALFA", "BETA", "GAMA", "DELT", "EPSI", "ZETA", "ITA"]
SHARES += ["THIT", "IOTA", "KAPA", "LAMD", "MIKR", "NIKI", "XIOS"]


def instants(chance: random.Random, step: float, hours: float = HOURS) -> list[int]:
    """Seconds at which a sensor sends: about every ``step`` minutes, at random instants."""
    times = []
    time = chance.uniform(0, step * 60)
    while time < hours * 3600:
        times.append(int(time))
        time += step * 60 * chance.uniform(0.7, 1.3)
    return times


def celsius(chance: random.Random, city: str, second: int) -> float:
    """A winter night: colder towards the morning, with some noise."""
    night = -1.8 * math.sin(math.pi * second / 3600 / 8)
    return round(CITIES[city][0] + night + chance.gauss(0, 0.35), 2)


def percent(chance: random.Random, city: str, second: int) -> float:
    """The humidity rises while the air cools."""
    night = 6 * math.sin(math.pi * second / 3600 / 8)
    return round(min(CITIES[city][1] + night + chance.gauss(0, 1.2), 100), 1)


def stamp(second: int) -> str:
    return (START + timedelta(seconds=second)).strftime("%Y-%m-%d %H:%M:%S")


def scanner_file(path: Path, rows: Iterable[tuple[int, str, float, int]]) -> None:
    """Write (sensor, city, value, second) in the text format: first line is the schema."""
    lines = ["int, int, charn 15, timestamp, charn 30, double"]
    for number, (sensor, city, value, second) in enumerate(sorted(rows, key=lambda r: r[3]), 1):
        lines.append(f"{number}, {sensor}, {city}, {second}, '{stamp(second)} EET', {value:.2f}")
    path.write_text("\n".join(lines) + "\n")


def csv_file(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows, sorted by their last column, with a header."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(sorted(rows, key=lambda r: r[-1]))


def trades(chance: random.Random) -> Iterable[tuple[str, float, int, str]]:
    """Prices that wander; two shares are traded only in the second half."""
    for number, share in enumerate(SHARES):
        price = chance.uniform(5, 60)
        for second in instants(chance, 8):
            price *= math.exp(chance.gauss(0.0005, 0.012))
            if number < 12 or second > HOURS * 1800:
                yield share, round(price, 2), 10 * chance.randint(1, 90), stamp(second)


def logins(chance: random.Random) -> Iterable[tuple[int, int, str]]:
    """Users who connect (+1) and leave (-1) again."""
    for user in range(1, 121):
        arrives = int(chance.triangular(0, HOURS * 3600, HOURS * 2000))
        leaves = arrives + int(chance.expovariate(1 / 1500)) + 60
        yield user, 1, stamp(arrives)
        if leaves < HOURS * 3600:
            yield user, -1, stamp(leaves)


def positions(chance: random.Random) -> Iterable[tuple[int, float, float, int]]:
    """Vehicles that drive through the plain; x and y in metres."""
    for vehicle in range(1, 7):
        x, y = chance.uniform(0, 9e4), chance.uniform(0, 9e4)
        heading, speed, before = chance.uniform(0, 6.28), chance.uniform(12, 30), 0
        for second in instants(chance, 1, hours=0.7):
            heading += chance.gauss(0, 0.2)
            speed = min(max(speed + chance.gauss(0, 1.5), 0.0), 36.0)
            x += speed * math.cos(heading) * (second - before)
            y += speed * math.sin(heading) * (second - before)
            before = second
            yield vehicle, round(x, 1), round(y, 1), second


def generate(folder: Path, seed: int = 2004) -> None:
    """Write all files."""
    chance = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    names = list(CITIES)
    for kind, value, step in (("temperature", celsius, 10), ("humidity", percent, 10)):
        scanner_file(
            folder / f"{kind}.txt",
            (
                (10 * number + (kind == "humidity"), city, value(chance, city, second), second)
                for number, city in enumerate(names, 1)
                for second in instants(chance, step)
            ),
        )
    csv_file(
        folder / "temperature.csv",
        ("sensor", "city", "celsius", "t"),
        (
            (10 * number + which, city, celsius(chance, city, second), stamp(second))
            for number, city in enumerate(names, 1)
            for which in range(2)
            for second in instants(chance, 20)
        ),
    )
    csv_file(
        folder / "humidity.csv",
        ("sensor", "city", "percent", "t"),
        (
            (10 * number + 5, city, percent(chance, city, second), stamp(second))
            for number, city in enumerate(names, 1)
            for second in instants(chance, 10)
        ),
    )
    csv_file(folder / "trades.csv", ("share", "price", "volume", "t"), trades(chance))
    csv_file(folder / "logins.csv", ("user", "change", "t"), logins(chance))
    csv_file(folder / "positions.csv", ("vehicle", "x", "y", "t"), positions(chance))


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the data of the city queries.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent / "data")
    generate(parser.parse_args().folder)


if __name__ == "__main__":
    main()
