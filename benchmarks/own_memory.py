"""What a process has of its own while it works: RssAnon of Linux.

Pages of memory maps belong to their files and go when memory is short, so they are counted apart.
"""

from __future__ import annotations

import threading
from pathlib import Path


class OwnMemory:
    """The most that the process has of its own while the block runs, and with the pages of mapped files."""

    def __enter__(self) -> OwnMemory:
        self.start, self.resident = _status()
        self.most = self.start
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            own, resident = _status()
            self.most, self.resident = max(self.most, own), max(self.resident, resident)

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


def _status() -> tuple[int, int]:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    own, resident = (1024 * int(lines[name].split()[0]) for name in ("RssAnon", "VmRSS"))
    return own, resident
