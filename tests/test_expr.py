"""Expressions: typing, and every function on Arrow columns against plain Python."""

from __future__ import annotations

import datetime as dt
import math
import re
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.asking.encoding import decode, encode
from penstock.errors import DataError, InternalError, QueryError
from penstock.expr.aggregates import is_aggregate, resolve_aggregate
from penstock.expr.arrow import cannot_fail, evaluate, evaluate_mask
from penstock.expr.functions import (
    FUNCTIONS,
    coerce,
    document,
    resolve_call,
    resolve_case,
    resolve_cast,
)
from penstock.expr.nodes import AggregateCall, Call, Case, Cast, Column, Expr, Literal
from penstock.expr.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    NULL,
    SMALLINT,
    STRING,
    TINYINT,
    TYPES,
    common_type,
    is_numeric,
    parse_type,
    type_name,
)
from penstock.model import TIMESTAMP
from tests.examples import examples
from tests.test_functions import PLAIN

NAN, INFINITY = math.nan, math.inf
HOUR, DAY = 3_600_000_000, 86_400_000_000
_OF_VALUE = {bool: BOOLEAN, int: INT, float: DOUBLE, str: STRING, type(None): NULL}


def lit(value: Any, type_: pa.DataType | None = None) -> Expr:
    return Literal(value, type_ or _OF_VALUE[type(value)])


def cols(*arrays: pa.Array) -> list[Expr]:
    return [Column(i, a.type, f"c{i}") for i, a in enumerate(arrays)]


def values(array: pa.Array) -> list[Any]:
    """Times as counts, NaN as the text NaN so that it equals itself."""
    if array.type == TIMESTAMP:
        array = array.cast(BIGINT)
    elif array.type == DATE:
        array = array.cast(INT)
    return ["NaN" if isinstance(v, float) and math.isnan(v) else v for v in array.to_pylist()]


def run(expr: Expr, *arrays: pa.Array) -> list[Any]:
    rows = len(arrays[0]) if arrays else 3
    result = evaluate(expr, arrays, rows)
    assert type(result) is type(pa.array([], expr.type))
    assert result.type == expr.type
    assert len(result) == rows
    return values(result)


def apply(name: str, *args: Any) -> list[Any]:
    """Call a function; an argument is an array (a column), an Expr, or a plain value."""
    arrays = [a for a in args if isinstance(a, pa.Array)]
    columns = iter(cols(*arrays))
    exprs = [
        next(columns) if isinstance(a, pa.Array) else lit(a) if not _is_expr(a) else a for a in args
    ]
    return run(resolve_call(name, exprs), *arrays)


def _is_expr(value: Any) -> bool:
    return isinstance(value, Column | Literal | Cast | Call | Case)


def one(name: str, *args: Any) -> Any:
    """Call a function on one row, once with columns and once with constants."""
    typed = [a if isinstance(a, pa.Array) else lit(a) for a in args]
    constant = run(resolve_call(name, typed))
    assert constant[0] == constant[2]
    arrays = [pa.array([e.value], e.type if e.type != NULL else INT) for e in typed]
    keep = FUNCTIONS[name].constants if name in FUNCTIONS else ()
    columns = [typed[i] if i in keep else c for i, c in enumerate(cols(*arrays))]
    varied = run(resolve_call(name, columns), *arrays) if arrays else constant
    assert varied[0] == constant[0]
    return constant[0]


# types


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BOOLEAN", BOOLEAN),
        ("tinyint", TINYINT),
        ("SmallInt", SMALLINT),
        ("INT", INT),
        ("INTEGER", INT),
        ("BIGINT", BIGINT),
        ("LONG", BIGINT),
        ("FLOAT", FLOAT),
        ("REAL", FLOAT),
        ("DOUBLE", DOUBLE),
        ("double  precision", DOUBLE),
        ("STRING", STRING),
        ("VARCHAR(20)", STRING),
        ("CHAR ( 3 )", STRING),
        ("TEXT", STRING),
        ("TIMESTAMP", TIMESTAMP),
        ("DATE", DATE),
        ("BINARY", BINARY),
        ("DECIMAL", pa.decimal128(10, 0)),
        ("dec ( 5 )", pa.decimal128(5, 0)),
        ("NUMERIC(38,38)", pa.decimal128(38, 38)),
    ],
)
def test_type_names(text: str, expected: pa.DataType) -> None:
    assert parse_type(text) == expected


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("DECIMAL(39, 2)", "must have 1 to 38 digits"),
        ("DEC(3, 4)", "of which 0 to p stand behind the point"),
        ("NUMERIC(1, 2, 3)", "write for instance NUMERIC(12, 2)"),
        ("DECIMAL()", "must have 1 to 38 digits"),
        ("NUMBER", "use DECIMAL"),
        ("BLOB", "use BINARY"),
        ("ARRAY", "ARRAY<STRING>"),
        ("TIMESTAMP_NTZ", "use TIMESTAMP"),
        ("INT(5)", "use INT"),
        ("VARCHAR(x)", "use VARCHAR"),
        ("DUBLE", "did you mean 'DOUBLE'"),
        ("", "known:"),
    ],
)
def test_other_types_are_refused_with_advice(text: str, hint: str) -> None:
    with pytest.raises(QueryError, match=re.escape(hint)):
        parse_type(text)


def test_type_names_are_read_back() -> None:
    for type_ in (*TYPES, pa.decimal128(38, 7), pa.decimal128(1, 0)):
        assert parse_type(type_name(type_)) == type_
        assert decode(encode(type_)) == type_
    assert type_name(NULL) == "NULL"
    assert not is_numeric(DATE)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (TINYINT, BIGINT, BIGINT),
        (INT, FLOAT, DOUBLE),
        (BIGINT, DOUBLE, DOUBLE),
        (FLOAT, FLOAT, FLOAT),
        (FLOAT, DOUBLE, DOUBLE),
        (DATE, TIMESTAMP, TIMESTAMP),
        (NULL, STRING, STRING),
        (NULL, NULL, NULL),
        (STRING, INT, None),
        (BOOLEAN, INT, None),
        (DATE, INT, None),
    ],
)
def test_common_type(a: pa.DataType, b: pa.DataType, expected: pa.DataType | None) -> None:
    assert common_type(a, b) == expected
    assert common_type(b, a) == expected


