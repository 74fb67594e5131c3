"""Folders of result files: ``jsonl``, ``csv`` and ``parquet``.

A batch is one file ``<query>-<batch>.<extension>``, written under a hidden name, forced to disk and
renamed: whoever lists the folder sees committed batches only, each once.  A view is one file
``<query>-view.<extension>``, replaced as a whole.  ``_penstock.json`` marks the folder as ours and
says whose answers it holds; a folder with anything else in it is refused, never added to.
"""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from penstock.catalog import SinkDef
from penstock.errors import ConfigError, DataError
from penstock.expr.types import parse_type, type_name
from penstock.model import TIMESTAMP, Schema, one_array
from penstock.spark.readers.base import local_path
from penstock.spark.readers.conversion import convert
from penstock.spark.sinks.base import Result, Sink, options_of, unique_names
from penstock.spark.sinks.text import iso_text, json_lines, json_rows

MARKER = "_penstock.json"
FILE_FORMATS = ("jsonl", "csv", "parquet")

_NAME = re.compile(r"(?P<query>.+)-(?P<batch>\d{10}|view)\.(?P<format>jsonl|csv|parquet)")
_marker_lock = threading.Lock()


class FileSink(Sink):
    """One query's files in a sink folder.

    ``run`` is the identity of the checkpoint: a folder keeps the answers of one run of a query.
    """

    def __init__(
        self,
        definition: SinkDef,
        query: str,
        mode: str,
        schema: Schema,
        run: str | None = None,
        fsync: bool = True,
    ) -> None:
        self._format = definition.format.lower()
        self._folder = sink_folder(definition)
        self._query = query
        self._prefix = f"{quote(query, safe=' ')}-"
        self._fsync = fsync
        columns = [[field.name, type_name(field.type)] for field in schema]
        self._entry: dict[str, Any] = {"mode": mode, "columns": columns, "run": run}
        with _marker_lock:
            marker = _checked(definition, self._folder, self._format, self._prefix)
            known = marker["queries"].get(query)
            if known is not None and _differs(known, self._entry):
                if options_of(definition).get("overwrite", "false").lower() != "true":
                    raise ConfigError(
                        f"the folder of sink {definition.name} must be new, or hold answers of the "
                        f"same query, columns, changes and checkpoint, but '{self._folder}' holds "
                        f"others of query '{query}'; remove it, choose another path, or set "
                        f"OPTIONS (overwrite 'true')"
                    )
                self._remove_files()
            elif known is not None:
                self._entry |= {k: known[k] for k in ("as_of", "batch") if k in known}
                self._entry["run"] = run or known.get("run")
            self._write_marker(marker)

    def publish(self, result: Result) -> None:
        """Write a batch's file; replace the view's."""
        if result.mode == "view":
            if result.batch <= self._entry.get("batch", -1) and self._path("view").exists():
                return
            self._write(self._path("view"), encoded(result.table, self._format))
            self._entry |= {"as_of": shown_time(result), "batch": result.batch}
            with _marker_lock:
                self._write_marker(_read_marker(self._folder))
        elif result.table.num_rows:
            path = self._path(f"{result.batch:010d}")
            if not path.exists():
                self._write(path, encoded(result.table, self._format))

    def _path(self, batch: str) -> Path:
        return self._folder / f"{self._prefix}{batch}.{self._format}"

    def _remove_files(self) -> None:
        for path, query, _ in committed_files(self._folder):
            if query == self._query:
                path.unlink()

    def _write_marker(self, marker: dict[str, Any]) -> None:
        marker["queries"][self._query] = self._entry
        text = json.dumps(marker, indent=2, ensure_ascii=False)
        self._write(self._folder / MARKER, text.encode())

    def _write(self, path: Path, data: bytes) -> None:
        hidden = path.with_name(f".{path.name}.tmp")
        with open(hidden, "wb") as file:
            file.write(data)
            file.flush()
            if self._fsync:
                os.fsync(file.fileno())
        os.replace(hidden, path)
        if self._fsync:
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def sink_folder(definition: SinkDef) -> Path:
    """Return the folder of a file sink."""
    given = options_of(definition).get("path")
    if not given:
        raise ConfigError(
            f"the sink {definition.name} must have a path; add OPTIONS (path 'folder') to it"
        )
    local = local_path(given)
    if local is None:
        raise ConfigError(
            f"the path of sink {definition.name} must be a local folder for the format "
            f"{definition.format}, got '{given}'; use a format of Spark such as orc for it"
        )
    return Path(local).absolute()


