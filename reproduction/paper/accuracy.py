"""Figure 3's right half: the error of every eigenvalue beside its share of the variance, LeNet-5 that others trained.

The reference is the whole kernel matrix from float64 gradients, in float64, and its leading eigenvalues by ARPACK.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse.linalg
import torch

import nfk
from reproduction import figures
from reproduction.data import mnist
from reproduction.paper.critics import few_inputs
from reproduction.paper.rehearsal import Fit
from reproduction.pretrained import Pretrained, load
from reproduction.tasks.ledger import Ledger, Row

NETWORK = "mnist-lenet5"
METHODS: dict[str, dict[str, Any]] = {
    "nfk, tol = 1e-2 (default)": {},
    "nfk, tol = 1e-3": {"tol": 1e-3},
    "the paper's 10 power iterations": {"method": "power"},
}


@dataclass(frozen=True)
class Settings:
    examples: int = 10_000
    rank: int = 128
    tile: int = 2_500  # examples whose float64 gradients are held at a time, twice
    memory: str = "3GB"


PRESETS = {"smoke": Settings(examples=60, rank=8, tile=25), "cpu": Settings(), "paper": Settings()}
SMALLER = ("One key for each method: the errors are of one run, and the reference is exact to 1e-12.",)


def fits(settings: Settings) -> Iterator[Fit]:
    """The fit whose eigenvalues are compared."""
    found = load(NETWORK)
    yield Fit(f"{NETWORK}, rank {settings.rank}", found.model(), few_inputs(found), settings.examples, settings.rank)


def run(ledger: Ledger, pictures: Path, settings: Settings) -> list[Row]:
    found = load(NETWORK)
    X = found.inputs(mnist("train").images[: settings.examples])
    exact = reference(ledger, settings, found, X)
    values, total = exact["values"], float(exact["trace"])
    rows: list[Row] = [
        {"method": "float64, exact", "metric": "share of variance", "data": "MNIST", "examples": len(X),
         "value": (top := float(values.sum() / total)), "low": top, "high": top, "each": (values / total).tolist()}
    ]  # fmt: skip
    for name, options in METHODS.items():
        kept = ledger.arrays(name, partial(_fitted, ledger.folder / "fits", name, options, found, X), settings)
        errors = np.abs(kept["values"] / values - 1)
        rows.append({
            "method": name, "metric": "worst relative error of an eigenvalue", "value": float(errors.max()),
            "low": float(errors.min()), "high": float(errors.max()), "median": float(np.median(errors)),
            "each": errors.tolist(), "passes": int(kept["passes"]), "examples": len(X), "data": "MNIST",
        })  # fmt: skip
    _figure(rows, pictures)
    return rows


def _fitted(folder: Path, name: str, options: dict, found: Pretrained, X: np.ndarray, settings: Settings) -> dict:
    """Eigenvalues of one fit, which goes on from its checkpoint where it was interrupted."""
    place = folder / "-".join(name.split()).replace(",", "")
    fitted = nfk.fit(found.model(), X, settings.rank, memory=settings.memory, checkpoint=place, **options)
    shutil.rmtree(place, ignore_errors=True)
    return {"values": fitted.eigenvalues, "passes": np.array(fitted.passes)}


def reference(ledger: Ledger, settings: Settings, found: Pretrained, X: np.ndarray) -> dict[str, np.ndarray]:
    """The leading eigenvalues and the trace of K = V V', V = (g - z) / sqrt(F + 1e-4 mean(F)), all in float64."""
    starts = range(0, len(X), settings.tile)
    module = load(NETWORK).module.double()
    parameters = {name: value.detach() for name, value in module.named_parameters()}

    def free_energy(parameters: dict, example: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(torch.func.functional_call(module, parameters, (example[None],))[0], 0)

    each = torch.func.vmap(torch.func.grad(free_energy), in_dims=(None, 0))

    def gradients(start: int) -> np.ndarray:
        parts = torch.as_tensor(X[start : start + settings.tile], dtype=torch.float64).split(100)
        made = [each(parameters, part) for part in parts]
        return np.concatenate([np.hstack([g.flatten(1).numpy() for g in one.values()]) for one in made])

    moments = ledger.arrays("moments", lambda _: _moments(gradients, starts, len(X)), settings)
    blocks: dict[int, np.ndarray] = {}

    def block(first: int, second: int, _: Settings) -> dict[str, np.ndarray]:
        for start in [start for start in blocks if start not in (first, second)]:
            del blocks[start]
        for start in (first, second):
            if start not in blocks:
                blocks[start] = (gradients(start) - moments["mean"]) * moments["scale"]
        return {"block": blocks[first] @ blocks[second].T}

    def decomposed(_: Settings) -> dict[str, np.ndarray]:
        K = np.empty((len(X), len(X)))
        for a in starts:
            for b in (start for start in starts if start >= a):
                made = ledger.arrays(f"block {a} {b}", partial(block, a, b), settings)["block"]
                K[a : a + len(made), b : b + made.shape[1]] = made
                K[b : b + made.shape[1], a : a + len(made)] = made.T
        values = scipy.sparse.linalg.eigsh(K, settings.rank, return_eigenvectors=False, v0=np.ones(len(K)))
        return {"values": np.sort(values)[::-1], "trace": np.trace(K)}

    exact = ledger.arrays("exact", decomposed, settings)
    for path in ledger.folder.glob("block *.npz"):
        path.unlink()
    return exact


def _moments(gradients: Callable[[int], np.ndarray], starts: range, count: int) -> dict[str, np.ndarray]:
    """z and s of V_x = s * (g(x) - z), by the definition, in two passes."""
    mean = sum(gradients(start).sum(axis=0) for start in starts) / count
    fisher = sum(((gradients(start) - mean) ** 2).sum(axis=0) for start in starts) / count
    alive = fisher >= 1e-12 * fisher.max()
    return {"mean": mean, "scale": np.where(alive, 1 / np.sqrt(np.where(alive, fisher, 1) + 1e-4 * fisher.mean()), 0)}


def _figure(rows: list[Row], pictures: Path) -> None:
    share, *methods = rows
    across = np.arange(1, len(share["each"]) + 1)
    lines = {line["method"]: (across, np.maximum(line["each"], 1e-10)) for line in methods}
    lines["share of the variance"] = (across, share["each"])
    title = f"LeNet-5, {share['examples']:,} digits: relative error of each eigenvalue"
    figures.curves(lines, pictures / "errors.png", title, "eigenmode", "relative error; share", logarithmic_y=True)
