"""What a user can get wrong in CQL: the sentence, and the text that is underlined."""

from __future__ import annotations

import random

import pytest

from penstock.catalog import Catalog
from penstock.cql import bind, bind_query, bind_scalar, parse_script
from penstock.errors import NotSupportedError, QueryError, underline

SCRIPT = """
CREATE SINK hot USING jsonl OPTIONS (path 'out/hot');
CREATE STREAM temperature (sensor INT, city STRING, celsius DOUBLE, t TIMESTAMP)
  USING replay TIMESTAMP BY t;
CREATE STREAM a (k STRING, x DOUBLE, n INT, t BIGINT) USING replay TIMESTAMP BY t;
CREATE STREAM b (k STRING, y BIGINT, u BIGINT) USING replay TIMESTAMP BY u;
CREATE TABLE city (name STRING, lat DOUBLE) USING csv;
CREATE VIEW recent AS SELECT * FROM temperature [PARTITION BY city ROWS 20];
CREATE QUERY athens INTO hot AS SELECT r.city FROM recent r, city WHERE name = r.city;
"""


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    found = Catalog()
    for parsed in parse_script(SCRIPT):
        found.add(bind(parsed, found).definition)
    return found


def run(text: str, catalog: Catalog) -> QueryError | None:
    try:
        for parsed in parse_script(text):
            bind(parsed, catalog)
    except QueryError as error:
        return error
    return None


def mistake(text: str, catalog: Catalog) -> QueryError:
    error = run(text, catalog)
    assert error is not None
    return error


