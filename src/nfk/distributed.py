"""Several processes of one program, on one machine or on many: how they start, what each reads, what they agree on.

Every process runs the same script, makes the same model and passes the same `X`. Each reads only its own rows of it.
JAX's own runtime connects them (`jax.distributed`); on CPUs it uses gloo.
"""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

ADDRESS, PROCESSES, PROCESS = "NFK_ADDRESS", "NFK_PROCESSES", "NFK_PROCESS"
HEARTBEAT_SECONDS = 10  # a process that was not heard of for so long is dead, and the others end
Result = TypeVar("Result")


class ProcessLost(RuntimeError):
    """Another process of the same program has ended, and this one cannot go on without it."""


def initialize(address: str | None = None, processes: int | None = None, process: int | None = None) -> None:
    """Connect this process with the others. Call it before anything else that uses JAX.

    Without arguments it reads `NFK_ADDRESS`, `NFK_PROCESSES` and `NFK_PROCESS`, which `python -m nfk.launch` sets;
    where they are not set, JAX finds the others by the variables of `srun`, `mpirun`, Kubernetes or a TPU.

    Args:
        address: host:port of process 0, the same for all: a free port of a machine that all can reach.
        processes: how many there are.
        process: the number of this one, from 0.
    """
    address = address or os.environ.get(ADDRESS)
    processes = _number(PROCESSES, "processes", processes)
    process = _number(PROCESS, "process", process)
    given = {"address": address, "processes": processes, "process": process}
    missing = [name for name, value in given.items() if value is None]
    if 0 < len(missing) < len(given):
        raise ValueError(
            f"nfk.distributed.initialize is not told {' and '.join(missing)}: give address, processes and process, as "
            f"arguments or as {ADDRESS}, {PROCESSES} and {PROCESS}, or none of them under srun or mpirun"
        )
    if process is not None and processes is not None and not 0 <= process < processes:
        raise ValueError(f"process={process} must be from 0 to {processes - 1}: there are processes={processes}")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, processes, process, heartbeat_timeout_seconds=HEARTBEAT_SECONDS)


def _number(variable: str, name: str, value: int | None) -> int | None:
    text = os.environ.get(variable)
    if value is not None or text is None:
        return value
    if not text.isdecimal():
        raise ValueError(f"{variable}={text!r} is no number: it says {name}= of nfk.distributed.initialize")
    return int(text)


def own_rows(examples: int) -> slice:
    """The examples that this process reads of `examples` in a fit over all devices: for those who have only these.

    Args:
        examples: how many all processes have together.
    """
    mine = [i for i, device in enumerate(jax.devices()) if device.process_index == jax.process_index()]
    each = -(-examples // len(jax.devices()))
    start, stop = mine[0] * each, (mine[-1] + 1) * each
    return slice(min(start, examples), min(stop, examples))


class Own:
    """Examples of which this process has only its own, as `X` for `nfk.fit`: all must make it together.

    Args:
        rows: the examples `own_rows(examples)` of all: an array, or a pytree of arrays.
        examples: how many all processes have together.
    """

    def __init__(self, rows: Any, examples: int) -> None:
        self._place, self._rows, self._length = own_rows(examples), rows, examples
        held = len(jax.tree.leaves(rows)[0])
        if held != self._place.stop - self._place.start:
            place = f"{self._place.start}:{self._place.stop}"
            raise ValueError(
                f"process {jax.process_index()} holds {held} examples, but reads {place} of {examples}: give "
                f"rows[nfk.distributed.own_rows({examples})]"
            )
        first = jax.tree.map(lambda leaf: np.asarray(leaf[:1]) if held else np.asarray(leaf), rows)
        self._first = _from_first(first)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, rows: slice) -> Any:
        start, stop, _ = rows.indices(self._length)
        if (start, stop) == (0, 1):
            return self._first
        if start < self._place.start or stop > self._place.stop:
            raise IndexError(f"process {jax.process_index()} has no example {start}:{stop}, only {self._place}")
        return jax.tree.map(lambda leaf: leaf[start - self._place.start : stop - self._place.start], self._rows)


def _from_first(tree: Any) -> Any:
    """A pytree of arrays of process 0."""
    from jax.experimental import multihost_utils

    return jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(tree)) if several() else tree


# --- what processes agree on


def several() -> bool:
    return jax.process_count() > 1


def count() -> int:
    return jax.process_count()


def is_first() -> bool:
    return jax.process_index() == 0


def gathered(value: Any) -> list:
    """What every process gives, as JSON can hold it, in their order."""
    if not several():
        return [value]
    from jax.experimental import multihost_utils

    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.asarray(len(text)))
    padded = np.zeros(int(np.max(lengths)), np.uint8)
    padded[: len(text)] = text
    found = np.atleast_2d(multihost_utils.process_allgather(padded))
    return [json.loads(row[:length].tobytes()) for row, length in zip(found, np.ravel(lengths), strict=True)]


def of_first(value: Any) -> Any:
    """What process 0 gives."""
    return gathered(value)[0]


def same(array: np.ndarray) -> np.ndarray:
    """The array of process 0, to the last bit; all have one of its shape."""
    if not several():
        return array
    from jax.experimental import multihost_utils

    numbers = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    found = np.asarray(multihost_utils.broadcast_one_to_all(numbers))
    return found.astype(np.uint8).view(array.dtype).reshape(array.shape)


def together(work: Callable[[], Result]) -> Result:
    """`work` in every process; where it fails in one, all stop, and the others say in which."""
    try:
        result, error = work(), None
    except Exception as caught:
        result, error = None, caught
    told = gathered(None if error is None else [isinstance(error, OSError), f"{type(error).__name__}: {error}"])
    if error is not None:
        raise error
    for process, found in enumerate(told):
        if found is not None:
            kind = OSError if found[0] else RuntimeError
            raise kind(f"process {process} of {len(told)} cannot go on: {found[1]}")
    return result  # pyright: ignore[reportReturnType]


def agree(facts: Callable[[], dict[str, Any]], difference: Callable[[dict, dict], str | None]) -> None:
    """All processes have the same facts, or an error in all of them names the first that differs, and in what."""
    if not several():
        return
    first, *others = gathered({**facts(), "program": _program()})
    for process, found in enumerate(others, 1):
        text = difference(first, found)
        if text is not None:
            raise ValueError(
                f"process {process} of {len(others) + 1} does not do what process 0 does: {text}. Every process makes "
                "the same model and passes the same X and options, with the same versions on the same kind of processor"
            )


def _program() -> dict[str, str]:
    """What must be the same wherever small matrices are computed by each process for itself."""
    return {"nfk": version("nfk"), "jax": jax.__version__, "numpy": np.__version__, "processor": _processor()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@cache
def _peers() -> list[tuple[str, int]]:
    """Machine and process id of every process."""
    return [tuple(peer) for peer in gathered([socket.gethostname(), os.getpid()])]


@contextmanager
def alive() -> Iterator[None]:
    """Where another process ends in the meantime, a `ProcessLost` that names it, as far as one can tell from here."""
    if not several():
        yield
        return
    _peers()
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if not any(word in str(error) for word in ("Gloo", "UNAVAILABLE", "heartbeat")):
            raise
        here = socket.gethostname()
        gone = [number for number, (host, pid) in enumerate(_peers()) if host == here and not _lives(pid)]
        names = " and ".join(f"process {number}" for number in gone) or "a process"
        raise ProcessLost(
            f"{names} of {jax.process_count()} has ended, and a fit needs all of them: {error}"
        ) from error


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False
    except OSError:
        return True
