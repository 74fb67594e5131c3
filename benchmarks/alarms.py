"""``python -m benchmarks.alarms``: how soon an alarm is answered while the batches are busy.

* ``alarms``: two streams are replayed as fast as they can and joined on equal keys, so batches take
  a second and more and both cores are busy.  Ten alarms a second are pushed into a join of three
  streams whose windows hold a million rows.  Seconds from the push to the callback, with the lane
  and without it; and what the busy join does meanwhile.  Alarms come in every second phase only, so
  that its rates with them and without are measured side by side in one process, from the end of
  one batch to the end of another.
* ``storm``: 5,000 important rows a second for 20 seconds, of ten levels, from two streams.  Seconds
  by level, for every buffer and scheduler of the lane; the batches are not busy.
* ``partners``: would it help to keep the rows that alarms will need apart from all others?  One
  alarm answered from a million rows, from the rows of the keys of past alarms alone, and from a
  million rows when its key was asked for just before.
* ``cost``: the busy join without PRIORITY, and with a PRIORITY that is 0 for all rows: what plans
  carry for the lane.  In the engine without Spark.

Every run of the first two is a process of its own.  ``--raw`` keeps the numbers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

from benchmarks.harness import console
from penstock import Session
from penstock.bench.scripts import plans_of
from penstock.lane.answering import Answerer, Asked
from penstock.model import one_array
from penstock.testing.local import LocalEngine

STATE = 1_000_000
"""Rows in the windows that alarms are joined with."""
KEYS = 100_000
BUSY_KEYS = 200_000
BUSY_WINDOW = 200_000
BUSY_ROWS = 2_000_000
"""Rows of each of the two busy streams in a batch: on a fast machine it still takes a second."""

PHASES = 4
"""So often alarms come for a while, and do not come for a while."""
ALARMS_PER_SECOND = 10

BUFFERS = ("normal", "weak", "strong", "strong2", "levels")
SCHEDULERS = ("highestpriority", "minlatencypriority", "fifo", "roundrobin")
LEVELS = 10

MOST_MEDIAN, MOST_HIGH, LEAST_GAIN, LEAST_RATE = 0.025, 0.1, 50.0, 0.95
"""What is wanted: median and 99th percentile in seconds, gain over no lane, rate of the rest."""

DECLARED = """
CREATE STREAM alarms (pump BIGINT, level BIGINT, sent DOUBLE, t TIMESTAMP) USING memory
  TIMESTAMP BY t HEARTBEAT FROM CLOCK LAG 200 MILLISECONDS PRIORITY level;
CREATE STREAM pumps (pump BIGINT, site BIGINT, t TIMESTAMP) USING memory
  TIMESTAMP BY t IDLE AFTER 300 MILLISECONDS;
CREATE STREAM states (pump BIGINT, pressure DOUBLE, t TIMESTAMP) USING memory
  TIMESTAMP BY t IDLE AFTER 300 MILLISECONDS;
CREATE SINK screen USING callback;
CREATE QUERY watched INTO screen AS ISTREAM (
  SELECT a.pump, a.level, a.sent, p.site, s.pressure, a.t AS t, p.t AS seen, s.t AS told
  FROM alarms [RANGE 1 HOUR] AS a JOIN pumps [RANGE 1 HOUR] AS p ON a.pump = p.pump
  JOIN states [RANGE 1 HOUR] AS s ON a.pump = s.pump);
"""

BUSY = """
CREATE STREAM l (k BIGINT, v DOUBLE, t BIGINT) USING replay
  OPTIONS (path '{folder}/l.parquet', loop 'true') TIMESTAMP BY t;
CREATE STREAM r (k BIGINT, v DOUBLE, t BIGINT) USING replay
  OPTIONS (path '{folder}/r.parquet', loop 'true') TIMESTAMP BY t;
