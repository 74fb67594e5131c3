"""Folders of result files: ``jsonl``, ``csv`` and ``parquet``.

A batch is one file ``<query>-<batch>.<extension>``, written under a hidden name, forced to disk and
renamed: whoever lists the folder sees committed batches only, each once.  A view is one file
``<query>-view.<extension>``, replaced as a whole.  ``_penstock.json`` marks the folder as ours and
says whose answers it holds; a folder with anything else in it is refused, never added to.
``_penstock-<query>.log`` says what each file must hold, so that a file that was lost, cut or
altered is noticed at the next start.  A turn of the lane is a file ``<query>~lane-<turn>``, with a
log of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa

from penstock.catalog import SinkDef
from penstock.errors import ConfigError, DataError, StateError
from penstock.expr.types import parse_type, type_name
from penstock.runs.deliveries import Delivered, Held, partner
from penstock.runs.files import replace_file
from penstock.runs.manifest import canonical, digest_of
from penstock.sinks.base import Result, Sink, SinkFormat, SinkRequest, options_of, unique_names
from penstock.sinks.delivery_log import DeliveryLog, Entry
from penstock.sinks.file_encodings import ENCODINGS
from penstock.sinks.text import shown_time
from penstock.sources.readers.base import local_path

MARKER = "_penstock.json"
FILE_FORMATS = tuple(ENCODINGS)
REWOUND = "_penstock-rewound"

VERIFIED_BYTES = 1 << 30
"""So many bytes of the newest files are compared with their checksums; of older ones the size."""

_PATIENCE = 5
"""So often a reader looks again at a folder whose newest file is on its way."""

_NAME = re.compile(rf"(?P<query>.+)-(?P<batch>\d{{10}}|view)\.({'|'.join(FILE_FORMATS)})")
_marker_lock = threading.Lock()


class FileFormat(SinkFormat):
    """Files of rows in a folder, written as one of the `ENCODINGS`."""

    options = ("path", "changes", "overwrite")

    def __init__(self, name: str) -> None:
        self.name = name

    def check(self, definition: SinkDef) -> None:
        sink_folder(definition)

    def open(self, definition: SinkDef, request: SinkRequest) -> Sink:
        return FileSink(definition, request)


class FileSink(Sink):
    """One query's files in a sink folder.

    A folder keeps the answers of one run of a query, which the name of the checkpoint tells.
    """

    place: Path

    def __init__(self, definition: SinkDef, request: SinkRequest) -> None:
        query, mode, run = request.query, request.mode, request.run
        self._format = definition.format.lower()
        self._folder = sink_folder(definition)
        self.place = self._folder
        self._shown = f"the folder '{self._folder}' of sink {definition.name}"
        self._query = query
        self._mode = mode
        self._prefix = f"{file_stem(query)}-"
        self._fsync = request.fsync
        self._log = DeliveryLog(_log_path(self._folder, query), request.fsync)
        columns = [[field.name, type_name(field.type)] for field in request.schema]
        self._entry: dict[str, Any] = {"mode": mode, "columns": columns, "run": run}
        self._begun = self._overwrites = False
        self._last = -1
        self._again: set[int] = set()
        queries = _checked(definition, self._folder, self._format)["queries"]
        known = queries.get(query)
        if self._others(queries):
            if options_of(definition).get("overwrite", "false").lower() != "true":
                raise ConfigError(
                    f"the folder of sink {definition.name} must be new, or hold answers of the "
                    f"same query, columns, changes and checkpoint, but '{self._folder}' holds "
                    f"others of query '{query}'; remove it, choose another path, or set "
                    f"OPTIONS (overwrite 'true')"
                )
            self._overwrites = True
        elif known is not None:
            self._entry |= {k: known[k] for k in ("as_of", "batch") if k in known}
            self._entry["run"] = run or known.get("run")

    def _others(self, queries: Mapping[str, Any]) -> list[str]:
        """Return whose answers are others than ours: of this outlet, or the query's other one."""
        own = (self._query, partner(self._query))
        return [name for name in own if name in queries and _differs(queries[name], self._entry)]

    # -- what it holds ---------------------------------------------------------------------------

    def held(self) -> Held:
        """Compare the files with their log; nothing is changed."""
        entries = [] if self._overwrites else self._log.read()
        lost: dict[int, str] = {}
        left = VERIFIED_BYTES
        for entry in reversed(entries):
            left -= entry.bytes
            wrong = _wrong(self._file_of(entry.batch), entry, left >= 0)
            if wrong:
                lost[entry.batch] = wrong
        if not self._overwrites:
            listed = {entry.batch for entry in entries}
            for path, query, batch in self._files():
                if query == self._query and batch != "view" and int(batch) not in listed:
                    lost[int(batch)] = f"the log {self._log.path} does not list {path.name}"
        last = entries[-1] if entries else Entry(-1, "", 0, 0, 0)
        return Held(self._shown, last.batch, last.lineage, lost)

    def _files(self) -> list[tuple[Path, str, str]]:
        return committed_files(self._folder) if self._folder.is_dir() else []

    def begin(self, again: Collection[int] = (), given_up: Collection[int] = ()) -> None:
        """Make the folder ours; unfinished files of a crash are swept.

        What is to be overwritten stays until the first batch is there.
        """
        if not self._overwrites:
            self._begin(again, given_up)

    def _begin(self, again: Collection[int] = (), given_up: Collection[int] = ()) -> None:
        with _marker_lock:
            self._folder.mkdir(parents=True, exist_ok=True)
            marker = _read_marker(self._folder, self._format)
            if self._overwrites:
                for query in self._others(marker["queries"]):
                    self._remove_files(query)
                    del marker["queries"][query]
                self._overwrites = False
            unfinished = re.compile(rf"\.{re.escape(self._prefix)}(\d{{10}}|view)\..*\.tmp")
            for name in os.listdir(self._folder):
                if unfinished.fullmatch(name):
                    (self._folder / name).unlink(missing_ok=True)
            self._write_marker(marker)
        if given_up:
            self._accept(given_up)
        entries = self._log.read()
        self._last = entries[-1].batch if entries else -1
        self._again = set(again)
        self._begun = True

    def _accept(self, given_up: Collection[int]) -> None:
        """Take files of some batches as they are, and forget those that are gone."""
        entries = {entry.batch: entry for entry in self._log.read()}
        for batch in given_up:
            lineage = entries.pop(batch).lineage if batch in entries else ""
            with contextlib.suppress(OSError):
                data = self._file_of(batch).read_bytes()
                entries[batch] = Entry(batch, lineage, 0, len(data), zlib.crc32(data))
        self._log.replace([entries[batch] for batch in sorted(entries)])

    def rewind(self, told: Delivered) -> str:
        """Set the files of later batches aside, and forget them."""
        entries = self._log.read()
        kept = [entry for entry in entries if entry.batch <= told.batch]
        later = [entry for entry in entries if entry.batch > told.batch]
        last = (kept[-1].batch, kept[-1].lineage) if kept else (-1, "")
        if self._mode == "view":
            if told.batch < 0:
                self._file_of(-1).unlink(missing_ok=True)
                self._log.path.unlink(missing_ok=True)
                return "the view is removed: the checkpoint has none yet"
            self._log.replace([Entry(told.batch, told.lineage, 0, -1, 0)])
            return f"the view of batch {told.batch} is written again at the next start"
        if last != told.last:
            raise StateError(
                f"{self._shown} must have got batch {told.batch} of this checkpoint to be taken "
                f"back to it, but it holds other answers; give the query a new sink"
            )
        number = 1
        aside = self._folder / f"{REWOUND}-{told.batch}"
        while aside.exists():
            number += 1
            aside = self._folder / f"{REWOUND}-{told.batch}-{number}"
        if later:
            aside.mkdir()
        for entry in later:
            path = self._file_of(entry.batch)
            with contextlib.suppress(FileNotFoundError):
                os.replace(path, aside / path.name)
        self._log.replace(kept)
        return f"{len(later)} files were set aside in '{aside}'" if later else "nothing was further"

    # -- publishing ------------------------------------------------------------------------------

    def publish(self, result: Result) -> None:
        """Write a batch's file; replace the view's."""
        if not self._begun:
            self._begin()
        is_view = result.mode == "view"
        again = result.batch in self._again
        if (result.batch <= self._last and not again) or not (result.table.num_rows or is_view):
            return
        data = ENCODINGS[self._format].encode(unique_names(result.table))
        rows = result.table.num_rows
        entry = Entry(result.batch, result.lineage, rows, len(data), zlib.crc32(data))
        path = self._file_of(result.batch)
        if is_view:
            self._log.replace([entry])  # first: a crash leaves a file that does not fit its line
            replace_file(path, data, self._fsync, shared=True)
            self._entry |= {"as_of": shown_time(result), "batch": result.batch}
            with _marker_lock:
                self._write_marker(_read_marker(self._folder, self._format))
        else:
            if result.batch > self._last:
                self._log.append(entry)
            else:
                others = [e for e in self._log.read() if e.batch != entry.batch]
                self._log.replace(sorted([*others, entry], key=lambda e: e.batch))
            replace_file(path, data, self._fsync, shared=True)
        self._last = max(self._last, result.batch)
        self._again.discard(result.batch)

    def _file_of(self, batch: int) -> Path:
        part = "view" if self._mode == "view" else f"{batch:010d}"
        return self._folder / f"{self._prefix}{part}.{self._format}"

    def _remove_files(self, query: str) -> None:
        for path, found, _ in self._files():
            if found == query:
                path.unlink()
        _log_path(self._folder, query).unlink(missing_ok=True)

    def _write_marker(self, marker: dict[str, Any]) -> None:
        marker["queries"][self._query] = self._entry
        marker.pop("digest", None)
        marker["digest"] = digest_of(canonical(marker))
        text = json.dumps(marker, indent=2, ensure_ascii=False)
        replace_file(self._folder / MARKER, text.encode(), self._fsync, shared=True)


