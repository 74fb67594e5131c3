"""From Spark's long stack traces back to the one sentence that says what went wrong."""

from __future__ import annotations

import re

from penstock import errors
from penstock.errors import InternalError, PenstockError, StateError

_OURS = re.compile(
    r"penstock\.errors\.(\w+): (.*?)(?=\n\s*(?:at |\n|SQLSTATE|Driver stacktrace)|\Z)", re.S
)

_FULL = re.compile(r"No space left on device|Disk quota exceeded")

_FILES = re.compile(r"^(OSError|FileNotFoundError|PermissionError|IsADirectoryError): ")


def root_cause(error: BaseException) -> PenstockError:
    """Return the error of ours that a task or batch raised, or one that tells its text.

    What files did not allow is a StateError, anything else an InternalError.
    """
    if isinstance(error, PenstockError):
        return error
    text = str(error)
    found = _OURS.findall(text)
    if found:
        name, message = found[-1]
        kind = getattr(errors, name, InternalError)
        if isinstance(kind, type) and issubclass(kind, PenstockError):
            return kind(message.strip())
    full = _FULL.search(text)
    if full:
        return StateError(
            f"a disk that the run writes to is full ({full[0]}); nothing is lost: free some space "
            f"and run the same command again"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"^[\w.]+(Error|Exception|Interrupt): ", line)]
    if isinstance(error, OSError) or (python and _FILES.match(python[-1])):
        told = text if isinstance(error, OSError) else python[-1].partition(": ")[2]
        return StateError(f"files must be readable and writable, but: {told}")
    if python:
        return InternalError(python[-1])
    return InternalError(f"{type(error).__name__}: {lines[0]}" if lines else repr(error))
