"""JSON texts as Python values that keep numbers as they are written, and objects in their order."""

from __future__ import annotations

import json
from typing import Any


class Number(str):
    """A number of JSON as it is written there."""


class Object(list[tuple[str, Any]]):
    """The keys and values of a JSON object, in order."""


def loads(text: str) -> Any:
    """Return what a JSON text says; the three words for numbers that are none are numbers."""
    return json.loads(
        text,
        object_pairs_hook=Object,
        parse_int=Number,
        parse_float=Number,
        parse_constant=Number,
    )


def written(value: Any) -> str:
    """Return a value as JSON text, its numbers as they were written."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, Object):
        pairs = (f"{json.dumps(key)}: {written(inner)}" for key, inner in value)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return json.dumps(value)
