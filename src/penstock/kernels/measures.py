"""What aggregates need to know of an argument, added up over rows and turned into results.

An argument has *parts*: how many of its values are not null, the exact sum of them and of their
powers, how often each bit is set, their extremes, how many differ.  Parts of rows add up to parts
of panes, and these to parts of groups.  At the steps of a slice every part is a column; `result`
makes an aggregate of it.

Some aggregates have more than one argument: two variables whose products are added up, or something
that is chosen by something else, a pair (`kernels.sweep`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.decimals import (
    divided,
    fitting,
    in_words,
    is_decimal,
    is_wide,
    of_words,
    of_words_integers,
    times,
    words,
)
from penstock.errors import DataError
from penstock.kernels import exact, moments
from penstock.kernels.counts import canonical
from penstock.kernels.exact import PACKED, Digits
from penstock.kernels.steps import group_starts
from penstock.kernels.sweep import ordered, ordered_type, pair_type, pairs, ranks, restored, stays
from penstock.model import I64, Mask, to_mask, to_numpy

Numbers: TypeAlias = npt.NDArray[Any]
Split: TypeAlias = Callable[[Sequence[Numbers], I64 | None], Digits]

_SUMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sum", "avg"), ("sum",)),
    **dict.fromkeys(("var_samp", "var_pop", "stddev_samp", "stddev_pop"), ("sum", "square")),
    **dict.fromkeys(("covar_pop", "covar_samp"), ("sum", "other sum", "product")),
    "corr": ("sum", "square", "other sum", "other square", "product"),
    "skewness": ("sum", "square", "cube"),
    "kurtosis": ("sum", "square", "cube", "fourth"),
    **dict.fromkeys(("bit_and", "bit_or", "bit_xor"), ("bits",)),
}
"""Which sums an aggregate is made of."""

_POWERS = ("sum", "square", "cube", "fourth")

_SPLITS: dict[str, Split] = {
    "square": lambda values, sign: exact.split_squares(values[0], sign),
    "cube": lambda values, sign: moments.split_cubes(values[0], sign),
    "fourth": lambda values, sign: moments.split_fourths(values[0], sign),
    "bits": lambda values, sign: moments.split_bits(values[0], sign),
    "other sum": lambda values, sign: exact.split_doubles(values[1], sign),
    "other square": lambda values, sign: exact.split_squares(values[1], sign),
    "product": lambda values, sign: moments.split_products(values[0], values[1], sign),
}


@dataclass
class Measure:
    """One distinct argument, or several that belong together, and what is asked of it.

    ``type`` is that of the first one.  ``chosen`` is the type of what the first one chooses, and
    ``paired`` says that there is a second variable.  ``once``: equal values count once.  ``own`` is
    the struct of all arguments of an aggregate of the user's own, ``own_state`` that of its state
    if it is kept.
    ``place`` says at which columns of a live row its parts are, ``held`` the same for a group.
    """

    type: pa.DataType
    chosen: pa.DataType | None = None
    paired: bool = False
    once: bool = False
    sums: bool = False
    squares: bool = False
    more_sums: set[str] = field(default_factory=set)
    smallest: bool = False
    largest: bool = False
    distinct: bool = False
    frequent: bool = False
    shares: list[float] = field(default_factory=list)
    delimiters: list[str] = field(default_factory=list)
    own: pa.DataType | None = None
    own_state: pa.DataType | None = None
    place: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)

    def require(self, name: str, option: Any) -> None:
        """Note what an aggregate needs; ``option`` is its share or delimiter."""
        for part in _SUMS.get(name, ()):
            self.sums |= part == "sum"
            self.squares |= part == "square"
            if part not in ("sum", "square"):
                self.more_sums.add(part)
        self.smallest |= name in ("min", "min_by")
        self.largest |= name in ("max", "max_by")
        self.distinct |= name == "count_distinct"
        self.frequent |= name == "mode"
        options: dict[str, list[Any]] = {
            "percentile": self.shares,
            "string_agg": self.delimiters,
        }
        if name in options and option not in options[name]:
            options[name].append(option)

    @property
    def is_float(self) -> bool:
        return bool(pa.types.is_floating(self.type))

    @property
    def valued(self) -> bool:
        """Whether live rows keep the value itself."""
        extreme = self.smallest or self.largest or self.frequent or self.own
        return bool(self.sums or self.more_sums or extreme or self.shares or self.delimiters)

    @property
    def compared(self) -> bool:
        """Whether it matters which values are equal."""
        return self.distinct or self.once or self.frequent or bool(self.delimiters)

    @property
    def adds_up(self) -> bool:
        """Whether rows can be added up before they reach their group."""
        return not self.compared and not self.shares and (not self.own or bool(self.own_state))

    @property
    def directions(self) -> list[bool]:
        """The extremes wanted; true is the largest."""
        return [d for d, wanted in ((False, self.smallest), (True, self.largest)) if wanted]

    @property
    def stored_type(self) -> pa.DataType:
        if self.own is not None:
            return self.own
        if self.chosen is not None:
            return pair_type(self.type, self.chosen)
        return pa.float64() if self.is_float else ordered_type(self.type)

    @property
    def extreme_type(self) -> pa.DataType:
        """The type of ordered values of which the extreme is wanted."""
        return self.stored_type if self.chosen is not None else ordered_type(self.type)

    @property
    def presence(self) -> str:
        """The part of a live row that is null, or false, where the argument is null."""
        return next(part for part in ("value", "valid", "high") if part in self.place)

    @property
    def row_parts(self) -> list[tuple[str, pa.DataType, bool]]:
        """What a live row holds: names, types, and whether each is wanted."""
        value = self.stored_type if self.valued else pa.null()
        return [
            ("value", value, self.valued),
            ("other", pa.float64(), self.paired and self.valued),
            ("valid", pa.bool_(), not self.valued and not self.compared),
            ("high", pa.uint64(), self.compared),
            ("low", pa.uint64(), self.compared),
        ]

    @property
    def pane_parts(self) -> list[tuple[str, pa.DataType, bool]]:
        """What a pane holds."""
        extreme = self.extreme_type if self.directions else pa.null()
        return [
            ("count", pa.int64(), True),
            *((part, PACKED, True) for part, _ in self.splits),
            ("min", extreme, self.smallest),
            ("max", extreme, self.largest),
            ("state", self.own_state, self.own_state is not None),
        ]

    @property
    def group_parts(self) -> list[tuple[str, pa.DataType, bool]]:
        """What a group holds."""
        return [
            ("count", pa.int64(), True),
            *((part, PACKED, True) for part, _ in self.splits),
            ("distinct", pa.int64(), self.distinct),
            ("state", self.own_state, self.own_state is not None),
        ]

    @property
    def splits(self) -> list[tuple[str, Split]]:
        """How values become the digits of each sum that is wanted."""
        wanted: list[tuple[str, Split]] = []
        if self.sums:
            whole = exact.split_words if is_wide(self.type) else exact.split_integers
            first = exact.split_doubles if self.is_float else whole
            wanted.append(("sum", lambda values, sign: first(values[0], sign)))
        if self.squares:
            wanted.append(("square", _SPLITS["square"]))
        return wanted + [(part, split) for part, split in _SPLITS.items() if part in self.more_sums]

    def store(self, arrays: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the arguments as live rows keep them: null where one that counts is."""
        if not self.valued:
            return [arrays[0]]
        if self.chosen is not None:
            return [pairs(arrays[0], canonical(arrays[1]))]
        if self.paired:
            missing = np.logical_or(*(to_mask(a.is_null()) for a in arrays))
            return [pa.array(numbers(a), mask=missing) for a in arrays]
        return [arrays[0].cast(pa.float64()) if self.is_float else ordered(arrays[0])]

    def partial(self, kept: list[pa.Array], order: I64, starts: I64) -> list[pa.Array]:
        """Return the parts of pieces: ``order`` sorts rows by piece, each begins at ``starts``."""
        stored = kept[0]
        if stored.null_count:
            counts = _sum_of(to_mask(stored.is_valid()).astype(np.int64)[order], starts)
        else:
            counts = np.diff(np.append(starts, len(order)))
        columns = [pa.array(counts)]
        if self.splits:
            values = [numbers(array)[order] for array in kept]
            for _, split in self.splits:
                digits = {b: _sum_of(d, starts) for b, d in split(values, None).items()}
                columns.append(exact.pack(exact.normalise(digits), len(starts)))
        for largest in self.directions:
            columns.append(_extreme_of(ordered(stored), largest, order, starts))
        return columns


