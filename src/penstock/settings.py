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

_KINDS: dict[type, str] = {int: "int", bool: "bool", str: "str", float: "seconds"}


class Setting(Generic[Value]):
    """One setting, named by its attribute: ``batch_rows`` is batch.rows.

    ``kind`` is int, bool, str, bytes, seconds or memory (as Java writes it); mostly the default
    tells it.  ``choices`` limits strings, ``least`` and ``most`` numbers.  One that is ``live`` can
    be changed while queries run.
    """

    def __init__(
        self,
        default: Value,
        doc: str,
        choices: tuple[str, ...] = (),
        least: float | None = None,
        most: int = 2**62,
        live: bool = False,
        kind: str = "",
    ) -> None:
        self.default = default
        self.doc = doc
        self.choices = choices
        self.least = least
        self.most = most
        self.live = live
        self.kind = kind or _KINDS[type(default)]

    def __set_name__(self, owner: type[Settings], name: str) -> None:
        self.attribute = name
        self.name = name.replace("_", ".", 1)

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


_POLICIES = (
    "fifo",
    "roundrobin",
    "topological",
    "minlatency",
    "biggest",
    "highestpriority",
    "minlatencypriority",
    "greedy",
    "chain",
    "sharedchain",
    "mergedchain",
    "qos",
)
SCHEDULERS = tuple(name + plus for name in _POLICIES for plus in ("", "+"))


