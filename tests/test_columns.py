"""Spark and Arrow agree: every expression of a long list, over one table of awkward values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.errors import DataError, InternalError, NotSupportedError
from penstock.expr.arrow import evaluate
from penstock.expr.functions import FUNCTIONS, resolve_call, resolve_case, resolve_cast
from penstock.expr.nodes import Call, Cast, Column, Expr, Literal, walk
from penstock.expr.types import (
    BIGINT,
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
    type_name,
)
from penstock.model import TIMESTAMP
from penstock.spark.columns import is_same_in_spark, to_column
from penstock.spark.types import arrow_type, spark_type
from tests.test_functions import PLAIN, calls

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DAY = 86_400_000_000
TIMES = [
    0,
    -1,
    1,
    -DAY,
    -DAY - 1,
    1_709_164_799_999_999,
    951_782_400_000_000,
    -62_135_596_800_000_000,
]
NAN, INFINITY = math.nan, math.inf

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "b": (BOOLEAN, [True, False, None, True, False, True, None, False]),
    "c": (BOOLEAN, [None, False, None, True, True, False, True, None]),
    "tiny": (TINYINT, [0, 1, -1, None, 60, -60, 7, -3]),
    "small": (SMALLINT, [0, -1, 3, None, 1000, -1000, 5, 77]),
    "i": (INT, [0, 1, -1, None, 2_000_000_000, -2_000_000_000, 5, -15]),
    "j": (INT, [2, -2, 3, 4, 5, None, 10_000, -4]),
    "big": (BIGINT, [0, 2**53 + 1, -(2**53) - 1, None, 2**62, -(2**62), -7, 1499]),
    "f": (FLOAT, [0.0, -0.0, 1.5, None, NAN, INFINITY, 0.1, -2.25]),
    "x": (DOUBLE, [0.0, -0.0, 1.5, None, NAN, -INFINITY, 2.675, -1234.5]),
    "y": (DOUBLE, [1.0, 0.5, None, 2.0, NAN, 3.0, 1e300, -0.001]),
    "s": (
        STRING,
        ["", "Hello World", "  pad ", None, "straße ὈΔΥΣΣΕΎΣ", "日本 語x", "a%b_c\\d", "éa\nb"],
    ),
    "u": (STRING, ["", "o", " ", "x", None, "語", "%b", "b"]),
    "t": (TIMESTAMP, [*TIMES[:3], None, *TIMES[4:]]),
    "v": (TIMESTAMP, [*TIMES[1:6], None, *TIMES[:2]]),
    "d": (DATE, [0, -1, 19_782, None, 11_016, -719_162, 59, 20_088]),
    "number": (STRING, [" 12 ", "-3", "+7", None, "0", "99", "\t5\n", "0012"]),
    "real": (STRING, ["1.5", "-inf", "NaN", None, "1e3", " .5", "5.", "Infinity"]),
    "truth": (STRING, ["true", "F", " yes", None, "0", "1", "No", "T"]),
    "when": (
        STRING,
        [
            "2024-02-29",
            "2024-02-29 12:34:56",
            "1969-12-31T23:59:59.5",
            None,
            "2024-2-9 1:2",
            "2024-01-01 00:00:00Z",
            "2024-01-01 00:00:00.123456+05:30",
            " 0001-01-01 ",
        ],
    ),
    "date_text": (STRING, ["2024-02-29", "1969-1-1", "0001-01-01", None, *["9999-12-31"] * 4]),
}
NAMES = list(COLUMNS)
ARRAYS = [pa.array(values, type_) for type_, values in COLUMNS.values()]
ROWS = 8


def col(name: str) -> Expr:
    return Column(NAMES.index(name), COLUMNS[name][0], name)


def lit(value: Any) -> Expr:
    types = {bool: BOOLEAN, int: INT, float: DOUBLE, str: STRING, type(None): NULL}
    return Literal(value, types[type(value)])


def call(name: str, *args: Any) -> Expr:
    """Strings that name columns are columns; write lit('..') for text."""
    return resolve_call(
        name,
        [a if not isinstance(a, str | int | float | None) else _operand(a) for a in args],
    )


def _operand(value: Any) -> Expr:
    return col(value) if isinstance(value, str) else lit(value)


def to(name: str, target: pa.DataType) -> Expr:
    return resolve_cast(col(name), target)


NONZERO = {name: call("nullif", name, 0) for name in ("i", "j", "big", "x", "y", "tiny")}
SMALL = {
    name: resolve_case([(call("lt", call("abs", name), 1e9), col(name))])
    for name in ("f", "x", "y")
}
PAIRS = [
    ("i", "j"),
    ("x", "y"),
    ("x", "i"),
    ("f", "x"),
    ("s", "u"),
    ("t", "v"),
    ("t", "d"),
    ("b", "c"),
]
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "eq_null_safe")
UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "MILLISECOND", "mm")
TEXTS = ("length", "upper", "lower", "initcap", "trim", "ltrim", "rtrim", "reverse")
PARTS = ("year", "quarter", "month", "day", "dayofyear", "dayofweek", "weekday", "weekofyear")
PATTERNS = ("%", "", "_", "%o%", "a\\%%", "%\\\\d", "H_llo%", "%語_", "%a_b", "%ß%")

EXPRESSIONS: list[Expr] = [
    *(call(name, a, b) for name in COMPARISONS for a, b in PAIRS),
    *(call(name, "x", NAN) for name in COMPARISONS),
    *(call(name, "tiny", "tiny") for name in ("add", "subtract")),
    *(call(name, "x", "y") for name in ("add", "subtract", "multiply")),
    *(call(name, "f", "f") for name in ("add", "subtract", "multiply")),
    *(call(name, "small", "j") for name in ("add", "subtract", "multiply")),
    call("add", "f", "i"),
    call("multiply", "tiny", 2),
    call("add", "big", "x"),
    call("subtract", lit(None), "i"),
    *(call("divide", a, NONZERO[b]) for a in ("i", "x", "big") for b in ("j", "y", "x")),
    *(call("div", a, NONZERO[b]) for a in ("i", "big", "small") for b in ("j", "tiny")),
    *(call("mod", a, NONZERO[b]) for a in ("i", "x", "big", "tiny") for b in ("j", "y", "tiny")),
    *(call(name, a) for name in ("negate", "abs", "sign") for a in ("tiny", "i", "big", "f", "x")),
    *(call(name, a) for name in ("floor", "ceil") for a in ("i", "big")),
    *(call(name, SMALL[a]) for name in ("floor", "ceil") for a in ("x", "f", "y")),
    call("sqrt", "x"),
    call("sqrt", "y"),
    *(
        call(name, *args)
        for name in ("greatest", "least")
        for args in (
            ("i", "j", "big"),
            ("x", "y", "f"),
            ("s", "u"),
            ("t", "v", "d"),
            ("i", lit(None)),
        )
    ),
    call("and", "b", "c"),
    call("or", "b", "c"),
    call("not", "b"),
    call("and", "b", lit(None)),
    call("and", call("gt", "j", 0), call("gt", call("divide", 10, "j"), 1)),
    call("and", call("ne", "i", 0), call("gt", call("divide", 10, "i"), 1)),
    call("or", call("eq", "i", 0), call("gt", call("divide", 10, "i"), 1)),
    call("coalesce", "i", call("div", "j", NONZERO["tiny"]), 3),
    call("coalesce", NONZERO["i"], call("div", 5, call("add", "i", 1))),
    *(call(name, a) for name in ("is_null", "is_not_null") for a in NAMES),
    *(call("is_nan", a) for a in ("x", "f", "i")),
    call("in", "i", 1, 5, -1),
    call("in", "i", 1, lit(None)),
    call("in", "x", 0.0, NAN),
    call("in", "x", *map(float, range(20)), -0.0, NAN),
    call("in", "f", 1, 0.5),
    call("in", "s", lit("Hello World"), lit("")),
    call("in", "t", lit("1970-01-01"), lit("1969-12-31 23:59:59.999999")),
    call("in", "d", lit("1970-01-01")),
    call("in", "b", True),
    call("in", "i", "j", "tiny", 5),
    call("nullif", "x", NAN),
    call("nullif", "s", lit("")),
    call("nullif", "i", "j"),
    call("nvl", "s", "u"),
    call("ifnull", "t", lit("2024-01-01")),
    call("nvl2", "i", "s", "u"),
    call("if", "b", "i", "x"),
    call("if", "b", "t", lit(None)),
    call("between", "i", -1, "j"),
    resolve_case([(call("ne", "i", 0), call("divide", 1, "i")), (col("b"), lit(7))]),
    resolve_case([(call("gt", "i", 0), col("s")), (call("is_null", "i"), lit("none"))], col("u")),
    resolve_case([(lit(None), lit(1))], lit(2)),
    *(call(name, a) for name in TEXTS for a in ("s", "u", "when")),
    call("concat", "s", "u"),
    call("concat", "s", "i", "b", "t", "d"),
    call("concat_ws", lit(", "), "s", "u", "i"),
    call("concat_ws", "u", "s", "u"),
    call("concat_ws", lit("-")),
    *(
        call("substring", "s", p, n)
        for p in (0, 1, 3, -2, -30, 99)
        for n in (2, 0, -1, 25, 2**31 - 1)
    ),
    *(call("substring", "s", p) for p in (0, 1, 3, -2, -30, 99)),
    call("substring", "s", "tiny", "j"),
    *(call(name, "s", n) for name in ("left", "right") for n in (0, 3, -2, 50)),
    call("left", "s", "j"),
    call("right", "s", "tiny"),
    call("replace", "s", lit("l"), lit("LL")),
    call("replace", "s", lit("")),
    call("replace", "s", "u"),
    call("replace", "s", "u", "when"),
    *(call(name, "s", "u") for name in ("startswith", "endswith", "contains", "instr")),
    *(
        call(name, "s", lit(p))
        for name in ("startswith", "endswith", "contains", "instr")
        for p in ("", "H", "語", "x", "b")
    ),
    call("contains", lit("o x"), "u"),
    *(call(name, "s", lit(p)) for name in ("like", "ilike") for p in PATTERNS),
    *(
        call(name, "s", n, lit(p))
        for name in ("lpad", "rpad")
        for n in (0, 1, 12, -1)
        for p in ("", "*", "ab", "é語")
    ),
    call("levenshtein", "s", "u"),
    call("levenshtein", "u", lit("Helló")),
    *(call("levenshtein", "s", "u", n) for n in (0, 1, 3, 100)),
    call("lpad", "s", 12),
    call("rpad", "u", 3),
    call("lpad", "s", "tiny", "u"),
    call("repeat", "u", 3),
    call("repeat", "u", "tiny"),
    call("repeat", "u", -1),
    *(call("split_part", "s", lit(p), n) for p in (" ", "", "l", "語") for n in (1, 2, -1, -3)),
    call("split_part", "s", "u", 1),
    *(call(name, a) for name in PARTS for a in ("t", "v", "d")),
    *(call(name, a) for name in ("hour", "minute", "second") for a in ("t", "v", "d")),
    *(call("date_trunc", lit(unit), a) for unit in UNITS for a in ("t", "d")),
    *(call(name, a) for name in ("unix_seconds", "unix_millis", "unix_micros") for a in ("t", "d")),
    call("timestamp_seconds", "i"),
    call("timestamp_millis", "i"),
    call("timestamp_micros", "i"),
    call("time_add", "t", "i"),
    call("time_add", "d", -5),
    call("time_diff", "t", "v"),
    call("time_diff", "t", lit("2024-01-01")),
    call("unix_date", "d"),
    call("unix_date", "t"),
    call("date_from_unix_date", "small"),
    call("date_add", "d", "small"),
    call("date_sub", "t", 31),
    call("date_diff", "d", "t"),
    call("last_day", "d"),
    call("last_day", "t"),
    call("to_date", "t"),
    call("to_date", "date_text"),
    call("to_timestamp", "d"),
    call("to_timestamp", "when"),
    *(
        to(a, b)
        for a in ("b", "tiny", "small", "j")
        for b in (BOOLEAN, INT, BIGINT, FLOAT, DOUBLE, STRING)
    ),
    *(to("tiny", target) for target in (SMALLINT, TINYINT)),
    *(to("big", target) for target in (BIGINT, FLOAT, DOUBLE, STRING, BOOLEAN)),
    *(to(a, b) for a in ("x", "f", "y") for b in (BOOLEAN, FLOAT, DOUBLE)),
    *(resolve_cast(SMALL[a], b) for a in ("x", "f", "y") for b in (SMALLINT, INT, BIGINT)),
    *(to("number", target) for target in (TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE)),
    *(to("real", target) for target in (FLOAT, DOUBLE)),
    *(to("t", target) for target in (STRING, DATE)),
    *(to("d", target) for target in (STRING, TIMESTAMP)),
    to("truth", BOOLEAN),
    to("when", TIMESTAMP),
    to("date_text", DATE),
    lit("plain 'text' \\ \" é 語"),
    Literal(2**62, BIGINT),
    Literal(-5, TINYINT),
    Literal(0.1, FLOAT),
    Literal(NAN, DOUBLE),
    Literal(TIMES[5], TIMESTAMP),
    Literal(-1, DATE),
    Literal(None, STRING),
    Literal(True, BOOLEAN),
]


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> Any:
    """The awkward table as a DataFrame, with a row number."""
    arrays = [a.cast(pa.timestamp("us", "UTC")) if a.type == TIMESTAMP else a for a in ARRAYS]
    numbered = pa.table([*arrays, pa.array(range(ROWS))], names=[*NAMES, "row"])
    return spark.createDataFrame(numbered).repartition(1).cache()


def in_spark(table: Any, exprs: list[Expr]) -> list[pa.Array]:
    inputs = [table[name] for name in NAMES]
    chosen = [to_column(expr, inputs).alias(f"e{n}") for n, expr in enumerate(exprs)]
    result = table.select("row", *chosen).orderBy("row").toArrow()
    return [result.column(f"e{n}").combine_chunks().cast(expr.type) for n, expr in enumerate(exprs)]


def plain(array: pa.Array) -> list[Any]:
    """Values that compare as the engine compares: NaN equals NaN, times are counts."""
    if array.type in (TIMESTAMP, DATE):
        array = array.cast(BIGINT if array.type == TIMESTAMP else INT)
    return ["NaN" if isinstance(v, float) and math.isnan(v) else v for v in array.to_pylist()]


def describe(expr: Expr) -> str:
    match expr:
        case Column(_, _, name):
            return name
        case Literal(value, type_):
            return f"{value!r}:{type_name(type_)}"
        case Cast(arg, type_):
            return f"CAST({describe(arg)} AS {type_name(type_)})"
        case Call(name, args, _):
            return f"{name}({', '.join(map(describe, args))})"
    return "CASE"


def test_spark_and_arrow_agree(table: Any) -> None:
    wrong = []
    for first in range(0, len(EXPRESSIONS), 60):
        exprs = EXPRESSIONS[first : first + 60]
        for expr, spark_values in zip(exprs, in_spark(table, exprs), strict=True):
            ours = plain(evaluate(expr, ARRAYS, ROWS))
            theirs = plain(spark_values)
            wrong += [
                f"{describe(expr)} on row {row}: Arrow {a!r}, Spark {b!r}"
                for row, (a, b) in enumerate(zip(ours, theirs, strict=True))
                if a != b
            ]
    assert wrong == []


def test_every_function_that_spark_may_evaluate_is_compared() -> None:
    """Here, or by its types in `tests.test_functions`."""
    seen = {e.name for expr in EXPRESSIONS for e in walk(expr) if isinstance(e, Call)}
    others = {name for name in PLAIN if FUNCTIONS[name].spark} - seen
    assert [name for name in others if not calls(name)] == []


FAILING: list[Expr] = [
    call("divide", "x", "x"),
    call("div", "i", "i"),
    call("mod", "x", "x"),
    call("mod", "i", "tiny"),
    call("multiply", "i", "i"),
    call("add", "i", "i"),
    call("multiply", "tiny", "tiny"),
    call("multiply", "big", "big"),
    call("time_add", "t", Literal(2**63 - 1, BIGINT)),
    call("timestamp_seconds", "big"),
    call("floor", "x"),
    call("ceil", "f"),
    call("split_part", "s", lit(" "), 0),
    to("i", TINYINT),
    to("x", INT),
    to("s", INT),
    to("s", DOUBLE),
    to("s", TIMESTAMP),
    to("when", DATE),
    to("u", BOOLEAN),
    resolve_cast(call("concat", "j", lit("d")), DOUBLE),
    resolve_cast(call("replace", "date_text", lit("02-29"), lit("02-30")), DATE),
    resolve_cast(call("concat", lit("2024-01-01 24:00:"), lit("00")), TIMESTAMP),
]


@pytest.mark.parametrize("expr", FAILING, ids=describe)
def test_both_refuse(table: Any, expr: Expr) -> None:
    with pytest.raises(DataError):
        evaluate(expr, ARRAYS, ROWS)
    with pytest.raises(Exception, match=r"(?i)overflow|zero|cast|must get|out of range|index"):
        in_spark(table, [expr])


def test_what_java_computes_differently_stays_with_arrow(table: Any) -> None:
    for expr in (call("exp", "x"), call("round", "x"), to("x", STRING), call("concat", "s", "x")):
        assert not is_same_in_spark(expr)
        with pytest.raises(InternalError):
            to_column(expr, [table[name] for name in NAMES])
    assert is_same_in_spark(call("sqrt", "x"))


def test_types_go_both_ways() -> None:
    from pyspark.sql.types import DayTimeIntervalType, TimestampNTZType, VarcharType

    for type_ in (*TYPES, NULL, pa.decimal128(38, 38)):
        assert arrow_type(spark_type(type_)) == type_
    assert arrow_type(TimestampNTZType()) == TIMESTAMP
    assert arrow_type(VarcharType(5)) == STRING
    with pytest.raises(NotSupportedError, match="interval"):
        arrow_type(DayTimeIntervalType())
    with pytest.raises(InternalError):
        spark_type(pa.large_binary())
