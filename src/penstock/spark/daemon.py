"""The parent of Spark's Python workers: it loads Penstock once, and every worker is a fork of it.

So a worker starts in milliseconds instead of importing everything again, and workers share that
memory.  Workers ignore Ctrl-C, which a terminal sends to all of them: the batch under way is
finished, and then the driver stops (set by ``spark.python.daemon.module`` in own sessions).
"""

from __future__ import annotations

import signal

from pyspark import daemon

import penstock.spark.replay
import penstock.spark.tables
import penstock.spark.tasks  # noqa: F401

if __name__ == "__main__":
    signal.default_int_handler = signal.SIG_IGN  # type: ignore[assignment]  # what workers restore
    daemon.manager()
