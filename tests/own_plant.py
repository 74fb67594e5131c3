"""Functions of the user's own for tests: good ones, and each kind of bad one."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

import penstock as ps


def doubled(x):
    return pc.multiply(x, 2.0)


def or_zero(x):
    """Sees nulls, as functions over Arrow do."""
    return pc.fill_null(x, 0)


@ps.function("DOUBLE", "BIGINT", returns="DOUBLE", takes="numpy")
def scaled(value, factor):
    return value * factor


def squared(x):
    return x * x


@ps.function("STRING", returns="STRING", takes="pandas", name="shouted")
def loud(text):
    return text.str.upper() + "!"


def even(x):
    return x % 2 == 0


def next_day(t):
    return t + np.timedelta64(1, "D")


def root(x):
    return np.array([math.sqrt(value) for value in x])


def too_short(x):
    return x[:-1]


def of_another_type(x):
    return (x * 2).astype(np.int64)


def no_array(x):
    return 5


def of_all_rows(x):
    """Looks at other rows, which no function may: the oracle finds it."""
    return x - x.mean()


def fails_for_many(x):
    if len(x) > 1:
        raise ValueError("too many rows")
    return x


NOT_CALLABLE = 5


class Mean:
    """A whole state that adds up exactly: rows are taken away again."""

    state = {"rows": "BIGINT", "total": "BIGINT"}  # noqa: RUF012

    def add(self, states, groups, x):
        np.add.at(states["rows"], groups, 1)
        np.add.at(states["total"], groups, x)

    def merge(self, states, groups, others):
        for name in states:
            np.add.at(states[name], groups, others[name])

    def remove(self, states, groups, others):
        for name in states:
            np.subtract.at(states[name], groups, others[name])

    def result(self, states):
        return states["total"] / states["rows"]


class Weighted:
    """Floating numbers, whose sums depend on their order: rows are added anew."""

    state = {"weight": "DOUBLE", "total": "DOUBLE"}  # noqa: RUF012

    def add(self, states, groups, x, weight):
        np.add.at(states["weight"], groups, weight)
        np.add.at(states["total"], groups, weight * x)

    def merge(self, states, groups, others):
        for name in states:
            np.add.at(states[name], groups, others[name])

    def result(self, states):
        with np.errstate(invalid="ignore", divide="ignore"):
            return states["total"] / states["weight"]


class Span:
    """The longest text and how far numbers are apart; may give null."""

    state = {  # noqa: RUF012
        "low": ("DOUBLE", math.inf),
        "high": ("DOUBLE", -math.inf),
        "longest": "STRING",
    }

    def add(self, states, groups, x, text):
        np.minimum.at(states["low"], groups, x)
        np.maximum.at(states["high"], groups, x)
        for group, value in zip(groups, text, strict=True):
            if len(value) > len(states["longest"][group]):
                states["longest"][group] = value

    def merge(self, states, groups, others):
        raise NotImplementedError

    def result(self, states):
        told = [
            f"{text} {high - low:g}" if high > low else None
            for low, high, text in zip(
                states["low"], states["high"], states["longest"], strict=True
            )
        ]
        return pa.array(told, pa.string())


class Failing(Mean):
    def add(self, states, groups, x):
        if (x == 13).any():
            raise ValueError("no 13, please")
        super().add(states, groups, x)


class Replacing(Mean):
    def add(self, states, groups, x):
        states["total"] = states["total"] + 0.5


class NoState:
    add = merge = result = Mean.add


class NoMerge:
    state = {"rows": "BIGINT"}  # noqa: RUF012
    add = result = Mean.add


def series(x):
    """A nullable series of pandas."""
    return pd.Series([None if value < 0 else str(value) for value in x], dtype="string")
