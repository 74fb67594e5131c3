"""Random plans against the oracle, the first few hundred; `python -m tests.random_plans` runs more.

Every case that ever failed is run too.
"""

from __future__ import annotations

import hashlib
from dataclasses import astuple

import pytest

from penstock.algebra import JOIN_KINDS, NODES, GroupTop, Over, walk
from penstock.kernels import sorting
from penstock.operators import base
from penstock.runs import merging
from tests.random_plans import (
    GENERATORS,
    LIFETIMES,
    NEWEST,
    Coverage,
    case_of,
    failed_seeds,
    is_telling,
    plans_of,
    replayed,
    run,
    show,
    truths_of,
)

SEEDS = 450
"""Seeds of `make test`; about two in three are telling."""

QUICK_SEEDS = 45
"""Those of `make quick`."""

DIGESTS = {1: "a804500a2be668cd", 2: "cdac794553925c01", 3: "9be18dea00e65a66"}
"""Of the first cases of each version of the generator, which must never change."""


PORTIONS = [
    pytest.param(
        NEWEST, range(first, first + 15), marks=() if first < QUICK_SEEDS else pytest.mark.long
    )
    for first in range(0, SEEDS, 15)
]
ONCE_FAILED = [(version, range(seed, seed + 1)) for version, seed in failed_seeds()]


@pytest.mark.parametrize(("version", "seeds"), PORTIONS + ONCE_FAILED)
def test_engine_and_oracle_agree(version: int, seeds: range) -> None:
    for seed in seeds:
        case = case_of(seed, version)
        plans = plans_of(case)
        truths = truths_of(case, plans)
        if is_telling(case, truths) or len(seeds) == 1:
            try:
                run(case, plans, truths)
            except Exception as error:
                error.add_note(f"{show(case)}\nto make it smaller: python -m tests.random_plans "
                               f"--seed {seed} --version {version}")  # fmt: skip
                raise


@pytest.mark.long
def test_what_large_batches_do_is_right_with_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts stay apart, numbers are ordered by counting, runs are merged: from the first row on."""
    monkeypatch.setattr(base, "_LARGE", 1)
    monkeypatch.setattr(sorting, "_FEW", 0)
    monkeypatch.setattr(merging, "_MANY", 3)
    test_engine_and_oracle_agree(NEWEST, range(1000, 1040))


def test_everything_occurs() -> None:
    """All operators, windows, join classes and aggregates stand in the plans of `make test`."""
    coverage = Coverage()
    nodes: set[type] = set()
    for seed in range(SEEDS):
        case = case_of(seed)
        plans = plans_of(case)
        coverage.add(case, plans, {})
        nodes |= {type(node) for plan in plans.values() for node in walk(plan)}
    # Over has random tests of its own, in test_over; GroupTop is what a rule makes
    assert nodes == set(NODES) - {Over, GroupTop}
    for kind in JOIN_KINDS:
        for place in ("keys", "band", "anywhere"):
            assert f"{kind} join by {place}" in coverage.words
    for place in ("overlap", "near", "boxes", "edit", "nothing"):
        assert sum(f" join by {place}" in word for word in coverage.words) >= 2, place
    for kind in ("inner", "left"):
        assert {f"asof {kind} {sign}" for sign in ("ge", "gt", "le", "lt")} <= set(coverage.words)
    for name in ("count", "count_distinct", "sum", "avg", "min", "max", "var_samp", "var_pop",
                 "stddev_samp", "stddev_pop", "of all"):  # fmt: skip
        assert f"aggregate {name}" in coverage.words
    for name in ("rows", "range", "range+slide", "rows+rows_slide", "rows+range", "now", "fixed",
                 "session", "session+partition_by", "rows+partition_by", "after", "before",
                 "after+before", "unbounded", "range+origin", "hop+slide+bounds",
                 "hop+slide+origin+bounds", "hop+slide+offset+bounds", "session+bounds",
                 "session+partition_by+bounds", "now+bounds"):  # fmt: skip
        assert f"window {name}" in coverage.words
    for name in ("row_number", "rank", "dense_rank", "ntile", "lag", "lead", "sum", "max"):
        assert f"rank {name}" in coverage.words
    for kind in ("istream", "dstream", "rstream"):
        assert f"{kind} in a window" in coverage.words
        assert f"{kind} at the top" in coverage.words
    assert {"except", "except all", "intersect", "intersect all"} <= set(coverage.words)
    assert {"join of three or more", "table", "window over a derived stream"} <= set(coverage.words)
    assert set(coverage.streams) == {2, 3, 4}
    assert max(coverage.depths) >= 6


@pytest.mark.parametrize("version", GENERATORS)
def test_a_generator_never_changes(version: int) -> None:
    text = "".join(repr(astuple(case_of(seed, version))) for seed in range(40))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGESTS[version]


def test_every_method_of_keeping_lifetimes_is_run() -> None:
    assert LIFETIMES == ("direct", "negative")


def test_a_log_in_which_a_row_goes_before_it_came_is_wrong() -> None:
    assert replayed([((1, 1), 3, 0), ((1, -1), 5, 0)]) == [((1,), 3, 5)]
    with pytest.raises(AssertionError, match="goes before it came"):
        replayed([((1, -1), 3, 0), ((1, 1), 5, 0)])
