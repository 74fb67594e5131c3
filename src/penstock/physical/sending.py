"""Sending: the parcels that bring what a task makes to the shards of later stages.

* Rows go where the exchange of their channel routes them.
* Told ends go to the shards that got rows of their holders.  An exchange may know that from the
  holder alone; otherwise the sender remembers it (`penstock.runs.destinations`).  Up to
  `FEW_SHARDS` all are told instead: an end has 16 bytes, and a pair to be remembered takes more.
* Heartbeats: a reader needs the least of all writers.  Where shards keep step, all writers have the
  same, so each tells only the reader of its own number; the driver checks that they were the same.
  Only a join by merging moves on as its own rows allow, and what is above it in the same stage:
  there every writer tells every reader.

Except for that last case the parcels of a batch grow with its rows and ends, and with the number of
shards, but not with its square.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from penstock.errors import InternalError
from penstock.model import MIN_TIME, Batch, Closed, Ends, Heartbeat, Message, Settled
from penstock.physical.parcels import Parcel, encode
from penstock.physical.plan import PhysicalPlan
from penstock.physical.split_routes import Route
from penstock.runs.destinations import Destinations

FEW_SHARDS = 8
"""So many shards are all told of every end."""


def rows_sent(
    plan: PhysicalPlan,
    channel: int,
    batch: Batch,
    shards: int,
    with_seq: bool = False,
    splits: Route | None = None,
    sent: Callable[[int, Batch], None] | None = None,
) -> Iterator[Parcel]:
    """Yield the parcels of rows, and tell ``sent`` of each part.

    ``splits`` are the hot keys that several shards share at present.
    """
    target = plan.channels[channel]
    for shard, part in target.exchange.route(batch, shards, splits):
        if sent is not None:
            sent(shard, part)
        kind, blob = encode(part, with_seq)
        yield Parcel(target.stage, shard, channel, kind, blob)


class Sender:
    """Sends what one stage makes in one shard, for one batch.

    ``negative``: rows end by negative tuples.  ``remember(channel)`` opens what is known of the
    destinations of a channel.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        stage: int,
        shard: int,
        shards: int,
        negative: bool,
        remember: Callable[[int], Destinations],
    ) -> None:
        self._plan = plan
        self._shard = shard
        self._shards = shards
        self._negative = negative
        own = [n for n, c in enumerate(plan.channels) if plan.nodes[c.producer].stage == stage]
        self._ends: dict[int, list[Ends]] = {channel: [] for channel in own}
        self._beats: dict[int, int] = dict.fromkeys(own, MIN_TIME)
        self._remember = remember
        self._destinations: dict[int, Destinations] = {}

    def send(self, channel: int, message: Message) -> Iterable[Parcel]:
        """Return the parcels of rows; ends and heartbeats are kept until all rows are sent."""
        if isinstance(message, Closed | Settled):
            return ()  # what one shard promises, others need not keep
        if isinstance(message, Heartbeat):
            self._beats[channel] = message.time
        elif isinstance(message, Ends):
            self._ends[channel].append(message)
        elif message.minus or not self._remembers(channel) or not message.holder.any():
            return rows_sent(self._plan, channel, message, self._shards)
        else:
            sent = self._known(channel).sent
            return rows_sent(self._plan, channel, message, self._shards, sent=sent)
        return ()

    def finish(self) -> Iterator[Parcel]:
        """Yield the parcels of all ends and heartbeats."""
        for channel, parts in self._ends.items():
            target = self._plan.channels[channel]
            for shard, ends in self._told(channel, Ends.concat(parts)):
                yield Parcel(target.stage, shard, channel, *encode(ends))
            kind, blob = encode(Heartbeat(self._beats[channel]))
            together = target.producer in self._plan.in_step
            for shard in (self._shard,) if together else range(self._shards):
                yield Parcel(target.stage, shard, channel, kind, blob)

    def beats(self) -> dict[int, int]:
        """Return the heartbeats that must be the same in all shards, by channel."""
        channels, in_step = self._plan.channels, self._plan.in_step
        return {c: beat for c, beat in self._beats.items() if channels[c].producer in in_step}

    def _told(self, channel: int, ends: Ends) -> Iterator[tuple[int, Ends]]:
        """Yield the shards that must be told of some ends, and of which."""
        if self._remembers(channel):
            yield from self._known(channel).tell(ends, self._beats[channel])
        elif len(ends):
            yield from self._plan.channels[channel].exchange.ends(ends, self._shards)

    def _remembers(self, channel: int) -> bool:
        """Whether it must be known where rows went; negative tuples find their rows by key."""
        many = self._shards > FEW_SHARDS and not self._negative
        return many and self._plan.channels[channel].exchange.ends_follow_rows

    def _known(self, channel: int) -> Destinations:
        if channel not in self._destinations:
            self._destinations[channel] = self._remember(channel)
        return self._destinations[channel]


def check_step(reports: Iterable[Mapping[str, Any]]) -> None:
    """Check that the shards which must keep step have done so."""
    beats: dict[str, int] = {}
    for content in reports:
        for channel, beat in content.get("beats", {}).items():
            if beats.setdefault(channel, beat) != beat:
                raise InternalError(
                    f"the heartbeats of channel {channel} must be the same in all shards, got "
                    f"{beats[channel]} and {beat}"
                )
