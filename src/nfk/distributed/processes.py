"""What processes do together, whoever connects them: they tell one another, agree, and stop where one cannot go on."""

from __future__ import annotations

import os
import platform
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

LOST = ("Gloo", "gloo", "UNAVAILABLE", "heartbeat")  # words of the messages that tell of a process that has ended
ENDING_SECONDS = 3.0  # in which a process whose connections are closed is seen to have ended
Result = TypeVar("Result")


class ProcessLost(RuntimeError):
    """Another process of the same program has ended, and this one cannot go on without it."""


class Processes:
    """`size` processes, of which this one is `rank`; here, one alone. Each method is called by all of them together."""

    rank: int = 0
    size: int = 1

    # --- how they are connected

    def everyone(self, value: Any) -> list[Any]:
        """What every process gives, in their order: a small value."""
        return [value]

    def of_first(self, value: Any) -> Any:
        """What process 0 gives."""
        return value

    # --- what follows from it

    @property
    def several(self) -> bool:
        return self.size > 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def together(self, work: Callable[[], Result]) -> Result:
        """`work` in every process; where it fails in one, all stop, and the others say in which."""
        if not self.several:
            return work()
        try:
            result, error = work(), None
        except Exception as caught:
            result, error = None, caught
        told = self.everyone(
            None if error is None else (isinstance(error, OSError), f"{type(error).__name__}: {error}")
        )
        if error is not None:
            raise error
        for process, found in enumerate(told):
            if found is not None:
                kind = OSError if found[0] else RuntimeError
                raise kind(f"process {process} of {self.size} cannot go on: {found[1]}")
        return result  # pyright: ignore[reportReturnType]

    def by_first(self, work: Callable[[], Any]) -> None:
        """`work` in process 0, for which all wait."""
        self.together(lambda: work() if self.is_first else None)

    def first_then_others(self, work: Callable[[], Any]) -> None:
        """`work` in process 0, and when it is done there, in the others."""
        self.by_first(work)
        self.together(lambda: None if self.is_first else work())

    def agree(self, facts: Callable[[], dict[str, Any]], difference: Callable[[dict, dict], str | None]) -> None:
        """All have the same facts, or an error in all of them names the first process that differs, and in what."""
        if not self.several:
            return
        first, *others = self.everyone({**facts(), "program": _program()})
        for process, found in enumerate(others, 1):
            text = difference(first, found)
            if text is not None:
                raise ValueError(
                    f"process {process} of {self.size} does not do what process 0 does: {text}. Every process makes "
                    "the same model and passes the same X and options, with the same versions on the same kind of "
                    "processor"
                )

    def share(self, rows: int) -> slice:
        """A run of consecutive rows for each process, of lengths that differ by one at the most."""
        start, stop = (rows * part // self.size for part in (self.rank, self.rank + 1))
        return slice(start, stop)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """These are the `current` ones. Where another process ends in the meantime, a `ProcessLost` names it, as far as
        one can tell from here."""
        token, peers = _CURRENT.set(self), self.everyone((socket.gethostname(), os.getpid()))
        try:
            yield
        except (ValueError, RuntimeError) as error:
            if not self.several or not any(word in str(error) for word in LOST):
                raise
            text = f"{_ended(peers)} of {self.size} has ended, and a fit needs all of them: {error}"
            raise ProcessLost(text) from error
        finally:
            _CURRENT.reset(token)


class Replicas(Processes, ABC):
    """Processes that have blocks whole, the same in each, and an operator over their own rows alone."""

    @abstractmethod
    def sum(self, block: Any) -> Any:
        """The sum of all processes' blocks; gives up the memory of `block`."""

    @abstractmethod
    def stacked(self, rows: Any) -> Any:
        """The rows of all processes, one process after another."""


ALONE = Processes()
_CURRENT: ContextVar[Processes] = ContextVar("processes", default=ALONE)


def current() -> Processes:
    """Those that work on a fit now: for what lies too deep in the numerics to be told."""
    return _CURRENT.get()


def _program() -> dict[str, str]:
    """What must be the same wherever small matrices are computed by each process for itself."""
    return {"nfk": version("nfk"), "jax": jax.__version__, "numpy": np.__version__, "processor": _processor()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _ended(peers: list[tuple[str, int]]) -> str:
    """Which of these, each a host and a number of the system, are no more. Connections of a process close before the
    system says that it has ended: it is asked for a while. Of other hosts nothing is known, so the rest is named."""
    here, deadline = socket.gethostname(), time.monotonic() + ENDING_SECONDS
    near = {number: pid for number, (host, pid) in enumerate(peers) if host == here and pid != os.getpid()}
    gone: list[str] = []
    while near and not gone and time.monotonic() < deadline:
        gone = [f"process {number}" for number, pid in near.items() if not _lives(pid)]
        time.sleep(0.05)
    elsewhere = [f"process {number} (on {host})" for number, (host, _) in enumerate(peers) if host != here]
    return " and ".join(gone) or " or ".join(elsewhere) or "a process"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False
    except OSError:
        return True
