"""Aggregates beyond sums and extremes against the oracle at every instant, under hostile cuts."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DataError
from penstock.expr import text_sizes
from penstock.expr.nodes import AggregateCall, Column, Expr, Literal
from penstock.kernels import exact, moments
from penstock.kernels.selecting import kth_smallest
from penstock.operators.aggregate import AggregateSpec
from penstock.reference.aggregates import aggregate
from penstock.runs import listed, ranked
from tests.examples import examples
from tests.slices import STRATEGIES, Row, Script, bag, check, crowd, run, scripts
from tests.test_operators_aggregate import KEY, REAL, TEXT, TYPES, WHOLE, strange, values

DOUBLE, LONG = pa.float64(), pa.int64()
HALF = (Literal(0.5, DOUBLE),)


def call(name: str, arg: Expr, *more: Expr, distinct: bool = False) -> AggregateCall:
    kinds = {"count_distinct": LONG, "min_by": more[0].type if more else LONG}
    kinds |= {"max_by": kinds["min_by"], "string_agg": pa.string()}
    same = name in ("mode", "min", "max") or name.startswith("bit")
    kind = arg.type if same else kinds.get(name, DOUBLE)
    if name == "sum" and pa.types.is_integer(arg.type):
        kind = LONG
    return AggregateCall(name, arg, kind, more, distinct)


BITS = tuple(call(name, WHOLE) for name in ("bit_and", "bit_or", "bit_xor"))
PICKED = tuple(
    call(name, by, value)
    for name in ("min_by", "max_by")
    for by, value in ((WHOLE, TEXT), (TEXT, REAL), (REAL, WHOLE), (WHOLE, WHOLE))
)
MODES = tuple(call("mode", arg) for arg in (WHOLE, REAL, TEXT))
ONCE = (
    *(call(name, WHOLE, distinct=True) for name in ("sum", "avg", "bit_xor")),
    call("sum", REAL, distinct=True),
    call("count_distinct", WHOLE, TEXT),
    call("count_distinct", WHOLE),
    call("sum", WHOLE),
)
TEXTS = (
    call("string_agg", TEXT, Literal(", ", pa.string())),
    call("string_agg", TEXT, Literal("", pa.string())),
    call("string_agg", TEXT, Literal("-", pa.string()), distinct=True),
)
RANKED = tuple(
    call("percentile", arg, Literal(share, DOUBLE), distinct=distinct)
    for arg, share, distinct in (
        (REAL, 0.5, False),
        (REAL, 0.31, False),
        (WHOLE, 1.0, False),
        (WHOLE, 0.5, True),
        (REAL, 0.0, True),
    )
)
INEXACT = (
    *(call(name, REAL, WHOLE) for name in ("covar_pop", "covar_samp", "corr")),
    *(call(name, WHOLE, REAL, distinct=True) for name in ("covar_samp", "corr")),
    *(call(name, arg) for name in ("skewness", "kurtosis") for arg in (REAL, WHOLE)),
    call("kurtosis", WHOLE, distinct=True),
    call("stddev_samp", REAL, distinct=True),
)


def expected(script: Script, keys: tuple, wanted: tuple[AggregateCall, ...], time: int) -> list:
    groups: dict[tuple, list] = defaultdict(list)
    for row in script.snapshot(0, time):
        groups[tuple(row[k.index] for k in keys)].append(row)
    if not keys and not groups and any(script.snapshot(0, t) for t in range(min(time, 60))):
        groups[()] = []
    return [(*key, *(aggregate(c, rows) for c in wanted)) for key, rows in groups.items()]


def verify(script: Script, keys: tuple, wanted: tuple[AggregateCall, ...], panes: bool) -> None:
    check(
        lambda: AggregateSpec(TYPES, keys, wanted, panes).build(),
        TYPES,
        script,
        lambda time: expected(script, keys, wanted, time),
    )


@settings(deadline=None, max_examples=examples(60))
@given(scripts(values), st.sampled_from([(KEY,), ()]), st.booleans())
@pytest.mark.parametrize(
    "wanted",
    [BITS, PICKED, MODES, ONCE, TEXTS, RANKED],
    ids=["bits", "picked", "modes", "once", "texts", "ranked"],
)
def test_like_the_oracle(
    wanted: tuple[AggregateCall, ...], script: Script, keys: tuple, panes: bool
) -> None:
    verify(script, keys, wanted, panes)


@settings(deadline=None, max_examples=examples(60))
@given(scripts(strange), st.booleans())
def test_strange_numbers(script: Script, panes: bool) -> None:
    wanted = (*BITS, call("mode", REAL), call("max_by", REAL, WHOLE), call("min_by", WHOLE, REAL))
    verify(script, (KEY,), (*wanted, RANKED[0], RANKED[2]), panes)


def near(got: Any, want: Any) -> bool:
    if not isinstance(got, float) or not isinstance(want, float):
        return bool(got == want) or (got == "NaN" and math.isnan(want))  # as bags write it
    return math.isclose(got, want, rel_tol=1e-14, abs_tol=1e-13)


@settings(deadline=None, max_examples=examples(40))
@given(st.one_of(scripts(values), scripts(strange)), st.booleans())
def test_moments_are_close_to_exact(script: Script, panes: bool) -> None:
    listener = run(lambda: AggregateSpec(TYPES, (KEY,), INEXACT, panes).build(), TYPES, script)
    for time in range(40):
        answer = {row[0]: row[1:] for row in listener.snapshot(time)}
        right = {row[0]: row[1:] for row in expected(script, (KEY,), INEXACT, time)}
        assert answer.keys() == right.keys()
        for key, row in answer.items():
            for one, got, want in zip(INEXACT, row, right[key], strict=True):
                assert near(got, want), (one, time, key, got, want)


@settings(deadline=None, max_examples=examples(30))
@given(scripts(values), st.integers(0, 100))
def test_the_same_bits_however_it_is_cut(script: Script, seed: int) -> None:
    wanted = (*INEXACT, *RANKED, *PICKED, *TEXTS)
    answers = []
    for panes, chosen, merging in ((False, 1, 0), (True, seed, 1), (False, seed, 2), (True, 2, 3)):
        script.seed = chosen
        some = wanted if not panes else INEXACT[:3] + INEXACT[5:9] + PICKED
        make = lambda some=some, panes=panes: AggregateSpec(TYPES, (KEY,), some, panes).build()  # noqa: E731
        answers.append((some, run(make, TYPES, script, STRATEGIES[merging])))
    for time in range(40):
        found: dict[AggregateCall, set] = defaultdict(set)
        for some, answer in answers:
            for at, one in enumerate(some):
                column = [(row[0], row[1 + at]) for row in answer.snapshot(time)]
                hexed = [(k, v.hex() if isinstance(v, float) else v) for k, v in column]
                found[one].add(frozenset(hexed))
        assert all(len(answers) == 1 for answers in found.values())


@pytest.mark.parametrize("seed", range(4))
def test_crowds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large groups, whose values are looked for by halving, and long lists in small pieces."""
    monkeypatch.setattr(ranked, "_READ_ALL", -(10**6))
    monkeypatch.setattr(listed, "_MOST", 50)
    script = crowd(
        lambda c: (c.choice("ab"), c.randrange(40), c.random(), f"{c.randrange(60):02}"), 1, seed
    )
    wanted = (*RANKED, *MODES, *TEXTS, *ONCE, *PICKED)
    verify(script, (KEY,), wanted, False)