CREATE SINK nowhere USING blackhole OPTIONS (changes 'intervals');
CREATE QUERY busy INTO nowhere AS SELECT l.k, l.v, r.v AS w
  FROM l [RANGE {window}] JOIN r [RANGE {window}] ON l.k = r.k;
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ["alarms", "storm", "partners", "cost"]
    parser.add_argument("names", nargs="*", default=names, help=", ".join(names))
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase of alarms")
    parser.add_argument("--storm", type=float, default=20.0, help="seconds of a storm")
    parser.add_argument("--rate", type=int, default=5000, help="rows a second of a storm")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_one(json.loads(options.one))))
        return
    found: dict[str, Any] = {}
    if "alarms" in options.names:
        found["alarms"] = [alarms(options.seconds) for _ in range(options.repeats)]
    if "storm" in options.names:
        found["storm"] = storm(options.storm, options.rate)
    if "partners" in options.names:
        found["partners"] = partners()
    if "cost" in options.names:
        found["cost"] = cost()
    if options.raw:
        options.raw.write_text(json.dumps(found, indent=1))
    raise SystemExit(1 if show(found) else 0)


def _apart(request: Mapping[str, Any]) -> dict[str, Any]:
    """Do one run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.alarms", "--one", json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def alarms(seconds: float) -> dict[str, Any]:
    """Return what happens with the lane and without it."""
    with tempfile.TemporaryDirectory() as folder:
        write_busy(Path(folder))
        runs = {}
        for name, lane in (("lane", "on"), ("main", "off")):
            console.print(f"[dim]alarms: {name}, {2 * PHASES} phases of {seconds:.0f} s[/]")
            request = {"kind": "alarms", "folder": folder, "seconds": seconds}
            runs[name] = _apart(request | {"settings": {"lane": lane}})
        return runs


def storm(seconds: float, rate: int) -> list[dict[str, Any]]:
    """Return the latencies of a storm under every buffer and scheduler."""
    found = []
    for scheduler in SCHEDULERS:
        for buffer in BUFFERS:
            console.print(f"[dim]storm: {buffer}, {scheduler}, {seconds:.0f} s[/]")
            settings = {"lane.queue": buffer, "lane.scheduler": scheduler}
            request = {"kind": "storm", "seconds": seconds, "rate": rate, "settings": settings}
            found.append({"buffer": buffer, "scheduler": scheduler} | _apart(request))
    return found


def write_busy(folder: Path) -> None:
    """Write the two streams that keep the batches busy."""
    dice = np.random.default_rng(1)
    rows = 4_000_000
    for name in ("l", "r"):
        table = pa.table(
            {
                "k": dice.integers(0, BUSY_KEYS, rows),
                "v": dice.random(rows),
                "t": np.arange(rows),
            }
        )
        pq.write_table(table, folder / f"{name}.parquet")


# ---- one run


def _one(request: Mapping[str, Any]) -> dict[str, Any]:
    return _alarms(request) if request["kind"] == "alarms" else _storm(request)


class Watch:
    """Takes answers: when each alarm was first answered, by its level."""

    def __init__(self) -> None:
        self.seconds: dict[int, list[float]] = {}
        self.answered: set[float] = set()

    def __call__(self, batch: int, rows: pa.Table) -> None:
        now = time.time()
        pairs = zip(rows.column("sent").to_pylist(), rows.column("level").to_pylist(), strict=True)
        for sent, level in set(pairs):
            if sent not in self.answered:
                self.answered.add(sent)
                self.seconds.setdefault(level, []).append(now - sent)


def _now() -> int:
    return time.time_ns() // 1000


def _fill(session: Session, rows: int) -> None:
    """Push the rows that alarms will meet."""
    dice = np.random.default_rng(2)
    at = pa.array(np.full(KEYS, _now()), pa.timestamp("us"))
    keys = np.arange(KEYS)
    session.push("pumps", pa.table({"pump": keys, "site": keys % 100, "t": at}))
    for _ in range(max(1, rows // KEYS - 1)):
        values = {"pump": keys, "pressure": dice.random(KEYS), "t": at}
        session.push("states", pa.table(values))


def _alarm(pump: int, level: int, sent: float) -> tuple[int, int, float, int]:
    return pump, level, sent, _now()


def _alarms(request: Mapping[str, Any]) -> dict[str, Any]:
    watch = Watch()
    fixed = {"batch.seconds": 0, "batch.rows": BUSY_ROWS}  # so all runs have the same batches
    session = Session(autostart=False, settings={**fixed, **request["settings"]})
    busy = BUSY.format(folder=request["folder"], window=BUSY_WINDOW)
    session.sql(DECLARED + busy)
    session.callback("screen", watch)
    _fill(session, STATE)
    session.push("alarms", [_alarm(0, 0, 0.0)])
    session.start()
    _await(lambda: _accepted(session, ("pumps", "states")) >= STATE)
    time.sleep(5)
    sent: list[float] = []
    rates: dict[bool, list[float]] = {False: [], True: []}
    for phase in range(2 * PHASES):
        rates[bool(phase % 2)].append(_phase(session, request["seconds"], phase % 2 > 0, sent))
    _await(lambda: set(sent) <= watch.answered, 60.0)
    seconds = watch.seconds.get(5, [])
    status = session.pipeline.lane.status()
    session.close()
    quiet, alarmed = (float(np.median(rates[alarmed])) for alarmed in (False, True))
    return {
        "rates": {"without": rates[False], "with": rates[True]},
        "quiet": quiet,
        "rate": alarmed,
        "sent": len(sent),
        "answered": len(set(sent) & watch.answered),
        "by_lane": status.answered,
        "median": float(np.percentile(seconds, 50)) if seconds else None,
        "high": float(np.percentile(seconds, 99)) if seconds else None,
    }


def _phase(session: Session, seconds: float, alarmed: bool, sent: list[float]) -> float:
    """Return the rows a second of the busy join in whole batches, with alarms or without."""
    dice = np.random.default_rng(len(sent))

    def until(reached: Callable[[], bool]) -> None:
        while not reached():
            now = time.time()
            if alarmed:
                sent.append(now)
                session.push("alarms", [_alarm(int(dice.integers(KEYS)), 5, now)])
            time.sleep(max(0.0, 1 / ALARMS_PER_SECOND - (time.time() - now)))

    def batch_ends() -> tuple[float, int]:
        before = session.pipeline.manifest
        until(lambda: session.pipeline.manifest is not before)
        return session.pipeline.observation.ended_at[-1], _taken(session)

    batch_ends()  # the batch under way began in the phase before
    begin, taken = batch_ends()
    until(lambda: time.monotonic() > begin + seconds)
    end, reached = batch_ends()
    return (reached - taken) / (end - begin)


def _taken(session: Session) -> int:
    return _accepted(session, ("l", "r"))


def _accepted(session: Session, names: tuple[str, ...]) -> int:
    progress = session.pipeline.manifest.progress
    return sum(progress[name]["accepted"] for name in names if name in progress)


def _await(true: Any, most: float = 180.0) -> None:
    deadline = time.monotonic() + most
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)


def _storm(request: Mapping[str, Any]) -> dict[str, Any]:
    watch = Watch()
    more = DECLARED.replace("alarms", "warnings").replace("watched", "noted")
    second = more[more.index("CREATE STREAM warnings") : more.index("CREATE STREAM pumps")]
    query = more[more.index("CREATE QUERY") :].replace("INTO screen", "INTO screen2")
    sink = "CREATE SINK screen2 USING callback;"
    session = Session(autostart=False, settings=dict(request["settings"]))
    session.sql(DECLARED + second + sink + query)
    lock = threading.Lock()

    def take(batch: int, rows: pa.Table) -> None:
        with lock:
            watch(batch, rows)

    session.callback("screen", take)
    session.callback("screen2", take)
    _fill(session, 2 * KEYS)
    for name in ("alarms", "warnings"):
        session.push(name, [_alarm(0, 0, 0.0)])
    session.start()
    _await(lambda: session.pipeline.manifest.batch >= 2)
    time.sleep(2)
    dice, total, pushes = np.random.default_rng(4), 0, 20
    begin = time.monotonic()
    while time.monotonic() - begin < request["seconds"]:
        due = int((time.monotonic() - begin) * request["rate"])
        for name in ("alarms", "warnings"):
            count = (due - total) // 2
            if count > 0:
                now = time.time()
                ids = now + np.arange(count) * 1e-7 + (0.5e-7 if name == "alarms" else 0)
                values = {
                    "pump": dice.integers(0, KEYS, count),
                    "level": dice.integers(1, LEVELS + 1, count),
                    "sent": ids,
                    "t": pa.array(np.full(count, _now()), pa.timestamp("us")),
                }
                session.push(name, pa.table(values))
        total = due
        time.sleep(1 / pushes)
    time.sleep(5)
    status = session.pipeline.lane.status()
    session.close()
    levels = {
        level: (len(some), *(float(np.percentile(some, p)) for p in (50, 99)))
        for level, some in sorted(watch.seconds.items())
        if level
    }
    return {"pushed": total, "by_lane": status.answered, "levels": levels}


# ---- without Spark

JOINED = """
CREATE STREAM a (k BIGINT, v DOUBLE, t BIGINT) USING memory TIMESTAMP BY t {priority};
CREATE STREAM b (k BIGINT, v DOUBLE, t BIGINT) USING memory TIMESTAMP BY t;
CREATE STREAM c (k BIGINT, v DOUBLE, t BIGINT) USING memory TIMESTAMP BY t;
"""


def _rows(keys: np.ndarray, time_of: int) -> pa.Table:
    dice = np.random.default_rng(5)
    names = ("c0", "c1", "c2")
    values = (keys, dice.random(len(keys)), np.full(len(keys), time_of))
    return pa.table(dict(zip(names, values, strict=True)))


def _engine(priority: str, query: str) -> LocalEngine:
    plans = plans_of(JOINED.format(priority=priority) + f"CREATE QUERY q AS {query}")
    return LocalEngine(plans)


def partners(times: int = 200) -> dict[str, float]:
    """Return milliseconds of one alarm: from all rows, from few, and of a key asked for before."""
    query = (
        "SELECT x.v AS v, y.v AS w, z.v AS u FROM a [RANGE 10] AS x JOIN b [RANGE 10] AS y "
        "ON x.k = y.k JOIN c [RANGE 10] AS z ON x.k = z.k"
    )
    dice = np.random.default_rng(6)
    hot = dice.integers(0, KEYS, 200)
    found = {}
    for name, keys in (("all", np.arange(STATE // 2) % KEYS), ("few", np.repeat(hot, 5))):
        engine = _engine("PRIORITY 1", query)
        engine.batch({"a": _rows(np.zeros(1, np.int64), 1), "b": _rows(keys, 1)})
        engine.batch({"c": _rows(keys, 1)})
        engine.batch({"b": _rows(keys[:1], 2), "c": _rows(keys[:1], 2)})
        answerer = Answerer(engine.plan, engine.config)
        answerer.renew(engine.committed())
        answerer.warm()
        seconds: dict[str, list[float]] = {"first": [], "again": []}
        for turn in range(times):
            row = _rows(hot[turn % len(hot)][None], 2)
            asked = {"a": Asked([one_array(column) for column in row.columns], np.array([2]))}
            for which in seconds:
                began = time.perf_counter()
                answerer.answer(asked, 2 * turn + 1)
                seconds[which].append(time.perf_counter() - began)
        for which, some in seconds.items():
            found[f"{name}, {which}"] = 1000 * float(np.median(some))
    return found


def cost(rows: int = 400_000, repeats: int = 5) -> dict[str, float]:
    """Return seconds of the busy join without and with PRIORITY, side by side."""
    query = "SELECT x.v AS v, y.v AS w FROM a [RANGE 4] AS x JOIN b [RANGE 4] AS y ON x.k = y.k"
    dice = np.random.default_rng(7)
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    batches = [
        {n: _rows(dice.integers(0, rows, rows // 4), at) for n in ("a", "b")} for at in range(1, 6)
    ]
    for _ in range(repeats):
        for which, priority in (("without", ""), ("with", "PRIORITY 0")):
            engine = _engine(priority, query)
            began = time.perf_counter()
            for batch in batches:
                engine.batch(batch)
            seconds[which].append(time.perf_counter() - began)
    return {which: float(np.median(some)) for which, some in seconds.items()}


# ---- what is shown


def show(found: Mapping[str, Any]) -> bool:
    """Show the tables; return whether something that is wanted was not reached."""
    missed = False
    for runs in found.get("alarms", ()):
        missed |= _show_alarms(runs)
    if found.get("storm"):
        missed |= _show_storm(found["storm"])
    if found.get("partners"):
        told = ", ".join(f"{name} {value:.2f} ms" for name, value in found["partners"].items())
        console.print(f"one alarm, from all rows or those of few keys: {told}")
    if found.get("cost"):
        ratio = found["cost"]["without"] / found["cost"]["with"]
        console.print(f"a join whose stream has PRIORITY keeps {ratio:.2f} of its rate")
    return missed


def _show_alarms(runs: Mapping[str, Any]) -> bool:
    table = Table(title="alarms while the batches are busy")
    names = ("", "rows/s without alarms", "with", "kept", "answered", "by the lane", "p50", "p99")
    for name in names:
        table.add_column(name, justify="left" if not name else "right")
    for name, run in runs.items():
        times = ["-" if run[k] is None else f"{1000 * run[k]:,.1f} ms" for k in ("median", "high")]
        rates = f"{run['quiet']:,.0f}", f"{run['rate']:,.0f}", f"{run['rate'] / run['quiet']:.2f}"
        table.add_row(
            name, *rates, f"{run['answered']} of {run['sent']}", f"{run['by_lane']}", *times
        )
    console.print(table)
    lane, main_lane = runs["lane"], runs["main"]
    kept = lane["rate"] / lane["quiet"]
    batch = 2 * BUSY_ROWS / main_lane["quiet"]
    gain = (main_lane["median"] or float("inf")) / (lane["median"] or float("inf"))
    console.print(
        f"a batch takes {batch:.2f} s (at least 1); "
        f"the lane answers {gain:,.0f} times sooner (wanted {LEAST_GAIN:.0f}), p50 "
        f"{1000 * lane['median']:.1f} ms (at most {1000 * MOST_MEDIAN:.0f}), p99 "
        f"{1000 * lane['high']:.1f} ms (at most {1000 * MOST_HIGH:.0f}); the busy join keeps "
        f"{kept:.2f} of its rate (at least {LEAST_RATE})"
    )
    return (
        gain < LEAST_GAIN
        or lane["median"] > MOST_MEDIAN
        or lane["high"] > MOST_HIGH
        or kept < LEAST_RATE
    )


def _show_storm(runs: list[dict[str, Any]]) -> bool:
    table = Table(title="a storm: milliseconds of the 99th percentile by level (median of all)")
    table.add_column("scheduler")
    table.add_column("buffer")
    table.add_column("answered by the lane", justify="right")
    for level in (10, 9, 5, 1):
        table.add_column(f"level {level}", justify="right")
    best = float("inf")
    for run in runs:
        levels = {int(level): told for level, told in run["levels"].items()}
        cells = [
            f"{1000 * levels[level][2]:,.0f}" if level in levels else "-" for level in (10, 9, 5, 1)
        ]
        if LEVELS in levels:
            best = min(best, levels[LEVELS][2])
        answered = f"{run['by_lane']:,} of {run['pushed']:,}"
        table.add_row(run["scheduler"], run["buffer"], answered, *cells)
    console.print(table)
    console.print(f"level 10 with the best buffer: p99 {1000 * best:.0f} ms (at most 100)")
    return best > MOST_HIGH


if __name__ == "__main__":
    main()
