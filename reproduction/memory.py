"""How much memory a piece of work takes, as the operating system sees it."""

from __future__ import annotations

import threading

import psutil


def resident() -> int:
    """Bytes of memory this process holds now."""
    return psutil.Process().memory_info().rss


class Peak:
    """The largest resident memory while the block runs, sampled every few milliseconds."""

    def __enter__(self) -> Peak:
        self.start = self.most = resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.004):
            self.most = max(self.most, resident())

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self.most = max(self.most, resident())  # on a busy machine the watcher may have had no turn

    @property
    def grown(self) -> int:
        """Bytes beyond what was held at the start."""
        return self.most - self.start
