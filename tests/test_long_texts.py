"""Functions that make texts longer: memory in proportion to the result, limits with a sentence."""

from __future__ import annotations

import json
import tracemalloc

import pyarrow as pa
import pytest

from penstock.errors import DataError
from penstock.expr.arrow import evaluate
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Column, Expr, Literal
from penstock.expr.types import DOUBLE, INT, STRING
from penstock.sinks.text import json_lines


def call(name: str, *arguments: Expr, rows: list[pa.Array]) -> pa.Array:
    return evaluate(resolve_call(name, list(arguments)), rows, len(rows[0]))


def text(value: str) -> Expr:
    return Literal(value, STRING)


def number(value: int) -> Expr:
    return Literal(value, INT)


@pytest.mark.parametrize("name", ["lpad", "rpad"])
def test_padding_needs_memory_for_its_result_only(name: str) -> None:
    column = pa.array(["b", None, "é" * 3])
    tracemalloc.start()
    try:
        padded = call(name, Column(0, STRING, "b"), number(60_000), text("xé"), rows=[column])
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 5_000_000
    assert padded.is_null().to_pylist() == [False, True, False]
    fill = ("xé" * 30_000)[:59_999]
    assert padded[0].as_py() == (fill + "b" if name == "lpad" else "b" + fill)
    assert len(padded[2].as_py()) == 60_000


LONG = "y" * 1_000_000


@pytest.mark.parametrize(
    ("name", "arguments", "column"),
    [
        ("repeat", [number(2_000_000_000)], "ab"),
        ("repeat", [number(70)], LONG),
        ("lpad", [number(2_000_000_000), text("x")], "ab"),
        ("rpad", [number(40_000_000), text("é")], "ab"),
        ("replace", [text("y"), text("z" * 100)], LONG),
        ("concat", [Column(0, STRING, "s")] * 70, LONG),
        ("concat_ws", [Column(0, STRING, "s")] * 70, LONG),
    ],
)
@pytest.mark.parametrize("rows", [1, 2])
def test_a_text_that_would_be_too_long_is_refused_with_a_sentence(
    name: str, arguments: list[Expr], column: str, rows: int
) -> None:
    values = pa.array([column, "short"][:rows])
    with pytest.raises(DataError, match=rf"{name}\(.* must give texts of at most 67,108,864 bytes"):
        call(name, Column(0, STRING, "s"), *arguments, rows=[values])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("repeat", [number(50)]),
        ("lpad", [number(50_000_000)]),
        ("replace", [text("y"), text("z" * 50)]),
        ("concat", [Column(0, STRING, "s")] * 50),
    ],
)
def test_a_column_that_would_be_too_long_is_refused_with_a_sentence(
    name: str, arguments: list[Expr]
) -> None:
    values = pa.array([LONG] * 50)
    with pytest.raises(DataError, match="must give less than 2 GiB of text for the rows"):
        call(name, Column(0, STRING, "s"), *arguments, rows=[values])


def test_constant_texts_on_many_rows() -> None:
    values = pa.array(["a"] * 3000)
    with pytest.raises(DataError, match="a constant text must give less than 2 GiB"):
        evaluate(text(LONG), [values], 3000)
    with pytest.raises(DataError, match="a constant text must give less than 2 GiB"):
        call("rpad", text(LONG), number(3), Column(0, STRING, "s"), rows=[values])
    with pytest.raises(DataError, match="bytes"):
        call("concat", text(LONG), Column(0, STRING, "s"), rows=[values])


def test_other_functions_of_texts_stay_right() -> None:
    values = pa.array(["ab", None, "", "éa"])
    column = Column(0, STRING, "s")
    assert call("repeat", column, number(2), rows=[values]).to_pylist() == [
        "abab",
        None,
        "",
        "éaéa",
    ]
    assert call("repeat", column, number(-1), rows=[values]).to_pylist() == ["", None, "", ""]
    padded = call("lpad", column, number(4), text("xyz"), rows=[values])
    assert padded.to_pylist() == ["xyab", None, "xyzx", "xyéa"]
    counts = pa.array([0, 1, None, 3], pa.int32())
    repeated = call("repeat", text("é"), Column(0, INT, "n"), rows=[counts])
    assert repeated.to_pylist() == ["", "é", None, "ééé"]
    assert call("replace", column, text("a"), text("aa"), rows=[values]).to_pylist() == [
        "aab", None, "", "éaa",
    ]  # fmt: skip


def test_lines_of_json_escape_whatever_a_row_holds() -> None:
    texts = ["", '"', "\\", "\0\x1f\x7f", "é😀\u2028", "a\nb", None]
    table = pa.table(
        {"s": texts, "x": pa.array([float("nan"), float("-inf"), 1e300, 0, 1, 2, None], DOUBLE)}
    )
    assert [json.loads(line)["s"] for line in json_lines(table).split(b"\n")[:-1]] == texts
