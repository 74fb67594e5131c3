"""What a sink and the format of sinks must do.

A sink is idempotent: a batch published again changes nothing.  A `SinkFormat` is what ``USING``
names; `penstock.sinks.formats` has the table of all of them.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakValueDictionary

import pyarrow as pa

from penstock.catalog import SinkDef
from penstock.errors import ConfigError
from penstock.model import TIMESTAMP, Field, Schema
from penstock.runs.deliveries import Delivered, Held, is_lane, shown_delivery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Callback = Callable[[int, pa.Table], object]
"""A function that gets a batch number and its rows."""

CHANGES = ("intervals", "log", "view")
"""What the option ``changes`` of a sink may say."""


@dataclass(frozen=True)
class Result:
    """The answers of one query that one batch made final.

    ``mode`` is intervals (``_start``, ``_end``; null: for ever), log (``_time``, ``_sign``), stream
    (``_time``), view (the whole snapshot at ``as_of``), delta (``_sign``: what came and went since
    the snapshot at ``since``; None: there was none) or rows (no time: rows set aside).  The table
    has the query's columns and those of the mode, sorted by time; ``timestamps`` says whether times
    are TIMESTAMPs or plain integers.  ``lineage`` names everything that led to the batch.
    """

    query: str
    batch: int
    mode: str
    schema: Schema
    timestamps: bool
    table: pa.Table
    as_of: int | None = None
    since: int | None = None
    lineage: str = ""

    @property
    def is_turn(self) -> bool:
        """Whether the answers came by the lane: ``batch`` is the number of a turn then."""
        return is_lane(self.query)

    @property
    def number(self) -> int:
        """The number that tells the delivery from all others of a query: a turn's is negative."""
        return -self.batch if self.is_turn else self.batch

    @property
    def shown(self) -> str:
        """What errors call the delivery."""
        return shown_delivery(self.query, self.batch)


class Sink(ABC):
    """Where the answers of one query go. Opening one reads and checks; `begin` may write.

    ``place`` is the file or folder that it fills, None if that is none of this machine's.
    """

    place: Path | None = None

    def held(self) -> Held | None:
        """Return what the sink holds; None if it goes with the process."""
        return None

    def begin(self, again: Collection[int] = (), given_up: Collection[int] = ()) -> None:
        """Make ready to be published to.

        ``again`` are batches that come again although later ones are there; ``given_up`` are lost
        batches (see `held`) that the user does without.
        """
        return None

    def rewind(self, told: Delivered) -> str:
        """Forget everything after a delivery; return a sentence that says what was done."""
        raise ConfigError(
            "a sink of this format cannot be taken back; what it holds must be brought back by its "
            "own means"
        )

    def count(self, batch: int, rows: int) -> bool:
        """Take a batch by its number of rows alone; False: the sink wants to be given the rows."""
        return False

    def for_turns(self, opened: Callable[[], Sink]) -> Sink:
        """Return the sink of the same place that takes the turns of the lane, from its own thread.

        ``opened`` opens one that keeps its books under the name of the lane's outlet.
        """
        return opened()

    @abstractmethod
    def publish(self, result: Result) -> None:
        """Deliver a batch; one that was delivered before is left alone."""

    def close(self) -> None:
        """Free what the sink holds; nothing is published afterwards."""
        return None


@dataclass(frozen=True)
class SinkRequest:
    """What a sink is opened for: the answers of one query.

    ``mode`` is as in `Result`.  ``ledger`` is a folder beside the checkpoint, where sinks that
    cannot tell what they hold keep the number of the last delivered batch, and ``run`` the name of
    that checkpoint.  ``timestamps`` says whether times are TIMESTAMPs, ``fsync`` whether a batch
    must survive a power cut.  ``callback`` is the function that the program gave for the sink.
    """

    query: str
    mode: str
    schema: Schema
    spark: SparkSession | None = None
    ledger: Path | None = None
    callback: Callback | None = None
    fsync: bool = True
    timestamps: bool = False
    run: str | None = None


class SinkFormat(ABC):
    """A format of sinks: what may be said of one, and how it is opened."""

    name: str = ""
    """What ``USING`` says, in lower case."""

    options: tuple[str, ...] | None = ()
    """The options that there are, in lower case; None: those of another system, unknown here."""

    public: ClassVar[tuple[str, ...]] = ()
    """Options that everybody may see, where `penstock.options` does not list the format."""

    view: ClassVar[str] = "view"
    """The mode in which ``changes 'view'`` is delivered: view, or delta for what is changed."""

    not_rewound: ClassVar[str] = ""
    """Why a sink cannot be taken back to an older batch; empty: it is opened and asked."""

    def check(self, definition: SinkDef) -> None:
        """Check the values of a sink's options; nothing is opened."""
        return None

    @abstractmethod
    def open(self, definition: SinkDef, request: SinkRequest) -> Sink:
        """Open a sink, whose definition was checked and holds its secrets."""


class SharedLock:
    """A lock that all who name the same thing have in common, as long as one of them lives."""

    _known: ClassVar[WeakValueDictionary[Hashable, SharedLock]] = WeakValueDictionary()
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._lock = threading.RLock()

    @classmethod
    def of(cls, *thing: Hashable) -> SharedLock:
        """Return the lock of a thing."""
        with cls._guard:
            found = cls._known.get(thing)
            if found is None:
                found = cls._known[thing] = SharedLock()
            return found

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def options_of(definition: SinkDef) -> dict[str, str]:
    """Return a sink's options by lower-case name."""
    return {name.lower(): str(value) for name, value in definition.options.items()}


def row_limit(definition: SinkDef, default: int | None) -> int | None:
    """Return the option ``rows``: a number of rows from 1."""
    given = options_of(definition).get("rows")
    if given is None:
        return default
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(
            f"the option rows of sink {definition.name} must be a number of rows from 1, got "
            f"'{given}'"
        )
    return int(given)


def time_fields(mode: str, timestamps: bool) -> tuple[Field, ...]:
    """Return the columns that a mode adds to a query's own."""
    kind = TIMESTAMP if timestamps else pa.int64()
    sign = Field("_sign", pa.int8())
    return {
        "intervals": (Field("_start", kind), Field("_end", kind)),
        "log": (Field("_time", kind), sign),
        "stream": (Field("_time", kind),),
        "delta": (sign,),
    }.get(mode, ())


def unique_names(table: pa.Table) -> pa.Table:
    """Return a table whose columns have different names."""
    names = distinct_names(table.column_names)
    return table if names == table.column_names else table.rename_columns(names)


def distinct_names(names: Iterable[str], key: Callable[[str], str] = str) -> list[str]:
    """Return names that differ, by ``key``: a repeated one gets ``_2``, ``_3``, …"""
    found: dict[str, str] = {}
    for name in names:
        chosen, number = name, 1
        while key(chosen) in found:
            number += 1
            chosen = f"{name}_{number}"
        found[key(chosen)] = chosen
    return list(found.values())
