"""What no way can go below, in JAX: seconds of a plain batch gradient per example."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax

from benchmarks.peers import jax_networks
from benchmarks.peers.job import Job
from benchmarks.peers.measure import Answer, Stopwatch, contest

BATCHES = (8, 16, 32, 64, 128)
SECONDS = 0.5


def prepare(job: Job) -> Callable[[Stopwatch], Answer]:
    score, params, X = jax_networks.score(job), jax_networks.params(job), jax_networks.examples(job)
    gradient = jax.jit(jax.grad(lambda params, x: jax.vmap(lambda one: score(params, one))(x).sum()))

    def seconds(size: int) -> float:
        run = lambda: jax.block_until_ready(gradient(params, X[:size]))  # noqa: E731
        run()
        times: list[float] = []
        while len(times) < 3 or sum(times) < SECONDS:
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
        return min(times) / size

    def solve(watch: Stopwatch) -> Answer:
        found = {size: seconds(size) for size in BATCHES if size <= len(X)}
        watch.lap("gradients")
        batch = min(found, key=found.get)
        return Answer(facts={"gradient_seconds": found[batch], "batch": batch})

    return solve


if __name__ == "__main__":
    contest(prepare)
