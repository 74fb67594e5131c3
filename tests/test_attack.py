"""Every kind of file of a checkpoint and its sinks, damaged in every way: exact, or refused.

All cases are judged by opening checkpoint and sinks; of those that are accepted there, a part is
run to its end.  `make attack` runs all of them.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.attack import DAMAGES, Attack, Case

RUNS = 10
"""So many of the accepted cases are run on Spark."""


@pytest.fixture(scope="module")
def attack(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Attack:
    return Attack(spark, tmp_path_factory.mktemp("attack"))


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_damage_is_refused_by_name_or_does_no_harm(attack: Attack) -> None:
    todo = attack.cases()
    assert {case.damage for case in todo} == set(DAMAGES)
    assert len({case.kind for case in todo}) > 30
    accepted: list[Case] = []
    refused = 0
    for case in todo:
        if attack.refusal(case, attack.damaged(case)):
            refused += 1
        else:
            accepted.append(case)
    assert refused > len(accepted) / 2
    chosen = sorted(accepted, key=lambda case: hashlib.sha256(str(case).encode()).digest())
    for case in chosen[:RUNS]:
        attack.run(case, attack.damaged(case))