# arithmetic

INTEGERS = {TINYINT: 8, SMALLINT: 16, INT: 32, BIGINT: 64}
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def fits(value: int, type_: pa.DataType) -> bool:
    return -(2 ** (INTEGERS[type_] - 1)) <= value < 2 ** (INTEGERS[type_] - 1)


def integer(type_: pa.DataType) -> st.SearchStrategy[int]:
    bits = INTEGERS[type_] - 1
    return st.integers(-(2**bits), 2**bits - 1) | st.integers(-5, 5)


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


EXACT = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "div": lambda a, b: quotient(a, b) if b else None,
    "mod": lambda a, b: a - b * quotient(a, b) if b else None,
}


@given(st.data())
@settings(max_examples=examples(200), deadline=None)
def test_integer_arithmetic_is_exact_or_refused(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(EXACT)))
    left = data.draw(st.sampled_from(sorted(INTEGERS, key=str)))
    right = data.draw(st.sampled_from(sorted(INTEGERS, key=str)))
    a, b = data.draw(integer(left)), data.draw(integer(right))
    expected = EXACT[name](a, b)
    arrays = [pa.array([a], left), pa.array([b], right)]
    expr = resolve_call(name, cols(*arrays))
    assert expr.type == (BIGINT if name == "div" else common_type(left, right))
    if expected is not None and fits(expected, expr.type):
        assert run(expr, *arrays) == [expected]
    else:
        with pytest.raises(DataError, match=r"overflow|zero"):
            run(expr, *arrays)


@given(st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=5))
@settings(max_examples=examples(100), deadline=None)
def test_floating_arithmetic_is_that_of_python(pairs: list[tuple[float, float]]) -> None:
    a, b = pa.array([p[0] for p in pairs]), pa.array([p[1] for p in pairs])
    assert apply("add", a, b) == values(pa.array([x + y for x, y in pairs]))
    assert apply("multiply", a, b) == values(pa.array([x * y for x, y in pairs]))
    if all(y for _, y in pairs):
        assert apply("mod", a, b) == [math.fmod(x, y) for x, y in pairs]


def test_division_by_zero_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"a / b .* divide by zero; use NULLIF"):
        one("divide", 1, 0)
    with pytest.raises(DataError, match=r"a % b .* divide by zero; use NULLIF"):
        one("mod", 1.5, 0.0)
    with pytest.raises(DataError, match="wider type"):
        run(resolve_call("add", [lit(127, TINYINT), lit(1, TINYINT)]))
    assert apply("divide", pa.array([1, None, 7]), pa.array([2, 0, None])) == [0.5, None, None]
    assert apply("mod", pa.array([None, 7]), pa.array([0, 4])) == [None, 3]


def test_signs_and_extremes_of_integers() -> None:
    small = pa.array([-(2**63)])
    assert apply("mod", small, -1) == [0]
    for name in ("negate", "abs"):
        with pytest.raises(DataError, match="overflow"):
            apply(name, small)
    with pytest.raises(DataError, match="overflow"):
        apply("div", small, -1)
    assert one("sign", -3) == -1.0
    assert resolve_call("negate", [lit(5)]) == Literal(-5, INT)
    with pytest.raises(QueryError, match="must fit"):
        resolve_call("negate", [lit(-128, TINYINT)])


@given(FINITE | st.integers(-(10**7), 10**7).map(lambda n: n / 1000), st.integers(-6, 17))
@settings(max_examples=examples(300), deadline=None)
def test_round_is_half_away_from_zero_as_written(value: float, digits: int) -> None:
    scale = Fraction(10) ** digits
    whole = math.floor(abs(Fraction(repr(value))) * scale + Fraction(1, 2))
    expected = math.copysign(float(whole / scale), value)
    assert apply("round", pa.array([value]), digits) == [expected]


def test_round() -> None:
    assert one("round", 2.675, 2) == 2.68
    assert one("round", 2.5) == 3.0
    assert one("round", -2.5) == -3.0
    assert apply("round", pa.array([NAN, -INFINITY, None, 1e300]), 2) == [
        "NaN",
        -INFINITY,
        None,
        1e300,
    ]
    assert apply("round", pa.array([0.1, 5e-324]), 400) == [0.1, 5e-324]
    assert apply("round", pa.array([0.1, 1e300]), -400) == [0.0, 0.0]
    assert apply("round", pa.array([15, -15, 14, None]), -1) == [20, -20, 10, None]
    assert apply("round", pa.array([15]), 3) == [15]
    assert apply("round", pa.array([2**62]), -30) == [0]
    for digits in (-1, -19):
        with pytest.raises(DataError, match="overflow"):
            apply("round", pa.array([2**63 - 1]), digits)
    assert resolve_call("round", [lit(0.5, FLOAT)]).type == DOUBLE
    with pytest.raises(QueryError, match="constant"):
        resolve_call("round", cols(pa.array([1.0]), pa.array([1], INT)))


