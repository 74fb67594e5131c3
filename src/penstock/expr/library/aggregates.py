"""The names of aggregates and what each means; `penstock.expr.aggregates` types their calls."""

from __future__ import annotations

VARIANCES = ("var_samp", "var_pop", "stddev_samp", "stddev_pop")
PAIRS = ("covar_pop", "covar_samp", "corr")
SHAPES = ("skewness", "kurtosis")
BITS = ("bit_and", "bit_or", "bit_xor")
PICKED = ("min_by", "max_by")

CANONICAL = (
    *("count", "count_distinct", "sum", "avg", "min", "max"),
    *(*VARIANCES, *PAIRS, *SHAPES, *BITS, *PICKED, "mode", "percentile", "string_agg"),
)
"""Every aggregate that a plan may hold."""

NAMES: dict[str, str] = {
    "count": "count",
    "count_if": "count",
    "sum": "sum",
    "avg": "avg",
    "mean": "avg",
    "min": "min",
    "max": "max",
    "var_samp": "var_samp",
    "variance": "var_samp",
    "var_pop": "var_pop",
    "stddev_samp": "stddev_samp",
    "stddev": "stddev_samp",
    "std": "stddev_samp",
    "stddev_pop": "stddev_pop",
    "covar_pop": "covar_pop",
    "covar_samp": "covar_samp",
    "corr": "corr",
    "skewness": "skewness",
    "kurtosis": "kurtosis",
    "bool_and": "min",
    "every": "min",
    "bool_or": "max",
    "some": "max",
    "any": "max",
    "bit_and": "bit_and",
    "bit_or": "bit_or",
    "bit_xor": "bit_xor",
    "any_value": "min",
    "min_by": "min_by",
    "max_by": "max_by",
    "first": "min_by",
    "last": "max_by",
    "first_value": "min_by",
    "last_value": "max_by",
    "median": "percentile",
    "percentile": "percentile",
    "mode": "mode",
    "string_agg": "string_agg",
    "listagg": "string_agg",
}
"""Every name of an aggregate, and its canonical one."""

IN_ORDER = ("first", "first_value", "last", "last_value")
"""Aggregates that look at the order of rows in time."""

USAGE: dict[str, tuple[str, int, int]] = {
    "covar_pop": ("covar_pop(x, y)", 2, 2),
    "covar_samp": ("covar_samp(x, y)", 2, 2),
    "corr": ("corr(x, y)", 2, 2),
    "min_by": ("min_by(x, y)", 2, 2),
    "max_by": ("max_by(x, y)", 2, 2),
    "percentile": ("percentile(x, p)", 2, 2),
    "string_agg": ("string_agg(x, delimiter)", 1, 2),
    "listagg": ("listagg(x, delimiter)", 1, 2),
}
"""How those are called that do not take exactly one argument, and how many they take."""

DOCS = (
    ("count(*)", "BIGINT", "Number of rows."),
    ("count(x), count(x, y, ..)", "BIGINT", "Number of rows in which no argument is null."),
    (
        "count(DISTINCT x), count(DISTINCT x, y, ..)",
        "BIGINT",
        "Number of different values, or of different combinations in which nothing is null.",
    ),
    ("count_if(condition)", "BIGINT", "Number of rows in which the condition holds."),
    (
        "sum(x)",
        "BIGINT, DOUBLE or DECIMAL",
        "Sum; of integers a BIGINT, of DECIMAL(p, s) a DECIMAL(p + 10, s), of others a DOUBLE.",
    ),
    (
        "avg(x), mean(x)",
        "DOUBLE or DECIMAL",
        "Mean; of DECIMAL(p, s) a DECIMAL(p + 4, s + 4), rounded once.",
    ),
    ("min(x), max(x)", "type of x", "Smallest and largest value."),
    ("var_samp(x), variance(x)", "DOUBLE", "Variance of a sample; null for fewer than two values."),
    ("var_pop(x)", "DOUBLE", "Variance of a population."),
    ("stddev_samp(x), stddev(x), std(x)", "DOUBLE", "Square root of var_samp."),
    ("stddev_pop(x)", "DOUBLE", "Square root of var_pop."),
    ("covar_samp(x, y)", "DOUBLE", "Covariance of a sample, of rows in which neither is null."),
    ("covar_pop(x, y)", "DOUBLE", "Covariance of a population."),
    (
        "corr(x, y)",
        "DOUBLE",
        "Correlation, from -1 to 1; null for fewer than two rows, or if x or y never changes.",
    ),
    ("skewness(x)", "DOUBLE", "Skewness; null where all values are equal."),
    ("kurtosis(x)", "DOUBLE", "Excess kurtosis; null where all values are equal."),
    ("bool_and(x), every(x)", "BOOLEAN", "Whether x is true in all rows."),
    ("bool_or(x), some(x), any(x)", "BOOLEAN", "Whether x is true in some row."),
    ("bit_and(x), bit_or(x), bit_xor(x)", "type of x", "Bits of all integers taken together."),
    ("any_value(x)", "type of x", "One of the values: the smallest, so that the answer is one."),
    (
        "max_by(x, y), min_by(x, y)",
        "type of x",
        "x in the row with the largest (smallest) y; the smallest such x, null before all others.",
    ),
    (
        "first(x), last(x), first_value(x), last_value(x)",
        "type of x",
        "x in the earliest (latest) row of the stream; the smallest of those at one instant. With "
        "TRUE as second argument nulls are skipped.",
    ),
    ("median(x)", "DOUBLE", "`percentile(x, 0.5)`."),
    (
        "percentile(x, p)",
        "DOUBLE",
        "The exact percentile, p from 0 to 1, interpolated between the two nearest values.",
    ),
    ("mode(x)", "type of x", "The most frequent value; of several, the smallest."),
    (
        "string_agg(x, delimiter), listagg(x, delimiter)",
        "STRING",
        "All texts, in the order of their bytes, with the delimiter between them (default: none).",
    ),
)
"""How aggregates are written, their types and their meaning."""
