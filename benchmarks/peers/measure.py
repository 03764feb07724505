"""Seconds and memory of one contestant in its own process, printed as one line of JSON. Needs numpy alone.

Time runs from the moment when weights and examples are in memory and all is imported, to the moment when eigenvalues
and basis are there: compilation is part of it, imports are not.
"""

from __future__ import annotations

import json
import platform
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import job as jobs

PACKAGES = (
    "numpy", "scipy", "scikit-learn", "jax", "torch", "nfk", "neural-tangents", "curvlinops-for-pytorch", "matfree",
    "nngeometry",
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """Eigenvalues, largest first; None where the work was projected and not done, or there are none.

    `train` are the embeddings of the job's examples, `embed` makes those of its new ones.
    """

    eigenvalues: np.ndarray | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    projected_seconds: float | None = None
    train: np.ndarray | None = None
    embed: Callable[[], np.ndarray] | None = None


class Stopwatch:
    """Seconds of named stages, one after another."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self.started = self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """What ran since the last lap belongs to this stage."""
        now = time.perf_counter()
        self.stages[stage] = self.stages.get(stage, 0.0) + now - self._last
        self._last = now

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started


LEAST_SECONDS = 0.5  # what is timed by itself is repeated for so long, at least three times


def best(work: Callable[[], object]) -> float:
    """The least seconds of several runs, after one that compiles or warms up."""
    work()
    times: list[float] = []
    while len(times) < 3 or sum(times) < LEAST_SECONDS:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


Contestant = Callable[[jobs.Job], Callable[[Stopwatch], Answer]]


def contest(prepare: Contestant) -> None:
    """Read the job named on the command line, prepare (untimed), solve (timed), print; embed where a file is named."""
    job = jobs.read(Path(sys.argv[1]))
    solve = prepare(job)
    baseline = _reset_peak()
    processor = time.process_time()
    watch = Stopwatch()
    answer = solve(watch)
    seconds = watch.seconds
    processor = time.process_time() - processor
    peak = _peak() - baseline
    embedding = _embed(answer, Path(sys.argv[2])) if job.new_examples is not None and len(sys.argv) > 2 else {}
    print(json.dumps({**_line(answer, watch, seconds, processor, peak), **embedding}))


def _embed(answer: Answer, output: Path) -> dict[str, float]:
    """Write the embeddings of the job's examples and of the new ones; seconds of the latter."""
    if answer.embed is None:
        return {}
    started = time.perf_counter()
    new = answer.embed()
    seconds = time.perf_counter() - started
    np.savez(output, train=answer.train, test=new)
    return {"embed_seconds": seconds}


def _line(answer: Answer, watch: Stopwatch, seconds: float, processor: float, peak: int) -> dict:
    values = answer.eigenvalues
    return {
        "seconds": None if answer.projected_seconds else seconds,
        "projected_seconds": answer.projected_seconds,
        "processor_seconds": processor, "stages": watch.stages, "peak_bytes": peak,
        "eigenvalues": None if values is None else np.asarray(values, np.float64).tolist(),
        "facts": answer.facts, "versions": versions(),
    }  # fmt: skip


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    # What ran: an editable installation keeps the number of the version that it was made of.
    return found | ({"nfk": sys.modules["nfk"].__version__} if "nfk" in sys.modules else {})


def _status(name: str) -> int | None:
    """Bytes of an entry of /proc/self/status."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)


def _reset_peak() -> int:
    """Forget the peak of the imports; what is resident now, in bytes."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _peak()
    return _status("VmRSS") or _peak()


def _peak() -> int:
    """The most that was resident. Of /proc where it is: getrusage also counts what the parent held at the fork."""
    return _status("VmHWM") or 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