class Settings:
    """The settings in force: defaults, overridden by what the user gave. Immutable."""

    shards = Setting(
        0,
        "Number of shards, and so of tasks per stage; 0 means one per core that Spark has. It is "
        "fixed when a checkpoint is made.",
        least=0,
        most=65_536,
    )
    trigger = Setting(0.1, "Shortest time between the starts of two micro-batches.")
    heartbeat_every = Setting(
        1.0,
        "How often a stream with HEARTBEAT FROM CLOCK looks at the clock while no rows come and "
        "none are known to wait for it; each look that moves time is a micro-batch.",
    )
    batch_rows = Setting(
        1_000_000, "Most rows that one source of Penstock's own puts into a batch.", least=1
    )
    batch_seconds = Setting(
        1.0,
        "Time that a batch should take: batches of Penstock's own sources are made larger or "
        "smaller, up to `batch.rows`, until they do. 0 means `batch.rows` always.",
    )
    batch_bytes = Setting(
        256 << 20,
        "Most bytes that one source of Penstock's own puts into a batch: of text as it is in the "
        "file, of Parquet as it is in memory.",
        least=1,
        kind="bytes",
    )
    batch_files = Setting(64, "Most files that one folder source puts into a batch.", least=1)
    pack_tasks = Setting(
        0,
        "Most tasks that read and pack what one stream brings in a batch, and most of its files "
        "that are read at once; 0 means one per core that Spark has. Only streams with several "
        "source partitions need more than one.",
        least=0,
        most=65_536,
    )
    pack_rows = Setting(
        250_000,
        "Rows of one stream in a batch from which on another task that packs it is worth while.",
        least=1,
    )
    block_rows = Setting(
        262_144,
        "Most rows of one block of an expansion, such as join pairs: bounds memory.",
        least=1,
    )
    join_memory = Setting(
        256 << 20,
        "Memory that one join may use for its rows in one shard: for tables that are read, for "
        "pages of files that are looked at, and with `join.method=tpmj` for rows gathered, blocks "
        "merged and results sorted. What is beyond it is in files.",
        least=1,
        kind="bytes",
    )
    merge_strategy = Setting(
        "greedy",
        "When state runs are merged: often (`greedy`), only `merge.fan_in` at once (`maxfanin`), "
        "or the first while little arrives and the second while much does (`load`).",
        ("greedy", "maxfanin", "load", "always", "never"),
    )
    merge_fan_in = Setting(8, "Runs that are merged at once.", least=2)
    join_method = Setting(
        "auto",
        "How joins are computed: by probing stored state (`temporal`), by merging runs sorted by "
        "value, in time slices (`tpmj`) or for finite streams (`pmj`). Where a method cannot be "
        "used, and with `auto`, it is `temporal`. Queries of a checkpoint keep their plans.",
        ("auto", "temporal", "tpmj", "pmj"),
    )
    join_buffer = Setting(
        "auto",
        "What a join keeps while one input runs ahead of the other: `input` keeps its rows until "
        "the other has caught up, `output` joins at once and keeps the results until they are "
        "final. `auto` decides by the results per row that were measured.",
        ("auto", "input", "output"),
    )
    join_split = Setting(
        0,
        "Shards that share the rows of one join key, for keys so frequent that one shard is too "
        "busy with them: rows of one side go to one of them, rows of the other side to all. `0` "
        "finds such keys, and cells of joins without keys, while running and splits only them, "
        "where both inputs are streams with windows by time; EXPLAIN says where. `1` splits none. "
        "`2` and more is for every key, and belongs to the plan: a checkpoint is continued with "
        "the value it was made with.",
        least=0,
    )
    join_index = Setting(
        True,
        "Whether joins without an equality find partners by an order of the condition. Without it "
        "every pair is tested.",
    )
    join_multiway = Setting(
        "auto",
        "Whether an inner join of three or more inputs is made by one operator, where one order of "
        "each input serves all conditions, or by a cascade of joins of two. `auto` takes the "
        "cascade where its first join was measured to be selective, where another query needs a "
        "part of it, and where a table is joined. The hint `/*+ MULTIWAY */` or `/*+ CASCADE */` "
        "after SELECT goes before it; a query that runs stays as it is.",
        ("auto", "always", "never"),
    )
    join_windows = Setting(
        "shared",
        "Whether queries that join the same streams on the same condition, with different windows "
        "`RANGE`, share one join with the largest windows, behind which each gets its own rows "
        "(`shared`), or have a join each (`apart`). It is decided when a query begins; one that "
        "runs stays as it is.",
        ("shared", "apart"),
    )
    join_order = Setting(
        "lwo",
        "In which order a join that several windows share makes its results: as its state is "
        "stored (`lwo`, largest window only), the youngest partners first, so that small windows "
        "have their answers first (`swf`, smallest window first), or first those that serve most "
        "queries for the least work (`mqt`, maximum query throughput). The last two cost time, and "
        "are for large batches with a `scheduler.quantum` that lets answers leave before the end.",
        ("lwo", "swf", "mqt"),
    )
    lifetime = Setting(
        "direct",
        "How the end of a row's life travels through the plan: with the row, or told later as "
        "(holder, end) where it is not known yet (`direct`); or as a second, negative copy of the "
        "row when it dies (`negative`). It belongs to the plan: a checkpoint is continued with the "
        "value it was made with.",
        ("direct", "negative"),
    )
    filter_order = Setting(
        "adaptive",
        "In which order the conditions that a selection joins by AND are evaluated: by what each "
        "costs and lets pass, as measured while running (`adaptive`), or as they are written "
        "(`written`). A condition that can fail keeps its place.",
        ("adaptive", "written"),
    )
    train_rows = Setting(
        0,
        "Rows that go through a stage together; 0 means as many as `stage.memory` allows. Small "
        "batches are one train.",
        least=0,
        live=True,
    )
    stage_memory = Setting(
        64 << 20,
        "Bytes that may wait between the operators of a stage in one task, about: where they are "
        "more, fewer rows go through it together. As many of what a task was sent are kept in "
        "memory; the rest goes into temporary files.",
        least=1,
        live=True,
        kind="bytes",
    )
    scheduler = Setting(
        "fifo",
        "Which operator of a stage runs next, where a batch is more than one train: `fifo` (a "
        "train to its end, then the next), `roundrobin`, `topological` (sources first), "
        "`minlatency` (whole paths to an answer), `biggest` (queue), `highestpriority` (by the "
        "WEIGHT of queries), `minlatencypriority` (by WEIGHT, then whole paths), `greedy` (what "
        "shrinks most per second), `chain`, `sharedchain`, "
        "`mergedchain` (segments of progress charts), `qos` (by WITHIN and WEIGHT of queries). "
        "With `+` behind its name the chosen operator empties its queue.",
        SCHEDULERS,
        live=True,
    )
    scheduler_bound = Setting(
        False,
        "Whether `sharedchain` admits no train while as many are under way as queries share an "
        "output: then it never holds more than Chain without sharing would.",
        live=True,
    )
    scheduler_quantum = Setting(
        0,
        "Most rows that an operator takes in one turn, and about the most that it makes; 0: one "
        "train, and `block.rows`.",
        least=0,
        live=True,
    )
    lane = Setting(
        True,
        "Whether rows of streams with PRIORITY above 0 are answered at once, beside the batches, "
        "where a plan allows it. Without it the same answers come later, with their batches.",
    )
    lane_wait = Setting(
        0.2,
        "Seconds that a batch waits for the lane, at most, to answer important rows that it is "
        "about to take.",
        least=0,
        kind="seconds",
        live=True,
    )
    lane_patience = Setting(
        5.0,
        "Seconds after which the process of the lane counts as hanging when it gives no answer: it "
        "is started again, and the rows come by a batch if that is sooner.",
        least=0.01,
        kind="seconds",
    )
    lane_rows = Setting(
        128,
        "Rows that the lane answers in one turn, about: more are answered faster, but those that "
        "come meanwhile wait.",
        least=1,
    )
    lane_queue = Setting(
        "levels",
        "In which order important rows that wait for the lane are answered: as they came "
        "(`normal`, `direct`), the newest first (`weak`), by priority in one sorted list "
        "(`strong`), in a heap (`strong2`), or in one list per priority (`levels`).",
        ("normal", "direct", "weak", "strong", "strong2", "levels"),
    )
    lane_scheduler = Setting(
        "highestpriority",
        "Of which stream the lane answers rows next: the one whose next rows are the most "
        "important, also with the cheaper ones first (`minlatencypriority`); all together as they "
        "came (`fifo`), one after another, the one of which most waits, the cheapest.",
        (
            "highestpriority",
            "minlatencypriority",
            "fifo",
            "roundrobin",
            "biggest",
            "minlatency",
        ),
    )
    rules = Setting(
        True, "Whether the optimizer's rules are applied. Queries of a checkpoint keep their plans."
    )
    panes = Setting(
        True,
        "Whether sliding aggregates are computed from panes. Queries of a checkpoint keep their "
        "plans.",
    )
    fsync = Setting(True, "Whether run files and manifests are forced to disk.")
    retain_manifests = Setting(10, "Manifests kept for inspection besides the newest.", least=0)
    spark_ui = Setting(False, "Whether Spark's web UI runs, on loopback, in own sessions.")
    driver_memory = Setting("2g", "Memory of the Spark driver in own sessions.", kind="memory")
    driver_host = Setting(
        "",
        "Address at which the executors of a cluster reach the driver; empty means this machine's "
        "name. A local Spark is always on loopback.",
    )
    executor_memory = Setting("1g", "Memory of each Spark executor on a cluster.", kind="memory")
    cluster_cores = Setting(
        0,
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

    def changed(self, name: str, value: Any) -> Settings:
        """Return these settings with one changed, which must be one that can while queries run."""
        after = self.but({name: value})
        if not _BY_NAME[name].live:
            able = ", ".join(sorted(setting.name for setting in SETTINGS if setting.live))
            raise ConfigError(
                f"the setting '{name}' must be given when the session is opened, with --set or "
                f"Session(settings=..); what can be changed while queries run is {able}"
            )
        return after

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
        default = str(setting.default).lower() if setting.kind == "bool" else setting.default
        raise ConfigError(
            f"the setting '{setting.name}' must be {_IN_WORDS[setting.kind]}, got {value!r}; "
            f"its default is {default}"
        ) from None
    if setting.choices and converted not in setting.choices:
        if isinstance(converted, str) and converted.lower() in setting.choices:
            return converted.lower()
        close = suggest(str(value), setting.choices)
        hint = f"; {close.partition('?')[0]}?" if close.startswith("did you mean") else ""
        raise ConfigError(
            f"the setting '{setting.name}' must be one of {', '.join(setting.choices)}, "
            f"got {value!r}{hint}"
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


_IN_WORDS = {
    "int": "a whole number",
    "bool": "true or false, on or off",
    "str": "text",
    "bytes": "a size such as 64m or 2g",
    "seconds": "a time such as 100ms, 5s or 2m",
    "memory": "a size such as 512m or 2g",
}
_CONVERT: dict[str, Any] = {
    "int": lambda v: int(str(v)),
    "bool": _bool,
    "str": str,
    "bytes": _bytes,
    "seconds": _seconds,
    "memory": _memory,
}
