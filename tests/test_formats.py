"""Formats: one table for streams, one for sinks, both open for what other packages bring."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from penstock import masking
from penstock.catalog import SinkDef, StreamDef
from penstock.errors import ConfigError
from penstock.expr import types
from penstock.extensions import SINKS, SOURCES, extension
from penstock.model import Field, Schema
from penstock.options import PUBLIC, is_public
from penstock.session import Session
from penstock.sinks import SINK_FORMATS, check_sink, delivery_mode, sink_format
from penstock.sources.base import Waiting
from penstock.sources.formats import (
    SOURCE_FORMATS,
    backlog_of,
    check_stream,
    ends_by_itself,
    is_finite,
    is_pushed,
    read_slice,
    source_format,
)
from penstock.sources.readers.base import to_json
from penstock.sources.readers.conversion import plain
from penstock.sources.replay import ReplayFormat
from penstock.spark.descriptor_source import DescriptorSource

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "penstock"
SCHEMA = Schema((Field("n", types.BIGINT), Field("t", types.BIGINT)))

Install = Callable[[str, str, str], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package, as far as anybody can see: its entry points are found."""
    found: list[EntryPoint] = []
    real = importlib.metadata.entry_points

    def entry_points(**wanted: Any) -> Any:
        if wanted.get("group") in (SOURCES, SINKS):
            return [point for point in found if point.group == wanted["group"]]
        return real(**wanted)

    def add(group: str, name: str, value: str) -> None:
        found.append(EntryPoint(name, value, group))
        extension.cache_clear()

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    monkeypatch.setattr(masking, "_hidden", {})
    monkeypatch.setattr(masking, "_pattern", None)
    extension.cache_clear()
    yield add
    extension.cache_clear()