def file_stem(query: str) -> str:
    """Return a query's name as the beginning of a file's: no folder, and not hidden."""
    stem = quote(query, safe=" ")
    return f"%2E{stem[1:]}" if stem.startswith(".") else stem


def _log_path(folder: Path, query: str) -> Path:
    return folder / f"_penstock-{file_stem(query)}.log"


def _wrong(path: Path, entry: Entry, whole: bool) -> str | None:
    """Say what is wrong with the file of a batch; its contents are read if ``whole``."""
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            return f"the file {path} must have {entry.bytes} bytes, got {size}"
        if whole and zlib.crc32(path.read_bytes()) != entry.crc:
            return f"the file {path} was altered"
    except FileNotFoundError:
        return f"the file {path} is gone"
    except OSError as error:
        return f"the file {path} cannot be read ({error.strerror})"
    return None


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


def _checked(definition: SinkDef, folder: Path, format: str) -> dict[str, Any]:
    """Check that a folder is new or ours; return its marker."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            f"the path of sink {definition.name} must be a folder, but '{folder}' is a file"
        )
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    for name in names:
        ours = name == MARKER or name.startswith("_penstock-") or _NAME.fullmatch(name)
        hidden = name.startswith(".") and name.endswith(".tmp")
        if not hidden and not (MARKER in names and ours):
            raise ConfigError(
                f"the folder of sink {definition.name} must be new, empty or made by Penstock, "
                f"but '{folder}' holds '{name}'; choose another path or remove the folder"
            )
    marker = _read_marker(folder, format)
    if marker["format"] != format:
        raise ConfigError(
            f"the folder of sink {definition.name} must hold {format} files, but '{folder}' was "
            f"made with the format {marker['format']}; choose another path"
        )
    return marker


def _read_marker(folder: Path, format: str | None = None) -> dict[str, Any]:
    """Return the marker of a folder; with ``format`` a new one where there is none."""
    try:
        marker: dict[str, Any] = json.loads((folder / MARKER).read_bytes())
        told = marker.pop("digest", None)
        if (
            isinstance(marker["queries"], dict)
            and marker["format"] in FILE_FORMATS
            and told in (None, digest_of(canonical(marker)))
        ):
            return marker
    except FileNotFoundError:
        if format is not None:
            return {"penstock": 1, "format": format, "queries": {}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise DataError(
        f"the folder '{folder}' must be one of a sink, but its {MARKER} is not readable or was "
        f"altered; bring it back from a copy, or give the query a new sink"
    )


def _differs(known: dict[str, Any], entry: dict[str, Any]) -> bool:
    runs = {known.get("run"), entry["run"]} - {None}
    same = known["mode"] == entry["mode"] and known["columns"] == entry["columns"]
    return not same or len(runs) > 1


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
    Files that are gone, cut or altered are refused by their names.
    """
    root = Path(folder)
    if not (root / MARKER).is_file():
        raise DataError(
            f"the folder '{folder}' must be one of a sink of Penstock, but it has no {MARKER}; "
            f"give the path of a sink with the format {', '.join(FILE_FORMATS)}"
        )
    marker = _read_marker(root)
    rows: list[dict[str, Any]] = []
    for query in marker["queries"]:
        _check_files(root, query, marker["format"])
    for path, query, _ in committed_files(root):
        columns = marker["queries"].get(query, {}).get("columns", [])
        types = {name: parse_type(kind) for name, kind in columns}
        try:
            rows += ENCODINGS[marker["format"]].read(path, types)
        except (ValueError, OSError, AttributeError, RecursionError, pa.ArrowException) as error:
            raise DataError(
                f"the file {path} must hold rows as {marker['format']}, got: {error}"
            ) from None
    yield from sorted(rows, key=_time_of)


def _check_files(folder: Path, query: str, format: str) -> None:
    """Compare the files of a query with their log; one that is being written is waited for."""
    log = DeliveryLog(_log_path(folder, query), fsync=False)
    is_view = (folder / f"{file_stem(query)}-view.{format}").exists()
    for _ in range(_PATIENCE):
        wrong = None
        for entry in log.read():
            part = "view" if is_view else f"{entry.batch:010d}"
            if entry.bytes >= 0:
                path = folder / f"{file_stem(query)}-{part}.{format}"
                wrong = wrong or _wrong(path, entry, whole=True)
        if wrong is None:
            return
        time.sleep(0.1)
    raise DataError(f"what a sink holds must be what was delivered, but {wrong}")


def _time_of(row: dict[str, Any]) -> tuple[bool, Any, bool, Any]:
    """Return the key of a row: no start comes first, no end comes last."""
    start = row.get("_start", row.get("_time"))
    end = row.get("_end")
    no_start, no_end = start is None, end is None
    return not no_start, 0 if no_start else start, no_end, 0 if no_end else end
