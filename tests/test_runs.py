"""Runs: lifetimes, keyed maps, segments, merging, manifests, hashes."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import StateError
from penstock.kernels.keys import Keys, codes, hash_columns
from penstock.model import INF, Batch, Ends
from penstock.runs.checkpoint import Checkpoint
from penstock.runs.keyed import KeyedState
from penstock.runs.lifetimes import Lifetimes
from penstock.runs.manifest import Manifest
from penstock.runs.merging import Merging
from penstock.runs.numbered import NumberedRows
from penstock.runs.segments import SegmentStorage, read_segment
from penstock.runs.state import MemoryStorage, State
from tests.examples import examples

STRATEGIES = st.sampled_from(["greedy", "maxfanin", "always", "never"])

ROWS = st.lists(
    st.tuples(
        st.integers(0, 30),  # start
        st.one_of(st.integers(1, 20), st.just(INF)),  # length
        st.integers(0, 6),  # holder, 0 = none
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=examples(150))
@given(ROWS, st.dictionaries(st.integers(1, 6), st.integers(0, 60)), STRATEGIES, st.integers(1, 9))
def test_lifetimes_give_every_row_back_once_at_its_end(rows, told, strategy, step):
    """Rows with known ends, told ends and both at once, over many turns with reopened state."""
    storage, description = MemoryStorage(), None
    ended: Counter[tuple[int, int, int]] = Counter()
    since = -1
    for until in [*range(step, 100, step), INF]:
        state = State(storage, description)
        lives = Lifetimes(state, "x", [pa.int64()], Merging(strategy, 3))
        over = {h for h, e in told.items() if e < since}  # a told holder makes no more rows
        new = [
            (i, s, INF if n == INF else s + n, h)
            for i, (s, n, h) in enumerate(rows)
            if since <= s < until and h not in over
        ]
        columns = list(zip(*new, strict=True)) or [[], [], [], []]
        born = Batch.of([pa.array(columns[0], pa.int64())], *columns[1:])
        now = {h: e for h, e in told.items() if since <= e < until}
        ends = Ends.of(np.array(list(now), np.int64), np.array(list(now.values()), np.int64))
        since = until
        gone = lives.advance(born, ends, until)
        for i, s, e in zip(gone.columns[0].to_pylist(), gone.start, gone.end, strict=True):
            ended[i, int(s), int(e)] += 1
        lives.save()
        description = json.loads(json.dumps(state.describe()))
    assert max(ended.values(), default=1) == 1
    for i, s, e in ended:
        start, length, holder = rows[i]
        own = INF if length == INF else start + length
        assert s == start
        assert e == min(own, told.get(holder, INF) if holder else INF)
    state = State(storage, description)
    left = Lifetimes(state, "x", [pa.int64()], Merging(strategy, 3)).live()
    for i in left.columns[0].to_pylist():
        assert not any(i == j for j, _, _ in ended)


def contents(keyed: KeyedState) -> dict[int, int]:
    """Return what a map of numbers from 0 to 20, each kept with its name, holds."""
    asked = pa.array(range(21), pa.int64())
    found, (names, values) = keyed.get(hash_columns([asked], 21))
    assert [n for n, f in zip(names.to_pylist(), found, strict=True) if f] == [
        n for n, f in enumerate(found) if f
    ]
    return {k: v for k, v, f in zip(range(21), values.to_pylist(), found, strict=True) if f}


@settings(deadline=None, max_examples=examples(100))
@given(
    st.lists(
        st.dictionaries(st.integers(0, 20), st.one_of(st.none(), st.integers(0, 99))), max_size=8
    ),
    STRATEGIES,
)
def test_a_keyed_map_is_a_dictionary(steps, strategy):
    storage, description = MemoryStorage(), None
    expected: dict[int, int] = {}
    for changes in steps:
        state = State(storage, description)
        keyed = KeyedState(state, "m", [pa.int64(), pa.int64()], Merging(strategy, 3))
        names = pa.array(list(changes), pa.int64())
        keys = hash_columns([names], len(names))
        alive = np.array([v is not None for v in changes.values()], bool)
        values = pa.array([v or 0 for v in changes.values()], pa.int64())
        keyed.put(keys, [names, values], alive)
        for key, value in changes.items():
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = value
        assert contents(keyed) == expected
        keyed.save()
        assert contents(keyed) == expected
        description = state.describe()


def test_two_keys_that_share_one_lane_stay_apart():
    state = State(MemoryStorage())
    keyed = KeyedState(state, "m", [pa.int64()], Merging())
    high = np.array([5, 5, 5], np.uint64)
    keys = Keys(high, np.array([1, 2, 3], np.uint64))
    keyed.put(keys, [pa.array([10, 20, 30])])
    found, (values,) = keyed.get(Keys(high, np.array([3, 9, 1], np.uint64)))
    assert found.tolist() == [True, False, True]
    assert values.to_pylist() == [30, None, 10]
    code, first = codes(Keys(np.array([5, 5, 5], np.uint64), np.array([1, 2, 1], np.uint64)))
    assert code.tolist() == [0, 1, 0]
    assert first.tolist() == [0, 1]


def test_what_was_removed_stays_away_when_younger_pieces_are_merged():
    """A tombstone is needed as long as an older piece has what it removes."""
    keyed = KeyedState(State(MemoryStorage()), "m", [pa.int64()], Merging("never"))
    keys = hash_columns([pa.array([1, 2, 3])], 3)
    some = np.array([0, 1]), np.array([0]), np.array([2])
    for rows, alive in zip(some, (True, False, True), strict=True):
        values = [pa.array(rows)]
        keyed.put(keys.take(rows), values, np.full(len(rows), alive))
    keyed.rewrite(keyed.pieces[1:], 0)
    assert keyed.get(keys)[0].tolist() == [False, True, True]
    assert len(keyed) == 4
    keyed.rewrite(keyed.pieces, 0)
    assert keyed.get(keys)[0].tolist() == [False, True, True]
    assert len(keyed) == 2

    rows = NumberedRows(State(MemoryStorage()), "m", [], Merging("never"))
    rows.put(np.array([1, 2]), np.array([9, 9]), [])
    rows.remove(np.array([1]))
    rows.put(np.array([3]), np.array([9]), [])
    rows.rewrite(rows.pieces[1:], 0)
    assert rows.find(np.array([1, 2, 3])).found.tolist() == [False, True, True]
    rows.rewrite(rows.pieces, 0)
    assert rows.find(np.array([1, 2, 3])).found.tolist() == [False, True, True]
    assert len(rows) == 2


def test_hashes_are_part_of_the_checkpoint_format():
    """These numbers may never change: state on disk is addressed by them."""
    columns = [
        pa.array([1, None, -7], pa.int32()),
        pa.array(["ATHENS", "", None]),
        pa.array([0.0, -0.0, 2.5]),
    ]
    keys = hash_columns(columns, 3)
    assert [hex(h) for h in keys.high.tolist()] == [
        "0x665ef4f50a5b3ac4",
        "0x39c66c2fa94451d6",
        "0x985cf222bada2021",
    ]
    long = hash_columns([pa.array(["x" * 1000])], 1)
    short = hash_columns([pa.array(["x" * 10])], 1)
    again = hash_columns([pa.array(["x" * 10])], 1)
    assert short.high[0] == again.high[0] != long.high[0]


def test_equal_values_hash_alike_whatever_their_width_and_offset():
    wide = pa.array([3, 4, 5], pa.int64())
    narrow = pa.array([9, 3, 4, 5], pa.int16()).slice(1)
    assert (hash_columns([wide], 3).low == hash_columns([narrow], 3).low).all()
    text = pa.array(["skip", "a", "bc", "a"]).slice(1)
    keys = hash_columns([text], 3)
    assert keys.high[0] == keys.high[2] != keys.high[1]


def test_segments_hold_many_runs_and_are_mapped(tmp_path):
    storage = SegmentStorage(str(tmp_path), "0-0")
    tables = [pa.table({"x": list(range(i))}) for i in (1, 1000, 3)]
    places = [storage.write(t) for t in tables]
    assert storage.read(places[1]).equals(tables[1])
    storage.close()
    assert len(list(tmp_path.iterdir())) == 1
    for place, table in zip(places, tables, strict=True):
        assert read_segment(str(tmp_path), place).equals(table)
        assert place["offset"] % 64 == 0


def test_a_damaged_segment_is_named(tmp_path):
    storage = SegmentStorage(str(tmp_path), "1-0")
    place = storage.write(pa.table({"x": list(range(100))}))
    storage.close()
    path = tmp_path / place["file"]
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(StateError, match=r"must have at least .* bytes"):
        read_segment(str(tmp_path), place)
    with pytest.raises(StateError, match="must be readable"):
        read_segment(str(tmp_path), {**place, "file": "missing.seg"})


def test_the_newest_manifest_counts_and_garbage_is_swept(tmp_path):
    checkpoint = Checkpoint(str(tmp_path / "c"), retain=1)
    assert checkpoint.open() == []
    storage = SegmentStorage(checkpoint.segments, "0-0")
    place = storage.write(pa.table({"x": [1]}))
    storage.close()
    garbage = tmp_path / "c" / "segments" / "crashed.seg"
    garbage.write_bytes(b"half")
    for batch in range(4):
        result = {"query": "q", "place": place, "rows": 1, "mode": "stream"}
        checkpoint.commit(Manifest(batch=batch, shards=1, states=[{}], results=[result]))
    latest = checkpoint.latest()
    assert latest is not None
    assert latest.batch == 3
    assert checkpoint.sweep(latest.files(), 3) == 1
    assert not garbage.exists()
    assert (tmp_path / "c" / "trash" / "3" / "crashed.seg").read_bytes() == b"half"
    assert checkpoint.read(0) is None
    assert checkpoint.read(2) is not None


def test_a_manifest_needs_every_file_that_it_names_up_to_its_last_run():
    def place(name, offset, length):
        return {"file": name, "offset": offset, "length": length, "crc": 0}

    runs = [{"place": place("state", 640, 60)}, {"place": place("state", 0, 600)}]
    manifest = Manifest(
        states=[{}, {"a": {"numbers": {}, "runs": {"live": runs}}}],
        results=[{"query": "q", "rows": 1, "place": place("result", 64, 8)}],
        rejects=[{"stream": "s", "why": "late", "rows": 1, "place": place("late", 0, 9)}],
        progress={"s": {"closed": [{"place": place("closed", 0, 10)}]}},
        catalog=place("catalog", 0, 11) | {"digest": ""},
    )
    sizes = {"state": 700, "result": 72, "late": 9, "closed": 10, "catalog": 11}
    assert manifest.sizes() == sizes
    assert manifest.files() == set(sizes)


def test_a_checkpoint_serves_one_process(tmp_path):
    first, second = Checkpoint(str(tmp_path)), Checkpoint(str(tmp_path))
    first.lock()
    with pytest.raises(StateError, match="one process at a time"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


@pytest.mark.parametrize("strategy", ["greedy", "maxfanin", "always"])
def test_merging_keeps_the_number_of_runs_small(strategy):
    merging, sizes = Merging(strategy, 4), []
    for _ in range(1000):
        sizes.append(10)
        chosen = merging.choose(sizes)
        if chosen:
            first, last = chosen
            sizes[first:last] = [sum(sizes[first:last])]
    assert sum(sizes) == 10_000
    assert len(sizes) <= 40
