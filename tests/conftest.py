"""One Spark session for all tests of a process that need it, and how two processes share the tests.

The session is small, local, and reachable from nowhere else.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests import examples
from tests.clock import Clock

# The same examples on every run; a run that asks for a number of them gets new ones.
settings.register_profile("repeatable", derandomize=True)
if "PENSTOCK_EXAMPLES" not in os.environ:
    settings.load_profile("repeatable")

# The Javas of tests live for seconds, so the second compiler and many collectors cost more than
# they save: a run of a few batches needs a third less without them.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIVED)
os.environ.setdefault("SPARK_LAUNCHER_OPTS", SHORT_LIVED)

# Tests start hundreds of Pythons that import this package.  Where an environment forbids to keep
# compiled modules (many containers do), each of them would compile all of it again.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_configure(config: pytest.Config) -> None:
    """Who leaves out the long tests also wants fewer random examples."""
    if "not long" in config.option.markexpr:
        examples.few()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the session; with several processes a module's Spark tests stay in one.

    Then what is made once per module is made once.  Tests that start a Spark of their own come
    first and the short ones last, so that all processes end at about the same time.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    if item.get_closest_marker("spark") is None:
        return 2
    return 0 if item.get_closest_marker("xdist_group") is None else 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made)
    return made


@contextmanager
def small_session(warehouse: str) -> Iterator[SparkSession]:
    """Start the Spark of tests."""
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
        "spark.sql.warehouse.dir": warehouse,
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


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with small_session(str(tmp_path_factory.mktemp("warehouse"))) as session:
        yield session
