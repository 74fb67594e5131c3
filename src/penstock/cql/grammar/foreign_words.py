"""What users of other systems type, and the sentence that leads each of them home.

A table of patterns, the first that fits counts (`penstock.cql.grammar.foreign` looks it up, only
where a statement has failed).  A group of a pattern stands in its sentence by its name; groups that
begin with ``d_`` are durations and are shown as Penstock writes them; ``{stream}`` is the first
name after FROM, unless the pattern finds another; ``{told}`` is the sentence that there was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NAME = r"[A-Za-z_]\w*"
UNIT = r"(?:MICRO|MILLI)?(?:SEC|MIN|HOUR|DAY|WEEK)\w*"
_COLUMNS = r"\bCREATE\s+(?:STREAM|TABLE)\b[^;]*?"
DURATION = r"(?:INTERVAL\s*)?'?\s*\d+(?:\.\d+)?\s*'?\s*[A-Za-z]*\s*'?"
_FROM = rf"\bFROM\s+(?P<stream>{NAME})(?:\s+(?:AS\s+)?(?!WINDOW\b|WITHIN\b){NAME})?\s+"


@dataclass(frozen=True)
class Foreign:
    """A spelling of others: what it looks like, and what is said about it.

    ``only``: how the sentence must begin that Penstock has without this.  ``there_is``: Penstock
    has it under another name.
    """

    pattern: re.Pattern[str]
    told: str
    only: str = ""
    there_is: bool = True


def _word(pattern: str, told: str, only: str = "", there_is: bool = True) -> Foreign:
    return Foreign(re.compile(pattern, re.IGNORECASE), told, only, there_is)


def _none(pattern: str, told: str) -> Foreign:
    return _word(pattern, told, there_is=False)


_PATTERNS = (
    "a step after another is a join, such as FROM first [RANGE 10 MINUTES] a JOIN second [NOW] b "
    "ON a.k = b.k, and the row before a row is LAG(x) OVER (PARTITION BY k ORDER BY t)"
)
_SPREAD = "leave it out: Penstock spreads rows by the keys of joins and groups by itself"
_SAMPLE = "take a share of the rows by a column, such as WHERE {column} % 10 = 0"

WINDOWS = (
    # ksqlDB
    _word(
        _FROM + rf"(?P<at>WINDOW\s+TUMBLING\s*\(\s*SIZE\s+(?P<d_size>{DURATION})[^()]*\))",
        "the window stands behind its stream, in square brackets: write FROM {stream} "
        "[TUMBLE {d_size}] and leave WINDOW TUMBLING (..) out",
    ),
    _word(
        _FROM + rf"(?P<at>WINDOW\s+HOPPING\s*\(\s*SIZE\s+(?P<d_size>{DURATION})\s*,\s*ADVANCE\s+BY"
        rf"\s+(?P<d_slide>{DURATION})[^()]*\))",
        "the window stands behind its stream, in square brackets: write FROM {stream} "
        "[HOP {d_size} SLIDE {d_slide}] and leave WINDOW HOPPING (..) out",
    ),
    _word(
        _FROM + rf"(?P<at>WINDOW\s+SESSION\s*\(\s*(?P<d_gap>{DURATION})[^()]*\))",
        "the window stands behind its stream, in square brackets: write FROM {stream} "
        "[PARTITION BY k SESSION {d_gap}], or, for one row when a session is over, FROM "
        "TABLE(SESSION(TABLE {stream} PARTITION BY k, DESCRIPTOR(t), INTERVAL {d_gap}))",
    ),
    _word(
        r"\bWINDOW\s+(?P<word>TUMBLING|HOPPING|SESSION|SLIDING)\b[^;]*",
        "the window stands behind its stream, in square brackets: write FROM {stream} "
        "[TUMBLE 5 MINUTES], [HOP 5 MINUTES SLIDE 1 MINUTE] or [SESSION 5 MINUTES]",
    ),
    # RisingWave
    _word(
        rf"\bTUMBLE\s*\(\s*(?P<stream>{NAME})\s*,\s*{NAME}\s*,\s*(?P<d_size>{DURATION})\s*\)",
        "{told}, or FROM {stream} [TUMBLE {d_size}]",
        only="TUMBLE must be given its stream",
    ),
    _word(
        rf"\bHOP\s*\(\s*(?P<stream>{NAME})\s*,\s*{NAME}\s*,\s*(?P<d_slide>{DURATION})\s*,\s*"
        rf"(?P<d_size>{DURATION})\s*\)",
        "{told}, or FROM {stream} [HOP {d_size} SLIDE {d_slide}]",
        only="HOP must be given its stream",
    ),
    # Flink before its table functions
    _word(
        rf"\bTUMBLE(?P<bound>\w*)\s*\(\s*[\w.]+\s*,\s*(?P<d_size>{DURATION})\s*\)",
        "a window stands behind its stream: write FROM {stream} [TUMBLE {d_size}] and GROUP BY "
        "window_start, window_end in place of TUMBLE{bound}(..)",
        only="TUMBLE",
    ),
    _word(
        rf"\bHOP(?P<bound>\w*)\s*\(\s*[\w.]+\s*,\s*(?P<d_slide>{DURATION})\s*,\s*"
        rf"(?P<d_size>{DURATION})\s*\)",
        "a window stands behind its stream: write FROM {stream} [HOP {d_size} SLIDE {d_slide}] and "
        "GROUP BY window_start, window_end in place of HOP{bound}(..)",
        only="HOP",
    ),
    _word(
        rf"\bSESSION(?P<bound>(?:_START|_END|_ROWTIME)?)\s*\(\s*[\w.]+\s*,\s*(?P<d_gap>{DURATION})"
        r"\s*\)",
        "a window stands behind its stream: write FROM TABLE(SESSION(TABLE {stream} PARTITION BY "
        "k, DESCRIPTOR(t), INTERVAL {d_gap})) and GROUP BY k, window_start, window_end in place of "
        "SESSION{bound}(..)",
        only="SESSION",
    ),
    # Azure Stream Analytics
    _word(
        r"\bTumblingWindow\s*\(\s*(?P<unit>\w+)\s*,\s*(?P<size>\d+)\s*\)",
        "a window stands behind its stream: write FROM {stream} [TUMBLE {size} {unit}S] and GROUP "
        "BY window_start, window_end in place of TumblingWindow(..)",
        only="there is no function",
    ),
    _word(
        r"\bHoppingWindow\s*\(\s*(?P<unit>\w+)\s*,\s*(?P<size>\d+)\s*,\s*(?P<slide>\d+)\s*\)",
        "a window stands behind its stream: write FROM {stream} [HOP {size} {unit}S SLIDE {slide} "
        "{unit}S] and GROUP BY window_start, window_end in place of HoppingWindow(..)",
        only="there is no function",
    ),
    _word(
        r"\bSlidingWindow\s*\(\s*(?P<unit>\w+)\s*,\s*(?P<size>\d+)\s*\)",
        "a window stands behind its stream: write FROM {stream} [RANGE {size} {unit}S] in place of "
        "SlidingWindow(..)",
        only="there is no function",
    ),
    _word(
        r"\bSystem\.Timestamp\b(?:\s*\(\s*\))?",
        "the end of a window is its column window_end, and the time of a row its time column",
    ),
    _word(
        rf"\bFROM\s+(?P<stream>{NAME})\s+(?P<at>TIMESTAMP\s+BY\s+\w+)",
        "TIMESTAMP BY is said once, where the stream is declared: leave it out here",
    ),
    # windows in other brackets, or in none
    _word(
        rf"\bFROM\s+(?P<stream>{NAME})\s*(?P<at>[({{<]\s*(?P<window>(?:ROWS|RANGE|TUMBLE|HOP|"
        r"SESSION)\s[^()<>{}\[\];]*)[)}>])",
        "a window stands in square brackets: write FROM {stream} [{window}]",
    ),
    _word(
        rf"\bFROM\s+(?P<stream>{NAME})\s+(?P<at>(?P<window>(?:ROWS|RANGE|TUMBLE|HOP|SESSION)\s+"
        rf"\d+(?:\s+{UNIT})?(?:\s+SLIDE\s+\d+(?:\s+{UNIT})?)?))",
        "a window stands in square brackets: write FROM {stream} [{window}]",
    ),
    _word(
        r"\[\s*(?:LAST\s+)?(?P<rows>\d+)\s+(?:ROWS?|TUPLES?|EVENTS?|ELEMENTS?)\s*\]",
        "the last rows are written with the word before the number: [ROWS {rows}]",
    ),
    _word(
        r"\[\s*(?:SIZE|LENGTH)\s+(?P<rows>\d+)\s+(?:ADVANCE\s+\d+\s+)?TUPLES?\s*\]",
        "the last rows are written with the word before the number: [ROWS {rows}]",
    ),
    _word(
        r"\[\s*(?:LAST|SLIDING|TIME|SIZE|WITHIN)?\s*(?P<d_size>\d+\s+[A-Za-z]+)(?:\s+TIME)?\s*\]",
        "the last stretch of time is written with the word before it: [RANGE {d_size}]",
    ),
    _word(
        r"\[\s*(?P<rows>\d+)\s*\]",
        "a window says what it counts: [ROWS {rows}] the last rows, [RANGE {rows} SECONDS] the "
        "last stretch of time",
        only="'",
    ),
    _word(
        r"\[\s*(?P<rows>(?:ROWS|SESSION)\s+[\w ]*?)\s+(?P<part>PARTITION\s+BY\s+[\w, ]+?)\s*\]",
        "PARTITION BY comes first in a window: [{part} {rows}]",
    ),
    _word(
        rf"\[\s*SLIDE\s+(?P<d_slide>{DURATION})\s+RANGE\s+(?P<d_size>{DURATION})\s*\]",
        "SLIDE comes behind what slides: [RANGE {d_size} SLIDE {d_slide}]",
    ),
    _word(
        rf"\[\s*(?P<word>RANGE|TUMBLE|HOP|SESSION|FIXED)\s+(?P<d_a>\d+\s+{UNIT})\s+"
        rf"(?P<d_b>\d+\s+{UNIT})",
        "a duration has one number and one unit: write {d_a} and {d_b} in the smaller of the two "
        "units",
    ),
)

CLAUSES = (
    _word(
        r"\bEMIT\s+CHANGES\b",
        "leave EMIT CHANGES out: every query gives its changes; CREATE SINK .. OPTIONS (changes "
        "'log') shows them as rows with + and -",
    ),
    _word(
        r"\bEMIT\s+(?P<what>FINAL|ON\s+WINDOW\s+CLOSE|AFTER\s+WATERMARK)\b",
        "leave EMIT {what} out: every answer is final; ISTREAM (SELECT .. FROM {stream} [TUMBLE 5 "
        "MINUTES] ..) gives the result of each window once, when it is over",
    ),
    _word(r"\bEMIT\b[^;]*", "leave EMIT out: every query gives its changes, and each is final"),
    _word(
        rf"\bFROM\s+(?P<left>{NAME})(?P<as_left>(?:\s+(?:AS\s+)?(?!(?:INNER|LEFT|RIGHT|FULL|OUTER|"
        rf"JOIN)\b){NAME})?)\s+(?:INNER\s+|LEFT\s+|RIGHT\s+|FULL\s+)?(?:OUTER\s+)?JOIN\s+"
        rf"(?P<right>{NAME})(?P<as_right>(?:\s+(?:AS\s+)?(?!(?:WITHIN|ON)\b){NAME})?)"
        rf"(?:\s+ON\s+[^;]*?)?\s+(?P<at>WITHIN\s+(?P<d_apart>\d+\s+\w+)(?:\s+GRACE\s+PERIOD\s+\d+"
        r"\s+\w+)?)",
        "how far apart partners may be is said by windows: write FROM {left} [RANGE {d_apart}]"
        "{as_left} JOIN {right} [RANGE {d_apart}]{as_right} ON .., without WITHIN",
    ),
    _word(
        r"\bJOIN\b[^;]*?(?P<at>WITHIN\s*\(?\s*(?P<d_apart>\d+\s+\w+)(?:[^();]*\))?)",
        "how far apart partners may be is said by windows: write [RANGE {d_apart}] behind each "
        "stream of the join, without WITHIN",
    ),
    _none(
        r"(?P<at>\bMATCH_RECOGNIZE\b)\s*(?:\(\s*\w*\s*\w*)?",
        "there is no MATCH_RECOGNIZE; " + _PATTERNS,
    ),
    _none(r"\bFROM\s+(?P<at>PATTERN)\s*[\[(]\s*\w*", "there are no patterns; " + _PATTERNS),
    _none(r"(?P<at>\bTABLESAMPLE\b)(?:\s+\w+)?\s*\(?", "there is no TABLESAMPLE; " + _SAMPLE),
    _none(r"\b(?:USING\s+)?SAMPLE\s+\d+", "there is no SAMPLE; " + _SAMPLE),
    _word(
        r"\bOUTPUT\s+(?:(?:LAST|ALL|FIRST|SNAPSHOT)\s+)?EVERY\s+(?P<d_every>\d+\s+\w+)",
        "how often an answer is given is said by the window: write FROM {stream} [RANGE 1 HOUR "
        "SLIDE {d_every}] and leave OUTPUT EVERY out",
    ),
    _word(
        r"\bSELECT\s+(?P<at>IRSTREAM)\b(?:\s+\w+)?",
        "rows as they come and as they go are the change log: leave IRSTREAM out and CREATE SINK "
        ".. OPTIONS (changes 'log'), or write ISTREAM (..) and DSTREAM (..)",
    ),
    _word(
        r"\b(?:SELECT|FROM)\s+(?P<at>STREAM)(?:\s+\*\s*|\s+\w+|\s*\(\s*\w+)",
        "a declared stream is read as it is: leave the word STREAM out",
    ),
    _word(
        r"\bWATERMARK\s+(?P<time>\w+)\s+DELAY\s+OF\s+(?P<d_late>[^;)\s]+(?:\s+\d+'?\s*\w+)?)",
        "how late rows may come is said where the stream is declared: TIMESTAMP BY {time} SLACK "
        "{d_late}",
    ),
    _word(
        r"\bFOR\s+SYSTEM_TIME\s+AS\s+OF\s+(?P<of>\w+\.\w+)",
        "the row that holds at the time of another is found by ASOF JOIN r ON k = r.k AND {of} >= "
        "r.t; with a table that says VALID FROM .. TO, by a plain JOIN",
    ),
    _word(
        r"\bSELECT\s+(?P<at>DISTINCT\s+ON\s*\(\s*(?P<keys>[\w, ]+?)\s*\))[^;]*",
        "the newest row of each is a window: FROM {stream} [PARTITION BY {keys} ROWS 1]",
    ),
    _word(
        r"\bSELECT\s+(?P<at>TOP\s*\(?\s*(?P<rows>\d+)\s*\)?)",
        "the first rows are ORDER BY .. LIMIT {rows} at the end; the newest are FROM {stream} "
        "[ROWS {rows}]",
    ),
    _word(
        r"\bFETCH\s+(?:FIRST|NEXT)\s+(?P<rows>\d+)\s+ROWS?\s+(?:ONLY|WITH\s+TIES)",
        "write LIMIT {rows} in place of FETCH",
    ),
    _word(
        r"\b(?P<word>DISTRIBUTE|CLUSTER|REPARTITION)\s+BY\b",
        "there is no {word} BY; " + _SPREAD,
    ),
    _word(
        rf"\bFROM\s+{NAME}\s+(?P<at>PARTITION\s+BY\s+\w+)",
        "PARTITION BY stands inside a window, [PARTITION BY k ROWS 10], or in OVER; to spread rows "
        "leave it out: Penstock does so by itself",
    ),
    _word(
        r"\bSORT\s+BY\b",
        "an order is said by ORDER BY .. LIMIT k: an answer that changes over time has no other",
    ),
    _word(r"\bSELECT\b[^;()]*?(?P<at>\bFORM)\s+\w+", "FROM must follow the columns, got '{at}'"),
    _word(
        r"\bFROM\s+[^;()]*?(?P<at>\b(?:WERE|WHRE|WEHRE|WHER))\s+\w+",
        "WHERE must follow here, got '{at}'",
    ),
    _word(r"\b(?P<at>(?P<word>GROUP|ORDER)BY)\s+\w+", "{word} BY is two words"),
    _word(
        rf"\b(?P<first>(?!(?:AS|SELECT|DISTINCT|ALL)\b){NAME})\s+"
        rf"(?P<at>(?P<call>(?!(?:TABLE|[IDR]STREAM)\b){NAME}))\s*\(",
        "a comma is missing between {first} and {call}(..)",
        only="'(' was not expected here; ',' or FROM",
    ),
)

EXPRESSIONS = (
    _word(
        r"\bPRIORITY\s*(?P<at>\(\s*SELECT\b)",
        "a sub-query cannot stand in PRIORITY, which is computed of each row alone: use columns",
        only="a query must read something",
    ),
    _word(
        r"(?:!?~\*?)(?=\s*')|\bSIMILAR\s+TO\b|\bREGEXP\b|\bGLOB\b",
        "an expression is matched by RLIKE, a pattern with % and _ by LIKE",
    ),
    _word(r"&&", "two conditions are joined by AND"),
    _word(
        r"\b(?:FLOOR|CEIL)\s*\(\s*(?P<time>[\w.]+)\s+TO\s+(?P<unit>\w+)\s*\)",
        "the beginning of each {unit} is date_trunc('{unit}', {time})",
    ),
    _word(
        r"\bAT\s+TIME\s+ZONE\b|\w+\s+AT\s+TIME\s+ZONE\s+'[^']*'",
        "times are in UTC and have no zone: leave AT TIME ZONE out, or add an INTERVAL",
    ),
    _word(
        r"(?<!WITHIN )(?<!AFTER )(?<!LAG )(?<!SLACK )(?<!STEP )"
        r"(?P<at>[-+]\s*(?P<d_by>\d+\s+(?:MICRO|MILLI)?(?:SECOND|MINUTE|HOUR|DAY|WEEK)S?))\b\s*",
        "a time is moved by an INTERVAL: write INTERVAL {d_by}",
    ),
    _word(
        r"(?<![\w'])(?:\$\d+|[?@]|:(?=\w))\s*\w*",
        "a statement has no parameters; put the value into the text, a text in single quotes",
        only="an expression must come here",
    ),
    _word(
        r"\bCONVERT\s*\(\s*(?P<type>\w+)\s*,\s*(?P<value>[\w.]+)\s*\)",
        "a value is converted by CAST({value} AS {type})",
    ),
    _word(
        r"(?:[<>=]+|\bIN\s*\()\s*'(?P<number>-?\d+(?:\.\d+)?)'",
        "{told}; a number stands without quotes: {number}",
        only="function ",
    ),
    _word(r"\bCOUNT\s*\(\s*\)", "rows are counted by COUNT(*)"),
    _word(
        r"\bCOUNT\s*\(\s*(?P<what>\*)\s*\)\s*(?=[<>=])[^;]*",
        "{told}: GROUP BY .. HAVING COUNT(*) ..",
        only="an aggregate such as COUNT cannot stand in WHERE",
    ),
)

_CLOCKS = r"(?:now|current_timestamp|localtimestamp|mz_now|proctime|getdate|sysdate)(?:\s*\(\s*\))?"

NAMES = (
    _word(
        rf"(?P<time>[\w.]+)\s*>=?\s*(?P<at>(?P<clock>{_CLOCKS})\s*-\s*(?P<d_last>{DURATION}))",
        "rows of the last {d_last} are a window, in the time of the rows: write FROM {stream} "
        "[RANGE {d_last}] in place of {time} > {clock} - ..",
        only="there is no ",
    ),
    _word(
        rf"(?P<at>(?P<clock>{_CLOCKS}))\s*<=?\s*(?P<time>[\w.]+)\s*\+\s*(?P<d_last>{DURATION})",
        "rows of the last {d_last} are a window, in the time of the rows: write FROM {stream} "
        "[RANGE {d_last}] in place of {clock} <= {time} + ..",
        only="there is no ",
    ),
    _word(
        r"\bwindow_?(?P<end>time|rowtime)\b",
        "there is no window_time; the time of a window's result is its window_end",
        only="there is no column",
    ),
    _word(
        r"\b(?:\w+\.)?(?P<word>window_?start|window_?end|_?wstart|_?wend)\b",
        "there is no column '{word}' here: the bounds of a window are window_start and window_end, "
        "columns of [TUMBLE T] and [HOP T SLIDE D]; write FROM {stream} [TUMBLE 5 MINUTES]",
        only="there is no column",
    ),
    _word(
        r"\b(?:\w+\.)?(?P<word>rowtime|row_time|event_time|eventtime|proctime|_rowtime|"
        r"__time|rowkey)\b",
        "{told}; the time of a row is its time column, the one of TIMESTAMP BY, and no other "
        "columns are added",
        only="there is no column",
    ),
)

STATEMENTS = (
    _word(
        r"\bWATERMARK\s+FOR\s+`?(?P<time>\w+)`?\s+AS\s+`?\w+`?\s*-\s*(?P<d_late>INTERVAL\s*'?\d+'?"
        r"\s*\w+'?)",
        "time and lateness are said behind the columns: write TIMESTAMP BY {time} SLACK {d_late} "
        "there and leave WATERMARK FOR out",
    ),
    _word(
        r"\bWATERMARK\s+FOR\s+`?(?P<time>\w+)`?[^;)]*",
        "time and lateness are said behind the columns: write TIMESTAMP BY {time} SLACK 5 SECONDS "
        "there and leave WATERMARK FOR out",
    ),
    _word(
        r"\b(?:WATERMARK|ALLOWED\s+LATENESS|GRACE\s+PERIOD|LATENESS)\s+(?P<d_late>\d+\s+\w+)",
        "how late rows may come is said by SLACK {d_late}",
    ),
    _word(
        r"\b(?P<word>EVENTTIME|EVENT_TIME|ROWTIME|TIMESTAMP_COLUMN|EVENT\s+TIME)\s+(?:IS\s+|BY\s+)?"
        r"(?P<time>\w+)",
        "the time column is named by TIMESTAMP BY {time}",
        only="'",
    ),
    _word(
        r"\bCREATE\s+(?:STREAM|TABLE|SOURCE)\b[^;]*?\)\s*(?P<at>WITH\s*\((?=[^;]*?(?:kafka|topic))"
        r"[^;]*)",
        "where rows come from is said by USING and OPTIONS: write (value STRING, timestamp "
        "TIMESTAMP) USING kafka OPTIONS (kafka.bootstrap.servers 'host:9092', subscribe 'topic') "
        "TIMESTAMP BY timestamp; a topic has these columns",
    ),
    _word(
        r"\bCREATE\s+(?:STREAM|TABLE|SOURCE)\b[^;]*?\)\s*(?P<at>WITH\s*\([^;]*)",
        "where rows come from is said by USING and OPTIONS: write USING csv OPTIONS (path 'folder')"
        " TIMESTAMP BY t in place of WITH (..)",
    ),
    _word(
        r"\bCREATE\s+STREAM\b[^;]*?\)\s*(?P<at>(?:FROM\s+KAFKA|LOCATION|STORED\s+AS|FORMAT)\b[^;]*)",
        "where rows come from is said by USING and OPTIONS, such as USING csv OPTIONS (path "
        "'folder')",
    ),
    _word(
        r"\bCREATE\s+TABLE\b[^;]*?\)\s*(?P<at>(?:LOCATION|STORED\s+AS|FORMAT|ROW\s+FORMAT)\b[^;]*)",
        "where rows come from is said by USING and OPTIONS, such as USING csv OPTIONS (path "
        "'folder')",
    ),
    _word(
        r"\b(?P<at>(?P<what>PARTITIONED|CLUSTERED|BUCKETED|DISTRIBUTED)\s+BY)\s*\(",
        "there is no {what} BY; " + _SPREAD,
    ),
    _word(
        rf"\bCREATE\s+(?P<kind>STREAMING\s+TABLE|LIVE\s+TABLE|STREAM|TABLE)\s+(?P<name>{NAME})\s+"
        r"(?:WITH\s*\([^;)]*\)\s*)?AS\s+SELECT\b",
        "a query that runs is CREATE QUERY {name} [INTO sink] AS SELECT ..; one that others read "
        "is CREATE VIEW {name} AS SELECT ..",
    ),
    _word(
        rf"\bCREATE\s+(?P<at>(?:CONTINUOUS|STREAMING|LIVE|INCREMENTAL|DYNAMIC)\s+"
        rf"(?:VIEW|TABLE))\s+(?P<name>{NAME})",
        "an answer that is kept and goes on is CREATE MATERIALIZED VIEW {name} AS SELECT ..",
    ),
    _word(
        r"\bCREATE\s+(?P<at>TEMP(?:ORARY)?|GLOBAL|LOCAL)\b",
        "what is declared lives as long as its session anyway: leave the word out",
    ),
    _word(
        rf"\bCREATE\s+(?P<at>SOURCE)\s+(?P<name>{NAME})",
        "where rows come from is a stream: CREATE STREAM {name} (..) USING format TIMESTAMP BY t",
    ),
    _word(
        rf"\bCREATE\s+WINDOW\s+(?P<name>{NAME})[^;]*",
        "what a window holds, kept to be asked, is CREATE MATERIALIZED VIEW {name} AS SELECT * "
        "FROM {stream} [RANGE 5 MINUTES]",
    ),
    _word(
        rf"\bCREATE\s+SINK\s+(?P<name>{NAME})\s+(?P<at>FROM\s+(?P<view>{NAME}))",
        "a sink is declared first and then named by a query: CREATE SINK {name} USING kafka "
        "OPTIONS (..); CREATE QUERY q INTO {name} AS SELECT * FROM {view}",
    ),
    _word(
        rf"\bCREATE\s+SINK\s+(?P<name>{NAME})\s+(?P<at>AS)\s+SELECT\b",
        "a sink is declared first and then named by a query: CREATE SINK {name} USING kafka "
        "OPTIONS (..); CREATE QUERY q INTO {name} AS SELECT ..",
    ),
    _none(
        r"\bCREATE\s+(?P<at>(?P<word>CONNECTION|CONNECTOR|SECRET|CATALOG|DATABASE|SCHEMA|CLUSTER))",
        "there is no CREATE {word}; each stream, table and sink says by USING and OPTIONS where "
        "its rows come from or go to",
    ),
    _none(
        r"\bCREATE\s+(?:UNIQUE\s+)?(?P<at>INDEX)\b[^;]*",
        "there are no indexes; the state of joins, groups and materialized views is sorted by "
        "itself",
    ),
    _none(
        r"\bCREATE\s+(?P<at>CONTEXT)\b[^;]*",
        "there are no contexts; what is computed for each key is said by GROUP BY, OVER (PARTITION "
        "BY ..) or [PARTITION BY .. ROWS n]",
    ),
    _none(
        r"\bCREATE\s+(?P<at>VARIABLE|CONSTANT)\b[^;]*",
        "there are no variables; put the value into the query, or into a table to join with",
    ),
    _word(
        rf"\bCREATE\s+(?:MATERIALIZED\s+)?VIEW\s+(?P<name>{NAME})\s*"
        r"(?P<at>\(\s*(?P<columns>\w+)[\w, ]*\))\s*AS\b",
        "the columns of a view are named in its SELECT: SELECT .. AS {columns}, ..",
    ),
    _word(
        rf"\bCREATE\s+VIEW\s+(?P<name>{NAME})\s+(?P<at>INTO)\s+\w+",
        "a view goes nowhere; what goes into a sink is CREATE QUERY {name} INTO ..",
    ),
    _word(
        r"\bPRIMARY\s+KEY\b|\bNOT\s+ENFORCED\b|\bNOT\s+NULL\b",
        "{told}; leave {word} out",
        only="columns have a name",
    ),
    _word(
        _COLUMNS + r"\w+\s+(?P<at>KEY)(?=\s*[,)])",
        "columns have a name and a type only; leave KEY out",
        only="'(' must be closed",
    ),
    _word(
        _COLUMNS + rf"[(,]\s*(?P<at>`?(?P<name>{NAME})`?\s+AS\s+[\w.]+(?:\s*\([^();]*\))?)",
        "columns are what the source brings; compute others in a view: CREATE VIEW v AS SELECT *, "
        ".. AS {name} FROM s",
        only="'(' must be closed",
    ),
    _word(
        _COLUMNS + r"\b(?P<at>METADATA(?:\s+FROM\s+'[^']*')?(?:\s+VIRTUAL)?)",
        "columns are what the source brings: leave METADATA out",
        only="'(' must be closed",
    ),
    _word(
        rf"\bDROP\s+(?P<name>{NAME})\s*(?=;|$)",
        "DROP says what it drops: DROP STREAM {name}, TABLE, VIEW, SINK or QUERY",
        only="DROP must be followed",
    ),
    _word(r"\bIF\s+EXIST\b", "the words are IF EXISTS"),
    _word(
        rf"^\s*(?P<word>PAUSE|RESUME)\s+(?P<name>{NAME})\s*$",
        "{told}: write {word} QUERY {name}",
    ),
    _word(
        rf"\bDESC(?:RIBE)?\s+(?P<at>EXTENDED|FORMATTED)\s+(?P<name>{NAME})",
        "DESCRIBE {name} shows everything: leave {at} out",
    ),
    _word(
        r"\bEXPLAIN\s+(?P<at>PLAN\s+FOR|EXTENDED|FORMATTED|CODEGEN|COST|ESTIMATED_COST[^;]*?)\s+"
        r"(?=SELECT|WITH|ISTREAM)",
        "leave {at} out: EXPLAIN SELECT .. shows all plans; EXPLAIN LOGICAL, OPTIMIZED or PHYSICAL "
        "one of them",
    ),
    _word(r"\bSHOW\s+(?P<at>MATERIALIZED\s+VIEWS)", "write SHOW VIEWS: it shows which are kept"),
    _word(r"\bSHOW\s+(?P<at>TOPICS|SOURCES)\b", "what rows come from is shown by SHOW STREAMS"),
    _word(r"\bSHOW\s+(?P<at>JOBS|PIPELINES)\b", "what runs is shown by SHOW QUERIES"),
)

VERBS = (
    _word(
        rf"^\s*(?P<at>(?:SUBSCRIBE|TAIL|PRINT|COPY)\s+(?:TO\s+)?'?(?P<name>{NAME})?)",
        "an answer is followed by CREATE QUERY q INTO sink AS SELECT * FROM {name}, in the shell "
        "by SELECT * FROM {name}",
        only="a statement cannot begin",
    ),
    _word(
        rf"^\s*(?P<at>(?:TERMINATE|STOP|KILL|CANCEL)\s+(?:QUERY\s+|JOB\s+)?'?(?P<name>{NAME}))",
        "a query is ended by DROP QUERY {name}, or held up by PAUSE QUERY {name}",
        only="a statement cannot begin",
    ),
    _word(
        rf"^\s*(?P<at>START\s+(?:QUERY\s+|JOB\s+)?(?P<name>{NAME}))",
        "a query runs when it is created; one that was paused goes on by RESUME QUERY {name}",
        only="a statement cannot begin",
    ),
    _word(
        r"^\s*(?P<at>LIST)\s+(?P<what>\w+)", "write SHOW {what}", only="a statement cannot begin"
    ),
    _word(
        r"^\s*(?P<at>EXECUTE\s+STATEMENT\s+SET|BEGIN\s+STATEMENT\s+SET|EXECUTE)\b",
        "all queries of a script run together, in one plan: leave {at} out",
        only="a statement cannot begin",
    ),
    _none(
        r"^\s*(?P<at>BEGIN|COMMIT|ROLLBACK|START\s+TRANSACTION|END)\b",
        "there are no transactions; what a batch changes is committed as a whole",
    ),
    _none(
        r"^\s*(?P<at>USE)\b",
        "there are no databases; names of a session are in one place",
    ),
    _none(
        r"^\s*(?P<at>GRANT|REVOKE)\b",
        "there are no rights; who may read is said by where a sink stands",
    ),
    _none(
        r"^\s*(?P<at>(?P<word>CACHE|UNCACHE|REFRESH|ANALYZE|OPTIMIZE|VACUUM|MSCK))\b",
        "there is no {word}; leave it out: a table is read when the first query that needs it "
        "starts, and nothing has to be looked after",
    ),
    _word(
        rf"^\s*(?P<at>ON)\s+(?P<name>{NAME})\s+(?:SELECT|UPDATE|MERGE|DELETE|INSERT)\b",
        "what is asked whenever a row comes is a join with it: SELECT .. FROM {name} [NOW] a JOIN "
        "other [RANGE 5 MINUTES] b ON ..",
        only="a statement cannot begin",
    ),
    _word(
        r"^\s*(?P<at>(?:RUN\s+SCRIPT|SOURCE|\\i)\s+'?[\w./]*)",
        "a script is run by the command penstock run script.sql, or penstock sql script.sql",
        only="a statement cannot begin",
    ),
)

FOREIGN = (*WINDOWS, *CLAUSES, *STATEMENTS, *VERBS, *EXPRESSIONS, *NAMES)
"""All of them, in the order in which they are tried."""
