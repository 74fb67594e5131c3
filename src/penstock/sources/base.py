"""What a format of streams must do; `penstock.sources.formats` has the table of all of them.

Penstock plans the batches of a stream itself where a format gives a `StreamReader`: it tells which
slices of which files lie between two positions, and tasks read these with Arrow.  The batches of
other streams are planned by Spark (`SparkReading`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from penstock.catalog import StreamDef
from penstock.errors import InternalError, PenstockError
from penstock.settings import Settings
from penstock.sources.admission import admitted
from penstock.sources.offsets import Place
from penstock.sources.readers.base import Descriptor, file_format

UNLIMITED = 2**62

P = TypeVar("P", bound=Place)


@dataclass(frozen=True)
class Limits:
    """What one source may put into a batch; ``admission`` names the file that adapts the rows.

    ``width`` is how many files are read side by side: as many as tasks pack them.
    """

    rows: int
    bytes: int = UNLIMITED
    files: int = UNLIMITED
    admission: str | None = None
    width: int = 1

    def now(self, everything: bool) -> int:
        """Return the rows that a batch may take by now."""
        return UNLIMITED if everything else admitted(self.admission, self.rows)


class StreamReader(Protocol[P]):
    """Plans the batches of one stream."""

    def position(self, offset: Mapping[str, Any] | None) -> P:
        """Return a position that an offset holds, or the beginning of the stream."""

    def freeze(self) -> None:
        """Take what is there now as all there is."""

    def advance(self, position: P, everything: bool) -> P:
        """Return where the next batch ends; it has all that is there, or what the limits allow."""

    def slices(self, first: P, last: P) -> list[Descriptor]:
        """Return what lies between two positions."""


@runtime_checkable
class Paced(Protocol):
    """A reader that lets rows out by a clock."""

    def follow_since(self, position: Any, time: float) -> None:
        """Let the clock go as if another reader had been at a position at a monotonic time."""


@dataclass(frozen=True)
class Waiting:
    """An amount of input that has not been taken yet; ``unit`` is rows or bytes."""

    amount: int
    unit: str


class Backlog:
    """What is known to be waiting of one stream, found without reading any data; here nothing.

    A paced or endless stream has no backlog, and of most formats only their system knows.
    """

    def waiting(self, taken: int, position: Mapping[str, Any] | None) -> Waiting | None:
        """Return what is waiting after ``taken`` rows; None where it is not known.

        ``position`` is where the last batch ended, as Spark's offset log keeps it.
        """
        try:
            return self.measured(taken, position)
        except (PenstockError, OSError, pa.ArrowInvalid):
            return None  # what is wrong is said by the batch that needs the files

    def measured(self, taken: int, position: Mapping[str, Any] | None) -> Waiting | None:
        """Return what `waiting` does, or raise what is wrong with the files."""
        return None


@dataclass(frozen=True)
class SparkReading:
    """How Spark reads a stream whose batches it plans itself.

    ``listed``: it only lists the files, which tasks then read.  ``from_files``: it reads files, so
    it knows where rows come from.  ``marks_bad_rows``: it gives rows that it cannot parse as text.
    ``partition`` are columns of its own that name the source partition of a row, ``order`` one that
    tells the order of arrival.
    """

    options: Mapping[str, str]
    listed: bool = False
    from_files: bool = False
    marks_bad_rows: bool = False
    partition: tuple[str, ...] = ()
    order: str | None = None


class SourceFormat:
    """A format of streams: what may be said of one, and how its rows are found.

    A format overrides what is special about it, and either `reader` or `spark_reading`.
    """

    name: str = ""
    """What ``USING`` says, in lower case."""

    options: tuple[str, ...] | None = None
    """The options that there are; None: those of another system, unknown here."""

    public: ClassVar[tuple[str, ...]] = ()
    """Options that everybody may see, where `penstock.options` does not list the format."""

    names_files: bool = False
    """Whether the checkpoint names files that options tell, so that these cannot be secret."""

    pushed: ClassVar[bool] = False
    """Whether the program pushes the rows, and says when the stream ends."""

    def check_values(self, definition: StreamDef) -> None:
        """Check the values of a stream's options; nobody looks at files."""
        return None

    def check(self, definition: StreamDef) -> None:
        """Check the values of a stream's options, and the files that they name."""
        self.check_values(definition)

    def is_finite(self, definition: StreamDef) -> bool:
        """Whether a stream may end."""
        return False

    def is_planned(self, definition: StreamDef, folder: str | None) -> bool:
        """Whether Penstock plans the batches; ``folder`` is where it may keep files for that."""
        return True

    def reader(
        self, definition: StreamDef, limits: Limits, folder: str | None
    ) -> StreamReader[Any]:
        """Return what plans the batches of a stream."""
        raise InternalError(f"the format {definition.format} must be read by Spark")

    def why_no_tap(self, definition: StreamDef) -> str:
        """Say why its rows are not found before a batch has them; empty: a reader finds them.

        The lane answers important rows of such streams as they come; the positions of their rows
        count all rows of the stream.
        """
        return f"Spark reads the format {definition.format} batch by batch"

    def spark_reading(self, definition: StreamDef, config: Settings) -> SparkReading:
        """Return how Spark reads a stream whose batches Penstock does not plan."""
        raise InternalError(f"the format {definition.format} must not be read by Spark")

    def backlog(self, definition: StreamDef, folder: str) -> Backlog:
        """Return what measures how much of a stream is waiting."""
        return Backlog()

    def file_kind(self, definition: StreamDef, path: str) -> str:
        """Return which of `penstock.sources.readers` reads a file."""
        return file_format(definition, path)
