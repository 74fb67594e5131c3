"""EXPLAIN ANALYZE: what was measured of the operators of a query, and their progress charts [D]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from penstock.physical.boards import board_of
from penstock.physical.efforts import Effort, Experience, Measured, Service
from penstock.physical.plan import PhysicalPlan
from penstock.schedule.board import Board, Known, Promise
from penstock.schedule.paths import Line, chain_lines, merged_lines, shared_lines

_WIDTH = 24
_MOST_CHARTS = 12

_LINES: dict[str, Callable[[Board], Iterator[Line]]] = {
    "sharedchain": shared_lines,
    "mergedchain": merged_lines,
}
"""How paths are cut into segments; otherwise as Chain does it."""


def work_of(
    plan: PhysicalPlan, query: str, measured: Measured, totals: Mapping[str, Effort]
) -> Iterator[str]:
    """Yield what the operators of a query did: since the start, and per row of late."""
    yield "work of operators (rows and seconds since the start; per row: of the last batches)"
    experience = Experience(measured)
    rows = [("operator", "stage", "rows in", "rows out", "seconds", "µs a row", "out of one", "B")]
    for at in sorted(plan.below(query)):
        node = plan.nodes[at]
        if node.spec is None:
            continue
        done, known = totals.get(node.digest, Effort()), experience.known(node.digest)
        rows.append(
            (
                _short(node.label),
                "packing" if node.stage < 0 else str(node.stage),
                f"{done.rows_in:,}",
                f"{done.rows_out:,}",
                f"{done.seconds:.3f}",
                *_per_row(known),
            )
        )
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for name, *numbers in rows:
        cells = (number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True))
        yield f"  {name.ljust(widths[0])}  {'  '.join(cells)}"


def _short(label: str) -> str:
    """Return the first words of what EXPLAIN calls an operator."""
    return label.partition(";")[0]


def _per_row(known: Known | None) -> tuple[str, str, str]:
    if known is None:
        return "-", "-", "-"
    return f"{known.cost * 1e6:.3f}", f"{known.rows:.2f}", f"{known.made:.0f}"


def charts_of(plan: PhysicalPlan, query: str, measured: Measured, scheduler: str) -> Iterator[str]:
    """Yield the progress charts of the paths of a query, with their segments."""
    name = scheduler.removesuffix("+")
    cut = _LINES.get(name, chain_lines)
    below = plan.below(query)
    found = 0
    for stage in range(-1, plan.stages):
        operators = [at for at in plan.of_stage(stage) if plan.nodes[at].spec is not None]
        board = board_of(plan, operators, {}, Experience(measured))
        for line in cut(board):
            if not below.issuperset(line.operators) and name not in _LINES:
                continue
            if below.isdisjoint(line.operators) or any(
                board.known(at) is None for at in line.operators
            ):
                continue
            found += 1
            if found > _MOST_CHARTS:
                yield f"and more than {_MOST_CHARTS} others"
                return
            yield from _drawn(plan, line, "packing" if stage < 0 else f"stage {stage}")
    if not found:
        yield "no progress chart: no path has been measured from its input to an answer yet"


def _drawn(plan: PhysicalPlan, line: Line, where: str) -> Iterator[str]:
    """Yield a chart: after how much work how much is left of a row that comes."""
    yield f"progress chart, {where} (for one row that comes in)"
    largest = max(size for _, size in line.points) or 1.0
    labels = ["", *(_short(plan.nodes[at].label) for at in line.operators)]
    segment_of = {
        at + 1: (number, segment)
        for number, segment in enumerate(line.segments, 1)
        for at in range(segment.first, segment.last)
    }
    serial = len(line.points) != len(labels)
    if serial:  # the readers of a shared output, in any order
        labels = ["", " and ".join(labels[1:])]
    for number, ((spent, size), label) in enumerate(zip(line.points, labels, strict=True)):
        bar = "█" * max(round(_WIDTH * size / largest), 1 if size else 0)
        text = f"  {spent * 1e6:9.3f} µs {size:9.1f} B {bar.ljust(_WIDTH)}"
        if number:
            which, segment = segment_of[number]
            text += f" {label}  (segment {which}, {segment.slope * 1e-6:.3g} B/µs)"
        yield text.rstrip()


def service_of(
    promise: Promise, service: Service | None, last: Service | None = None
) -> Iterator[str]:
    """Yield how soon a query wants its answers, and what they were worth; ``last`` of a batch."""
    wanted = "" if promise.within is None else f"within {promise.within:g} s, "
    text = f"service: {wanted}weight {promise.weight:g}"
    if service is None or not service.rows:
        yield f"{text}; no answers yet"
        return
    worth = service.utility / service.rows / promise.weight
    shown = last or service
    yield (
        f"{text}; utility {worth:.2f} of {service.rows:,} rows, in the last batch after "
        f"{shown.first:.3f} to {shown.last:.3f} s"
    )
