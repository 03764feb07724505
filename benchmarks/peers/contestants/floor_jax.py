"""What no way can go below, in JAX: seconds of a plain batch gradient per example; and the rate of numpy's sgemm."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from benchmarks.peers import jax_networks
from benchmarks.peers.job import Job
from benchmarks.peers.measure import Answer, Stopwatch, best, contest

BATCHES = (8, 16, 32, 64, 128)
SQUARE = 2048


def prepare(job: Job) -> Callable[[Stopwatch], Answer]:
    score, params, X = jax_networks.score(job), jax_networks.params(job), jax_networks.examples(job)
    gradient = jax.jit(jax.grad(lambda params, x: jax.vmap(lambda one: score(params, one))(x).sum()))

    def batch_gradient(size: int) -> Callable[[], object]:
        return lambda: jax.block_until_ready(gradient(params, X[:size]))

    def solve(watch: Stopwatch) -> Answer:
        found = {size: best(batch_gradient(size)) / size for size in BATCHES if size <= len(X)}
        watch.lap("gradients")
        A = np.random.default_rng(0).standard_normal((SQUARE, SQUARE), dtype=np.float32)
        rate = 2 * SQUARE**3 / best(lambda: A @ A)
        watch.lap("sgemm")
        batch = min(found, key=found.get)
        return Answer(facts={"gradient_seconds": found[batch], "batch": batch, "flop_per_second": rate})

    return solve


if __name__ == "__main__":
    contest(prepare)