def test_floor_and_ceil_give_bigint() -> None:
    x = pa.array([1.5, -1.5, None, -0.0])
    assert apply("floor", x) == [1, -2, None, 0]
    assert apply("ceiling", x) == [2, -1, None, 0]
    assert apply("floor", pa.array([7], TINYINT)) == [7]
    with pytest.raises(DataError, match="floor"):
        apply("floor", pa.array([NAN]))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("sqrt", math.sqrt),
        ("exp", math.exp),
        ("ln", math.log),
        ("log10", math.log10),
        ("log2", math.log2),
        ("sin", math.sin),
        ("cos", math.cos),
        ("tan", math.tan),
        ("atan", math.atan),
        ("radians", math.radians),
        ("degrees", math.degrees),
    ],
)
def test_real_functions(name: str, function: Any) -> None:
    result = apply(name, pa.array([0.25, None, 3.0, 40.0]))
    assert result == [
        pytest.approx(function(0.25), rel=1e-14),
        None,
        pytest.approx(function(3.0), rel=1e-14),
        pytest.approx(function(40.0), rel=1e-14),
    ]
    assert apply(name, pa.array([1], INT)) == [pytest.approx(function(1.0))]
    assert apply(name, pa.array([NAN])) == ["NaN"]


def test_edges_of_real_functions() -> None:
    assert apply("ln", pa.array([0.0, -1.0, INFINITY])) == [None, None, INFINITY]
    assert apply("sqrt", pa.array([-1.0])) == ["NaN"]
    assert apply("asin", pa.array([1.0, 2.0])) == [pytest.approx(math.pi / 2), "NaN"]
    assert apply("acos", pa.array([1.0])) == [0.0]
    exponents = pa.array([10.0, NAN, INFINITY, 1.0])
    powers = apply("power", pa.array([2.0, 1.0, -1.0, None]), exponents)
    assert powers == [1024.0, "NaN", "NaN", None]
    assert one("atan2", 1, 1) == pytest.approx(math.pi / 4)
    assert apply("atan2", pa.array([-0.0]), -1.0) == [math.pi]
    assert resolve_call("pi", []) == Literal(math.pi, DOUBLE)
    assert resolve_call("E", []) == Literal(math.e, DOUBLE)


# comparison and logic

ORDER = {
    "eq": lambda c: c == 0,
    "ne": lambda c: c != 0,
    "lt": lambda c: c < 0,
    "le": lambda c: c <= 0,
    "gt": lambda c: c > 0,
    "ge": lambda c: c >= 0,
}


def compare(a: Any, b: Any) -> int:
    if isinstance(a, float) and (math.isnan(a) or math.isnan(b)):
        return math.isnan(a) - math.isnan(b)
    return (a > b) - (a < b)


VALUES = st.one_of(
    st.tuples(*[st.none() | st.floats(width=64)] * 2),
    st.tuples(*[st.none() | st.sampled_from([0.0, -0.0, NAN, INFINITY, 1.0])] * 2),
    st.tuples(*[st.none() | st.integers(-3, 3)] * 2),
    st.tuples(*[st.none() | st.text("aé語\0", max_size=3)] * 2),
    st.tuples(*[st.none() | st.booleans()] * 2),
)


@given(VALUES, st.sampled_from(sorted(ORDER)))
@settings(max_examples=examples(200), deadline=None)
def test_comparison(pair: tuple[Any, Any], name: str) -> None:
    a, b = pair
    type_ = next((_OF_VALUE[type(v)] for v in pair if v is not None), INT)
    arrays = [pa.array([v], type_) for v in pair]
    expected = None if a is None or b is None else ORDER[name](compare(a, b))
    assert apply(name, *arrays) == [expected]
    assert apply(name, arrays[0], lit(b, type_)) == [expected]
    same = (a is None and b is None) or (a is not None and b is not None and compare(a, b) == 0)
    assert apply("eq_null_safe", *arrays) == [same]
    assert apply("nullif", *arrays) == values(
        pa.array([None if same and a is not None else a], type_)
    )


def test_quoted_text_beside_a_time_is_a_time() -> None:
    t = pa.array([0, DAY], TIMESTAMP)
    assert apply("gt", t, "1970-01-01 12:00:00") == [False, True]
    assert apply("between", t, "1970-01-02", "1970-01-03") == [False, True]
    assert apply("eq", pa.array([0, 1], DATE), "1970-01-01") == [True, False]
    assert apply("lt", pa.array([0], DATE), t.slice(1)) == [True]
    assert apply("in", t, "1970-01-02", "1980-01-01") == [False, True]
    with pytest.raises(QueryError, match="text such as"):
        apply("gt", t, "yesterday")
    with pytest.raises(
        QueryError, match=r"a = b must get two values of one type .* TIMESTAMP, INT"
    ):
        apply("eq", t, 5)
    with pytest.raises(QueryError, match="STRING, INT"):
        apply("eq", pa.array(["1"]), 1)


def test_three_valued_logic() -> None:
    truth = [True, False, None]
    a = pa.array([x for x in truth for _ in truth])
    b = pa.array([y for _ in truth for y in truth])
    assert apply("and", a, b) == [True, False, None, False, False, False, None, False, None]
    assert apply("or", a, b) == [True, True, True, True, False, None, True, None, None]
    assert apply("not", pa.array(truth)) == [False, True, None]
    assert apply("and", pa.array(truth), None) == [None, False, None]
    with pytest.raises(QueryError, match=r"a BOOLEAN as argument 2, got BOOLEAN, INT"):
        apply("and", a, 1)


def test_the_right_side_is_evaluated_only_where_needed() -> None:
    x = pa.array([0, 5, None, 20])
    (column,) = cols(x)
    large = resolve_call("gt", [resolve_call("divide", [lit(10), column]), lit(1)])
    assert run(resolve_call("and", [resolve_call("ne", [column, lit(0)]), large]), x) == [
        False, True, None, False,
    ]  # fmt: skip
    assert run(resolve_call("or", [resolve_call("eq", [column, lit(0)]), large]), x) == [
        True, True, None, False,
    ]  # fmt: skip
    with pytest.raises(DataError):
        run(resolve_call("and", [large, resolve_call("ne", [column, lit(0)])]), x)
    first = resolve_call("nullif", [column, lit(0)])
    other = resolve_call("div", [lit(1), resolve_call("subtract", [column, lit(5)])])
    assert run(resolve_call("coalesce", [first, other, lit(7)]), x) == [0, 5, 7, 20]


