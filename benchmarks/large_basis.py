"""Bases that are larger than the memory they are given: a hierarchical VAE of 39 million parameters, and a ResNet-18.

python -m benchmarks.large_basis vae [--memory 12GB] [--folder DIR] [--output results/large_basis.json]
python -m benchmarks.large_basis resnet18

Stopped at any time, the same command goes on from its last finished pass. What is measured as memory is what the
process has of its own (RssAnon of Linux): pages of memory maps belong to their files and go when memory is short.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import tyro

import nfk
from benchmarks.own_memory import OwnMemory
from benchmarks.peers.machine import facts as machine
from benchmarks.printed import environment, printed
from reproduction import data

SEED = 0
CASES: dict[str, tuple[Callable[[int], tuple[nfk.Model, np.ndarray]], int, int, str]] = {}


def main(
    name: Annotated[str, tyro.conf.Positional], examples: int | None = None, rank: int | None = None,
    memory: str | None = None, scratch: str | None = None, folder: Path | None = None, output: Path | None = None,
    only_plan: bool = False,
) -> None:  # fmt: skip
    """One fit with its plan, its time, its memory and its certificate, as JSON.

    Args:
        name: vae, resnet18, or resnet18-few (256 images in 3 GB, so that everything lies on disk).
        examples: how many images of CIFAR-10.
        rank: components.
        memory: the budget.
        scratch: a folder on disk for what does not fit; the system's for temporary files by default.
        folder: where finished passes are kept; a temporary one by default.
        output: also write the JSON here, beside what the file has of other fits.
        only_plan: print the plan and stop.
    """
    build, most, components, budget = CASES[name]
    model, X = build(examples or most)
    options = {"rank": rank or components, "memory": memory or budget, "scratch": scratch}
    plan = nfk.plan(model, X, **options)
    print(plan, flush=True)
    if only_plan:
        return
    found = measured(model, X, options, folder or Path(tempfile.mkdtemp()))
    old = json.loads(output.read_text())["rows"] if output and output.exists() else {}
    rows = {**old, name: {"budget": options["memory"], "plan": str(plan), **found}}
    printed({"environment": environment(SEED, "jax", "numpy", "torch") | machine(), "rows": rows}, output)


def measured(model: nfk.Model, X: np.ndarray, options: dict[str, Any], folder: Path) -> dict[str, Any]:
    earlier = _earlier(folder)
    started = time.perf_counter(), time.process_time()
    with OwnMemory() as memory:
        fitted = nfk.fit(model, X, checkpoint=folder / "passes", key=SEED, **options)
        seconds, spent = time.perf_counter() - started[0], time.process_time() - started[1]
    embedded = fitted(X[:4], memory="12GB")
    error = np.abs(embedded - fitted.training[:4]).max() / np.abs(fitted.training).max()
    return {
        "parameters": model.layout.size, "examples": len(X), "rank": fitted.rank, "way": str(fitted.plan.way.method),
        "gradients_on_disk": fitted.plan.way.shelf, "basis_in_memory_maps": fitted.plan.way.mapped,
        "disk_bytes": fitted.plan.way.disk_bytes, "planned_bytes": fitted.plan.peak_bytes,
        "planned_seconds": fitted.plan.seconds, "seconds_of_this_run": seconds, "processor_seconds": spent,
        "own_bytes_at_the_start": memory.start, "own_bytes_at_the_peak": memory.most,
        "resident_with_mapped_files_at_the_peak": memory.resident, "runs_before": earlier, "passes": fitted.passes,
        "worst_residual": float(fitted.residuals.max()),
        "explained_variance": float(fitted.explained_variance_ratio.sum()),
        "embedding_again_relative_difference": float(error),
    }  # fmt: skip


def _earlier(folder: Path) -> int:
    """How often this fit was begun before: the seconds are of the last run alone."""
    folder.mkdir(parents=True, exist_ok=True)
    count = folder / "runs"
    before = int(count.read_text()) if count.exists() else 0
    count.write_text(str(before + 1))
    return before


def vae(count: int) -> tuple[nfk.Model, np.ndarray]:
    """The hierarchical VAE of CIFAR-10, 39,145,700 parameters, as it is initialised: nobody's weights are at hand."""
    from flax import nnx

    from reproduction.networks.vdvae import VDVAE

    model = nfk.vae(*nfk.from_nnx(VDVAE.paper(rngs=nnx.Rngs(SEED)), method="elbo"))
    return model, data.cifar10("train").images[:count]


def resnet18(count: int) -> tuple[nfk.Model, np.ndarray]:
    """A PyTorch module of 11,173,962 fixed random parameters."""
    import nfk.torch
    from benchmarks.peers import torch_networks
    from benchmarks.peers.making import make

    job, _ = make("resnet-18", count, {})
    return nfk.torch.classifier(torch_networks.module(job)), job.examples


CASES |= {
    "vae": (vae, 96, 64, "12GB"),
    "resnet18": (resnet18, 2000, 128, "8GB"),
    "resnet18-few": (resnet18, 256, 128, "3GB"),
}


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    tyro.cli(main)
