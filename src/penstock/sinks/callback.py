"""The format ``callback``: a Python function gets each batch, and each turn of the lane.

The number of a turn is given as a negative one: -7 is turn 7, 7 is batch 7.
"""

from __future__ import annotations

from penstock.catalog import SinkDef
from penstock.errors import ConfigError, DataError
from penstock.runs.deliveries import Held
from penstock.sinks.base import Callback, Result, SharedLock, Sink, SinkFormat, SinkRequest
from penstock.sinks.ledger import Ledger


class CallbackFormat(SinkFormat):
    """A function of the program is called with each batch."""

    name = "callback"
    options = ("changes",)
    not_rewound = "a function cannot be taken back: it gets later batches again"

    def open(self, definition: SinkDef, request: SinkRequest) -> Sink:
        if request.callback is None:
            raise ConfigError(
                f"the sink {definition.name} must have a function, because its format is callback; "
                f"give it with session.callback('{definition.name}', function)"
            )
        return CallbackSink(request.callback, Ledger(request.ledger, request.query))


class CallbackSink(Sink):
    """Calls a function with each batch; the ledger keeps it from being called twice.

    A function is never called by two threads at once, however many queries share it.
    """

    def __init__(self, function: Callback, ledger: Ledger | None = None) -> None:
        self._function = function
        self._ledger = ledger or Ledger(None, "")
        self._lock = SharedLock.of("callback", id(function))

    def held(self) -> Held | None:
        """Return what the ledger says."""
        return self._ledger.held()

    def publish(self, result: Result) -> None:
        """Call the function with a batch that has rows (or is a view) and was not given before."""
        if self._ledger.has(result.batch):
            return
        if result.table.num_rows or result.mode == "view":
            try:
                with self._lock:
                    self._function(result.number, result.table)
            except Exception as error:
                raise DataError(
                    f"the function of a callback sink must take everything, but for {result.shown} "
                    f"it raised {type(error).__name__}: {error}; it will be given to it again"
                ) from error
        self._ledger.add(result.batch, result.lineage)
