"""The oracle's window functions: each row looks at its frame, row by row, in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from penstock.algebra import Over
from penstock.errors import InternalError
from penstock.expr.frames import Frame, OverCall
from penstock.expr.nodes import AggregateCall
from penstock.reference.aggregates import aggregate
from penstock.reference.expressions import evaluate
from penstock.reference.values import canonical

Values: TypeAlias = tuple[Any, ...]
Element: TypeAlias = tuple[Values, int]


def over(node: Over, elements: Sequence[Element]) -> list[Element]:
    """Return the elements that window functions make of a stream's elements, which are in order."""
    found: list[Element] = []
    for at, (values, time) in enumerate(elements):
        wide = values + tuple(_function(call, elements, at) for call in node.calls)
        if node.predicate is None or evaluate(node.predicate, wide) is True:
            found.append((tuple(canonical(evaluate(e, wide)) for e in node.exprs), time))
    return found


def _function(call: OverCall, elements: Sequence[Element], at: int) -> Any:
    """Return one function for the element at a place."""

    def key(values: Values) -> Values:
        return tuple(evaluate(k, values) for k in call.partition)

    values, time = elements[at]
    mine = [i for i, (other, _) in enumerate(elements) if key(other) == key(values)]
    partition = [elements[i] for i in mine]
    here = mine.index(at)
    times = [t for _, t in partition]
    match call.name:
        case "row_number":
            return here + 1
        case "rank":
            return times.index(time) + 1
        case "dense_rank":
            return len({t for t in times if t <= time})
        case "lag":
            if here - call.offset >= 0:
                return evaluate(call.args[0], partition[here - call.offset][0])
            return evaluate(call.args[1], values)
    rows = [other for i, (other, t) in enumerate(partition)
            if _inside(call.frame, i - here, t - time)]  # fmt: skip
    if call.name in ("first_value", "last_value", "nth_value"):
        picked = [evaluate(call.args[0], row) for row in rows]
        if call.ignore_nulls:
            picked = [v for v in picked if v is not None]
        place = {"first_value": 0, "last_value": len(picked) - 1}.get(call.name, call.offset - 1)
        return picked[place] if 0 <= place < len(picked) else None
    if call.ignore_nulls:
        raise InternalError(f"IGNORE NULLS has no meaning for {call.name}")
    arg = call.args[0] if call.args else None
    return aggregate(AggregateCall(call.name, arg, call.type), rows)


def _inside(frame: Frame, rows: int, time: int) -> bool:
    """Whether a row that is so many rows and so much time away is in the frame."""
    distance = rows if frame.unit == "rows" else time
    return distance <= -frame.end and (frame.start is None or distance >= -frame.start)