@dataclass(frozen=True)
class Extreme:
    """The rank of the extreme at every step, and the ordered values that were ranked."""

    least: I64
    values: pa.Array
    rank: I64
    largest: bool


@dataclass(frozen=True)
class Result:
    """A result column at every step: comparable values, where not null, and how to make it."""

    values: npt.NDArray[Any]
    valid: Mask | None
    make: Callable[[I64], pa.Array]

    def changes(self) -> Mask:
        """Return for each step but the first whether it differs from the one before."""
        differs: Mask = self.values[1:] != self.values[:-1]
        if self.valid is not None:
            differs &= self.valid[1:]
            differs |= self.valid[1:] != self.valid[:-1]
        return differs


def result(
    name: str,
    kind: pa.DataType,
    measure: Measure | None,
    parts: dict[str, Any],
    rows: I64,
    option: Any = None,
) -> Result:
    """Return the column of one aggregate at every step; without a measure it counts rows.

    ``option`` is the share of a percentile or the delimiter of texts.
    """
    if measure is None:
        return _plain(rows, kind)
    count = parts["count"]
    valid = count > 0
    if measure.own is not None:
        return column_result(parts["own"])
    some = np.maximum(count, 1)
    match name:
        case "count":
            return _plain(count, kind)
        case "count_distinct":
            return _plain(parts["distinct"], kind)
        case "min" | "max" | "min_by" | "max_by":
            return _extreme_result(parts[name[:3]], kind, valid)
        case "mode":
            return _extreme_result(parts["mode"], kind, valid)
        case "percentile":
            return _plain(parts[f"percentile {option}"], kind, valid)
        case "string_agg":
            return _text_result(parts[f"texts {option}"], valid)
        case "bit_and" | "bit_or" | "bit_xor":
            return _plain(moments.bits_of(name, parts["bits"], count), kind, valid)
        case "sum" | "avg" if is_decimal(measure.type):
            return decimal_result(name, kind, measure.type, parts["sum"], count, valid)
        case "sum" if not measure.is_float:
            return _plain(exact.checked_integer(parts["sum"], len(rows)), kind, valid)
        case "sum" | "avg":
            if "total" not in parts:
                parts["total"] = exact.to_double(parts["sum"], len(rows))
            total = parts["total"]
            return _plain(total if name == "sum" else total / some, kind, valid)
        case "corr" | "skewness" | "kurtosis":
            values, there = _shape(name, some, parts)
            return _plain(values, kind, there & (count > int(name == "corr")))
    sample = name.endswith("samp")
    if name.startswith("covar"):
        spread, compute = _covariance(some, parts), exact.variance
    else:
        spread = _spread(some, parts, "sum", "square")
        compute = exact.variance if name.startswith("var") else exact.deviation
    return _plain(compute(some, spread, sample), kind, count > int(sample))


