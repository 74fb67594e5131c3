"""What must not be shown, and stars in its place.

The value of an option is secret unless the option is public (`penstock.options`).  A public one may
still be an address with a password in it: those parts are secret too.  Whatever is known to be
secret in this process is replaced in every text that leaves it through an error, a plan or a
description (`masked`).  Of a script that could not be read, only what is surely public is echoed
(`masked_script`).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from penstock.options import NAMES, Secret, is_public, refers

STARS = "***"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET_NAME = re.compile(
    r"pass|pwd|secret|token|credential|jaas|signature|(api|access|account|private)[._-]?key",
    re.IGNORECASE,
)
"""The parameters of a text that is no address which are not shown."""

_HARMLESS = _words("""
    user username host hostaddr port db dbname database databasename schema currentschema
    search_path sslmode ssl usessl requiressl sslrootcert sslcert sslnegotiation gssencmode
    channel_binding encrypt trustservercertificate verifyservercertificate
    allowpublickeyretrieval application_name applicationname fallback_application_name
    connect_timeout connecttimeout logintimeout sockettimeout tcpkeepalive keepalives
    keepalives_idle keepalives_interval keepalives_count target_session_attrs
    load_balance_hosts client_encoding charset characterencoding useunicode servertimezone
    timezone autoreconnect rewritebatchedinserts rewritebatchedstatements
    zerodatetimebehavior warehouse role region endpoint
""")
"""The parameters of an address that are shown."""

_USER_SHOWN = re.compile(
    r"(jdbc:.*|postgres(ql)?|mysql|mariadb|abfss?|wasbs?|sftp|ssh)", re.IGNORECASE
)
"""The kinds of address in which a name before @ that has no password is shown."""


# Addresses


@dataclass
class _Cutting:
    """A text whose secret parts are cut out; ``found`` are those that are worth hiding."""

    text: str
    same_length: bool
    found: list[str] = field(default_factory=list)

    def stars(self, secret: str, known: bool = True) -> str:
        if known:
            self.found.append(secret)
        return re.sub(r"[^\n]", "*", secret) if self.same_length else STARS

    def whole(self) -> str:
        scheme, mark, rest = self.text.partition("://")
        if not mark:
            return self._loose(self.text)
        head, at, tail = rest.rpartition("@")
        if at:
            user, colon, password = head.partition(":")
            if colon:
                head = f"{user}:{self.stars(password)}"
            elif not _USER_SHOWN.fullmatch(scheme):
                head = self.stars(user)
        place, parameters = _split(tail)
        cut = "".join(self._parameter(p) for p in re.split(r"([?&;#])", parameters))
        return f"{self._loose(scheme)}://{head}{at}{place}{cut}"

    def _parameter(self, text: str) -> str:
        if not text or text in "?&;#":
            return text
        name, equals, value = text.partition("=")
        if not equals:
            return self.stars(text, known=False)
        shown = unquote(name).strip().lower() in _HARMLESS
        return text if shown or not value else f"{name}={self.stars(value)}"

    def _loose(self, text: str) -> str:
        """Cut the passwords of ``jdbc:oracle:thin:user/password@..`` and ``password=..``."""
        text = re.sub(
            r"^(jdbc:[\w:]+:[^/@:\s]*/)(.+)(?=@)",
            lambda m: m[1] + self.stars(m[2]),
            text,
            flags=re.IGNORECASE,
        )

        def assigned(match: re.Match[str]) -> str:
            name = match[1].rstrip("= \t")
            if name.lower() in _HARMLESS or not _SECRET_NAME.search(name):
                return match[0]
            return match[1] + self.stars(match[2])

        return re.sub(r"([\w.-]+\s*=\s*)('[^']*'|\{[^}]*\}|[^\s;&,')]+)", assigned, text)


def _split(text: str) -> tuple[str, str]:
    found = re.search(r"[?;#]", text)
    return (text, "") if found is None else (text[: found.start()], text[found.start() :])


def without_passwords(text: str, same_length: bool = False) -> str:
    """Return an address in which stars stand for passwords and unknown parameters."""
    return _Cutting(text, same_length).whole()


# Options


def shown_option(format: str, name: str, value: str) -> str:
    """Return an option's value as everybody may see it: a reference to a secret as it is."""
    text, marked = str(value), isinstance(value, Secret)
    if refers(format, name, text, marked):
        return text
    return without_passwords(text) if not marked and is_public(format, name) else STARS


