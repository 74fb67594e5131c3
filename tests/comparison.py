"""Comparing an engine's rows with the oracle: bags, at every instant at which anything changes.

Floating-point values may differ from the exact ones by a rounding; nothing else may differ.
"""

from __future__ import annotations

import math
from collections import Counter

import pyarrow as pa

from penstock.algebra import Node, is_stream
from penstock.model import INF, MIN_TIME
from penstock.reference import Inputs, Steps, from_intervals, relation, snapshot_at, stream
from penstock.reference.expressions import canonical, compare


def check_answer(plan: Node, rows: list[tuple], inputs: Inputs) -> None:
    """Compare rows ``(values, start, end)`` of a plan with what the oracle says."""
    if is_stream(plan):
        check_stream(rows, stream(plan, inputs))
    else:
        check_relation(rows, relation(plan, inputs))


def check_stream(rows: list[tuple], oracle: Counter) -> None:
    """Compare rows ``(values, time, _)`` with the oracle's bag of ``(time, values)``."""
    by_time: dict[int, tuple[Counter, Counter]] = {}
    found = Counter((time, tuple(map(canonical, values))) for values, time, _ in rows)
    for side, elements in enumerate((found, oracle)):
        for (time, values), count in elements.items():
            by_time.setdefault(time, (Counter(), Counter()))[side][values] += count
    for time, (engine, true) in sorted(by_time.items()):
        same_bag(engine, true, time)


def check_relation(rows: list[tuple], oracle_steps: Steps) -> None:
    """Compare rows ``(values, start, end)`` with the oracle's steps at every instant."""
    rows = [(tuple(map(canonical, v)), start, end) for v, start, end in rows]
    engine_steps = from_intervals(rows)
    instants = {time for steps in (engine_steps, oracle_steps) for time, _ in steps}
    instants |= {start for _, start, _ in rows} | {end for _, _, end in rows}
    for time in sorted(instants | {time - 1 for time in instants if time > MIN_TIME}):
        same_bag(snapshot_at(engine_steps, time), snapshot_at(oracle_steps, time), time)


def same_bag(engine: Counter, oracle: Counter, time: int) -> None:
    """Fail unless the bags are equal; floats may differ by a rounding."""
    if engine == oracle:
        return
    extra = sorted((engine - oracle).elements(), key=repr)
    missing = sorted((oracle - engine).elements(), key=repr)
    for row in list(missing):
        match = next((r for r in extra if close(r, row)), None)
        if match is not None:
            extra.remove(match)
            missing.remove(row)
    assert (extra, missing) == ([], []), f"at {time}: engine only {extra}, oracle only {missing}"


def close(a: tuple, b: tuple) -> bool:
    return all(
        math.isclose(x, y, rel_tol=1e-12, abs_tol=1e-10)
        if isinstance(x, float) and isinstance(y, float)
        else compare(x, y) == 0
        for x, y in zip(a, b, strict=True)
    )


def interval_rows(table: pa.Table) -> list[tuple]:
    """Return what a sink holds of intervals or of a stream as ``(values, start, end)``.

    An interval without a start holds since ever, one without an end for ever.
    """
    plain = [
        (c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c).to_pylist()
        for c in table.columns
    ]
    rows = list(zip(*plain, strict=True))
    if table.column_names[-1] == "_time":
        return [(row[:-1], row[-1], INF) for row in rows]
    return [
        (
            row[:-2],
            MIN_TIME if row[-2] is None else row[-2],
            INF if row[-1] is None else row[-1],
        )
        for row in rows
    ]