QUERIES = [
    # names
    ("SELECT k FROM aa", "there is no stream, table or view 'aa'; did you mean 'a'?", "aa"),
    ("SELECT k FROM nothing", "known: a, b, city, recent, temperature", "nothing"),
    ("SELECT city FROM athens", "'athens' is a query, and FROM reads streams", "athens"),
    ("SELECT celcius FROM temperature", "did you mean 'celsius'?", "celcius"),
    ("SELECT w.kk FROM a w", "there is no column 'kk' in 'w'", "w.kk"),
    ("SELECT w.k FROM a", "there is no 'w' in FROM; known: a", "w"),
    ("SELECT w.* FROM a", "there is no 'w' in FROM", "w"),
    ("SELECT k FROM a, b WHERE n = y", "the column 'k' is ambiguous; write one of a.k, b.k", "k"),
    ("SELECT q FROM (SELECT k q, x q FROM a)", "the column 'q' is ambiguous; give the", "q"),
    ("SELECT a.k FROM a, a", "the name 'a' is used twice in FROM", "a"),
    ("SELECT p.k FROM a p, b AS P", "the name 'P' is used twice in FROM", "P"),
    ("SELECT k, x k FROM a", "the output has two columns 'k'; give it another name with AS", "k"),
    ("SELECT *, x AS k FROM a", "the output has two columns 'k'; give it another name with", "k"),
    ("SELECT * EXCEPT (k, x, n, t) FROM a", "must leave a column", "*"),
    ("SELECT * EXCEPT (q) FROM a", "there is no column 'q'", "q"),
    ("SELECT * EXCEPT (k) FROM a, b WHERE n = y", "the column 'k' is ambiguous; write one of", "k"),
    ("SELECT * EXCEPT k FROM a", "* EXCEPT must be followed by columns in parentheses", "k"),
    ("SELECT * EXCEPT (x + 1) FROM a", "* EXCEPT takes names of columns", "x + 1"),
    ("SELECT k, x + COUNT(*) FROM a GROUP BY ALL", "column x must be in GROUP BY", "x"),
    ("SELECT k FROM a LIMIT 5 OFFSET x", "OFFSET must be followed by a whole number", "x"),
    ("SELECT k FROM a LIMIT 5 OFFSET -1", "OFFSET must be followed by a whole number", "-"),
    ("SELECT * FROM a q(r)", "an alias must name all 4 columns or none, got 1", "r"),
    ("SELECT * FROM VALUES (1, 2), (3)", "must have the same number of values, got 2 and 1", "3"),
    ("SELECT * FROM VALUES (1), ('a')", "must have one type, got INT and STRING", "'a'"),
    ("SELECT * FROM VALUES (NULL)", "column 1 of VALUES needs a type", "NULL"),
    ("SELECT * FROM VALUES (x)", "there is no column 'x'", "x"),
    ("SELECT * FROM VALUES (1 DIV 0)", "divide by zero", "1 DIV 0"),
    ("SELECT x.y.z FROM a", "there is no 'x' in FROM", "x"),
    ("SELECT a.x.z FROM a", "a STRUCT before .z, got DOUBLE", "a.x.z"),
    ("SELECT k FROM a.b", "names have one part, got 'a.'", "."),
    ("SELECT p.k FROM a p JOIN b USING (x)", "there is no column 'x'", "x"),
    ("SELECT p.k FROM a p JOIN b q ON p.k = r.k", "there is no 'r' in FROM; known: p, q", "r"),
    ("WITH w AS (SELECT k FROM a), w AS (SELECT k FROM b) SELECT k FROM w", "WITH names 'w'", "w"),
    # functions and types
    ("SELECT uper(k) FROM a", "there is no function 'uper'; did you mean 'upper'?", "uper"),
    ("SELECT upper(x) FROM a", "must get a STRING as argument 1, got DOUBLE", "upper(x)"),
    ("SELECT k FROM a WHERE k > 5", "two values of one type (use CAST), got STRING, INT", "k > 5"),
    ("SELECT k FROM a WHERE x", "WHERE must be a condition (BOOLEAN), got DOUBLE", "x"),
    ("SELECT k FROM a WHERE NOT n", "must get a BOOLEAN as argument 1, got INT", "NOT n"),
    ("SELECT k FROM a JOIN b ON a.n + 1", "ON must be a condition (BOOLEAN), got INT", "a.n + 1"),
    ("SELECT k + 1 AS z FROM a", "got STRING, INT", "k + 1"),
    (
        "SELECT CAST(k AS DECIMAL(9, 20)) z FROM a",
        "0 to p stand behind the point",
        "DECIMAL(9, 20)",
    ),
    ("SELECT CAST(k AS CHAR(9 z FROM a", "'(' must be closed by ')', got the end", "a"),
    ("SELECT CAST(k AS ARRAY) z FROM a", "must say what it holds, ARRAY<type>", "ARRAY"),
    ("SELECT CAST(k AS ARRAY<INT>) z FROM a", "from_json(x,", "CAST(k AS ARRAY<INT>)"),
    ("SELECT k.x FROM a", "there is no 'k' in FROM", "k"),
    ("SELECT MIN(array(k)) z FROM a", "without others inside, got ARRAY<STRING>", "MIN(array(k))"),
    ("SELECT MODE(array(k)) z FROM a", "without others inside", "MODE(array(k))"),
    ("SELECT MAX_BY(k, array(k)) z FROM a", "without others inside", "MAX_BY(k, array(k))"),
    (
        "SELECT DISTINCT map(k, 1) z FROM a",
        "which a MAP is not",
        "SELECT DISTINCT map(k, 1) z FROM a",
    ),
    (
        "SELECT 1 z FROM a GROUP BY map(k, 1)",
        "must be comparable",
        "SELECT 1 z FROM a GROUP BY map(k, 1)",
    ),
    ("SELECT k[0] FROM a", "an ARRAY or MAP before [..]", "k[0]"),
    ("SELECT (k).x FROM a", "a STRUCT before .x", "(k).x"),
    ("SELECT k FROM a WHERE map(k, 1) = map(k, 2)", "a MAP is not", "map(k, 1) = map(k, 2)"),
    ("SELECT CAST(k AS STRNG) z FROM a", "did you mean 'STRING'?", "STRNG"),
    ("SELECT CAST(n > 1 AS DATE) z FROM a", "BOOLEAN", "CAST(n > 1 AS DATE)"),
    ("SELECT CASE WHEN n THEN 1 END z FROM a", "a condition must be BOOLEAN, got INT", "n"),
    (
        "SELECT CASE WHEN n > 1 THEN 1 ELSE 'a' END z FROM a",
        "the branches of CASE must have one type, got INT, STRING",
        "CASE WHEN n > 1 THEN 1 ELSE 'a' END",
    ),
    ("SELECT NULL AS z FROM a", "NULL needs a type here, such as CAST(NULL AS INT)", "NULL"),
    ("SELECT 1" + "0" * 38 + " z FROM a", "at most 38 digits", "1" + "0" * 38),
    ("SELECT TIMESTAMP '2024-31-01' z FROM a", "'2024-31-01'", "TIMESTAMP '2024-31-01'"),
    ("SELECT n + INTERVAL 5 SECONDS z FROM a", "got INT", "n + INTERVAL 5 SECONDS"),
    ("SELECT t * INTERVAL 5 DAYS z FROM temperature", "must be added to", "t * INTERVAL 5 DAYS"),
    ("SELECT t + INTERVAL 5 z FROM temperature", "there is no unit 'z' of time", "INTERVAL 5 z"),
    ("SELECT INTERVAL 5 DAYS AS z FROM a", "an INTERVAL must be added", "INTERVAL 5 DAYS"),
    # aggregates
    ("SELECT corr(x) FROM a", "CORR must have two arguments, corr(x, y), got 1", "corr(x)"),
    ("SELECT percentile(x, 2) FROM a", "a number from 0 to 1 as p, got 2", "percentile(x, 2)"),
    ("SELECT every(x) FROM a", "must get a BOOLEAN, got DOUBLE; compare it", "every(x)"),
    ("SELECT string_agg(k, k) FROM a", "a constant text as delimiter", "string_agg(k, k)"),
    ("SELECT first(x, k) FROM a", "TRUE as a second", "first(x, k)"),
    (
        "SELECT first(q.x) FROM (SELECT k, x FROM a) q",
        "write MIN_BY(x, t) with the column t that you mean",
        "first(q.x)",
    ),
    ("SELECT grouping(k) FROM a GROUP BY k", "must stand beside GROUP BY GROUPING SETS", None),
    (
        "SELECT grouping(n), count(*) FROM a GROUP BY ROLLUP (k)",
        "the argument of GROUPING must be a key",
        "grouping(n)",
    ),
    (
        "SELECT count(*) FROM a WHERE grouping(k) = 1 GROUP BY ROLLUP (k)",
        "GROUPING must stand in SELECT, HAVING or ORDER BY",
        "grouping(k)",
    ),
    (
        "SELECT count(*) FROM a GROUP BY k GROUPING SETS ((n))",
        "GROUPING SETS must name keys of GROUP BY",
        "n",
    ),
    (
        "SELECT count(*) FROM a GROUP BY CUBE (k, x, n, t, x + 1, n + 1, t + 1)",
        "at most 64 sets of keys, got 128",
        None,
    ),
    ("SELECT k FROM a WHERE AVG(x) > 1", "such as AVG cannot stand in WHERE; use HAVING", "AVG(x)"),
    ("SELECT a.k FROM a JOIN b ON max(x) = 1", "such as MAX cannot stand in ON", "max(x)"),
    ("SELECT k FROM a GROUP BY max(x)", "such as MAX cannot stand in GROUP BY", "max(x)"),
    ("SELECT max(x) m FROM a GROUP BY m", "GROUP BY cannot use an aggregate", "m"),
    ("SELECT max(x) m FROM a GROUP BY 1", "GROUP BY cannot use an aggregate", "1"),
    ("SELECT avg(max(x)) FROM a", "cannot stand inside another one (AVG)", "max(x)"),
    ("SELECT k, max(x) FROM a", "column k must be in GROUP BY or inside an aggregate", "k"),
    ("SELECT k, n + 1 FROM a GROUP BY k", "column n must be in GROUP BY", "n"),
    ("SELECT * FROM a GROUP BY k", "column x must be in GROUP BY", "*"),
    ("SELECT k FROM a GROUP BY k HAVING x > 1", "column x must be in GROUP BY", "x"),
    ("SELECT k FROM a GROUP BY k ORDER BY x LIMIT 1", "column x must be in GROUP BY", "x"),
    ("SELECT k FROM a GROUP BY 2", "a position in GROUP BY must be from 1 to 1", "2"),
    ("SELECT avg(k) FROM a", "must get a number, got STRING", "avg(k)"),
    ("SELECT sum(*) FROM a", "must get an argument", "sum(*)"),
    ("SELECT sum(x, n) FROM a", "SUM must have one argument, got 2", "sum(x, n)"),
    ("SELECT upper(DISTINCT k) FROM a", "belong to aggregates", "upper(DISTINCT k)"),
    ("SELECT k FROM a GROUP BY NULL", "GROUP BY must not be NULL", "NULL"),
    # windows
    ("SELECT k FROM a [ROWS 0]", "a number of rows must be a whole number from 1", "0"),
    ("SELECT k FROM a [ROWS 1.5]", "a number of rows must be a whole number from 1", "1.5"),
    ("SELECT k FROM a [ROWS 5 SECONDS]", "ROWS counts elements and has no unit", "5 SECONDS"),
    ("SELECT k FROM a [ROWS]", "ROWS must be followed by a number, got ']'", "]"),
    ("SELECT k FROM a [RANGE]", "RANGE must be followed by a duration", "]"),
    ("SELECT k FROM a [RANGE 0]", "a duration must be more than 0, got 0", "0"),
    ("SELECT k FROM a [RANGE -5]", "a duration must be more than 0, got -5", "-5"),
    (
        "SELECT k FROM a [RANGE 5 SECONDS]",
        "stream a counts time in integers, so a duration must be a bare number, got 5 SECONDS",
        "5 SECONDS",
    ),
    ("SELECT k FROM a [RANGE 99999999999999999999]", "below 2**61", "99999999999999999999"),
    ("SELECT t FROM temperature [RANGE 5 SEKONDS]", "did you mean 'SECONDS'?", "5 SEKONDS"),
    ("SELECT t FROM temperature [RANGE 0.1 MICROSECONDS]", "a whole number of", "0.1 MICROSECONDS"),
    ("SELECT t FROM temperature [AFTER 5]", "counts time in timestamps, so a point", "5"),
    ("SELECT t FROM temperature [AFTER 'noon']", "'YYYY-MM-DD HH:MM:SS', got 'noon'", "'noon'"),
    ("SELECT k FROM a [AFTER '2024-01-01']", "must be an integer", "'2024-01-01'"),
    ("SELECT k FROM a [AFTER]", "AFTER must be followed by a point in time", "]"),
    ("SELECT k FROM a [AFTER 5 AND ROWS 3]", "AND must be followed by AFTER or BEFORE", "ROWS"),
    ("SELECT k FROM a [AFTER 9 AND BEFORE 5]", "must not be later", "[AFTER 9 AND BEFORE 5]"),
    ("SELECT k FROM a [RANGE 5 START k]", "START must be followed by a point in time", "k"),
    (
        "SELECT k FROM a [PARTITION BY k RANGE 5]",
        "PARTITION BY changes nothing for RANGE; use it with ROWS or SESSION",
        "[PARTITION BY k RANGE 5]",
    ),
    ("SELECT k FROM a [PARTITION BY z ROWS 5]", "stream a has no column 'z'; known: k", "z"),
    ("SELECT k FROM a [PARTITION BY k + 1 ROWS 5]", "PARTITION BY takes names of columns", "+"),
    ("SELECT k FROM a [NOW ROWS 5]", "NOW and ROWS cannot stand together", "[NOW ROWS 5]"),
    ("SELECT k FROM a [ROWS 5 ROWS 6]", "ROWS can be said once in a window", "ROWS 6"),
    ("SELECT k FROM a [SLIDE 5]", "SLIDE must follow ROWS N, RANGE T or HOP T", "SLIDE"),
    ("SELECT k FROM a [HOPP 5]", "'HOPP' is not part of a window; a window is [ROWS N]", "HOPP"),
    ("SELECT k FROM a [HOP 5]", "HOP T must be followed by SLIDE D, got ']'; a window that", "]"),
    ("SELECT k FROM a [HOP SLIDE 5]", "HOP must be followed by a duration", "SLIDE"),
    ("SELECT k FROM a [HOP 5 SLIDE 0]", "a duration must be more than 0, got 0", "0"),
    ("SELECT k FROM a [TUMBLE UNBOUNDED]", "TUMBLE must be followed by a dur", "UNBOUNDED"),
    ("SELECT k FROM a [TUMBLE 5 SLIDE 2]", "use [HOP T SLIDE D] for another SLIDE", "SLIDE"),
    ("SELECT k FROM a [TUMBLE 4611686018427387904]", "below 2**61", "4611686018427387904"),
    ("SELECT k FROM a [TUMBLE 5 RANGE 3]", "TUMBLE and RANGE cannot stand together", None),
    ("SELECT k FROM a [RANGE 5 OFFSET 2]", "OFFSET must follow TUMBLE T or HOP T SL", "OFFSET"),
    ("SELECT k FROM a [PARTITION BY k TUMBLE 5]", "PARTITION BY changes nothing for TUMBLE", None),
    (
        "SELECT window_time FROM a [TUMBLE 5]",
        "there is no window_time; the time of a",
        "window_time",
    ),
    ("SELECT window_start FROM a [RANGE 5]", "no column 'window_start'", "window_start"),
    ("SELECT k FROM a []", "a window is [ROWS N], [RANGE T]", "[]"),
    ("SELECT k FROM a [ROWS 5", "'[' must be closed by ']', got the end", "5"),
    ("SELECT k FROM a [ROWS 5] w [ROWS 6]", "can have one window, got two", "[ROWS 6]"),
    ("SELECT k FROM a [ROWS UNBOUNDED SLIDE 2]", "ROWS UNBOUNDED has no SLIDE", None),
    ("SELECT name FROM city [ROWS 5]", "table city is static; leave the window out", "[ROWS 5]"),
    ("SELECT k FROM a WHERE x [ROWS 5] > 1", "a window in square brackets must follow", "["),
    # functions of windows
    (
        "SELECT k FROM TUMBLE(a, t, '5 minutes')",
        "TUMBLE must be given its stream as TABLE name, got 'a'; write TUMBLE(TABLE a, "
        "DESCRIPTOR(t), INTERVAL '5' MINUTES)",
        "a",
    ),
    (
        "SELECT k FROM TUMBLE(TABLE a, t, 5)",
        "TUMBLE must be given the time column as DESCRIPTOR(column), got 't'; write TUMBLE(TABLE "
        "a, DESCRIPTOR(t), INTERVAL '5' MINUTES)",
        "t",
    ),
    (
        "SELECT k FROM TUMBLE(TABLE a, DESCRIPTOR(k), 5)",
        "DESCRIPTOR must name the time column of stream a, t, got k; write DESCRIPTOR(t)",
        "k",
    ),
    ("SELECT k FROM TUMBLE(TABLE a, DESCRIPTOR(z), 5)", "stream a has no column 'z'", "z"),
    ("SELECT k FROM TUMBLE(TABLE a, DESCRIPTOR(t, k), 5)", "DESCRIPTOR takes one column", ","),
    (
        "SELECT k FROM TUMBLE(TABLE (SELECT k, COUNT(*) AS n FROM a GROUP BY k), DESCRIPTOR(n), 5)",
        "DESCRIPTOR must name a column that holds the time at which a row comes, and the sub-query "
        "has none; write it with a window in square brackets",
        "n",
    ),
    (
        "SELECT k FROM TUMBLE(TABLE (SELECT k, window_end FROM a [TUMBLE 5]), "
        "DESCRIPTOR(window_end), 10)",
        "the rows of a window come at its end, so a window that ends where the next one begins "
        "would be counted to that one; write (..) [RANGE T SLIDE T]",
        "window_end",
    ),
    (
        "SELECT k FROM HOP(TABLE a, DESCRIPTOR(t), 10, 5)",
        "HOP must be given first how far it slides and then its size, which is not less: HOP(TABLE "
        "a, DESCRIPTOR(t), 5, 10); windows with gaps between them are [HOP T SLIDE D]",
        "10, 5",
    ),
    (
        "SELECT k FROM HOP(TABLE a, DESCRIPTOR(t), 10)",
        "HOP must have SIZE too; write HOP(TABLE a, DESCRIPTOR(t), INTERVAL '1' MINUTE, INTERVAL "
        "'5' MINUTES), first how far it slides and then its size",
        "HOP(TABLE a, DESCRIPTOR(t), 10)",
    ),
    ("SELECT k FROM TUMBLE(TABLE a)", "TUMBLE must have TIMECOL and SIZE too; write", None),
    ("SELECT k FROM TUMBLE(TABLE a, DESCRIPTOR(t), k)", "SIZE of TUMBLE must be a duration", "k"),
    ("SELECT k FROM TUMBLE(TABLE a, DESCRIPTOR(t), 5, 1, 2)", "TUMBLE has no more arg", "2"),
    ("SELECT k FROM TUMBLE(SIZE => 5, TABLE a)", "all arguments must have names or", "TABLE"),
    ("SELECT k FROM TUMBLE(SIZE => 5, SIZE => 6)", "SIZE can be given once", "SIZE"),
    ("SELECT k FROM TUMBLE(GAP => 5)", "TUMBLE has no argument 'GAP', only DATA, TIMECOL", "GAP"),
    ("SELECT k FROM TUMBLE(TABLE a PARTITION BY k, DESCRIPTOR(t), 5)", "has no PARTITION", None),
    ("SELECT k FROM SESSION(TABLE a PARTITION BY z, DESCRIPTOR(t), 5)", "no column 'z'", "z"),
    ("SELECT k FROM TABLE(a)", "TABLE(..) in FROM must hold TUMBLE(..), HOP(..) or SES", "a"),
    ("SELECT k FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(t), 5)", "'(' must be closed by ')'", None),
    ("SELECT name FROM TUMBLE(TABLE city, DESCRIPTOR(name), 5)", "table city is static", None),
    ("SELECT k FROM TUMBLE(TABLE a, DESCRIPTOR(t), 5) [ROWS 3]", "one window, got two", None),
    (
        "SELECT t FROM TUMBLE(TABLE temperature, DESCRIPTOR(t), INTERVAL '5' LIGHTYEARS)",
        "there is no unit 'LIGHTYEARS' of time",
        "INTERVAL '5' LIGHTYEARS",
    ),
    # windows as Spark writes them
    ("SELECT window(t, 5), COUNT(*) FROM a GROUP BY window(t, 5)", "in SELECT, write wind", None),
    (
        "SELECT window, COUNT(*) FROM a GROUP BY window(t, 5)",
        "window is two columns; write window.start and window.end",
        "window",
    ),
    (
        "SELECT COUNT(*) FROM a GROUP BY TUMBLE(t, INTERVAL '5' MINUTES)",
        "a window stands behind its stream: write FROM a [TUMBLE 5 MINUTES] and GROUP BY "
        "window_start, window_end in place of TUMBLE(..)",
        "TUMBLE(t, INTERVAL '5' MINUTES)",
    ),
    ("SELECT HOP_START(t, 5) FROM a GROUP BY k", "HOP_START(..) is no function of SELECT", None),
    ("SELECT COUNT(*) FROM a GROUP BY window(t)", "must have the time column and a dur", None),
    ("SELECT COUNT(*) FROM a GROUP BY window(n, 5)", "the time column of stream a, t, got n", "n"),
    ("SELECT COUNT(*) FROM a GROUP BY window(t + 1, 5)", "must be given the time column", "t + 1"),
    ("SELECT COUNT(*) FROM a GROUP BY window(t, 'soon')", "durations of one number and", "'soon'"),
    ("SELECT COUNT(*) FROM a GROUP BY window(t, 5), window(t, 6)", "one window, got two", None),
    ("SELECT COUNT(*) FROM a [ROWS 5] GROUP BY window(t, 5)", "which has one already", "[ROWS 5]"),
    # queries
    ("SELECT 1", "a query must read something", "SELECT 1"),
    ("SELECT FROM a", "SELECT must be followed by columns or '*', got 'FROM'", "FROM"),
    ("SELECT k x n FROM a", "',' or FROM must follow a column", "n"),
    ("SELECT k, FROM a", "an expression must come here, got 'FROM'", "FROM"),
    ("SELECT k FROM a WHERE", "an expression must come here, got the end of", "WHERE"),
    ("SELECT k FROM a WHERE x > ", "an expression must come here, got the end of", ">"),
    ("SELECT k FROM a WHERE (x > 1", "'(' must be closed by ')', got the end", "1"),
    ("SELECT k FROM a WHERE x BETWEEN 1, 2", "BETWEEN low must be followed by AND", ","),
    ("SELECT k FROM a WHERE x IS 5", "IS must be followed by [NOT] NULL", "5"),
    ("SELECT k FROM a WHERE x IN 5", "IN must be followed by a list in parentheses", "5"),
    ("SELECT CASE x END FROM a", "CASE must have at least one WHEN", "END"),
    ("SELECT CASE WHEN n > 1 THEN 1 FROM a", "CASE must be closed by END, got 'FROM'", "FROM"),
    ("SELECT k FROM a GROUP k", "GROUP must be followed by BY, got 'k'", "k"),
    ("SELECT k FROM a GROUP BY k WHERE n > 1", "WHERE stands in the wrong place", "WHERE"),
    ("SELECT k FROM a JOIN b", "JOIN must say ON condition or USING", "b"),
    ("SELECT k FROM a LEFT JOIN b", "JOIN must say ON condition or USING", "b"),
    ("SELECT k FROM a LEFT b ON TRUE", "LEFT must be followed by JOIN, got 'b'", "b"),
    ("SELECT k FROM a FULL OUTER b", "FULL must be followed by JOIN, got 'b'", "b"),
    ("SELECT k FROM a SEMI b", "SEMI must be followed by JOIN, got 'b'", "b"),
    ("SELECT b.k FROM a SEMI JOIN b ON a.k = b.k", "there is no 'b' in FROM; known: a", "b"),
    (
        "SELECT b.k FROM a, b LEFT JOIN a c ON a.k = c.k",
        "ON can name only what is joined since the last comma of FROM",
        "a.k",
    ),
    (
        "SELECT a.k FROM a [RANGE 5], b",
        "b must have a window that bounds it, such as [ROWS 100] or [RANGE ..], because no "
        "condition links it to the rest of FROM",
        "b",
    ),
    (
        "SELECT a.k FROM a CROSS JOIN b [NOW]",
        "a must have a window that bounds it",
        "a",
    ),
    (
        "SELECT a.k FROM a [ROWS 1] JOIN b ON a.k = b.k, (SELECT k FROM a [AFTER 5]) v",
        "must have a window that bounds it",
        None,
    ),
    (
        "SELECT a.k FROM a [NOW] LEFT JOIN b [RANGE UNBOUNDED] ON TRUE",
        "b [RANGE UNBOUNDED] must have a window that bounds it",
        None,
    ),
    ("SELECT k FROM a WHERE EXISTS k", "EXISTS must be followed by (SELECT ..), got 'k'", "k"),
    ("SELECT k FROM a WHERE EXISTS (k)", "EXISTS must be followed by (SELECT ..), got 'k'", "k"),
    (
        "SELECT k FROM a WHERE k IN (SELECT k, y FROM b)",
        "the sub-query of IN must have 1 column, as many as stand before IN, got 2",
        "SELECT k, y FROM b",
    ),
    (
        "SELECT k FROM a WHERE (k, n) IN (SELECT k FROM b)",
        "the sub-query of IN must have 2 columns",
        "SELECT k FROM b",
    ),
    (
        "SELECT k FROM a WHERE t IN (SELECT TRUE FROM b)",
        "got BIGINT, BOOLEAN",
        "t IN (SELECT TRUE FROM b)",
    ),
    (
        "SELECT k FROM a WHERE EXISTS (SELECT k FROM b WHERE b.k = a.k UNION SELECT k FROM b)",
        "a column of the query around can be named only in the WHERE of a sub-query that is no",
        "a.k",
    ),
    (
        "SELECT k FROM a WHERE n IN (SELECT a.n FROM b)",
        "a column of the query around can be named only in the WHERE",
        "a.n",
    ),
    (
        "SELECT k FROM a WHERE k IN (SELECT k FROM b GROUP BY k HAVING count(*) > n)",
        "a column of the query around can be named only in the WHERE",
        "n",
    ),
    (
        "SELECT (SELECT y FROM b WHERE b.k = a.k) AS z FROM a",
        "must have at most one row at each instant, and this one may have more; write an aggregate",
        "SELECT y FROM b WHERE b.k = a.k",
    ),
    (
        "SELECT (SELECT max(y) FROM b WHERE b.k = a.k GROUP BY y) AS z FROM a",
        "must have at most one row at each instant",
        "SELECT max(y) FROM b WHERE b.k = a.k GROUP BY y",
    ),
    (
        "SELECT (SELECT k, y FROM b LIMIT 1) AS z FROM a",
        "a sub-query that stands for a value must have 1 column, got 2",
        "SELECT k, y FROM b LIMIT 1",
    ),
    (
        "SELECT k FROM a WHERE n > (SELECT max(y) FROM b)",
        "FROM must have a window that bounds its rows, such as [NOW]",
        "(SELECT max(y) FROM b)",
    ),
    (
        "SELECT k FROM a WHERE n > ANY (SELECT k, y FROM b)",
        "the sub-query of ANY, SOME and ALL must have 1 column",
        "SELECT k, y FROM b",
    ),
    (
        "SELECT k FROM a WHERE ANY (SELECT y FROM b) < n",
        "ANY, SOME and ALL must stand behind a comparison",
        "ANY (SELECT y FROM b)",
    ),
    (
        "SELECT abs(SELECT max(y) FROM b) AS z FROM a",
        "must stand in parentheses of its own, F((SELECT ..))",
        "abs(SELECT",
    ),
    (
        "SELECT k FROM a WHERE k IN (SELECT k FROM b ORDER BY k)",
        "has no order; add LIMIT k",
        "ORDER BY k",
    ),
    (
        "SELECT k FROM a WHERE EXISTS (SELECT k FROM b WHERE nothing = 1)",
        "there is no column 'nothing'",
        "nothing",
    ),
    ("SELECT a.k FROM a CROSS JOIN b ON a.k = b.k", "a CROSS JOIN has no condition", "ON"),
    ("SELECT k FROM a LIMIT x", "LIMIT must be followed by a whole number, got 'x'", "x"),
    ("SELECT k FROM a LIMIT 0", "LIMIT must be from 1 to", "0"),
    ("SELECT k FROM a ORDER BY 3 LIMIT 1", "a position in ORDER BY must be from 1 to 1", "3"),
    ("SELECT DISTINCT k FROM a ORDER BY x LIMIT 1", "after SELECT DISTINCT, ORDER BY", "x"),
    ("SELECT k FROM a UNION SELECT k, y FROM b", "the same number of columns, got 1 and 2", None),
    ("SELECT k FROM a UNION SELECT y FROM b", "got STRING ('k') and BIGINT ('y')", None),
    ("SELECT k FROM a, temperature", "one query must count time in one way", "temperature"),
    ("SELECT t FROM temperature UNION SELECT t FROM a", "must count time in one way", None),
    ("ISTREAM k FROM a", "ISTREAM must be followed by a query in", "ISTREAM"),
    ("SELECT k FROM ISTREAM SELECT k FROM a", "ISTREAM must be followed by a query", "ISTREAM"),
    ("ISTREAM SELECT k FROM a UNION SELECT k FROM b", "must say by parentheses", "ISTREAM"),
    ("SELECT k FROM a UNION RSTREAM SELECT k FROM b", "must say by parentheses", "RSTREAM"),
    (
        "SELECT k FROM a [WITHIN (x) INSIDE BOX(0, 0, 1, 1)]",
        "must be followed by two columns",
        None,
    ),
    ("SELECT k FROM a [WITHIN (x, k) INSIDE BOX(0, 0, 1, 1)]", "a place must be given by", "k"),
    ("SELECT k FROM a [WITHIN (x, n) INSIDE OVAL(0, 0, 1)]", "there is no area 'OVAL'", "OVAL"),
    (
        "SELECT k FROM a [NOW WITHIN (x, n) INSIDE CIRCLE(m.x, m.n, 1) OF a m]",
        "write OF a [ROWS 1] for its newest row, or [PARTITION BY k ROWS 1] for that of each k",
        "a m",
    ),
    (
        "SELECT k FROM a [NOW WITHIN (x, n) INSIDE CIRCLE(m.x, m.nn, 1) OF a [ROWS 1] m]",
        "no column 'nn'",
        "m.nn",
    ),
    (
        "SELECT k FROM a [NOW WITHIN (x, n) INSIDE POLYGON((m.x, 0), (1, 1), (2, 0)) "
        "OF a [ROWS 1] m]",
        "one that moves with a is asked by WITHIN (x - a.x, y - a.y)",
        "WITHIN (x, n) INSIDE POLYGON((m.x, 0), (1, 1), (2, 0)) OF a [ROWS 1] m",
    ),
    (
        "SELECT k FROM a [NOW WITHIN (x, n) INSIDE CIRCLE(m.x, m.n, -1) OF a [ROWS 1] m]",
        "with a radius of 0 or more",
        "WITHIN (x, n) INSIDE CIRCLE(m.x, m.n, -1) OF a [ROWS 1] m",
    ),
    ("SELECT k FROM a [WITHIN (x, n) INSIDE CIRCLE(0, 0, -1)]", "CIRCLE must be written", None),
    ("SELECT k FROM a [WITHIN (x, n) INSIDE POLYGON((0, 0), (1, 1))]", "three corners", None),
    ("SELECT k FROM a [WITHIN (x, n) INSIDE BOX(0, n, 1, 1)]", "there is no column 'n'", None),
    ("SELECT k FROM a [WITHIN x INSIDE BOX(0, n, 1, 1)]", "WITHIN must be followed by num", "x"),
    ("SELECT k FROM a [FROM NOW - 5 TO NOW - 5]", "FROM must be longer ago than TO", None),
    ("SELECT k FROM a [FROM NOW TO NOW - 5]", "FROM NOW must be followed by - and how long", "TO"),
    ("SELECT k FROM a [FROM NOW - 5]", "FROM NOW - T must be followed by TO, got ']'", "]"),
    ("SELECT k FROM a [RANGE 5 SHIFT -3]", "a duration must not be negative", "-3"),
    ("SELECT k FROM a [PARTITION BY k SHIFT 3]", "a window is [ROWS N]", None),
    ("SELECT ISTREAM(k), x FROM a", "must hold all columns with their names", ","),
    ("SELECT ISTREAM(k) AS x FROM a", "must hold all columns with their names", "AS"),
    ("SELECT ISTREAM(SELECT k FROM a)", "ISTREAM behind SELECT holds columns", "ISTREAM("),
    (
        "SELECT k FROM a [ROWS 5 SLIDE 2 RANGE 4 SLIDE 2]",
        "must slide by rows, ROWS N SLIDE M",
        None,
    ),
    ("ISTREAM (SELECT name FROM city)", "this reads no stream", "ISTREAM (SELECT name FROM city)"),
    ("SELECT left FROM a", 'write "left" to use that word as a name', "left"),
    ("SELECT 'abc FROM a", "a string that is opened by ' must be closed by '", "'abc FROM a"),
    ("SELECT k /* FROM a", "a comment that is opened by /* must be closed", "/* FROM a"),
]


