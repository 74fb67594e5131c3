"""The grammar of windows: those in square brackets, and the functions of TABLE(..) that make them.

window   := [ [PARTITION BY column, ..] part .. [OFFSET d] [SHIFT d] [area] [START point] ]
          | [ FROM (NOW - d | UNBOUNDED) TO (NOW - d | NOW) [area] [START point] ]
area     := WITHIN (scalar, scalar) INSIDE shape (number | (number, number), ..) [OF item]
part     := (ROWS n | RANGE d) [PRECEDING] [SLIDE ..] | UNBOUNDED | TUMBLE d | HOP d SLIDE d | NOW
          | FIXED d | SESSION d | AFTER point [AND BEFORE point] | ..
function := TABLE ( call ) | call
call     := TUMBLE (data, DESCRIPTOR (column), size [, offset])
          | HOP (data, DESCRIPTOR (column), slide, size [, offset])
          | SESSION (data [PARTITION BY column, ..], DESCRIPTOR (column), gap)
data     := TABLE name | TABLE (query)

An argument may have its name before it: ``DATA => TABLE s, TIMECOL => DESCRIPTOR (t), SIZE => d``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot.tokens import TokenType

from penstock.cql.grammar.over_text import OverParser
from penstock.cql.grammar.syntax import (
    AreaSyntax,
    Duration,
    Name,
    PastSyntax,
    QuerySyntax,
    TimePoint,
    WindowClause,
    WindowSyntax,
)

_WINDOW_WORDS = (
    "ROWS", "RANGE", "UNBOUNDED", "TUMBLE", "HOP", "NOW", "AFTER", "BEFORE", "FIXED", "SESSION",
)  # fmt: skip

WINDOW_FORMS = (
    "[ROWS N], [RANGE T], [RANGE T SLIDE D], [TUMBLE T], [HOP T SLIDE D], [PARTITION BY c ROWS N], "
    "[NOW], [AFTER x], [BEFORE x], [FIXED M], [SESSION G] or [FROM NOW - T TO NOW - D]"
)

_ARGUMENTS = {
    "TUMBLE": ("DATA", "TIMECOL", "SIZE", "OFFSET"),
    "HOP": ("DATA", "TIMECOL", "SLIDE", "SIZE", "OFFSET"),
    "SESSION": ("DATA", "TIMECOL", "GAP"),
}
"""The functions, with their arguments in order."""

_FORMS = {
    "TUMBLE": "TUMBLE(TABLE {}, DESCRIPTOR({}), INTERVAL '5' MINUTES)",
    "HOP": "HOP(TABLE {}, DESCRIPTOR({}), INTERVAL '1' MINUTE, INTERVAL '5' MINUTES), first how "
    "far it slides and then its size",
    "SESSION": "SESSION(TABLE {} PARTITION BY k, DESCRIPTOR({}), INTERVAL '5' MINUTES)",
}


@dataclass
class _Call:
    """The arguments of a function, as they come."""

    function: str
    source: Name | QuerySyntax | None = None
    partition: list[Name] = field(default_factory=list)
    time: Name | None = None
    durations: dict[str, Duration] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    named: bool = False

    @property
    def form(self) -> str:
        """How the function is written, with the names that are known."""
        stream = self.source.text if isinstance(self.source, Name) else "s"
        return _FORMS[self.function].format(stream, self.time.text if self.time else "t")


class WindowParser(OverParser):
    """Windows over streams."""

    def maybe_window(self) -> WindowSyntax | None:
        """Read a window if one comes next."""
        if not self._curr or self._curr.token_type != TokenType.L_BRACKET:
            return None
        return self.window()

    def window(self) -> WindowSyntax:
        """Read a window in square brackets."""
        opened = self._curr.start
        self._advance()
        partition: list[Name] = []
        clauses: dict[str, WindowClause] = {}
        origin: TimePoint | None = None
        if self.is_word("PARTITION"):
            partition = self._partition_columns()
        while self.is_word(*_WINDOW_WORDS):
            clause = self._window_clause()
            if clause.word in clauses:
                self.fail(f"{clause.word} can be said once in a window, got it twice", clause.span)
            clauses[clause.word] = clause
            if clause.word in ("AFTER", "BEFORE") and self.is_word("AND"):
                self._advance()
                if not self.is_word("AFTER", "BEFORE"):
                    self.fail(f"AND must be followed by AFTER or BEFORE, got {self.got()}")
        past = None
        if not clauses and not partition and self.is_word("FROM"):
            past = self._past()
        offset = self._offset(clauses)
        shift = self.duration("SHIFT") if not past and self.accept("SHIFT") else None
        area = self._area() if self.is_word("WITHIN") else None
        if self.accept("START"):
            origin = self.time_point("START")
        if self._curr and self._curr.token_type != TokenType.R_BRACKET:
            if self.is_word("SLIDE"):
                self.fail("SLIDE must follow ROWS N, RANGE T or HOP T")
            self.fail(f"{self.got()} is not part of a window; a window is {WINDOW_FORMS}")
        self.close(TokenType.R_BRACKET, "]", opened)
        alone = any(part is not None for part in (past, shift, area, origin))
        if not clauses and (not alone or partition):
            self.fail(f"a window is {WINDOW_FORMS}", self.since(opened))
        return WindowSyntax(
            tuple(partition),
            clauses,
            origin,
            self.since(opened),
            offset=offset,
            shift=shift,
            past=past,
            area=area,
        )

    def _area(self) -> AreaSyntax:
        """Read ``WITHIN (x, y) INSIDE CIRCLE(a.x, a.y, 2) OF s [ROWS 1] a``."""
        start = self._curr.start
        self._advance()
        point = self._numbers("WITHIN")
        if len(point) != 2:
            self.fail(
                f"WITHIN must be followed by two columns, (x, y), got {len(point)}",
                self.since(start),
            )
        self.demand("INSIDE", "WITHIN (x, y)")
        shape = self.name("INSIDE must be followed by CIRCLE, BOX or POLYGON; the word")
        numbers = tuple(self._numbers(shape.text))
        item = self.area_item() if self.accept("OF") else None
        return AreaSyntax((point[0], point[1]), shape, numbers, self.since(start), item)

    def _numbers(self, word: str) -> list[object]:
        """Read expressions in parentheses; some may stand in pairs in parentheses of their own."""
        opened = self.here()[0]
        if not self.sign(TokenType.L_PAREN):
            self.fail(f"{word} must be followed by numbers in parentheses, got {self.got()}")
        found: list[object] = []
        while not found or self.sign(TokenType.COMMA):
            within = self.here()[0]
            if self.sign(TokenType.L_PAREN):
                found.append(self.scalar())
                while self.sign(TokenType.COMMA):
                    found.append(self.scalar())
                self.close(TokenType.R_PAREN, ")", within)
            else:
                found.append(self.scalar())
        self.close(TokenType.R_PAREN, ")", opened)
        return found

    def _past(self) -> PastSyntax:
        """Read ``FROM NOW - 20 SECONDS TO NOW - 10 SECONDS``."""
        begin = self._curr.start
        self._advance()
        start = None
        if not self.accept("UNBOUNDED"):
            start = self._before_now("FROM")
            if start is None:
                self.fail(
                    f"FROM NOW must be followed by - and how long ago, such as - 20 SECONDS, got "
                    f"{self.got()}"
                )
        self.demand("TO", "FROM NOW - T")
        end = self._before_now("TO")
        return PastSyntax(start, end, self.since(begin))

    def _before_now(self, word: str) -> Duration | None:
        """Read ``NOW - d`` or ``NOW``."""
        self.demand("NOW", word)
        return self.duration(f"{word} NOW -") if self.sign(TokenType.DASH) else None

    def _offset(self, clauses: dict[str, WindowClause]) -> Duration | None:
        """Read ``OFFSET d``, by which the pulses of TUMBLE and HOP are moved."""
        if not self.is_word("OFFSET"):
            return None
        if not clauses.keys() & {"TUMBLE", "HOP"}:
            self.fail("OFFSET must follow TUMBLE T or HOP T SLIDE D; other windows have START x")
        self._advance()
        return self.duration("OFFSET")

    def _partition_columns(self) -> list[Name]:
        self._advance()
        self.demand("BY", "PARTITION")
        found = [self._partition_column()]
        while self.sign(TokenType.COMMA):
            found.append(self._partition_column())
        return found

    def _partition_column(self) -> Name:
        name = self.name("PARTITION BY takes names of columns; the name of a column")
        if self.sign(TokenType.DOT):
            name = self.name("the name of a column")
        if self._curr and (
            self._curr.token_type not in (TokenType.COMMA, TokenType.R_BRACKET, TokenType.R_PAREN)
            and not self._is_plain_word()
        ):
            self.fail(
                f"PARTITION BY takes names of columns, got an expression at {self.got()}; compute "
                f"it in a sub-query"
            )
        return name

    def _window_clause(self) -> WindowClause:
        start = self._curr.start
        word = self._curr.text.upper()
        self._advance()
        value: Duration | TimePoint | None = None
        if word in ("AFTER", "BEFORE"):
            value = self.time_point(word)
        elif word == "UNBOUNDED":
            word = "RANGE"
        elif word != "NOW" and not (word in ("ROWS", "RANGE") and self.accept("UNBOUNDED")):
            value = self.duration(word)
        slide = None
        if word in ("ROWS", "RANGE"):
            self.accept("PRECEDING")
        if word in ("ROWS", "RANGE", "HOP") and self.accept("SLIDE"):
            slide = self.duration("SLIDE")
        if word == "TUMBLE" and self.is_word("SLIDE"):
            self.fail("a TUMBLE slides by its own length; use [HOP T SLIDE D] for another SLIDE")
        if word == "HOP" and slide is None:
            self.fail(
                f"HOP T must be followed by SLIDE D, got {self.got()}; a window that slides by its "
                f"own length is [TUMBLE T]"
            )
        return WindowClause(word, value, slide, self.since(start))

    def duration(self, word: str) -> Duration:
        """Read a duration after ``word``."""
        start = self.here()[0]
        self.accept("INTERVAL")
        number, unit, span = self.duration_parts(word)
        return Duration(number, unit, (start, span[1]))

    def time_point(self, word: str) -> TimePoint:
        start = self.here()[0]
        if self.is_word("TIMESTAMP", "DATE"):
            self._advance()
        token = self._curr
        if token and token.token_type == TokenType.STRING:
            self._advance()
            return TimePoint(token.text, self.since(start))
        negative = self.sign(TokenType.DASH)
        token = self._curr
        if token and token.token_type == TokenType.NUMBER and token.text.isdigit():
            self._advance()
            value = -int(token.text) if negative else int(token.text)
            return TimePoint(value, self.since(start))
        self.fail(
            f"{word} must be followed by a point in time such as '2024-01-31 12:00:00' or, where "
            f"time is counted in integers, 100; got {self.got()}"
        )

    # ---- functions

    def window_function(self) -> tuple[Name | QuerySyntax, WindowSyntax] | None:
        """Read ``TABLE(TUMBLE(..))`` or ``TUMBLE(..)`` if one comes next."""
        start = self.here()[0]
        if not self._curr or self._curr.token_type == TokenType.IDENTIFIER:
            return None
        if not self._opens(self._next) or not self.is_word("TABLE", "CUMULATE", *_ARGUMENTS):
            return None
        opened = None
        if self.accept("TABLE"):
            opened = self.here()[0]
            self._advance()
        if self.is_word("CUMULATE"):
            self.refuse(
                "there is no CUMULATE; [FIXED M] is everything since the last multiple of M, and "
                "HOP(..) has windows of one size"
            )
        if not self.is_word(*_ARGUMENTS) or not self._opens(self._next):
            self.fail(
                f"TABLE(..) in FROM must hold TUMBLE(..), HOP(..) or SESSION(..), got "
                f"{self.got()}; write {_Call('TUMBLE').form}"
            )
        call = self._window_call()
        if opened is not None:
            self.close(TokenType.R_PAREN, ")", opened)
        assert call.source is not None
        return call.source, self._called(call, start)

    def _called(self, call: _Call, start: int) -> WindowSyntax:
        """Return what a function means as a window in square brackets."""
        span = self.since(start)
        given, word = call.durations, call.function
        size = given["GAP" if word == "SESSION" else "SIZE"]
        clause = WindowClause(word, size, given.get("SLIDE"), span)
        return WindowSyntax(
            tuple(call.partition),
            {word: clause},
            None,
            span,
            descriptor=call.time,
            offset=given.get("OFFSET"),
            closed=word == "SESSION",
            in_order=word == "HOP" and not call.named,
        )

    def _window_call(self) -> _Call:
        call = _Call(self._curr.text.upper())
        known = _ARGUMENTS[call.function]
        start = self._curr.start
        self._advance()
        opened = self.here()[0]
        self._advance()
        while not call.seen or self.sign(TokenType.COMMA):
            self._argument(call, known)
        self.close(TokenType.R_PAREN, ")", opened)
        missing = [name for name in known if name not in call.seen and name != "OFFSET"]
        if missing:
            self.fail(
                f"{call.function} must have {_listed(missing)} too; write {call.form}",
                self.since(start),
            )
        return call

    def _argument(self, call: _Call, known: tuple[str, ...]) -> None:
        start = self.here()[0]
        name = self._argument_name()
        if name is None:
            if len(call.seen) == len(known):
                self.fail(f"{call.function} has no more arguments; write {call.form}")
            if call.named:
                self.fail(f"all arguments must have names or none, got {self.got()}")
            word = known[len(call.seen)]
        else:
            word = name.text.upper()
            call.named = True
            if word not in known:
                self.fail(
                    f"{call.function} has no argument '{name.text}', only {_listed(known)}",
                    name.span,
                )
            if word in call.seen:
                self.fail(f"{word} can be given once, got it twice", name.span)
        call.seen.append(word)
        if word == "DATA":
            call.source = self._data(call)
        elif word == "TIMECOL":
            call.time = self._descriptor(call)
        else:
            if not self._curr or not (
                self.is_word("INTERVAL")
                or self._curr.token_type in (TokenType.STRING, TokenType.NUMBER, TokenType.DASH)
            ):
                self.fail(
                    f"{word} of {call.function} must be a duration such as INTERVAL '5' MINUTES, "
                    f"got {self.got()}; write {call.form}"
                )
            call.durations[word] = self.duration(word)
        if self._curr and self._curr.token_type not in (TokenType.COMMA, TokenType.R_PAREN):
            self.fail(
                f"',' or ')' must follow {self.shown(self.since(start))}, got {self.got()}; write "
                f"{call.form}"
            )

    def _argument_name(self) -> Name | None:
        """Read ``name =>`` if it comes next."""
        index = self._index
        name = self.maybe_name() if self._curr else None
        if name is None and self.is_word("OFFSET"):
            name = Name("OFFSET", self.here())
            self._advance()
        if name is not None and self.sign(TokenType.EQ) and self.sign(TokenType.GT):
            return name
        self._retreat(index)
        return None

    def _data(self, call: _Call) -> Name | QuerySyntax:
        start = self.here()[0]
        source: Name | QuerySyntax
        if not self.accept("TABLE"):
            bare = self.maybe_name()
            call.source = bare
            got = f"'{bare.text}'" if bare else self.got()
            self.fail(
                f"{call.function} must be given its stream as TABLE name, got {got}; write "
                f"{call.form}",
                bare.span if bare else None,
            )
        if self._opens(self._curr):
            self._advance()
            source = self.query()
            self.close(TokenType.R_PAREN, ")", start)
        else:
            source = self.name("the name of a stream or view")
        if self.is_word("PARTITION"):
            if call.function != "SESSION":
                self.fail(
                    f"{call.function} has no PARTITION BY: all rows are in the same windows; leave "
                    f"it out and GROUP BY the columns"
                )
            call.partition = self._partition_of_call()
        return source

    def _partition_of_call(self) -> list[Name]:
        """Read ``PARTITION BY a, b`` or ``PARTITION BY (a, b)``, up to the next argument."""
        self._advance()
        self.demand("BY", "PARTITION")
        opened = self.here()[0]
        wrapped = self.sign(TokenType.L_PAREN)
        found = [self._partition_column()]
        index = self._index
        while self.sign(TokenType.COMMA):
            if not wrapped and self._starts_argument():
                self._retreat(index)
                break
            found.append(self._partition_column())
            index = self._index
        if wrapped:
            self.close(TokenType.R_PAREN, ")", opened)
        return found

    def _starts_argument(self) -> bool:
        """Whether what comes next is no column of PARTITION BY; nothing is read."""
        index = self._index
        if self._argument_name() is not None:
            self._retreat(index)
            return True
        return not self._is_plain_word() or self._opens(self._next) or self.is_word("INTERVAL")

    def _descriptor(self, call: _Call) -> Name:
        bare = None if self.is_word("DESCRIPTOR") and self._opens(self._next) else self.maybe_name()
        if bare is not None or not self.accept("DESCRIPTOR"):
            call.time = bare
            got = f"'{bare.text}'" if bare else self.got()
            self.fail(
                f"{call.function} must be given the time column as DESCRIPTOR(column), got {got}; "
                f"write {call.form}",
                bare.span if bare else None,
            )
        opened = self.here()[0]
        self._advance()
        name = self.name("DESCRIPTOR takes the name of the time column; the name")
        if self._curr and self._curr.token_type == TokenType.COMMA:
            self.fail("DESCRIPTOR takes one column, the time column of the stream")
        self.close(TokenType.R_PAREN, ")", opened)
        return name


def _listed(names: tuple[str, ...] | list[str]) -> str:
    """Return names as a list in a sentence."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
