"""Makes the data of the control room: two hours of a morning in a hydro-power company.

Five files, always the same for one seed:

* ``telemetry.csv``: every turbine, every ten seconds: power, speed, bearing temperature.  Rows come
  as a network delivers them, a little out of order, and three of them far too late.
* ``frequency.csv``: the grid frequency of four regions, every five seconds.
* ``status.csv``: messages of the turbines.  Before an alarm "BEARING_TRIP" the bearing grows hot
  for some twelve minutes; other alarms come out of the blue.  When a turbine trips, its region's
  frequency dips.
* ``plants.csv``, ``machines.csv``: the tables of plants, and of turbines with their plants.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

START = pd.Timestamp("2024-03-11 06:00:00")
LENGTH = 7200
"""Seconds of event time."""

PLANTS = [
    # plant, name, region, turbines, megawatts of each turbine
    (1, "Alder Falls", "north", 8, 62.0),
    (2, "Black Gorge", "north", 7, 85.0),
    (3, "Cedar Dam", "east", 8, 48.0),
    (4, "Dun Lake", "east", 6, 110.0),
    (5, "Elm Narrows", "south", 9, 35.0),
    (6, "Fox Weir", "south", 8, 54.0),
    (7, "Grey Rapids", "west", 7, 72.0),
    (8, "High Tarn", "west", 7, 95.0),
]
REGIONS = ["north", "east", "south", "west"]

TRIPS = [
    # turbine, second of the trip, code; only BEARING_TRIP announces itself
    (11, 1150, "BEARING_TRIP"),
    (27, 1990, "GOVERNOR_FAULT"),
    (41, 2480, "BEARING_TRIP"),
    (5, 3130, "BEARING_TRIP"),
    (54, 3720, "VIBRATION"),
    (33, 4390, "BEARING_TRIP"),
    (19, 5060, "BEARING_TRIP"),
    (47, 5610, "GOVERNOR_FAULT"),
    (25, 6120, "BEARING_TRIP"),
    (58, 6730, "BEARING_TRIP"),
]
OUTAGE = 1500
"""Seconds from a trip to the restart."""


def turbines() -> pd.DataFrame:
    """One row per turbine: number, plant, region, rated megawatts."""
    rows = [(plant, region, mw) for plant, _, region, count, mw in PLANTS for _ in range(count)]
    frame = pd.DataFrame(rows, columns=["plant", "region", "rated"])
    frame.insert(0, "turbine", np.arange(1, len(frame) + 1))
    return frame


def smooth_noise(random: np.random.Generator, count: int, memory: float) -> np.ndarray:
    """Noise of size one that remembers: ``memory`` times the value before, and a push."""
    pushes = random.normal(0.0, np.sqrt(1 - memory**2), count)
    values = np.empty(count)
    value = random.normal()
    for i, push in enumerate(pushes):
        value = memory * value + push
        values[i] = value
    return values


def running(seconds: np.ndarray, trip: int | None) -> np.ndarray:
    """The share of its load that a turbine carries: down in 40 s after a trip, later up again."""
    if trip is None:
        return np.ones(len(seconds))
    since = seconds - trip
    down = 1 - np.clip(since / 40, 0, 1)
    again = np.clip((since - OUTAGE) / 300, 0, 1)
    return np.maximum(down, again)


def slow(values: np.ndarray) -> np.ndarray:
    """Follow the values with the delay of some minutes that a heavy bearing has."""
    followed = np.empty(len(values))
    value = values[0]
    for i, target in enumerate(values):
        value += 0.05 * (target - value)
        followed[i] = value
    return followed


def telemetry(random: np.random.Generator) -> pd.DataFrame:
    """Power, speed and bearing temperature of every turbine, in order of arrival."""
    trip_of = {turbine: (second, code) for turbine, second, code in TRIPS}
    parts = []
    for row in turbines().itertuples():
        seconds = np.arange(0, LENGTH, 10) + random.uniform(0, 10) + random.normal(0, 0.15, 720)
        seconds = np.clip(seconds, 0, LENGTH - 0.001)
        trip, code = trip_of.get(row.turbine, (None, ""))
        morning = 0.48 + 0.37 / (1 + np.exp(-(seconds - 2900) / 700))
        swing = 0.05 * np.sin(2 * np.pi * (seconds / 1700 + row.plant / 8))
        load = morning + swing + 0.025 * smooth_noise(random, 720, 0.93)
        share = running(seconds, trip)
        power = np.maximum(row.rated * load * share, 0) + random.normal(0, 0.05, 720) * share
        rpm = 300 * np.clip(share * 3, 0, 1) + random.normal(0, 0.4, 720) * (share > 0)
        bearing = 38 + 24 * slow(load * share) + 1.2 * smooth_noise(random, 720, 0.97)
        bearing += random.normal(0, 2.0) + random.normal(0, 0.15, 720)
        if code == "BEARING_TRIP":
            warming = np.clip((seconds - (trip - 720)) / 720, 0, 1)
            cooling = np.exp(-np.clip(seconds - trip, 0, None) / 400)
            bearing += random.uniform(30, 38) * warming**2 * cooling
        parts.append(
            pd.DataFrame(
                {
                    "turbine": row.turbine,
                    "plant": row.plant,
                    "power": np.maximum(power, 0).round(2),
                    "rpm": np.maximum(rpm, 0).round(1),
                    "bearing": bearing.round(2),
                    "seconds": seconds,
                }
            )
        )
    frame = pd.concat(parts, ignore_index=True)
    delay = random.exponential(0.5, len(frame)).clip(0, 2.4)
    delay[random.choice(len(frame) - 9000, 3, replace=False)] = 90.0
    return by_arrival(frame, delay)


def frequency(random: np.random.Generator) -> pd.DataFrame:
    """The grid frequency of each region; a trip costs some hundredths of a hertz."""
    machines = turbines().set_index("turbine")
    parts = []
    for number, region in enumerate(REGIONS):
        seconds = np.arange(0, LENGTH, 5) + number * 1.25
        hertz = 50 + 0.012 * smooth_noise(random, len(seconds), 0.9)
        hertz -= 0.01 * np.sin(2 * np.pi * seconds / 3600)
        for turbine, second, _ in TRIPS:
            machine = machines.loc[turbine]
            since = seconds - second
            depth = machine.rated * (1.6e-3 if machine.region == region else 0.4e-3)
            fall = np.clip(since / 8, 0, 1) * np.exp(-np.clip(since, 0, None) / 70)
            hertz -= depth * fall
        parts.append(pd.DataFrame({"region": region, "hertz": hertz.round(4), "seconds": seconds}))
    return by_arrival(pd.concat(parts, ignore_index=True), 0.0)


def status(random: np.random.Generator, measured: pd.DataFrame) -> pd.DataFrame:
    """Messages: routine (0), notices (1), warnings (2) and alarms (3)."""
    rows: list[tuple[int, str, int, str, float]] = []
    for turbine in turbines()["turbine"]:
        for second in np.arange(random.uniform(0, 600), LENGTH, 600):
            rows.append((turbine, "SELF_TEST", 0, "self-test passed", second))
        for second in random.uniform(0, LENGTH, random.poisson(3)):
            code, text = [
                ("GATE_MOVED", "wicket gate position changed"),
                ("OIL_LEVEL", "oil level checked"),
                ("LOCAL_LOGIN", "operator logged in at the machine"),
            ][random.integers(3)]
            rows.append((turbine, code, 1, text, second))
    for turbine, second, code in TRIPS:
        text = {
            "BEARING_TRIP": "bearing too hot, machine tripped",
            "GOVERNOR_FAULT": "governor lost its oil pressure, machine tripped",
            "VIBRATION": "vibration limit exceeded, machine tripped",
        }[code]
        rows.append((turbine, code, 3, text, second + 0.5))
        rows.append((turbine, "RESTART", 1, "synchronised again", second + OUTAGE + 60.5))
        # The machine's own warning comes late, and for some machines not at all.
        if code == "BEARING_TRIP" and turbine % 3:
            hot = measured[(measured.turbine == turbine) & (measured.bearing > 78)]
            rows += [
                (turbine, "BEARING_HOT", 2, "bearing above 78 degrees", s + 1.0)
                for s in hot.sort_values("seconds").seconds.iloc[::4]
                if s < second
            ]
    frame = pd.DataFrame(rows, columns=["turbine", "code", "severity", "text", "seconds"])
    return by_arrival(frame[frame.seconds < LENGTH], 0.0)


def by_arrival(frame: pd.DataFrame, delay: np.ndarray | float) -> pd.DataFrame:
    """Sort rows by the time at which they arrive."""
    order = np.argsort(frame["seconds"].to_numpy() + delay, kind="stable")
    return frame.iloc[order].reset_index(drop=True)


def write(frame: pd.DataFrame, path: Path) -> None:
    """Write a stream as csv; ``seconds`` becomes the timestamp ``t`` with milliseconds."""
    frame = frame.copy()
    times = START + pd.to_timedelta(frame.pop("seconds").round(3), unit="s")
    frame["t"] = times.dt.strftime("%Y-%m-%d %H:%M:%S.%f").str[:-3]
    frame.to_csv(path, index=False)


def generate(folder: Path, seed: int = 7) -> dict[str, int]:
    """Write the five files and return their numbers of rows."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    measured = telemetry(random)
    frames = {
        "telemetry": measured,
        "frequency": frequency(random),
        "status": status(random, measured),
    }
    for name, frame in frames.items():
        write(frame, folder / f"{name}.csv")
    plants = pd.DataFrame(
        [(plant, name, region, count * mw) for plant, name, region, count, mw in PLANTS],
        columns=["plant", "name", "region", "rated_mw"],
    )
    plants.to_csv(folder / "plants.csv", index=False)
    names = {plant: name for plant, name, *_ in PLANTS}
    machines = turbines()[["turbine", "plant", "region"]]
    machines = machines.assign(plant=machines["plant"].map(names))
    machines.to_csv(folder / "machines.csv", index=False)
    tables = {"plants": len(plants), "machines": len(machines)}
    return {name: len(frame) for name, frame in frames.items()} | tables


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the data of the control room.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo-output/data"))
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    for name, rows in generate(arguments.folder, arguments.seed).items():
        print(f"{arguments.folder / name}.csv  {rows} rows")


if __name__ == "__main__":
    main()
