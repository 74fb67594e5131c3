"""One Spark session for all tests that need it: small, local, and reachable from nowhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

# The same examples on every run; a run that asks for a number of them gets new ones.
settings.register_profile("repeatable", derandomize=True)
if "PENSTOCK_EXAMPLES" not in os.environ:
    settings.load_profile("repeatable")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from penstock.spark.engine import temporary_settings, unzipped_pyspark

    # Spark's Python workers must run this interpreter; pyspark asks only the environment for it.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.pyspark.python": sys.executable,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.subexpressionElimination.skipForShortcutExpr": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
        "spark.sql.streaming.offsetLog.formatVersion": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        **temporary_settings(),
    }
    builder = SparkSession.builder.master("local[2,4]").appName("penstock-tests")
    for name, value in options.items():
        builder = builder.config(name, value)
    with unzipped_pyspark():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
