"""How much anonymous memory (RssAnon) this process takes, sampled while something runs."""

from __future__ import annotations

import re
import threading
from pathlib import Path


class Memory:
    """Samples the anonymous memory of this process, in MB."""

    def __enter__(self) -> Memory:
        self.before = self.most = _anonymous()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.most = max(self.most, _anonymous())


def _anonymous() -> float:
    (found,) = re.findall(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found) / 1024