@pytest.mark.parametrize("heavy", [1, 2**31])
def test_the_kth_smallest(heavy: int) -> None:
    chance = np.random.default_rng(heavy)
    for _ in range(30):
        copies: dict[int, int] = defaultdict(int)
        rank, weight, after, k, right = [], [], [], [], []
        for at in range(60):
            value = int(chance.integers(0, 12))
            change = int(chance.integers(-copies[value], 4)) * heavy
            change = max(change, -copies[value])
            copies[value] += change
            rank.append(value)
            weight.append(change)
            total = sum(copies.values())
            if total:
                place = int(chance.integers(0, total))
                left = place
                for found in sorted(copies):
                    if left < copies[found]:
                        break
                    left -= copies[found]
                after.append(at + 1)
                k.append(place)
                right.append(found)
        given_ = (np.array(x, np.int64) for x in (rank, weight, after, k))
        assert kth_smallest(*given_).tolist() == right


def test_powers_and_products_are_exact() -> None:
    chance = np.random.default_rng(1)
    some = chance.normal(size=200) * 10.0 ** chance.integers(-60, 60, 200)
    other = chance.normal(size=200)
    for split, right in (
        (moments.split_cubes(some), some.astype(object) ** 3),
        (moments.split_fourths(some), some.astype(object) ** 4),
        (moments.split_products(some, other), some.astype(object) * other.astype(object)),
    ):
        rounded = exact.to_double(split, len(some))
        assert np.allclose(rounded, right.astype(float), rtol=1e-15, atol=0)


def test_correlation_of_numbers_on_a_line_is_one() -> None:
    """However far the line is from zero: nothing cancels out."""
    rows = [(None, i, 1e9 + i / 7, "") for i in range(50)]
    script = Script([[_row(values) for values in rows]])
    wanted = (call("corr", REAL, WHOLE), call("skewness", WHOLE))
    listener = run(lambda: AggregateSpec(TYPES, (), wanted, False).build(), TYPES, script)
    ((corr, skewness),) = listener.snapshot(1)
    assert math.isclose(corr, 1.0, rel_tol=1e-12)
    assert skewness == 0.0


def test_a_list_of_texts_that_is_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_sizes, "LONGEST_TEXT", 20)
    script = Script([[_row((None, 1, 1.0, "x" * 12)), _row((None, 1, 1.0, "y" * 12))]])
    make = lambda: AggregateSpec(TYPES, (), TEXTS[:1], False).build()  # noqa: E731
    with pytest.raises(DataError, match="at most 20 bytes"):
        run(make, TYPES, script)


def _row(values: tuple) -> Any:
    return Row(values, 0, 9)


def test_modes_of_every_type() -> None:
    for kind, items in ((pa.bool_(), [True, False]), (pa.float32(), [1.5, -2.5])):
        arg = Column(0, kind)
        script = Script([[_row((items[0],)), _row((items[0],)), _row((items[1],))]])
        wanted = (call("mode", arg),)
        found = run(
            lambda wanted=wanted, kind=kind: AggregateSpec((kind,), (), wanted, False).build(),
            (kind,),
            script,
        )
        assert found.snapshot(1) == bag([(items[0],)])
