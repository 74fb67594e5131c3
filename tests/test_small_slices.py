"""Many small pushes are packed as one, and few rows of a stream need no task of their own."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from penstock.sources.readers.base import REJECTED, Descriptor, Slice
from penstock.spark.descriptor_source import FEW_ROWS, folded
from penstock.spark.tasks import _SMALL_ROWS, Origin, Part, _together


def described(stream: str, rows: int, partition: str = "") -> Descriptor:
    return Descriptor(stream, f"{stream}.arrow", 0, rows, 0)._replace(partition=partition)


def test_few_rows_go_along_with_the_lightest_task() -> None:
    left, right = described("l", 900_000), described("r", 800_000)
    alarms = [described("alarms", 1) for _ in range(10)]
    assert folded([[left], [right], alarms]) == [[left], [right, *alarms]]
    assert folded([alarms, [left]]) == [[left, *alarms]]


def test_few_rows_of_many_streams_are_one_task() -> None:
    groups = [[described(f"s{n}", 5)] for n in range(7)]
    assert folded(groups) == [[group[0] for group in groups]]
    assert folded([]) == []


def test_a_stream_with_enough_rows_has_tasks_of_its_own() -> None:
    groups = [[described("a", FEW_ROWS + 1, str(n))] for n in range(3)]
    assert folded(groups) == groups
    unknown = [Descriptor("b", "b.csv", 0, -1, 0)]
    assert folded([*groups, unknown]) == [*groups, unknown]


def parts(dice: random.Random) -> Iterator[Part]:
    """Slices as a stream brings them: of some partitions, with promises and ends in between."""
    ordinal = 0
    for _ in range(dice.randint(0, 30)):
        partition = dice.choice(["", "", "0", "1"])
        rows = dice.choice([0, 1, 1, 2, 7, _SMALL_ROWS, _SMALL_ROWS + 1])
        origin = Origin(ordinal, partition, None if partition == "" else int(partition) + 1)
        if dice.random() < 0.1:
            origin = Origin(ordinal, partition, origin.number, floor=ordinal)
            rows = 0
        bad = dice.random() < 0.1
        rejected = pa.table(
            {"position": [0], "reason": ["bad"], "raw": ["x"]}, REJECTED
        ) if bad else REJECTED.empty_table()  # fmt: skip
        positions = np.arange(rows) + bad
        table = pa.table({"x": positions + ordinal})
        ordinal += rows + bad
        yield origin, Slice(table, positions, rejected), None


@pytest.mark.parametrize("seed", range(60))
def test_slices_that_are_put_together_bring_the_same(seed: int) -> None:
    """Rows, arrival numbers, rejected rows and promises, in the same order."""

    def told(slices: Iterator[Part]) -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = []
        for origin, part, wanted in slices:
            assert wanted is None
            numbers = (part.positions + origin.ordinal).tolist()
            values = part.table.column("x").to_pylist()
            found += [("row", origin.partition, n, v) for n, v in zip(numbers, values, strict=True)]
            if part.rejected.num_rows:
                found.append(("rejected", origin))
            if origin.floor is not None:
                found.append(("promise", origin))
        return found

    assert told(_together(parts(random.Random(seed)))) == told(parts(random.Random(seed)))


def test_many_pushes_of_one_row_are_one_slice() -> None:
    one = [
        (
            Origin(n),
            Slice(pa.table({"x": [n]}), np.zeros(1, np.int64), REJECTED.empty_table()),
            None,
        )
        for n in range(100)
    ]
    (found,) = _together(iter(one))
    assert found[1].table.column("x").to_pylist() == list(range(100))
    assert (found[1].positions + found[0].ordinal).tolist() == list(range(100))
