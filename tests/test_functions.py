"""Every documented function and conversion on hostile values: engine, oracle and Spark agree.

The cases come from the function table: each function is called with every combination of types that
it takes without converting them, on extremes, nulls and random values of these types, among them
texts beyond ASCII.  So a new function is walked too, and fails here until the oracle knows it.  A
row that one of them refuses is refused by all.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.cql import bind_aggregate
from penstock.errors import DataError, QueryError
from penstock.expr.arrow import evaluate
from penstock.expr.casts import GRAMMAR, check_cast, same_in_spark
from penstock.expr.functions import FUNCTIONS, resolve_call, resolve_case, resolve_cast
from penstock.expr.library import array_functions, json_texts, nested_values
from penstock.expr.library.aggregates import NAMES
from penstock.expr.nodes import Call, Cast, Column, Expr, Literal
from penstock.expr.signatures import Mismatch
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
    decimal_type,
    is_decimal,
    type_name,
)
from penstock.model import TIMESTAMP, Field, Schema
from penstock.reference.aggregates import aggregate
from penstock.reference.expressions import evaluate as in_oracle
from penstock.spark.columns import to_column
from penstock.spark.types import spark_type
from penstock.testing import Rig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAN, INFINITY = math.nan, math.inf
DAY = 86_400_000_000
MOST_ROWS = 150
REFUSED = "refused"

DAYS = [0, -1, 59, 11_016, 19_782, -25_508, -141_428, -141_427, 18_627, -719_162, -719_163]
DAYS += [-719_529, 2_932_896, 2_932_897, 11_248_737, 11_248_738, -12_687_795, -106_751_991]
NESTED = (*nested_values.FUNCTIONS, *array_functions.FUNCTIONS, *json_texts.FUNCTIONS)
PLAIN = FUNCTIONS.keys() - {f.name for f in NESTED}
"""Functions of plain values; the others are in test_nested_values.py."""

VALUES: dict[pa.DataType, list[Any]] = {
    BOOLEAN: [None, True, False],
    TINYINT: [None, 0, 1, -1, 7, 127, -128],
    SMALLINT: [None, 0, 1, -1, 300, 2**15 - 1, -(2**15)],
    INT: [None, 0, 1, -1, 3, -3, 45, 2**31 - 1, -(2**31)],
    BIGINT: [None, 0, 1, -1, 15, -7, 2**53 + 1, 2**60 + 2**36 + 1, 2**63 - 1, -(2**63)],
    FLOAT: [None, 0.0, -0.0, 1.5, -2.25, 0.1, 3.4028234663852886e38, 1.4e-45, 2.0**24, 2.0**31],
    DOUBLE: [None, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 2.675, 1e-4, 1e7, 123_456_789.125, 1e22],
    STRING: [None, "", " ", "a", "aba", "Hello World", "  pad\t ", "straße", "ὈΔΥΣΣΕΎΣ", "日本 語"],
    TIMESTAMP: [None, 1, -1, 999_999, -(2**63), 2**63 - 1, *(day * DAY for day in DAYS)],
    DATE: [None, *DAYS, 2**31 - 1, -(2**31), 106_751_992],
    BINARY: [None, b"", b"a", b"aba", b"\0", b"\xff\xfe", "stra\u00dfe".encode(), b"Hello World"],
}
DECIMALS = (decimal_type(10, 2), decimal_type(38, 3), decimal_type(38, 38))
"""DECIMALs that fit into 64 bits, that do not, and that have nothing before the point."""

KINDS = (*TYPES, *DECIMALS)
VALUES |= {
    DECIMALS[0]: ["0", "1", "-1", "0.01", "-0.05", "2.5", "-7.25", "99999999.99", "-99999999.99"],
    DECIMALS[1]: ["0", "0.001", "-1.5", "2.675", "9" * 35 + ".999", "-" + "9" * 35 + ".999"],
    DECIMALS[2]: ["0", "1e-38", "-1e-38", "0.5", "-0.25", "0." + "9" * 38, "-0." + "9" * 38],
}
for kind in DECIMALS:
    unit = Decimal((0, (1,), -kind.scale))
    exact = [Decimal(text).quantize(unit, context=Context(prec=99)) for text in VALUES[kind]]
    VALUES[kind] = [None, *exact]
VALUES[FLOAT] += [-(2.0**63), NAN, INFINITY, -INFINITY]
VALUES[DOUBLE] += [1e15 + 0.5, 5e-324, 1.7976931348623157e308, -1e300, 2.0**31, 2.0**63]
VALUES[DOUBLE] += [-(2.0**63), NAN, INFINITY, -INFINITY]
VALUES[STRING] += ["😀e\u0301", "a%b_c\\d", "x\ny\n", "İI", "o", "0"]
VALUES[TIMESTAMP] += [day * DAY + DAY - 1 for day in DAYS]
TEXTS = [None, "", " 12 ", "-3", "+7", "0012", "\t5\n", "127", "128", "-32769", "2147483648"]
TEXTS += ["9223372036854775807", "-9223372036854775808", "9223372036854775808", "1_0", "٣", "1.5"]
TEXTS += ["-inf", "NaN", "+nan", "1e3", " .5", "5.", ".", "Infinity", "1e400", "-1e-400", "1d"]
TEXTS += ["99999999.994", "99999999.995", "-.005", "1e37", "1e-37", "+12e-1", "9" * 39, "1e99999"]
TEXTS += ["0x1F", "16777217", "3.4028236e38", "0.1", "-0", "true", "F", " yes", "No", "ſ", "on"]
TEXTS += ["2024-02-29", "2023-02-29", "2024-2-9 1:2", "2024-02-29 12:34:56", "0001-01-01"]
TEXTS += ["1969-12-31T23:59:59.5", "2024-01-01 00:00:00Z", "9999-12-31 23:59:59.999999"]
TEXTS += ["2024-01-01 00:00:00.123456+05:30", "2024-01-01 00:00:00 -18:00", "0000-01-01"]
TEXTS += ["2024-01-01 00:00:00+18:01", "2024-01-01 24:00:00", "2024-01-01 12", "24-01-01"]
TEXTS += ["2024-13-01", "2024-00-10", "10000-01-01", "2024-01-01 00:00:60", "2024-1-31x"]
"""What is read from text, and what is not."""

UNITS = ["year", "quarter", "MONTH", "week", "day", "hour", "minute", "second", "millisecond", "dd"]
STEPS = ["MICROSECOND", "millisecond", "SECOND", "MINUTE", "HOUR", "DAY", "DAYOFYEAR", "WEEK"]
STEPS += ["MONTH", "QUARTER", "year", None]
PARTS = ["HOST", "PATH", "QUERY", "REF", "PROTOCOL", "FILE", "AUTHORITY", "USERINFO"]
MAKERS = ["make_date", "make_timestamp", "try_make_timestamp"]
PATTERNS = ["%", "", "_", "%o%", "a\\%%", "%\\\\d", "H_llo%", "%語", "x_y%", "%ß%", None]
EXPRESSIONS = ["", "b", "^a|o$", "(?i)HELLO", "[^a-z]", "\\d", "\\s$", "\\bW", "^.$", "(?s)^.*$"]
EXPRESSIONS += ["\\pL\\PL", "[[:punct:]]", "\\Qa%\\E", "(?m)^y$", "a{1}b", "\\x{8a9e}"]
EXPRESSIONS += ["[\\]%]", "x(?i)HELLO|B", "\\B", "(?:a$)+", "(^|o)*$", None]
FINDING = [expression for expression in EXPRESSIONS if expression != "\\B"]
GROUPED = [
    "(a)|(o)",
    "([a-z]+)(.)",
    "(?<x>\\w)(?<y>.)",
    "[(](.)",
    "((.)(.))",
    "\\((.)?",
    "(?:(a)b)?",
]
FORMATS = [
    "yyyy-MM-dd HH:mm:ss.SSSSSS",
    "y yy yyy yyyy yyyyy yyyyyy",
    "M MM MMM MMMM L LL LLL LLLL",
]
FORMATS += ["d dd D DD DDD Q QQ q E EE EEE EEEE", "h hh H HH k kk K KK a m mm s ss S SS SSS"]
FORMATS += ["yyyyMMdd'T'HHmmss", "'o''clock' H", "日 yyyy", "X XX XXX x xx xxx", "", None]
READ = [
    "yyyy-MM-dd",
    "yyyy-MM-dd HH:mm:ss",
    "yyyy-MM-dd HH:mm:ss.SSS",
    "d/M/yy h:mm a",
    "dd MMM yyyy",
]
READ += ["MMMM d, y", "yyyyMMddHHmmss", "yyyy-MM-dd'T'HH:mm:ssXXX", "HH:mm:ss.SSSSSS", "k:m", None]
READ += ["yyyy-MM-dd HH:mm:ss xx", "K a", "yyyy-MM-dd'T'HH:mm:ssX"]
PRINTED = [
    "%s",
    "<%10s|%-6s>",
    "%.3s%%",
    "%S|%n%12.1S",
    "%d",
    "%,d %5d",
    "%-8d|%+d",
    "% ,(15d",
    "%(d",
]
PRINTED += [
    "%020d",
    "%x %X",
    "%#x|%o",
    "%#012x",
    "%b %B",
    "%6b",
    "%f",
    "%.2f %,.1f",
    "%(015.3f",
    "%.0f",
]
PRINTED += [
    "%#.0f|%+.1f",
    "% 9.2f",
    "%e",
    "%.1e %E",
    "%012.4e|%(+.0e",
    "%2$s%1$s",
    "",
    None,
    "日%s😀",
]
CONSTANTS: dict[tuple[str, int], list[Any]] = {
    ("encode", 1): ["UTF-8", "utf-8", None],
    ("format_string", 0): PRINTED,
    ("round", 1): [0, 2, 1, -1, -3, 17, -19, 400, -400, None],
    ("bround", 1): [0, 2, 1, -1, -3, 17, -19, 400, -400, None],
    **{("mask", i): [None, "é", "*"] for i in (1, 2, 3, 4)},
    ("date_format", 1): FORMATS,
    ("parse_timestamp", 1): READ,
    ("try_parse_timestamp", 1): READ,
    ("trunc", 1): ["year", "YY", "quarter", "Mon", "mm", "week", None],
    ("timestampadd", 0): STEPS,
    ("timestampdiff", 0): [step for step in STEPS if step != "DAYOFYEAR"],
    ("date_trunc", 0): [*UNITS, None],
    ("like", 1): PATTERNS,
    ("ilike", 1): PATTERNS,
    ("rlike", 1): EXPRESSIONS,
    **{(f"regexp_{name}", 1): FINDING for name in ("substr", "count", "instr")},
    ("regexp_extract", 1): [*FINDING, *GROUPED],
    ("regexp_extract", 2): [0, 1, None],
    ("regexp_replace", 1): ["o", "[^a-z]", "^.", "(?s)(.)(.)", "(l+)|(a)", "b*", "", None],
    ("regexp_replace", 2): ["", "日", "<$0>", "\\$\\\\$0", None],
    ("regexp_replace", 3): [1, 3, 12, None],
    ("levenshtein", 2): [0, 1, 4, 100, None],
    ("distance_lp", 0): [1.0, 2.0, 3.0, 2.5, INFINITY, None],
}
"""Arguments that must be constants, by function and position; of others some values are drawn."""

WRITTEN = ["2024-02-29", "2023-02-29", "0001-01-01", "-0044-03-15", "+12024-01-01", "12024-01-01"]
WRITTEN += ["2024-2-9", "2024-02-09 15:04:05", "2024-02-09 24:00:00", "2024-02-09 15:04:05.5"]
WRITTEN += ["2024-02-09 15:04:05.123", "9/2/24 3:04 PM", "09/12/99 12:00 am", "1/1/24 13:00 AM"]
WRITTEN += [
    "09 Feb 2024",
    "31 feb 2024",
    "9 Feb 2024",
    "February 9, 2024",
    "may 1, -5",
    "15:60:00.1",
]
WRITTEN += ["20240209150405", "202402091504", "2024-02-09T15:04:05Z", "2024-02-09t15:04:05+05:30"]
WRITTEN += [
    "2024-02-09T15:04:05-18:01",
    "15:04:05.1234567",
    "15:04:05.123456",
    "24:0",
    "0:0",
    "7:59",
]
WRITTEN += ["2024-02-09 15:04:05 -0330", "11 PM", "12 PM", "2024-02-09T15:04:05-03", "-0000-01-01"]
WRITTEN += [
    "294247-01-01",
    "+294247-01-10",
    "+294248-01-01",
    "0000-02-29",
    " 2024-02-09",
    "２０２４",
]

ADDRESSES = ["http://u:p@h.com:80/p/a?q=1&r=2#f", "https://spark.apache.org/path?query=1", "abc"]
ADDRESSES += [
    "mailto:a@b?c",
    "http://h.com/a b",
    "http:///p",
    "//h.com/p",
    "http://a_b.com/p",
    "x:",
]
ADDRESSES += [
    "/p?q#r",
    "http://h.com:/p",
    "http://[::1]:80/p",
    "http://h.com/%zz",
    "http://h.com?x=é",
]
ADDRESSES += [
    "http://1.2.3/p",
    "http://1.2.3.4/p",
    "http://-h.com",
    "http://h.com:x/p",
    "1http://h",
]
ADDRESSES += ["http://h/a[b", "http://h/a?b[c", "ht tp://h", ":x", "http://日本/é", "HTTP://H.com."]
ADDRESSES += ["http://h/?q=&r", "http://h/?aq=1&q=2&q=3#", "http://", "http://h.com/%41?a%20b"]
ESCAPED = ["%E6%97%A5+x", "a%2Fb", "%", "%4", "%zz", "%C3%A9%C3", "100%25", "+%2B+", "%F0%9F%98%80"]

CHANGES = [1_711_846_799, 1_711_846_800, 1_711_850_400, 1_729_990_800, 1_730_001_600, 1_730_613_600]
CHANGES += [
    2_540_595_600,
    7_258_118_400,
    13_569_465_600,
    253_402_300_800,
    -2_422_054_408,
    946_684_799,
]
CHANGES = [second * 1_000_000 + micros for second in CHANGES for micros in (-1, 0, 1_800_000_000)]
"""Times about which clocks are changed somewhere, also long after the last one of the tables."""

ZONES = ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "UTC", "Z"]
ZONES += ["America/St_Johns", "Pacific/Apia", "Europe/Dublin", "America/Sao_Paulo", "Etc/GMT+5"]
ZONES += [
    "+02:00",
    "-0330",
    "+5",
    "UTC+2",
    "GMT-11:30",
    "+18:00",
    "+18:01",
    "+5:60",
    "Europe/Athen",
]
"""Zones, and some that are none: one by its offset, a word, a region that there is not."""

LIKELY: dict[str, list[Any]] = {
    **{f"{way}_utc_timestamp 1": ZONES * 4 for way in ("from", "to")},
    **{f"{way}_utc_timestamp 0": CHANGES for way in ("from", "to")},
    **{f"{name} 0": ADDRESSES for name in ("parse_url", "try_parse_url")},
    **{f"{name} 1": [*PARTS, *PARTS, *PARTS, *PARTS] for name in ("parse_url", "try_parse_url")},
    **{f"{name} 2": ["q", "r", "x", "query"] * 12 for name in ("parse_url", "try_parse_url")},
    **{f"{name} 0": ESCAPED for name in ("url_decode", "try_url_decode")},
    "format_number 1": [0, 1, 2, 3, 5, 8] * 6,
    **{f"{name} 0": WRITTEN for name in ("parse_timestamp", "try_parse_timestamp")},
    "next_day 1": ["MO", "tue", "Sunday", "fr", "th", "WED", "sat", "su"] * 4,
    **{f"{name} 0": [1970, 2024, 1999, 1, 0, -44, 9999, 294_247, -290_308] * 4 for name in MAKERS},
    **{f"{name} 1": [1, 2, 6, 12, 13] * 8 for name in MAKERS},
    **{f"{name} 2": [1, 15, 28, 29, 30, 31] * 8 for name in MAKERS},
    **{f"{name} 3": [0, 3, 12, 23, 4, 24] * 8 for name in MAKERS[1:]},
    **{f"{name} 4": [0, 3, 12, 59, 54] * 8 for name in MAKERS[1:]},
    **{f"{name} 5": [59.9999995, 60.0, 0.25, 12.0000005, 60.5, 33.3] * 10 for name in MAKERS[1:]},
}
"""Values that an argument, by function and number, will often have, so that it is not refused."""

LETTERS = "abcXYZ 0129.,-/%_'éßΣ日本\u0301😀\n"


def drawn(type_: pa.DataType, seed: str, count: int = 12) -> list[Any]:
    """Random values of a type; times and dates mostly of these centuries."""
    chance = random.Random(f"{type_} {seed}")

    def one() -> Any:
        if type_ == BOOLEAN:
            return chance.random() < 0.5
        if type_ in (TINYINT, SMALLINT, INT, BIGINT):
            bits = chance.randrange(1, type_.bit_width)
            return chance.randrange(-(2**bits), 2**bits)
        if type_ in (FLOAT, DOUBLE):
            number = chance.choice([chance.gauss(0, 1), chance.uniform(-1e6, 1e6)])
            number = chance.choice(
                [number, round(number, 2), number * 10.0 ** chance.randrange(20)]
            )
            return pa.scalar(number, type_).as_py()
        if type_ in DECIMALS:
            units = chance.randrange(10 ** chance.randrange(1, type_.precision + 1))
            return Decimal(
                (int(units and chance.random() < 0.5), tuple(map(int, str(units))), -type_.scale)
            )
        if type_ == BINARY:
            return chance.randbytes(chance.randrange(40))
        if type_ == STRING:
            return "".join(chance.choice(LETTERS) for _ in range(chance.randrange(1, 40)))
        day = chance.randrange(*chance.choice([(-50_000, 50_000), (-700_000, 2_900_000)]))
        return day if type_ == DATE else day * DAY + chance.randrange(DAY)

    return [one() for _ in range(count)]


def values_of(type_: pa.DataType, seed: str) -> list[Any]:
    """Hostile and random values of a type, as the oracle has them."""
    listed = LIKELY.get(seed, [])
    return plain(pa.array([*VALUES[type_], *listed], type_)) + drawn(type_, seed)


ABOUT = {"exp", "ln", "log10", "log2", "power", "sin", "cos", "tan", "asin", "acos", "atan"}
ABOUT |= {"atan2", "radians", "degrees", "distance_lp", "hypot", "log_base", "log1p", "expm1"}
ABOUT |= {"cbrt", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "cot", "sec", "csc"}
ABOUT |= {"jaro_winkler_similarity"}
"""Functions whose last bits depend on the library that computes them."""


@dataclass(frozen=True)
class Sample:
    """One expression over columns of some types; ``rows`` are the values they have."""

    expr: Expr
    types: tuple[pa.DataType, ...]
    rows: tuple[tuple[Any, ...], ...]
    about: bool = False

    def __str__(self) -> str:
        return described(self.expr)

    def arrays(self, chosen: list[int]) -> list[pa.Array]:
        """The columns of some of the rows."""
        return [
            pa.array([self.rows[i][column] for i in chosen], type_)
            for column, type_ in enumerate(self.types)
        ]


def described(expr: Expr) -> str:
    match expr:
        case Literal(value):
            return repr(value)
        case Cast(arg, type_):
            return f"CAST({described(arg)} AS {type_name(type_)})"
        case Call(name, args, _):
            return f"{name}({', '.join(map(described, args))})"
    return type_name(expr.type)


def plain(array: pa.Array) -> list[Any]:
    """Values as the oracle has them: times are counts."""
    if array.type in (TIMESTAMP, DATE):
        array = array.cast(BIGINT if array.type == TIMESTAMP else INT)
    return array.to_pylist()  # type: ignore[no-any-return]


def rows_of(lists: list[list[Any]], seed: str) -> tuple[tuple[Any, ...], ...]:
    """All combinations, or some of them if there are many."""
    if math.prod(map(len, lists)) <= MOST_ROWS:
        return tuple(product(*lists))
    chance = random.Random(seed)
    drawn = [tuple(chance.choice(values) for values in lists) for _ in range(MOST_ROWS)]
    each = [tuple(v[i % len(v)] for v in lists) for i in range(max(map(len, lists)))]
    return tuple(dict.fromkeys([*each, *drawn]))


def signatures(name: str) -> list[tuple[pa.DataType, ...]]:
    """The types that a function takes as they are, for the two least numbers of arguments."""
    found: list[tuple[pa.DataType, ...]] = []
    for count in range(8):
        if not takes(name, (NULL,) * count):  # whatever a function takes, it takes a null
            continue
        alone = [[t for t in KINDS if accepts(name, at, t, count)] for at in range(count)]
        found += [types for types in product(*alone) if takes(name, types)]
        if len({len(types) for types in found}) == 2:
            break
    return found


def accepts(name: str, at: int, type_: pa.DataType, count: int) -> bool:
    """Whether a function takes a type at one place, as it is, and nulls at the others."""
    types = [type_ if i == at else NULL for i in range(count)]
    try:
        wanted, _ = FUNCTIONS[name].rule([Column(i, t) for i, t in enumerate(types)])
    except Mismatch:
        return False
    return wanted[at] == type_


def takes(name: str, types: tuple[pa.DataType, ...]) -> bool:
    """Whether a function takes such arguments as they are; a null it may convert."""
    try:
        wanted, _ = FUNCTIONS[name].rule([Column(i, t) for i, t in enumerate(types)])
    except Mismatch:
        return False
    return wanted == types or set(types) == {NULL}


def constants_of(name: str, types: tuple[pa.DataType, ...], fixed: list[int]) -> list[Any]:
    """What the arguments are that must be constants: all that is listed, or some hostile values."""
    if all((name, i) in CONSTANTS for i in fixed):
        return list(product(*(CONSTANTS[name, i] for i in fixed)))
    chance = random.Random(f"{name} {types}")
    values = [values_of(types[i], name) for i in fixed]
    return [tuple(chance.choice(v) for v in values) for _ in range(2)]


@cache
def calls(name: str) -> list[Sample]:
    """A function on hostile values, once for each signature and choice of constants."""
    if name == "try_cast":  # its second argument is a type
        return [tried(sample) for sample in casts() if isinstance(sample.expr, Cast)]
    found = []
    for types in signatures(name):
        fixed = [i for i in range(len(types)) if i in FUNCTIONS[name].constants]
        free = [i for i in range(len(types)) if i not in fixed]
        columns = tuple(types[i] for i in free)
        rows = rows_of([values_of(t, f"{name} {i}") for i, t in enumerate(columns)], str(columns))
        for values in constants_of(name, types, fixed):
            args: dict[int, Expr] = {i: Column(n, types[i]) for n, i in enumerate(free)}
            args |= {i: Literal(v, types[i]) for i, v in zip(fixed, values, strict=True)}
            try:
                expr = resolve_call(name, [args[i] for i in range(len(types))])
            except QueryError as error:
                if "cannot use its constant" not in error.message:
                    raise
                continue  # such as a group that an expression does not have
            found.append(Sample(expr, columns, rows, name in ABOUT))
    return found


def tried(sample: Sample) -> Sample:
    """A conversion that gives null where it fails."""
    target = Literal(type_name(sample.expr.type), STRING)
    return replace(sample, expr=resolve_call("try_cast", [Column(0, sample.types[0]), target]))


def casts() -> list[Sample]:
    """Every conversion that there is."""
    found = []
    for source, target in product(KINDS, repeat=2):
        try:
            check_cast(source, target)
        except QueryError:
            continue
        values = VALUES[source] + (TEXTS if source == STRING else [])
        rows = tuple((v,) for v in plain(pa.array(values, source)))
        found.append(Sample(resolve_cast(Column(0, source), target), (source,), rows))
    return found


def oracle_answers(sample: Sample) -> list[Any]:
    answers = []
    for row in sample.rows:
        try:
            answers.append(in_oracle(sample.expr, row))
        except DataError:
            answers.append(REFUSED)
    return answers


def same(a: Any, b: Any, about: bool) -> bool:
    """Whether two answers are one; zeros have a sign, unless the last bits do not count."""
    if isinstance(a, float) and isinstance(b, float):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        if about:
            return math.isclose(a, b, rel_tol=1e-13)
        return a == b and math.copysign(1.0, a) == math.copysign(1.0, b)
    return type(a) is type(b) and bool(a == b)


def engine_differs(sample: Sample) -> list[str]:
    """Compare the engine with the oracle, row by row; return the sentences about differences."""
    wrong = []
    expected = oracle_answers(sample)
    accepted = [i for i, answer in enumerate(expected) if answer is not REFUSED]

    def answers(chosen: list[int]) -> list[Any]:
        return plain(evaluate(sample.expr, sample.arrays(chosen), len(chosen)))

    try:
        found = dict(zip(accepted, answers(accepted), strict=True))
    except DataError:
        found = {}
    for i, answer in enumerate(expected):
        if i not in found:
            try:
                found[i] = answers([i])[0]
            except DataError:
                found[i] = REFUSED
        if not same(found[i], answer, sample.about):
            row = sample.rows[i]
            wrong.append(f"{sample} on {row}: engine {found[i]!r}, oracle {answer!r}")
    return wrong


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_engine_and_oracle_agree_on_every_function(name: str) -> None:
    samples = calls(name)
    assert samples, f"no arguments were found for {name}: give it CONSTANTS"
    assert [line for sample in samples for line in engine_differs(sample)] == []


REPEATED = ["date_format", "parse_timestamp", "try_parse_timestamp", "regexp_extract", "md5"]
REPEATED += ["regexp_substr", "regexp_replace", "regexp_count", "regexp_instr", "translate"]


@pytest.mark.parametrize("name", REPEATED)
def test_values_that_repeat_in_a_long_column_give_what_they_give_alone(name: str) -> None:
    """These work on distinct values where there are many rows."""
    for sample in calls(name):
        answers = oracle_answers(sample)
        accepted = [i for i, answer in enumerate(answers) if answer is not REFUSED]
        chosen = accepted * (3000 // max(len(accepted), 1) + 1)
        found = plain(evaluate(sample.expr, sample.arrays(chosen), len(chosen)))
        assert found == [answers[i] for i in chosen], str(sample)


@pytest.mark.parametrize("sample", casts(), ids=str)
def test_engine_and_oracle_agree_on_every_conversion(sample: Sample) -> None:
    assert engine_differs(sample) == []


def test_dates_that_leave_the_range_are_refused_only_where_they_are_needed() -> None:
    day, count = pa.array([0, 0], DATE), pa.array([3, 2**31 - 1], INT)
    small = resolve_call("lt", [Column(1, INT), Literal(10, INT)])
    for name, expected in (("date_add", 3), ("date_sub", -3)):
        later = resolve_call(name, [Column(0, DATE), Column(1, INT)])
        assert plain(evaluate(resolve_case([(small, later)]), [day, count], 2)) == [expected, None]
    past = pa.array([-2, -2], DATE)
    with pytest.raises(DataError, match="range of DATE"):
        evaluate(resolve_call("date_sub", [Column(0, DATE), Column(1, INT)]), [past, count], 2)


def test_a_single_text_that_is_null_keeps_its_row() -> None:
    texts = pa.array(["a", None, "b"])
    joined = resolve_call("concat_ws", [Literal("-", STRING), Column(0, STRING)])
    assert evaluate(joined, [texts], 3).to_pylist() == ["a", "", "b"]


# Aggregates, and scripts of users

NUMBERS = [0.0, -0.0, 1.5, -2.5, 1e-300, 5e-324, 1e300, 1.7976931348623157e308, None]
GROUPS: dict[str, list[Any]] = {
    "plain": [1.5, None, -2.5, 1.5, 0.1],
    "zeros": [0.0, -0.0, None],
    "nulls": [None, None],
    "one": [5e-324],
    "largest": [1.7976931348623157e308] * 3,
    "both ends": [1.7976931348623157e308, -1.7976931348623157e308],
    "far apart": [1e300, 1.0, -1e300, 5e-324],
    "nan": [NAN, 1.0, NAN],
    "infinite": [INFINITY, 1.0],
    "infinities": [INFINITY, -INFINITY],
}


ARGUMENTS: dict[str, list[str]] = {
    "count": ["x", "n", "w", "x, n", "DISTINCT x", "DISTINCT n", "DISTINCT w, n"],
    "count_if": ["x > 1"],
    **{key: ["x", "n", "w", "b", "t"] for key in ("min", "max", "any_value", "mode")},
    **{key: ["b"] for key in ("bool_and", "every", "bool_or", "some", "any")},
    **{key: ["n", "DISTINCT n", "CAST(t AS BIGINT)"] for key in ("bit_and", "bit_or", "bit_xor")},
    **{key: ["x, n", "n, t", "DISTINCT n, n"] for key in ("covar_pop", "covar_samp", "corr")},
    **{key: ["w, t", "n, w", "x, n", "t, x", "b, t"] for key in ("min_by", "max_by")},
    "percentile": ["x, 0.3", "n, 0", "n, 1", "DISTINCT n, 0.75"],
    "string_agg": ["w", "w, ', '", "DISTINCT w, '-'"],
    "listagg": ["w, '|'", "CAST(n AS STRING), '+'"],
    **{key: ["n", "w", "w, TRUE"] for key in ("first", "last", "first_value", "last_value")},
}
"""What aggregates are called with; all others take numbers, also DISTINCT."""


def calls_of_aggregates() -> list[str]:
    """Every aggregate of the table with arguments that it takes."""
    numbers = ["x", "n", "DISTINCT n"]
    return [f"{name}({a})" for name in NAMES for a in ARGUMENTS.get(name, numbers)]


def rows_of_groups() -> list[tuple[Any, ...]]:
    """Groups of numbers with integers, texts and truths beside them; the time is the last."""
    values = [(key, x) for key, group in GROUPS.items() for x in group]
    whole, words = VALUES[INT], VALUES[STRING]
    return [
        (key, x, whole[i % len(whole)], words[i % len(words)], (None, True, False)[i % 3], i // 2)
        for i, (key, x) in enumerate(values)
    ]


def test_engine_and_oracle_agree_on_every_aggregate() -> None:
    calls = ["count(*) AS rows_", "count(*) FILTER (WHERE n > 0) AS some"]
    made = calls_of_aggregates()
    calls += [f"{call} AS c{i}" for i, call in enumerate(made)]
    calls += [f"{call} FILTER (WHERE n > 0) AS f{i}" for i, call in enumerate(made)]
    parts = [calls[first : first + 30] for first in range(0, len(calls), 30)]
    queries = [
        f"CREATE QUERY q{i} AS SELECT k, {', '.join(part)} FROM s [RANGE 3] GROUP BY k;"
        for i, part in enumerate(parts)
    ]
    rig = Rig(f"""
        CREATE STREAM s (k STRING, x DOUBLE, n INT, w STRING, b BOOLEAN, t BIGINT)
        USING memory TIMESTAMP BY t;
        {" ".join(queries)}
    """)
    rig.feed("s", rows_of_groups())
    rig.end()
    rig.assert_oracle()


def settled(call: str) -> tuple[str, str] | None:
    """An aggregate as Spark must be asked for our one answer, and what it is for the oracle.

    Spark leaves open which of several values is given; where it cannot be told, None.
    """
    name, _, inside = call.partition("(")
    first = inside.rstrip(")") if "CAST" not in inside else "CAST(n AS STRING)"
    first = first.removeprefix("DISTINCT ").split(", ")[0]
    if name in ("string_agg", "listagg"):
        return f"{call} WITHIN GROUP (ORDER BY {first})", call
    if name == "any_value":
        return f"min({inside}", call
    if name == "mode":
        return f"mode({first}, TRUE)", call
    if name in ("min_by", "max_by"):
        return (call, call) if inside.endswith(", t)") else None
    if NAMES[name] in ("min_by", "max_by"):
        there = f" FILTER (WHERE {first} IS NOT NULL)" if "TRUE" in inside else ""
        return call, f"{NAMES[name]}({first}, t){there}"
    return call, call


def about(theirs: Any, ours: Any) -> bool:
    """Whether two answers are one, but for what Spark loses by rounding on the way."""
    if isinstance(theirs, float) and isinstance(ours, float) and not math.isnan(ours):
        return math.isclose(theirs, ours, rel_tol=1e-9, abs_tol=1e-9)
    return same(theirs, ours, True)


@pytest.mark.spark
def test_oracle_and_spark_agree_on_every_aggregate(spark: SparkSession) -> None:
    """The engine is where the oracle is, as shown above; no two rows have one time here."""
    large = ("far apart", "largest", "both ends")  # Spark loses all digits of these
    rows = [row for row in rows_of_groups() if row[0] not in large]
    rows = [(*row[:-1], t) for t, row in enumerate(rows)]
    kinds = (STRING, DOUBLE, INT, STRING, BOOLEAN, BIGINT)
    schema = Schema(tuple(Field(n, kind) for n, kind in zip("kxnwbt", kinds, strict=True)))
    columns = zip("kxnwbt", kinds, zip(*rows, strict=True), strict=True)
    table = pa.table({name: pa.array(values, kind) for name, kind, values in columns})
    spark.createDataFrame(table).coalesce(1).createOrReplaceTempView("aggregated")
    asked = [pair for call in calls_of_aggregates() if (pair := settled(call)) is not None]
    wrong: list[str] = []
    alone = [pair for pair in asked if "WITHIN" in pair[0]]  # Spark fails beside other DISTINCT
    others = [pair for pair in asked if pair not in alone]
    parts = [others[first : first + 20] for first in range(0, len(others), 20)]
    for some in [*([pair] for pair in alone), *parts]:
        text = ", ".join(f"{call} AS c{i}" for i, (call, _) in enumerate(some))
        frame = spark.sql(f"SELECT k, {text} FROM aggregated GROUP BY k")
        types = [field.dataType for field in frame.schema][1:]
        for (call, ours), theirs in zip(some, types, strict=True):
            kind = bind_aggregate(ours, schema)[0].type
            if spark_type(kind) != theirs:
                wrong.append(f"{call} is {theirs} in Spark, {kind} here")
        for found in frame.collect():
            own = [row for row in rows if row[0] == found[0]]
            wrong += compared(some, found, own, schema)
    assert wrong == []


def compared(
    asked: list[tuple[str, str]], found: Any, rows: list[tuple[Any, ...]], schema: Schema
) -> list[str]:
    """Sentences about aggregates of a group that Spark and the oracle see differently."""
    wrong = []
    for (call, ours), theirs in zip(asked, found[1:], strict=True):
        bound, _ = bind_aggregate(ours, schema)
        answer = aggregate(bound, rows)
        if not about(theirs, answer):
            wrong.append(f"{call} of {found[0]}: Spark {theirs!r}, oracle {answer!r}")
    return wrong


SCRIPT = """
CREATE STREAM s (w STRING, x DOUBLE, f FLOAT, n BIGINT, d DATE, t TIMESTAMP)
  USING memory TIMESTAMP BY t;
