"""What a person sees while a fit runs: the pass, the throughput, the residual so far."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

PATIENCE_SECONDS = 1.5


class Reporter:
    """Draws a bar on a terminal once the work has lasted longer than a moment; otherwise says nothing.

    `show=None` draws when standard error is a terminal, True always, False never.
    """

    def __init__(self, show: bool | None = None) -> None:
        self._console = Console(stderr=True)
        self._enabled = self._console.is_terminal if show is None else show
        self._started = time.monotonic()
        self._bar: Progress | None = None
        self._task: Any = None
        self._label, self._total, self._done = "", 0, 0
        self._pass_started = self._started
        self._passes = 0
        self._note = ""

    @contextmanager
    def running(self) -> Iterator[Reporter]:
        try:
            yield self
        finally:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def stage(self, label: str) -> None:
        """What the passes that follow are for."""
        self._label = label

    def begin_pass(self, total: int) -> None:
        """A new sweep over `total` examples."""
        self._passes += 1
        self._total, self._done = total, 0
        self._pass_started = time.monotonic()
        self._draw()

    def advance(self, count: int) -> None:
        self._done += count
        self._draw()

    def note(self, text: str) -> None:
        """Something to read beside the bar, such as the residual so far."""
        self._note = text
        self._draw()

    def _draw(self) -> None:
        if not self._enabled or time.monotonic() - self._started < PATIENCE_SECONDS:
            return
        if self._bar is None:
            self._bar = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]} [cyan]{task.fields[note]}"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=None, rate="", note="")
            self._bar.start()
        seconds = max(time.monotonic() - self._pass_started, 1e-9)
        self._bar.update(
            self._task,
            description=f"pass {self._passes}: {self._label}",
            total=self._total,
            completed=self._done,
            rate=f"{self._done / seconds:,.0f}/s" if self._done else "",
            note=self._note,
        )
