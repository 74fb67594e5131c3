"""Hostile configurations: settings and inputs under which no answer may change.

Each one runs the whole golden corpus.  A name says what is hostile about it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Hostile:
    """How the engine is run: where the input is cut, on how many shards, with which settings.

    ``cuts`` is a number of batches, ``"row"`` for one row per batch, or ``"random"``.  ``shuffle``
    is the slack within which rows are moved before they arrive.  ``alone`` runs each query on its
    own instead of all in one shared plan.
    """

    name: str
    cuts: int | str = 3
    shards: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    shuffle: int = 0
    alone: bool = False


CONFIGS = (
    Hostile("one batch", cuts=1),
    Hostile("one row per batch", cuts="row"),
    Hostile("each query alone", alone=True),
    Hostile("merge always", cuts="row", settings={"merge.strategy": "always"}),
    Hostile("merge never", cuts=7, settings={"merge.strategy": "never"}),
    Hostile(
        "merge two at once", cuts="row", settings={"merge.strategy": "maxfanin", "merge.fan_in": 2}
    ),
    Hostile("rules off", settings={"rules": False}),
    Hostile("panes off", settings={"panes": False}),
    Hostile("four shards, one row per batch", cuts="row", shards=4),
    Hostile("four shards, each query alone", shards=4, alone=True),
    Hostile("shuffled within slack", cuts=5, shuffle=4),
    Hostile("shuffled within slack, four shards", cuts="row", shards=4, shuffle=7),
    Hostile("random cuts", cuts="random"),
    Hostile("round robin", cuts=4, settings={"scheduler": "roundrobin"}),
    Hostile("trains of one row", cuts=1, settings={"train.rows": 1}),
    Hostile("trains of seven rows", cuts=2, shards=3, settings={"train.rows": 7}, shuffle=4),
    Hostile("blocks of three rows", cuts=2, settings={"block.rows": 3}),
    Hostile("joined on arrival", cuts="row", settings={"join.buffer": "output"}),
    Hostile("joined on arrival, shuffled", cuts=5, settings={"join.buffer": "output"}, shuffle=4),
    Hostile("one operator for many inputs", cuts=4, settings={"join.multiway": "always"}),
    Hostile("joins in cascades", cuts=4, shards=2, settings={"join.multiway": "never"}),
    Hostile("keys shared by three shards", cuts=4, shards=5, settings={"join.split": 3}),
    Hostile("every pair tested", settings={"join.index": False}),
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
    Hostile("negative tuples, trains", cuts=1, shards=2, settings=NEGATIVE | {"train.rows": 2}),
    Hostile("negative tuples, four shards", cuts="row", shards=4, settings=NEGATIVE),
    Hostile("negative tuples, rules off", cuts=4, settings=NEGATIVE | {"rules": False}),
    Hostile("negative tuples, shuffled", cuts=5, shards=3, shuffle=5, settings=NEGATIVE),
    Hostile(
        "negative tuples, merge always",
        cuts="random",
        settings=NEGATIVE | {"merge.strategy": "always", "join.buffer": "output"},
    ),
)


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
