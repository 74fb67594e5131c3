"""Settings that Spark must have, read back: from what we ask for, and from a Spark that runs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from penstock.settings import SETTINGS, Settings
from penstock.spark.engine import STREAM_SETTINGS, own_settings, pipeline_session


def test_own_sessions_are_safe_on_a_laptop() -> None:
    settings = own_settings(None, Settings())
    assert settings["spark.master"].startswith("local[")
    assert settings["spark.master"].endswith(",4]"), "a killed Python worker must be tried again"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.sql.reflect.allowList"] == "NONE"
    assert settings["spark.python.worker.faulthandler.enabled"] == "true"
    assert settings["spark.pyspark.python"] == sys.executable
    assert int(settings["spark.sql.ui.retainedExecutions"]) <= 50
    assert int(settings["spark.ui.retainedJobs"]) <= 100
    assert int(settings["spark.ui.retainedStages"]) <= 100


def test_the_ui_is_on_loopback_when_it_is_asked_for() -> None:
    settings = own_settings(None, Settings({"spark.ui": True}))
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.ui.bindAddress"] == "127.0.0.1"


def test_a_cluster_is_not_bound_to_loopback() -> None:
    settings = own_settings("spark://host:7077", Settings({"driver.memory": "5g"}))
    assert settings["spark.master"] == "spark://host:7077"
    assert settings["spark.driver.memory"] == "5g"
    assert "spark.driver.host" not in settings
    assert "spark.driver.bindAddress" not in settings


def test_progress_is_never_tracked_asynchronously() -> None:
    for settings in (own_settings(None, Settings()), STREAM_SETTINGS):
        assert not any("async" in name.lower() for name in settings)


PROBE = """
import json, sys
from penstock.settings import Settings
from penstock.spark.engine import STREAM_SETTINGS, own_session, own_settings, pipeline_session
spark = own_session(None, Settings())
pipeline = pipeline_session(spark, "checkpoint")
context = spark.sparkContext
refused = {}
for text in ("SELECT reflect('java.lang.System', 'getenv')", "SELECT * FROM text.`/etc/hostname`"):
    try:
        pipeline.sql(text).collect()
    except Exception as error:
        refused[text] = type(error).__name__
json.dump({
    "own": {name: spark.conf.get(name, context.getConf().get(name)) for name in
            own_settings(None, Settings())},
    "pipeline": {name: pipeline.conf.get(name) for name in STREAM_SETTINGS},
    "user": {name: spark.conf.get(name, None) for name in STREAM_SETTINGS},
    "async": pipeline.conf.get("spark.sql.streaming.asyncProgressTrackingEnabled", "unset"),
    "ui": context.uiWebUrl,
    "refused": refused,
}, sys.stdout)
"""


@pytest.mark.spark
def test_a_running_spark_has_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    java, expected = "spark.driver.extraJavaOptions", own_settings(None, Settings())
    given, wanted = found["own"].pop(java), expected.pop(java)
    assert found["own"] == expected
    assert given.startswith(f'{wanted} "-Djava.io.tmpdir=')
    assert found["pipeline"] == STREAM_SETTINGS
    assert found["ui"] is None
    assert found["async"] == "unset"
    assert len(found["refused"]) == 2
    assert "log level" not in done.stderr, "a start is quiet"


@pytest.mark.spark
def test_a_session_of_the_users_keeps_its_settings(spark: Any) -> None:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    own = pipeline_session(spark, "checkpoint")
    assert spark.conf.get(name) == before
    assert {key: own.conf.get(key) for key in STREAM_SETTINGS} == STREAM_SETTINGS


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_every_setting_can_be_given_as_text(setting: Any) -> None:
    given = setting.choices[-1] if setting.choices else setting.default
    assert getattr(Settings({setting.name: str(given)}), setting.attribute) == given
    assert getattr(Settings(), setting.attribute) == setting.default
    assert vars(Settings)[setting.attribute] is setting
    assert setting.doc.endswith(".")


def test_kinds_of_values() -> None:
    config = Settings({"trigger": "250ms", "rules": "off", "shards": "3"})
    assert (config.trigger, config.rules, config.shards) == (0.25, False, 3)
    assert Settings({"trigger": "2 m"}).trigger == 120
    changed = config.but({"shards": 4})
    assert (changed.trigger, changed.rules, changed.shards) == (0.25, False, 4)
    assert config.shards == 3
    with pytest.raises(AttributeError, match="'shards' cannot be changed"):
        config.shards = 5
