"""The grammar of statements, and the way in: a script to a list of `Parsed` statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

from sqlglot.tokens import Token, TokenType

from penstock.cql.grammar.dialect import Cql, tokenize
from penstock.cql.grammar.foreign import led_home
from penstock.cql.grammar.queries import STREAM_WORDS, QueryParser
from penstock.cql.grammar.syntax import (
    AlterSyntax,
    ColumnSyntax,
    CommandSyntax,
    CreateSyntax,
    DropSyntax,
    Duration,
    ExplainSyntax,
    InsertSyntax,
    KeepingSyntax,
    Name,
    OptionValue,
    Parsed,
    PunctuationSyntax,
    QuerySyntax,
    Scalar,
    SetSyntax,
    Span,
    StatementSyntax,
    WindowSyntax,
)
from penstock.errors import QueryError, closest, suggest

KINDS = ("STREAM", "TABLE", "SINK", "VIEW", "QUERY", "FUNCTION")
SHOWN = ("QUERIES", "STREAMS", "TABLES", "VIEWS", "SINKS", "FUNCTIONS")
LEVELS = ("LOGICAL", "OPTIMIZED", "PHYSICAL", "ANALYZE")
_VERBS = [
    "CREATE",
    "ALTER",
    "DROP",
    "SELECT",
    "ISTREAM",
    "DSTREAM",
    "RSTREAM",
    "EXPLAIN",
    "INSERT",
    "PAUSE",
    "RESUME",
    "SET",
    "SHOW",
    "DESCRIBE",
]

MATERIALIZED = "materialized view"
_BEFORE_AS = {
    "query": "INTO sink, EARLY INTO sink, WITHIN duration, WEIGHT number or ",
    MATERIALIZED: "KEEP duration or ",
}

_CLAUSES: dict[str, tuple[str, ...]] = {
    "stream": (
        "USING",
        "OPTIONS",
        "TIMESTAMP",
        "UNTIL",
        "SLACK",
        "IDLE",
        "HEARTBEAT",
        "PUNCTUATION",
        "STEP",
        "PARTITIONS",
        "PRIORITY",
        "ON",
        "LATE",
    ),
    "table": ("USING", "OPTIONS", "VALID"),
    "sink": ("USING", "OPTIONS"),
    "function": ("USING", "TAKES"),
}

_CLAUSE_TEXT = {
    "TIMESTAMP": "TIMESTAMP BY",
    "IDLE": "IDLE AFTER",
    "HEARTBEAT": "HEARTBEAT FROM CLOCK",
    "PUNCTUATION": "PUNCTUATION WHEN",
    "ON": "ON ERROR",
    "LATE": "LATE INTO",
    "EARLY": "EARLY INTO",
    "VALID": "VALID FROM",
}


class StatementParser(QueryParser):
    """Statements, down to queries."""

    def load(self, tokens: list[Token], script: str) -> None:
        """Stand before the first of ``tokens``."""
        self.reset()
        self.sql = script
        self._tokens = tokens
        self._tokens_size = len(tokens)
        self._index = -1
        self.instants = []
        self._advance()

    def statement(self) -> StatementSyntax:
        """Read one statement and nothing after it."""
        found = self._statement()
        self.finish()
        if not self.instants:
            return found
        if not isinstance(found, QuerySyntax):
            self.fail(
                "AS OF asks about one instant, and a continuous query is answered for every one; "
                "leave it out, or ask with a SELECT that stands alone",
                self.instants[0].span,
            )
        return replace(found, as_of=self.instants[0])

    def finish(self) -> None:
        """Demand the end of the statement."""
        if self._curr:
            self.fail(
                f"{self.got()} was not expected here; the statement should be over, or a ';' or "
                f"',' is missing before it"
            )

    def _statement(self) -> StatementSyntax:
        start = self._curr.start
        if self.starts_query() or self.is_word(*STREAM_WORDS):
            return self.query()
        if self.accept("CREATE"):
            return self._create(start)
        if self.accept("ALTER"):
            return self._alter(start)
        if self.accept("DROP"):
            kind = MATERIALIZED if self.accept("MATERIALIZED", "VIEW") else self._kind("DROP")
            if_exists = self.accept("IF", "EXISTS")
            name = self.name(f"the name of a {kind}")
            return DropSyntax(kind, name, if_exists, self.since(start))
        if self.is_word("PAUSE", "RESUME"):
            verb = self._curr.text.lower()
            self._advance()
            self.demand("QUERY", verb.upper())
            return CommandSyntax(verb, self.name("the name of a query"), "", self.since(start))
        if self.accept("SHOW"):
            if self.accept("CREATE"):
                kind = "view" if self.accept("MATERIALIZED", "VIEW") else self._kind("SHOW CREATE")
                name = self.name(f"the name of a {kind}")
                return CommandSyntax("show create", name, kind, self.since(start))
            if not self.is_word(*SHOWN):
                self.fail(
                    f"SHOW must be followed by one of {', '.join(SHOWN)} or CREATE, got "
                    f"{self.got()}"
                )
            what = self._curr.text.lower()
            self._advance()
            return CommandSyntax("show", None, what, self.since(start))
        if self.is_word("DESCRIBE", "DESC"):
            self._advance()
            name = self.name("the name of a stream, table, view, sink, query or function")
            if self._curr and name.text.upper() in KINDS:
                name = self.name(f"the name of a {name.text.lower()}")
            return CommandSyntax("describe", name, "", self.since(start))
        if self.accept("EXPLAIN"):
            return self._explain(start)
        if self.accept("SET"):
            return self._set(start)
        word = self._curr.text
        if self.accept("INSERT", "INTO"):
            return self._insert(start)
        if self.is_word("INSERT", "UPDATE", "DELETE", "MERGE"):
            self.refuse(
                f"there is no {word.upper()}; rows come from the source of a stream, answers go to "
                f"a sink with CREATE QUERY .. INTO"
            )
        self.fail(f"a statement cannot begin with {self.got()}; {suggest(word, _VERBS)}")

    def _insert(self, start: int) -> InsertSyntax:
        name = self.name("the name of a stream")
        columns = self._named_columns() if self._opens(self._curr) else ()
        if not self._is_values():
            self.fail(
                f"the name of a stream must be followed by VALUES (..), got {self.got()}; the "
                f"answers of a query go into a sink with CREATE QUERY .. INTO"
            )
        return InsertSyntax(name, columns, self.values(), self.since(start))

    def _kind(self, verb: str) -> str:
        if not self.is_word(*KINDS):
            self.fail(
                f"{verb} must be followed by one of {', '.join(KINDS)} or MATERIALIZED VIEW, got "
                f"{self.got()}"
            )
        kind: str = self._curr.text.lower()
        self._advance()
        return kind

    def _set(self, start: int) -> SetSyntax:
        named = self.here()[0]
        text = ""
        while self._is_plain_word():
            text += self._curr.text
            self._advance()
            if not self.sign(TokenType.DOT):
                break
            text += "."
        if not text or text.endswith("."):
            self.fail(
                f"SET must be followed by the name of a setting such as scheduler, got {self.got()}"
            )
        setting = Name(text.lower(), self.since(named))
        if not (self.sign(TokenType.EQ) or self.accept("TO")):
            self.fail(f"SET {text} must be followed by = and a value, got {self.got()}")
        if not self._curr:
            self.fail(f"SET {text} = must be followed by a value, got {self.got()}")
        value = ""
        while self._curr:
            value += self._curr.text
            self._advance()
        return SetSyntax(setting, value, self.since(start))

    def _explain(self, start: int) -> ExplainSyntax:
        level = "all"
        if self.is_word(*LEVELS):
            level = self._curr.text.lower()
            self._advance()
        if self.accept("QUERY"):
            name = self.name("the name of a query")
            return ExplainSyntax(level, name, None, self.since(start))
        change = self._change()
        if change is not None:
            return ExplainSyntax(level, change.name, None, self.since(start), change)
        if not self.starts_query():
            self.fail(
                f"EXPLAIN must be followed by QUERY name or by a query, got {self.got()}; before "
                f"a query may stand REPLACE QUERY name AS, and before all of it LOGICAL, "
                f"OPTIMIZED, PHYSICAL or ANALYZE"
            )
        return ExplainSyntax(level, None, self.query(), self.since(start))

    def _change(self) -> CreateSyntax | AlterSyntax | None:
        """Read what would replace a query, behind EXPLAIN; None if nothing of the kind comes."""
        start = self.here()[0]
        if self.accept("ALTER"):
            return self._alter(start)
        if self.accept("REPLACE"):
            return self._replace(start, "EXPLAIN REPLACE")
        if self.accept("CREATE", "OR", "REPLACE"):
            return self._replace(start, "EXPLAIN CREATE OR REPLACE")
        if self.is_word("CREATE"):
            self.fail(
                "EXPLAIN CREATE is about what is replaced; write EXPLAIN CREATE OR REPLACE QUERY, "
                "or leave everything before the query out"
            )
        return None

    def _replace(self, start: int, before: str) -> CreateSyntax:
        """Read the rest of CREATE OR REPLACE QUERY, behind EXPLAIN."""
        if not self.is_word("QUERY"):
            self.fail(
                f"{before} must be followed by QUERY, its name and its new text, got {self.got()}"
            )
        return self._declared(start, or_replace=True)

    # ---- CREATE

    def _create(self, start: int) -> CreateSyntax:
        return self._declared(start, or_replace=self.accept("OR", "REPLACE"))

    def _declared(self, start: int, or_replace: bool) -> CreateSyntax:
        """Read what is declared, behind CREATE or CREATE OR REPLACE."""
        verb = "CREATE OR REPLACE" if or_replace else "CREATE"
        kind = MATERIALIZED if self.accept("MATERIALIZED", "VIEW") else self._kind(verb)
        if or_replace and self.is_word("IF") and self._next and self._next.text.upper() == "NOT":
            self.fail(
                "OR REPLACE and IF NOT EXISTS contradict one another; leave IF NOT EXISTS out to "
                "replace what there is, or OR REPLACE to keep it"
            )
        if_not_exists = self.accept("IF", "NOT", "EXISTS")
        name = self.name(f"the name of a {kind}")
        columns: tuple[ColumnSyntax, ...] = ()
        clauses: dict[str, Any] = {}
        query: QuerySyntax | None = None
        if kind in ("view", "query", MATERIALIZED):
            if kind == "query":
                self._query_clauses(clauses)
            if kind == MATERIALIZED and self.is_word("EARLY"):
                self.fail(
                    "EARLY INTO belongs to a query, and a materialized view keeps its answer and "
                    "hands it to no sink; CREATE QUERY with the same text"
                )
            if kind == MATERIALIZED and self.accept("KEEP"):
                clauses["KEEP"] = None if self.accept("UNBOUNDED") else self.duration("KEEP")
            if not self.accept("AS"):
                more = _BEFORE_AS.get(kind, "") if not clauses else ""
                more = f"{more}AS"
                self.fail(
                    f"CREATE {kind.upper()} {name.text} must be followed by {more} and a query, "
                    f"got {self.got()}"
                )
            query = self.query()
        elif kind == "function":
            columns = self._columns(kind, name)
            clauses = {"RETURNS": self._returns(name)}
            self._clauses(kind, name, clauses)
        else:
            if kind != "sink" and not self.is_word("USING"):
                columns = self._columns(kind, name)
            self._clauses(kind, name, clauses)
        span = self.since(start)
        return CreateSyntax(kind, name, if_not_exists, columns, clauses, query, span, or_replace)

    # ---- ALTER

    def _alter(self, start: int) -> AlterSyntax:
        if not self.accept("QUERY"):
            self.refuse(
                "only a query can be altered; write CREATE OR REPLACE with the whole declaration"
            )
        name = self.name("the name of a query")
        if self.accept("AS"):
            return AlterSyntax(name, {}, self.query(), self.since(start))
        clauses: dict[str, Any] = {}
        if self.accept("SET"):
            self._query_clauses(clauses)
        if not clauses:
            self.fail(
                f"ALTER QUERY {name.text} must be followed by AS and a query, or by SET with INTO "
                f"sink, WITHIN duration or WEIGHT number, got {self.got()}"
            )
        return AlterSyntax(name, clauses, None, self.since(start))

    def _backfill(self) -> NoReturn:
        self.refuse(
            "there is no BACKFILL: what is kept of a query goes on, and the rest begins anew with "
            "the rows that come; to answer rows that were read before, run the query on another "
            "checkpoint, from the beginning of its streams",
            (self._prev.start, self._prev.end + 1),
        )

    def _query_clauses(self, clauses: dict[str, Any]) -> None:
        """Read where a query's answers go, how soon they are wanted, and how much they count."""
        while self.is_word(*_QUERY_CLAUSES):
            word = self._curr.text.upper()
            if word in clauses:
                said = _CLAUSE_TEXT.get(word, word)
                self.fail(f"{said} can be said once, got it twice")
            self._advance()
            clauses[word] = _QUERY_CLAUSES[word](self)

    def _weight(self) -> tuple[str, Span]:
        token = self._curr
        if not token or token.token_type != TokenType.NUMBER:
            self.fail(f"WEIGHT must be followed by a number above 0, such as 3, got {self.got()}")
        self._advance()
        return token.text, (token.start, token.end + 1)

    def _returns(self, name: Name) -> Name:
        if not self.accept("RETURNS"):
            self.fail(
                f"CREATE FUNCTION {name.text}(..) must be followed by RETURNS and a type, got "
                f"{self.got()}"
            )
        return self.type_text()

    def _takes(self) -> Name:
        return self.name("TAKES must be followed by ARROW, PANDAS or NUMPY; its name")

    def _columns(self, kind: str, name: Name) -> tuple[ColumnSyntax, ...]:
        opened = self.here()[0]
        if not self.sign(TokenType.L_PAREN):
            self.fail(
                f"CREATE {kind.upper()} {name.text} must be followed by its columns in "
                f"parentheses, such as (id INT, t TIMESTAMP), got {self.got()}"
            )
        columns = [self._column_definition()]
        while self.sign(TokenType.COMMA):
            columns.append(self._column_definition())
        self.close(TokenType.R_PAREN, ")", opened)
        return tuple(columns)

    def _column_definition(self) -> ColumnSyntax:
        name = self.name("the name of a column")
        found = ColumnSyntax(name, self.type_text())
        if self.is_word("NOT", "NULL", "PRIMARY", "DEFAULT", "UNIQUE", "CHECK", "COMMENT"):
            self.refuse(f"columns have a name and a type only, got {self.got()}")
        return found

    def _clauses(self, kind: str, name: Name, clauses: dict[str, Any]) -> None:
        allowed = _CLAUSES[kind]
        while self._curr:
            word = self._curr.text.upper()
            if not self.is_word(*allowed):
                listed = ", ".join(_CLAUSE_TEXT.get(c, c) for c in allowed)
                meant = closest(word, allowed)
                hint = f"did you mean {_CLAUSE_TEXT.get(meant, meant)}? " if meant else ""
                self.fail(
                    f"{self.got()} is not a clause of CREATE {kind.upper()}; {hint}its clauses are "
                    f"{listed}"
                )
            text = _CLAUSE_TEXT.get(word, word)
            if word in clauses:
                self.fail(f"{text} can be said once, got it twice")
            self._advance()
            clauses[word] = _READERS[word](self)

    def _using(self) -> Name:
        token = self._curr
        if token and token.token_type == TokenType.STRING:
            self._advance()
            return Name(token.text, (token.start, token.end + 1))
        first = self.name("USING must be followed by a format such as csv or replay; its name")
        text = first.text
        while self.sign(TokenType.DOT):
            text += "." + self.name("the rest of the name").text
        return Name(text, self.since(first.span[0]))

    def _options(self) -> dict[str, OptionValue]:
        opened = self.here()[0]
        if not self.sign(TokenType.L_PAREN):
            self.fail(f"OPTIONS must be followed by (name 'value', ..), got {self.got()}")
        options: dict[str, OptionValue] = {}
        if self.sign(TokenType.R_PAREN):
            return options
        while True:
            key = self._option_key()
            if key.text in options:
                shown = self.shown(key.span).lower()
                self.fail(f"the option '{shown}' can be given once, got it twice", key.span)
            self.sign(TokenType.EQ)
            options[key.text] = self._option_value(key)
            if not self.sign(TokenType.COMMA):
                break
        self.close(TokenType.R_PAREN, ")", opened)
        return options

    def _option_key(self) -> Name:
        start = self.here()[0]
        if self._curr and self._curr.token_type == TokenType.STRING:
            self._advance()
            return Name(self._prev.text.lower(), self.since(start))
        parts: list[str] = []
        while True:
            quoted = self._curr and self._curr.token_type == TokenType.IDENTIFIER
            if not quoted and not self._is_plain_word():
                self.fail(f"the name of an option must come here, got {self.got()}")
            parts.append(self._curr.text.lower())
            self._advance()
            if not self.sign(TokenType.DOT):
                return Name(".".join(parts), self.since(start))

    def _option_value(self, key: Name) -> OptionValue:
        secret = self.accept("SECRET")
        start = self.here()[0]
        negative = self.sign(TokenType.DASH)
        token = self._curr
        if token and token.token_type == TokenType.NUMBER:
            self._advance()
            text = ("-" if negative else "") + token.text
            return OptionValue(text, self.since(start), secret)
        if token and token.token_type == TokenType.STRING and not negative:
            self._advance()
            return OptionValue(token.text, self.since(start), secret)
        if self.is_word("TRUE", "FALSE") and not negative:
            self._advance()
            return OptionValue(token.text.lower(), self.since(start), secret)
        shown = self.shown(key.span).lower()
        self.fail(
            f"the option '{shown}' must have a value: a string, a number, TRUE or FALSE, got "
            f"{self.got()}"
        )

    def _timestamp_by(self) -> Name:
        self.demand("BY", "TIMESTAMP")
        return self.name("TIMESTAMP BY must be followed by a column; its name")

    def _idle_after(self) -> object:
        self.demand("AFTER", "IDLE")
        return self.duration("IDLE AFTER")

    def _slack(self) -> Duration | KeepingSyntax:
        if not self.accept("AUTO"):
            return self.duration("SLACK")
        start = self.here()[0]
        if not self.accept("KEEPING"):
            return KeepingSyntax(None, self.since(start))
        token = self._curr
        if not token or token.token_type != TokenType.NUMBER:
            self.fail(f"KEEPING must be followed by a share such as 99.9 %, got {self.got()}")
        self._advance()
        if not self.sign(TokenType.MOD) and not self.accept("PERCENT"):
            self.fail(f"KEEPING {token.text} must be followed by %, got {self.got()}")
        return KeepingSyntax(token.text, self.since(start))

    def _from_clock(self) -> Duration | None:
        self.demand("FROM", "HEARTBEAT")
        self.demand("CLOCK", "HEARTBEAT FROM")
        return self.duration("LAG") if self.accept("LAG") else None

    def _partitions(self) -> Name:
        token = self._curr
        if not token or token.token_type != TokenType.NUMBER or not token.text.isdecimal():
            self.fail(f"PARTITIONS must be followed by a whole number, got {self.got()}")
        self._advance()
        return Name(token.text, (token.start, token.end + 1))

    def _punctuation(self) -> PunctuationSyntax:
        self.demand("WHEN", "PUNCTUATION")
        condition = self.scalar()
        time = self.scalar() if self.accept("TIME") else None
        is_clause = self._next and self._next.text.upper() == "ERROR"
        if not self.is_word("ON") or is_clause:
            return PunctuationSyntax(condition, time)
        self._advance()
        opened = self.here()[0]
        in_parentheses = self.sign(TokenType.L_PAREN)
        on = [self.name("PUNCTUATION .. ON takes columns; the name of one")]
        if in_parentheses:
            while self.sign(TokenType.COMMA):
                on.append(self.name("the name of a column"))
            self.close(TokenType.R_PAREN, ")", opened)
        lasts = self.duration("FOR") if self.accept("FOR") else None
        return PunctuationSyntax(condition, time, tuple(on), lasts)

    def _on_error(self) -> Name | None:
        self.demand("ERROR", "ON")
        if self.accept("FAIL"):
            return None
        if not self.accept("DEADLETTER"):
            self.fail(f"ON ERROR must be followed by FAIL or DEADLETTER sink, got {self.got()}")
        return self.name("DEADLETTER must be followed by a sink; its name")

    def _late_into(self) -> Name:
        self.demand("INTO", "LATE")
        return self.name("LATE INTO must be followed by a sink; its name")

    def _early_into(self) -> Name:
        self.demand("INTO", "EARLY")
        return self.name("EARLY INTO must be followed by a sink; its name")

    def _valid(self) -> tuple[Name, Name | None]:
        self.demand("FROM", "VALID")
        first = self.name("VALID FROM must be followed by a column; its name")
        last = self.name("the name of a column") if self.accept("TO") else None
        return first, last


