"""Holder numbers: which of them an operator may give to rows in one shard.

A number is given once in the life of a checkpoint, whatever operator and shard gives it; 0 is no
holder.  Operators are numbered from 0, and the least number that is free is taken.  The positive
int64 are cut into ranges of 2^58 numbers.  Range b belongs to the operators whose number plus one
has b bits, and is cut evenly among them and the shards.  So the first operators, and most plans
have only few, can number the most rows: each of 1,024 shards has 2^48 numbers in operator 0, 2^42
in operator 100 and 2^32 in operator 100,000; each of 65,536 shards 2^42, 2^36 and 2^26.

What an operator has in a shard is a multiple of 2^`BLOCK`, so numbers that agree in the bits above
`BLOCK` have one origin.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ConfigError, StateError

BLOCK = 26
MOST_SHARDS = 1 << 16
MOST_OPERATORS = (1 << 17) - 1
_RANGE = 58


@dataclass(frozen=True)
class Numbers:
    """The numbers that one operator may give in one shard: those above ``base``, below the end."""

    base: int
    size: int

    def after(self, used: int, count: int) -> int:
        """Return the first of ``count`` numbers when so many are used already."""
        if used + count >= self.size:
            raise StateError(
                f"an operator must give at most {self.size - 1:,} rows of a shard a number in the "
                f"life of a checkpoint, got {used + count:,}; begin anew with another --checkpoint"
            )
        return self.base + used + 1


def holder_numbers(node: int, shard: int, shards: int) -> Numbers:
    """Return the numbers of an operator in one of the shards."""
    check_operators(node + 1)
    check_shards(shards)
    assert 0 <= shard < shards, f"a shard must be below {shards}, got {shard}"
    level = (node + 1).bit_length() - 1
    first = (1 << level) - 1  # the first operator of its range
    ways = (shards - 1).bit_length() if shards > 1 else 0
    size = 1 << (_RANGE - level - ways)
    at = ((node - first) << ways) + shard
    return Numbers((level << _RANGE) + at * size, size)


def check_operators(count: int) -> None:
    """Refuse more operators than can be told apart."""
    if count > MOST_OPERATORS:
        raise ConfigError(
            f"the queries of a checkpoint must have at most {MOST_OPERATORS:,} operators together, "
            f"got {count:,}; run some of them on another --checkpoint"
        )


def check_shards(count: int) -> None:
    """Refuse more shards than can be told apart."""
    if count > MOST_SHARDS:
        raise ConfigError(
            f"shards must be at most {MOST_SHARDS:,}, got {count:,}; set it to a smaller number"
        )
