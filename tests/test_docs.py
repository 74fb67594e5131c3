"""The documentation is true: generated pages are up to date, links lead somewhere.

The code of the pages is run by `test_pages`.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from penstock.cql.binding.script import Script
from penstock.cql.binding.times import INTEGERS, WindowBinder
from penstock.cql.grammar.parse import parse_window
from penstock.expr.functions import FUNCTIONS
from penstock.model import INF, Field, Schema
from penstock.reference import window
from penstock.testing import Rig

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
LANGUAGE = ROOT / "docs/language.md"


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_configuration_page_is_up_to_date() -> None:
    made = load("docs/make_configuration.py").page()
    assert made == (ROOT / "docs/configuration.md").read_text(), "run `make docs`"


def test_the_tables_of_papers_are_up_to_date() -> None:
    made = load("docs/make_papers.py").page()
    assert made == (ROOT / "docs/papers.md").read_text(), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(found), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


PICTURES = load("docs/make_pictures.py")


@pytest.mark.parametrize("picture", PICTURES.PICTURES, ids=lambda p: p.file)
def test_picture_shows_what_the_window_means(picture: Any) -> None:
    elements = [((e.name, e.group), e.time) for e in picture.elements]
    text = picture.text
    schema = Schema((Field("name", pa.string()), Field("city", pa.string())))
    spec = WindowBinder(Script(text), schema, INTEGERS, "the stream").bind(parse_window(text))
    whole = replace(spec, bounds=None)  # not cut at pulses
    meant = {values[0]: (start, end) for values, start, end in window(elements, whole)}
    drawn = picture.validity(list(picture.elements))
    assert {name: (s, min(e, INF)) for name, (s, e) in drawn.items() if s < e} == meant


def test_every_picture_is_drawn_and_shown() -> None:
    files = {path.name for path in (ROOT / "docs/pictures").glob("*.png")}
    shown = set(re.findall(r"\(pictures/(\w+\.png)\)", LANGUAGE.read_text()))
    declared = {f"{p.file}.png" for p in PICTURES.PICTURES} | {"relation_to_stream.png"}
    assert files == shown == declared


def test_the_windows_of_flink_and_spark_give_one_answer() -> None:
    """The statements of the page about windows, run as they are printed."""
    chapter = LANGUAGE.read_text().partition("\n## Windows\n")[2].partition("\n## ")[0]
    rig = Rig("".join(re.findall(r"```sql\n(.*?)```", chapter, flags=re.DOTALL)))
    sales = [("a", 1.0, "10:00:00"), ("a", 2.0, "10:04:59"), ("b", 4.0, "10:05:00")]
    rig.feed("sales", [*sales, ("a", 8.0, "10:12:00"), ("a", 16.0, "11:00:00")])
    times = ("10:00:00", "10:20:00", "10:50:00", "11:19:59")
    rig.feed("clicks", [("eve", "home", time) for time in times])
    rig.feed("clicks", [("adam", "home", "11:20:00")])
    rig.end()
    totals = [
        ("10:00:00", "10:05:00", "a", 3.0, "10:05:00"),
        ("10:05:00", "10:10:00", "b", 4.0, "10:10:00"),
        ("10:10:00", "10:15:00", "a", 8.0, "10:15:00"),
        ("11:00:00", "11:05:00", "a", 16.0, "11:05:00"),
    ]
    for query in ("totals", "totals_as_in_flink", "totals_as_in_spark"):
        rig.assert_stream(query, totals)
    rig.assert_intervals(
        "hours",
        [
            ("a", 11.0, "11:00:00", "12:00:00"),
            ("b", 4.0, "11:00:00", "12:00:00"),
            ("a", 16.0, "12:00:00", "13:00:00"),
        ],
    )
    rig.assert_stream(
        "visits",
        [
            ("eve", "10:00:00", "10:50:00", 2, "10:50:00"),
            ("eve", "10:50:00", "11:49:59", 2, "11:49:59"),
            ("adam", "11:20:00", "11:50:00", 1, "11:50:00"),
        ],
    )


def test_first_query_of_the_readme_is_an_example() -> None:
    first = re.findall(r"```sql\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0]
    assert first == (ROOT / "examples/control_room/alarms.sql").read_text()


def test_every_setting_and_clause_is_described() -> None:
    text = LANGUAGE.read_text()
    for word in ("SLACK", "IDLE AFTER", "PRIORITY", "LATE INTO", "ON ERROR", "VALID FROM"):
        assert word in text


def test_the_readme_counts_the_functions() -> None:
    assert f" {len(FUNCTIONS)} [functions](docs/functions.md)" in (ROOT / "README.md").read_text()
