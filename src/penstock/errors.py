"""Every error Penstock raises, sorted by whose fault it is.

A message says what must hold, what we got and what to do.  Errors about text carry the span, so
that the command line and the shell can underline it.  Secrets are masked when an error is shown.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

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
    close = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1, cutoff=0.6)
    original = next((n for n in names if close and n.lower() == close[0]), None)
    hint = f"did you mean '{original}'? " if original else ""
    listed = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"{hint}known: {listed}" if names else f"{hint}there are none yet"


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
