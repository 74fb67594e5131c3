"""Words of other systems: a statement that failed gets the sentence that leads home.

Nothing here touches a statement that can be read.  When one cannot, the patterns of
`penstock.cql.grammar.foreign_words` are tried at the place where it failed; the first that holds
this place says what to write instead.
"""

from __future__ import annotations

import re
from collections import defaultdict

from penstock.cql.grammar.foreign_words import FOREIGN, NAME, Foreign
from penstock.errors import NotSupportedError, QueryError
from penstock.expr.meanings import SENTENCES
from penstock.masking import masked_script

UNITS = {
    "us": "MICROSECONDS", "usec": "MICROSECONDS", "ms": "MILLISECONDS", "msec": "MILLISECONDS",
    "millis": "MILLISECONDS", "s": "SECONDS", "sec": "SECONDS", "secs": "SECONDS",
    "m": "MINUTES", "min": "MINUTES", "mins": "MINUTES", "h": "HOURS", "hr": "HOURS",
    "hrs": "HOURS", "d": "DAYS",
}  # fmt: skip
"""Units of time as others write them."""

_ESPER = re.compile(
    rf"(?P<stream>\b{NAME})(?P<filter>\s*\([^();]*\))?(?P<views>(?:\s*(?:#(?:window\.)?|\.(?:win|std|"
    rf"ext):)\w+(?:\s*\([^();]*\))?)+)",
    re.IGNORECASE,
)
_VIEW = re.compile(
    r"(?:#(?:window\.)?|\.(?:win|std|ext):)(?P<view>\w+)(?:\s*\((?P<args>[^();]*)\))?",
    re.IGNORECASE,
)
_FILTERED = re.compile(
    rf"\bFROM\s+(?P<stream>(?!TUMBLE|HOP|SESSION|TABLE){NAME})\s*"
    r"\((?P<condition>[^();]*[<>=][^();]*)\)",
    re.IGNORECASE,
)


_LOOKED_AT = 4000
"""Characters before and behind a mistake that are looked at."""


def led_home(error: QueryError) -> QueryError:
    """Return the error with a better sentence, if it stands where others write something else."""
    if error.sql is None:
        return error
    text = masked_script(error.sql)
    begin = max(text.rfind(";", 0, error.start) + 1, error.start - _LOOKED_AT)
    end = text.find(";", error.start, error.start + _LOOKED_AT)
    end = min(len(text), error.start + _LOOKED_AT) if end < 0 else end
    found = (
        _quoted_text(error, text)
        or _other_windows(error, text, begin, end)
        or _other_words(error, text, begin, end)
        or _no_clock(error)
        or _alias_too_early(error, text, begin)
    )
    return error if found is None else found


def _other_words(error: QueryError, text: str, begin: int, end: int) -> QueryError | None:
    for foreign in FOREIGN:
        if not error.message.startswith(foreign.only):
            continue
        statement = text[begin:end]
        for match in foreign.pattern.finditer(statement):
            first = error.end - 1 if foreign.only else error.start
            if match.start(_place(match)) <= first - begin and error.start - begin <= match.end():
                return _told(foreign, match, error, begin)
    return None


def _place(match: re.Match[str]) -> str | int:
    """Return the group that is underlined: ``at``, or everything."""
    return "at" if match.groupdict().get("at") else 0


def _told(foreign: Foreign, match: re.Match[str], error: QueryError, begin: int) -> QueryError:
    values: defaultdict[str, str] = defaultdict(lambda: "s")
    named = re.search(
        rf"\bFROM\s+(?:TABLE\s*\(\s*\w+\s*\(\s*TABLE\s+)?({NAME})", match.string, re.I
    )
    values |= {"stream": named[1] if named else "s", "column": "id", "told": error.message}
    values |= {"word": " ".join(match[0].upper().split())}
    for name, group in match.groupdict().items():
        if group is not None:
            shown = group.upper() if name == "unit" else group
            values[name] = shown_duration(group) if name.startswith("d_") else shown
    start, end = match.span(_place(match))
    kind = type(error) if foreign.there_is else NotSupportedError
    message = foreign.told.format_map(values)
    if "{told}" in foreign.told:
        return kind(message, error.sql, error.start, error.end)
    return kind(message, error.sql, begin + start, begin + len(match.string[:end].rstrip()))


def shown_duration(text: str) -> str:
    """Return a duration of another system as Penstock writes it: 30 sec -> 30 SECONDS."""
    found = re.search(r"(\d+(?:\.\d+)?)\W*([A-Za-z]*)", text)
    if not found:
        return text
    number, unit = found[1], found[2].lower()
    word = UNITS.get(unit, unit.upper()).removesuffix("S")
    if word and number != "1":
        word += "S"
    return f"{number} {word}".strip()


