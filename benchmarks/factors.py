"""The kernel matrix of an NTK from the factors of layers, beside that from gradients that are kept.

taskset -c 0 python -m benchmarks.factors [--examples 512 --rounds 3 --output results/factors.json]

Pinned to one core, everything compiled, batches as the plan has them, the two in turn; medians of seconds for the whole
matrix, gradients included.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from flax import nnx

import nfk
from benchmarks.printed import environment, printed
from nfk.model import Model, split_key
from nfk.operator.factors import FactorOperator
from nfk.operator.gradients import GradientOperator
from nfk.operator.moments import Moments
from nfk.operator.stream import GradientStream
from nfk.planning.batches import suitable_batching
from nfk.planning.problem import Problem
from nfk.progress import Reporter
from nfk.spaces import HOST
from nfk.stream import Examples
from reproduction.networks.classifiers import LeNet5

SEED = 0
OUTPUT = Path(__file__).resolve().parent.parent / "results" / "factors.json"


def main(examples: int = 512, rounds: int = 3, output: Path | None = OUTPUT) -> None:
    """Time both ways for a convolutional network and a wide dense one.

    Args:
        examples: N, random images of 28 x 28.
        rounds: how often each is run; medians are recorded.
        output: the results file.
    """
    networks = {"LeNet-5": lenet(), "dense, 784-1024-512-1": dense()}
    measured = [measure(name, model, examples, rounds) for name, model in networks.items()]
    found = {"environment": environment(SEED, "jax", "numpy", "flax"), "rounds": rounds, "networks": measured}
    printed(found, output)


def measure(name: str, model: Model, examples: int, rounds: int) -> dict[str, Any]:
    X = np.random.default_rng(SEED).random((examples, 28, 28, 1), dtype=np.float32)
    batching, microbatch = suitable_batching(Problem.of(model, Examples(X)), HOST)
    differentiator = model.network.differentiate(split_key(SEED)[2], 1, batching)
    stream = GradientStream(differentiator, Examples(X), HOST, microbatch, Reporter(show=False))
    moments, kept = Moments.trivial(model), HOST.store(examples, stream.layout)
    ways = {
        "gradients": lambda: GradientOperator(stream, moments, examples, kept).gram(),
        "factors": lambda: FactorOperator(stream, moments, microbatch, centred=False).gram(),
    }
    first, second = (run() for run in ways.values())  # and they are compiled
    seconds = {way: [] for way in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            started = time.perf_counter()
            run()
            seconds[way].append(time.perf_counter() - started)
    return {
        "network": name, "examples": examples, "parameters": model.layout.size,
        "parameters_with_factors": sum(a * d for _, a, d in model.network.factored(X[0])),
        "seconds": {way: float(np.median(times)) for way, times in seconds.items()}, "all_seconds": seconds,
        "difference": float(np.abs(first - second).max() / np.abs(first).max()),
    }  # fmt: skip


def lenet() -> Model:
    """The first logit of a LeNet with fixed random weights."""
    module = LeNet5(rngs=nnx.Rngs(SEED))
    module.eval()
    graph, params, others = nnx.split(module, nnx.Param, ...)
    return nfk.network(lambda params, x: nnx.merge(graph, params, others)(x[None])[0, 0], params)


def dense() -> Model:
    """Two wide hidden layers with fixed random weights, one output."""
    sizes = [(784, 1024), (1024, 512), (512, 1)]
    keys = jax.random.split(jax.random.key(SEED), len(sizes))
    params = [jax.random.normal(key, size) / size[0] ** 0.5 for key, size in zip(keys, sizes, strict=True)]

    def apply(params: Any, x: jax.Array) -> jax.Array:
        first, second, last = params
        return (jnp.tanh(jnp.tanh(x.reshape(-1) @ first) @ second) @ last)[0]

    return nfk.network(apply, params)


if __name__ == "__main__":
    tyro.cli(main)
