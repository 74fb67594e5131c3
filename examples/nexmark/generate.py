"""Makes the events of NEXMark: ``python examples/nexmark/generate.py --events 10000000``.

The files, ``person.csv``, ``auction.csv``, ``bid.csv`` and ``side_input.csv``, are always the same
for one number and one seed; see `penstock.bench.nexmark_events`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.progress import Progress

from penstock.bench.nexmark_events import FORMATS, Events, prepared
from penstock.errors import PenstockError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000, help="people, auctions and bids")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-second", type=int, default=10_000, help="events of event time")
    parser.add_argument("--begin", default=Events.begin, help="time of the first event")
    parser.add_argument("--folder", type=Path, default=Path("nexmark-data"))
    parser.add_argument("--formats", default="csv", help=f"of {', '.join(FORMATS)}; with a comma")
    given = parser.parse_args()
    try:
        events = Events(given.events, given.seed, given.per_second, given.begin)
        with Progress(transient=True) as progress:
            task = progress.add_task("events", total=1.0)
            prepared(
                given.folder,
                events,
                tuple(given.formats.split(",")),
                lambda share: progress.update(task, completed=share),
            )
    except PenstockError as error:
        raise SystemExit(str(error)) from None
    print(f"{given.events:,} events are in {given.folder}")


if __name__ == "__main__":
    main()
