"""``python -m tests.attack``: damage every kind of file that a run leaves, in every way.

A run with every kind of stream and sink is stopped in the middle.  For each kind of file in its
checkpoint, spool and sinks, the newest file and the one before it (as if one more batch had been
run since the damage) are cut, altered, lost, mixed up.  Then the run goes on.  It must end with the
exact answers, or be refused with the name of the file; and a run that is refused deletes nothing.

The cases are generated from what lies in the folders.  Most are judged by opening checkpoint and
sinks, without Spark; what is accepted there is run to its end.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from penstock.errors import InternalError, PenstockError
from penstock.runs.checkpoint import Checkpoint
from penstock.runs.deliveries import Delivered, book_of, deliveries, missing
from penstock.session.outlets import ways
from penstock.sinks import SinkRequest, open_sink
from penstock.spark.engine import own_session
from tests.copies import SETTINGS, Life

NOT_OURS = {
    "answers.db": "a database looks after its own bytes; SQLite has no checksums of rows",
}
"""Kinds of files whose single bytes nobody but their owner can check."""


@dataclass(frozen=True)
class Case:
    """A file, what is done to it, and what stands beside it: an older one of its kind."""

    kind: str
    path: str
    damage: str
    age: int

    def __str__(self) -> str:
        older = ", one batch later" if self.age else ""
        return f"{self.damage}: {self.path}{older}"


def kind_of(name: str) -> str:
    """Return the kind of a file: its name without numbers."""
    name = re.sub(r"[0-9a-f]{16,}", "*", name)
    return re.sub(r"\d+", "#", name)


def cases(late: Life, early: Life) -> list[Case]:
    """Return all cases: every kind of file, the newest and the one before, every damage."""
    kinds: dict[str, list[str]] = {}
    for name in late.tree():
        kinds.setdefault(kind_of(name), []).append(name)
    kinds["checkpoint/lock"] = ["checkpoint/lock"]
    kinds["checkpoint/epoch"] = ["checkpoint/epoch"]
    found = []
    for kind, names in sorted(kinds.items()):
        ordered = sorted(names, key=_number)
        for age, name in enumerate(reversed(ordered[-2:])):
            for damage in DAMAGES:
                if damage == "older" and _older(late, early, name) is None:
                    continue
                if damage == "swapped" and _neighbour(late, name) is None:
                    continue
                if damage == "folder missing" and (age or "/" not in name):
                    continue
                if damage == "flipped" and kind in NOT_OURS:
                    continue
                found.append(Case(kind, name, damage, age))
    return found


def _number(name: str) -> tuple[list[int], str]:
    return [int(n) for n in re.findall(r"\d+", re.sub(r"[0-9a-f]{16,}", "", name))], name


def _neighbour(life: Life, name: str) -> str | None:
    """Return the file of the same kind that comes before, or after the first one."""
    alike = sorted((n for n in life.tree() if kind_of(n) == kind_of(name)), key=_number)
    at = alike.index(name) if name in alike else -1
    if len(alike) < 2 or at < 0:
        return None
    return alike[at - 1] if at else alike[1]


def _older(life: Life, early: Life, name: str) -> Path | None:
    """Return what the file was in an older copy, or else an older file of its kind."""
    before = early.folder / name
    if before.is_file() and before.read_bytes() != (life.folder / name).read_bytes():
        return before
    neighbour = _neighbour(life, name)
    return None if neighbour is None else life.folder / neighbour


def _cut(path: Path, life: Life, early: Life, name: str) -> None:
    os.truncate(path, 0)


def _halve(path: Path, life: Life, early: Life, name: str) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip(path: Path, life: Life, early: Life, name: str) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _delete(path: Path, life: Life, early: Life, name: str) -> None:
    path.unlink()


def _replace(path: Path, life: Life, early: Life, name: str) -> None:
    older = _older(life, early, name)
    assert older is not None
    path.write_bytes(older.read_bytes())


def _swap(path: Path, life: Life, early: Life, name: str) -> None:
    neighbour = _neighbour(life, name)
    assert neighbour is not None
    other = life.folder / neighbour
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def _append(path: Path, life: Life, early: Life, name: str) -> None:
    with open(path, "ab") as file:
        file.write(b"\0garbage\n")


def _lose_folder(path: Path, life: Life, early: Life, name: str) -> None:
    shutil.rmtree(path.parent)


DAMAGES: dict[str, Callable[[Path, Life, Life, str], None]] = {
    "cut to nothing": _cut,
    "cut in half": _halve,
    "flipped": _flip,
    "deleted": _delete,
    "older": _replace,
    "swapped": _swap,
    "garbage added": _append,
    "folder missing": _lose_folder,
}


class Attack:
    """A run that is copied and damaged again and again."""

    def __init__(self, spark: Any, root: Path) -> None:
        self.spark = spark
        life = Life.begin(root)
        life.run(spark, until=3)
        self.early = life.copy("early")
        life.run(spark, until=life.batch() + 4)
        self.late = life.copy("late")
        life.run(spark)
        self.answers = life.answers()
        assert all(self.answers.values()), "every sink must have got something"

    def cases(self) -> list[Case]:
        """Return all cases."""
        return cases(self.late, self.early)

    def damaged(self, case: Case) -> Life:
        """Return a copy of the run with the damage done."""
        life = self.late.copy("damaged")
        DAMAGES[case.damage](life.folder / case.path, life, self.early, case.path)
        return life

    def refusal(self, case: Case, life: Life) -> bool:
        """Whether opening checkpoint and sinks refuses; it must name the file, and leave all."""
        before = life.tree()
        try:
            self._open(life)
        except PenstockError as error:
            self._check_named(case, life, error)
            after = life.tree()
            gone = [name for name in before if after.get(name) != before[name]]
            assert not gone, f"{case}: it was refused, but {gone} changed"
            return True
        return False

    def _open(self, life: Life) -> None:
        with life.session(None) as session:
            checkpoint = Checkpoint(str(life.checkpoint), retain=SETTINGS["retain.manifests"])
            checkpoint.lock()
            try:
                retained = checkpoint.open()
                book = book_of(retained[-1]) if retained else {}
                for handle in session.handles():
                    for way in ways(session.catalog, handle.definition, handle.mode):
                        sink = open_sink(
                            session.catalog.get("sink", way.sink or ""),
                            SinkRequest(
                                way.outlet,
                                way.mode,
                                way.schema,
                                ledger=life.checkpoint / "delivered",
                                callback=life._call,
                                run=checkpoint.run,
                            ),
                        )
                        try:
                            held = sink.held()
                            if held is not None:
                                told = book.get(way.outlet, Delivered())
                                missing(way.outlet, held, told, deliveries(way.outlet, retained))
                        finally:
                            sink.close()
            finally:
                checkpoint.unlock()

    def run(self, case: Case, life: Life) -> str:
        """Run what was accepted: the answer is exact, or it is refused by name after all."""
        before = life.tree()
        try:
            life.run(self.spark)
        except PenstockError as error:
            self._check_named(case, life, error)
            names = {Path(name).name for name in life.tree()}
            if life.batch() == self.late.batch():  # otherwise batches have been swept as usual
                for name in before:
                    assert Path(name).name in names, f"{case}: {name} was deleted"
            return "refused while running"
        found = life.answers()
        for name, expected in self.answers.items():
            assert found[name] == expected, (
                f"{case}: {name} lost {expected - found[name]}, has too much "
                f"{found[name] - expected}"
            )
        return "exact"

    def _check_named(self, case: Case, life: Life, error: PenstockError) -> None:
        told = str(error)
        path = life.folder / case.path
        names = {path.name, str(path.parent), path.name.removeprefix(".").removesuffix(".crc")}
        if case.damage in ("swapped", "older"):
            names.add(Path(_neighbour(self.late, case.path) or case.path).name)
        if not life.checkpoint.exists() or path.parent == life.checkpoint:
            names.add(str(life.folder))  # all of the checkpoint is gone: its sinks say so
        assert any(name in told for name in names), f"{case}: the file is not named in: {told}"
        assert not isinstance(error, InternalError), f"{case}: {told}"


def judged(attack: Attack, todo: list[Case]) -> Iterator[tuple[Case, str]]:
    """Yield the verdict on each case."""
    for case in todo:
        life = attack.damaged(case)
        verdict = "refused" if attack.refusal(case, life) else attack.run(case, life)
        yield case, verdict


def main() -> None:
    """Run all cases; a failure is printed and counted."""
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    console = Console()
    root = Path(tempfile.mkdtemp(prefix="penstock-attack-"))
    counts: Counter[tuple[str, str]] = Counter()
    failed = []
    try:
        attack = Attack(own_session(None, Life.begin(root / "x").session(None).config), root / "y")
        todo = [case for case in attack.cases() if only in str(case)]
        console.print(f"attack: {len(todo)} cases on {len({c.kind for c in todo})} kinds of files")
        with Progress(console=console) as progress:
            bar = progress.add_task("", total=len(todo))
            for case in todo:
                progress.update(bar, description=case.damage)
                try:
                    for _, verdict in judged(attack, [case]):
                        counts[case.damage, verdict] += 1
                except AssertionError as error:
                    failed.append(str(error))
                    console.print(str(error), markup=False, highlight=False)
                    counts[case.damage, "FAILED"] += 1
                progress.advance(bar)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    verdicts = sorted({verdict for _, verdict in counts})
    table = Table("damage", *verdicts)
    for damage in DAMAGES:
        table.add_row(damage, *(str(counts[damage, verdict]) for verdict in verdicts))
    console.print(table)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
