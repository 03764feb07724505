"""The paper's own baseline: neural-tangents' kernel of the score, all N x N of it, and scikit-learn's TruncatedSVD."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax

# user: begin
import neural_tangents as nt
import numpy as np
from sklearn.decomposition import TruncatedSVD

# user: end
from benchmarks.peers import jax_networks
from benchmarks.peers.job import Job
from benchmarks.peers.measure import Answer, Stopwatch, contest

BATCH, SMALL_BATCH = 128, 16  # the second for more than two million parameters; vmap_axes=0 is three times faster


def prepare(job: Job) -> Callable[[Stopwatch], Answer]:
    score, params, X = jax_networks.score(job), jax_networks.params(job), jax_networks.examples(job)
    batch = min(len(X), BATCH if job.parameters < 2_000_000 else SMALL_BATCH)
    rank, budget = job.settings.rank, job.settings.budget_seconds

    def solve(watch: Stopwatch) -> Answer:
        # user: begin
        outputs = lambda params, x: jax.vmap(lambda one: score(params, one))(x)[:, None]  # noqa: E731
        method = nt.NtkImplementation.JACOBIAN_CONTRACTION
        ntk = nt.empirical_ntk_fn(outputs, implementation=method, vmap_axes=0)
        kernel = nt.batch(ntk, batch_size=batch, device_count=0)
        # user: end
        first, block = (seconds(lambda: kernel(X[:batch], None, params)) for _ in range(2))
        least = first + block * (len(X) / batch) ** 2
        if least > budget:
            return Answer(projected_seconds=least, facts={"projection": "one block of the kernel times their number"})
        # user: begin
        K = np.asarray(kernel(X, None, params))
        # user: end
        watch.lap("gram")
        # user: begin
        svd = TruncatedSVD(rank, random_state=0).fit(K)
        # user: end
        watch.lap("svd")
        return Answer(svd.singular_values_, {"batch": batch})

    return solve


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    jax.block_until_ready(work())
    return time.perf_counter() - started


if __name__ == "__main__":
    contest(prepare)
