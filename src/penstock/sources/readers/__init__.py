"""Reading slices of a stream's files with Arrow, inside whichever process needs the rows.

Nothing here knows Spark.  See `sources.readers.base` for what a slice and a descriptor are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.catalog import StreamDef
from penstock.errors import DataError
from penstock.sources.readers.base import (
    CORRUPT,
    DESCRIPTOR,
    FOLDER_ORDINAL,
    REJECTED,
    Slice,
    arrival_order,
    file_format,
    open_input,
    shorter,
    wanted_columns,
)
from penstock.sources.readers.columnar import ALL_ROWS, read_arrow, read_native, read_parquet
from penstock.sources.readers.delimited import read_delimited, read_text
from penstock.sources.readers.json_lines import read_json

__all__ = [
    "CORRUPT",
    "DESCRIPTOR",
    "FOLDER_ORDINAL",
    "REJECTED",
    "Slice",
    "arrival_order",
    "read_native",
    "read_slice",
]

_Reader = Callable[[StreamDef, Any, str, int, int, Sequence[int], int], Iterator[Slice]]

_READERS: Mapping[str, _Reader] = {
    "csv": read_delimited,
    "text": read_text,
    "json": read_json,
    "parquet": read_parquet,
    "arrow": read_arrow,
}


def read_slice(
    definition: StreamDef,
    path: str,
    first: int,
    last: int,
    columns: Sequence[int] | None = None,
    shift: int = 0,
) -> Iterator[Slice]:
    """Read ``[first, last)`` of a file (bytes of lines, rows of columnar files) in parts.

    Only ``columns`` (all: None) and the time column are parsed, the others come back null; rows
    that do not fit are in each part's ``rejected``.  ``last == -1`` means up to the file's end.
    """
    if first == last:
        return
    with open_input(path) as source:
        kind = file_format(definition, path)
        if kind in ("csv", "text", "json") and last > source.size():
            raise shorter(path)
        if last < 0:
            last = source.size() if kind in ("csv", "text", "json") else ALL_ROWS
        wanted = wanted_columns(definition, columns)
        try:
            yield from _READERS[kind](definition, source, path, first, last, wanted, shift)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(
                f"the file '{path}' of stream {definition.name} must be readable as {kind}, and "
                f"stay as it is while it is read, but: {error}"
            ) from None
