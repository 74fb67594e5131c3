"""What a scheduling policy is, and the table of policies by their name in the configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.errors import ConfigError, suggest
from penstock.schedule.biggest import Biggest
from penstock.schedule.board import Board
from penstock.schedule.chain import Chain, MergedChain, SharedChain
from penstock.schedule.fifo import Fifo
from penstock.schedule.greedy import Greedy
from penstock.schedule.highest_priority import HighestPriority
from penstock.schedule.min_latency import MinLatency
from penstock.schedule.min_latency_priority import MinLatencyPriority
from penstock.schedule.qos import Qos
from penstock.schedule.round_robin import RoundRobin
from penstock.schedule.topological import Topological
from penstock.settings import SCHEDULERS


class Policy(Protocol):
    """Chooses among the operators that have work."""

    def open(self, board: Board) -> None:
        """Begin with a fragment; the board changes while it works."""

    def ready(self, at: int) -> None:
        """Note that an operator has work, or more than before."""

    def next(self) -> int | None:
        """Return the operator that gets the next turn; None when none has work.

        It is noted again with `ready` if it has work left afterwards.
        """


POLICIES: dict[str, Callable[[], Policy]] = {
    "fifo": Fifo,
    "roundrobin": RoundRobin,
    "topological": Topological,
    "minlatency": MinLatency,
    "biggest": Biggest,
    "highestpriority": HighestPriority,
    "minlatencypriority": MinLatencyPriority,
    "greedy": Greedy,
    "chain": Chain,
    "sharedchain": SharedChain,
    "mergedchain": MergedChain,
    "qos": Qos,
}


def policy(name: str) -> Policy:
    """Return a fresh policy by name; with `+` behind it, queues are emptied [A]."""
    if name not in SCHEDULERS:
        raise ConfigError(f"there is no scheduler '{name}'; {suggest(name, SCHEDULERS)}")
    return POLICIES[name.removesuffix("+")]()
