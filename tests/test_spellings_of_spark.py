"""One text, two systems: expressions as users of Spark type them, bound here and parsed there.

Each line is evaluated by the engine, by the oracle and by Spark's own parser and functions, over
one table of random values with nulls.  So it is about how calls and operators are written and how
they bind; what functions give on hostile values is in `tests.test_functions`.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.cql import bind_scalar
from penstock.errors import PenstockError
from penstock.expr.arrow import evaluate
from penstock.expr.nodes import Expr
from penstock.expr.types import BIGINT, DATE, DOUBLE, INT, STRING
from penstock.model import TIMESTAMP, Field, Schema
from penstock.reference.expressions import evaluate as in_oracle
from tests.test_functions import plain, same

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = {"a": INT, "b": INT, "n": BIGINT, "x": DOUBLE, "w": STRING, "d": DATE, "t": TIMESTAMP}
SPELLINGS = r"""
a & b
a | b ^ n & 7
1 + a & 3
~a - 1
a << 2 > b
(a >> 1) + (a >>> 30)
a & 1 = 0 AND b | 1 <> 3
! (a > b)
- a & 3
a BETWEEN 1 | 2 AND 4 ^ 9
w LIKE 'a/%%' ESCAPE '/'
w NOT LIKE '%#_%' ESCAPE '#'
w ILIKE '%!%' ESCAPE '!'
try_cast(w AS INT)
try_cast(x AS TINYINT)
extract(YEAR FROM t)
extract(qtr FROM t) + extract(mons FROM d)
extract(week FROM d)
extract(doy FROM t) - extract(D FROM t)
extract(dow FROM d) * 10 + extract(DAYOFWEEK_ISO FROM t)
extract(yearofweek FROM t)
extract(hrs FROM t) * 60 + extract(min FROM t)
date_part('DAYS', d)
datepart('years', t)
position('b' IN w)
position('b', w, 2)
locate('b', w)
trim(BOTH 'ab' FROM w)
trim(LEADING 'ab' FROM w)
trim(TRAILING 'ab' FROM w)
trim('ab' FROM w)
trim(w)
btrim(w, 'ab')
ltrim('ab', w)
substring(w FROM 2 FOR 3)
substr(w, 2)
overlay(w PLACING '日本' FROM 2)
overlay(w PLACING '' FROM 2 FOR 2)
timestampadd(MONTH, a, t)
timestampadd(HOUR, a, d)
timestampdiff(MONTH, t, d)
dateadd(WEEK, b, t)
date_add(d, a)
dateadd(d, a)
datediff(DAY, d, t)
datediff(d, t)
date_diff(HOUR, d, t)
to_date('2024/02/' || '09', 'yyyy/MM/dd')
to_timestamp(date_format(t, 'dd.MM.yyyy HH:mm'), 'dd.MM.yyyy HH:mm')
try_to_timestamp(w, 'HH:mm')
try_to_timestamp(w)
try_to_date(w, 'yyyy')
unix_timestamp(t)
unix_timestamp('2016-04-08', 'yyyy-MM-dd')
to_unix_timestamp('2016-04-08 10:11:12')
from_unixtime(n)
from_unixtime(n, 'yyyy-MM')
to_char(t, 'yyyyMM')
from_utc_timestamp(t, 'Europe/Athens')
format_string('%3d|%s|%,.2f of %2$-9s.', a, w, x)
printf('%05d %x', a, n)
to_utc_timestamp(d, 'America/New_York')
convert_timezone('America/Los_Angeles', 'Asia/Tokyo', t)
convert_timezone('Asia/Kathmandu', t)
to_varchar(d, 'd MMM')
decode(a, 1, 'one', 2, 'two', NULL, 'none', 'other')
decode(a, 1, w)
nvl2(a, w, 'none')
if(a > 0, x, n)
nullif(a, b)
zeroifnull(a)
nullifzero(a)
positive(x)
typeof(a)
typeof(d)
int(x)
date(t)
double(a) / 2
log(2, 8)
space(2) || w
mod(n, 7)
pmod(n, 7)
negative(a)
greatest(a, b, 0)
equal_null(a, b)
char(a) || chr(b)
sha(w)
getbit(a, 3)
hash(w, a, d)
xxhash64(t, x)
regexp_replace(w, '([ab])', '<$1>')
regexp_extract(w, '([a-z])([a-z])', 2)
elt(2, w, 'b')
make_date(2024, 2, 29)
last_day(d)
monthname(t) || dayname(d)
a <=> b
like(w, 'a%')
ilike(w, 'A%')
rlike(w, '^a')
regexp(w, 'b')
regexp_like(w, 'b$')
a DIV 2
isnull(a) OR isnotnull(b)
isnan(x)
ifnull(a, b) + nvl(b, 0)
left(w, 2) || right(w, 1)
ucase(w) || lcase(w)
len(w) + char_length(w)
signum(x)
pow(a, 2)
weekofyear(d)
startswith(w, 'a') AND NOT endswith(w, 'b')
lpad(w, 5) || rpad(w, 5, 'é')
initcap(w)
repeat(w, 2)
width_bucket(x, -10, 10, 5)
bit_count(a) + bit_length(w)
conv(w, 10, 2)
crc32(w)
bin(a)
months_between(t, d)
next_day(d, 'TU')
trunc(t, 'month')
date_trunc('month', t)
weekday(d)
unix_date(d)
timestamp_seconds(n)
levenshtein(w, 'ab')
soundex(w)
sha2(w, 256)
to_timestamp_ltz(string(t))
try_add(a, b)
try_divide(a, b)
factorial(abs(a))
cast(a AS STRING) || w
"""
TEXTS = SPELLINGS.strip().splitlines()


def table() -> pa.Table:
    chance = random.Random(16)

    def drawn(type_: pa.DataType) -> Any:
        if chance.random() < 0.1:
            return None
        if type_ == STRING:
            return "".join(chance.choice("ab_#%!1:日é ") for _ in range(chance.randrange(8)))
        if type_ == DOUBLE:
            return round(chance.uniform(-300, 300), 2)
        if type_ == TIMESTAMP:
            return chance.randrange(0, 2 * 10**15)
        return chance.randrange(-9, 40) if type_ == INT else chance.randrange(0, 20_000)

    return pa.table(
        {name: pa.array([drawn(t) for _ in range(200)], t) for name, t in COLUMNS.items()}
    )


SCHEMA = Schema(tuple(Field(name, type_) for name, type_ in COLUMNS.items()))
TABLE = table()


def bound(text: str) -> Expr:
    return bind_scalar(text, SCHEMA)[0]


def engine_answers(expr: Expr) -> list[Any]:
    columns = [column.combine_chunks() for column in TABLE.columns]
    return plain(evaluate(expr, columns, len(TABLE)))


@pytest.mark.parametrize("text", TEXTS)
def test_engine_and_oracle_agree_on_a_text(text: str) -> None:
    expr = bound(text)
    rows = zip(*(plain(column.combine_chunks()) for column in TABLE.columns), strict=True)
    expected = [in_oracle(expr, row) for row in rows]
    found = engine_answers(expr)
    assert [pair for pair in zip(found, expected, strict=True) if not same(*pair, True)] == []


@pytest.mark.spark
def test_spark_reads_the_same_texts_alike(spark: SparkSession) -> None:
    fields = [
        pa.field(f.name, pa.timestamp("us", "UTC") if f.type == TIMESTAMP else f.type)
        for f in TABLE.schema
    ]
    frame = spark.createDataFrame(TABLE.cast(pa.schema(fields))).coalesce(1)
    chosen = [f"{text} AS e{number}" for number, text in enumerate(TEXTS)]
    answers = frame.selectExpr(*chosen).toArrow()
    wrong = []
    for number, text in enumerate(TEXTS):
        expr = bound(text)
        theirs = plain(answers[f"e{number}"].combine_chunks().cast(expr.type))
        pairs = zip(engine_answers(expr), theirs, strict=True)
        wrong += [f"{text}: engine {a!r}, Spark {b!r}" for a, b in pairs if not same(a, b, True)]
    assert wrong == []


MISTAKES = [
    ("w LIKE 'a/b' ESCAPE '/'", "a pattern must have %, _ or / after /, got 'a/b'"),
    ("w LIKE 'a' ESCAPE 'ab'", "ESCAPE must be followed by one character in quotes"),
    ("w LIKE w ESCAPE '/'", "a pattern with ESCAPE must be a text in quotes"),
    ("TRY_CAST(w, 'INT')", "TRY_CAST (value must be followed by AS"),
    ("TRY_CAST(t AS INT)", "use unix_micros(x), unix_millis(x) or unix_seconds(x)"),
    ("EXTRACT(century FROM t)", "a field of a time must be known, got 'century'"),
    ("date_format(t, 'yyyy-QQQ')", "got 'QQQ' in 'yyyy-QQQ'"),
    ("to_date(w, 'EEE')", "a format to read times must be made of y, yy, yyyy"),
    ("to_timestamp(w, 'HH hh')", "must have each part once"),
    ("regexp_extract(w, '(a)', 2)", "the number of a group must be from 0 to 1, got 2"),
    ("regexp_replace(w, 'a', '$1')", "a replacement must name groups that there are, got $1"),
    ("regexp_count(w, 'a(')", "cannot use its constant"),
    ("regexp_count(w, w)", "must get a constant as argument 2"),
    ("trunc(d, 'hour')", "the unit of trunc must be known, got 'hour'"),
    ("format_string('%d', x)", "'%d' must get a whole number, got DOUBLE; use CAST"),
    ("format_string('%5.2d', a)", "%d must have no digits behind a point"),
    ("format_string('%s %s', a)", "'%s' must have a value, got 1 of them"),
    ("format_string('100 %', a)", "got '%' in '100 %'"),
    ("format_string('%s', t)", "of a time, date_format(t, format)"),
    ("format_string(w, a)", "must get a constant as argument 1"),
    ("from_utc_timestamp(t, 'Athens')", "got 'Athens'; did you mean 'Europe/Athens'?"),
    ("to_utc_timestamp(t, 'EST')", "the name of a region such as 'Europe/Athens'"),
    ("timestampadd(CENTURY, 1, t)", "no column 'CENTURY'"),
    ("timestampadd('century', 1, t)", "a unit of time must be known, got 'century'"),
    ("a & x", "must get two integers, got INT, DOUBLE"),
    ("mask(w, 'ab')", "a letter that masks must be one character"),
]


@pytest.mark.parametrize(("text", "told"), MISTAKES)
def test_a_mistake_gets_its_sentence(text: str, told: str) -> None:
    with pytest.raises(PenstockError) as raised:
        bound(text)
    assert told in str(raised.value)
