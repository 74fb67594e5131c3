"""What a scheduling policy is, and the table of policies by their name in the configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.errors import ConfigError, suggest
from penstock.schedule.round_robin import RoundRobin
from penstock.schedule.topological import Topological


class Policy(Protocol):
    """Chooses among the operators that have work."""

    def next(self, ready: Sequence[int]) -> int:
        """Return one of ``ready``: positions of operators, ascending (producers first), never none.

        The fragment keeps this list from one message to the next: a policy only reads it.
        """


POLICIES: dict[str, Callable[[], Policy]] = {"topological": Topological, "roundrobin": RoundRobin}


def policy(name: str) -> Policy:
    """Return a fresh policy by name."""
    if name not in POLICIES:
        raise ConfigError(f"there is no scheduler '{name}'; {suggest(name, POLICIES)}")
    return POLICIES[name]()
