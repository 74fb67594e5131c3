"""Records of the lane's journal: how a turn is written into a file, and read back.

A record is a prelude of fixed size, a header in JSON, Arrow streams, and a digest::

    magic · digest of the record before · bytes of the header · bytes of the streams · checksum
    {"turn": 7, "batch": 3, "rows": [..], "results": [..], "beats": {..}}
    an Arrow stream per stream of rows, then one per result
    digest of all that and of the record before

The checksum is that of the prelude alone.  So lengths can be trusted before anything else is read:
a file that ends inside a record was cut short there, and no damage can make it look so.
"""

from __future__ import annotations

import json
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import StateError
from penstock.model import I64, one_array, to_numpy
from penstock.runs.deliveries import Delivered, lane_outlet
from penstock.runs.manifest import canonical
from penstock.sources.offsets import chained

MAGIC = b"PSTTURN1"
_LENGTHS = struct.Struct("<8s16sIQ")
_CHECKSUM = struct.Struct("<I")
_PRELUDE = _LENGTHS.size + _CHECKSUM.size
_DIGEST = 16
_BEFORE = slice(len(MAGIC), len(MAGIC) + _DIGEST)
_ROWS = {"seq": pa.int64(), "time": pa.int64(), "priority": pa.uint8()}


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one stream that a turn answered: arrival numbers, times, priorities, and values.

    Values are kept as long as rows that are answered later may meet these.
    """

    seq: I64
    time: I64
    priority: npt.NDArray[np.uint8]
    table: pa.Table | None = None

    def __len__(self) -> int:
        return len(self.seq)


@dataclass(frozen=True, eq=False)
class Turn:
    """What the lane answered at one go.

    ``number`` counts turns from 1, 0 until the journal has numbered it; ``batch`` is the newest
    committed batch that it was computed with, ``beats`` the heartbeats of streams after that.
    ``rows`` are those that it answered, by stream,
    ``results`` the answers, by query, with the columns of result runs.  ``chain`` is the digest of
    the turn and of all turns before; ``told`` is what each outlet has got when it has got this
    turn, for those that the turn has rows for.
    """

    number: int
    batch: int
    rows: Mapping[str, Rows]
    results: Mapping[str, pa.Table]
    chain: str = ""
    told: Mapping[str, Delivered] = field(default_factory=dict)
    beats: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where a record is: a file, and which bytes of it; ``before`` is the chain that led to it."""

    path: Path
    offset: int
    length: int
    before: str


class Stored(Mapping[str, pa.Table]):
    """The results of a turn that is in the journal, read when they are asked for."""

    def __init__(self, place: Place, chain: str, parts: Mapping[str, tuple[int, int]]) -> None:
        self._place = place
        self._chain = chain
        self._parts = parts

    def __getitem__(self, query: str) -> pa.Table:
        offset, length = self._parts[query]
        return _table(pa.py_buffer(self._read()).slice(offset, length))

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def _read(self) -> bytes:
        place = self._place
        try:
            with open(place.path, "rb") as file:
                file.seek(place.offset)
                data = file.read(place.length)
        except OSError as error:
            raise damaged(place.path, place.offset, f"cannot be read: {error.strerror}") from error
        whole = memoryview(data)[:-_DIGEST]
        if len(data) != place.length or chained(place.before, whole) != self._chain:
            raise damaged(place.path, place.offset, "was altered since it was written")
        return data


@dataclass(frozen=True)
class Record:
    """A turn as bytes, with its header and its digest."""

    data: bytes
    header: dict[str, Any]
    chain: str

    def turn(self, place: Place, rows: Mapping[str, Rows]) -> Turn:
        """Return the turn, which lies at a place, without its results: they are read from there."""
        return _turn(self.header, self.chain, place, rows)


# -- writing -------------------------------------------------------------------------------------


def encode(turn: Turn, before: str, book: Mapping[str, Delivered]) -> Record:
    """Return a numbered turn as a record.

    ``before`` is the digest of the record before, ``book`` what outlets have got until then.
    """
    parts: list[pa.Buffer] = []
    rows: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for stream, answered in turn.rows.items():
        columns = [pa.array(getattr(answered, name), type) for name, type in _ROWS.items()]
        names = list(_ROWS)
        if answered.table is not None:
            columns += [one_array(column) for column in answered.table.columns]
            names += [f"c{i}" for i in range(answered.table.num_columns)]
        parts.append(_stream(pa.table(columns, names=names)))
        rows.append({"stream": stream, "bytes": len(parts[-1])})
    for query, table in turn.results.items():
        parts.append(_stream(table))
        result = {"query": query, "bytes": len(parts[-1])}
        if table.num_rows:
            known = book.get(lane_outlet(query), Delivered())
            counts = {"turns": known.batches + 1, "rows": known.rows + table.num_rows}
            result |= counts | {"before": known.last}
        results.append(result)
    header = {
        "turn": turn.number,
        "batch": turn.batch,
        "rows": rows,
        "results": results,
        "beats": dict(turn.beats),
    }
    text = canonical(header).encode()
    lengths = _LENGTHS.pack(MAGIC, before.encode(), len(text), sum(map(len, parts)))
    data = b"".join((lengths, _CHECKSUM.pack(zlib.crc32(lengths)), text, *parts))
    chain = chained(before, data)
    return Record(data + chain.encode(), header, chain)


