"""Every golden file under every hostile configuration, and against the oracle."""

from __future__ import annotations

import pytest

from tests.configs import CONFIGS
from tests.golden_runner import FILES, oracle, read, run


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_files_say_what_the_oracle_says(path):
    golden = read(path)
    assert {q.name: q.expected for q in golden.queries} == oracle(golden)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name.replace(" ", "-"))
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_golden(path, config):
    golden = read(path)
    found = run(golden, config)
    for query in golden.queries:
        assert found[query.name] == query.expected, query.name