_READERS: dict[str, Callable[[StatementParser], Any]] = {
    "USING": StatementParser._using,
    "OPTIONS": StatementParser._options,
    "TIMESTAMP": StatementParser._timestamp_by,
    "UNTIL": lambda parser: parser.name("UNTIL must be followed by a column; its name"),
    "SLACK": StatementParser._slack,
    "IDLE": StatementParser._idle_after,
    "HEARTBEAT": StatementParser._from_clock,
    "PUNCTUATION": StatementParser._punctuation,
    "STEP": lambda parser: parser.duration("STEP"),
    "PARTITIONS": StatementParser._partitions,
    "PRIORITY": lambda parser: parser.scalar(),
    "ON": StatementParser._on_error,
    "LATE": StatementParser._late_into,
    "VALID": StatementParser._valid,
    "TAKES": StatementParser._takes,
}


_QUERY_CLAUSES: dict[str, Callable[[StatementParser], Any]] = {
    "INTO": lambda parser: parser.name("the name of a sink"),
    "EARLY": StatementParser._early_into,
    "WITHIN": lambda parser: parser.duration("WITHIN"),
    "WEIGHT": StatementParser._weight,
    "BACKFILL": StatementParser._backfill,
}


def parse_script(text: str) -> list[Parsed]:
    """Return the statements of a script, in order. Syntax only: no name is looked up."""
    found = []
    for read in parse_each(text):
        if isinstance(read, QueryError):
            raise read
        found.append(read)
    return found


