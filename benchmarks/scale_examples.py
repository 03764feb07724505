"""Fit time against the number of examples, on networks that others trained: how it grows, and where a dense way stops.

python -m benchmarks.scale_examples [--networks critic wrn-16-2] [--sizes 512 1024] [--steps 1]
    [--output results/scale_examples.json]

A curve is that of one network on one kind of processor with one number of steps. A point is a process of its own, and
is written down as soon as it is measured: stopped at any time, the same command goes on. What is measured is processor
time of all threads, which other work on the machine changes little.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from scipy import stats

import nfk
from benchmarks.peers import jax_networks as layers
from benchmarks.peers.machine import facts as machine
from benchmarks.peers.machine import processor
from benchmarks.peers.making import CIFAR_DEVIATION, CIFAR_MEAN, pretrained
from benchmarks.printed import environment, printed
from reproduction import data

SEED, RANK, STEPS = 0, 16, 3  # the same number of passes for every N
SIZES = tuple(2**power for power in range(9, 17))
FEWEST = 4  # points that a slope is taken of
PIECE = 1024  # images that are made at a time
DENSE = 1024  # examples: the most that the dense way is run on
Row = dict[str, Any]
Curve = tuple[str, str, int]
OPTIONS: Row = {
    "method": "krylov", "side": "parameters", "engine": "gradients", "keep": False, "tol": 1e-12,
    "memory": "2GB", "key": SEED,
}  # fmt: skip
TITLES = {
    "critic": "critic of a DCGAN, 692,065 trained numbers",
    "wrn-16-2": "WRN-16-2, 691,674 trained numbers",
}


def main(
    networks: tuple[str, ...] = ("critic", "wrn-16-2"), sizes: tuple[int, ...] = SIZES, steps: int = STEPS,
    point: str | None = None, output: Path | None = None,
) -> None:  # fmt: skip
    """Measure every point that the output does not have yet.

    Args:
        networks: whose fits are timed.
        sizes: numbers of examples.
        steps: of the search, the same for every N; a fit takes three passes more.
        point: one point alone, as NETWORK:WAY:EXAMPLES:STEPS; what the processes of this program run.
        output: the JSON, written after each point.
    """
    if point is not None:
        network, way, *numbers = point.split(":")
        print(json.dumps(measured(network, way, *map(int, numbers))))
        return
    rows = json.loads(output.read_text())["rows"] if output and output.exists() else []
    for wanted in points(networks, sizes, steps):
        if not any(all(row[name] == value for name, value in wanted.items()) for row in rows):
            rows.append(in_a_process(wanted))
            printed(results(rows), output)


def points(networks: tuple[str, ...], sizes: tuple[int, ...], steps: int) -> Iterator[Row]:
    """What tells a point from the others: a curve, a way and a number of examples."""
    for size in sizes:
        for name in networks:
            for way in ("nfk", "dense"):
                yield {"network": name, "processor": processor(), "steps": steps, "way": way, "examples": size}


def in_a_process(wanted: Row) -> Row:
    point = ":".join(str(wanted[name]) for name in ("network", "way", "examples", "steps"))
    command = [sys.executable, "-m", "benchmarks.scale_examples", "--point", point]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return wanted | json.loads(found.stdout.splitlines()[-1])


def results(rows: list[Row]) -> dict[str, Any]:
    return {"environment": environment(SEED, "jax", "numpy") | machine(), "rank": RANK, "rows": rows}


def curves(rows: list[Row]) -> dict[Curve, list[Row]]:
    """The points of nfk by network, processor and steps, by the number of examples."""
    found: dict[Curve, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["examples"]):
        if row["way"] == "nfk":
            found[row["network"], row["processor"], row["steps"]].append(row)
    return dict(sorted(found.items()))


def slope(points: list[Row]) -> tuple[float, float, float] | None:
    """Of log seconds over log N by least squares, and the ends of its 95 % interval: Student's t, the points taken as
    independent. None for too few points."""
    if len(points) < FEWEST:
        return None
    found = np.asarray([(row["examples"], row["seconds"]) for row in points], np.float64)
    fitted = stats.linregress(*np.log(found).T)
    half = stats.t.ppf(0.975, len(found) - 2) * fitted.stderr
    return float(fitted.slope), float(fitted.slope - half), float(fitted.slope + half)


def measured(network: str, way: str, count: int, steps: int) -> Row:
    """Processor seconds of one fit, when all is compiled."""
    warnings.simplefilter("ignore", nfk.ConvergenceWarning)  # the number of steps is fixed, the tolerance is not met
    model, X = MODELS[network](), images(count)
    dense = {"method": "exact", "memory": machine()["memory_bytes"], "key": SEED}
    options = OPTIONS | {"max_steps": steps} if way == "nfk" else dense
    try:
        plan = nfk.plan(model, X, RANK, **{name: value for name, value in options.items() if name in PLANNED})
    except MemoryError as error:
        return {"refused": str(error)}
    if way == "dense" and count > DENSE:
        return {"not_run_bytes": plan.peak_bytes}
    nfk.fit(model, images(256), RANK, **options)  # compiles
    started = time.process_time()
    fitted = nfk.fit(model, X, RANK, **options)
    seconds = time.process_time() - started
    return {
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
