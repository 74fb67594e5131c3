"""What a function that there is not was meant to be: the same under another name, or a sentence.

Names are understood by their meaning first: `SYNONYMS` lists what other systems call a function,
`SENTENCES` what there cannot be in a continuous query, with what to write instead.  Only then are
letters compared, and only where that convinces.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import closest

SYNONYMS: dict[str, tuple[str, ...]] = {
    # aggregates
    "average": ("avg",),
    "arithmetic_mean": ("avg",),
    "cnt": ("count",),
    "count_big": ("count",),
    "countif": ("count_if",),
    "total": ("sum",),
    "minimum": ("min",),
    "maximum": ("max",),
    "var": ("var_samp",),
    "varp": ("var_pop",),
    "stdev": ("stddev",),
    "stdevp": ("stddev_pop",),
    "stddevp": ("stddev_pop",),
    "standard_deviation": ("stddev",),
    "argmax": ("max_by",),
    "arg_max": ("max_by",),
    "argmin": ("min_by",),
    "arg_min": ("min_by",),
    "latest_by_offset": ("last", "max_by"),
    "earliest_by_offset": ("first", "min_by"),
    "latest": ("last", "max_by"),
    "earliest": ("first", "min_by"),
    "collect": ("collect_list",),
    "array_agg": ("collect_list",),
    "group_concat": ("string_agg", "listagg"),
    "listagg": ("string_agg",),
    "every": ("bool_and",),
    "logical_and": ("bool_and",),
    "logical_or": ("bool_or",),
    # texts
    "strlen": ("length",),
    "array_length": ("array_size",),
    "unnest": ("explode",),
    "array_slice": ("slice",),
    "array_cat": ("concat",),
    "list_contains": ("array_contains",),
    "has": ("array_contains",),
    "struct_pack": ("named_struct",),
    "row": ("struct",),
    "json_extract": ("get_json_object",),
    "json_extract_string": ("get_json_object",),
    "json_value": ("get_json_object",),
    "json_query": ("get_json_object",),
    "parse_json": ("from_json",),
    "string_to_array": ("split",),
    "array_to_string": ("array_join",),
    "string_length": ("length",),
    "to_upper": ("upper",),
    "toupper": ("upper",),
    "uppercase": ("upper",),
    "to_lower": ("lower",),
    "tolower": ("lower",),
    "lowercase": ("lower",),
    "strip": ("trim",),
    "lstrip": ("ltrim",),
    "rstrip": ("rtrim",),
    "strpos": ("instr", "locate"),
    "charindex": ("instr", "locate"),
    "indexof": ("instr", "locate"),
    "starts_with": ("startswith",),
    "ends_with": ("endswith",),
    "editdistance": ("levenshtein",),
    "edit_distance": ("levenshtein",),
    # numbers
    "squareroot": ("sqrt",),
    # nulls and choices
    "iif": ("if",),
    "ifelse": ("if",),
    # times
    "datetrunc": ("date_trunc",),
    "time_bucket": ("date_trunc",),
    "date_bin": ("date_trunc",),
    "time_floor": ("date_trunc",),
    "epoch": ("unix_seconds",),
    "to_unixtime": ("unix_seconds",),
    "unixtime": ("unix_seconds",),
    "from_epoch": ("timestamp_seconds",),
    "dayofweekiso": ("weekday",),
    "dow": ("dayofweek",),
    "doy": ("dayofyear",),
    # places
    "geo_distance": ("distance",),
    "euclidean": ("distance",),
    "manhattan": ("distance_l1",),
    "st_distance": ("distance",),
}
"""What others call a function: the first of these that there is was meant."""

_CLOCK = (
    "the time of a query is that of its rows, so that the same rows give the same answer whenever "
    "they are read; for rows of the last minutes write a window, FROM s [RANGE 5 MINUTES], and for "
    "the time of a row its time column"
)
_CHANCE = (
    "an answer must be the same when a batch is run again, so there is no chance in it; take a "
    "share of the rows by a column, such as WHERE id % 10 = 0"
)
_PROGRESS = (
    "how far time has come is no value of a row, and an answer leaves only when it is final; "
    "SHOW STREAMS shows the heartbeat"
)

SENTENCES: dict[str, str] = {
    **dict.fromkeys(
        ("now", "current_timestamp", "current_date", "current_time", "localtimestamp", "localtime",
         "current_row_timestamp", "mz_now", "getdate", "sysdate", "sysdatetime", "proctime",
         "processing_time", "curdate", "systimestamp", "unix_now", "system_timestamp", "today"),
        _CLOCK,
    ),
    **dict.fromkeys(
        ("rand", "random", "randn", "uuid", "gen_random_uuid", "newid", "rand_integer"), _CHANCE
    ),
    **dict.fromkeys(("current_watermark", "watermark", "current_heartbeat"), _PROGRESS),
    **dict.fromkeys(
        ("approx_count_distinct", "approx_distinct", "count_distinct", "uniq", "hll_count"),
        "COUNT(DISTINCT x) counts different values, exactly, also as windows slide",
    ),
    "prev": "the row before is LAG(x) OVER (PARTITION BY k ORDER BY t), n rows before LAG(x, n)",
    "next": "the row after is LEAD(x) OVER (PARTITION BY k ORDER BY t)",
    "topk": "the greatest n are ORDER BY x DESC LIMIT n",
    "topkdistinct": "the greatest n are SELECT DISTINCT x .. ORDER BY x DESC LIMIT n",
    "rowtime": "the time of a row is its time column, the one of TIMESTAMP BY",
    "monotonically_increasing_id": "rows are numbered by ROW_NUMBER() OVER (ORDER BY t)",
    "spark_partition_id": "how rows are spread never shows in an answer; leave it out",
    "input_file_name": "where a row was read never shows in an answer; leave it out",
    "timestampdiff": "time_diff(later, earlier) is the time between two times, in microseconds",
    "timestampadd": "a time is moved by an INTERVAL: t + INTERVAL 5 MINUTES",
    "withwatermark": "how late rows may come is said by the stream: TIMESTAMP BY t SLACK 10 "
    "MINUTES",
}  # fmt: skip
"""What there cannot be, or is written otherwise, by the name that people type."""


def meant(name: str, known: Iterable[str]) -> str:
    """Return what to do instead of calling a function that there is not."""
    names = set(known)
    key = name.lower()
    if key in SENTENCES:
        return SENTENCES[key]
    found = next((n for n in SYNONYMS.get(key, ()) if n in names), None) or closest(key, names)
    return f"did you mean '{found}'?" if found else "SHOW FUNCTIONS lists those that there are"
