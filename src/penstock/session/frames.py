"""Frames of a program as tables and streams: pandas, Arrow, and batch frames of Spark.

The rows are written once, as a Parquet file in the checkpoint folder that is named after what it
holds.  So a program that is started again with the same rows goes on, and other rows are noticed as
those of any file.  A stream takes the rows in order of time and ends.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet

from penstock.catalog import StreamDef, TableDef, folder_name
from penstock.errors import DataError, NotSupportedError, QueryError, suggest
from penstock.expr.types import NAMES, is_integer, is_type, type_name
from penstock.model import TIMESTAMP, Field, Schema, one_array
from penstock.nested.shapes import plain_type
from penstock.runs.files import make_folder, replace_file
from penstock.session.statements import create
from penstock.sources.readers.conversion import plain

if TYPE_CHECKING:
    from penstock.session.session import Session

_WIDER = {
    pa.uint8(): pa.int32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.null(): pa.string(),
}
"""The types of Arrow that become others; a value that does not fit is told."""


def declare_table(session: Session, frame: Any, name: str | None) -> str:
    """Declare a frame as a static table; return its name."""
    rows = _rows(frame, "table")
    chosen = name or _free_name(session)
    path = _stored(session, chosen, rows)
    create(session, TableDef(chosen, _schema(rows), "parquet", {"path": path}))
    return chosen


def declare_stream(session: Session, frame: Any, time: str | None, name: str | None) -> str:
    """Declare a frame as a stream that ends; return its name."""
    rows = _rows(frame, "stream")
    able = [f.name for f in rows.schema if f.type == TIMESTAMP or is_integer(f.type)]
    if time is None or time not in able:
        got = "none" if time is None else f"'{time}'"
        raise QueryError(
            f"a stream of a frame must name its time column, time='..', one of TIMESTAMP or whole "
            f"numbers, got {got}; {suggest(time or '', able)}"
        )
    if rows.column(time).null_count:
        raise DataError(f"the time column '{time}' of a stream must not be null; drop such rows")
    chosen = name or _free_name(session)
    path = _stored(session, chosen, rows.sort_by(time))
    options = {"path": path, "format": "parquet"}
    at = rows.column_names.index(time)
    create(session, StreamDef(chosen, _schema(rows), "replay", options, at))
    return chosen


def _free_name(session: Session) -> str:
    number = 1
    while any(f"frame_{number}" in session.catalog.of_kind(k) for k in ("stream", "table", "view")):
        number += 1
    return f"frame_{number}"


def _rows(frame: Any, what: str) -> pa.Table:
    """Return the rows of a frame with types that Penstock has."""
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    elif hasattr(frame, "toArrow") and hasattr(frame, "isStreaming"):
        if frame.isStreaming:
            raise NotSupportedError(
                "a streaming DataFrame cannot be taken over, because a checkpoint must know how "
                "its source is read; declare the source itself: CREATE STREAM name (columns) USING "
                "format OPTIONS (..) TIMESTAMP BY t, with the format and options of readStream"
            )
        frame = frame.toArrow()
    elif hasattr(frame, "to_records") and hasattr(frame, "columns"):
        frame = pa.Table.from_pandas(frame, preserve_index=False)
    if not isinstance(frame, pa.Table) or not frame.num_columns:
        got = "no columns" if isinstance(frame, pa.Table) else type(frame).__name__
        raise QueryError(
            f"a {what} must be given by its name, or as a pandas, Arrow or Spark frame with "
            f"columns, got {got}"
        )
    columns = [_typed(name, one_array(frame.column(name))) for name in frame.column_names]
    return pa.Table.from_arrays(columns, names=frame.column_names)


def _typed(name: str, array: pa.Array) -> pa.Array:
    type = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    wanted = plain_type(type) if plain_type(type) != type else _WIDER.get(type, type)
    if pa.types.is_timestamp(type):
        wanted = TIMESTAMP
    elif pa.types.is_large_string(type) or pa.types.is_string_view(type):
        wanted = pa.string()
    fitted = plain(array, wanted) if is_type(wanted) else None
    if fitted is None:
        raise DataError(
            f"the column '{name}' of a frame must have a type that Penstock has, got {array.type}; "
            f"cast it to one of {', '.join(sorted((*NAMES.values(), 'DECIMAL(p, s)')))}"
        )
    values, bad = fitted
    if bad.any():
        raise DataError(
            f"the column '{name}' of a frame must be {type_name(wanted)}, but its row "
            f"{int(bad.argmax()) + 1} does not fit"
        )
    return values


def _schema(rows: pa.Table) -> Schema:
    return Schema(tuple(Field(f.name, f.type) for f in rows.schema))


def _stored(session: Session, name: str, rows: pa.Table) -> str:
    """Write rows into the checkpoint folder, unless they are there; return the file."""
    out = io.BytesIO()
    pyarrow.parquet.write_table(rows, out)
    data = out.getvalue()
    root = Path(session._folder)
    folder = root / "frames"
    for part in (root, folder):
        if not part.is_dir():
            make_folder(part)
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
    path = folder / f"{folder_name(name)}-{digest}.parquet"
    if not path.exists():
        replace_file(path, data, session.config.fsync)
    return str(path.absolute())
