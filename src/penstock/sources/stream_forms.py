"""How a stream is read: what of its definition its rows depend on, kept in manifests and compared.

A checkpoint goes on only with the rows that it began with.  Where they are (``path``), how fast
they come and what becomes of bad ones may change; columns, types, time, format, and every option
that may change what a line means may not.  The slack may only if that is said: by OR REPLACE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.catalog import StreamDef
from penstock.cql.render import timing_texts
from penstock.expr.types import type_name
from penstock.masking import shown_option
from penstock.model import TIMESTAMP
from penstock.options import is_public

_FREE = (
    "path",
    "rate",
    "speed",
    "maxfilespertrigger",
    "maxbytespertrigger",
    "maxoffsetspertrigger",
    "minoffsetspertrigger",
    "maxtriggerdelay",
    "rowspersecond",
)
"""Options that change where rows are or how fast they come, never what they are."""


_USUAL = {"order": "parallel"}
"""What holds as well where nothing is said."""

_CLAUSES = ("SLACK", "PUNCTUATION WHEN", "PARTITIONS")
"""Clauses that say which rows are late, whatever the clock says."""


def described(definition: StreamDef) -> dict[str, Any]:
    """Return what the rows of a stream depend on, as a manifest keeps it; no secrets."""
    stamps = definition.schema[definition.time].type == TIMESTAMP
    found: dict[str, Any] = {
        "format": definition.format.lower(),
        "columns": ", ".join(f"{f.name} {type_name(f.type)}" for f in definition.schema),
        "TIMESTAMP BY": definition.schema[definition.time].name,
    }
    clauses = timing_texts(definition.timing, definition.schema.names, stamps)
    found |= {name: clauses[name] for name in _CLAUSES if name in clauses}
    for name, value in definition.options.items():
        if name.lower() not in _FREE and is_public(definition.format, name):
            shown = shown_option(definition.format, name, value)
            if shown.lower() == _USUAL.get(name.lower()):
                continue
            found[f"option {name.lower()}"] = shown
    return found


_REPLACED = frozenset(("SLACK",))
"""Clauses that may be others behind a batch: no heartbeat that was given is ever taken back."""


def difference(
    before: Mapping[str, Any], now: Mapping[str, Any], replaces: bool = False
) -> str | None:
    """Say how two descriptions differ; None if they do not, or if one may replace the other."""
    for name in sorted({*before, *now} - (_REPLACED if replaces else frozenset())):
        if before.get(name) != now.get(name):
            was, got = (
                f"'{found[name]}'" if name in found else "not given" for found in (before, now)
            )
            return f"{name} was {was} and is {got}"
    return None
