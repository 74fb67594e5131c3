"""The book of queries: which there are, since when each sees its streams, and the plan of all.

Everything that plans asks the book: the pipeline on Spark, the rig, and EXPLAIN, so what is shown
is what runs.  Its rules:

* A query takes part from the next batch on.  It sees its streams from the first instant of which
  nothing has been seen yet (``since``), so that its answer does not begin in the middle of one.
* Queries that begin at the same instant share what their plans have in common.  One that begins
  later has state of its own; only the streams are read once for all.
* What a query shares is decided when it begins (``shared``) and stays, whatever comes and goes:
  state is kept under the digest of what it belongs to, so the plan of a query must not change.
* A join that differs from others only in its windows is made together with them (``parts``), also
  if they began before (`penstock.physical.shared_windows`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from penstock import algebra
from penstock.algebra import Node
from penstock.errors import StateError
from penstock.model import MIN_TIME
from penstock.optimizer import optimize_alone, shared_digests
from penstock.optimizer.nameless import canonical
from penstock.optimizer.window_joins import Part
from penstock.physical.at_once import at_once
from penstock.physical.early_plan import early_plan, kept_name
from penstock.physical.eras import Era, Eras, begins, used
from penstock.physical.lane_plan import has_priorities
from penstock.physical.plan import PhysicalPlan
from penstock.physical.planner import BY_PROBING, Query, plan
from penstock.physical.replacing import broken, parts_that_go_on
from penstock.physical.shared_windows import Member, Parts, cores, settle
from penstock.schedule.board import Promise
from penstock.settings import Settings


@dataclass
class BookedQuery:
    """A query of the book: its plan before the rules, and how its answer is delivered.

    ``keep`` is for how long the past of a kept relation stays, ``promise`` how soon it wants its
    answers, ``early`` the sink of its early rows.  ``since`` is a time of its streams
    (None: it sees everything), ``batch`` the first batch that it took part in (None: it has not
    begun), ``shared`` are the digests of what it had in common with others then, ``late`` how many
    rows of its streams had come too late before.  ``parts`` are its joins that queries with other
    windows share.
    """

    name: str
    node: Node
    mode: str
    keep: int = 0
    promise: Promise = field(default_factory=Promise)
    since: int | None = None
    batch: int | None = None
    shared: list[str] = field(default_factory=list)
    paused: bool = False
    late: dict[str, int] = field(default_factory=dict)
    parts: Parts = field(default_factory=dict)
    answered: int | None = None
    """The newest time that the lane had answered for its predecessor of the same name, if any."""
    early: str | None = None
    replaces: bool = False
    """It may take the place of another text of its name (OR REPLACE)."""
    parts_close: bool = False
    """Punctuations may close groups of its streams for ever."""
    before: Before | None = None
    """The text whose place it takes."""
    eras: Eras = ()
    """Those of the texts before, if some part of them goes on; its own is the first."""

    @cached_property
    def streams(self) -> frozenset[str]:
        """The streams that it reads."""
        return algebra.streams_of(self.node)

    @property
    def is_row_by_row(self) -> bool:
        """Whether its rows are answered one by one as they come, and wait for nothing."""
        urgent = has_priorities(self.node)
        return not urgent and at_once(canonical(self.node), self.mode) is not None

    @cached_property
    def signature(self) -> str:
        """What names its plan, mode and past, whatever the settings."""
        alone = Query("", self.node, self.mode, keep=self.keep)
        return plan([alone], Settings(), {}).nodes[-1].digest

    def outputs(self, node: Node, rules: bool) -> list[Query]:
        """Return what the planner is given: its plan after the rules, for each way it leaves."""
        since, began = self.since, self.batch or 0
        known = cores(self.node, self.parts, rules)
        made = [
            Query(
                self.name, node, self.mode, since, began, self.keep, self.promise, known, self.eras
            )
        ]
        if self.early is not None:
            for number, kept in enumerate(early_plan(self.node).kept):
                alone = optimize_alone(kept, [], {}, rules)
                made.append(Query(kept_name(self.name, number), alone, "kept", since, began))
        return made

    def describe(self, output: str | None) -> dict[str, Any]:
        """Return its entry in a manifest; ``output`` is the digest of its output node."""
        return {
            "node": output,
            "plan": self.signature,
            "since": self.since,
            "batch": self.batch,
            "shared": self.shared,
            "paused": self.paused,
            "early": self.early,
            "late": self.late,
            "parts": {name: part.describe() for name, part in self.parts.items()},
            "eras": [era.describe() for era in self.eras],
        }

    def go_on(self, known: Mapping[str, Any]) -> None:
        """Go on as a manifest knows it."""
        self.since, self.batch = known["since"], known["batch"]
        self.shared, self.paused = known["shared"], known["paused"]
        self.late = dict(known["late"])
        self.parts = {name: Part.of(told) for name, told in known.get("parts", {}).items()}
        self.eras = tuple(Era.of(told) for told in known.get("eras", ()))

    def goes_on(self, now: Moment) -> bool:
        """Whether it took part before the next batch."""
        return self.batch is not None and self.batch < now.batch

    def take_over(self, before: BookedQuery) -> None:
        """Go on as a query of the same plan did."""
        self.since, self.batch, self.shared = before.since, before.batch, before.shared
        self.paused, self.late, self.parts = before.paused, before.late, before.parts
        self.answered, self.before, self.eras = before.answered, before.before, before.eras

    def as_before(self) -> Before:
        """Return what is known of it when another text takes its place."""
        eras = self.eras or (Era(self.since, self.batch or 0),)
        batch = None if self.paused else self.batch
        return Before(batch, tuple(self.shared), eras, self.before)


@dataclass(frozen=True)
class Before:
    """A text whose place another one takes: its first batch, None if nothing of it runs, and eras.

    ``earlier`` is the one whose place it took itself, which counts if it has not begun.
    """

    batch: int | None
    shared: tuple[str, ...]
    eras: Eras
    earlier: Before | None = None

    def begun(self, batch: int) -> Before | None:
        """Return the newest text, of it and those before, that began before a batch."""
        found: Before | None = self
        while found is not None and (found.batch is None or found.batch >= batch):
            found = found.earlier
        return None if found is None else replace(found, earlier=None)


@dataclass(frozen=True)
class Moment:
    """What planning depends on besides the queries: how things stand between two batches.

    ``batch`` is the next one, ``times`` the largest time that each stream has brought, ``numbers``
    those given to operators before, ``measured`` results per row of the joins that run, ``late``
    the late rows of each stream, ``beats`` its heartbeat.
    """

    batch: int = 0
    times: Mapping[str, int] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)
    late: Mapping[str, int] = field(default_factory=dict)
    beats: Mapping[str, int] = field(default_factory=dict)

    def first_unseen(self, streams: Iterable[str]) -> int | None:
        """Return the first instant of which no element has been seen, None if there was none."""
        latest = max((self.times.get(s, MIN_TIME) for s in streams), default=MIN_TIME)
        return None if latest == MIN_TIME else latest + 1


class QueryBook:
    """All queries that run together, by name.

    ``known`` are the queries of the checkpoint in the folder ``place``, as its manifest describes
    them: one that is added goes on as it was.  Changes take the ``lock``, which a batch holds.
    """

    def __init__(
        self,
        config: Settings,
        known: Mapping[str, Mapping[str, Any]] | None = None,
        place: str = "",
    ) -> None:
        self.config = config
        self.queries: dict[str, BookedQuery] = {}
        self.lock = threading.RLock()
        self._known = dict(known or {})
        self._place = place
        self._plan: PhysicalPlan | None = None

    def add(self, query: BookedQuery) -> None:
        """Add a query, which takes part from the next batch on."""
        with self.lock:
            self.check(query)
            running, known = self.queries.get(query.name), self._known.get(query.name)
            if running is not None and running.signature == query.signature:
                query.take_over(running)
            elif running is not None:
                query.before = running.as_before()
                self._known.pop(query.name, None)
            elif known is not None and known["plan"] != query.signature:
                old = BookedQuery(query.name, query.node, query.mode)
                old.go_on(known)
                query.before = old.as_before()
                del self._known[query.name]
            elif known is not None:
                query.go_on(known)
            self.queries[query.name] = query
            self._plan = None

    def check(self, query: BookedQuery) -> None:
        """Check that a query which the checkpoint knows is still the same, or may be replaced."""
        if self.replaces(query) and not query.replaces:
            raise StateError(
                f"query '{query.name}' must be the one that the checkpoint {self._place} was made "
                f"with, but its text or sink mode has changed, or the version of Penstock that "
                f"plans it; if that is wanted, write CREATE OR REPLACE QUERY: what fits goes on, "
                f"and the rest begins anew; or use another --checkpoint"
            )

    def replaces(self, query: BookedQuery) -> bool:
        """Whether a query has another text than the one of its name in the checkpoint."""
        known = self._known.get(query.name)
        return known is not None and known["plan"] != query.signature

    def drop(self, name: str) -> None:
        """Remove a query, whether it was added or is only known to the checkpoint."""
        with self.lock:
            self.queries.pop(name, None)
            self._known.pop(name, None)
            self._plan = None

    def pause(self, name: str) -> None:
        """Leave a query out of the plan; nothing of it is kept but its name."""
        with self.lock:
            self.queries[name].paused = True
            self._plan = None

    def resume(self, name: str) -> None:
        """Take a paused query in again: it begins anew with the elements that come from now on."""
        with self.lock:
            query = self.queries[name]
            if query.paused:
                query.paused, query.batch, query.since = False, None, None
                query.before = None
                self._plan = None

    def missing(self) -> list[str]:
        """Return the queries that the checkpoint knows and that nobody has added or dropped."""
        return [name for name in self._known if name not in self.queries]

    @property
    def streams(self) -> frozenset[str]:
        """The streams that any query reads, paused ones too."""
        return frozenset().union(*(q.streams for q in self.queries.values()))

    def copy(self) -> QueryBook:
        """Return a book in which changes can be tried."""
        book = QueryBook(self.config, self._known, self._place)
        book.queries = {name: replace(query) for name, query in list(self.queries.items())}
        return book

    def beginning(self, batch: int) -> set[str]:
        """Return the names of the queries for which a batch is the first."""
        return {n for n, q in self.queries.items() if not q.paused and q.batch in (None, batch)}

    def plan(self, moment: Moment) -> PhysicalPlan:
        """Settle the queries that begin, and return the plan of all that are not paused.

        It is made when it is first needed after a change, and stays until the next one.
        """
        with self.lock:
            if self._plan is None:
                active = {n: q for n, q in self.queries.items() if not q.paused}
                fresh = self.beginning(moment.batch)
                self._settle(active, fresh, moment)
                made, outputs = self._planned(active, moment)
                lost = broken(made, moment.numbers)
                again = [n for n in fresh if any(out.name in lost for out in outputs[n])]
                if again:  # beside the others a part got another plan: all of it begins anew
                    for name in again:
                        active[name].eras = ()
                    made, outputs = self._planned(active, moment)
                self._check_plan(made, {o.name for n in fresh for o in outputs[n]}, moment)
                self._plan = made
            return self._plan

    def _planned(
        self, active: Mapping[str, BookedQuery], moment: Moment
    ) -> tuple[PhysicalPlan, dict[str, list[Query]]]:
        """Return the plan of all queries, and what of each was planned."""
        rules = self.config.rules
        outputs = {n: q.outputs(self.optimized(n), rules) for n, q in active.items()}
        together = [out for some in outputs.values() for out in some]
        return plan(together, self.config, dict(moment.numbers), moment.measured), outputs

    def _check_plan(self, made: PhysicalPlan, fresh: set[str], moment: Moment) -> None:
        """Check that queries which run already find the state of all their operators."""
        for at, users in made.users().items():
            if users - fresh and made.nodes[at].digest not in moment.numbers:
                raise StateError(
                    f"query '{sorted(users - fresh)[0]}' must be planned as the checkpoint "
                    f"{self._place} was made with, but it would get another plan; use the same "
                    f"settings, such as rules, panes and join.method, and the same version of "
                    f"Penstock, or another --checkpoint"
                )

    def _settle(self, active: Mapping[str, BookedQuery], names: set[str], moment: Moment) -> None:
        """Decide of the queries that begin since when they see their streams, and what they share.

        A query that was settled for a batch which has not been run is settled again.
        """
        fresh = {name: active[name] for name in names}
        for query in fresh.values():
            query.since = moment.first_unseen(query.streams)
            if query.answered is not None:
                query.since = max(query.since or MIN_TIME, query.answered + 1)
            query.batch = moment.batch
            query.late = {name: moment.late.get(name, 0) for name in sorted(query.streams)}
            query.parts, query.eras = {}, ()
            self._settle_replaced(query, moment)
        for since in {q.since for q in fresh.values()}:
            peers = {n: q.node for n, q in active.items() if q.since == since}
            for name, digests in shared_digests(peers).items():
                if name in fresh and not fresh[name].eras:
                    fresh[name].shared = digests
        if self.config.join_windows == "shared" and self.config.join_method in BY_PROBING:
            self._settle_windows(active, fresh)

    def _settle_replaced(self, query: BookedQuery, moment: Moment) -> None:
        """Decide what of the text before goes on in a query that takes its place."""
        before = None if query.before is None else query.before.begun(moment.batch)
        query.before = before
        if before is None or has_priorities(query.node):
            return
        if query.is_row_by_row:
            query.since = None  # each row is answered by the text that is there when it comes
            return
        since = begins(query.since, (moment.beats.get(s, MIN_TIME) for s in query.streams))
        if since is None:
            return
        kept: frozenset[str] = frozenset()
        for shared in ((), before.shared):
            tried = replace(query, shared=list(shared), batch=moment.batch)
            (one, *_) = tried.outputs(
                optimize_alone(query.node, shared, {}, self.config.rules), self.config.rules
            )
            found = parts_that_go_on(
                replace(one, eras=before.eras),
                self.config,
                moment.numbers,
                moment.measured,
                query.parts_close,
            )
            if len(found) > len(kept):
                kept, query.shared = found, list(shared)
        if kept:
            query.since = since
            query.eras = used((Era(since, moment.batch, kept), *before.eras))

    def _settle_windows(
        self, active: Mapping[str, BookedQuery], fresh: Mapping[str, BookedQuery]
    ) -> None:
        """Decide of the queries that begin which joins they share although windows differ."""
        members = {
            name: Member(q.node, q.since, q.shared, None if name in fresh else q.parts)
            for name, q in active.items()
            if not has_priorities(q.node)  # the lane looks into joins of single queries
            and not q.eras  # its joins are settled
        }
        for name, parts in settle(members, self.config.rules).items():
            fresh[name].parts = parts

    def optimized(self, name: str) -> Node:
        """Return the plan of a query after the rules; it stays the same while the query runs."""
        query = self.queries[name]
        return optimize_alone(query.node, query.shared, query.parts, self.config.rules)
