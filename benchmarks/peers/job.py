"""What every contestant is given: a network, its weights, the examples, and what to find. One npz file.

Needs numpy alone: it is read in environments of several ages.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

DEAD = 1e-12  # a Fisher information below this share of the largest takes no part
ARRAYS = ("examples", "samples", "new_examples")
TENSORS = ("weights", "buffers")


@dataclass(frozen=True)
class Settings:
    """What to find: the top `rank` eigenvalues of K(x, y) = <V_x, V_y>, V_x = s * (g(x) - z), g the score's gradient.

    kernel "fisher": s = 1 / sqrt(F + damping * mean(F)), 0 where F < 1e-12 max(F), with z and the diagonal F over
    `samples`, or over the examples where there are none; z = 0 unless centred. kernel "plain": z = 0, s = 1.
    """

    network: str
    family: str  # "classifier": score = logsumexp of the logits; "gan": the output; "density": log p(x)
    kernel: str = "fisher"
    rank: int = 32
    tol: float | None = None  # None: the contestant's default
    centred: bool = True
    damping: float = 1e-4
    budget_seconds: float = 600.0


@dataclass(frozen=True)
class Job:
    """Settings and arrays: images with channels first, as PyTorch has them, or tokens; tensors by their names there."""

    settings: Settings
    weights: dict[str, np.ndarray]
    examples: np.ndarray
    buffers: dict[str, np.ndarray] = field(default_factory=dict)
    samples: np.ndarray | None = None
    new_examples: np.ndarray | None = None

    @property
    def parameters(self) -> int:
        return sum(tensor.size for tensor in self.weights.values())

    @property
    def kernel_is_fisher(self) -> bool:
        return self.settings.kernel == "fisher"


def write(job: Job, path: Path) -> None:
    arrays: dict[str, Any] = {name: getattr(job, name) for name in ARRAYS if getattr(job, name) is not None}
    for group in TENSORS:
        arrays |= {f"{group}/{name}": tensor for name, tensor in getattr(job, group).items()}
    np.savez(path, settings=json.dumps(asdict(job.settings)), **arrays)


def read(path: Path) -> Job:
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in ARRAYS if name in archive.files}
        tensors = {
            group: {name.split("/", 1)[1]: archive[name] for name in archive.files if name.startswith(f"{group}/")}
            for group in TENSORS
        }
        return Job(Settings(**json.loads(str(archive["settings"]))), **tensors, **arrays)