def parse_each(text: str) -> Iterator[Parsed | QueryError]:
    """Yield each statement of a script, or what is wrong with it."""
    statements: list[list[Token]] = [[]]
    for token in tokenize(text):
        if token.token_type == TokenType.SEMICOLON:
            statements.append([])
        else:
            statements[-1].append(token)
    for tokens in statements:
        if tokens:
            try:
                syntax = _guarded(lambda p: p.statement(), tokens, text)
            except QueryError as error:
                yield error
                continue
            yield Parsed(syntax, text, (tokens[0].start, tokens[-1].end + 1))


def parse_query(text: str) -> QuerySyntax:
    """Return the syntax of a text that must be one query."""
    parsed = parse_script(text)
    if len(parsed) != 1 or not isinstance(parsed[0].syntax, QuerySyntax):
        raise QueryError(
            "one query must be given, SELECT .. or ISTREAM (SELECT ..)", text, 0, len(text)
        )
    return parsed[0].syntax


def parse_scalar(text: str) -> tuple[Scalar, Name | None]:
    """Return the syntax of a text that must be one expression, and its alias if it has one."""

    def read(parser: StatementParser) -> tuple[Scalar, Name | None]:
        expr = parser.scalar()
        return expr, parser.name("a name after AS") if parser.accept("AS") else None

    found: tuple[Scalar, Name | None] = _alone(read, text)
    return found


