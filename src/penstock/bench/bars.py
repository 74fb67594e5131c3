"""What an experiment must show: a figure, what it must reach, and whether it does."""

from __future__ import annotations

from dataclasses import dataclass


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