def _spread(count: I64, parts: dict[str, Any], sums: str, squares: str) -> moments.Rounded:
    """Return what the variance of one of the variables is made of, once."""
    key = f"spread of {sums}"
    if key not in parts:
        parts[key] = exact.variance_parts(count, parts[sums], parts[squares])
    found: moments.Rounded = parts[key]
    return found


def _covariance(count: I64, parts: dict[str, Any]) -> moments.Rounded:
    """Return what the covariance is made of, once."""
    if "covariance" not in parts:
        sums = (parts["sum"], parts["other sum"], parts["product"])
        parts["covariance"] = moments.covariance(count, *sums)
    found: moments.Rounded = parts["covariance"]
    return found


def _shape(name: str, count: I64, parts: dict[str, Any]) -> tuple[Numbers, Mask]:
    """Return a correlation, skewness or kurtosis, and where there is one."""
    spread = _spread(count, parts, "sum", "square")
    if name == "corr":
        other = _spread(count, parts, "other sum", "other square")
        return moments.correlation(_covariance(count, parts), spread, other)
    compute, most = (moments.skewness, 3) if name == "skewness" else (moments.kurtosis, 4)
    return compute(count, [parts[power] for power in _POWERS[:most]], spread)


def validity(array: pa.Array) -> Mask | None:
    """Return where a presence column says that there is a value; None for everywhere."""
    if pa.types.is_boolean(array.type):
        mask = to_mask(array)
        return None if mask.all() else mask
    return to_mask(array.is_valid()) if array.null_count else None


def numbers(array: pa.Array) -> npt.NDArray[Any]:
    """Return a numeric column as NumPy, 0 for null; a DECIMAL as words."""
    if is_decimal(array.type):
        return words(array)
    if array.null_count:
        array = array.fill_null(0)
    values: npt.NDArray[Any] = to_numpy(array)
    return values


