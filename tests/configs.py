"""Hostile configurations: settings and inputs under which no answer may change.

Each one runs the whole golden corpus.  A name says what is hostile about it; what does not touch
the same part of the engine is mixed into one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from penstock.settings import SCHEDULERS


@dataclass(frozen=True)
class Hostile:
    """How the engine is run: where the input is cut, on how many shards, with which settings.

    ``cuts`` is a number of batches, ``"row"`` for one row per batch, or ``"random"``.  ``shuffle``
    is the slack within which rows are moved before they arrive.  ``alone`` runs each query on its
    own instead of all in one shared plan.  With a ``turn`` the schedulers take turns: each file has
    another one.
    """

    name: str
    cuts: int | str = 3
    shards: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    shuffle: int = 0
    alone: bool = False
    turn: int | None = None


ONE = {"train.rows": 1, "scheduler.quantum": 1}
SEVEN = {"train.rows": 7}
THOUSAND = {"train.rows": 1000, "scheduler.quantum": 3, "stage.memory": 1 << 20}

CONFIGS = (
    Hostile("one batch", cuts=1),
    Hostile("one row per batch", cuts="row"),
    Hostile("two shards, each query alone", shards=2, alone=True),
    Hostile(
        "merge always, panes off", cuts="row", settings={"merge.strategy": "always", "panes": False}
    ),
    Hostile(
        "merge never, one operator for many inputs",
        cuts=7,
        settings={"merge.strategy": "never", "join.multiway": "always"},
    ),
    Hostile(
        "merge two at once, joined on arrival",
        cuts="row",
        settings={"merge.strategy": "maxfanin", "merge.fan_in": 2, "join.buffer": "output"},
    ),
    Hostile(
        "rules off, blocks of three rows, every pair tested",
        cuts=2,
        settings={"rules": False, "block.rows": 3, "join.index": False},
    ),
    Hostile("four shards, one row per batch", cuts="row", shards=4),
    Hostile("shuffled within slack, four shards", cuts="row", shards=4, shuffle=7),
    Hostile("random cuts, joins in cascades", "random", 2, {"join.multiway": "never"}),
    Hostile("schedulers, trains and quanta of one row", cuts=1, turn=0, settings=ONE),
    Hostile("schedulers, trains of seven", cuts=2, shards=3, turn=7, settings=SEVEN, shuffle=4),
    Hostile("schedulers, quanta of three rows", cuts=1, turn=14, settings=THOUSAND),
    Hostile("nothing fits into memory", cuts=1, shards=2, settings={"stage.memory": 1}, shuffle=4),
    Hostile("joined on arrival, shuffled", cuts=5, settings={"join.buffer": "output"}, shuffle=4),
    Hostile("keys shared by three shards", cuts=4, shards=5, settings={"join.split": 3}),
    Hostile(
        "joins by merging, no memory",
        cuts="row",
        shards=2,
        settings={"join.method": "tpmj", "join.memory": 1, "merge.strategy": "load"},
    ),
    Hostile(
        "joins by merging, full merges only",
        cuts=9,
        settings={"join.method": "tpmj", "join.memory": 256, "merge.strategy": "maxfanin"},
    ),
    Hostile(
        "joins by merging, nothing promised",
        cuts=5,
        shards=2,
        settings={"join.method": "pmj", "join.memory": 256, "merge.fan_in": 2},
    ),
)

NEGATIVE = {"lifetime": "negative"}
CONFIGS += (
    Hostile("negative tuples", settings=NEGATIVE),
    Hostile(
        "negative tuples, trains, rules off",
        cuts=1,
        shards=2,
        settings=NEGATIVE | {"train.rows": 2, "rules": False},
    ),
    Hostile("negative tuples, schedulers", cuts=1, turn=3, settings=NEGATIVE | ONE),
    Hostile(
        "negative tuples, nothing fits into memory",
        cuts=2,
        shards=3,
        settings=NEGATIVE | {"stage.memory": 1, "train.rows": 3},
        shuffle=4,
    ),
    Hostile("negative tuples, four shards", cuts="row", shards=4, settings=NEGATIVE),
    Hostile("negative tuples, shuffled", cuts=5, shards=3, shuffle=5, settings=NEGATIVE),
    Hostile(
        "negative tuples, merge always",
        cuts="random",
        settings=NEGATIVE | {"merge.strategy": "always", "join.buffer": "output"},
    ),
)


def settings_of(config: Hostile, number: int) -> dict[str, Any]:
    """Return the settings for the golden file with a number."""
    if config.turn is None:
        return config.settings
    return config.settings | {"scheduler": SCHEDULERS[(number + config.turn) % len(SCHEDULERS)]}


def cuts_of(config: Hostile, rows: int, seed: str) -> int | list[int]:
    """Return the cuts as the engine takes them: a number of batches or the positions of cuts."""
    if config.cuts == "row":
        return max(1, rows)
    if config.cuts == "random":
        dice = random.Random(seed)
        return sorted(dice.randint(0, rows) for _ in range(7))
    assert isinstance(config.cuts, int)
    return config.cuts


def shuffled(rows: list, slack: int, seed: str) -> list:
    """Move elements ``(values, t)`` so that none becomes late under the slack.

    An element is put behind another only if that one is at most ``slack`` later.  Elements that
    share a time keep their order, because arrival breaks their tie.
    """
    dice = random.Random(seed)
    ordered = sorted(rows, key=lambda row: row[1])
    places = [(time + dice.uniform(0, slack), time) for _, time in ordered]
    waiting: dict[int, list] = {}
    for row in ordered:
        waiting.setdefault(row[1], []).append(row)
    return [waiting[time].pop(0) for _, time in sorted(places)]