def hide_options(format: str, options: Mapping[str, str]) -> None:
    """Remember what is secret in the options of a stream, table or sink."""
    for name, value in options.items():
        text = str(value)
        marked = isinstance(value, Secret)
        hide_address(text)
        if not refers(format, name, text, marked) and (marked or not is_public(format, name)):
            hide(text)


# What is known to be secret in this process

_ORDINARY = _words("""
    true false none null auto default append overwrite ignore error latest earliest snapshot
    permissive failfast dropmalformed utf-8 json csv parquet avro orc text gzip snappy zstd
""")
"""Words that are never hidden wherever they stand: texts would become unreadable."""

_SHORT, _WORD = 4, 12
_LIMIT = 10_000

_lock = threading.Lock()
_hidden: dict[str, None] = {}
_pattern: re.Pattern[str] | None = None


def hide(value: str) -> None:
    """Remember a secret: from now on it is replaced in every text that is shown.

    Very short values and ordinary words are not: they are only masked where they stand as the value
    of an option.
    """
    global _pattern
    lines = value.splitlines() if "\n" in value else []
    with _lock:
        before = len(_hidden)
        for text in (value, *(line for line in lines if len(line) >= _WORD)):
            for form in (*_forms(text), text.lower(), text.upper()):
                if len(form) >= _SHORT and form.lower() not in _ORDINARY:
                    _hidden[form] = None
        if len(_hidden) != before:
            while len(_hidden) > _LIMIT:
                del _hidden[next(iter(_hidden))]
            _pattern = re.compile("|".join(_matching(_hidden)))


def hide_address(value: str) -> None:
    """Remember the secret parts of an address."""
    cutting = _Cutting(value, False)
    cutting.whole()
    for secret in cutting.found:
        hide(secret)
        for part in secret.split("@")[1:]:  # a driver may take it for a part of the host
            hide(part)


def _forms(text: str) -> Iterator[str]:
    """Yield a text as drivers, addresses, JSON and SQL may spell it."""
    for form in (text, unquote(text), text.strip("'{}")):
        yield form
        yield " ".join(form.split())
        yield quote(form, safe="")
        yield quote(form)
        yield json.dumps(form)[1:-1]
        yield repr(form)[1:-1]
        yield form.replace("'", "''")
        yield form.replace("'", "\\'")


def _matching(texts: Iterable[str]) -> Iterator[str]:
    """Yield patterns, longest first; a short text must stand alone, not inside a word."""
    for text in sorted(texts, key=len, reverse=True):
        found = re.escape(text)
        alone = len(text) < _WORD and text[0].isalnum() and text[-1].isalnum()
        yield rf"(?<![^\W_]){found}(?![^\W_])" if alone else found


def masked(text: str, same_length: bool = False) -> str:
    """Return a text in which stars stand for everything that is known to be secret."""
    pattern = _pattern
    if pattern is None:
        return text
    return pattern.sub(
        lambda m: re.sub(r"[^\n]", "*", m[0]) if same_length else STARS,
        text,
    )


def holds_secret(text: str) -> bool:
    """Whether something that is known to be secret stands in a text."""
    return _pattern is not None and _pattern.search(text) is not None


# Scripts

_TOKEN = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))|(?P<space>\s+)|(?P<text>'(?:[^']|'')*')|"""
    r"""(?P<name>"(?:[^"]|"")*"|`(?:[^`]|``)*`)|(?P<word>[\w$]+)|(?P<open>['"`])|(?P<sign>.)""",
    re.DOTALL,
)
_OPTIONS = re.compile(r"\boptions\b", re.IGNORECASE)
_END = re.compile(r"(;[ \t]*(?:\n|\Z))")