def _plain(values: npt.NDArray[Any], kind: pa.DataType, valid: Mask | None = None) -> Result:
    """Return a column of numbers; floats are compared by their bits."""
    if valid is not None and valid.all():
        valid = None

    def make(at: I64) -> pa.Array:
        array = pa.array(values[at], mask=None if valid is None else ~valid[at])
        return array if array.type == kind else array.cast(kind)

    bits = values.view(np.int64) if values.dtype == np.float64 else values
    return Result(bits, valid, make)


def decimal_result(
    name: str, kind: pa.DataType, of: pa.DataType, digits: Digits, count: I64, valid: Mask
) -> Result:
    """Return a sum or a mean of DECIMALs, exact or rounded once; too many digits are an error."""
    found, beyond = exact.to_words(digits, len(count))
    units = of_words_integers(found)
    if name == "avg":
        more = 10 ** (kind.scale - of.scale)
        units = divided(times(units, more), np.maximum(count, 1))
    wrong = (beyond | ~fitting(units, kind)) & valid
    if wrong.any():
        raise DataError(
            f"{name.upper()} exceeded DECIMAL({kind.precision}, {kind.scale}): the "
            f"{'mean' if name == 'avg' else 'sum'} of a group must have at most {kind.precision} "
            "digits; cast the argument to DOUBLE"
        )
    if units.dtype == object:
        units = np.where(valid, units, 0)
    found = in_words(units)
    plain = found if units.dtype == object else units
    missing = None if valid.all() else ~valid

    def make(at: I64) -> pa.Array:
        return of_words(found[at], kind, None if missing is None else missing[at])

    return Result(plain, None if missing is None else valid, make)


def _extreme_result(extreme: Extreme, kind: pa.DataType, valid: Mask) -> Result:
    def make(at: I64) -> pa.Array:
        least, there = extreme.least[at], valid[at]
        paired = pa.types.is_struct(extreme.values.type)
        if not paired and pa.types.is_int64(extreme.values.type):
            return restored(~least if extreme.largest else least, kind, there)
        position = np.zeros(len(extreme.rank) + 1, np.int64)
        position[extreme.rank] = np.arange(len(extreme.rank))
        found = extreme.values.take(pa.array(position[np.where(there, least, 0)], mask=~there))
        if paired:
            _, found = found.flatten()
        return found if found.type == kind else restored(numbers(found), kind, there)

    return Result(extreme.least, valid, make)


def column_result(column: pa.Array) -> Result:
    """Return a column of any type, one value for each step."""
    plain = canonical(column)
    if pa.types.is_floating(plain.type):
        values = numbers(plain).astype(np.float64).view(np.int64)
    elif stays(plain.type):
        values = plain.dictionary_encode().indices.fill_null(0).to_numpy().astype(np.int64)
    else:
        values = numbers(ordered(plain))
    valid = to_mask(column.is_valid()) if column.null_count else None
    return Result(values, valid, lambda at: column.take(pa.array(at)))


def _text_result(texts: pa.Array, valid: Mask) -> Result:
    """Return a column of texts, one for each step; they are compared by their numbers."""
    encoded = texts.dictionary_encode()
    codes: I64 = encoded.indices.fill_null(0).to_numpy().astype(np.int64)
    return Result(codes, valid, lambda at: texts.take(pa.array(at, mask=~valid[at])))


def _sum_of(values: I64, starts: I64) -> I64:
    """Return the sums of consecutive pieces."""
    if len(starts) == 0:
        return np.empty(0, np.int64)
    sums: I64 = np.add.reduceat(values, starts)
    return sums


def _extreme_of(values: pa.Array, largest: bool, order: I64, starts: I64) -> pa.Array:
    """Return the extreme of consecutive pieces of ordered values, null where all are null."""
    used = order
    piece = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
    if values.null_count:
        valid = to_mask(values.is_valid())[order]
        used, piece = used[valid], piece[valid]
    rank = ranks(values.take(pa.array(used)), largest)
    begin = group_starts(piece)
    found = np.full(len(starts), -1, np.int64)
    if len(begin):
        least = np.minimum.reduceat(rank, begin)
        hit = np.flatnonzero(rank == np.repeat(least, np.diff(np.append(begin, len(piece)))))
        found[piece[hit]] = used[hit]
    return values.take(pa.array(found, mask=found < 0))
