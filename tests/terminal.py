"""A terminal in a test: what a user sees after a program has written its escape sequences."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
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
        elif what == "G":
            self.column = max(0, number - 1)
        elif what == "K":
            line = self._line()
            del line[0 if number == 2 else self.column :]

    @property
    def text(self) -> str:
        return "\n".join("".join(line).rstrip() for line in self.lines)


def seen_by_user(
    command: list[str | Path], folder: Path, rows: int = 40, columns: int = 120
) -> str:
    """Run a command in a terminal of its own to its end; return what is to be seen then."""
    main, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
    process = subprocess.Popen(
        command, stdin=end, stdout=end, stderr=end, cwd=folder, env=env, start_new_session=True
    )
    os.close(end)
    written = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError as error:
            if error.errno != errno.EIO:  # which is how Linux tells the end
                raise
            break
        if not part:
            break
        written += part
    os.close(main)
    terminal = Terminal(columns)
    terminal.write(written.decode())
    assert process.wait(60) == 0, terminal.text
    return terminal.text
