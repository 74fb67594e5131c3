"""Golden files of plans: their plain-text format, how they are made, and the command that rewrites.

A file of ``golden_plans`` holds declarations and queries, and what EXPLAIN says of each::

    # a comment
    declare
    CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t;
    CREATE TABLE d (k STRING) USING csv OPTIONS (path '{folder}/names.csv');

    query name [lifetime=negative]
    SELECT k FROM s [RANGE 5]
    ----
    logical plan
    ...

A file of ``golden_rules`` is named after a rule of the optimizer; its expected lines are the plan
before and after this rule alone, or ``unchanged``.  ``query name beside other`` plans a query that
shares what it can with another one of the file.  ``QUERY name`` stands for one that was declared.
A block ends at an empty line.

``python -m tests.plan_runner --rewrite [files]`` fills in the expected lines.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock import cql
from penstock.algebra import Node
from penstock.catalog import Catalog
from penstock.optimizer import RULES, shared_parts
from penstock.session import Session

HERE = Path(__file__).parent
PLANS = sorted((HERE / "golden_plans").glob("*.test"))
RULE_FILES = sorted((HERE / "golden_rules").glob("*.test"))

_QUERY = re.compile(r"query\s+(\w+)(?:\s+beside\s+(\w+))?((?:\s+[\w.]+=\w+)*)")
_WHOLE = re.compile(r"; \d+ queries, \d+ operators in the whole plan$")


@dataclass
class Query:
    """One query and its expected lines; ``first`` and ``last`` bound these in the file."""

    name: str
    beside: str | None
    settings: dict[str, str]
    sql: str
    expected: list[str]
    first: int
    last: int


@dataclass
class Golden:
    """A parsed file."""

    path: Path
    lines: list[str]
    declared: str = ""
    queries: list[Query] = field(default_factory=list)

    def session(self, settings: dict[str, str] | None = None) -> Session:
        """Return a session in which everything is declared and nothing runs."""
        session = Session(settings={"shards": "2"} | (settings or {}), autostart=False)
        session.sql(self.declared.replace("{folder}", str(self.path.parent)))
        return session

    def bound(self) -> dict[str, Node]:
        """Return the plans of all queries, before any rule."""
        with self.session() as session:
            return {q.name: _bound(q.sql, session.catalog) for q in self.queries}


def _bound(sql: str, catalog: Catalog) -> Node:
    """Return the plan of a query, or of one that is declared: ``QUERY name``."""
    declared = re.fullmatch(r"QUERY (\w+)", sql)
    return catalog.queries[declared[1]].plan if declared else cql.bind_query(sql, catalog)


def read(path: Path) -> Golden:
    """Parse a golden file."""
    golden = Golden(path, path.read_text().splitlines())
    at = 0
    while at < len(golden.lines):
        line = golden.lines[at].strip()
        end = _block_end(golden.lines, at)
        if not line or line.startswith("#"):
            end = at + 1
        elif line == "declare":
            golden.declared += "\n".join(golden.lines[at + 1 : end]) + "\n"
        elif match := _QUERY.fullmatch(line):
            bar = golden.lines.index("----", at, end)
            settings = dict(word.split("=") for word in match[3].split())
            sql, expected = golden.lines[at + 1 : bar], golden.lines[bar + 1 : end]
            golden.queries.append(
                Query(match[1], match[2], settings, "\n".join(sql), expected, bar + 1, end)
            )
        else:
            raise ValueError(f"{path.name}:{at + 1}: expected declare or query, got {line!r}")
        at = end
    return golden


def _block_end(lines: list[str], at: int) -> int:
    while at < len(lines) and lines[at].strip():
        at += 1
    return at


def answers(golden: Golden) -> dict[str, list[str]]:
    """Return the lines that should stand under each query of a file."""
    if golden.path.parent.name == "golden_rules":
        return rewritten(golden)
    return {query.name: list(explained(golden, query)) for query in golden.queries}


def explained(golden: Golden, query: Query) -> Iterator[str]:
    """Yield what EXPLAIN says, without what depends on other queries."""
    with golden.session(query.settings) as session:
        for line in session.sql(f"EXPLAIN {query.sql}").splitlines():
            if line.strip():
                yield _WHOLE.sub("", line).rstrip()


def rewritten(golden: Golden) -> dict[str, list[str]]:
    """Return, for each query, its plan before and after the rule that the file is named after."""
    rule = next(rule for rule in RULES if rule.__name__ == golden.path.stem)
    plans, found = golden.bound(), {}
    for query in golden.queries:
        plan = plans[query.name]
        others = {} if query.beside is None else {query.beside: plans[query.beside]}
        new = rule(plan, shared_parts(others | {query.name: plan}))
        before, after = (
            [line.rstrip() for line in cql.render_plan(p).splitlines()] for p in (plan, new)
        )
        change = ["unchanged"] if new == plan else ["after", *after]
        found[query.name] = ["before", *before, *change]
    return found


def rewrite(golden: Golden) -> bool:
    """Fill in the expected lines. Say if anything changed."""
    lines, true = list(golden.lines), answers(golden)
    for query in reversed(golden.queries):
        lines[query.first : query.last] = true[query.name]
    if lines == golden.lines:
        return False
    golden.path.write_text("\n".join(lines) + "\n")
    return True


def main(arguments: list[str]) -> None:
    """The command line: check, or rewrite, all files or some."""
    parser = argparse.ArgumentParser(prog="python -m tests.plan_runner")
    parser.add_argument("--rewrite", action="store_true", help="fill in the expected lines")
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    for path in options.files or [*PLANS, *RULE_FILES]:
        golden = read(path.resolve())
        if options.rewrite:
            print(f"{path.name}: {'rewritten' if rewrite(golden) else 'unchanged'}")
            continue
        found = answers(golden)
        wrong = [q.name for q in golden.queries if found[q.name] != q.expected]
        print(f"{path.name}: {', '.join(wrong) or 'ok'}")


if __name__ == "__main__":
    main(sys.argv[1:])
