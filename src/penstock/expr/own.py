"""Functions of the user's own: Python that a script names as ``'module:name'``.

A plan holds the place of such a function and the types of its call, nothing else; whoever computes
it imports the module by its name.  Importing runs code, so it needs a declaration: `declare` is
called for ``CREATE FUNCTION`` of a script, and by tasks with what their driver has declared.
`loaded` gives functions that were declared in this process and refuses all others.  So reading a
checkpoint, whose plans name functions too, imports nothing.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pyarrow as pa

from penstock.errors import ConfigError, StateError, suggest
from penstock.expr.types import is_decimal, parse_type, type_name
from penstock.model import Schema
from penstock.nested.shapes import is_nested

FORMS = ("arrow", "pandas", "numpy")
"""What arrays a scalar function may take; an aggregate always takes those of NumPy."""

_PLACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_METHODS = ("add", "merge", "result")


@dataclass(frozen=True)
class FunctionDef:
    """``CREATE FUNCTION``: its name in queries, its signature, and the place of its Python.

    ``form`` is one of `FORMS`.  ``state`` are the columns of an aggregate's state that adds up and
    can be taken away exactly, so that it is kept; without, results are computed from the rows.
    """

    name: str
    parameters: Schema
    returns: pa.DataType
    place: str
    form: str = "arrow"
    aggregate: bool = False
    state: Schema = field(default_factory=lambda: Schema(()))
    sql: str = field(default="", repr=False)

    @property
    def usage(self) -> str:
        """How it is called."""
        given = ", ".join(f"{f.name} {type_name(f.type)}" for f in self.parameters)
        return f"{self.name}({given})"

    @property
    def call_name(self) -> str:
        """Its name in plans: the place, and the form of its arrays unless they are Arrow's."""
        plain = self.form == "arrow" or self.aggregate
        return self.place if plain else f"{self.place}/{self.form}"


def is_own(name: str) -> bool:
    """Whether the name of a call in a plan is that of a function of the user's own."""
    return ":" in name


def place_and_form(name: str) -> tuple[str, str]:
    """Return the place of a function and the form of its arrays, by its name in plans."""
    place, _, form = name.partition("/")
    return place, form or "arrow"


@dataclass(frozen=True)
class Signature:
    """What the decorator `function` notes of a Python function or class."""

    name: str
    parameters: tuple[str, ...]
    returns: str
    takes: str


F = TypeVar("F", bound=Callable[..., Any])

_NOTE = "__penstock_function__"


def function(
    *parameters: str, returns: str, takes: str = "", name: str | None = None
) -> Callable[[F], F]:
    """Declare the types of a function for `Session.create_function`; it stays what it is.

    ``@ps.function("DOUBLE", returns="DOUBLE")`` stands before a function, or a class for an
    aggregate.  ``takes`` is arrow (the default), pandas or numpy.
    """

    def note(made: F) -> F:
        setattr(made, _NOTE, Signature(name or made.__name__, parameters, returns, takes))
        return made

    return note


def noted(made: Any) -> tuple[Signature, str]:
    """Return what the decorator noted of a function, and the place from which it is imported."""
    found = getattr(made, _NOTE, None)
    if found is None:
        raise ConfigError(
            f"a function must be given by name, types and place, or stand behind "
            f"@penstock.function(..), got {made!r}"
        )
    place = f"{made.__module__}:{made.__qualname__}"
    if made.__module__ == "__main__" or "<locals>" in place:
        raise ConfigError(
            f"a function must be one that workers can import by its name, got {place}; put it at "
            f"the top of a module of its own, on the PYTHONPATH, and import it from there"
        )
    return found, place


def parameter_names(made: Any, count: int) -> list[str]:
    """Return names for the parameters of a function, its own where they can be read."""
    try:
        names = list(inspect.signature(made).parameters)
    except (TypeError, ValueError):
        names = []
    return names if len(names) == count else [f"x{i + 1}" for i in range(count)]


# Which places may be imported

_declared: dict[str, str] = {}
"""The places that this process may import, each with the folder where its module lies."""


def declare(place: str) -> Any:
    """Import what a script names, check that it is there, and allow its use in this process."""
    made = _imported(place)
    _declared[place] = _folder_of(sys.modules[place.partition(":")[0].partition(".")[0]])
    return made


def _folder_of(module: ModuleType) -> str:
    """Return the folder in which a module or package lies; nothing for those that lie nowhere."""
    file = getattr(module, "__file__", None)
    if file is not None:
        path = Path(file).resolve()
        return str(path.parent.parent if path.stem == "__init__" else path.parent)
    places = list(getattr(module, "__path__", ()))
    return str(Path(places[0]).parent) if places else ""


def declared_places() -> dict[str, str]:
    """Return what a driver tells its tasks: the places they may import, and folders."""
    return dict(_declared)


