"""What an experiment must show: a figure, what it must reach, and whether it does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table


@dataclass
class Bar:
    """A figure and its bar; ``why`` says what stands in the way, where that is known."""

    text: str
    value: float
    needed: float
    at_least: bool
    why: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.needed if self.at_least else self.value <= self.needed

    @property
    def wanted(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.needed:g}"


def bars_table(title: str, bars: Iterable[Bar]) -> Table:
    """Return what must hold and what was found as a table."""
    table = Table("figure", "value", "wanted", "", title=title)
    for bar in bars:
        table.add_row(bar.text, f"{bar.value:.3f}", bar.wanted, "reached" if bar.met else "missed")
    return table