ASOF = "SELECT a.k FROM a ASOF JOIN b "
QUERIES += [
    (ASOF, "JOIN must say ON condition or USING (columns)", None),
    (ASOF + "ON a.k = b.k", "once by >=, >, <= or <, such as a.t >= b.t", "a.k = b.k"),
    (ASOF + "USING (t)", "there is no column 't'; known: k, u, y", "t"),
    (ASOF + "ON a.k = b.k AND a.t >= b.u AND a.t < b.y", "got two such comparisons", "a.t < b.y"),
    (ASOF + "ON a.k = b.k AND a.t BETWEEN b.u AND b.y", "got two", "a.t BETWEEN b.u AND b.y"),
    (ASOF + "ON a.t >= b.k", "two values of one type (use CAST)", "a.t >= b.k"),
    (ASOF + "ON a.k = b.u AND a.t >= b.u", "got STRING, BIGINT", "a.k = b.u"),
    (ASOF + "ON a.t + b.u", "ON must be a condition (BOOLEAN), got BIGINT", "a.t + b.u"),
    (ASOF + "MATCH_CONDITION a.t >= b.u", "followed by a comparison in parentheses", "a"),
    (ASOF + "MATCH_CONDITION (a.t >= b.u", "'(' must be closed by ')'", "u"),
    (ASOF + "MATCH_CONDITION (a.k = b.k)", "got only equalities", "a.k = b.k"),
    ("SELECT a.k FROM a ASOF b ON a.t >= b.u", "ASOF must be followed by JOIN", "b"),
]


