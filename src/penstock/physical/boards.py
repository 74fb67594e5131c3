"""Plans as schedulers see them: operators as numbers, who reads whom, what was measured."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from penstock.physical.efforts import Experience
from penstock.physical.plan import PhysicalPlan
from penstock.queues.stored import Queue
from penstock.schedule.board import Board


def board_of(
    plan: PhysicalPlan,
    positions: Sequence[int],
    queues: Mapping[int, Sequence[Queue]],
    experience: Experience,
) -> Board:
    """Return the board of some operators that run together."""
    inside = set(positions)
    consumers: dict[int, list[int]] = {}
    leaves = []
    for at in positions:
        producers = [i.producer for i in plan.nodes[at].inputs if i.channel is None]
        for producer in dict.fromkeys(producers):
            if producer in inside:
                consumers.setdefault(producer, []).append(at)
        if len(plan.nodes[at].inputs) > len(producers) or not inside.issuperset(producers):
            leaves.append(at)
    return Board(
        positions,
        consumers,
        leaves,
        queues,
        lambda at: experience.known(plan.nodes[at].digest),
        lambda at: plan.promises[at],
        experience.began or time.time(),
    )
