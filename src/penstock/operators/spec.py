"""Specs: operators as data.  A plan holds a spec for each operator; a task builds the operator.

A spec says what planners, packing and EXPLAIN want to know of an operator before it runs, so none
of them needs to know its class.  The state of an operator is found by what its spec says: its
``key``, which is a name and a version, and its fields by name.  So a class may be renamed, fields
may change places, and a field may be added whose default means what was meant before.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from functools import cache
from typing import ClassVar

import pyarrow as pa

from penstock.errors import InternalError
from penstock.operators.base import Operator


@dataclass(frozen=True)
class Spec(ABC):
    """What an operator computes, and how it treats rows and their ends."""

    key: ClassVar[str]
    """Under which name the state is kept, ``name/version``: a new version when its form changes."""
    rowwise: ClassVar[bool] = False
    """A row in, at most one row out, with the same validity."""
    sliced: ClassVar[bool] = True
    """It works in complete slices of time, on rows whose ends it must know."""
    holders: ClassVar[str] = "makes"
    """It ``makes`` holders, ``passes`` those of its inputs on, makes them only where an input has
    them (``combines``), or has ``none`` on its rows."""
    needs_arrival: ClassVar[bool] = False
    """It needs the order in which rows arrived."""
    splits_keys: ClassVar[bool] = False
    """Two inputs meet by key, and several shards may share a key: see `physical.key_splits`."""
    keeps_step: ClassVar[bool] = True
    """Its heartbeat follows from those of its inputs alone, so it is the same in all shards."""
    tuned: ClassVar[frozenset[str]] = frozenset()
    """Fields that may change between two batches: the name of its state does not tell them."""

    @abstractmethod
    def build(self) -> Operator:
        """Return a new operator that does what the spec says."""

    @property
    def ends_rows(self) -> bool:
        """Whether it decides when rows end: they need new signs where negative tuples are used."""
        return True

    def cannot_fail(self) -> bool:
        """Whether it can meet any row, also one that a window would have dropped before."""
        return False

    def reads(self, wanted: frozenset[int]) -> frozenset[int] | None:
        """Return the columns of its input that it needs to give the wanted ones; None: all."""
        return None


def digest_of(*parts: object) -> str:
    """Return a short name of what is computed, the same in every process and on every machine."""
    return hashlib.sha256(encoded(parts).encode()).hexdigest()[:24]


def encoded(value: object) -> str:
    """Return a value of a spec as text: equal texts mean equal values.

    Fields stand by name, and those that have their default are left out.
    """
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int):
        return repr(int(value))
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, str):
        return repr(str(value))
    if isinstance(value, Decimal | bytes):
        return repr(value)
    if isinstance(value, pa.DataType):
        return f"<{value}>"
    parts = []
    if isinstance(value, tuple | list):
        for part in value:
            parts.append(encoded(part))
        return f"({','.join(parts)})"
    if not is_dataclass(value) or isinstance(value, type):
        raise InternalError(f"a spec must hold plain values, got {type(value).__name__}")
    tuned = value.tuned if isinstance(value, Spec) else ()
    for name, default in _fields(type(value)):
        own = getattr(value, name)
        if name in tuned:
            continue
        if type(own) is not type(default) or own != default:
            parts.append(f"{name}={encoded(own)}")
    kind = value.key if isinstance(value, Spec) else type(value).__name__
    return f"{kind}({','.join(parts)})"


@cache
def _fields(kind: type) -> tuple[tuple[str, object], ...]:
    """Return the names of a class's fields, sorted, each with its default."""
    return tuple((f.name, f.default) for f in sorted(fields(kind), key=lambda f: f.name))