@pytest.fixture
def inbox(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs the format that the documentation writes."""
    page = (ROOT / "docs/sources-and-sinks.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (name, value) = re.findall(r'"penstock\.sinks"\]\n(\w+) = "(.*)"', page)[0]
    module = ModuleType(value.partition(":")[0])
    exec(compile(block, "docs/sources-and-sinks.md", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "plant", ModuleType("plant"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    install(SINKS, name, value)


# Sinks


@pytest.mark.spark
@pytest.mark.usefixtures("inbox")
def test_a_sink_of_another_package_gets_every_batch_once(spark: Any, tmp_path: Path) -> None:
    script = f"""
        CREATE STREAM s (n BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
        CREATE SINK letters USING Inbox OPTIONS (folder '{tmp_path / "in"}', key 'sesame');
        CREATE QUERY big INTO letters AS ISTREAM (SELECT n FROM s [NOW] WHERE n > 1);
    """
    rows: list[int] = []
    for turn in range(2):
        with Session(spark, checkpoint=tmp_path / "cp", settings={"shards": 1}) as session:
            session.sql(script)
            session.push("s", [(n, n) for n in range(4 * turn, 4 * turn + 4)])
            session.await_idle()
            if turn:
                session.finish("s")
                assert session.await_end(60)
            shown = session.sql("DESCRIBE SINK letters").to_pydict()
            assert shown["value"] == ["inbox", str(tmp_path / "in"), "***"]
    for file in sorted((tmp_path / "in").iterdir(), key=lambda f: int(f.stem.split("-")[1])):
        rows += [json.loads(line)["n"] for line in file.read_text().splitlines()]
    assert rows == [2, 3, 4, 5, 6, 7]


@pytest.mark.usefixtures("inbox")
def test_options_of_another_package_are_checked() -> None:
    with Session(autostart=False) as session:
        for options, told in [
            ("(foldr 'x')", "there is no option 'foldr' of the sink format inbox .*'folder'"),
            ("(key 'x')", "the sink letters must have a folder"),
        ]:
            with pytest.raises(ConfigError, match=told):
                session.sql(f"CREATE SINK letters USING inbox OPTIONS {options}")
    assert delivery_mode(SinkDef("a", "INBOX", {"folder": "x", "changes": "view"})) == "view"


@pytest.mark.usefixtures("inbox")
def test_a_package_says_which_of_its_options_are_public() -> None:
    assert is_public("Inbox", "Folder")
    assert is_public("inbox", "changes")
    assert not is_public("inbox", "key")
    assert not is_public("outbox", "folder")


class Loud:
    """Says that everything is public."""

    public = ("password", "folder", "kafka.sasl.jaas.config")


def test_no_package_makes_options_of_known_formats_public(install: Install) -> None:
    for name in ("postgresql", "kafka", "jdbc", "jsonl"):
        install(SINKS, name, "tests.test_formats:Loud")
        install(SOURCES, name, "tests.test_formats:Loud")
        assert not is_public(name, "password")
        assert not is_public(name, "kafka.sasl.jaas.config")
    assert sink_format("jsonl") is SINK_FORMATS["jsonl"]
    assert source_format("kafka") is SOURCE_FORMATS["kafka"]


def test_a_package_that_is_wrong_is_named(install: Install) -> None:
    install(SINKS, "gone", "no.such.module:Format")
    install(SOURCES, "gone", "no.such.module:Format")
    install(SINKS, "loud", "tests.test_formats:Loud")
    install(SOURCES, "loud", "tests.test_formats:Loud")
    broken = "brings the (sink|stream) format gone must be one that can be imported"
    for name, told in [("gone", broken), ("loud", "must name a S(ink|ource)Format, got Loud")]:
        with pytest.raises(ConfigError, match=told):
            check_sink(SinkDef("a", name, {}))
        with pytest.raises(ConfigError, match=told):
            check_stream(StreamDef("s", SCHEMA, name, {}, 1))
    assert not is_public("gone", "folder")


# Streams


class Archive(ReplayFormat):
    """Files of an archive, which have no known endings."""

    name = "archive"
    options = ("path", "key")
    public = ("path",)

    def file_kind(self, definition: StreamDef, path: str) -> str:
        return "csv" if path.endswith(".csv") else super().file_kind(definition, path)


def test_a_stream_of_another_package_is_read(install: Install, tmp_path: Path) -> None:
    install(SOURCES, "archive", "tests.test_formats:Archive")
    (tmp_path / "a.csv").write_text("n,t\n1,1\n2,2\n3,3\n")
    definition = StreamDef("s", SCHEMA, "Archive", {"path": str(tmp_path), "key": "sesame"}, 1)
    check_stream(definition)
    assert is_finite(definition)
    assert ends_by_itself(definition)
    assert not is_pushed(definition)
    assert backlog_of(definition, "").waiting(0, None) == Waiting(16, "bytes")
    assert is_public("archive", "path")
    assert not is_public("archive", "key")
    with pytest.raises(ConfigError, match="no option 'speed' of the stream format archive"):
        check_stream(StreamDef("s", SCHEMA, "archive", {"speed": "1"}, 1))

    described = [{"definition": to_json(definition), "rows": 2}]
    reader = DescriptorSource({"streams": json.dumps(described)}).streamReader(StructType())
    rows, start = [], reader.initialOffset()
    while (end := reader.latestOffset(start, ReadMaxRows(2**40))) != start:
        for partition in reader.partitions(start, end):
            for _, path, first, last, _, shift, *_ in reader.read(partition):
                for part in read_slice(definition, path, first, last, None, shift):
                    rows += part.table["n"].to_pylist()
        start = end
    assert rows == [1, 2, 3]


def test_a_watched_folder_takes_as_many_files_as_its_option_says(tmp_path: Path) -> None:
    for number in range(3):
        table = pa.table({"n": [number], "t": [number]})
        pyarrow.parquet.write_table(table, tmp_path / f"{number}.parquet")
    options = {"path": str(tmp_path), "maxFilesPerTrigger": "2"}
    definition = StreamDef("s", SCHEMA, "parquet", options, 1)
    check_stream(definition)
    described = {"definition": to_json(definition), "rows": 100, "files": 100}
    described["folder"] = str(tmp_path / "list")
    (tmp_path / "list").mkdir()
    reader = DescriptorSource({"streams": json.dumps([described])}).streamReader(StructType())
    assert reader.latestOffset({}, ReadMaxRows(2**40))["s"]["begun"] == 2
    for wrong in ("0", "-1", "some"):
        changed = StreamDef("s", SCHEMA, "parquet", options | {"maxFilesPerTrigger": wrong}, 1)
        with pytest.raises(ConfigError, match=f"must be a number of files from 1, got '{wrong}'"):
            check_stream(changed)


# The tables


def test_formats_are_listed_under_their_names() -> None:
    for table in (SINK_FORMATS, SOURCE_FORMATS):
        assert all(name == found.name in PUBLIC for name, found in table.items())


def test_nobody_else_tells_formats_apart_by_their_names() -> None:
    """Whoever wants to know something of a format asks it."""
    own = {*SINK_FORMATS, *SOURCE_FORMATS} - {"text", "json", "csv", "xml"}
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] in ("sources", "sinks", "bench"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                told = {c.value for c in ast.walk(node) if isinstance(c, ast.Constant)}
                assert not own & told, f"{path}:{node.lineno}"
                attributes = {a.attr for a in ast.walk(node) if isinstance(a, ast.Attribute)}
                assert "format" not in attributes, f"{path}:{node.lineno}"


INTEGERS = [
    kind() for kind in (pa.int8, pa.uint8, pa.int16, pa.int32, pa.uint32, pa.int64, pa.uint64)
]


@pytest.mark.parametrize("given", INTEGERS, ids=str)
def test_integers_that_do_not_fit_are_bad_and_the_others_keep_their_value(
    given: pa.DataType,
) -> None:
    bits = given.bit_width - pa.types.is_signed_integer(given)
    edges = {e + d for n in (7, 8, 15, 31, 32, 63, 64) for e in (-(2**n), 2**n) for d in (-1, 0, 1)}
    least = -(2**bits) if pa.types.is_signed_integer(given) else 0
    values = [None, 0, *sorted(v for v in edges if least <= v < 2**bits)]
    for wanted in INTEGERS:
        found = plain(pa.array(values, given), wanted)
        assert found is not None
        signed = pa.types.is_signed_integer(wanted)
        most = 2 ** (wanted.bit_width - signed)
        fits = [v is None or (-most if signed else 0) <= v < most for v in values]
        assert found[1].tolist() == [not fit for fit in fits]
        assert found[0].type == wanted
        expected = [v if fit else None for v, fit in zip(values, fits, strict=True)]
        assert found[0].to_pylist() == expected