def parse_window(text: str) -> WindowSyntax:
    """Return the syntax of a text that must be one window in square brackets."""

    def read(parser: StatementParser) -> WindowSyntax:
        window = parser.maybe_window()
        if window is None:
            parser.fail(f"a window must begin with '[', got {parser.got()}")
        return window

    found: WindowSyntax = _alone(read, text)
    return found


def parse_duration(text: str) -> Duration:
    """Return the syntax of a text that must be one duration."""
    found: Duration = _alone(lambda parser: parser.duration("the text"), text)
    return found


def _alone(read: Callable[[StatementParser], Any], text: str) -> Any:
    """Read what must be the whole of a text."""

    def whole(parser: StatementParser) -> Any:
        found = read(parser)
        parser.finish()
        return found

    return _guarded(whole, tokenize(text), text)


def _guarded(read: Callable[[StatementParser], Any], tokens: list[Token], text: str) -> Any:
    """Read; a text so deeply nested that the stack ends is the user's mistake too."""
    try:
        parser = StatementParser(dialect=Cql())
        parser.load(tokens, text)
        return read(parser)
    except QueryError as error:
        raise led_home(error) from None
    except RecursionError:
        raise QueryError(
            "the statement is nested too deeply; split it with CREATE VIEW",
            text,
            tokens[0].start,
            tokens[-1].end + 1,
        ) from None
