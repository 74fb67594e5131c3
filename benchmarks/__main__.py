"""``python -m benchmarks [name ..]``: run all benchmarks, or those named."""

from __future__ import annotations

import sys

from benchmarks import join_against_spark

BENCHMARKS = {"join": join_against_spark.main}


def main() -> None:
    for name in sys.argv[1:] or BENCHMARKS:
        if name not in BENCHMARKS:
            sys.exit(f"there is no benchmark '{name}'; known: {', '.join(BENCHMARKS)}")
        BENCHMARKS[name]([])


if __name__ == "__main__":
    main()