CREATE QUERY parts AS
  SELECT year(t) AS y, quarter(t) AS q, month(d) AS m, dayofmonth(d) AS dm, dayofyear(t) AS dy,
         dayofweek(t) AS dw, weekday(t) AS wd, week(t) AS wy, hour(t) AS h, minute(t) AS mi,
         second(t) AS s, date_trunc('week', t) AS monday, last_day(d) AS last, COUNT(*) AS c
  FROM s [RANGE 1 DAY]
  GROUP BY year(t), quarter(t), month(d), dayofmonth(d), dayofyear(t), dayofweek(t), weekday(t),
           week(t), hour(t), minute(t), second(t), date_trunc('week', t), last_day(d);
CREATE QUERY counts AS
  SELECT unix_timestamp(t) AS a, unix_millis(t) AS b, timestamp_seconds(n) AS c,
         date_from_unix_date(5) AS e, dateadd(d, 3) AS g, datediff(d, t) AS h
  FROM s [ROWS 3];
CREATE QUERY texts AS
  SELECT lpad(w, 5, '*') AS a, rpad(w, 2) AS b, split_part(w, ' ', -1) AS c, concat_ws('-', w) AS e,
         initcap(w) AS g, reverse(w) AS h, repeat(w, 2) AS i, instr(w, 'o') AS j, left(w, 2) AS k,
         right(w, 2) AS l, CAST(t AS STRING) AS m, CAST(d AS STRING) AS o, CAST(x AS STRING) AS p,
         CAST(f AS STRING) AS r, CAST(n AS FLOAT) AS u, w || x AS v
  FROM s [RANGE 1 DAY] WHERE w RLIKE '^[^0-9]' OR w ILIKE '%O%';
