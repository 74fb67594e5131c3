"""From Spark's long stack traces back to the one sentence that says what went wrong."""

from __future__ import annotations

import re

from penstock import errors
from penstock.errors import InternalError, PenstockError, StateError

_OURS = re.compile(
    r"penstock\.errors\.(\w+): (.*?)(?=\n\s*(?:at |\n|SQLSTATE|Driver stacktrace)|\Z)", re.S
)

_FULL = re.compile(r"No space left on device|Disk quota exceeded")

_DIED = re.compile(r"Python worker exited unexpectedly")
_FATAL = re.compile(
    r"Fatal Python error: ([^\n]+)(?:.*?most recent call first\):\n\s*([^\n]+))?", re.S
)
_SIGNALS = {"Segmentation fault": "SIGSEGV", "Aborted": "SIGABRT", "Bus error": "SIGBUS"}
_MEMORY = re.compile(r"^(\w+\.)*(\w*MemoryError)(: [^\n]*)?$", re.M)
_HEAP = re.compile(r"java\.lang\.OutOfMemoryError(: [^\n]*)?")

_LOG = re.compile(
    r"[^\n]*(?:ChecksumException|Incomplete log file|malformed log file|CHECKPOINT|"
    r"BATCH_METADATA|OFFSET_LOG|Concurrent update to the log)[^\n]*"
)
_PLACE = re.compile(r"(?:file:)?(/[^\s:'\"]+)")

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
    if "Cannot start query with id" in text:
        return StateError(
            "a checkpoint and its copy must not be run by one Spark at the same time, but another "
            "session of this process runs the same query; close it first"
        )
    worker = _dead_worker(text) or _no_memory(text) or _spark_log(text)
    if worker is not None:
        return worker
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"^[\w.]+(Error|Exception|Interrupt): ", line)]
    if isinstance(error, OSError) or (python and _FILES.match(python[-1])):
        told = text if isinstance(error, OSError) else python[-1].partition(": ")[2]
        return StateError(f"files must be readable and writable, but: {told}")
    if python:
        return InternalError(python[-1])
    rest = [line for line in lines if not line.startswith("An error occurred while calling")]
    return InternalError(f"{type(error).__name__}: {rest[0]}" if rest else repr(error))


_AGAIN = "nothing that was committed is lost: run the same command again"
_LESS = (
    "give the machine more memory, or the tasks less to do (--set batch.rows, --set batch.bytes, "
    "--set join.memory)"
)


def _dead_worker(text: str) -> PenstockError | None:
    """Return what to say of a Python worker that died, and how, as far as anybody knows."""
    if not _DIED.search(text):
        return None
    fatal = _FATAL.search(text)
    if fatal is None:
        return StateError(
            f"a Python worker of Spark died several times without a word, as a process does that "
            f"is killed from outside (SIGKILL), most often by the system when memory runs out; "
            f"{_LESS}; {_AGAIN}"
        )
    number = _SIGNALS.get(fatal[1].strip())
    where = f", in {fatal[2].strip()}" if fatal[2] else ""
    return InternalError(
        f"a Python worker of Spark died several times: {fatal[1].strip()}"
        f"{f' ({number})' if number else ''}{where}; this is a fault of Penstock or of a library "
        f"that it uses, please report it; {_AGAIN}"
    )


def _spark_log(text: str) -> PenstockError | None:
    """Return what to say of a log that Spark cannot read."""
    found = _LOG.search(text)
    if found is None:
        return None
    place = _PLACE.search(found[0])
    return StateError(
        f"Spark must be able to read its own log in the checkpoint"
        f"{f', {place[1]}' if place else ''}, but: {found[0].strip()[:300]}; bring the file back "
        f"from a copy, or use another --checkpoint"
    )


def _no_memory(text: str) -> PenstockError | None:
    heap, python = _HEAP.search(text), _MEMORY.search(text)
    if heap is not None:
        return StateError(
            f"Spark itself ran out of memory ({heap[0]}); give it more with --set driver.memory=4g "
            f"or more, on a cluster also --set executor.memory; {_AGAIN}"
        )
    if python is not None:
        return StateError(f"a task ran out of memory ({python[0]}); {_LESS}; {_AGAIN}")
    return None