def allow(places: Mapping[str, str] | Iterable[str], one_machine: bool = False) -> None:
    """Allow places to be imported when they are needed, as the driver or the user says.

    On one machine the folders in which the driver found the modules are looked into as well.
    """
    told = places if isinstance(places, Mapping) else dict.fromkeys(places, "")
    for place, folder in told.items():
        _declared.setdefault(place, folder)
        if one_machine and folder and folder not in sys.path:
            sys.path.append(folder)


def loaded(place: str) -> Any:
    """Return the function at a place, which must be declared in this process."""
    if place not in _declared:
        raise StateError(
            f"a function of a checkpoint must be allowed before it is imported, but nobody has "
            f"declared {place} in this process; if you trust it, give --function {place} (in "
            f"Python, open_checkpoint(folder, functions=['{place}'])), or ask for columns without "
            f"it"
        )
    return _imported(place)


def _imported(place: str) -> Any:
    """Import what is at a place."""
    if not _PLACE.fullmatch(place):
        raise ConfigError(
            f"the place of a function must be 'module:name', such as 'plant.heat:above', got "
            f"'{place}'"
        )
    module, _, path = place.partition(":")
    if module == "__main__":
        raise ConfigError(
            f"a function must be in a module that workers can import, got '{place}'; put it into a "
            f"module of its own, on the PYTHONPATH"
        )
    try:
        made: Any = importlib.import_module(module)
    except Exception as error:  # whatever the module does when it is imported
        told = f"{type(error).__name__}: {error}".rstrip(": ")
        raise ConfigError(
            f"the module of a function must be one that Python can import, but '{module}' cannot "
            f"be: {told}; put its folder on the PYTHONPATH, and on a cluster install it where the "
            f"workers are"
        ) from error
    for name in path.split("."):
        if not hasattr(made, name):
            known = [n for n, v in vars(made).items() if callable(v) and not n.startswith("_")]
            raise ConfigError(
                f"there is no function '{path}' in the module '{module}'; {suggest(name, known)}"
            )
        made = getattr(made, name)
    if not callable(made):
        raise ConfigError(f"{place} must be a function or a class, got {type(made).__name__}")
    return made


# Aggregates


@dataclass(frozen=True)
class StateColumn:
    """A column of an aggregate's state: its name, type and what it holds of no rows."""

    name: str
    type: pa.DataType
    start: Any


_STARTS: dict[str, Any] = {"BOOLEAN": False, "FLOAT": 0.0, "DOUBLE": 0.0, "STRING": ""}


def is_aggregate_class(made: Any) -> bool:
    """Whether what is at a place is an aggregate: a class, where a scalar is a function."""
    return isinstance(made, type)


def state_columns(made: Any, place: str) -> tuple[StateColumn, ...]:
    """Return the columns of an aggregate's state, checked.

    ``state`` of the class is ``{"total": "DOUBLE", "low": ("DOUBLE", math.inf)}``.
    """
    missing = [name for name in _METHODS if not callable(getattr(made, name, None))]
    if missing:
        raise ConfigError(
            f"an aggregate must be a class with the methods add, merge and result, but {place} "
            f"has no {' and no '.join(missing)}"
        )
    given = getattr(made, "state", None)
    if not isinstance(given, dict) or not given:
        raise ConfigError(
            f"an aggregate must say what its state is, but {place} has no state = {{'total': "
            f"'DOUBLE', ..}}: names and types, or pairs of a type and a first value"
        )
    found = []
    for name, said in given.items():
        text, *start = said if isinstance(said, tuple) else (said,)
        kind = parse_type(str(text))
        word = type_name(kind)
        if word in ("TIMESTAMP", "DATE"):
            raise ConfigError(f"the state '{name}' of {place} must be a BIGINT, got {word}")
        if is_nested(kind):
            raise ConfigError(
                f"the state '{name}' of {place} must be a number, text or BOOLEAN, got {word}; "
                f"keep one state for each part"
            )
        if is_decimal(kind) or word == "BINARY":
            wanted = "a BIGINT of the smallest units" if is_decimal(kind) else "a STRING"
            raise ConfigError(f"the state '{name}' of {place} must be {wanted}, got {word}")
        found.append(StateColumn(str(name), kind, start[0] if start else _STARTS.get(word, 0)))
    return tuple(found)


def adds_up_exactly(made: Any, columns: Iterable[StateColumn]) -> bool:
    """Whether an aggregate can take rows away again without a trace.

    It has ``remove``, and a state of whole numbers, or says ``exact = True``.
    """
    if not callable(getattr(made, "remove", None)):
        return False
    whole = all(pa.types.is_integer(c.type) for c in columns)
    return bool(getattr(made, "exact", whole))
