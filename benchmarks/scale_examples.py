"""Fit time against the number of examples, on networks that others trained: how it grows, and where a dense way stops.

python -m benchmarks.scale_examples [--networks critic wrn-16-2] [--largest 16] [--output results/scale_examples.json]

A point is a process of its own, and is written down as soon as it is measured: stopped at any time, the same command
goes on. What is measured is processor time of all threads, which other work on the machine changes little.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from scipy import stats

import nfk
from benchmarks.peers import jax_networks as layers
from benchmarks.peers.machine import facts as machine
from benchmarks.peers.making import CIFAR_DEVIATION, CIFAR_MEAN, pretrained
from benchmarks.printed import environment, printed
from reproduction import data

SEED, RANK, STEPS = 0, 16, 3  # the same number of passes for every N
SMALLEST = 9
FEWEST = 4  # points that a slope is taken of
PIECE = 1024  # images that are made at a time
DENSE = 10  # 2^10 examples: the last that the dense way is run on
OPTIONS: dict[str, Any] = {
    "method": "krylov", "side": "parameters", "engine": "gradients", "keep": False, "tol": 1e-12, "max_steps": STEPS,
    "memory": "2GB", "key": SEED,
}  # fmt: skip
TITLES = {
    "critic": "critic of a DCGAN, 692,065 trained numbers",
    "wrn-16-2": "WRN-16-2, 691,674 trained numbers",
}


def main(
    networks: tuple[str, ...] = ("critic", "wrn-16-2"), largest: int = 16, point: str | None = None,
    output: Path | None = None,
) -> None:  # fmt: skip
    """Measure every point that the output does not have yet.

    Args:
        networks: whose fits are timed.
        largest: N goes from 2^9 to 2 to the power of this.
        point: one point alone, as NETWORK:WAY:EXAMPLES; what the processes of this program run.
        output: the JSON, written after each point.
    """
    if point is not None:
        print(json.dumps(measured(*point.split(":"))))
        return
    rows = json.loads(output.read_text())["rows"] if output and output.exists() else []
    for name, way, count in points(networks, largest):
        if not any((row["network"], row["way"], row["examples"]) == (name, way, count) for row in rows):
            rows.append(in_a_process(f"{name}:{way}:{count}"))
            printed(results(rows), output)


def points(networks: tuple[str, ...], largest: int) -> Iterator[tuple[str, str, int]]:
    for power in range(SMALLEST, largest + 1):
        for name in networks:
            yield name, "nfk", 2**power
            yield name, "dense", 2**power


def in_a_process(point: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scale_examples", "--point", point]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return json.loads(found.stdout.splitlines()[-1])


def results(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "environment": environment(SEED, "jax", "numpy") | machine(), "rank": RANK, "steps": STEPS,
        "slopes": {name: slope(rows, name) for name in TITLES}, "rows": rows,
    }  # fmt: skip


def slope(rows: list[dict[str, Any]], network: str) -> float | None:
    """Of log seconds over log N, by least squares; None for too few N."""
    fitted = line(rows, network)
    return fitted and fitted[0]


def line(rows: list[dict[str, Any]], network: str) -> tuple[float, float, float] | None:
    """That slope, and the ends of its 95 % interval: Student's t, the points taken as independent."""
    found = [(row["examples"], row["seconds"]) for row in rows if (row["network"], row["way"]) == (network, "nfk")]
    if len(found) < FEWEST:
        return None
    fitted = stats.linregress(*np.log(np.asarray(found, np.float64)).T)
    half = stats.t.ppf(0.975, len(found) - 2) * fitted.stderr
    return float(fitted.slope), float(fitted.slope - half), float(fitted.slope + half)


def measured(network: str, way: str, examples: str) -> dict[str, Any]:
    """Processor seconds of one fit, when all is compiled."""
    warnings.simplefilter("ignore", nfk.ConvergenceWarning)  # the number of steps is fixed, the tolerance is not met
    count = int(examples)
    model, X = MODELS[network](), images(count)
    facts = {"network": network, "way": way, "examples": count}
    options = OPTIONS if way == "nfk" else {"method": "exact", "memory": machine()["memory_bytes"], "key": SEED}
    try:
        plan = nfk.plan(model, X, RANK, **{name: value for name, value in options.items() if name in PLANNED})
    except MemoryError as error:
        return facts | {"refused": str(error)}
    if way == "dense" and count > 2**DENSE:
        return facts | {"not_run_bytes": plan.peak_bytes}
    nfk.fit(model, images(256), RANK, **options)  # compiles
    started = time.process_time()
    fitted = nfk.fit(model, X, RANK, **options)
    seconds = time.process_time() - started
    return facts | {
        "seconds": seconds, "milliseconds_an_example_and_pass": 1e3 * seconds / count / fitted.passes,
        "passes": fitted.passes, "width": plan.width, "parameters": model.layout.size,
        "planned_bytes": plan.peak_bytes,
    }  # fmt: skip


PLANNED = ("method", "side", "engine", "keep", "tol", "memory")


def images(count: int) -> np.ndarray:
    """CIFAR-10, and after its 50,000 images their mirrored copies, as bytes."""
    pictures = data.cifar10("train").images
    found = np.empty((count, *pictures.shape[1:]), np.uint8)
    for first in range(0, count, PIECE):  # not all of them as float32 again
        piece = np.arange(first, min(first + PIECE, count))
        mirrored = (piece >= len(pictures))[:, None, None, None]
        drawn = pictures[piece % len(pictures)]
        found[piece] = np.round(255 * np.where(mirrored, drawn[:, :, ::-1], drawn))
    return found


def critic() -> nfk.Model:
    """Pixels in [-1, 1]; strided convolutions, batch norms with their running statistics, a linear head."""
    tensors = pretrained("cifar10-dcgan-critic")
    head = tensors["model.12.weight"].reshape(256, 2, 2).transpose(1, 2, 0).reshape(-1, 1)
    params, buffers = split({**tensors, "model.12.weight": head.T})

    def score(params: dict, image: Any) -> Any:
        p, hidden = {**params, **buffers}, image / np.float32(127.5) - 1
        for index in (0, 2, 5, 8):
            hidden = layers._conv(p, f"model.{index}", hidden, 2, 1)
            hidden = layers._batch_norm(p, f"model.{index + 1}", hidden) if index else hidden
            hidden = layers.jax.nn.leaky_relu(hidden, 0.2)
        return layers._dense(p, "model.12", hidden.reshape(-1))[0]

    return nfk.gan(score, params, expectation="data")


def wide_resnet() -> nfk.Model:
    params, buffers = split(pretrained("cifar10-wrn-16-2-a"))
    mean, deviation = np.float32(CIFAR_MEAN), np.float32(CIFAR_DEVIATION)

    def logits(params: dict, image: Any) -> Any:
        return layers.wide_resnet({**params, **buffers}, (image / np.float32(255) - mean) / deviation)

    return nfk.classifier(logits, params)


def split(tensors: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Parameters in JAX's layout, and the running statistics of batch norms."""
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith("num_batches_tracked")}
    turned = {name: layers._converted(name, tensor, "") for name, tensor in kept.items()}
    statistics = {name: tensor for name, tensor in turned.items() if "running_" in name}
    return {name: tensor for name, tensor in turned.items() if name not in statistics}, statistics


MODELS: dict[str, Callable[[], nfk.Model]] = {"critic": critic, "wrn-16-2": wide_resnet}


if __name__ == "__main__":
    tyro.cli(main)