@pytest.mark.parametrize(("text", "sentence", "marked"), QUERIES, ids=[q[0] for q in QUERIES])
def test_mistakes_in_queries(text: str, sentence: str, marked: str | None, catalog: Catalog):
    error = mistake(text, catalog)
    assert sentence in error.message
    assert error.sql == text
    if marked is not None:
        assert text[error.start : error.end] == marked


SUPPORT = [
    ("SELECT k FROM a ORDER BY k", "has no order; add LIMIT k", "ORDER BY k"),
    ("SELECT a.k FROM a RIGHT SEMI JOIN b ON a.k = b.k", "exchange the two sides", "SEMI"),
    ("SELECT a.k FROM a NATURAL JOIN b", "name the columns with USING", "NATURAL"),
    (
        "SELECT a.k FROM a LEFT JOIN b ON a.k = b.k AND a.k IN (SELECT k FROM c)",
        "a sub-query cannot stand in ON; put it into FROM and join with it",
        "a.k IN (SELECT k FROM c)",
    ),
    (
        "SELECT sum(n) OVER (ORDER BY t) AS s, (SELECT max(y) FROM b) AS m FROM a",
        "put the window functions into a sub-query in FROM",
        "(SELECT max(y) FROM b)",
    ),
    ("SELECT k FROM a WHERE (k, n) = (1, 2)", "tuples are not values here", ","),
    (ASOF + "ON a.k >= b.k", "compares times, dates or numbers, got STRING", "a.k >= b.k"),
    (ASOF + "ON a.t >= b.u AND a.x <> b.y", "put others in WHERE", "a.x <> b.y"),
    (ASOF + "ON a.t - b.u >= 0", "put others in WHERE", "a.t - b.u >= 0"),
    (ASOF + "ON a.t >= b.u AND b.y > 3", "into a sub-query on the right side", "b.y > 3"),
    (ASOF + "ON a.t >= b.u AND a.x > 3", "put one that does not into WHERE", "a.x > 3"),
    ("SELECT a.k FROM a ASOF FULL JOIN b ON a.t >= b.u", "there is no ASOF FULL JOIN", "FULL"),
    (
        "SELECT k FROM a ORDER BY k FETCH FIRST 3 ROWS ONLY",
        "write LIMIT 3 in place of FETCH",
        "FETCH FIRST 3 ROWS ONLY",
    ),
    (
        "SELECT count(*) FROM a GROUP BY ROLLUP (window(t, '5 minutes'))",
        "window(..) cannot stand in GROUPING SETS, ROLLUP or CUBE",
        "window(t, '5 minutes')",
    ),
    (
        "SELECT mode(x) OVER (ORDER BY t) FROM a",
        "MODE is not known with OVER; put a window",
        "mode(x) OVER (ORDER BY t)",
    ),
    ("SELECT k FROM (a JOIN b ON a.k = b.k)", "a parenthesis in FROM must hold a query", "a"),
    ("SELECT k FROM range(5)", "there are no table functions", "("),
    ("WITH RECURSIVE w AS (SELECT k FROM a) SELECT k FROM w", "RECURSIVE", "RECURSIVE"),
    ("INSERT OVERWRITE a VALUES (1)", "there is no INSERT; rows come from the source", "INSERT"),
    ("ALTER STREAM a", "only a query can be altered", "STREAM"),
    ("CREATE OR REPLACE QUERY q BACKFILL AS SELECT k FROM a", "there is no BACKFILL", "BACKFILL"),
    ("SELECT (n, x) IN (1) FROM a", "tuples are not values here", ","),
]


