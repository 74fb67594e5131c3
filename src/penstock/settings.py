"""Every setting, declared once: name, default, what it does. The documentation page is generated.

Settings are given as ``--set key=value`` or ``Session(settings={...})``, and read as attributes:
``batch.rows`` is `Settings.batch_rows`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Generic, NoReturn, TypeVar, overload

from penstock.errors import ConfigError, suggest

Value = TypeVar("Value")


class Setting(Generic[Value]):
    """One setting; ``kind`` is int, bool, str, bytes, seconds or memory (as Java writes it).

    ``choices`` limits strings, ``least`` and ``most`` numbers.
    """

    def __init__(
        self,
        name: str,
        default: Value,
        kind: str,
        doc: str,
        choices: tuple[str, ...] = (),
        least: int | None = None,
        most: int = 2**62,
    ) -> None:
        self.name = name
        self.default = default
        self.kind = kind
        self.doc = doc
        self.choices = choices
        self.least = least
        self.most = most

    @property
    def attribute(self) -> str:
        """The name under which it is read."""
        return self.name.replace(".", "_")

    @overload
    def __get__(self, settings: None, owner: type[Settings]) -> Setting[Value]: ...
    @overload
    def __get__(self, settings: Settings, owner: type[Settings]) -> Value: ...
    def __get__(self, settings: Settings | None, owner: type[Settings]) -> Value | Setting[Value]:
        if settings is None:
            return self
        value: Value = settings._values[self.name]
        return value

    def __set__(self, settings: Settings, value: Value) -> NoReturn:
        raise AttributeError(f"the setting '{self.name}' cannot be changed")


class Settings:
    """The settings in force: defaults, overridden by what the user gave. Immutable."""

    shards = Setting(
        "shards",
        0,
        "int",
        "Number of shards, and so of tasks per stage; 0 means one per core that Spark has. It is "
        "fixed when a checkpoint is made.",
        least=0,
        most=65_536,
    )
    trigger = Setting(
        "trigger", 0.1, "seconds", "Shortest time between the starts of two micro-batches."
    )
    heartbeat_every = Setting(
        "heartbeat.every",
        1.0,
        "seconds",
        "How often a stream with HEARTBEAT FROM CLOCK looks at the clock while no rows come and "
        "none are known to wait for it; each look that moves time is a micro-batch.",
    )
    batch_rows = Setting(
        "batch.rows",
        1_000_000,
        "int",
        "Most rows that one source of Penstock's own puts into a batch.",
        least=1,
    )
    batch_seconds = Setting(
        "batch.seconds",
        1.0,
        "seconds",
        "Time that a batch should take: batches of Penstock's own sources are made larger or "
        "smaller, up to `batch.rows`, until they do. 0 means `batch.rows` always.",
    )
    batch_bytes = Setting(
        "batch.bytes",
        256 << 20,
        "bytes",
        "Most bytes that one source of Penstock's own puts into a batch: of text as it is in the "
        "file, of Parquet as it is in memory.",
        least=1,
    )
    batch_files = Setting(
        "batch.files",
        64,
        "int",
        "Most files that one folder source puts into a batch.",
        least=1,
    )
    pack_tasks = Setting(
        "pack.tasks",
        0,
        "int",
        "Most tasks that read and pack what one stream brings in a batch, and most of its files "
        "that are read at once; 0 means one per core that Spark has. Only streams with several "
        "source partitions need more than one.",
        least=0,
        most=65_536,
    )
    pack_rows = Setting(
        "pack.rows",
        250_000,
        "int",
        "Rows of one stream in a batch from which on another task that packs it is worth while.",
        least=1,
    )
    block_rows = Setting(
        "block.rows",
        262_144,
        "int",
        "Most rows of one block of an expansion, such as join pairs: bounds memory.",
        least=1,
    )
    join_memory = Setting(
        "join.memory",
        256 << 20,
        "bytes",
        "Memory that one join may use for its rows in one shard: for tables that are read, for "
        "pages of files that are looked at, and with `join.method=tpmj` for rows gathered, blocks "
        "merged and results sorted. What is beyond it is in files.",
        least=1,
    )
    merge_strategy = Setting(
        "merge.strategy",
        "greedy",
        "str",
        "When state runs are merged: often (`greedy`), only `merge.fan_in` at once (`maxfanin`), "
        "or the first while little arrives and the second while much does (`load`).",
        ("greedy", "maxfanin", "load", "always", "never"),
    )
    merge_fan_in = Setting("merge.fan_in", 8, "int", "Runs that are merged at once.", least=2)
    join_method = Setting(
        "join.method",
        "auto",
        "str",
        "How joins are computed: by probing stored state (`temporal`), by merging runs sorted by "
        "value, in time slices (`tpmj`) or for finite streams (`pmj`). Where a method cannot be "
        "used, and with `auto`, it is `temporal`.",
        ("auto", "temporal", "tpmj", "pmj"),
    )
    join_buffer = Setting(
        "join.buffer",
        "auto",
        "str",
        "What a join keeps while one input runs ahead of the other: `input` keeps its rows until "
        "the other has caught up, `output` joins at once and keeps the results until they are "
        "final. `auto` decides by the results per row that were measured.",
        ("auto", "input", "output"),
    )
    join_split = Setting(
        "join.split",
        0,
        "int",
        "Shards that share the rows of one join key, for keys so frequent that one shard is too "
        "busy with them: rows of one side go to one of them, rows of the other side to all. `0` "
        "finds such keys, and cells of joins without keys, while running and splits only them, "
        "where both inputs are streams with windows by time; EXPLAIN says where. `1` splits none. "
        "`2` and more is for every key, and belongs to the plan: a checkpoint is continued with "
        "the value it was made with.",
        least=0,
    )
    join_index = Setting(
        "join.index",
        True,
        "bool",
        "Whether joins without an equality find partners by an order of the condition. Without it "
        "every pair is tested.",
    )
    join_multiway = Setting(
        "join.multiway",
        "auto",
        "str",
        "Whether an inner join of three or more inputs is made by one operator, where one order of "
        "each input serves all conditions, or by a cascade of joins of two. `auto` takes the "
        "cascade where its first join was measured to be selective, where another query needs a "
        "part of it, and where a table is joined. The hint `/*+ MULTIWAY */` or `/*+ CASCADE */` "
        "after SELECT goes before it; a query that runs stays as it is.",
        ("auto", "always", "never"),
    )
    lifetime = Setting(
        "lifetime",
        "direct",
        "str",
        "How the end of a row's life travels through the plan: with the row, or told later as "
        "(holder, end) where it is not known yet (`direct`); or as a second, negative copy of the "
        "row when it dies (`negative`). It belongs to the plan: a checkpoint is continued with the "
        "value it was made with.",
        ("direct", "negative"),
    )
    train_rows = Setting(
        "train.rows",
        0,
        "int",
        "Rows that go through a stage together; 0 means as many as `stage.memory` allows. Small "
        "batches are one train.",
        least=0,
    )
    stage_memory = Setting(
        "stage.memory",
        64 << 20,
        "int",
        "Bytes that may wait between the operators of a stage in one task, about: where they are "
        "more, fewer rows go through it together.",
        least=1 << 20,
    )
    scheduler = Setting(
        "scheduler",
        "topological",
        "str",
        "Which operator of a fragment runs next.",
        ("topological", "roundrobin"),
    )
    rules = Setting("rules", True, "bool", "Whether the optimizer's rules are applied.")
    panes = Setting("panes", True, "bool", "Whether sliding aggregates are computed from panes.")
    fsync = Setting("fsync", True, "bool", "Whether run files and manifests are forced to disk.")
    retain_manifests = Setting(
        "retain.manifests",
        10,
        "int",
        "Manifests kept for inspection besides the newest.",
        least=0,
    )
    spark_ui = Setting(
        "spark.ui", False, "bool", "Whether Spark's web UI runs, on loopback, in own sessions."
    )
    driver_memory = Setting(
        "driver.memory", "2g", "memory", "Memory of the Spark driver in own sessions."
    )
    driver_host = Setting(
        "driver.host",
        "",
        "str",
        "Address at which the executors of a cluster reach the driver; empty means this machine's "
        "name. A local Spark is always on loopback.",
    )
    executor_memory = Setting(
        "executor.memory", "1g", "memory", "Memory of each Spark executor on a cluster."
    )
    cluster_cores = Setting(
        "cluster.cores",
        0,
        "int",
        "Most cores that are taken of a cluster; 0 means all that it offers. When it is set, it is "
        "also the number of shards that `shards=0` means.",
        least=0,
    )

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = {s.name: s.default for s in SETTINGS}
        self._give(given or {})

    def _give(self, given: Mapping[str, Any]) -> None:
        for name, value in given.items():
            if name not in _BY_NAME:
                raise ConfigError(f"there is no setting '{name}'; {suggest(name, _BY_NAME)}")
            self._values[name] = parse(_BY_NAME[name], value)

    def but(self, given: Mapping[str, Any]) -> Settings:
        """Return these settings with some others in their place."""
        changed = Settings()
        changed._values = dict(self._values)
        changed._give(given)
        return changed


SETTINGS: tuple[Setting[Any], ...] = tuple(
    found for found in vars(Settings).values() if isinstance(found, Setting)
)

_BY_NAME = {s.name: s for s in SETTINGS}


def parse(setting: Setting[Any], value: Any) -> Any:
    """Convert a value, often text, to the setting's kind."""
    try:
        converted = _CONVERT[setting.kind](value)
    except (ValueError, KeyError):
        raise ConfigError(
            f"the setting '{setting.name}' must be of kind {setting.kind}, got {value!r}; "
            f"its default is {setting.default!r}"
        ) from None
    if setting.choices and converted not in setting.choices:
        raise ConfigError(
            f"the setting '{setting.name}' must be one of {', '.join(setting.choices)}, "
            f"got {value!r}"
        )
    if setting.least is not None and converted < setting.least:
        raise ConfigError(
            f"the setting '{setting.name}' must be at least {setting.least}, got {value!r}"
        )
    if setting.kind in ("int", "bytes", "seconds") and converted > setting.most:
        raise ConfigError(
            f"the setting '{setting.name}' must be at most {setting.most}, got {value!r}"
        )
    return converted


def _bool(value: Any) -> bool:
    return {"true": True, "false": False, "1": True, "0": False, "on": True, "off": False}[
        str(value).lower()
    ]


def _bytes(value: Any) -> int:
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", str(value).strip().lower())
    if not match:
        raise ValueError(value)
    scale: int = 1024 ** " kmgt".index(match[2] or " ")
    return int(match[1]) * scale


def _seconds(value: Any) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", str(value).strip().lower())
    if not match:
        raise ValueError(value)
    return float(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2] or "s"]


def _memory(value: Any) -> str:
    text = str(value).strip().lower()
    if not re.fullmatch(r"[1-9]\d*[kmgt]b?", text):
        raise ValueError(value)
    return text


_CONVERT: dict[str, Any] = {
    "int": lambda v: int(str(v)),
    "bool": _bool,
    "str": str,
    "bytes": _bytes,
    "seconds": _seconds,
    "memory": _memory,
}
