"""Reference eigenvalues, computed once per job by `benchmarks.peers.oracle` and kept beside the environments."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.peers.environments import ROOT, python
from benchmarks.peers.job import Job


@dataclass(frozen=True)
class Reference:
    """The top eigenvalues in float64, and those of gradients in float32 with all else in float64 (None: not made)."""

    exact: np.ndarray
    rounded: np.ndarray | None = None

    def error(self, eigenvalues: np.ndarray) -> float:
        """The worst relative error of the given eigenvalues, largest first."""
        return float(np.max(np.abs(np.asarray(eigenvalues) / self.exact[: len(eigenvalues)] - 1)))

    def rounding(self, rank: int) -> float | None:
        """The error that float32 gradients alone have."""
        return None if self.rounded is None else self.error(self.rounded[:rank])


def eigenvalues(job: Job, path: Path, environments: Path) -> Reference:
    """Those of the job in the file, from the cache where they are there."""
    cached = (
        environments / "oracle" / f"{job.settings.network}-{len(job.examples)}-{job.settings.kernel}-{digest(job)}.npz"
    )
    if not cached.exists():
        print(f"float64 eigenvalues of {cached.stem} ...", file=sys.stderr, flush=True)
        cached.parent.mkdir(parents=True, exist_ok=True)
        command = [str(python("nfk", environments)), "-m", "benchmarks.peers.oracle", str(path), str(cached)]
        subprocess.run(command, check=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"})
    with np.load(cached) as archive:
        return Reference(**{name: archive[name] for name in archive.files})


def digest(job: Job) -> str:
    """What the eigenvalues depend on: not the rank, the tolerance or the budget."""
    settings = job.settings
    facts = (settings.family, settings.kernel, settings.centred, settings.damping)
    found = hashlib.sha256(repr(facts).encode())
    arrays = [job.examples, *([] if job.samples is None else [job.samples])]
    for array in [*job.weights.values(), *job.buffers.values(), *arrays]:
        found.update(np.ascontiguousarray(array))
    return found.hexdigest()[:12]
