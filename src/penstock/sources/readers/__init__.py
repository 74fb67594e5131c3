"""Reading slices of a stream's files with Arrow, inside whichever process needs the rows.

Nothing here knows Spark.  See `sources.readers.base` for what a slice and a descriptor are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from penstock.catalog import StreamDef
from penstock.errors import DataError
from penstock.sources.readers.base import (
    CORRUPT,
    DESCRIPTOR,
    FOLDER_ORDINAL,
    REJECTED,
    Asked,
    Slice,
    arrival_order,
    open_input,
    shorter,
    wanted_columns,
)
from penstock.sources.readers.columnar import (
    ALL_ROWS,
    read_arrow,
    read_native,
    read_parquet,
    read_spool,
)
from penstock.sources.readers.delimited import read_delimited, read_text
from penstock.sources.readers.json_lines import read_json
from penstock.sources.readers.lines import LINES

__all__ = [
    "CORRUPT",
    "DESCRIPTOR",
    "FOLDER_ORDINAL",
    "REJECTED",
    "TYPED",
    "Slice",
    "arrival_order",
    "read_file",
    "read_native",
]

_READERS: Mapping[str, Callable[[Asked], Iterator[Slice]]] = {
    "csv": read_delimited,
    "text": read_text,
    "json": read_json,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "spool": read_spool,
}

TYPED = ("parquet", "arrow", "spool")
"""The files whose values have their types already, so that columns can be read one by one."""


def read_file(
    definition: StreamDef,
    kind: str,
    path: str,
    first: int,
    last: int,
    columns: Sequence[int] | None = None,
    shift: int = 0,
) -> Iterator[Slice]:
    """Read ``[first, last)`` of a file (bytes of lines, rows of columnar files) in parts.

    ``kind`` is how it is read: csv, text, json, parquet, arrow or spool.  Only ``columns`` (all:
    None) and the time column are parsed, the others come back null; rows that do not fit are in
    each part's ``rejected``.  ``last == -1`` means up to the file's end.
    """
    if first == last:
        return
    with open_input(path) as source:
        if kind in LINES and last > source.size():
            raise shorter(path)
        if last < 0:
            last = source.size() if kind in LINES else ALL_ROWS
        wanted = wanted_columns(definition, columns)
        try:
            yield from _READERS[kind](Asked(definition, source, path, wanted, first, last, shift))
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(
                f"the file '{path}' of stream {definition.name} must be readable as "
                f"{'arrow' if kind == 'spool' else kind}, and stay as it is while it is read, but: "
                f"{error}"
            ) from None
