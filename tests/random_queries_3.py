"""Random scripts from a seed: version 3 of the generator, which must never change.

It is version 2 with window functions over relations: ranks with a bound, in WHERE around a
sub-query or in QUALIFY, with the number shown or not; and functions without one, with any frame.
"""

from __future__ import annotations

from tests.random_queries import LONG, Case, Dice, Relation, generate_by, made, scoped
from tests.random_queries_2 import Maker2

VERSION = 3


def generate(seed: int) -> Case:
    """Return the case of a seed."""
    return generate_by(Maker3, seed)


class Maker3(Maker2):
    """Makes queries, some of them with ranks."""

    def __init__(self, dice: Dice, streams: list[str], rows: int) -> None:
        super().__init__(dice, streams, rows)
        self._unary += [self.ranked, self.group_top]

    def over(self, scope: list[tuple[str, str]]) -> str:
        """Return what stands behind OVER; two keys at least, so that it is no stream's time."""
        dice = self.dice
        kinds = sorted({kind for _, kind in scope})
        partition = [self.value(scope, dice.pick(kinds), 1) for _ in range(dice.below(3))]
        order = [
            self.value(scope, dice.pick(kinds), 1)
            + dice.pick(["", "", " DESC", " NULLS LAST", " DESC NULLS FIRST"])
            for _ in range(dice.between(2, 3))
        ]
        text = f"PARTITION BY {', '.join(partition)} " if partition else ""
        return f"{text}ORDER BY {', '.join(order)}"

    def group_top(self, depth: int, top: bool) -> Relation:
        """Return the first rows of groups."""
        dice, below = self.dice, self.below(depth)
        scope = scoped(below, "a")
        name = dice.pick(["ROW_NUMBER", "ROW_NUMBER", "RANK", "DENSE_RANK"])
        number = f"{name}() OVER ({self.over(scope)})"
        limit = dice.between(1, 3)
        bound = dice.pick([f"<= {limit}", f"< {limit + 1}", f"= {limit}"])
        text, columns = self.outputs(scope, 3)
        if dice.chance(0.5):
            text, columns = f"{text}, {number} AS r", (*columns, ("r", LONG))
        if dice.chance(0.5):
            query = f"SELECT {text} FROM {below.item} a QUALIFY {number} {bound}"
        else:
            own = ", ".join(name for name, _ in columns)
            inner = f"SELECT {text}, {number} AS place FROM {below.item} a"
            query = f"SELECT {own} FROM ({inner}) b WHERE place {bound}"
        groups = min(4.0, below.size)
        return made(query, columns, [below], min(limit * groups, below.size), 3 * below.births)

    def ranked(self, depth: int, top: bool) -> Relation:
        """Return rows with window functions over each snapshot."""
        dice, below = self.dice, self.below(depth)
        scope = scoped(below, "a")
        text, columns = self.outputs(scope, 3)
        calls = [self.function(scope) for _ in range(dice.between(1, 2))]
        over = self.over(scope)
        for i, (call, frame) in enumerate(calls):
            text += f", {call} OVER ({over}{frame}) AS w{i}"
            columns = (*columns, (f"w{i}", LONG))
        query = f"SELECT {text} FROM {below.item} a"
        return made(query, columns, [below], below.size, below.births * min(below.size, 4))

    def function(self, scope: list[tuple[str, str]]) -> tuple[str, str]:
        """Return a window function of BIGINT, and its frame."""
        dice = self.dice
        argument = self.value(scope, LONG, 1)
        plain = dice.pick(
            ["ROW_NUMBER()", "RANK()", "DENSE_RANK()", "NTILE(2)", f"LAG({argument})",
             f"LEAD({argument}, {dice.below(3)}, {self.value(scope, LONG, 0)})", ""]
        )  # fmt: skip
        if plain:
            return plain, ""
        name = dice.pick(["COUNT", "SUM", "MIN", "MAX", "FIRST_VALUE", "LAST_VALUE"])
        frame = dice.pick(
            ["", " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING", " ROWS 2 PRECEDING",
             " RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
             " ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING"]
        )  # fmt: skip
        return f"{name}({argument})", frame
