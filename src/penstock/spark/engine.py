"""Spark sessions: our own, with safe settings, or one that the user gives."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import ConfigError, InternalError, shown_cause
from penstock.settings import Settings
from penstock.temporary import new_folder

_LOGGING = Path(__file__).parent / "log4j2.properties"

_LOCAL_LOGS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

_MASTER = re.compile(
    r"local(\[(\d+|\*)(, *\d+)?\])?|local-cluster\[\d+, *\d+, *\d+\]|(spark|k8s)://\S+|yarn"
)

STREAM_SETTINGS = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
    "spark.sql.streaming.stopActiveRunOnRestart": "false",
    "spark.sql.unionOutputPartitioning": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.subexpressionElimination.skipForShortcutExpr": "true",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.execution.arrow.maxBytesPerBatch": "64m",
    "spark.sql.streaming.minBatchesToRetain": "20",
}
"""What every session that runs a pipeline needs; set on a session of its own, not on the user's."""


def own_session(master: str | None, config: Settings) -> SparkSession:
    """Start (or get) a Spark of our own: embedded, or the driver of an application on a cluster."""
    _check_start(master)
    if master is None or master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable  # data sources look only here
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # executors may have another
    settings = own_settings(master, config)
    if master is None or master.startswith("local"):
        settings |= temporary_settings(settings["spark.driver.extraJavaOptions"])
    builder = SparkSession.builder.appName("penstock")
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with unzipped_pyspark(master):
            return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        told = str(error).strip().splitlines()
        raise ConfigError(
            f"Spark must be able to start, but: {told[0] if told else type(error).__name__}; it "
            f"needs Java 17 or newer ('java -version' shows yours; JAVA_HOME chooses one) and a "
            f"master that can be reached"
        ) from shown_cause(error)


class SparkStart:
    """Starts a Spark of our own beside the thread that waits for it.

    Who waits may be interrupted, by Ctrl-C: no half-started Spark is left, and the next who waits
    gets the one that was begun.  (Inside the main thread Spark would take SIGINT for itself, and an
    interrupted call to Java ends in a stack trace.)
    """

    def __init__(self, master: str | None, config: Settings) -> None:
        self._found: SparkSession | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()  # a join that is interrupted takes the thread for ended
        threading.Thread(
            target=self._run, args=(master, config), name="start of Spark", daemon=True
        ).start()

    def _run(self, master: str | None, config: Settings) -> None:
        try:
            self._found = own_session(master, config)
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    def wait(self) -> SparkSession:
        """Return the session when it is there, or raise why it cannot be."""
        while not self._done.wait(0.1):
            pass
        if self._found is None:
            raise self._error or InternalError("Spark must start or say why not")
        return self._found


def _check_start(master: str | None) -> None:
    """Check what Java would only complain about at length."""
    if master is not None and not _MASTER.fullmatch(master):
        raise ConfigError(
            f"the master must be local, local[n], spark://host:port, yarn or k8s://address, got "
            f"'{master}'"
        )
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java") if not home else shutil.which("java", path=f"{home}/bin")
    if java is None:
        where = f"there is none in JAVA_HOME, {home}" if home else "there is none on the PATH"
        raise ConfigError(
            f"Spark needs Java 17 or newer, but {where}; install it, or set JAVA_HOME to its folder"
        )


@contextmanager
def unzipped_pyspark(master: str | None = None) -> Iterator[None]:
    """Start a local Spark inside: its Python processes then import pyspark from where it lies.

    Spark puts ``SPARK_HOME/python/lib/pyspark.zip`` before everything else, and each of the half
    dozen Python processes that a stream starts would compile it anew, for more than a second each.
    So Spark is started from a folder of links to the installed one that has no such file.
    """
    installed = Path(pyspark.__file__).parent
    local = master is None or master.startswith("local")
    if not local or "SPARK_HOME" in os.environ or not (installed / "jars").is_dir():
        yield
        return
    home = new_folder("spark-home")
    for name in ("bin", "jars"):
        (home / name).symlink_to(installed / name)
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def own_settings(master: str | None, config: Settings) -> dict[str, str]:
    """Return the settings of our own Spark; without a master it is local, with retries.

    On a cluster the executors must have Penstock installed and see the checkpoint and the files.
    """
    settings = {
        "spark.master": master or f"local[{os.cpu_count() or 1},4]",
        "spark.pyspark.python": sys.executable,
        "spark.ui.enabled": str(config.spark_ui).lower(),
        "spark.ui.bindAddress": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": config.driver_memory,
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.python.daemon.module": "penstock.spark.daemon",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "1000",
        "spark.log.level": "FATAL",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "spark.sql.reflect.allowList": "NONE",
        "spark.sql.redaction.options.regex": ".*",
        "spark.redaction.regex": "(?i)pass|pwd|secret|token|key|credential|jaas|streams",
        "spark.port.maxRetries": "64",
    }
    if master is None or master.startswith("local"):
        settings |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
        return settings
    settings |= {
        "spark.pyspark.python": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "spark.executor.memory": config.executor_memory,
    }
    if config.driver_host:
        settings["spark.driver.host"] = config.driver_host
        settings["spark.driver.bindAddress"] = config.driver_host
    if config.cluster_cores:
        settings["spark.cores.max"] = str(config.cluster_cores)
        settings["spark.default.parallelism"] = str(config.cluster_cores)
    return settings


def temporary_settings(*java: str) -> dict[str, str]:
    """Return the settings of a local Spark that keep what it writes in the folder of this process.

    ``java`` are the options of Java that it has besides.
    """
    folder = str(new_folder("spark"))
    option = f'"-Djava.io.tmpdir={folder}"'
    return {
        "spark.local.dir": folder,
        "spark.driver.extraJavaOptions": " ".join([*java, option]),
    }


def pipeline_session(spark: SparkSession, folder: str) -> SparkSession:
    """Return a session on the same Spark with the settings that a pipeline needs.

    ``folder`` is its checkpoint.  On a local one Spark's logs are written through Hadoop's plain
    file system: the default starts about forty processes per batch, to ask for symbolic links.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    own = spark.newSession()
    for key, value in STREAM_SETTINGS.items():
        own.conf.set(key, value)
    if "://" not in folder:
        own.conf.set("spark.sql.streaming.checkpointFileManagerClass", _LOCAL_LOGS)
    return own
