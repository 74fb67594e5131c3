"""``python -m tests.chaos [rounds] [seed]``: kill a run again and again, and check what it left.

First every failure point once, each in the run that the one before left behind; then SIGKILL at
random instants.  When a run has ended it is compared with the oracle and a fresh one is begun.  N
rounds without a failure say only that fewer than about 3/N of such kills do harm.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from penstock.runs.failpoints import POINTS
from tests.crashes import Scenario
from tests.lane_crashes import Alarms
from tests.postgres import PostgresServer

WORKER_POINTS = ("run-written", "run-synced", "tasks-done", "merge-before-manifest")
ROUNDS = 50
_SLOW = ", rate '15'"
"""Rows per second of a run, so that it lasts long enough to be killed."""


def orders(dice: random.Random) -> list[str]:
    """Return orders for every failure point that a script passes, in a random order."""
    found = []
    for point in POINTS:
        if point in ("query-dropped", "query-replaced"):  # a script does neither to what runs
            continue
        found.append(f"{point}=kill@1" if point == "lock-taken" else f"{point}=crash@{{n}}")
        if point in WORKER_POINTS:
            found.append(f"{point}=kill@{{n}}")
    dice.shuffle(found)
    return [order.replace("{n}", str(dice.randint(1, 4))) for order in found]


class Chaos:
    """A chain of runs on one checkpoint after another.

    ``starts`` and ``works`` are the least and most seconds to a kill at random: from the start of
    the process, and from the first batch that it commits.  One in four kills is of the first kind.
    """

    starts = (2.0, 25.0)
    works = (0.0, 8.0)

    def __init__(self, seed: int, server: PostgresServer | None = None) -> None:
        self.server = server
        self.dice = random.Random(seed)
        self.root = Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
        self.counts: Counter[str] = Counter()
        self._scenario: Scenario | None = None

    def scenario(self, alarms: bool | None = None) -> Scenario:
        """Return the run that is under way, or begin one; one in three has important rows.

        ``alarms``: it must have them, or must not.
        """
        if alarms is not None and isinstance(self._scenario, Alarms) != alarms:
            self.finish()
        if self._scenario is None:
            if alarms is None:
                alarms = self.dice.random() < 0.33
            folder = self.root / str(self.counts["runs"])
            settings = {
                "merge.strategy": self.dice.choice(["greedy", "always"]),
                "lifetime": ("direct", "negative")[self.counts["runs"] % 2],
            }
            url = None if self.server is None else self.server.new_database()
            rows = self.dice.choice([60, 120])
            if alarms:
                self._scenario = Alarms.begin(folder, rows, url, **settings)
            else:
                self._scenario = Scenario.make(folder, rows, _SLOW, postgres=url, **settings)
            self.counts["runs"] += 1
        return self._scenario

    def at_point(self, order: str) -> None:
        """Run with an order to fail."""
        of_lane = order.startswith("lane-")
        code, told = self.scenario(of_lane or None).run(order)
        self._ended(code, told, order)

    def at_random(self) -> None:
        """Kill a run at a random instant after its start, or after its first batch."""
        scenario = self.scenario()
        before = scenario.batch()
        working = self.dice.random() < 0.75
        delay = self.dice.uniform(*(self.works if working else self.starts))
        process = scenario.start()
        while working and process.poll() is None and scenario.batch() == before:
            time.sleep(0.01)
        deadline = time.monotonic() + delay
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        _, told = process.communicate()  # also waits for its Spark
        since = "its first batch" if working else "its start"
        self._ended(process.returncode, told, f"SIGKILL {delay:.2f} s after {since}")

    def finish(self) -> None:
        """Let the run that is under way end, and check it."""
        if self._scenario is not None:
            if isinstance(self._scenario, Alarms):
                self._scenario.pace(100)
            code, told = self._scenario.run()
            self._ended(code, told, "nothing")
            assert self._scenario is None, "a run that is left alone must end"

    def _ended(self, code: int, told: str, what: str) -> None:
        scenario = self.scenario()
        self.counts["killed" if code == -9 else "ended"] += 1
        if code == -9:
            return
        assert code == 0, f"{what}: exit code {code}: {told}"
        scenario.check()
        self.counts["checked"] += 1
        shutil.rmtree(scenario.folder)
        self._scenario = None


def main() -> None:
    """Run the rounds; a failure keeps its folder and prints the seed."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(2**32)
    console = Console()
    console.print(f"chaos: {rounds} rounds, seed {seed}")
    server = PostgresServer()
    chaos = Chaos(seed, server)
    walk = orders(chaos.dice)
    done = 0
    try:
        with Progress(console=console) as progress:
            bar = progress.add_task("", total=rounds)
            for done in range(rounds):
                if done < len(walk):
                    progress.update(bar, description=walk[done])
                    chaos.at_point(walk[done])
                else:
                    progress.update(bar, description="SIGKILL at random")
                    chaos.at_random()
                progress.advance(bar)
                if not console.is_terminal:
                    what = walk[done] if done < len(walk) else "SIGKILL at random"
                    console.print(f"{done + 1}/{rounds} {what}: {dict(chaos.counts)}")
            progress.update(bar, description="the last run")
            chaos.finish()
    except BaseException:
        console.print(f"failed in round {done + 1}: seed {seed}, files kept in {chaos.root}")
        raise
    finally:
        server.remove()
    shutil.rmtree(chaos.root)
    console.print(
        f"{chaos.counts['killed']} processes killed, {chaos.counts['checked']} runs compared with "
        f"the oracle: nothing lost, nothing twice"
    )


if __name__ == "__main__":
    main()
