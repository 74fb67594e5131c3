"""The formats of static tables: who reads one, Arrow or Spark, and how.

A name that is not in the table of formats is one of Spark, of which nothing is known here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.catalog import WRITTEN, TableDef, has_references, opened
from penstock.errors import NotSupportedError
from penstock.sources.spark_formats import SPARK_FORMATS
from penstock.sources.tables import (
    Part,
    check_path,
    check_path_given,
    csv_table,
    empty_table,
    local_files,
    one_chunk,
    parts_of,
    read_part,
    written_table,
)

ReadTable = Callable[[TableDef], pa.Table]


@dataclass(frozen=True)
class SparkTable:
    """How Spark reads a table; ``by_place``: its columns have no names."""

    options: Mapping[str, str]
    by_place: bool = False


class TableFormat:
    """A format of tables, read by Spark with the options that are given."""

    def check(self, definition: TableDef) -> None:
        """Check the values of a table's options, and the files that they name."""
        return None

    def parts(self, definition: TableDef) -> list[Part] | None:
        """Return parts that tasks read with Arrow; None: Spark must read the table."""
        return None

    def whole(self, definition: TableDef) -> pa.Table | None:
        """Return all rows, read with Arrow; None: Spark must read the table."""
        return None

    def at_hand(self, definition: TableDef) -> pa.Table | None:
        """Return all rows, if they stand in the query itself; None: they must be read."""
        return None

    def spark_table(self, definition: TableDef) -> SparkTable:
        """Return how Spark reads the table."""
        return SparkTable(_options(definition))


class FilesTable(TableFormat):
    """A table of files."""

    def check(self, definition: TableDef) -> None:
        check_path(f"table {definition.name}", _options(definition).get("path"))


class ParquetTable(FilesTable):
    """Parquet files; local ones, with no option but their path, are read with Arrow."""

    def parts(self, definition: TableDef) -> list[Part] | None:
        options = _options(definition)
        files = local_files(options["path"]) if options.keys() == {"path"} else None
        return None if files is None else parts_of(definition, files)

    def whole(self, definition: TableDef) -> pa.Table | None:
        parts = self.parts(definition)
        if parts is None:
            return None
        every = range(len(definition.schema))
        chunks = [chunk for part in parts for chunk in read_part(definition, part, every)]
        return pa.concat_tables([empty_table(definition), *chunks])


class CsvTable(FilesTable):
    """CSV files; local ones with a header and no other options are read by Arrow as by Spark."""

    def whole(self, definition: TableDef) -> pa.Table | None:
        options = _options(definition)
        plain = options.keys() <= {"path", "header"} and options.get("header", "true") == "true"
        files = local_files(options.get("path", "")) if plain else None
        if files is None:
            return None
        return pa.concat_tables(
            [empty_table(definition), *(csv_table(definition, path) for path in files)]
        )

    def spark_table(self, definition: TableDef) -> SparkTable:
        options = {"header": "true"} | _options(definition)
        return SparkTable(options, by_place=options["header"].lower() != "true")


class JsonTable(FilesTable):
    """JSON files; numbers come as they are written."""

    def spark_table(self, definition: TableDef) -> SparkTable:
        return SparkTable(_options(definition) | {"primitivesasstring": "true"})


class WrittenTable(TableFormat):
    """Rows that stand in a query: VALUES."""

    def whole(self, definition: TableDef) -> pa.Table | None:
        return self.at_hand(definition)

    def at_hand(self, definition: TableDef) -> pa.Table | None:
        return written_table(definition, json.loads(definition.options["rows"]))


_OTHER = TableFormat()

TABLE_FORMATS: Mapping[str, TableFormat] = {
    **{found.name: FilesTable() for found in SPARK_FORMATS if found.names_files},
    "parquet": ParquetTable(),
    "csv": CsvTable(),
    "json": JsonTable(),
    WRITTEN: WrittenTable(),
}
"""The formats of tables of which something is known here."""


def table_format(definition: TableDef) -> TableFormat:
    """Return the format that ``USING`` names."""
    return TABLE_FORMATS.get(definition.format.lower(), _OTHER)


def check_table(definition: TableDef, data: bool = True) -> None:
    """Check the path of a table, and with ``data`` its files, before anything is started."""
    found = table_format(definition)
    if has_references(definition):
        return
    if data:
        found.check(definition)
    elif isinstance(found, FilesTable):
        check_path_given(f"table {definition.name}", _options(definition).get("path"))


def whole_table(definition: TableDef, otherwise: ReadTable | None = None) -> pa.Table:
    """Return all rows of a table as they are now.

    Local Parquet and plain CSV files are read by Arrow, everything else by ``otherwise``.
    """
    definition = opened(definition)
    check_table(definition)
    whole = table_format(definition).whole(definition)
    if whole is not None:
        return whole
    if otherwise is None:
        raise NotSupportedError(
            f"the table {definition.name} must be local Parquet or CSV to be read without Spark, "
            f"got format '{definition.format}' with its options; ask in the session that runs, or "
            f"keep what joins with it: CREATE MATERIALIZED VIEW name AS SELECT .. JOIN "
            f"{definition.name} .."
        )
    found = otherwise(definition)
    return one_chunk(definition, found.to_batches()) if found.num_rows else empty_table(definition)


def _options(definition: TableDef) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in definition.options.items()}