def test_null_handling() -> None:
    x, y = pa.array([1, None, None]), pa.array([2.5, NAN, None])
    assert apply("coalesce", x, y, 9) == [1.0, "NaN", 9.0]
    assert apply("nvl", x, 0) == [1, 0, 0]
    assert apply("nvl2", x, "a", "b") == ["a", "b", "b"]
    assert apply("is_null", x) == [False, True, True]
    assert apply("is_not_null", x) == [True, False, False]
    assert apply("isnan", y) == [False, True, False]
    assert apply("nullif", y, NAN) == [2.5, None, None]
    assert apply("greatest", x, y) == [2.5, "NaN", None]
    assert apply("least", x, y) == [1.0, "NaN", None]
    assert apply("least", pa.array([NAN]), 1) == [1.0]
    assert apply("greatest", pa.array(["a", None]), pa.array(["b", "c"])) == ["b", "c"]
    with pytest.raises(QueryError, match="2 or more arguments"):
        apply("greatest", x)


def test_in() -> None:
    assert apply("in", pa.array([1, 2, None]), 1, 5) == [True, False, None]
    assert apply("in", pa.array([1, 2, None]), 1, None) == [True, None, None]
    assert apply("in", pa.array([0.0, -0.0, NAN, 1.0]), 0, NAN) == [True, True, True, False]
    assert apply("in", pa.array([1, 2, 3]), pa.array([1, 1, 1]), 3) == [True, False, True]
    assert apply("in", pa.array(["a", ""]), "") == [False, True]


# CASE


def test_case_evaluates_a_branch_only_where_it_applies() -> None:
    x = pa.array([0, 4, None, -2])
    (column,) = cols(x)
    branches = [
        (resolve_call("gt", [column, lit(0)]), resolve_call("div", [lit(8), column])),
        (resolve_call("is_null", [column]), lit(-1)),
    ]
    assert run(resolve_case(branches), x) == [None, 2, -1, None]
    assert run(resolve_case(branches, resolve_call("negate", [column])), x) == [0, 2, -1, 2]
    never = resolve_case(
        [(resolve_call("lt", [column, column]), resolve_call("div", [lit(1), lit(0)]))]
    )
    assert run(never, x) == [None] * 4


def test_case_typing() -> None:
    x = pa.array([True, False, None])
    (column,) = cols(x)
    assert run(resolve_case([(column, lit(1))], lit(2.5)), x) == [1.0, 2.5, 2.5]
    assert run(resolve_call("if", [column, lit("yes"), lit("no")]), x) == ["yes", "no", "no"]
    assert run(resolve_case([(lit(None), lit(1))], lit(2)), x) == [2, 2, 2]
    with pytest.raises(QueryError, match="one type, got INT, STRING"):
        resolve_case([(column, lit(1))], lit("x"))
    with pytest.raises(QueryError, match="must be BOOLEAN, got INT"):
        resolve_case([(lit(1), lit(1))])
    with pytest.raises(QueryError, match=r"if\(condition, a, b\)"):
        resolve_call("if", [column])


# text

TEXT = st.text("aAbé語ß😀 %_", max_size=6)


def substring(text: str, position: int, length: int) -> str:
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    return text[max(start, 0) : max(start + length, 0)] if length > 0 else ""


@given(
    st.lists(st.none() | TEXT, min_size=1, max_size=6), st.integers(-8, 8), st.integers(-2, 8), TEXT
)
@settings(max_examples=examples(80), deadline=None)
def test_text_functions(texts: list[str | None], n: int, length: int, part: str) -> None:
    s = pa.array(texts, STRING)

    def expect(name: str, function: Any, *args: Any) -> None:
        expected = [None if t is None else function(t) for t in texts]
        assert apply(name, s, *args) == expected
        offset = pa.array(["skip", *texts], STRING).slice(1)
        assert apply(name, offset, *args) == expected
        repeated = [pa.array([a] * len(texts), _OF_VALUE[type(a)]) for a in args]
        assert apply(name, s, *repeated) == expected

    expect("length", len)
    expect("upper", str.upper)
    expect("lower", str.lower)
    expect("reverse", lambda t: t[::-1])
    expect("trim", lambda t: t.strip(" "))
    expect("ltrim", lambda t: t.lstrip(" "))
    expect("rtrim", lambda t: t.rstrip(" "))
    expect("substring", lambda t: substring(t, n, 2**31), n)
    expect("substring", lambda t: substring(t, n, length), n, length)
    expect("left", lambda t: t[: max(length, 0)], length)
    expect("right", lambda t: t[-length:] if length > 0 else "", length)
    expect("contains", lambda t: part in t, part)
    expect("startswith", lambda t: t.startswith(part), part)
    expect("endswith", lambda t: t.endswith(part), part)
    expect("instr", lambda t: t.find(part) + 1, part)
    expect("replace", lambda t: t.replace(part, "<>") if part else t, part, "<>")
    expect("repeat", lambda t: t * max(length, 0), length)
    expect("concat", lambda t: t + part, part)
    most = max(length, 0)
    pad = part * 9
    expect("lpad", lambda t: (pad[: max(most - len(t), 0)] + t)[:most], length, part)
    expect("rpad", lambda t: (t + pad)[:most], length, part)


