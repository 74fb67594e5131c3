"""Holder numbers: no two operators, shards or rows share one, up to the edges of what fits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, StateError
from penstock.operators.base import Context
from penstock.runs.holder_numbers import (
    BLOCK,
    MOST_OPERATORS,
    MOST_SHARDS,
    check_operators,
    check_shards,
    holder_numbers,
)
from penstock.runs.state import MemoryStorage, State
from penstock.settings import SETTINGS

EDGES = [0, 1, 2, 3, 6, 7, 100, 1023, 8190, 8191, 8192, 65_534, 65_535, 99_999, MOST_OPERATORS - 1]
SHARDS = [1, 2, 3, 4, 7, 8, 1000, 1023, 1024, 1025, 10_000, 65_535, MOST_SHARDS]


@pytest.mark.parametrize("shards", SHARDS)
def test_ranges_are_disjoint_and_fit(shards: int) -> None:
    some = sorted({s for s in (0, 1, 2, 1022, 1023, 1024, shards // 2, shards - 1) if s < shards})
    found = [holder_numbers(node, shard, shards) for node in EDGES for shard in some]
    ordered = sorted(found, key=lambda numbers: numbers.base)
    assert all(a.base + a.size <= b.base for a, b in pairwise(ordered))
    assert ordered[0].base == 0
    assert ordered[-1].base + ordered[-1].size < 2**63
    assert all(n.base % 2**BLOCK == 0 and n.size >= 2**BLOCK for n in found)


@given(
    st.sampled_from(SHARDS),
    st.lists(
        st.tuples(st.integers(0, MOST_OPERATORS - 1), st.floats(0, 0.999999)),
        min_size=2,
        max_size=8,
        unique=True,
    ),
)
def test_any_two_origins_are_apart(shards: int, origins: list[tuple[int, float]]) -> None:
    pairs = {(node, int(part * shards)) for node, part in origins}
    ordered = sorted(
        (holder_numbers(node, shard, shards) for node, shard in pairs), key=lambda n: n.base
    )
    assert all(a.base + a.size <= b.base for a, b in pairwise(ordered))


def given_numbers(node: int, shard: int, shards: int, used: int, count: int) -> list[int]:
    state = State(MemoryStorage())
    state.numbers["holders"] = used
    return Context(state, node, shard, shards).new_holders(count).tolist()


@pytest.mark.parametrize("origin", [(8190, 1023, 1024), (8191, 0, 1024), (99_999, 65_535, 65_536)])
def test_the_last_number_is_followed_by_no_other(origin: tuple[int, int, int]) -> None:
    node, shard, shards = origin
    size = holder_numbers(node, shard, shards).size
    last = given_numbers(node, shard, shards, size - 3, 2)
    others = {(node, (shard + 1) % shards), (node + 1, shard), (node + 1, 0), (node - 1, shard)}
    for other, where in others:
        assert not set(last) & set(given_numbers(other, where, shards, 0, 5))
    assert min(last) > 0
    with pytest.raises(StateError, match=r"must give at most [\d,]+ rows .* got [\d,]+; begin"):
        given_numbers(node, shard, shards, size - 3, 3)


def test_a_refused_number_is_not_used_up() -> None:
    state = State(MemoryStorage())
    state.numbers["holders"] = before = holder_numbers(0, 0, 1).size - 1
    with pytest.raises(StateError):
        Context(state).new_holders(1)
    assert state.numbers["holders"] == before


def test_numbers_are_enough_for_many_operators_and_shards() -> None:
    assert holder_numbers(99_999, 65_535, 65_536).size >= 2**26
    assert holder_numbers(500, 1023, 1024).size >= 2**40
    assert np.int64(holder_numbers(99_999, 65_535, 65_536).after(2**26 - 2, 1)) > 0


def test_what_does_not_fit_is_refused_with_a_sentence() -> None:
    check_operators(MOST_OPERATORS)
    with pytest.raises(ConfigError, match=r"at most 131,071 operators together, got 131,072; run"):
        check_operators(MOST_OPERATORS + 1)
    check_shards(MOST_SHARDS)
    with pytest.raises(ConfigError, match=r"shards must be at most 65,536, got 65,537; set"):
        check_shards(MOST_SHARDS + 1)


def test_the_setting_knows_the_same_bound() -> None:
    (shards,) = (setting for setting in SETTINGS if setting.name == "shards")
    assert shards.most == MOST_SHARDS
