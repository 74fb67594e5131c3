"""The book of deliveries: what each outlet has been given, and how a sink is asked about it.

An *outlet* is the way of one query's answers into its sink, or that of rows set aside.  A manifest
says for every outlet which batch was the last that had something for it, and of which *lineage*
that batch was: a digest of everything that led to it, which no other run and no copy of this one
shares.  A sink keeps the same beside what it holds.  So when a run starts, the two are compared:

* equal: the run goes on;
* the sink is behind: the missing batches are delivered again, if manifests still have them;
* the sink is further, or has a batch of another lineage: the checkpoint, or the sink, was brought
  back from an older copy, and going on would lose rows or give them twice.  It is refused.

Answers by the lane leave through an outlet of their own (`lane_outlet`), turn by turn.  There a
number is that of a turn, a lineage the digest of the journal after it, and what is kept is in the
journal; all else is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from penstock.errors import StateError
from penstock.runs.manifest import Manifest

NOTHING = (-1, "")
"""The batch and lineage of an outlet that was given nothing yet."""


@dataclass(frozen=True)
class Delivered:
    """What an outlet was given: its last batch, how many there were, and with how many rows.

    ``before`` are batch and lineage of the delivery before the last.  ``ended``: the query was
    dropped; another one of that name may go on from here, or begin with a new sink.
    """

    batch: int = -1
    lineage: str = ""
    batches: int = 0
    rows: int = 0
    before: tuple[int, str] = NOTHING
    ended: bool = False

    @property
    def last(self) -> tuple[int, str]:
        return self.batch, self.lineage

    def describe(self) -> dict[str, Any]:
        """As a manifest keeps it."""
        return asdict(self)

    @staticmethod
    def of(found: Mapping[str, Any] | None) -> Delivered:
        """The inverse of `describe`; nothing is known of an outlet that is new."""
        return Delivered() if found is None else Delivered(**{**found, "before": _pair(found)})


def _pair(found: Mapping[str, Any]) -> tuple[int, str]:
    batch, lineage = found["before"]
    return int(batch), str(lineage)


@dataclass(frozen=True)
class Held:
    """What a sink says that it holds of an outlet.

    ``shown`` is what errors call the sink.  ``lost`` are batches that it should hold, each with
    what is wrong with it.  ``repeatable``: a batch may be delivered again, however old; otherwise
    only the newest one, of which nobody can know whether it arrived.  ``unknown`` are rows of which
    the sink cannot say with which batch they came.
    """

    shown: str
    batch: int = -1
    lineage: str = ""
    lost: Mapping[int, str] = field(default_factory=dict)
    repeatable: bool = True
    unknown: int = 0

    @property
    def last(self) -> tuple[int, str]:
        return self.batch, self.lineage


def reject_outlet(stream: str, why: str) -> str:
    """Return the outlet of a stream's rows that are set aside."""
    return f"{stream}-{why}"


LANE = "~lane"
"""How the outlet of a query's answers by the lane ends; no name of a query does."""


def lane_outlet(query: str) -> str:
    """Return the outlet of the answers that a query gets by the lane, turn by turn."""
    return query + LANE


def is_lane(outlet: str) -> bool:
    """Whether an outlet is one of the lane."""
    return outlet.endswith(LANE)


def partner(outlet: str) -> str:
    """Return the other outlet of a query: it has one for batches, and may have one for turns."""
    return outlet.removesuffix(LANE) if is_lane(outlet) else lane_outlet(outlet)


def shown_delivery(outlet: str, number: int) -> str:
    """Return what errors call a delivery: a batch of a query, or a turn."""
    return f"{_unit(outlet)} {number} of query '{outlet.removesuffix(LANE)}'"


def _unit(outlet: str) -> str:
    return "turn" if is_lane(outlet) else "batch"


def _units(outlet: str) -> str:
    return "turns" if is_lane(outlet) else "batches"


def rows_of(manifest: Manifest) -> dict[str, int]:
    """Return the outlets that a batch has something for, with the rows; a view may have none."""
    rows: dict[str, int] = {}
    for result in manifest.results:
        if result["rows"] or "as_of" in result:
            rows[result["query"]] = rows.get(result["query"], 0) + result["rows"]
    for reject in manifest.rejects:
        name = reject_outlet(reject["stream"], reject["why"])
        rows[name] = rows.get(name, 0) + reject["rows"]
    return rows


