"""The names of ARRAY, STRUCT and MAP types, and what two of them have in common."""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa

from penstock.errors import QueryError
from penstock.nested.shapes import (
    fields_of,
    inner_types,
    is_map,
    is_nested,
    is_struct,
    with_inner,
)

NESTED = re.compile(r"(?P<kind>ARRAY|STRUCT|MAP)\b\s*(?:<(?P<inside>.*)>)?\Z", re.IGNORECASE)
"""The name of a nested type, alone or with what it holds."""

_FIELD = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<name>[^\W\d]\w*))(?:\s*:\s*|\s+)(?P<type>.+)"
)
_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
_FORMS = {
    "ARRAY": "ARRAY<type>, for instance ARRAY<STRING>",
    "STRUCT": "STRUCT<name: type, ..>, for instance STRUCT<x: DOUBLE, y: DOUBLE>",
    "MAP": "MAP<key type, value type>, for instance MAP<STRING, DOUBLE>",
}


def parse_nested(text: str, parse: Callable[[str], pa.DataType]) -> pa.DataType:
    """Return the type that a text means which `NESTED` matches; ``parse`` reads inner types."""
    match = NESTED.match(text)
    assert match is not None

    def inner(part: str) -> pa.DataType:
        return pa.null() if part.strip().upper() in ("NULL", "VOID") else parse(part)

    kind, inside = match["kind"].upper(), match["inside"]
    found = [] if inside is None else _separated(inside)
    if kind == "STRUCT" and found:
        return pa.struct([pa.field(*pair) for pair in named_types(text, inside, inner)])
    if kind == "ARRAY" and len(found) == 1:
        return pa.list_(inner(found[0]))
    if kind == "MAP" and len(found) == 2:
        key = inner(found[0])
        if has_map(key) or key == pa.null():
            raise QueryError(f"the key of a MAP must be comparable, which a MAP is not, got {text}")
        return pa.map_(key, inner(found[1]))
    raise QueryError(f"the type {kind} must say what it holds, {_FORMS[kind]}, got {text}")


def named_types(
    text: str, inside: str, parse: Callable[[str], pa.DataType]
) -> list[tuple[str, pa.DataType]]:
    """Return names and types that are written ``a: INT, b: STRING`` or ``a INT, b STRING``."""
    pairs: list[tuple[str, pa.DataType]] = []
    for part in _separated(inside):
        match = _FIELD.fullmatch(part)
        if match is None:
            raise QueryError(
                f"a field of STRUCT must have a name and a type, {_FORMS['STRUCT']}, got "
                f"'{part.strip()}' in {text}"
            )
        name = match["name"] or match["quoted"].replace("``", "`")
        if name.lower() in {known.lower() for known, _ in pairs}:
            raise QueryError(f"the field '{name}' of a STRUCT must be there once, got {text}")
        pairs.append((name, parse(match["type"])))
    return pairs


def _separated(text: str) -> list[str]:
    """Split at the commas that stand in no brackets."""
    depth, parts, begin = 0, [], 0
    for found in re.finditer(r"`(?:[^`]|``)*`|[<>(),]", text):
        sign = found[0]
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and depth == 0:
            parts.append(text[begin : found.start()])
            begin = found.end()
    return [*parts, text[begin:]] if text.strip() else []


def nested_name(type: pa.DataType, name: Callable[[pa.DataType], str]) -> str:
    """Return the name of a nested type in SQL, which `parse_nested` reads."""
    if is_struct(type):
        pairs = (f"{_quoted(f.name)}: {name(f.type)}" for f in fields_of(type))
        return f"STRUCT<{', '.join(pairs)}>"
    inside = ", ".join(map(name, inner_types(type)))
    return f"MAP<{inside}>" if is_map(type) else f"ARRAY<{inside}>"


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def common_nested(
    a: pa.DataType,
    b: pa.DataType,
    common: Callable[[pa.DataType, pa.DataType], pa.DataType | None],
) -> pa.DataType | None:
    """Return the nested type that holds the values of both, None when there is none.

    Fields go by their places and must have the same names, in any case; those of ``a`` stay.
    """
    if type(a) is not type(b) or not is_nested(a):
        return None
    if is_struct(a):
        names = [[f.name.lower() for f in fields_of(one)] for one in (a, b)]
        if names[0] != names[1]:
            return None
    shared = [common(x, y) for x, y in zip(inner_types(a), inner_types(b), strict=True)]
    if any(inner is None for inner in shared):
        return None
    following = iter(shared)
    return with_inner(a, lambda _: next(following))


def has_map(type: pa.DataType) -> bool:
    """Whether the type is a MAP or holds one, and so cannot be compared."""
    return is_map(type) or any(map(has_map, inner_types(type)))


def field_place(type: pa.DataType, name: str) -> int | None:
    """Return the place of a field of a STRUCT by its name, in any case."""
    found = [at for at, f in enumerate(fields_of(type)) if f.name.lower() == name.lower()]
    return found[0] if found else None
