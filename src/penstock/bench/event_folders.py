"""Folders of made events: each says in a note what it holds, and appears when it is whole."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError


def held_note(place: Path, name: str, what: str) -> dict[str, Any]:
    """Return the note of a folder; refuse one that holds something else than these events."""
    try:
        held = json.loads((place / name).read_text())
    except (OSError, ValueError):
        held = None
    if not isinstance(held, dict):
        raise ConfigError(
            f"{place} must be a folder of {what}, or must not exist yet; it is something else, so "
            "nothing was changed; give another folder"
        )
    return held


def refuse(place: Path, note: Mapping[str, Any], held: Mapping[str, Any]) -> None:
    """Refuse a folder that holds other events of this kind."""
    raise ConfigError(
        f"{place} must hold the events that are asked for, {note}, but it holds {held}; remove "
        "it, or give another folder"
    )


@contextmanager
def appearing(place: Path, name: str, note: Mapping[str, Any]) -> Iterator[Path]:
    """Give a folder to write into, which gets its name by one rename when all is written."""
    place.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        making.chmod(0o755)
        yield making
        (making / name).write_text(json.dumps(note, indent=1) + "\n")
        os.rename(making, place)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