@pytest.mark.parametrize(("text", "sentence", "marked"), SUPPORT, ids=[q[0] for q in SUPPORT])
def test_what_is_not_supported(text: str, sentence: str, marked: str, catalog: Catalog):
    error = mistake(text, catalog)
    assert isinstance(error, NotSupportedError)
    assert sentence in error.message
    assert text[error.start : error.end] == marked


STATEMENTS = [
    ("CREATE STREAM s (v INT, t TIMESTAMP, d DOUBLE) USING replay", "can be one: v, t", "s"),
    ("CREATE STREAM s (d DOUBLE) USING replay", "TIMESTAMP BY <column>; columns that can be", "s"),
    ("CREATE STREAM s (d DOUBLE, t INT) USING x TIMESTAMP BY d", "got DOUBLE; columns that", "d"),
    ("CREATE STREAM s (t INT) USING x TIMESTAMP BY u", "stream s has no column 'u'", "u"),
    ("CREATE STREAM s (t INT) TIMESTAMP BY t", "must say USING and a format", "s"),
    (
        "CREATE STREAM s (t INT) USING x TIMESTAMP BY t SLACK 5 SECONDS",
        "stream s counts time in integers, so a duration must be a bare number, got 5 SECONDS",
        "5 SECONDS",
    ),
    ("CREATE STREAM s (t INT) USING x TIMESTAMP BY t SLACK -1", "must not be negative", "-1"),
    ("CREATE STREAM s (t INT) USING x TIMESTAMP BY t IDLE AFTER 5", "needs a unit", "5"),
    ("CREATE STREAM s (t INT) USING x TIMESTAMP BY t USING y", "USING can be said once", "USING"),
    ("CREATE STREAM s (t INT) USING x TIMESTAMP BY t PRIORITY 'a'", "say which rows are", "'a'"),
    ("CREATE STREAM s (t INT) USING x TIMESTAMP BY t PRIORITY p", "there is no column 'p'", "p"),
    (
        "CREATE STREAM s (t INT) USING x TIMESTAMP BY t PRIORITY t / 2",
        "BOOLEAN, got DOUBLE",
        "t / 2",
    ),
    ("CREATE STREAM s (t INT) USING x TIMESTAMP BY t PRIORITY 256", "to 255, got 256", "256"),
    ("CREATE STREAM s (t INT) USING x TIMESTAMP BY t PRIORITY 1 - 2", "got -1; write", "1 - 2"),
    (
        "CREATE STREAM s (t INT) USING x TIMESTAMP BY t PRIORITY IF(t > 5, 1000, 0)",
        "PRIORITY must be from 0 (normal) to 255, got 1000; write a number in between",
        "IF(t > 5, 1000, 0)",
    ),
    (
        "CREATE STREAM s (t INT) USING x TIMESTAMP BY t PRIORITY CAST('high' AS INT)",
        "PRIORITY must have a value, but: CAST to INT must get text such as '12', got 'high'",
        "CAST('high' AS INT)",
    ),
    (
        "CREATE STREAM s (t INT) USING x TIMESTAMP BY t PRIORITY _priority",
        "is what PRIORITY says",
        "_priority",
    ),
    ("CREATE STREAM s (t INT) USING x TIMESTAMP BY t LATE INTO z", "there is no sink 'z'", "z"),
    ("CREATE STREAM s (t INT) USING x TIMESTAMP BY t ON ERROR SKIP", "FAIL or DEADLETTER", "SKIP"),
    ("CREATE STREAM s (t INT) USING x TIMESTAMP BY t WATERMARK 5", "its clauses are", "WATERMARK"),
    ("CREATE STREAM s (t INT, T INT) USING x TIMESTAMP BY t", "'T' is declared twice", "T"),
    ("CREATE STREAM s (t NUMERIC(0)) USING x TIMESTAMP BY t", "1 to 38 digits", "NUMERIC(0)"),
    ("CREATE STREAM s (t INT NOT NULL) USING x TIMESTAMP BY t", "a name and a type only", "NOT"),
    ("CREATE STREAM s USING x", "must be followed by its columns in parentheses", "x"),
    ("CREATE STREAM s (t) USING x", "the name of a type must come here, got ')'", ")"),
    ("CREATE STREAM (t INT) USING x", "the name of a stream must come here, got '('", "("),
    ("CREATE STREAM a (t INT) USING x TIMESTAMP BY t", "but stream 'a' exists; DROP it first", "a"),
    ("CREATE VIEW City AS SELECT k FROM a", "but table 'City' exists", "City"),
    ("CREATE SINK s USING x OPTIONS (p 1, P 2)", "the option 'p' can be given once", "P"),
    ("CREATE SINK s USING x OPTIONS (path)", "the option 'path' must have a value", ")"),
    ("CREATE SINK s USING x OPTIONS path 'x'", "OPTIONS must be followed by (name", "path"),
    ("CREATE SINK s USING x OPTIONS (changes 'all')", "one of intervals, log, view", "'all'"),
    ("CREATE TABLE d (k STRING) USING csv VALID FROM k", "TIMESTAMP or integer columns", "k"),
    ("CREATE TABLE d (k INT, l TIMESTAMP) USING csv VALID FROM k TO l", "must both be", "l"),
    ("CREATE QUERY q INTO cold AS SELECT k FROM a", "there is no sink 'cold'", "cold"),
    ("CREATE QUERY q EARLY INTO cold AS SELECT k FROM a", "there is no sink 'cold'", "cold"),
    ("CREATE QUERY q EARLY hot AS SELECT k FROM a", "must be followed by INTO, got 'hot'", "hot"),
    (
        "CREATE QUERY q INTO hot EARLY INTO Hot AS SELECT k FROM a",
        "EARLY INTO must name another sink than INTO, because early rows are no part of the answer",
        "Hot",
    ),
    (
        "CREATE QUERY q EARLY INTO hot AS SELECT k FROM a",
        "no stream of this query says PRIORITY (a); declare it on one of them",
        "hot",
    ),
    (
        "CREATE QUERY q EARLY INTO hot EARLY INTO hot AS SELECT k FROM a",
        "EARLY INTO can be said once",
        "EARLY",
    ),
    (
        "CREATE MATERIALIZED VIEW q EARLY INTO hot AS SELECT k FROM a",
        "a materialized view keeps its answer and hands it to no sink; CREATE QUERY",
        "EARLY",
    ),
    (
        "CREATE QUERY q SELECT k FROM a",
        "must be followed by INTO sink, EARLY INTO sink, WITHIN duration, WEIGHT number or AS",
        "SELECT",
    ),
    ("CREATE QUERY athens AS SELECT k FROM a", "but query 'athens' exists", "athens"),
    ("CREATE QUERY q AS SELECT name FROM city", "must read a stream", "SELECT name FROM city"),
    ("CREATE QUEUE q", "CREATE must be followed by one of STREAM, TABLE, SINK", "QUEUE"),
    ("CRATE STREAM q", "a statement cannot begin with 'CRATE'; did you mean 'CREATE'?", "CRATE"),
    ("DROP QUERY athen", "there is no query 'athen'; did you mean 'athens'?", "athen"),
    ("DROP STREAM temperature", "is used by query athens; DROP the query first", "temperature"),
    ("DROP TABLE city", "is used by query athens", "city"),
    ("DROP SINK hot", "is used by query athens", "hot"),
    ("PAUSE athens", "PAUSE must be followed by QUERY, got 'athens'", "athens"),
    ("RESUME QUERY sparta", "there is no query 'sparta'; known: athens", "sparta"),
    ("SHOW STREAM", "SHOW must be followed by one of QUERIES, STREAMS", "STREAM"),
    ("DESCRIBE temprature", "there is nothing called 'temprature'; did you mean", "temprature"),
    ("EXPLAIN athens", "EXPLAIN must be followed by QUERY name or by a query", "athens"),
    ("SHOW QUERIES SHOW STREAMS", "the statement should be over, or a ';'", "SHOW"),
    ("SHOW QUERIES; SHOW QUERYS", "SHOW must be followed by one of", "QUERYS"),
]