def entered(
    book: Mapping[str, Delivered], manifest: Manifest, dropped: Iterable[str] = ()
) -> dict[str, Delivered]:
    """Return the book after a batch. Outlets of dropped queries stay in it, as ended."""
    after = dict(book)
    for name in dropped:
        if name in after:
            after[name] = replace(after[name], ended=True)
    for name, rows in rows_of(manifest).items():
        known = after.get(name, Delivered())
        after[name] = Delivered(
            manifest.batch, manifest.lineage, known.batches + 1, known.rows + rows, known.last
        )
    return after


def book_of(manifest: Manifest) -> dict[str, Delivered]:
    """Return the book that a manifest holds."""
    return {name: Delivered.of(found) for name, found in manifest.outlets.items()}


def deliveries(name: str, retained: Sequence[Manifest]) -> dict[int, Delivered]:
    """Return the deliveries of an outlet that manifests still have, by batch."""
    found = {}
    for manifest in retained:
        entry = Delivered.of(manifest.outlets.get(name))
        if entry.batch == manifest.batch:
            found[manifest.batch] = entry
    return found


def missing(name: str, held: Held, told: Delivered, kept: Mapping[int, Delivered]) -> list[int]:
    """Return the batches, or turns, that an outlet's sink must be given again, oldest first.

    ``told`` is what the outlet was given, ``kept`` are the deliveries that can be made again.  What
    cannot be made good is refused.
    """
    if held.batch > told.batch:
        raise StateError(_foreign(name, held, told))
    if held.unknown and held.last != told.last:
        what = f"it has {held.unknown} rows, but nothing says which {_units(name)} they are of"
        raise StateError(_lost(held, what))
    batches = set()
    for batch, why in held.lost.items():
        if batch not in kept and batch > told.batch:
            raise StateError(
                f"there must be nothing else than what was delivered in {held.shown}, but {why}, "
                f"and {_unit(name)} {batch} never was; nothing was changed: take it away"
            )
        if batch not in kept:
            told_kept = f"the checkpoint keeps only {_span(name, kept)}"
            raise StateError(_lost(held, f"{why}, and {told_kept}"))
        batches.add(batch)
    if held.last != told.last:
        if held.batch >= told.batch:
            raise StateError(_foreign(name, held, told))
        batches |= set(_behind(name, held, told, kept))
    return sorted(batches)


def _behind(name: str, held: Held, told: Delivered, kept: Mapping[int, Delivered]) -> list[int]:
    """Return the batches after what a sink holds: all of them must be kept."""
    found: list[int] = []
    at = told
    while at.batch in kept:
        found.append(at.batch)
        if at.before == held.last:
            if len(found) > 1 and not held.repeatable:
                break
            return found
        at = kept.get(at.before[0], Delivered())
    had = "nothing" if held.batch < 0 else f"{_units(name)} up to {held.batch}"
    raise StateError(
        _lost(
            held,
            f"it must hold {told.batches} {_units(name)} of '{name}' with {told.rows} rows, up to "
            f"{_unit(name)} {told.batch}, but it holds {had}, and the checkpoint keeps only "
            f"{_span(name, kept)}",
        )
    )


def _span(name: str, kept: Mapping[int, Delivered]) -> str:
    if not kept:
        return f"{_units(name)} that have nothing for it"
    first, last = min(kept), max(kept)
    return f"{_unit(name)} {first}" if first == last else f"{_units(name)} {first} to {last}"


def _lost(held: Held, what: str) -> str:
    return (
        f"what was delivered is missing in {held.shown}: {what}. Nothing was changed: bring it "
        f"back from a copy, DROP the query and create it again with a new sink, or go on with what "
        f"comes from now on by --allow-change"
    )


def _foreign(name: str, held: Held, told: Delivered) -> str:
    known = "nothing" if told.batch < 0 else f"{_units(name)} up to {told.batch}"
    got = (
        f"{_units(name)} up to {held.batch}"
        if held.batch > told.batch
        else f"a {_unit(name)} {held.batch} of another run or of a copy"
    )
    lost = (
        f"its journal lost turns up to {held.batch}"
        if is_lane(name)
        else f"lost its manifests up to {held.batch:010d}.json"
    )
    return (
        f"{held.shown} must hold what this checkpoint has delivered of '{name}', {known}, but it "
        f"holds {got}: the checkpoint was brought back from an older copy, was continued "
        f"elsewhere, or {lost}. Going on would lose rows "
        f"or give them twice. Nothing was changed: bring the right files back, take the "
        f"sink back to where the checkpoint is by penstock checkpoint rewind-sink (not a view in a "
        f"database: bring that back by its own means), or give the query a new sink and "
        f"--allow-change"
    )
