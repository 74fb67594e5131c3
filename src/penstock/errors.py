"""Every error Penstock raises, sorted by whose fault it is.

A message says what must hold, what we got and what to do.  Errors about text carry the span, so
that the command line and the shell can underline it.  Secrets are masked when an error is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from penstock.masking import holds_secret, masked, masked_script


class PenstockError(Exception):
    """The root of all errors that Penstock raises on purpose."""

    def __str__(self) -> str:
        return masked(super().__str__())

    def __repr__(self) -> str:
        return masked(super().__repr__())

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows in place of a stack trace: the sentence."""
        return [f"{type(self).__name__}: {self}"]


class QueryError(PenstockError):
    """The text of a statement, or a plan built in Python, is wrong: the user's query."""

    def __init__(self, message: str, sql: str | None = None, start: int = 0, end: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.sql = sql
        self.start = start
        self.end = end

    def __str__(self) -> str:
        message = masked(self.message)
        if self.sql is None:
            return message
        return f"{message}\n{underline(self.sql, self.start, self.end)}"


class ScriptError(QueryError):
    """Several statements of a script are wrong: ``errors`` are all mistakes, in order.

    ``unread`` statements read what has a mistake, and could not be looked at.
    """

    def __init__(self, errors: Sequence[QueryError], unread: int = 0) -> None:
        first = errors[0]
        super().__init__(first.message, first.sql, first.start, first.end)
        self.errors = tuple(errors)
        self.unread = unread

    def __str__(self) -> str:
        return "\n".join([*(str(error) for error in self.errors), self.summary])

    @property
    def summary(self) -> str:
        """How many mistakes there are."""
        told = f"{len(self.errors)} mistakes"
        if self.unread:
            told += f"; {unread_text(self.unread)}"
        return f"{told}; nothing was run"


class QueryWarning(UserWarning):
    """A statement can be run, but may not be what is meant; ``about`` is what it declares."""

    def __init__(
        self, message: str, sql: str | None = None, start: int = 0, end: int = 0, about: str = ""
    ) -> None:
        super().__init__(message)
        self.message = masked(message)
        self.sql = sql
        self.start = start
        self.end = end
        self.about = about

    def __str__(self) -> str:
        if self.sql is None:
            return self.message
        return f"{self.message}\n{underline(self.sql, self.start, self.end)}"


def unread_text(count: int) -> str:
    """Say how many statements could not be looked at because of the mistakes of others."""
    if count == 1:
        return "1 statement reads what has a mistake, and was not looked at"
    return f"{count} statements read what has a mistake, and were not looked at"


class DataError(PenstockError):
    """A row, a file or a value does not hold what was declared: the user's data."""


class ConfigError(PenstockError):
    """A setting or option is unknown or has a value that it cannot have."""


class NotSupportedError(QueryError):
    """The statement is meaningful, but Penstock cannot run it."""


class StateError(PenstockError):
    """A checkpoint is damaged, locked by another process or made by another script."""


class InternalError(PenstockError):
    """A promise inside Penstock was broken: our bug."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'? `` when something close exists, then the names that do."""
    names = sorted(set(known))
    close = closest(name, names)
    hint = f"did you mean '{close}'? " if close else ""
    listed = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"{hint}known: {listed}" if names else f"{hint}there are none yet"


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of the known names that a name was surely meant to be; None: that is open.

    It is the same but for case and underscores, or few letters of a long word are wrong, or it is
    the only one that begins with the name, or has it as one of its words.
    """
    names = sorted(set(known))
    plain = {n: re.sub(r"[\W_]", "", n.lower()) for n in names}
    wanted = re.sub(r"[\W_]", "", name.lower())
    if not wanted:
        return None
    slips = {n: _slips(wanted, letters) for n, letters in plain.items() if letters}
    near = [n for n in slips if slips[n] <= _forgiven(wanted, plain[n])]
    if near:
        return min(near, key=lambda n: (slips[n], n))
    longer = [n for n in names if len(wanted) >= 3 and plain[n].startswith(wanted)]
    parts = [n for n in names if name.lower() in re.split(r"[\W_]+", n.lower())]
    return next((found[0] for found in (longer, parts) if len(found) == 1), None)


def _forgiven(wanted: str, found: str) -> int:
    """Return how many slips of the pen two words may be apart and still be the same."""
    if wanted == found * 2 or wanted * 2 == found:  # aa for a
        return 1
    shorter, longer = sorted((len(wanted), len(found)))
    if longer < 4 or shorter < 3:
        return 0
    begun = wanted.startswith(found) or found.startswith(wanted)
    if wanted[:4] == found[:4] and longer >= 6 and not begun:  # sqlight for sqlite
        return 3
    return 1 if longer < 7 else 2


def _slips(a: str, b: str) -> int:
    """Return how many letters are missing, too many, wrong or exchanged with their neighbour."""
    rows = [list(range(len(b) + 1))]
    for i, letter in enumerate(a, 1):
        row = [i]
        for j, other in enumerate(b, 1):
            cost = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                cost = min(cost, rows[-2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return rows[-1][-1]


def shown_cause(error: BaseException) -> BaseException | None:
    """Return an error of others as the cause of ours, None if it tells a secret."""
    return None if holds_secret(f"{error} {error!r}") else error


def first_sentence(error: Exception) -> str:
    """Return the first line of one of Spark's long messages, without Java's class names."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("An error occurred")]
    return re.sub(r"^(: )?[a-z]+(\.\w+)+: ", "", told[0]) if told else type(error).__name__


_SHOWN = 120
"""Most characters of one line that an error shows."""


def underline(sql: str, start: int, end: int) -> str:
    """Return the line of ``sql`` around ``[start, end)`` with the span underlined.

    Of a very long line only the part around the span is shown, and no secrets.
    """
    sql = masked(masked_script(sql), same_length=True)
    start = max(0, min(start, len(sql)))
    end = max(start + 1, min(end, len(sql)))
    first = sql.rfind("\n", 0, start) + 1
    last = sql.find("\n", start)
    last = len(sql) if last < 0 else last
    end = max(start + 1, min(end, last))
    before, after = "", ""
    if last - first > _SHOWN:
        if start - first > _SHOWN // 3:
            first, before = start - _SHOWN // 3, "…"
        if last - first > _SHOWN:
            last, after = first + _SHOWN, "…"
            end = min(end, last)
    number = sql.count("\n", 0, start) + 1
    gutter = f"{number:>4} | "
    return (
        f"{gutter}{before}{sql[first:last]}{after}\n"
        f"{' ' * (len(gutter) - 2)}| {' ' * (len(before) + start - first)}{'^' * (end - start)}"
    )


def some_of(names: Sequence[str], most: int = 5) -> str:
    """Return names with commas between them; of many only the first, and how many others."""
    if len(names) <= most + 1:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} others"