def masked_script(script: str) -> str:
    """Return a script of the same length in which stars stand for the values of secret options.

    Nothing is known of the script: it may be wrong anywhere.  What is not surely the value of a
    public option is masked.
    """
    tokens = [(str(m.lastgroup), m[0]) for m in _TOKEN.finditer(script)]
    if any(kind == "open" for kind, _ in tokens):
        return "".join(_blurred(part) for part in _END.split(script))
    shown: list[str] = []
    statement: list[tuple[str, str]] = []
    for token in [*tokens, ("sign", ";")]:
        statement.append(token)
        if token == ("sign", ";"):
            shown += _Statement(statement).shown()
            statement = []
    return "".join(shown)[:-1]


def _starred(text: str) -> str:
    return re.sub(r"[^\n]", "*", text)


def _blurred(text: str) -> str:
    """Mask all but the names of options from the word OPTIONS on: quotes cannot be trusted."""
    found = _OPTIONS.search(text)
    if found is None:
        return text

    def seen(match: re.Match[str]) -> str:
        return match[0] if match[0].lower() in NAMES else _starred(match[0])

    return text[: found.end()] + re.sub(r"[^\s(),;='\"`]+", seen, text[found.end() :])


class _Statement:
    """The tokens of one statement, read loosely."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        told = [(k, t) for k, t in tokens if k not in ("space", "comment")]
        words = [t.upper() if k == "word" else "" for k, t in told]
        self._creates = bool({"STREAM", "TABLE", "SINK"} & set(words[:3]))
        self._format = ""
        if "USING" in words[:-1]:
            rest = told[words.index("USING") + 1 :]
            self._format = rest[0][1].strip("'\"`")
            for (_, dot), (_, more) in zip(rest[1::2], rest[2::2], strict=False):
                if dot != ".":
                    break
                self._format += f".{more}"
        self._key = ""
        self._state = "outside"
        self._depth = 0

    def shown(self) -> Iterator[str]:
        for at, (kind, text) in enumerate(self._tokens):
            if kind == "comment":
                yield _blurred(text)
            elif kind == "space" or (self._state == "outside" and not self._opens(at)):
                yield text
            elif self._state == "outside":
                self._state, self._depth = "key", 0
                yield text
            else:
                yield self._inside(kind, text)

    def _opens(self, at: int) -> bool:
        kind, text = self._tokens[at]
        if kind != "word" or text.upper() != "OPTIONS":
            return False
        following = (t for k, t in self._tokens[at + 1 :] if k not in ("space", "comment"))
        return self._creates or next(following, "(") == "("

    def _inside(self, kind: str, text: str) -> str:
        if kind == "sign":
            return self._sign(text)
        if self._state == "key":
            self._state = "value"
            plain = text.strip("'\"`")
            self._key += plain.lower()
            return text if kind == "word" or plain.lower() in NAMES else _starred(text)
        if self._state == "value" and kind == "word" and text.upper() == "SECRET":
            self._state = "secret"
            return text
        state, self._state = self._state, "done"
        if state not in ("value", "secret"):
            return _starred(text)
        if state == "value" and is_public(self._format, self._key):
            return f"'{without_passwords(text[1:-1], True)}'" if kind == "text" else text
        if kind == "text" and refers(self._format, self._key, text[1:-1], state == "secret"):
            return text
        return f"'{_starred(text[1:-1])}'" if kind == "text" else _starred(text)

    def _sign(self, text: str) -> str:
        if text == "," and self._depth <= 1:
            self._state, self._key = "key", ""
        elif text == "." and self._state == "value":
            self._state, self._key = "key", f"{self._key}."
        elif text == "(":
            self._depth += 1
            if self._depth > 1:
                self._state = "done"
        elif text == ")":
            self._depth -= 1
            if self._depth <= 0:
                self._state = "outside"
        elif text not in ("=", "-", ";", "."):
            return "*"
        return text
