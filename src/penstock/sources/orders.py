"""In which order the files of a folder are read: the option ``order`` of replays and folders."""

from __future__ import annotations

from penstock.catalog import StreamDef
from penstock.errors import ConfigError
from penstock.sources.readers.base import option

PARALLEL, NAME, TIME = ORDERS = ("parallel", "name", "time")
"""Side by side, each a source partition of its own; one after the other by their names; one after
the other by the least time of each."""


def order_of(definition: StreamDef) -> str:
    """Return the order in which the files of a stream are read."""
    given = (option(definition, "order") or PARALLEL).strip().lower()
    if given not in ORDERS:
        raise ConfigError(
            f"the option order of stream {definition.name} must be 'parallel' (each file is a "
            f"source partition of its own), 'name' or 'time' (one file after the other, by name or "
            f"by least time), got '{given}'"
        )
    return given