CREATE QUERY numbers AS
  SELECT ln(x) AS a, log10(x) AS b, log2(x) AS c, exp(x) AS e, sin(x) AS g, cos(x) AS h,
         tan(x) AS i, asin(x) AS j, acos(x) AS k, atan(x) AS l, atan2(x, f) AS m, radians(x) AS n,
         degrees(x) AS o, pow(x, 3) AS p, round(x, 1) AS q, signum(x) AS r, pi() * e() AS u
  FROM s [RANGE 1 DAY];
"""


def test_a_script_of_a_user_agrees_with_the_oracle() -> None:
    rig = Rig(SCRIPT)
    times = [t for t in sorted(filter(None, VALUES[TIMESTAMP])) if 0 <= t < 253_402_300_800_000_000]
    words, numbers = VALUES[STRING], [*NUMBERS, 30.3, 300.7, 12_345_678.9, -1e-5]
    rig.feed(
        "s",
        [
            (words[i % len(words)], x, numbers[i % 7], VALUES[BIGINT][i % 9], DAYS[i % 9], t)
            for i, (x, t) in enumerate(zip(numbers, [*times, *times], strict=False))
            if (VALUES[BIGINT][i % 9] or 0) < 2**40
        ],
    )
    rig.end()
    rig.assert_oracle()


# Spark

EITHER = {"$", "\\s", "(?m)", "\\b", "\\B", "[["}
"""Parts of regular expressions that Java reads in another way than RE2."""


def asked_of_spark() -> list[Sample]:
    """Whatever Spark has a word for; the words of those that it must not compute are `SPELLED`."""
    found = []
    for sample in (*casts(), *(sample for name in PLAIN for sample in calls(name))):
        expr = sample.expr
        if isinstance(expr, Cast) and same_in_spark(expr.arg.type, expr.type):
            found.append(sample)
        elif isinstance(expr, Cast) and set(DECIMALS) & {expr.arg.type, expr.type}:
            found.append(replace(sample, rows=tuple(r for r in sample.rows if as_in_spark(r[0]))))
        if isinstance(expr, Call):
            same_text = expr.name != "try_cast" or same_in_spark(expr.args[0].type, expr.type)
            if is_read_otherwise(expr) or not same_text:
                continue
            if expr.name in IN_UNITS and expr.args[0] == Literal(None, STRING):
                continue
            if expr.name in BEYOND:
                sample = replace(sample, rows=tuple(filter(BEYOND[expr.name], sample.rows)))
            found.append(sample)
    return found


def exact_in_spark(sample: Sample) -> Sample:
    """Leave out the rows for which Spark rounds large DECIMALs on the way, overflows or gives up.

    Its remainders give up where quotients have many digits, and DIV wraps around; what is negated
    is rounded to 34 digits, and 38 nines to 1 where they are cut.
    """
    if not set(DECIMALS) & set(sample.types) or sample.types == (DECIMALS[0],) * 2:
        return sample
    name = sample.expr.name if isinstance(sample.expr, Call) else ""
    if name in ("div", "mod", "pmod", "try_mod"):
        return replace(sample, rows=sample.rows[:1])  # which has a null
    if name in ("negate", "abs"):
        rows = tuple(r for r in sample.rows if r[0] is None or len(r[0].as_tuple().digits) <= 34)
        return replace(sample, rows=rows)
    if name in ("try_cast", ""):
        rows = tuple(row for row in sample.rows if "9" * 9 not in str(row[0]))
        return replace(sample, rows=rows)
    return sample


def has_digits(sample: Sample) -> bool:
    """Whether a sample has to do with DECIMAL or BINARY."""
    return bool({*DECIMALS, BINARY} & {*sample.types, sample.expr.type})


def as_in_spark(value: Any) -> bool:
    """Whether Spark converts a value to DECIMAL as we do: it makes null of what is no number."""
    return value != "٣" and not (isinstance(value, float) and not math.isfinite(value))


def is_read_otherwise(call: Call) -> bool:
    """Whether a call has a regular expression that Java reads in another way than RE2."""
    if call.name != "rlike" and not call.name.startswith("regexp_"):
        return False
    pattern = call.args[1]
    text = (pattern.value if isinstance(pattern, Literal) else None) or ""
    counted = call.name in ("regexp_count", "regexp_replace")
    return any(part in text for part in EITHER) or (counted and text in EMPTY)


EMPTY = {"", "b*", "(?:a$)+", "(^|o)*$", "(?:(a)b)?", "(?s)^.*$"}
"""Expressions with empty matches, which RE2, unlike Java, does not count behind another one."""


def written_alike(value: Any) -> bool:
    """Whether Java before 19 writes a number with the fewest digits, as later ones do."""
    if not isinstance(value, float) or not math.isfinite(value):
        return True
    return value == 0 or 1e-3 <= abs(value) < 1e7


BEYOND: dict[str, Any] = {
    "lpad": lambda row: (row[1] or 0) < 1000,  # Spark would make texts of gigabytes
    "rpad": lambda row: (row[1] or 0) < 1000,
    "repeat": lambda row: (row[1] or 0) < 1000,
    "months_between": lambda row: -(2**63) not in row,  # Spark fails on the first day of all
    "format_number": lambda row: not 1e15 < abs(row[0] or 0) < math.inf and abs(row[1] or 0) < 400,
    "try_parse_timestamp": lambda row: row[0] != "+294248-01-01",  # Spark fails beyond TIMESTAMP
    "format_string": lambda row: all(map(written_alike, row)),
    "next_day": lambda row: abs(row[0] or 0) < 2**30,  # Spark leaves the range of DATE silently
    "trunc": lambda row: abs(row[0] or 0) < 2**30,
    "make_timestamp": lambda row: 0 <= (row[5] or 0) < 1e6,  # Spark's seconds are a DECIMAL(16, 6)
    "try_make_timestamp": lambda row: 0 <= (row[5] or 0) < 1e6 and abs(row[0] or 0) < 200_000,
}
"""Rows on which Spark may be asked, where not on all."""


def differences(args: tuple[Any, ...]) -> list[Any]:
    half = len(args) // 2
    return [a - b for a, b in zip(args[:half], args[half:], strict=True)]


def of_order(f: Any, order: Any, *args: Any) -> Any:
    parts = [f.abs(d) for d in differences(args)]
    largest = f.greatest(*parts, f.lit(0.0))
    total = sum((f.pow(part / largest, order) for part in parts), f.lit(0.0))
    plain_one = (largest > 0) & (largest < INFINITY) & (order < INFINITY)
    found = f.when(plain_one, largest * f.pow(total, 1 / order)).otherwise(largest)
    return f.when(order == 2, SPELLED["distance"](f, *args)).otherwise(found)


def overlaps(f: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    low, high, other, end = f.least(a, b), f.greatest(a, b), f.least(c, d), f.greatest(c, d)
    return ((low < end) & (other < high)) | (low == other)


def unless_null(make: Any) -> Any:
    def column(f: Any, *args: Any) -> Any:
        some = args[0].isNull()
        for arg in args[1:]:
            some = some | arg.isNull()
        return f.when(~some, make(f, *args))

    return column


def called(name: str) -> Any:
    return lambda f, *args: f.call_function(name, *args)


def made_time(name: str) -> Any:
    return lambda f, *args: f.call_function(name, *args[:5], args[5].cast("decimal(16,6)"))


SPELLED: dict[str, Any] = {
    "log_base": called("log"),
    "parse_timestamp": called("to_timestamp"),
    "try_parse_timestamp": called("try_to_timestamp"),
    "trunc": lambda f, d, unit: f.call_function("trunc", d, unit),
    **{name: made_time(name) for name in MAKERS[1:]},
    "timestampadd": lambda f, unit, n, t: f.timestamp_add(unit, n, t),
    "timestampdiff": lambda f, unit, start, end: f.timestamp_diff(unit, start, end),
    "overlaps": unless_null(overlaps),
    "distance": lambda f, *args: f.sqrt(sum((d * d for d in differences(args)), f.lit(0.0))),
    "distance_l1": lambda f, *args: sum((f.abs(d) for d in differences(args)), f.lit(0.0)),
    "distance_max": unless_null(
        lambda f, *args: f.greatest(*(f.abs(d) for d in differences(args)), f.lit(0.0))
    ),
    "distance_lp": unless_null(of_order),
}
"""In Spark's words: functions that Penstock computes itself and that have another name there."""


