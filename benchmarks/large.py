"""Large networks with few examples within a small budget: peak memory, passes and seconds of one fit each.

python -m benchmarks.large [--cases forty-million resnet-18 --memory 4GB --output results/large.json]

Each fit runs in a process of its own. Memory is the most that it held beyond what it held before the fit; compilation
counts. `resnet-18` goes through nfk.torch and has the time of a gradient beside plain autograd's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import nfk
from benchmarks.peers.measure import _peak, _reset_peak
from benchmarks.printed import environment

OUTPUT = Path(__file__).resolve().parent.parent / "results" / "large.json"
CHANNELS = (3, 64, 128, 256, 512, 1024, 1024, 1024, 1568)
Case = tuple[nfk.Model, np.ndarray, int, Callable[[], dict[str, Any]]]


def forty_million() -> Case:
    """A convolutional classifier with random weights over 64 random images of 32 x 32, k = 16."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.standard_normal(shape, dtype=np.float32) / np.prod(shape[:-1]) ** 0.5  # noqa: E731
    kernels = [draw(3, 3, a, b) for a, b in pairwise(CHANNELS)]
    params = {"kernels": kernels, "last": draw(CHANNELS[-1], 10)}

    def apply(params: Any, image: jax.Array) -> jax.Array:
        image = image[None]
        for index, kernel in enumerate(params["kernels"]):
            strides = (2, 2) if index < 4 else (1, 1)
            numbers = ("NHWC", "HWIO", "NHWC")
            image = jnp.tanh(jax.lax.conv_general_dilated(image, kernel, strides, "SAME", dimension_numbers=numbers))
        return image.mean(axis=(0, 1, 2)) @ params["last"]

    return nfk.classifier(apply, params), rng.standard_normal((64, 32, 32, 3), dtype=np.float32), 16, dict


def resnet18() -> Case:
    """ResNet-18 for CIFAR-10 with fixed random weights as a PyTorch module, 512 images, k = 64."""
    import nfk.torch
    from benchmarks.peers import making, torch_networks

    job, _ = making.make("resnet-18", 512, {"kernel": "fisher", "rank": 64, "budget_seconds": 600.0})
    module = torch_networks.module(job)
    model = nfk.torch.classifier(module)
    return model, job.examples, 64, lambda: _beside_autograd(model, module, job.examples[:8])


def _beside_autograd(model: nfk.Model, module: Any, images: np.ndarray) -> dict[str, float]:
    """Seconds of one example's gradient through nfk.torch in batches of 8, and by plain autograd: the batch's mean
    gradient, and one example after another."""
    import torch

    batch, parameters = torch.from_numpy(images), list(module.parameters())
    score = lambda x: torch.logsumexp(module(x), 1).sum()  # noqa: E731
    place = np.empty((len(images), model.layout.size), np.float32)
    model.outputs(images[0])
    differentiator = model.network.differentiate(jax.random.key(0), 1)
    zero, one = ([jnp.full(size, value) for size in model.layout.sizes] for value in (0.0, 1.0))
    ways = {
        "through nfk.torch": lambda: differentiator.rows_into(place, zero, one, images),
        "plain batch gradient": lambda: torch.autograd.grad(score(batch), parameters),
        "one by one by autograd": lambda: [torch.autograd.grad(score(x[None]), parameters) for x in batch],
    }
    return {name: _best(way) / len(images) for name, way in ways.items()}


def _best(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(4):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


CASES: dict[str, Callable[[], Case]] = {"forty-million": forty_million, "resnet-18": resnet18}


def run(name: str, memory: str) -> dict[str, Any]:
    """One fit, in this process."""
    model, X, rank, beside = CASES[name]()
    start = _reset_peak()
    started = time.perf_counter()
    found = nfk.fit(model, X, rank, memory=memory, progress=False)
    seconds, peak = time.perf_counter() - started, _peak() - start
    return {
        "case": name, "parameters": model.layout.size, "examples": len(X), "rank": rank, "memory": memory,
        "seconds": seconds, "passes": found.passes, "peak_bytes": peak, "planned_bytes": found.plan.peak_bytes,
        "certificate": float(found.residuals.max()), "plan": str(found.plan), "gradient_seconds": beside(),
        "environment": environment(0, "jax", "numpy", "torch"),
    }  # fmt: skip


def main(
    cases: tuple[str, ...] = tuple(CASES), memory: str = "4GB", output: Path = OUTPUT, one: str | None = None
) -> None:
    """Run the cases, each in a process of its own, and keep what the output has of others.

    Args:
        cases: which of forty-million, resnet-18.
        memory: the budget of each fit.
        output: the results file.
        one: run this case in this process and print it.
    """
    if one is not None:
        print(json.dumps(run(one, memory)))
        return
    found = json.loads(output.read_text()) if output.exists() else []
    for name in cases:
        command = [sys.executable, "-m", "benchmarks.large", "--one", name, "--memory", memory]
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=dict(os.environ)).stdout
        new = json.loads(lines.splitlines()[-1])
        found = [row for row in found if (row["case"], row["memory"]) != (name, memory)] + [new]
        output.write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(new, indent=1))


def table(rows: list[dict]) -> str:
    """results/large.json in the documentation."""
    if not rows:
        return "Not measured yet: `python -m benchmarks.large`.\n"
    lines = [
        "| network | parameters | examples, k | budget | memory beyond the start | passes | seconds | certificate |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['case']} | {row['parameters']:,} | {row['examples']}, {row['rank']} | {row['memory']} | "
            f"{row['peak_bytes'] / 2**30:.2f} GiB | {row['passes']} | {row['seconds']:.0f} | {row['certificate']:.0e} |"
        )
    for row in rows:
        if row["gradient_seconds"]:
            parts = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in row["gradient_seconds"].items())
            lines += ["", f"One gradient of {row['case']}: {parts}."]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    tyro.cli(main)
