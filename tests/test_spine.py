"""The spine: what is true of every kind of state, whatever its order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.model import to_numpy
from penstock.runs.merging import Merging
from penstock.runs.spine import Piece, Spine, chosen_rows, some_of
from penstock.runs.state import MemoryStorage, State


class Numbers(Spine[Piece]):
    """Numbers in order; those below ``until`` are dead."""

    kind = Piece

    def _alive(self, piece, until):
        return piece.numbers("n") >= until

    def _order(self, table, rows, oldest):
        return chosen_rows(
            rows, np.argsort(some_of(to_numpy(table.column("n")), rows), kind="stable")
        )

    def _stats(self, table):
        return {"rows": table.num_rows}


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


def values(spine: Numbers) -> list[list[int]]:
    return [piece.numbers("n").tolist() for piece in spine.pieces]


def test_a_merge_sorts_leaves_the_dead_out_and_stands_where_the_first_stood() -> None:
    spine = Numbers(State(MemoryStorage()), "x", Merging("never"))
    for some in ((1, 5), (2, 9), (3, 4), (7,)):
        spine.add(numbers(*some))
    spine.rewrite(spine.pieces[1:3], 3)
    assert values(spine) == [[1, 5], [3, 4, 9], [7]]
    assert spine.pieces[1].stats == {"rows": 3}
    spine.rewrite(spine.pieces[1:2], 100)
    assert values(spine) == [[1, 5], [7]]


def test_what_is_merged_at_once_is_never_written_and_saving_twice_writes_nothing() -> None:
    storage = MemoryStorage()
    state = State(storage)
    spine = Numbers(state, "x", Merging("always"))
    for some in ((4, 6), (5,), (1,)):
        spine.add(numbers(*some))
    spine.merge()
    spine.save()
    spine.save()
    assert len(storage.tables) == 1
    assert [len(run) for run in state.runs("x")] == [4]


def test_skipped_rows_stay_skipped_when_the_state_is_opened_again() -> None:
    storage = MemoryStorage()
    state = State(storage)
    spine = Numbers(state, "x", Merging("never"))
    spine.add(numbers(1, 2, 3))
    spine.write(Piece({"rows": 2}, numbers(4, 5)))
    spine.skip(spine.pieces[0], 1)
    spine.skip(spine.pieces[1], 1)
    spine.save()
    again = Numbers(State(storage, state.describe()), "x", Merging("never"))
    assert values(again) == [[2, 3], [5]]
    again.skip(again.pieces[0], 2)
    assert values(again) == [[5]]
    again.save()


def test_a_bounded_merge_leaves_large_pieces_alone() -> None:
    spine = Numbers(State(MemoryStorage()), "x", Merging("always", most=100))
    spine.bounded = True
    for some in (range(50), (1,), (2,)):
        spine.add(numbers(*some))
    spine.merge()
    assert values(spine) == [list(range(50)), [1, 2]]
