"""A checkpoint that is only read: one-time queries beside its owner, or when nobody runs on it.

The newest manifest says which relations are kept and where their runs lie; a file beside the runs
says what was declared when the batch was committed.  A session asks its own checkpoint in the same
way, so that a question shares no lock with the batch that is under way.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import pyarrow as pa

from penstock.asking.encoding import Declared, declared_in
from penstock.asking.onetime import READABLE, HeldRelation, Snapshot, TableReader, answer
from penstock.catalog import StreamDef, folder_name
from penstock.cql.binding.once import bind_question, parse_question
from penstock.cql.grammar.syntax import Parsed
from penstock.cql.render import in_timestamps, time_text
from penstock.errors import StateError
from penstock.expr.own import allow
from penstock.model import INF, MIN_TIME
from penstock.runs.files import make_folder
from penstock.runs.manifest import Manifest, digest_of
from penstock.runs.reading import CheckpointReader
from penstock.settings import Settings
from penstock.sources.table_formats import whole_table
from penstock.sources.writer import StreamWriter, check_pushed


class CheckpointView:
    """A checkpoint that is only read, while whoever owns it runs or when nobody does.

    It takes no lock, writes nothing, and starts neither Spark nor Java.  Each question is answered
    from the newest batch that is committed when it is asked.  Only a `writer` adds something: rows.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        tables: TableReader = whole_table,
        config: Settings | None = None,
    ) -> None:
        self._reader = CheckpointReader(folder)
        self._tables = tables
        self._config = config or Settings()
        self._known: tuple[str, Declared] | None = None

    def query(self, text: str) -> Snapshot:
        """Answer a SELECT, which may say AS OF a time."""
        return self.ask(parse_question(text))

    def ask(self, parsed: Parsed, declared: Declared | None = None) -> Snapshot:
        """Answer a parsed SELECT, by what is ``declared`` now or was when the batch ended."""

        def work(manifest: Manifest) -> Snapshot:
            then = self.declared(manifest)
            now = declared or then
            question = bind_question(parsed, now.catalog, now.plans)
            return answer(
                question,
                now,
                _held(manifest, then),
                self._reader.runs,
                self._tables,
                self._config,
                manifest.batch,
            )

        found = self._reader.read(work)
        if found is not None:
            return found
        if declared is None:
            raise self._empty()
        question = bind_question(parsed, declared.catalog, declared.plans)
        nothing: list[HeldRelation] = []
        return answer(
            question, declared, nothing, self._reader.runs, self._tables, self._config, None
        )

    def relations(self) -> pa.Table:
        """Return what can be read: names, and from when to when."""

        def work(manifest: Manifest) -> list[HeldRelation]:
            return _held(manifest, self.declared(manifest))

        held = self._reader.read(work)
        if held is None:
            raise self._empty()
        spans = [_readable(h, in_timestamps(h.plan)) for h in held]
        return pa.table(
            [
                pa.array(column, pa.string())
                for column in (
                    [h.name for h in held],
                    [first for first, _ in spans],
                    [last for _, last in spans],
                    [", ".join(h.plan.schema.names) for h in held],
                )
            ],
            names=["relation", "from", "to", "columns"],
        )

    def writer(self, stream: str) -> StreamWriter:
        """Return the writing end of a memory stream: whoever runs on the checkpoint gets the rows.

        They come as those that its own program pushes.
        """
        declared = self._reader.read(self.declared)
        if declared is None:
            raise self._empty()
        definition: StreamDef = declared.catalog.get("stream", stream)
        check_pushed(definition)
        folder = self._reader.folder / "spool" / folder_name(definition.name)
        make_folder(folder.parent)
        return StreamWriter(definition, str(folder), self._config.fsync)

    def declared(self, manifest: Manifest) -> Declared:
        """Return what was declared when a batch was committed."""
        place = manifest.catalog
        if not place:
            raise StateError(
                f"the checkpoint {self._reader.folder} must say what is declared, but it was made "
                f"by an earlier version of Penstock; run one more batch on it"
            )
        known = self._known
        if known is None or known[0] != place["file"]:
            data = self._reader.runs([place["file"]]).bytes(place)
            if digest_of(data) != place["digest"]:
                raise StateError(
                    f"the file {self._reader.segments / place['file']} must be as it was when "
                    f"batch {manifest.batch} was committed, but it was altered; bring it back from "
                    f"a copy"
                )
            known = self._known = (place["file"], declared_in(data))
        return known[1]

    def _empty(self) -> StateError:
        return StateError(
            f"a checkpoint must have a committed batch to be read, but {self._reader.folder} has "
            f"none; is it the folder that was given as --checkpoint?"
        )


def open_checkpoint(
    folder: str | os.PathLike[str], functions: Iterable[str] = ()
) -> CheckpointView:
    """Open the checkpoint of a session, here or in another process, for one-time queries.

    ``functions`` are the places of functions of your own, such as 'module:name', that may be
    imported when a question calls them: a checkpoint by itself imports nothing.
    """
    allow(functions)
    return CheckpointView(folder)


def _held(manifest: Manifest, declared: Declared) -> list[HeldRelation]:
    """Return the relations that a manifest keeps."""
    found = []
    for name, (plan, mode) in declared.queries.items():
        known = manifest.queries.get(name)
        if mode in READABLE and known is not None:
            digest = known.get("node")
            states = [shard[digest] for shard in manifest.states if digest in shard]
            found.append(HeldRelation(name, plan, states, known["since"], known["paused"]))
    return found


def _readable(held: HeldRelation, stamps: bool) -> tuple[str, str]:
    """Return from when to when a relation can be read, as text."""
    if not held.readable:
        return "paused" if held.paused else "nothing yet", ""
    first = "the beginning" if held.low == MIN_TIME else time_text(held.low, stamps)
    return first, "ever" if held.until == INF else time_text(held.until - 1, stamps)
