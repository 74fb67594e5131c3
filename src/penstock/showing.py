"""How answers look to people: cells, times and sizes as text, tables on a terminal and in HTML.

What is shown is rounded: a DOUBLE has about six digits.  What sinks and programs get is exact.

`SCREEN` is the terminal while something is drawn on it in place: whoever prints meanwhile prints
through it, above what is drawn.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.model import INF, MIN_TIME

_DIGITS = 6
_SMALL, _LARGE = 1e-4, 1e15


class Screen:
    """The console that draws in place, None while nobody does."""

    def __init__(self) -> None:
        self.console: Console | None = None

    @contextmanager
    def taken(self, console: Console) -> Iterator[None]:
        """Let everybody print through a console meanwhile."""
        before, self.console = self.console, console
        try:
            yield
        finally:
            self.console = before


SCREEN = Screen()


# Single values


def number_text(value: float) -> str:
    """Return a DOUBLE with about six digits, but never without its whole part."""
    if not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    size = abs(value)
    if size and not _SMALL <= size < _LARGE:
        return f"{value:.{_DIGITS}g}"
    whole = len(str(int(size))) if size >= 1 else 0
    text = f"{value:.{max(1, _DIGITS - whole)}f}".rstrip("0")
    return f"{text}0" if text.endswith(".") else text


def cell_text(value: Any) -> str:
    """Return a value of an answer as people read it; null is empty."""
    if value is None:
        return ""
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, datetime):
        return _moment_text(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    return str(value)


def time_text(time: datetime | int | None, stamps: bool) -> str:
    """Return an instant as people read it; ``stamps``: a number counts microseconds."""
    if isinstance(time, datetime):
        return _moment_text(time)
    if time is None or time <= MIN_TIME:
        return "-"
    if time == INF:
        return "end"
    found = as_moment(time, stamps)
    return _moment_text(found) if isinstance(found, datetime) else str(found)


def as_moment(time: int | None, stamps: bool) -> datetime | int | None:
    """Return an instant as a time in UTC where it is one that a datetime can hold."""
    if time is None or not stamps:
        return time
    try:
        seconds, micros = divmod(time, 1_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)
    except (OverflowError, ValueError, OSError):
        return time


def _moment_text(moment: datetime) -> str:
    text = f"{moment.replace(tzinfo=None):%Y-%m-%d %H:%M:%S.%f}"
    return text.rstrip("0").rstrip(".")


def size_text(count: float) -> str:
    """Return a number of bytes as people read it."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GB"


# Tables


def cells(rows: pa.Table, limit: int) -> list[tuple[str, ...]]:
    """Return the first rows as text."""
    shown = rows.slice(0, limit)
    columns = [_column_text(column) for column in shown.columns]
    return list(zip(*columns, strict=True)) if columns else []


def _column_text(column: pa.ChunkedArray) -> list[str]:
    if pa.types.is_timestamp(column.type):  # a datetime does not reach all of them
        micros = column.cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
        return ["" if t is None else time_text(t, True) for t in micros]
    return [cell_text(value) for value in column.to_pylist()]


def is_number(type: pa.DataType) -> bool:
    """Whether values are shown to the right."""
    return bool(
        pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type)
    )


def terminal_table(rows: pa.Table, limit: int, title: str | None = None) -> RenderableType:
    """Return the first rows as a table for the terminal, with its title on a line of its own."""
    table = Table(header_style="bold")
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        table.add_column(escape(name), justify="right" if is_number(column.type) else "left")
    for row in cells(rows, limit):
        table.add_row(*map(escape, row))
    parts: list[RenderableType] = [] if title is None else [Text(title, style="italic")]
    parts.append(table)
    if rows.num_rows > limit:
        parts.append(Text(f"{rows.num_rows - limit:,} more rows", style="dim"))
    return Group(*parts)


def html_table(rows: pa.Table, limit: int, title: str, notes: Sequence[str] = ()) -> str:
    """Return the first rows as a table for a notebook, between a title and notes."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows.column_names)
    right = [' style="text-align: right"' if is_number(c.type) else "" for c in rows.columns]
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{style}>{html.escape(text)}</td>" for style, text in zip(right, row, strict=True)
        )
        + "</tr>"
        for row in cells(rows, limit)
    )
    told = [*notes]
    if rows.num_rows > limit:
        told.insert(0, f"{rows.num_rows - limit:,} more rows")
    foot = "".join(f"<div>{html.escape(note)}</div>" for note in told)
    heading = f"<div><b>{html.escape(title)}</b></div>" if title else ""
    return f"{heading}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{foot}"
