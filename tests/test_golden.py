"""Every golden file under every hostile configuration, and against the oracle."""

from __future__ import annotations

import pytest

from tests.configs import CONFIGS
from tests.golden_runner import FILES, known, oracle, run

QUICK = ("four shards, one row per batch", "negative tuples")
"""The configurations of `make quick`; `make test` has all of them."""


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_files_say_what_the_oracle_says(path):
    golden = known(path)
    assert {q.name: q.expected for q in golden.queries} == oracle(golden)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(
            config,
            id=config.name.replace(" ", "-"),
            marks=() if config.name in QUICK else pytest.mark.long,
        )
        for config in CONFIGS
    ],
)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_golden(path, config):
    golden = known(path)
    found = run(golden, config)
    for query in golden.queries:
        assert found[query.name] == query.expected, query.name