@pytest.mark.parametrize(("text", "sentence", "marked"), STATEMENTS, ids=[q[0] for q in STATEMENTS])
def test_mistakes_in_statements(text: str, sentence: str, marked: str, catalog: Catalog):
    error = mistake(text, catalog)
    assert sentence in error.message
    assert error.sql == text
    assert text[error.start : error.end] == marked


def test_the_place_is_that_in_the_script(catalog: Catalog):
    script = "SHOW QUERIES;\n\n-- a comment\nSELECT k,\n       zz\nFROM a;"
    error = mistake(script, catalog)
    assert str(error).splitlines()[1:] == ["   5 |        zz", "     |        ^^"]
    assert underline(script, error.start, error.end) in str(error)


def test_a_text_must_be_one_query(catalog: Catalog):
    for text in ("SHOW QUERIES", "SELECT k FROM a; SELECT k FROM a", ""):
        with pytest.raises(QueryError, match="one query must be given"):
            bind_query(text, catalog)


def test_text_that_is_nested_too_deeply(catalog: Catalog):
    text = f"SELECT {'(' * 5000}1{')' * 5000} AS z FROM a"
    assert "nested too deeply" in mistake(text, catalog).message


def test_mistakes_in_expressions_of_the_builder(catalog: Catalog):
    schema = catalog.streams["a"].schema
    with pytest.raises(QueryError, match="there is no column 'z'"):
        bind_scalar("z + 1", schema)
    with pytest.raises(QueryError, match="was not expected here"):
        bind_scalar("n + 1 n", schema)


