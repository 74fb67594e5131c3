"""A terminal in a test: what a user sees after a program has written its escape sequences."""

from __future__ import annotations

import codecs
import errno
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_SEQUENCE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|\x1b[=>]|\x1b\][^\x07]*\x07|(.)", re.DOTALL)


class Terminal:
    """The lines of a terminal, with all that has scrolled away above."""

    def __init__(self, columns: int = 120) -> None:
        self.columns = columns
        self.lines: list[list[str]] = [[]]
        self.row = self.column = 0

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        return None

    def write(self, text: str) -> int:
        for private, numbers, what, plain in _SEQUENCE.findall(text):
            if plain:
                self._plain(plain)
            elif what and not private:
                self._move(what, int(numbers.split(";")[0] or 0))
        return len(text)

    def _plain(self, sign: str) -> None:
        if sign == "\r":
            self.column = 0
        elif sign == "\b":
            self.column = max(0, self.column - 1)
        elif sign == "\n":
            self.row, self.column = self.row + 1, 0
        elif sign >= " ":
            if self.column >= self.columns:
                self.row, self.column = self.row + 1, 0
            line = self._line()
            line += [" "] * (self.column + 1 - len(line))
            line[self.column] = sign
            self.column += 1

    def _line(self) -> list[str]:
        self.lines += [[] for _ in range(self.row + 1 - len(self.lines))]
        return self.lines[self.row]

    def _move(self, what: str, number: int) -> None:
        if what == "A":
            self.row = max(0, self.row - (number or 1))
        elif what == "B":
            self.row += number or 1
        elif what == "C":
            self.column += number or 1
        elif what == "D":
            self.column = max(0, self.column - (number or 1))
        elif what == "G":
            self.column = max(0, number - 1)
        elif what == "K":
            line = self._line()
            del line[0 if number == 2 else self.column :]
        elif what == "J":
            del self._line()[self.column :]
            del self.lines[self.row + 1 :]

    @property
    def text(self) -> str:
        return "\n".join("".join(line).rstrip() for line in self.lines)


def _open(rows: int, columns: int) -> tuple[int, int]:
    """Open a terminal; return the end that we hold and the end of the program."""
    main, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    return main, end


@contextmanager
def here(rows: int = 40, columns: int = 120) -> Iterator[Terminal]:
    """Put this process into a terminal: what it reads, prints and draws goes there."""
    terminal = Terminal(columns)
    main, end = _open(rows, columns)
    streams, kept = (sys.stdin, sys.stdout, sys.stderr), [os.dup(n) for n in range(3)]
    reader = threading.Thread(target=_copy, args=(main, terminal))
    for number in range(3):
        os.dup2(end, number)
    os.close(end)
    ours = [os.fdopen(os.dup(n), mode, encoding="utf-8") for n, mode in enumerate("rww")]
    sys.stdin, sys.stdout, sys.stderr = ours
    reader.start()
    try:
        yield terminal
    finally:
        for file in ours:
            file.close()
        for number, old in enumerate(kept):
            os.dup2(old, number)
            os.close(old)
        sys.stdin, sys.stdout, sys.stderr = streams
        reader.join()
        os.close(main)


def _copy(main: int, terminal: Terminal) -> None:
    """Show what is written until nobody can write any more."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with suppress(OSError):  # which is how Linux tells the end
        while part := os.read(main, 65536):
            terminal.write(decoder.decode(part))


class Program:
    """A program in a terminal of its own: what it shows, and what a user types into it."""

    def __init__(
        self, command: Sequence[str | Path], folder: Path, rows: int = 40, columns: int = 120
    ) -> None:
        self.terminal = Terminal(columns)
        self._main, end = _open(rows, columns)
        env = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
        env |= {
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "HOME": str(folder),
        }  # nobody says where the cursor is
        self.process = subprocess.Popen(
            command, stdin=end, stdout=end, stderr=end, cwd=folder, env=env, start_new_session=True
        )
        os.close(end)
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)
        os.close(self._main)

    def type(self, text: str) -> None:
        """Type some lines, each ended by the key Enter."""
        os.write(self._main, "".join(f"{line}\r" for line in text.splitlines()).encode())

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.write(self._main, b"\x03")

    def until(self, pattern: str, seconds: float = 120) -> str:
        """Read until a pattern stands on the screen; return all that is to be seen."""
        limit = time.monotonic() + seconds
        while not re.search(pattern, self.terminal.text):
            assert self._read(limit), f"{pattern!r} was never shown:\n{self.terminal.text}"
        return self.terminal.text

    def to_end(self, seconds: float = 240) -> str:
        """Read until the program has ended, well; return all that is to be seen then."""
        limit = time.monotonic() + seconds
        while self._read(limit):
            pass
        assert time.monotonic() < limit, f"it did not end:\n{self.terminal.text}"
        assert self.process.wait(60) == 0, self.terminal.text
        return self.terminal.text

    def _read(self, limit: float) -> bool:
        """Take what the program writes next; False: it has ended, or the time is over."""
        ready, _, _ = select.select([self._main], [], [], max(0.0, limit - time.monotonic()))
        if not ready:
            return False
        try:
            part = os.read(self._main, 65536)
        except OSError as error:
            if error.errno != errno.EIO:  # which is how Linux tells the end
                raise
            return False
        self.terminal.write(self._decoder.decode(part))
        return bool(part)


def seen_by_user(
    command: Sequence[str | Path], folder: Path, rows: int = 40, columns: int = 120
) -> str:
    """Run a command in a terminal of its own to its end; return what is to be seen then."""
    with Program(command, folder, rows, columns) as program:
        return program.to_end()
