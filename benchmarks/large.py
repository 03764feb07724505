"""Large networks with few examples within a small budget: peak memory, passes and seconds of one fit each.

python -m benchmarks.large [--cases forty-million resnet-18 gradient --memory 4GB --output results/large.json]

Each fit runs in a process of its own, on one core, with one thread, and without a disk. Memory is the most that the
process held beyond what it held before the fit; compilation counts. `gradient` is one example's gradient of the
ResNet-18 through nfk.torch beside plain autograd, in turn, medians of processor seconds.
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
from benchmarks.peers.machine import facts as machine
from benchmarks.peers.measure import _peak, _reset_peak
from benchmarks.peers.running import FORCED, ONE_THREAD
from benchmarks.printed import environment

OUTPUT = Path(__file__).resolve().parent.parent / "results" / "large.json"
CHANNELS = (3, 64, 128, 256, 512, 1024, 1024, 1024, 1568)
BATCHES = (1, 8)
ROUNDS = 9
Case = tuple[nfk.Model, np.ndarray, int]


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

    return nfk.classifier(apply, params), rng.standard_normal((64, 32, 32, 3), dtype=np.float32), 16


def resnet18(examples: int = 512) -> Case:
    """ResNet-18 for CIFAR-10 with fixed random weights as a PyTorch module, 512 images, k = 64."""
    import nfk.torch

    module, images = _resnet18(examples)
    return nfk.torch.classifier(module), images, 64


def _resnet18(examples: int) -> tuple[Any, np.ndarray]:
    from benchmarks.peers import making, torch_networks

    job, _ = making.make("resnet-18", examples, {})
    return torch_networks.module(job), job.examples


CASES: dict[str, Callable[[], Case]] = {"forty-million": forty_million, "resnet-18": resnet18}


def fitted(name: str, memory: str) -> dict[str, Any]:
    """One fit, in this process."""
    model, X, rank = CASES[name]()
    start, started, spent = _reset_peak(), time.perf_counter(), time.process_time()
    found = nfk.fit(model, X, rank, memory=memory, scratch=False, progress=False)
    seconds, spent, peak = time.perf_counter() - started, time.process_time() - spent, _peak() - start
    return {
        "parameters": model.layout.size, "examples": len(X), "rank": rank, "memory": memory, "seconds": seconds,
        "processor_seconds": spent, "passes": found.passes, "start_bytes": start, "peak_bytes": peak,
        "planned_bytes": found.plan.peak_bytes, "certificate": float(found.residuals.max()), "plan": str(found.plan),
    }  # fmt: skip


def gradient() -> dict[str, Any]:
    """Processor seconds of one example's gradient, normalised and in its row, and of plain autograd's, alone in its
    batch and as one of the mean gradient of several; all are run in turn."""
    ways = {}
    for count in BATCHES:
        ways[f"through nfk.torch, batches of {count}"], ways[f"plain autograd, batches of {count}"] = _gradients(count)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS + 1):
        for (name, way), count in zip(ways.items(), np.repeat(BATCHES, 2), strict=True):
            started = time.process_time()
            way()
            times[name].append((time.process_time() - started) / count)
    return {"rounds": ROUNDS, "seconds": {name: float(np.median(all_[1:])) for name, all_ in times.items()}}


def _gradients(count: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    import torch

    import nfk.torch

    module, images = _resnet18(max(BATCHES))
    model, batch, parameters = nfk.torch.classifier(module), torch.from_numpy(images[:count]), [*module.parameters()]
    place = np.zeros((count, model.layout.size), np.float32)
    model.outputs(images[0])
    differentiator = model.network.differentiate(jax.random.key(0), 1)
    mean, scale = ([jnp.full(size, value) for size in model.layout.sizes] for value in (0.5, 2.0))
    return (
        lambda: differentiator.rows_into(place, mean, scale, images[:count]),
        lambda: torch.autograd.grad(torch.logsumexp(module(batch), 1).sum(), parameters),
    )


def main(
    cases: tuple[str, ...] = (*CASES, "gradient"),
    memory: str = "4GB",
    output: Path = OUTPUT,
    one: str | None = None,
) -> None:
    """Run the cases, each in a process of its own, and keep what the output has of others.

    Args:
        cases: which of forty-million, resnet-18, gradient.
        memory: the budget of each fit.
        output: the results file.
        one: run this case in this process and print it.
    """
    if one is not None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        found = gradient() if one == "gradient" else fitted(one, memory)
        print(json.dumps({**found, "environment": environment(0, "jax", "numpy", "torch") | machine()}))
        return
    for name in cases:
        command = [sys.executable, "-m", "benchmarks.large", "--one", name, "--memory", memory]
        variables = {key: value for key, value in os.environ.items() if key not in FORCED} | ONE_THREAD
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables).stdout
        new = json.loads(lines.splitlines()[-1])
        found = json.loads(output.read_text()) if output.exists() else {}
        output.write_text(json.dumps({**found, name: new}, indent=1) + "\n")
        print(json.dumps(new, indent=1), flush=True)


if __name__ == "__main__":
    tyro.cli(main)