def tried_cast(column: Any, source: pa.DataType, target: pa.DataType) -> Any:
    """Spark's own conversion, of texts that are in our grammar."""
    from pyspark.sql import functions as f

    if source != STRING or target not in GRAMMAR:
        return column.try_cast(spark_type(target))
    through = spark_type(DOUBLE if target == FLOAT else target)
    return f.when(column.rlike(GRAMMAR[target]), column.try_cast(through)).cast(spark_type(target))


IN_UNITS = ("timestampadd", "timestampdiff")
"""Functions whose first argument is a word in Spark, no column."""


def spark_column(sample: Sample, columns: list[Any]) -> Any:
    from pyspark.sql import functions as f

    expr = sample.expr
    if isinstance(expr, Cast) and not same_in_spark(expr.arg.type, expr.type):
        return columns[0].cast(spark_type(expr.type))
    own = isinstance(expr, Call) and expr.name in ("floor", "ceil", "pmod")
    if isinstance(expr, Call) and own and set(DECIMALS) & set(sample.types):
        return called(expr.name)(f, *columns)  # DECIMALs are never pushed down to Spark
    if isinstance(expr, Call) and FUNCTIONS[expr.name].spark is None:
        args = [to_column(arg, columns) for arg in expr.args]
        if expr.name == "try_cast":
            return tried_cast(columns[0], sample.types[0], expr.type)
        if expr.name in IN_UNITS and isinstance(expr.args[0], Literal):
            args[0] = expr.args[0].value or "DAY"
        spelled = SPELLED.get(expr.name) or called(expr.name)
        return spelled(f, *args).cast(spark_type(expr.type))
    return to_column(expr, columns)