STOCK = [
    "SELECT k, max(x) AS m FROM a [PARTITION BY k ROWS 5 SLIDE 2] WHERE n IN (1, 2) GROUP BY k",
    "ISTREAM (SELECT w.k FROM a [RANGE 5 SLIDE 2 START 3] w JOIN b ON w.k = b.k AND x > 1 LIMIT 3)",
    "CREATE STREAM s (k STRING, t TIMESTAMP) USING x OPTIONS (p 'x') TIMESTAMP BY t SLACK 5 DAYS",
    "SELECT CASE n WHEN 1 THEN 'a' ELSE k END z, -x::INT y FROM a UNION ALL SELECT k, 1 FROM b",
    "SELECT t - INTERVAL '5' SECONDS z FROM temperature WHERE t BETWEEN '2024-01-01' AND t",
    "WITH w AS (SELECT k FROM a [AFTER 5]) SELECT count(DISTINCT k) FILTER (WHERE 1 = 1) FROM w",
    "EXPLAIN SELECT EXTRACT(HOUR FROM t) h FROM temperature [SESSION 5] ORDER BY 1 LIMIT 2",
]


def test_damaged_texts_never_raise_anything_else(catalog: Catalog):
    """Drop, repeat, swap and insert tokens: every mistake is a `QueryError` with a place."""
    chance = random.Random(7)
    words = " ".join(STOCK).split()
    for _ in range(1500):
        tokens = chance.choice(STOCK).replace("(", " ( ").replace(")", " ) ").split()
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(tokens))
            change = chance.randrange(4)
            if change == 0:
                del tokens[at]
            elif change == 1:
                tokens.insert(at, chance.choice(words))
            elif change == 2:
                tokens[at] = chance.choice(words)
            else:
                other = chance.randrange(len(tokens))
                tokens[at], tokens[other] = tokens[other], tokens[at]
        text = " ".join(tokens)
        error = run(text, catalog)
        if error is not None:
            assert error.sql == text, text
            assert 0 <= error.start < error.end <= len(text), text
            assert "\x1b" not in str(error)
