"""Overflow: what a task must keep and cannot hold goes into temporary files, mapped into memory.

`Overflow.keep` gives rows back as they are while all that is kept fits into the memory it may use.
Beyond that it writes them, as Arrow without compression, and gives back equal rows whose columns
are views of the file: the kernel reads them when they are touched, and may take their pages away
again.  (Compressed, rows would have to be unpacked into memory, at four times the cost.)

The files have no names (`penstock.temporary.nameless_file`), so nothing of them is left whatever
happens to the process.  One of them lives as long as any row that lies in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, BinaryIO

import pyarrow as pa

from penstock.model import Batch, Ends
from penstock.physical.parcels import decode, encode
from penstock.runs.files import room_for, write_at
from penstock.runs.mappings import map_open
from penstock.temporary import nameless_file, space

SMALLEST_FILE, LARGEST_FILE = 1 << 25, 1 << 30
"""Files grow with what was written before: each takes a descriptor and is freed as a whole."""

_ALIGN = 64


class Overflow:
    """Keeps up to ``memory`` bytes where they are, and writes what is beyond.

    ``held`` is how many bytes are kept in memory now, ``written`` how many went into files.
    """

    def __init__(self, memory: int) -> None:
        self.held = self.written = 0
        self._memory = memory
        self._file: BinaryIO | None = None
        self._mapping: pa.Buffer | None = None
        self._used = 0

    def keep(self, batch: Batch, before: Callable[[Batch], Batch] | None = None) -> Batch:
        """Return rows to be kept, the same or equal ones; ``before`` is done before writing."""
        if self._fits(batch.nbytes):
            return batch
        kind, blob = encode(batch if before is None else before(batch))
        kept = decode(kind, self._filed(blob))
        assert isinstance(kept, Batch)
        return kept

    def keep_ends(self, ends: Ends) -> Ends:
        """Do the same for told ends."""
        if self._fits(16 * len(ends)):
            return ends
        kind, blob = encode(ends)
        kept = decode(kind, self._filed(blob))
        assert isinstance(kept, Ends)
        return kept

    def keep_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Do the same for rows that are no elements yet."""
        if self._fits(rows.nbytes):
            return rows
        return pa.ipc.read_record_batch(self._filed(rows.serialize()), rows.schema)

    def let_go(self, size: int) -> None:
        """Note that so many bytes that were kept in memory are not kept any more."""
        self.held -= size

    def close(self) -> None:
        """Close the file that is being written; what lies in it stays readable."""
        if self._file is not None:
            self._file.close()
        self._file = self._mapping = None

    def __del__(self) -> None:
        self.close()

    def _fits(self, size: int) -> bool:
        """Whether so many bytes stay in memory; then they are counted."""
        if size and self.held + size > self._memory:
            return False
        self.held += size
        return True

    def _filed(self, blob: Any) -> pa.Buffer:
        """Write bytes, and return a view of them in the mapped file."""
        data = memoryview(blob)
        with room_for(f"the temporary folder {space()}"):
            if self._mapping is None or self._used + len(data) > self._mapping.size:
                self._open(len(data))
            assert self._file is not None
            assert self._mapping is not None
            write_at(self._file.fileno(), data, self._used)
        found = self._mapping.slice(self._used, len(data))
        self._used += len(data) + -len(data) % _ALIGN
        self.written += len(data)
        return found

    def _open(self, least: int) -> None:
        """Begin a file: it is mapped as large as it may become, and takes the disk it needs."""
        self.close()
        self._file = nameless_file()
        size = max(least, min(max(self.written, SMALLEST_FILE), LARGEST_FILE))
        os.ftruncate(self._file.fileno(), size)
        self._mapping, self._used = map_open(self._file.fileno()), 0
