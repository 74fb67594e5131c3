"""The columns of streams and tables that list none: those they had when the checkpoint began."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property

from penstock.asking.checkpoints import CheckpointView
from penstock.catalog import Catalog
from penstock.model import Schema
from penstock.session.starting import newest_manifest
from penstock.sources.found_schemas import found_schema, known_schema


class KnownSchemas:
    """Finds columns in files, unless the checkpoint says which there were."""

    def __init__(self, checkpoint: str | os.PathLike[str] | None) -> None:
        self._checkpoint = checkpoint

    def __call__(self, kind: str, name: str, format: str, options: Mapping[str, str]) -> Schema:
        known = known_schema(self._then.of_kind(kind).get(name.lower()), format)
        return known or found_schema(kind, name, format, options)

    @cached_property
    def _then(self) -> Catalog:
        """What was declared when the newest batch was committed."""
        newest = newest_manifest(self._checkpoint)
        if newest is None or self._checkpoint is None:
            return Catalog()
        return CheckpointView(self._checkpoint).declared(newest).catalog
