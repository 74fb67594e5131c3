"""Functions of ARRAY: searching, ordering, putting together and cutting, as in Spark SQL.

Elements are compared as values are grouped: two nulls are equal, NaN is equal to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expr.casts import check_cast
from penstock.expr.library.arrays import spread
from penstock.expr.library.conditional import equal
from penstock.expr.library.nested_values import an_int, of_arrays, of_nested
from penstock.expr.nested_types import has_map
from penstock.expr.nodes import Expr
from penstock.expr.signatures import (
    ANY,
    COUNT,
    Mismatch,
    Types,
    called,
    shared_type,
    takes,
)
from penstock.expr.text_sizes import check_sizes
from penstock.expr.types import BIGINT, BOOLEAN, NULL, STRING, common_type, is_integer
from penstock.model import I64, Mask
from penstock.nested.gathering import (
    codes,
    first_of_each,
    in_order,
    joined,
    kept,
    places_of,
    runs,
)
from penstock.nested.pieces import Pieces, joined_with
from penstock.nested.shapes import (
    any_within,
    as_arrays,
    elements,
    is_array,
    owners,
    valid_mask,
)


def _element(kind: pa.DataType) -> pa.DataType:
    found: pa.DataType = kind.value_type
    return found


def _same(kind: pa.DataType) -> pa.DataType:
    return kind


def _comparable(kind: pa.DataType) -> bool:
    return is_array(kind) and not has_map(kind)


def _hits(value: pa.Array, element: pa.Array) -> tuple[I64, pa.Array, Mask]:
    """Return the places and elements of arrays, and which elements equal that of their row."""
    places, values = elements(value)
    same = equal(values, element.take(pa.array(owners(places))))
    return places, values, np.asarray(pc.fill_null(same, False))


def _contains(value: Any, element: Any) -> pa.Array:
    _, (value, element) = spread(value, element)
    places, values, hit = _hits(value, element)
    found = any_within(places, hit)
    unknown = ~found & any_within(places, ~valid_mask(values))
    return pa.array(found, BOOLEAN, mask=unknown | ~valid_mask(value) | ~valid_mask(element))


def _position(value: Any, element: Any) -> pa.Array:
    _, (value, element) = spread(value, element)
    places, _, hit = _hits(value, element)
    at, row = np.flatnonzero(hit)[::-1], owners(places)
    found = np.zeros(len(value), np.int64)
    found[row[at]] = at - places[:-1][row[at]] + 1
    return pa.array(found, BIGINT, mask=~(valid_mask(value) & valid_mask(element)))


def _remove(value: Any, element: Any) -> pa.Array:
    _, (value, element) = spread(value, element)
    places, values, hit = _hits(value, element)
    return kept(places, values, ~hit, valid_mask(value) & valid_mask(element))


def _append(before: bool) -> Callable[..., pa.Array]:
    def put(value: Any, element: Any) -> pa.Array:
        _, (value, element) = spread(value, element)
        valid = valid_mask(value)
        one = np.where(valid, 1, 0)
        single = element.filter(pa.array(valid))
        columns = [elements(value), (places_of(one), single)]
        return joined(columns[::-1] if before else columns, valid)

    return put


def _sort(value: Any, ascending: Any = True) -> pa.Array:
    _, (value, ascending) = spread(value, pa.scalar(True) if ascending is True else ascending)
    places, values = elements(value)
    down = ~np.asarray(pc.fill_null(ascending, True))
    order = in_order(places, values, down)
    valid = valid_mask(value) & valid_mask(ascending)
    return as_arrays(places, values.take(pa.array(order)), valid)


def _sort_nulls_last(value: pa.Array) -> pa.Array:
    places, values = elements(value)
    order = in_order(places, values)
    missing = ~valid_mask(values)
    order = order[np.lexsort((missing[order], owners(places)))]
    return as_arrays(places, values.take(pa.array(order)), valid_mask(value))


def _distinct(value: pa.Array) -> pa.Array:
    places, values = elements(value)
    keep = first_of_each(owners(places), codes(values)[0])
    return kept(places, values, keep, valid_mask(value))


def _extreme(largest: bool) -> Callable[[pa.Array], pa.Array]:
    def pick(value: pa.Array) -> pa.Array:
        places, values = elements(value)
        there = valid_mask(values)
        sizes = np.diff(np.concatenate([[0], np.cumsum(there)])[places])
        order = in_order(places, values)  # nulls, then the least
        at = places[1:] - 1 if largest else places[1:] - sizes
        some = sizes > 0
        chosen = np.zeros(len(value), np.int64)
        chosen[some] = order[at[some]]
        return values.take(pa.array(chosen, mask=~some))

    return pick


def _join(value: Any, delimiter: Any, instead: Any = None) -> pa.Array:
    given = [value, delimiter] if instead is None else [value, delimiter, instead]
    _, columns = spread(*given)
    value, between = columns[:2]
    places, texts = elements(value)
    valid = valid_mask(value) & valid_mask(between)
    row = owners(places)
    there = valid_mask(texts)
    if instead is not None:
        valid &= valid_mask(columns[2])
        texts = pc.coalesce(texts, columns[2].take(pa.array(row)))
    elif not there.all():
        places = np.concatenate([[0], np.cumsum(there)])[places]
        texts, row = texts.filter(pa.array(there)), row[there]
    behind = np.ones(len(row), bool)
    behind[places[:-1][places[:-1] < places[1:]]] = False
    before = pc.if_else(pa.array(behind), between.take(pa.array(row)), "")
    listed = Pieces.of(pc.binary_join_element_wise(before, texts, "", null_handling="replace"))
    found = joined_with(b"", places, listed)
    check_sizes(found.sizes, "array_join(x, delimiter)")
    text = found.text().cast(STRING)
    return pc.if_else(pa.array(valid), text, pa.scalar(None, STRING))


def _slice(value: Any, start: Any, length: Any) -> pa.Array:
    _, (value, start, length) = spread(value, start, length)
    places, values = elements(value)
    valid = valid_mask(value) & valid_mask(start) & valid_mask(length)
    first = np.asarray(pc.fill_null(start, 1)).astype(np.int64)
    most = np.asarray(pc.fill_null(length, 0)).astype(np.int64)
    if (valid & (first == 0)).any():
        raise DataError("slice(x, start, length) must start at 1 or later, or below 0, got 0")
    if (valid & (most < 0)).any():
        raise DataError(
            "slice(x, start, length) must get a length of 0 or more, got a negative one"
        )
    sizes = np.diff(places)
    begin = np.where(first < 0, sizes + first, first - 1)
    inside = valid & (begin >= 0) & (begin < sizes)
    count = np.where(inside, np.minimum(most, sizes - begin), 0)
    index = runs(places[:-1] + np.where(inside, begin, 0), count)
    return as_arrays(places_of(count), values.take(pa.array(index)), valid)


def _flatten(value: pa.Array) -> pa.Array:
    places, inner = elements(value)
    valid = valid_mask(value) & ~any_within(places, ~valid_mask(inner))
    below, values = elements(inner)
    ends = below[places]
    sizes = np.where(valid, np.diff(ends), 0)
    chosen = values.take(pa.array(runs(ends[:-1], sizes)))
    return as_arrays(places_of(sizes), chosen, valid)


def _concat(*values: Any) -> pa.Array:
    _, columns = spread(*values)
    valid = np.logical_and.reduce([valid_mask(column) for column in columns])
    if not valid.all():
        columns = [pc.if_else(pa.array(valid), c, pa.scalar(None, c.type)) for c in columns]
    return joined([elements(column) for column in columns], valid)


def _reverse(value: pa.Array) -> pa.Array:
    places, values = elements(value)
    row = owners(places)
    index = places[:-1][row] + places[1:][row] - 1 - np.arange(len(row))
    return as_arrays(places, values.take(pa.array(index)), valid_mask(value))


def _repeat(element: Any, times: Any) -> pa.Array:
    rows, (element, times) = spread(element, times)
    count = np.maximum(np.asarray(pc.fill_null(times, 0)).astype(np.int64), 0)
    if int(count.sum()) >= 1 << 31:
        raise DataError("array_repeat(x, n) must make fewer than 2**31 elements at once; use less")
    index = np.repeat(np.arange(rows), count)
    return as_arrays(places_of(count), element.take(pa.array(index)), valid_mask(times))


def _compact(value: pa.Array) -> pa.Array:
    places, values = elements(value)
    return kept(places, values, valid_mask(values), valid_mask(value))


def _union(a: Any, b: Any) -> pa.Array:
    return _distinct(_concat(a, b))


def _shared(a: Any, b: Any, inside: bool) -> pa.Array:
    """Return the distinct elements of the first array that are in the second one, or are not."""
    _, (a, b) = spread(a, b)
    (places, values), (others, other_values) = elements(a), elements(b)
    own, other = codes(values, other_values)
    row, other_row = owners(places), owners(others)
    most = 1 + int(max(own.max(initial=0), other.max(initial=0)))
    there = np.isin(row * most + own, other_row * most + other)
    keep = first_of_each(row, own) & (there == inside)
    return kept(places, values, keep, valid_mask(a) & valid_mask(b))


def _overlap(a: Any, b: Any) -> pa.Array:
    _, (a, b) = spread(a, b)
    both = _shared(_compact(a), _compact(b), True)
    found = np.diff(elements(both)[0]) > 0
    null = [any_within(p, ~valid_mask(v)) for p, v in (elements(a), elements(b))]
    some = [np.diff(elements(c)[0]) > 0 for c in (a, b)]
    unknown = ~found & (null[0] | null[1]) & some[0] & some[1]
    return pa.array(found, BOOLEAN, mask=unknown | ~valid_mask(a) | ~valid_mask(b))


_MOST = 1 << 27


def _sequence(start: Any, stop: Any, step: Any = None) -> pa.Array:
    given = [start, stop] if step is None else [start, stop, step]
    rows, columns = spread(*given)
    valid = np.logical_and.reduce([valid_mask(c) for c in columns])
    first, last = (np.asarray(pc.fill_null(c, 0)).astype(np.int64) for c in columns[:2])
    by = np.where(first <= last, 1, -1)
    if step is not None:
        by = np.asarray(pc.fill_null(columns[2], 1)).astype(np.int64)
    wrong = valid & (((by >= 0) & (first > last)) | ((by <= 0) & (first < last)))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"sequence(start, stop, step) must get a step that leads from start to stop, got "
            f"{first[row]}, {last[row]}, {by[row]}"
        )
    count = np.where(valid, (last - first) // np.where(by == 0, 1, by) + 1, 0)
    if int(count.sum()) > _MOST:
        raise DataError(f"sequence(start, stop, step) must make at most {_MOST:,} elements at once")
    numbers = np.repeat(first, count) + runs(np.zeros(rows, np.int64), count) * np.repeat(by, count)
    return as_arrays(places_of(count), pa.array(numbers, columns[0].type), valid)


def _sequence_rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
    shared = shared_type(args)
    if len(args) not in (2, 3) or shared is None or not is_integer(shared):
        raise Mismatch("two or three integers")
    return (shared,) * len(args), pa.list_(shared)


def _texts_rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
    if len(args) not in (2, 3) or not is_array(args[0].type):
        raise Mismatch("an ARRAY and a STRING between its elements")
    check_cast(args[0].type, pa.list_(STRING))
    if any(arg.type not in (STRING, NULL) for arg in args[1:]):
        raise Mismatch("a STRING as delimiter and instead of nulls")
    return (pa.list_(STRING), *(STRING,) * (len(args) - 1)), STRING


def _alike_rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
    shared = shared_type(args)
    if not args or shared is None or not is_array(shared):
        raise Mismatch("ARRAYs of one type (use CAST)")
    return (shared,) * len(args), shared


def _two_rule(gives: pa.DataType | None) -> Callable[..., tuple[Types, pa.DataType]]:
    def rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
        types, shared = _alike_rule(args)
        if len(args) != 2 or has_map(shared):
            raise Mismatch("two ARRAYs of one type (use CAST)")
        return types, gives or shared

    return rule


def _element_rule(compare: bool) -> Callable[..., tuple[Types, pa.DataType]]:
    """An ARRAY and an element of it; both are widened to what holds them."""

    def rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
        if len(args) != 2 or not is_array(args[0].type):
            raise Mismatch("an ARRAY and a value")
        pair = [args[0].type.value_type, args[1].type]
        shared = common_type(*pair)
        if shared is None or (compare and has_map(shared)):
            raise Mismatch("an ARRAY and a value of the type of its elements (use CAST)")
        return (pa.list_(shared), shared), pa.list_(shared)

    return rule


def _found_rule(gives: pa.DataType) -> Callable[..., tuple[Types, pa.DataType]]:
    rule = _element_rule(True)
    return lambda args: (rule(args)[0], gives)


def _flat(kind: pa.DataType) -> bool:
    return is_array(kind) and is_array(kind.value_type)


FUNCTIONS = (
    of_arrays("array_contains(x, v)", _found_rule(BOOLEAN), _contains,
             "Whether an ARRAY has an element; null if it does not, but has nulls."),
    of_arrays("array_position(x, v)", _found_rule(BIGINT), _position,
             "The place of the first equal element, counted from 1; 0 if there is none."),
    of_arrays("array_remove(x, v)", _element_rule(True), _remove,
             "The ARRAY without the elements that are equal to a value."),
    of_arrays("array_append(x, v)", _element_rule(False), _append(False),
             "The ARRAY with a value behind it."),
    of_arrays("array_prepend(x, v)", _element_rule(False), _append(True),
             "The ARRAY with a value before it."),
    of_arrays("sort_array(x, ascending)",
             of_nested(_comparable, "an ARRAY of values that can be compared", _same,
                       lambda kind: BOOLEAN, optional=1), _sort,
             "The elements in order, nulls first; with FALSE the largest first, nulls last."),
    of_arrays("array_sort(x)",
             of_nested(_comparable, "an ARRAY of values that can be compared", _same),
             _sort_nulls_last, "The elements in order, nulls last."),
    of_arrays("array_distinct(x)",
             of_nested(_comparable, "an ARRAY of values that can be compared", _same),
             _distinct, "Each element once, where it stands first."),
    of_arrays("array_min(x)", of_nested(_comparable, "an ARRAY", _element), _extreme(False),
             "The least element; nulls are skipped."),
    of_arrays("array_max(x)", of_nested(_comparable, "an ARRAY", _element), _extreme(True),
             "The greatest element; nulls are skipped."),
    of_arrays("array_join(x, delimiter, instead)", _texts_rule, _join,
             "The elements as one text, with a delimiter between them; nulls are skipped, or "
             "written as the third argument says."),
    of_arrays("slice(x, start, length)",
             of_nested(is_array, "an ARRAY", _same, an_int, an_int), _slice,
             "Elements from a place on, counted from 1, or from the end where it is negative.",
             total=False),
    of_arrays("flatten(x)", of_nested(_flat, "an ARRAY of ARRAYs", _element), _flatten,
             "The elements of all inner ARRAYs; null if one of them is null."),
    of_arrays("concat(x, y, ..), x || y", _alike_rule, _concat,
             "ARRAYs one after another; null if one is null.",
             name="array_concat", spark=called("concat")),
    of_arrays("reverse(x)", of_nested(is_array, "an ARRAY", _same), _reverse,
             "The elements from the last to the first.",
             name="array_reverse", spark=called("reverse")),
    of_arrays("array_repeat(v, n)", takes(ANY, COUNT, gives=lambda types: pa.list_(types[0])),
             _repeat, "An ARRAY of n equal elements.", total=False),
    of_arrays("array_compact(x)", of_nested(is_array, "an ARRAY", _same), _compact,
             "The elements that are not null."),
    of_arrays("array_union(x, y)", _two_rule(None), _union, "What is in one of two ARRAYs, once."),
    of_arrays("array_intersect(x, y)", _two_rule(None), lambda a, b: _shared(a, b, True),
             "What is in both ARRAYs, once."),
    of_arrays("array_except(x, y)", _two_rule(None), lambda a, b: _shared(a, b, False),
             "What is in the first ARRAY and not in the second one, once."),
    of_arrays("arrays_overlap(x, y)", _two_rule(BOOLEAN), _overlap,
             "Whether two ARRAYs have an element in common; null if not, but one has nulls."),
    of_arrays("sequence(start, stop, step)", _sequence_rule, _sequence,
              "The integers from one to another.", total=False),
)  # fmt: skip
"""``concat`` and ``reverse`` of arrays: `penstock.expr.functions` tells them from those of text."""