def _stream(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


# -- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Content:
    """What a file holds: its turns, the chain that led to them, and where the last one ends."""

    turns: list[Turn]
    before: str | None
    end: int


def read_records(path: Path, before: str | None, is_last: bool) -> Content:
    """Return what a file of records holds.

    ``before`` is the chain that it must go on from; None: it is the first file, and its own word
    counts.  Only the last file may end in a record that was cut short, which does not count.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise StateError(
                f"the journal of turns must consist of files, but {path} is none; nothing was "
                f"changed: take it away, or bring the folder {path.parent} back from a copy"
            )
        data = path.read_bytes()
    except OSError as error:
        raise damaged(path, 0, f"cannot be read: {error.strerror}") from error
    turns: list[Turn] = []
    at, first, chain = 0, before, before
    while at < len(data):
        rest = memoryview(data)[at:]
        length = _measured(path, at, rest)
        told = bytes(rest[_BEFORE]).decode("ascii", "replace")
        is_cut = length is None or _is_unwritten(rest[length - _DIGEST :])
        if is_cut and not is_last:
            raise damaged(path, at, "was cut short, although another file follows")
        if is_cut:
            break
        assert length is not None
        body, digest = rest[: length - _DIGEST], bytes(rest[length - _DIGEST : length])
        if chained(told, body).encode() != digest:
            raise damaged(path, at, "was altered since it was written")
        if chain is not None and told != chain:
            raise damaged(path, at, "does not follow the one before: one of them is of a copy")
        first = told if first is None else first
        chain = digest.decode()
        turns.append(_decoded(body, chain, Place(path, at, length, told)))
        at += length
    return Content(turns, first, at)


def _measured(path: Path, at: int, rest: memoryview) -> int | None:
    """Return how many bytes a record has; None if there are fewer, because it was cut short."""
    if len(rest) < _PRELUDE or _is_unwritten(rest):
        if bytes(rest[: len(MAGIC)]) == MAGIC[: len(rest)] or _is_unwritten(rest):
            return None
        raise damaged(path, at, "is no record, or was altered")
    magic, _, header, parts = _LENGTHS.unpack_from(rest)
    (checksum,) = _CHECKSUM.unpack_from(rest, _LENGTHS.size)
    if magic != MAGIC or checksum != zlib.crc32(rest[: _LENGTHS.size]):
        raise damaged(path, at, "is no record, or was altered")
    length: int = _PRELUDE + header + parts + _DIGEST
    return length if length <= len(rest) else None


def _is_unwritten(data: memoryview) -> bool:
    """Whether there are only zeros: a power cut leaves them where nothing was written yet."""
    return data[0] == 0 and bytes(data).count(0) == len(data)


def _decoded(body: memoryview, chain: str, place: Place) -> Turn:
    (size,) = struct.unpack_from("<I", body, _BEFORE.stop)
    header = json.loads(bytes(body[_PRELUDE : _PRELUDE + size]))
    rows = {}
    at = _PRELUDE + size
    for told in header["rows"]:
        table = _table(pa.py_buffer(body[at : at + told["bytes"]]))
        known = [to_numpy(table.column(name)).copy() for name in _ROWS]
        values = table.select(table.column_names[len(_ROWS) :])
        rows[told["stream"]] = Rows(
            known[0], known[1], known[2], values if values.num_columns else None
        )
        at += told["bytes"]
    return _turn(header, chain, place, rows)


def _turn(header: dict[str, Any], chain: str, place: Place, rows: Mapping[str, Rows]) -> Turn:
    """Return the turn of a record."""
    parts, delivered = {}, {}
    number, batch = int(header["turn"]), int(header["batch"])
    at = place.length - _DIGEST - sum(told["bytes"] for told in header["results"])
    for told in header["results"]:
        parts[told["query"]] = at, told["bytes"]
        at += told["bytes"]
        if "before" in told:
            last, lineage = told["before"]
            delivered[lane_outlet(told["query"])] = Delivered(
                number, chain, told["turns"], told["rows"], (last, lineage)
            )
    beats = {str(name): int(beat) for name, beat in header.get("beats", {}).items()}
    return Turn(number, batch, rows, Stored(place, chain, parts), chain, delivered, beats)


def _table(data: pa.Buffer) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


def damaged(path: Path, offset: int, what: str) -> StateError:
    """Return the error of a file of the journal that is not as it was written."""
    return StateError(
        f"the journal of turns must be as it was written, but the record at byte {offset} of "
        f"{path} {what}; nothing was changed: bring the folder {path.parent} back from a copy, or "
        f"use another --checkpoint"
    )
