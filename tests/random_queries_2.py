"""Random scripts from a seed: version 2 of the generator, which must never change.

It is version 1 with windows that show their bounds: TUMBLE and HOP in brackets and as functions,
SESSION as a function, and aggregates that group by the bounds, alone or with other keys, or read
them in conditions and arguments.
"""

from __future__ import annotations

from tests.random_queries import (
    LONG,
    STREAMS,
    Case,
    Columns,
    Dice,
    Maker,
    Relation,
    fresh,
    generate_by,
    made,
    named,
    scoped,
)

VERSION = 2
BOUNDS: Columns = (("window_start", LONG), ("window_end", LONG))


def generate(seed: int) -> Case:
    """Return the case of a seed."""
    return generate_by(Maker2, seed)


class Maker2(Maker):
    """Makes queries, some of them over windows with bounds."""

    def __init__(self, dice: Dice, streams: list[str], rows: int) -> None:
        super().__init__(dice, streams, rows)
        self._unary += [self.grouped_window, self.grouped_window, self.nested_hop]

    def source(self, other_than: frozenset[str] = frozenset()) -> Relation:
        """Return a stream with a window; in one case of three it shows its bounds."""
        return self.bounded(other_than) if self.dice.chance(0.3) else super().source(other_than)

    def hop(self) -> tuple[str, int]:
        """Return a window in brackets and its length."""
        dice = self.dice
        length, slide = dice.between(1, 9), dice.between(1, 6)
        text = dice.pick([f"TUMBLE {length}", f"HOP {length} SLIDE {slide}"])
        if dice.chance(0.2):
            text += f" OFFSET {dice.between(-3, 3)}"
        if dice.chance(0.15):
            text += f" START {dice.between(-2, 5)}"
        return f"[{text}]", length

    def bounded(self, other_than: frozenset[str] = frozenset()) -> Relation:
        """Return a stream with a window that shows its bounds, in brackets or as a function."""
        dice = self.dice
        self._turn += 1
        names = [n for n in self.streams if n not in other_than]
        name = names[self._turn % len(names)]
        columns = (*STREAMS[name], *BOUNDS)
        brackets, length = self.hop()
        slide, size = sorted((dice.between(1, 6), dice.between(1, 9)))
        first = STREAMS[name][0][0]
        item = dice.pick(
            [
                f"{name} {brackets}",
                f"{name} {brackets}",
                f"TABLE(TUMBLE(TABLE {name}, DESCRIPTOR(t), {size}))",
                f"HOP(TABLE {name}, DESCRIPTOR(t), {slide}, {size})",
                f"SESSION(TABLE {name} PARTITION BY {first}, DESCRIPTOR(t), {slide})",
                f"SESSION(TABLE {name}, DESCRIPTOR(t), {slide})",
            ]
        )
        held = min(max(length, size), self.rows)
        births = self.rows * (2 if "HOP" in item else 1)
        streams = frozenset({name})
        query = f"SELECT * FROM {item}"
        return Relation(item, query, columns, held, births, 1, streams, bounded=True)

    def grouped_window(self, depth: int, top: bool) -> Relation:
        """Return groups of the windows of a stream, by their bounds and other keys."""
        dice = self.dice
        below = self.bounded()
        own = [(f"a.{n}", kind) for n, kind in below.columns[:-2]]
        scope = scoped(below, "a")
        bounds = dice.pick(
            [["a.window_start", "a.window_end"], ["a.window_end"], ["a.window_start + 1"]]
        )
        others = dice.some(own, 2, least=0)
        keys = [*bounds, *(n for n, _ in others)]
        kinds = [*(LONG for _ in bounds), *(kind for _, kind in others)]
        calls = [self.call(own, top) for _ in range(dice.between(1, 2))]
        if dice.chance(0.15):
            calls.append((f"{dice.pick(['MIN', 'SUM'])}(a.window_end)", LONG))
        text = f"SELECT {named([*keys, *(call for call, _ in calls)])} FROM {below.item} a"
        where = [self.condition(own)] if dice.chance(0.4) else []
        if dice.chance(0.3):
            where.append(f"a.window_start {dice.pick(['<', '>='])} {dice.between(0, 9)}")
        if dice.chance(0.15):
            where.append(self.condition(scope))
        if where:
            text += f" WHERE {' AND '.join(where)}"
        text += f" GROUP BY {', '.join(keys)}"
        if dice.chance(0.2):
            text += f" HAVING COUNT(*) > {dice.between(0, 1)}"
        columns = fresh([*kinds, *(kind for _, kind in calls)])
        return made(text, columns, [below], min(4.0, below.size), below.births)

    def nested_hop(self, depth: int, top: bool) -> Relation:
        """Return a window with bounds over what another query gives."""
        below = self.below(depth)
        text, columns = self.outputs(scoped(below, "a"), 3)
        window, size = self.hop()
        query = f"SELECT * FROM (SELECT {text} FROM {below.item} a) {window} b"
        return made(query, (*columns, *BOUNDS), [below], size, 2 * below.births)
