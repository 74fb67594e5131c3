"""The lane in words: which way the important rows of a query take and why, and how the lane does.

EXPLAIN, status and the live table say it with these sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.catalog import StreamDef
from penstock.cql.render import expr_text
from penstock.lane.keeper import LaneStatus
from penstock.physical.book import BookedQuery
from penstock.physical.early_plan import can_be_early
from penstock.physical.plan import Answer
from penstock.settings import Settings
from penstock.sources.formats import why_no_tap

_ADVICE = "CREATE QUERY .. EARLY INTO sink answers them as they come, as of the last final instant"
OFF = "the lane is off (lane=false)"


@dataclass(frozen=True)
class Taken:
    """Which way the important rows of a query take: ``by`` is lane, early or main.

    ``why`` says why it is not the lane.  ``tapped`` are the streams whose important rows are found
    as they come; ``untapped`` says of the others with priorities why theirs are not.  ``early`` is
    the sink of EARLY INTO; without one, ``can_be_early`` says whether that would help.
    """

    by: str
    why: str = ""
    tapped: tuple[str, ...] = ()
    untapped: Mapping[str, str] = field(default_factory=dict)
    early: str | None = None
    can_be_early: bool = False

    def __str__(self) -> str:
        match self.by:
            case "lane":
                told = f"important rows of {_listed(self.tapped)} are answered as they come"
                rest = "".join(f"; those of {_because(*one)}" for one in self.untapped.items())
                early = "" if self.early is None else f"; early rows go into {self.early} as well"
                return f"lane: {told}, beside the batches{rest}{early}"
            case "early":
                told = f"important rows of {_listed(self.tapped)} are answered as they come"
                final = f"the final answer comes with its batch, because {self.why}"
                return f"early: {told}, into {self.early}, as of the last final instant; {final}"
        names = _listed((*self.tapped, *self.untapped))
        nothing = "" if self.early is None else f"; nothing goes into {self.early} early"
        if self.can_be_early:
            nothing = f"; {_ADVICE}"
        return f"main: important rows of {names} come with their batch, because {self.why}{nothing}"


def taken(
    answer: Answer, streams: Iterable[StreamDef], config: Settings, query: BookedQuery
) -> Taken | None:
    """Say which way the important rows of a query take; None if its streams have no priorities."""
    early = query.early
    important = [s for s in streams if s.priority is not None]
    if not important:
        return None
    found = {s.name: why_no_tap(s) for s in important}
    tapped = tuple(name for name, why in found.items() if not why)
    untapped = {name: why for name, why in found.items() if why}
    if not config.lane:
        by, why = "main", OFF
    elif not tapped:
        by, why = "main", "; ".join(dict.fromkeys(untapped.values()))
    elif answer.lane:
        by, why = "lane", ""
    else:
        by, why = "main" if early is None else "early", answer.why_main
    kept = query.mode == "kept" or early is not None
    helps = by == "main" and why == answer.why_main and not kept and can_be_early(query.node)
    return Taken(by, why, tapped, untapped, early, helps)


def _because(name: str, why: str) -> str:
    return f"{name} come with their batch, because {why}"


def _listed(names: Iterable[str]) -> str:
    return " and ".join(names)


def priority_texts(streams: Iterable[StreamDef]) -> Iterator[str]:
    """Say of each stream that has priorities what they are."""
    for stream in streams:
        if stream.priority is not None:
            yield f"priority of {stream.name}: {expr_text(stream.priority, stream.schema.names)}"


# ---- how it does


@dataclass(frozen=True)
class LaneState:
    """How the lane does; ``why`` says why it does not run, empty: it does."""

    status: LaneStatus
    why: str = ""

    @staticmethod
    def of(status: LaneStatus, streams: Iterable[StreamDef], config: Settings) -> LaneState | None:
        """Return how the lane of some streams does; None if they have no priorities."""
        untapped = [why_no_tap(s) for s in streams if s.priority is not None]
        if not untapped:
            return None
        if not config.lane:
            return LaneState(status, OFF)
        if all(untapped):
            whys = "; ".join(dict.fromkeys(untapped))
            return LaneState(status, f"no stream with priorities can be tapped: {whys}")
        return LaneState(status, "" if status.running else status.why)

    @property
    def loss(self) -> str:
        """Says that the process of the lane was lost; empty: it never was."""
        if not self.status.losses:
            return ""
        often = "" if self.status.losses == 1 else f" {self.status.losses} times, the last time"
        rows = "important rows come with their batches while it does not run"
        return f"the process of the lane was lost{often}: {self.status.last_loss}; {rows}"

    def described(self) -> dict[str, Any]:
        """Return it as plain values."""
        status = self.status
        return {
            "running": not self.why,
            "why": self.why,
            "turns": status.turns,
            "answered": status.answered,
            "answered_per_second": status.rate,
            "waiting": status.waiting,
            "latencies": {
                priority: {"answered": count, "p50": middle, "p99": high}
                for priority, (count, middle, high) in status.latencies.items()
            },
            "lost": status.losses,
            "last_loss": status.last_loss,
            "unfit": status.unfit,
            "last_unfit": status.last_unfit,
        }

    def __str__(self) -> str:
        status = self.status
        rows = "1 row" if status.answered == 1 else f"{status.answered:,} rows"
        waiting = f"{status.waiting:,} waiting" if status.waiting else "none waiting"
        down = f"; {self.why}" if self.why else ""
        unfit = f"; {status.unfit:,} come with their batch: {status.last_unfit}"
        unfit = unfit if status.unfit else ""
        return f"lane: {rows} answered ({status.rate:.1f}/s), {waiting}{unfit}{down}"
