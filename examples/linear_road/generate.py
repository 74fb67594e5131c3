"""Makes the traffic of Linear Road: ``python examples/linear_road/generate.py --expressways 3``.

The files, ``traffic.csv`` and ``history.csv``, are always the same for the same numbers; see
`penstock.bench.linear_road_traffic`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.progress import Progress

from penstock.bench.linear_road_traffic import Traffic, prepared
from penstock.errors import PenstockError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--expressways", type=int, default=3)
    parser.add_argument("--minutes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--first", type=float, default=15.0, help="reports a second in the beginning"
    )
    parser.add_argument("--last", type=float, default=200.0, help="and in the end; each expressway")
    parser.add_argument("--days", type=int, default=10, help="how far the history goes back")
    parser.add_argument("--published", action="store_true",
                        help="three hours, 1,700 reports a second in the end, 69 days")  # fmt: skip
    parser.add_argument("--folder", type=Path, default=Path("linear-road-data"))
    given = parser.parse_args()
    try:
        traffic = Traffic(given.expressways, given.minutes * 60, given.seed, given.first,
                          given.last, accident_every=300, accident_lasts=240,
                          days=given.days)  # fmt: skip
        if given.published:
            traffic = Traffic(given.expressways, seed=given.seed)
        with Progress(transient=True) as progress:
            task = progress.add_task("traffic", total=1.0)
            prepared(given.folder, traffic, lambda s: progress.update(task, completed=s))
    except PenstockError as error:
        raise SystemExit(str(error)) from None
    print(f"the traffic of {traffic.seconds // 60} minutes is in {given.folder}")


if __name__ == "__main__":
    main()
