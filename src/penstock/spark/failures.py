"""From Spark's long stack traces back to the one sentence that says what went wrong."""

from __future__ import annotations

import re

from penstock import errors
from penstock.errors import InternalError, PenstockError

_OURS = re.compile(
    r"penstock\.errors\.(\w+): (.*?)(?=\n\s*(?:at |\n|SQLSTATE|Driver stacktrace)|\Z)", re.S
)


def root_cause(error: BaseException) -> PenstockError:
    """Return the error of ours that a task or batch raised, or an InternalError with its text."""
    if isinstance(error, PenstockError):
        return error
    text = str(error)
    found = _OURS.findall(text)
    if found:
        name, message = found[-1]
        kind = getattr(errors, name, InternalError)
        if isinstance(kind, type) and issubclass(kind, PenstockError):
            return kind(message.strip())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"^[\w.]+(Error|Exception|Interrupt): ", line)]
    return InternalError(python[-1] if python else (lines[0] if lines else repr(error)))