def _checked(definition: SinkDef, folder: Path, format: str, prefix: str) -> dict[str, Any]:
    """Make the folder or check that it is ours; return its marker.

    Unfinished files that start with ``prefix``, left by a crash, are swept.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            f"the path of sink {definition.name} must be a folder, but '{folder}' is a file"
        )
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(os.listdir(folder))
    for name in names:
        if name.startswith(".") and name.endswith(".tmp"):
            if name.startswith(f".{prefix}"):
                (folder / name).unlink(missing_ok=True)
        elif name != MARKER and not (MARKER in names and _NAME.fullmatch(name)):
            raise ConfigError(
                f"the folder of sink {definition.name} must be new, empty or made by Penstock, "
                f"but '{folder}' holds '{name}'; choose another path or remove the folder"
            )
    if MARKER not in names:
        return {"penstock": 1, "format": format, "queries": {}}
    marker = _read_marker(folder)
    if marker["format"] != format:
        raise ConfigError(
            f"the folder of sink {definition.name} must hold {format} files, but '{folder}' was "
            f"made with the format {marker['format']}; choose another path"
        )
    return marker


def _read_marker(folder: Path) -> dict[str, Any]:
    try:
        marker: dict[str, Any] = json.loads((folder / MARKER).read_text())
        if isinstance(marker["queries"], dict) and marker["format"] in FILE_FORMATS:
            return marker
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise DataError(
        f"the folder '{folder}' must be one of a sink, but its {MARKER} is not readable"
    )


def _differs(known: dict[str, Any], entry: dict[str, Any]) -> bool:
    runs = {known.get("run"), entry["run"]} - {None}
    same = known["mode"] == entry["mode"] and known["columns"] == entry["columns"]
    return not same or len(runs) > 1


def shown_time(result: Result) -> int | str | None:
    """Return the instant of a view as users see it."""
    if result.as_of is None or not result.timestamps:
        return result.as_of
    text: str = iso_text(pa.array([result.as_of], pa.int64()).cast(TIMESTAMP))[0].as_py()
    return text


def encoded(table: pa.Table, format: str) -> bytes:
    """Return a table as the bytes of a file."""
    table = unique_names(table)
    if format == "jsonl":
        return json_lines(table)
    sink = io.BytesIO()
    if format == "csv":
        pyarrow.csv.write_csv(_short_times(table), sink)
    else:
        pyarrow.parquet.write_table(table, sink)
    return sink.getvalue()


def _short_times(table: pa.Table) -> pa.Table:
    """Return a table whose timestamp columns of whole seconds are printed without fractions."""
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            column = table.column(at)
            whole = pc.all(pc.equal(pc.floor_temporal(column, unit="second"), column)).as_py()
            if whole is not False:
                table = table.set_column(at, field.name, column.cast(pa.timestamp("s")))
    return table


def committed_files(folder: Path) -> list[tuple[Path, str, str]]:
    """Return the committed files of a sink folder with their query and batch, in order."""
    found = []
    for name in os.listdir(folder):
        match = None if name.startswith(".") else _NAME.fullmatch(name)
        if match:
            found.append((folder / name, unquote(match["query"]), match["batch"]))
    return sorted(found, key=lambda f: (f[1], f[2]))


def read_committed(folder: str | Path) -> Iterator[dict[str, Any]]:
    """Return the rows of all committed batches of a sink folder, in order of time.

    Rows are dicts of what JSON can hold; intervals are sorted by start and end, the others by time.
    """
    root = Path(folder)
    if not (root / MARKER).is_file():
        raise DataError(
            f"the folder '{folder}' must be one of a sink of Penstock, but it has no {MARKER}; "
            f"give the path of a sink with the format {', '.join(FILE_FORMATS)}"
        )
    marker = _read_marker(root)
    rows: list[dict[str, Any]] = []
    for path, query, _ in committed_files(root):
        columns = marker["queries"].get(query, {}).get("columns", [])
        rows += _READ[marker["format"]](path, {name: parse_type(kind) for name, kind in columns})
    yield from sorted(rows, key=_time_of)


def _time_of(row: dict[str, Any]) -> tuple[bool, Any, bool, Any]:
    """Return the key of a row: no start comes first, no end comes last."""
    start = row.get("_start", row.get("_time"))
    end = row.get("_end")
    no_start, no_end = start is None, end is None
    return not no_start, 0 if no_start else start, no_end, 0 if no_end else end


def _read_jsonl(path: Path, types: dict[str, pa.DataType]) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as lines:
        for line in lines:
            yield json.loads(line)


def _read_parquet(path: Path, types: dict[str, pa.DataType]) -> Iterator[dict[str, Any]]:
    return json_rows(pyarrow.parquet.ParquetFile(path).read())


def _read_csv(path: Path, types: dict[str, pa.DataType]) -> Iterator[dict[str, Any]]:
    names = pyarrow.csv.open_csv(path).schema.names
    table = pyarrow.csv.read_csv(
        path,
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
    )
    columns = [_typed(one_array(table.column(name)), types.get(name)) for name in names]
    return json_rows(pa.table(columns, names=names))


def _typed(text: pa.Array, type: pa.DataType | None) -> pa.Array:
    """Return a column of a CSV file as its type; times are integers or timestamps, as they look."""
    for candidate in (pa.int64(), TIMESTAMP) if type is None else (type,):
        array, bad = convert(text, candidate)
        if not bad.any():
            return array
    return text


_READ = {"jsonl": _read_jsonl, "csv": _read_csv, "parquet": _read_parquet}