def test_text_details() -> None:
    s = pa.array(["a,b,,c", "", None])
    assert apply("split_part", s, ",", 2) == ["b", "", None]
    assert apply("split_part", s, ",", -1) == ["c", "", None]
    assert apply("split_part", s, ",", 9) == ["", "", None]
    assert apply("split_part", s, "", 1) == ["a,b,,c", "", None]
    with pytest.raises(DataError, match="n from 1"):
        apply("split_part", s, ",", 0)
    assert apply("concat", s, pa.array([1, 2, 3]), True) == ["a,b,,c1true", "2true", None]
    assert apply("concat_ws", "-", s, pa.array([1, None, 3])) == ["a,b,,c-1", "", "3"]
    assert apply("concat_ws", None, s) == [None] * 3
    assert apply("concat_ws", pa.array(["+", None])) == ["", None]
    assert apply("initcap", pa.array(["hELLO wORLD  x", "éa-b", None])) == [
        "Hello World  X",
        "Éa-b",
        None,
    ]
    assert apply("left", pa.array(["abc", "abc"]), pa.array([1, None], INT)) == ["a", None]
    assert apply("lpad", pa.array(["7"]), 3) == ["  7"]
    assert apply("substring", pa.array(["abc"]), None) == [None]
    with pytest.raises(QueryError, match=r"upper\(s\) must get a STRING as argument 1, got INT"):
        apply("upper", 5)