# Windows of Esper and Siddhi: stream#time(30 sec), stream.win:length(5), stream#window.time(..)


def _other_windows(error: QueryError, text: str, begin: int, end: int) -> QueryError | None:
    for match in _ESPER.finditer(text, begin, end):
        if match.start() <= error.start <= match.end():
            views = [(v["view"].lower(), v["args"] or "") for v in _VIEW.finditer(match["views"])]
            window = _window_of(views)
            told = f"FROM {match['stream']}{window and f' {window}'}"
            if window is None:
                told = f"FROM {match['stream']} [ROWS 5], [RANGE 30 SECONDS] or another window"
            if match["filter"]:
                told += f" .. WHERE {match['filter'].strip()[1:-1].strip()}"
            message = f"a window stands behind its stream, in square brackets: write {told}"
            return QueryError(message, error.sql, *match.span("views"))
    for match in _FILTERED.finditer(text, begin, end):
        if match.start() <= error.start <= match.end():
            message = (
                f"the rows of a stream are chosen by WHERE: write FROM {match['stream']} WHERE "
                f"{match['condition'].strip()}"
            )
            return QueryError(message, error.sql, match.start("stream"), match.end())
    return None


def _window_of(views: list[tuple[str, str]]) -> str | None:
    """Return what views of Esper mean as a window; empty: everything so far; None: unknown."""
    keys = ""
    for view, args in views:
        given = [part.strip() for part in args.split(",")]
        if view == "groupwin":
            keys = f"PARTITION BY {', '.join(given)} "
            continue
        if view == "unique":
            return f"[PARTITION BY {', '.join(given)} ROWS 1]"
        form = _VIEWS.get(view)
        if form is None:
            return None
        last = given[-1]
        return form.format(keys=keys, d=shown_duration(last), n=last, m=given[0])
    return None


_VIEWS = {
    "time": "[RANGE {d}]",
    "ext_timed": "[RANGE {d}]",
    "externaltime": "[RANGE {d}]",
    "timelength": "[ROWS {n}]",
    "length": "[{keys}ROWS {n}]",
    "time_batch": "[TUMBLE {d}]",
    "timebatch": "[TUMBLE {d}]",
    "ext_timed_batch": "[TUMBLE {d}]",
    "externaltimebatch": "[TUMBLE {d}]",
    "length_batch": "[ROWS {n} SLIDE {n}]",
    "lengthbatch": "[ROWS {n} SLIDE {n}]",
    "session": "[SESSION {d}]",
    "lastevent": "[{keys}ROWS 1]",
    "keepall": "",
}


# Names


def _quoted_text(error: QueryError, text: str) -> QueryError | None:
    """A text in double quotes, which are for names."""
    typed = text[error.start : error.end]
    if not error.message.startswith("there is no column") or typed[:1] not in ('"', "`"):
        return None
    inside = typed[1:-1].replace("'", "''")
    told = error.message if "did you mean" in error.message else error.message.partition(";")[0]
    message = f"{told}; a text stands in single quotes: '{inside}'"
    return type(error)(message, error.sql, error.start, error.end)


def _no_clock(error: QueryError) -> QueryError | None:
    """A function that needs no parentheses elsewhere, such as CURRENT_TIMESTAMP."""
    missing = re.match(r"there is no column '(\w+)'", error.message)
    if missing is None or missing[1].lower() not in SENTENCES:
        return None
    message = f"there is no {missing[1]}; {SENTENCES[missing[1].lower()]}"
    return type(error)(message, error.sql, error.start, error.end)


def _alias_too_early(error: QueryError, text: str, begin: int) -> QueryError | None:
    """A name that SELECT gives, used in WHERE or ON, which come before it."""
    missing = re.match(r"there is no column '(\w+)';", error.message)
    if missing is None:
        return None
    before = text[begin : error.start]
    place = re.findall(r"\b(WHERE|ON|FROM|SELECT|HAVING|BY)\b", before, re.IGNORECASE)
    given = re.search(
        rf"(?:\bSELECT|,)\s+(?P<value>[^,;]+?)\s+AS\s+{missing[1]}\b", before, re.IGNORECASE
    )
    if given is None or not place or place[-1].upper() not in ("WHERE", "ON"):
        return None
    value = " ".join(given["value"].split())
    value = value.rpartition("SELECT ")[2]
    whole = value.count("(") == value.count(")")
    told = f"write ({value}) there" if whole else "write what it stands for there"
    message = (
        f"'{missing[1]}' is a name that SELECT gives, and {place[-1].upper()} comes before it; "
        f"{told}, or put the query into a sub-query in FROM"
    )
    return type(error)(message, error.sql, error.start, error.end)
