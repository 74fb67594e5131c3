"""Ctrl-C: a wish to stop, taken up where it does no harm.

An exception in the middle of a call to Java would end in a stack trace and lose the answer of the
call.  So the signal is only noted, except while Spark is being started: there nothing but waiting
is interrupted.
"""

from __future__ import annotations

import signal
from types import FrameType

from penstock.session import Session


class Stop:
    """Notes SIGINT and SIGTERM: ``wanted``.

    The second signal ends the process at once, as it would without us: nothing that is committed is
    lost.  With ``gently`` it is a KeyboardInterrupt.
    """

    def __init__(self, session: Session, gently: bool = False) -> None:
        self.session = session
        self.gently = gently
        self.wanted = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _ask(self, number: int, _: FrameType | None) -> None:
        self.wanted = True
        if self.session.is_starting_spark:
            raise KeyboardInterrupt
        gently = self.gently and number == signal.SIGINT
        signal.signal(number, signal.default_int_handler if gently else signal.SIG_DFL)