def like(text: str, pattern: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(like(text[i:], pattern[1:]) for i in range(len(text) + 1))
    if pattern[0] == "\\":
        return text[:1] == pattern[1] and like(text[1:], pattern[2:])
    return bool(text) and pattern[0] in ("_", text[0]) and like(text[1:], pattern[1:])


@given(
    st.lists(st.text("aBé%_\\\n.*", max_size=5), min_size=1, max_size=5),
    st.lists(
        st.sampled_from(["a", "B", "é", "%", "_", "\\%", "\\_", "\\\\", ".", "*", "\n"]), max_size=5
    ),
)
@settings(max_examples=examples(200), deadline=None)
def test_like(texts: list[str], pieces: list[str]) -> None:
    pattern = "".join(pieces)
    s = pa.array(texts)
    assert apply("like", s, pattern) == [like(t, pattern) for t in texts]
    assert apply("ilike", s, pattern) == [like(t.lower(), pattern.lower()) for t in texts]


def test_patterns_are_checked_when_the_query_is() -> None:
    s = pa.array(["abc"])
    with pytest.raises(QueryError, match="after a backslash"):
        apply("like", s, "a\\b")
    with pytest.raises(QueryError, match="after a backslash"):
        apply("like", s, "a\\")
    with pytest.raises(QueryError, match="RLIKE"):
        apply("rlike", s, "(")
    assert apply("rlike", s, "b.$") == [True]
    assert apply("like", s, None) == [None]
    with pytest.raises(QueryError, match="constant as argument 2"):
        apply("like", s, pa.array(["a"]))


# times

MOMENTS = [
    dt.datetime(1970, 1, 1),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    dt.datetime(2024, 2, 29, 13, 14, 15, 123_456),
    dt.datetime(1, 1, 1),
    dt.datetime(9999, 12, 31, 23, 59, 59),
]


@given(st.lists(st.datetimes() | st.sampled_from(MOMENTS), min_size=1, max_size=5))
@settings(max_examples=examples(100), deadline=None)
def test_calendar_fields(moments: list[dt.datetime]) -> None:
    t = pa.array(moments, TIMESTAMP)
    d = pa.array([m.date() for m in moments], DATE)
    fields: dict[str, Any] = {
        "year": lambda m: m.year,
        "quarter": lambda m: (m.month + 2) // 3,
        "month": lambda m: m.month,
        "day": lambda m: m.day,
        "dayofyear": lambda m: m.timetuple().tm_yday,
        "dayofweek": lambda m: m.isoweekday() % 7 + 1,
        "weekday": lambda m: m.weekday(),
        "weekofyear": lambda m: m.isocalendar().week,
    }
    for name, field in fields.items():
        assert apply(name, t) == [field(m) for m in moments]
        assert apply(name, d) == [field(m) for m in moments]
    for name in ("hour", "minute", "second"):
        assert apply(name, t) == [getattr(m, name) for m in moments]
        assert apply(name, d) == [0] * len(moments)
    epoch = dt.datetime(1970, 1, 1)
    micros = [(m - epoch) // dt.timedelta(microseconds=1) for m in moments]
    assert apply("unix_micros", t) == micros
    assert apply("unix_millis", t) == [m // 1000 for m in micros]
    assert apply("unix_timestamp", t) == [m // 1_000_000 for m in micros]
    assert apply("to_date", t) == values(d)
    text = evaluate(resolve_cast(cols(t)[0], STRING), [t], len(t))
    assert run(resolve_cast(cols(text)[0], TIMESTAMP), text) == micros
    assert [dt.datetime.fromisoformat(x) for x in text.to_pylist()] == moments


def test_date_trunc() -> None:
    t = pa.array([MOMENTS[2], MOMENTS[1], None], TIMESTAMP)

    def trunc(unit: str) -> list[Any]:
        (column,) = cols(t)
        return evaluate(resolve_call("date_trunc", [lit(unit), column]), [t], 3).to_pylist()

    assert trunc("YEAR") == [dt.datetime(2024, 1, 1), dt.datetime(1969, 1, 1), None]
    assert trunc("quarter")[1] == dt.datetime(1969, 10, 1)
    assert trunc("week") == [dt.datetime(2024, 2, 26), dt.datetime(1969, 12, 29), None]
    assert trunc("hour")[0] == dt.datetime(2024, 2, 29, 13)
    assert trunc("millisecond")[1] == dt.datetime(1969, 12, 31, 23, 59, 59, 999_000)
    with pytest.raises(QueryError, match="did you mean 'month'"):
        trunc("months")


def test_times_and_counts() -> None:
    t = pa.array([0, -1, None], TIMESTAMP)
    assert apply("time_add", t, pa.array([5, 5, 5])) == [5, 4, None]
    assert apply("time_add", pa.array([1], DATE), lit(-HOUR, BIGINT)) == [DAY - HOUR]
    assert apply("time_diff", t, pa.array([1, None, 1], TIMESTAMP)) == [-1, None, None]
    assert apply("timestamp_seconds", pa.array([-1, None])) == [-1_000_000, None]
    assert apply("timestamp_millis", pa.array([-1, None])) == [-1_000, None]
    assert apply("timestamp_micros", pa.array([7], INT)) == [7]
    assert apply("date_add", pa.array([0], DATE), 31) == [31]
    assert apply("date_sub", t, 1) == [-1, -2, None]
    assert apply("datediff", pa.array([0], DATE), pa.array([40], DATE)) == [-40]
    assert apply("last_day", pa.array([0, 59, 30, None], DATE)) == [30, 89, 30, None]
    assert apply("unix_date", t) == [0, -1, None]
    assert apply("date_from_unix_date", pa.array([5], INT)) == [5]
    with pytest.raises(DataError, match="range of TIMESTAMP"):
        apply("timestamp_seconds", pa.array([2**60]))
    with pytest.raises(QueryError, match="time_diff"):
        apply("subtract", t, t)


# conversions


def cast(array: pa.Array, target: pa.DataType) -> list[Any]:
    return run(resolve_cast(cols(array)[0], target), array)


def test_casts_of_numbers() -> None:
    assert cast(pa.array([1.9, -1.9, None]), INT) == [1, -1, None]
    assert cast(pa.array([2.0**63, -(2.0**63)]), BIGINT) == [2**63 - 1, -(2**63)]
    assert cast(pa.array([2**53 + 1]), DOUBLE) == [2.0**53]
    assert cast(pa.array([1e300, 0.1]), FLOAT) == [INFINITY, float(np.float32(0.1))]
    assert cast(pa.array([0.0, -0.0, NAN, None]), BOOLEAN) == [False, False, True, None]
    assert cast(pa.array([True, False, None]), DOUBLE) == [1.0, 0.0, None]
    assert cast(pa.array([0, 2]), BOOLEAN) == [False, True]
    for bad, target in (([128], TINYINT), ([NAN], BIGINT), ([2.0**31], INT), ([INFINITY], INT)):
        with pytest.raises(DataError, match=f"CAST to {type_name(target)} must get"):
            cast(pa.array(bad), target)


def test_casts_to_text() -> None:
    floats = [1.0, 0.001, 1e-4, 1e7, 123456.789, -0.0, 1e300, NAN, -INFINITY, None, 5e-324]
    assert cast(pa.array(floats), STRING) == [
        "1.0", "0.001", "1.0E-4", "1.0E7", "123456.789", "-0.0", "1.0E300", "NaN", "-Infinity",
        None, "5.0E-324",
    ]  # fmt: skip
    assert cast(pa.array([0.1, 16777216.0], FLOAT), STRING) == ["0.1", "1.6777216E7"]
    assert cast(pa.array([-5, None]), STRING) == ["-5", None]
    assert cast(pa.array([True, False]), STRING) == ["true", "false"]
    assert cast(pa.array([0, 1_500_000], TIMESTAMP), STRING) == [
        "1970-01-01 00:00:00", "1970-01-01 00:00:01.5",
    ]  # fmt: skip
    assert cast(pa.array([0], DATE), STRING) == ["1970-01-01"]


def test_casts_from_text() -> None:
    assert cast(pa.array([" 12 ", "+7", "-0", None]), BIGINT) == [12, 7, 0, None]
    assert cast(pa.array(["1.5", " -inf", "NaN", "1e400", ".5", "5.", None]), DOUBLE) == [
        1.5, -INFINITY, "NaN", INFINITY, 0.5, 5.0, None,
    ]  # fmt: skip
    assert cast(pa.array(["T", "no", " 1", None]), BOOLEAN) == [True, False, True, None]
    assert cast(pa.array(["2024-2-9", None]), DATE) == [19_762, None]
    zoned = pa.array(
        ["1970-01-01 01:00:00+01:00", "1970-01-01T00:00:00.5Z", None, "1969-12-31 23:59"]
    )
    assert cast(zoned, TIMESTAMP) == [0, 500_000, None, -60_000_000]
    for bad, target in (
        ("1.5", INT),
        ("0x1F", INT),
        ("", INT),
        ("300", TINYINT),
        ("1d", DOUBLE),
        ("+nan", DOUBLE),
        ("maybe", BOOLEAN),
        ("2024-02-30", DATE),
        ("2024-2-30", DATE),
        ("2024-13-01", TIMESTAMP),
        ("2024-1-1 24:00", TIMESTAMP),
        ("2024-01-01 12", TIMESTAMP),
        ("2024-01-01 00:00:00", DATE),
        ("24-01-01", DATE),
    ):
        with pytest.raises(DataError, match="CAST to"):
            cast(pa.array(["", None, bad][1:]), target)


def test_casts_that_mix_times_and_counts_are_refused() -> None:
    t, n, d = cols(pa.array([0], TIMESTAMP), pa.array([0]), pa.array([0], DATE))
    for expr, target, hint in (
        (t, BIGINT, "unix_micros"),
        (n, TIMESTAMP, "timestamp_micros"),
        (d, INT, "unix_date"),
        (n, DATE, "date_from_unix_date"),
        (t, BOOLEAN, "BOOLEAN"),
    ):
        with pytest.raises(QueryError, match=hint):
            resolve_cast(expr, target)
    assert resolve_cast(lit(None), DATE) == Literal(None, DATE)
    assert coerce(lit("1970-01-02"), TIMESTAMP) == Literal(DAY, TIMESTAMP)


# evaluation as a whole


def test_results_are_plain_arrays_of_the_right_length() -> None:
    for rows in (0, 1, 3):
        for value, type_ in ((1, INT), (None, STRING), (None, NULL), (DAY, TIMESTAMP), (1, DATE)):
            result = evaluate(Literal(value, type_), [], rows)
            assert isinstance(result, pa.Array)
            assert (len(result), result.type) == (rows, type_)
    empty = pa.array([], INT)
    assert run(resolve_call("div", [cols(empty)[0], lit(0)]), empty) == []
    assert run(resolve_call("add", [lit(1), lit(2)])) == [3, 3, 3]
    assert run(resolve_call("add", [lit(None), lit(None)])) == [None] * 3


def test_mask() -> None:
    x = pa.array([1, None, 3])
    mask = evaluate_mask(resolve_call("gt", [cols(x)[0], lit(1)]), [x], 3)
    assert mask.dtype == np.bool_
    assert mask.tolist() == [False, False, True]


def test_what_cannot_fail() -> None:
    n, x, s = cols(pa.array([1]), pa.array([1.0]), pa.array([""]))
    assert cannot_fail(resolve_call("add", [x, n]))
    assert not cannot_fail(resolve_call("add", [n, n]))
    assert not cannot_fail(resolve_call("divide", [x, x]))
    assert not cannot_fail(Cast(s, INT))
    assert not cannot_fail(Cast(x, INT))
    assert not cannot_fail(Cast(n, TINYINT))
    assert cannot_fail(Cast(n, STRING))


def test_broken_trees_are_our_fault() -> None:
    with pytest.raises(InternalError, match="not in the table"):
        evaluate(Call("nonsense", (), INT), [], 1)
    with pytest.raises(InternalError, match="must give"):
        evaluate(Call("length", (lit("a"),), BIGINT), [], 1)
    with pytest.raises(InternalError):
        evaluate("text", [], 1)  # type: ignore[arg-type]


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(QueryError, match="no function 'uper'; did you mean 'upper'"):
        resolve_call("uper", [lit("a")])
    with pytest.raises(QueryError, match="did you mean 'stddev"):
        resolve_aggregate("stdev", [lit(1.0)])
    with pytest.raises(QueryError, match="1 argument, got"):
        resolve_call("abs", [])
    with pytest.raises(QueryError, match="1 to 2 arguments"):
        resolve_call("round", [lit(1)] * 3)


# aggregates


def test_aggregates_are_typed() -> None:
    i, f, s, b, t = cols(
        pa.array([1], INT),
        pa.array([1.0], FLOAT),
        pa.array(["a"]),
        pa.array([True]),
        pa.array([0], TIMESTAMP),
    )
    assert resolve_aggregate("COUNT", []) == AggregateCall("count", None, BIGINT)
    assert resolve_aggregate("count", [lit(1)]) == AggregateCall("count", None, BIGINT)
    assert resolve_aggregate("count", [s]) == AggregateCall("count", s, BIGINT)
    assert resolve_aggregate("count", [s], True) == AggregateCall("count_distinct", s, BIGINT)
    assert resolve_aggregate("sum", [i]) == AggregateCall("sum", Cast(i, BIGINT), BIGINT)
    assert resolve_aggregate("sum", [f]) == AggregateCall("sum", Cast(f, DOUBLE), DOUBLE)
    assert resolve_aggregate("mean", [i]) == AggregateCall("avg", Cast(i, DOUBLE), DOUBLE)
    assert resolve_aggregate("variance", [f]).name == "var_samp"
    assert resolve_aggregate("stddev", [f]).name == "stddev_samp"
    assert resolve_aggregate("max", [s]) == AggregateCall("max", s, STRING)
    assert resolve_aggregate("min", [t], True) == AggregateCall("min", t, TIMESTAMP)
    counted = resolve_aggregate("count_if", [b])
    assert counted.name == "count"
    assert counted.arg is not None
    assert run(counted.arg, *[pa.array([None, 1])] * 3, pa.array([True, False])) == [1, None]
    for name, arg in (("sum", s), ("avg", b), ("bit_or", f), ("every", i), ("sum", t)):
        with pytest.raises(QueryError, match="must get"):
            resolve_aggregate(name, [arg])
    with pytest.raises(QueryError, match="must get an argument"):
        resolve_aggregate("sum", [])
    with pytest.raises(QueryError, match=r"CORR must have two arguments, corr\(x, y\), got 1"):
        resolve_aggregate("corr", [i])
    with pytest.raises(QueryError, match="a number from 0 to 1 as p, got 2"):
        resolve_aggregate("percentile", [i, lit(2)])
    once = AggregateCall("sum", Cast(i, BIGINT), BIGINT, distinct=True)
    assert resolve_aggregate("sum", [i], True) == once
    assert resolve_aggregate("every", [b]) == AggregateCall("min", b, BOOLEAN)
    assert resolve_aggregate("max_by", [s, t]) == AggregateCall("max_by", t, STRING, (s,))
    assert resolve_aggregate("count", [s, t], True).args == (s, t)
    assert is_aggregate("Avg")
    assert not is_aggregate("upper")


# the table

T, D = Literal(DAY + 5, TIMESTAMP), Literal(400, DATE)
SAMPLES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("and", "or"), (True, False)),
    "not": (True,),
    "in": (2, 1, 2),
    **dict.fromkeys(("concat", "concat_ws", "contains", "endswith", "startswith"), ("aé", "é")),
    **dict.fromkeys(("like", "ilike", "rlike", "instr"), ("aé", "é")),
    **dict.fromkeys(("length", "upper", "lower", "initcap", "reverse"), ("aé",)),
    **dict.fromkeys(("trim", "ltrim", "rtrim"), (" a ",)),
    **dict.fromkeys(("left", "right", "repeat"), ("aéb", 2)),
    **dict.fromkeys(("lpad", "rpad"), ("aé", 5, "xy")),
    "substring": ("aéb", -2, 1),
    "replace": ("aéb", "é", "-"),
    "split_part": ("aéb", "é", 2),
    "levenshtein": ("aéb", "éb", 2),
    "overlaps": (1, 4, 2.5, 9),
    **dict.fromkeys(("distance", "distance_l1", "distance_max"), (7, 2.5, 4, 6.5)),
    "distance_lp": (3, 7, 2.5, 4, 6.5),
    "date_trunc": ("hour", T),
    **dict.fromkeys(("unix_date", "last_day"), (D,)),
    **dict.fromkeys(("date_add", "date_sub"), (D, 3)),
    "date_diff": (D, T),
    "time_add": (T, 3),
    "time_diff": (T, D),
    **dict.fromkeys(("hour", "minute", "second", "year", "month", "day", "quarter"), (T,)),
    **dict.fromkeys(("dayofyear", "dayofweek", "weekday", "weekofyear"), (D,)),
    **dict.fromkeys(("unix_micros", "unix_millis", "unix_seconds"), (T,)),
    **dict.fromkeys(("timestamp_micros", "timestamp_millis", "timestamp_seconds"), (7,)),
    "date_from_unix_date": (7,),
    "div": (7, 2),
    **dict.fromkeys(("add", "subtract", "multiply", "divide", "mod", "power", "atan2"), (7, 2.5)),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "eq_null_safe"), (7, 2.5)),
    **dict.fromkeys(("coalesce", "nullif", "greatest", "least"), (7, 2.5)),
    **dict.fromkeys(("pmod", "hypot", "nanvl", "log_base"), (7, 2.5)),
    **{f"try_{name}": (7, 2.5) for name in ("add", "subtract", "multiply", "divide", "mod")},
    "width_bucket": (2.5, 0, 10, 5),
    **dict.fromkeys(("bit_and_of", "bit_or_of", "bit_xor_of", "bit_get"), (6, 3)),
    **dict.fromkeys(("shiftleft", "shiftright", "shiftrightunsigned"), (6, 2)),
    **dict.fromkeys(("bit_not", "bit_count", "hex", "bin", "factorial", "char"), (6,)),
    **dict.fromkeys(("bitmap_bit_position", "bitmap_bucket_number"), (6,)),
    "conv": ("ff", 16, 10),
    **dict.fromkeys(("ascii", "octet_length", "bit_length", "soundex", "mask", "quote"), ("aé",)),
    **dict.fromkeys(("md5", "sha1", "crc32", "base64", "to_base32", "luhn_check"), ("aé",)),
    **dict.fromkeys(("url_encode", "url_decode", "try_url_decode"), ("aé",)),
    **dict.fromkeys(("find_in_set", "jaro_winkler_similarity", "trim", "ltrim"), ("a", "b,a")),
    **dict.fromkeys(("hash", "xxhash64"), (7, "aé")),
    "locate": ("é", "aéb", 1),
    "overlay": ("aéb", "xy", 2, 1),
    "translate": ("aéb", "é", "x"),
    "substring_index": ("aéb", "é", 1),
    "elt": (2, "a", "é"),
    "sha2": ("aé", 256),
    "format_number": (1234.5, 2),
    **dict.fromkeys(("regexp_substr", "regexp_count", "regexp_instr"), ("aéb", "é")),
    "regexp_extract": ("aéb", "(é)", 1),
    "regexp_replace": ("aéb", "é", "x"),
    **dict.fromkeys(("parse_url", "try_parse_url"), ("http://h.com/p", "HOST")),
    "try_cast": ("12", "INT"),
    "encode": ("é", "UTF-8"),
    "unhex": ("1F",),
    "unbase64": ("H/8=",),
    "add_months": (D, 3),
    "months_between": (T, D),
    "next_day": (D, "MO"),
    "trunc": (D, "year"),
    "make_date": (2024, 2, 29),
    **dict.fromkeys(("make_timestamp", "try_make_timestamp"), (2024, 2, 29, 1, 2, 3.5)),
    "timestampadd": ("DAY", 3, T),
    "timestampdiff": ("DAY", T, D),
    **dict.fromkeys(("dayname", "monthname", "yearofweek"), (T,)),
    "date_format": (T, "yyyy"),
    "format_string": ("%5.1f|%s", 0.5, "é"),
    **dict.fromkeys(("from_utc_timestamp", "to_utc_timestamp"), (T, "Europe/Athens")),
    **dict.fromkeys(("parse_timestamp", "try_parse_timestamp"), ("2024", "yyyy")),
}


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_columns_and_constants_may_be_mixed(name: str) -> None:
    sample = [a if _is_expr(a) else lit(a) for a in SAMPLES.get(name, (0.5,))]
    arrays = [pa.array([e.value] * 2, e.type) for e in sample]
    columns = cols(*arrays)
    expected = run(resolve_call(name, sample), *arrays)
    for chosen in product([False, True], repeat=len(sample)):
        if any(c and i in FUNCTIONS[name].constants for i, c in enumerate(chosen)):
            continue
        args = [columns[i] if c else sample[i] for i, c in enumerate(chosen)]
        assert run(resolve_call(name, args), *arrays) == expected
    nulls = [Literal(None, e.type) if i == 0 else e for i, e in enumerate(sample)]
    missing = run(resolve_call(name, nulls), *arrays)
    never_null = ("eq_null_safe", "is_null", "is_not_null", "is_nan", "and", "or")
    if name not in (*never_null, "coalesce", "greatest", "least", "hash", "xxhash64"):
        assert missing == [None, None]


def test_names_are_unique() -> None:
    names = [n for f in FUNCTIONS.values() for n in (f.name, *f.aliases)]
    assert len(names) == len(set(names))


def test_documentation_page_is_up_to_date() -> None:
    page = Path(__file__).parent.parent / "docs" / "functions.md"
    assert page.read_text() == document(), "write penstock.expr.functions.document() to it"