def nothing_where_refused(spark: SparkSession, column: Any) -> Any:
    """A struct of the value, or null where it raises: Spark has an expression for that."""
    from pyspark.sql import functions as f
    from pyspark.sql.classic.column import Column as ClassicColumn

    jvm: Any = spark._jvm
    convert = jvm.org.apache.spark.sql.classic.ExpressionUtils
    inner = convert.expression(f.struct(column.alias("value"))._jc)
    tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(inner)
    return ClassicColumn(convert.column(tried))


def spark_answers(spark: SparkSession, samples: list[Sample]) -> list[list[Any]]:
    """Ask Spark for all samples at once: one wide table, in which each has columns of its own."""
    height = max(len(sample.rows) for sample in samples)
    columns: dict[str, pa.Array] = {"row": pa.array(range(height))}
    names: dict[tuple[Any, Any], list[str]] = {}
    for sample in samples:
        if (sample.types, sample.rows) in names:
            continue
        own = names[sample.types, sample.rows] = []
        for values in sample.arrays(list(range(len(sample.rows)))):
            own.append(f"c{len(columns)}")
            zoned = pa.timestamp("us", "UTC") if values.type == TIMESTAMP else values.type
            padded = pa.concat_arrays([values, pa.nulls(height - len(values), values.type)])
            columns[own[-1]] = padded.cast(zoned)
    table = spark.createDataFrame(pa.table(columns)).coalesce(1)
    chosen = []
    for number, sample in enumerate(samples):
        args = [table[name] for name in names[sample.types, sample.rows]]
        tried = nothing_where_refused(spark, spark_column(sample, args))
        chosen.append(tried.alias(f"e{number}"))
    result = table.select("row", *chosen).toArrow().sort_by("row")
    answers = []
    for number, sample in enumerate(samples):
        tried = result[f"e{number}"].combine_chunks()
        given = tried.type.field(0).type
        if is_decimal(given) or is_decimal(sample.expr.type):
            assert given == sample.expr.type, f"{sample} is {given} in Spark"
        values = plain(tried.field(0).cast(sample.expr.type))
        refused = tried.is_null().to_pylist()
        found = [REFUSED if no else v for no, v in zip(refused, values, strict=True)]
        answers.append(found[: len(sample.rows)])
    return answers


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["plain types", "DECIMAL and BINARY"])
def test_engine_and_spark_agree_on_every_function_and_conversion(
    spark: SparkSession, kind: str
) -> None:
    """The engine is where the oracle is, as shown above; so the oracle stands for it here."""
    exact = kind != "plain types"
    samples = [exact_in_spark(s) for s in asked_of_spark() if has_digits(s) == exact]
    samples = samples[::2] if exact else samples
    settings = {"spark.sql.codegen.wholeStage": "false"}
    settings["spark.sql.codegen.factoryMode"] = "NO_CODEGEN"  # a few rows are not worth compiling
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    wrong = []
    try:
        for first in range(0, len(samples), 100):
            asked = samples[first : first + 100]
            for sample, found in zip(asked, spark_answers(spark, asked), strict=True):
                expr = sample.expr
                own = isinstance(expr, Call) and FUNCTIONS[expr.name].spark is None
                rows = zip(sample.rows, found, oracle_answers(sample), strict=True)
                wrong += [
                    f"{sample} on {row}: Spark {theirs!r}, engine {ours!r}"
                    for row, theirs, ours in rows
                    if not same(theirs, ours, own)
                ]
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    assert wrong == []
