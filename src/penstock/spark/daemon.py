"""The parent of Spark's Python workers: it loads Penstock once, and every worker is a fork of it.

So a worker starts in milliseconds instead of importing everything again, and workers share that
memory.  Workers ignore Ctrl-C, which a terminal sends to all of them: the batch under way is
finished, and then the driver stops (set by ``spark.python.daemon.module`` in own sessions).

Spark ends workers that had nothing to do for a minute, so this is not only for the first batch.
pyarrow looks for pandas when it is first given an array of NumPy's, which takes longer than all
other modules together: that is done here too.

A worker collects garbage after every task.  What was loaded before the fork is frozen: there is
nothing to find in it, and looking would cost 20 to 50 milliseconds of a core each time.
"""

from __future__ import annotations

import gc
import signal

import numpy as np
import pyarrow as pa
import pyspark.worker  # noqa: F401
from pyspark import daemon

import penstock.spark.descriptor_source
import penstock.spark.tables
import penstock.spark.tasks  # noqa: F401

if __name__ == "__main__":
    signal.default_int_handler = signal.SIG_IGN  # type: ignore[assignment]  # what workers restore
    pa.array(np.empty(0))
    gc.collect()
    gc.freeze()
    daemon.manager()
