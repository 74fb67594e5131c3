"""What a stream declares about its time: the clauses from which its heartbeats come.

A heartbeat ``W`` promises that no element below ``W`` comes any more.  `penstock.physical.progress`
computes it, source partition by source partition, from what is declared here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.expr.nodes import Expr


@dataclass(frozen=True)
class Punctuation:
    """``PUNCTUATION WHEN condition [TIME expr] [ON (columns) [FOR d]]``: a row makes a promise.

    Where ``condition`` holds, nothing below ``time`` comes any more in the row's partition; None is
    the row's own time.  Both are over the columns of the stream.  With columns ``on`` the row
    promises something else: none of its partition that comes after it has its values there, for
    ever, or as long as its time is below ``time`` + ``lasts``.
    """

    condition: Expr
    time: Expr | None = None
    on: tuple[int, ...] = ()
    lasts: int | None = None


@dataclass(frozen=True)
class TimeRules:
    """The clauses of a stream about time, in chronons, or seconds of the clock on the wall.

    ``slack``: rows may come so much later than the newest.  ``keeping``: SLACK AUTO, the share of
    rows that shall not be late.  ``clock_lag``: HEARTBEAT FROM CLOCK.  ``idle_after``, in seconds:
    a partition that is silent so long is passed over.  ``step``: how far it may be ahead of others.
    ``partitions``: how many source partitions it has; None: as many as were heard.
    """

    slack: int = 0
    keeping: float | None = None
    clock_lag: int | None = None
    idle_after: float | None = None
    step: int | None = None
    partitions: int | None = None
    punctuations: tuple[Punctuation, ...] = field(default=())

    @property
    def closing(self) -> Punctuation | None:
        """The punctuation that closes parts of the stream, if it has one."""
        return next((each for each in self.punctuations if each.on), None)

    @property
    def follows_the_clock(self) -> bool:
        """Whether time alone moves its heartbeat, without any rows."""
        return self.clock_lag is not None or self.idle_after is not None
