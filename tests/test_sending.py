"""What a stage sends: rows by exchange, ends only after their rows, one heartbeat per shard."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import cql
from penstock.algebra import Node
from penstock.catalog import Catalog
from penstock.cql.binding import statements
from penstock.errors import InternalError
from penstock.model import INF, MIN_TIME, Batch, Ends
from penstock.physical import batch, sending
from penstock.physical import exchange as exchanges
from penstock.physical.exchange import COPIES, OWNED, SINGLE, SPREAD, ByKey, Cells, Exchange, Shared
from penstock.physical.parcels import BEAT, ENDS, ROWS, SOURCE, Parcel
from penstock.physical.plan import PhysicalPlan
from penstock.physical.sending import check_step
from penstock.reference import from_intervals
from penstock.runs.destinations import Destinations
from penstock.runs.merging import Merging
from penstock.runs.state import MemoryStorage, State
from penstock.testing import LocalEngine
from tests.comparison import check_relation

WAYS: list[Exchange] = [
    SINGLE,
    SPREAD,
    OWNED,
    COPIES,
    ByKey((0,)),
    ByKey((0, 1)),
    Cells((1,), (16.0,)),
    Cells((1,), (16.0,), (4.0,), (4.0,)),
    Shared((0,), 3),
    Shared((0,), 3, True),
]


def rows(count: int, seed: int, held: bool = False) -> Batch:
    random = np.random.default_rng(seed)
    columns = [pa.array(random.integers(0, 40, count)), pa.array(random.integers(0, 900, count))]
    holder = random.integers(0, 50, count) if held else None
    return Batch.of(columns, np.arange(count), holder=holder, seq=np.arange(count))


def routed(exchange: Exchange, batch: Batch, shards: int) -> dict[int, list[int]]:
    assert batch.seq is not None
    return {s: part.seq.tolist() for s, part in exchange.route(batch, shards)}  # type: ignore[union-attr]


@pytest.mark.parametrize("shards", [2, 7, 64, 1024])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("exchange", WAYS, ids=str)
def test_many_shards_are_cut_as_few_are(
    exchange: Exchange, held: bool, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = rows(200, shards, held)
    monkeypatch.setattr(exchanges, "_FEW_SHARDS", 1 << 20)
    one_by_one = routed(exchange, batch, shards)
    monkeypatch.setattr(exchanges, "_FEW_SHARDS", 0)
    assert routed(exchange, batch, shards) == one_by_one
    assert all(part == sorted(part) for part in one_by_one.values())
    assert set().union(*one_by_one.values()) == set(range(200))


@pytest.mark.parametrize("exchange", [SINGLE, SPREAD, COPIES], ids=str)
def test_an_exchange_that_knows_where_holders_are_tells_those_shards(exchange: Exchange) -> None:
    batch = rows(300, 1, held=True)
    holder = np.arange(1, 50)
    told = {s: set(e.holder.tolist()) for s, e in exchange.ends(Ends(holder, holder), 16)}
    for shard, part in exchange.route(batch, 16):
        assert set(part.holder.tolist()) - {0} <= told[shard]
    if exchange is not COPIES:
        assert sum(map(len, told.values())) == len(holder)


@pytest.mark.parametrize("strategy", ["always", "greedy", "never"])
@pytest.mark.parametrize("seed", range(6))
def test_ends_go_exactly_where_rows_went(seed: int, strategy: str) -> None:
    """Against a dictionary: holders in order or not, shared by shards, told late, told again."""
    chance = random.Random(seed)
    storage = MemoryStorage()
    described: dict[str, Any] = {}
    open_: dict[int, dict[int, int]] = {}  # holder -> shard -> latest end of its rows
    fresh = 1
    for turn in range(120):
        state = State(storage, described)
        found = Destinations(state, "sent", Merging(strategy, 2))
        for _ in range(chance.randrange(4)):
            shard = chance.randrange(20)
            holders = [0, *range(fresh, fresh + chance.randrange(5))]
            fresh += len(holders) - 1
            holders += chance.choices(range(1, fresh + 1), k=chance.randrange(3))
            ends = [chance.choice([INF, turn + 1, turn + 30]) for _ in holders]
            columns = [pa.array(holders)]
            found.sent(shard, Batch.of(columns, [0] * len(holders), ends, holders))
            for holder, end in zip(holders, ends, strict=True):
                if holder:
                    mine = open_.setdefault(holder, {})
                    mine[shard] = max(mine.get(shard, MIN_TIME), end)
        many = chance.random() < 0.1
        asked = sorted(h for h in range(1, fresh + 1) if chance.random() < (0.7 if many else 0.05))
        told = Ends(np.array(asked, np.int64), np.full(len(asked), turn, np.int64))
        heard = {(int(h), s) for s, ends in found.tell(told, turn) for h in ends.holder}
        for holder in asked:
            for shard, end in open_.pop(holder, {}).items():
                assert (holder, shard) in heard or end <= turn
        described = state.describe()
        ever = {(h, s) for h, s in heard if h not in asked}
        assert not ever
    kept = sum(len(run) for run in State(storage, described).runs("sent"))
    alive = sum(end > 119 for mine in open_.values() for end in mine.values())
    assert kept >= alive
    if strategy == "always":
        assert kept <= 2 * alive + 20


DECLARED = """
CREATE STREAM s (k BIGINT, v BIGINT, t BIGINT) TIMESTAMP BY t USING memory;
CREATE STREAM r (k BIGINT, v BIGINT, t BIGINT) TIMESTAMP BY t USING memory;
"""

QUERIES = {
    "window": "SELECT v, COUNT(*) AS n FROM s [PARTITION BY k ROWS 2] GROUP BY v",
    "join": "SELECT s.v, COUNT(*) AS n FROM s [PARTITION BY k ROWS 2], r [PARTITION BY k ROWS 3] "
    "WHERE s.k = r.k GROUP BY s.v",
    "twice": "SELECT v, COUNT(*) AS n FROM (SELECT v FROM s [PARTITION BY k ROWS 2] UNION ALL "
    "SELECT r.v FROM s [PARTITION BY k ROWS 2], r [RANGE 5] WHERE s.k = r.k) GROUP BY v",
    "dropped": "SELECT DISTINCT v FROM s [PARTITION BY k ROWS 1] WHERE v > 3",
    "band": "SELECT a.v, b.v AS w FROM s [PARTITION BY k ROWS 1] a, r [PARTITION BY k ROWS 1] b "
    "WHERE ABS(a.v - b.v) <= 1",
    "spread": "SELECT v FROM s [ROWS 3] UNION ALL SELECT v FROM r [PARTITION BY k ROWS 1]",
}


def bound(text: str) -> Node:
    catalog = Catalog()
    for parsed in cql.parse_script(DECLARED):
        statement = cql.bind(parsed, catalog)
        assert isinstance(statement, statements.Create)
        catalog.add(statement.definition)
    return cql.bind_query(text, catalog)


def fed(text: str, shards: int, seed: int, **settings: Any) -> list[tuple]:
    """Run a query over random rows; stream r lags behind, and both end."""
    dice = random.Random(seed)
    engine = LocalEngine({"q": bound(text)}, shards=shards, settings=settings)
    for turn in range(12):
        late = {"s": turn, "r": max(0, turn - 3)}
        engine.batch(
            {
                name: [
                    (dice.randrange(6), dice.randrange(8), 3 * late[name] + at)
                    for at in range(dice.randrange(3))
                    for _ in range(dice.randrange(4))
                ]
                for name in engine.streams
            }
        )
    engine.batch({}, final=True)
    return engine.answers["q"]


@cache
def in_one_shard(name: str, seed: int) -> list[tuple]:
    """What every number of shards must answer, whatever the settings."""
    return fed(QUERIES[name], 1, seed)


@pytest.mark.parametrize(
    "merging", ["greedy", "always", pytest.param("never", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("lifetime", ["direct", "negative"])
@pytest.mark.parametrize("name", QUERIES)
def test_answers_do_not_depend_on_the_number_of_shards(
    name: str, lifetime: str, merging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"lifetime": lifetime, "merge.strategy": merging}
    monkeypatch.setattr(sending, "FEW_SHARDS", 1)
    for seed, shards in ((1, 2), (2, 3), (3, 17 if merging == "greedy" else 5)):
        found = fed(QUERIES[name], shards, seed, **settings)
        check_relation(found, from_intervals(in_one_shard(name, seed)))


def sent(text: str, shards: int, monkeypatch: pytest.MonkeyPatch, **given: Any) -> Counter[int]:
    """Return how many parcels of each kind the stages of a run got."""
    kinds: Counter[int] = Counter()
    run = batch.run_stage

    def counted(
        plan: PhysicalPlan, stage: int, shard: int, shards: int, parcels: list[Parcel], *rest: Any
    ) -> Iterator[Parcel]:
        kinds.update(p.kind for p in parcels if p.stage == stage)
        return run(plan, stage, shard, shards, parcels, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(batch, "run_stage", counted)
        fed(text, shards, 1, **given)
    return kinds


@pytest.mark.parametrize("name", ["window", "join"])
def test_parcels_grow_at_most_with_the_shards(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (sent(QUERIES[name], shards, monkeypatch) for shards in (12, 48))
    assert all(few[kind] for kind in (BEAT, ENDS, ROWS, SOURCE))
    for kind in (BEAT, SOURCE):
        assert many[kind] == 4 * few[kind]
    for kind in (ROWS, ENDS):  # no more than there are rows and ends
        assert many[kind] < 2 * few[kind]


def test_a_join_by_merging_tells_every_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "SELECT s.v, COUNT(*) AS n FROM s [RANGE 4], r [RANGE 4] WHERE s.k = r.k GROUP BY s.v"
    merging = {"join.method": "tpmj"}
    true = from_intervals(fed(text, 1, 5))
    check_relation(fed(text, 12, 5, **merging), true)
    beats = [sent(text, shards, monkeypatch, **merging)[BEAT] for shards in (4, 8)]
    assert beats[1] == 4 * beats[0] > 0


def test_shards_out_of_step_are_found() -> None:
    check_step([{"beats": {"0": 5}}, {"beats": {"0": 5}}, {}])
    with pytest.raises(InternalError, match="channel 0 must be the same in all shards, got 5 and"):
        check_step([{"beats": {"0": 5}}, {"beats": {"0": 6}}])
