"""The paper's algorithm as it is printed: vmap of jvp and vjp over k + 10 columns, ten power iterations.

Where 22 sweeps would take longer than the budget, one batch of each product is timed and the total is projected.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import paper
from benchmarks.peers import jax_networks
from benchmarks.peers.job import DEAD, Job
from benchmarks.peers.measure import Answer, Stopwatch, contest

BATCH = 32
OVERSAMPLES = 10


def prepare(job: Job) -> Callable[[Stopwatch], Answer]:
    X = jax_networks.examples(job)
    over = X if job.samples is None else jax_networks.examples(job, "samples")

    def solve(watch: Stopwatch) -> Answer:
        sweeps = Sweeps(job, X, over)
        watch.lap("moments")
        total = watch.seconds + sweeps.seconds() * paper.SWEEPS / 2
        watch.lap("one batch of each")
        if total > job.settings.budget_seconds:
            return Answer(projected_seconds=total, facts={"projection": "one batch of each product, 22 sweeps"})
        values = sweeps.power_iterations(job.settings.rank)
        watch.lap("sweeps")
        return Answer(values, {"sweeps": paper.SWEEPS})

    return solve


class Sweeps:
    """V M and V' W over all examples, a batch after another."""

    def __init__(self, job: Job, X: np.ndarray, over: np.ndarray) -> None:
        score = jax_networks.score(job)
        self.params, self.X, self.columns = jax_networks.params(job), X, job.settings.rank + OVERSAMPLES
        self.forward, self.reverse = paper.jacobian_matrix_product(score), paper.matrix_jacobian_product(score)
        self.mean, self.scale = moments(job, score, self.params, over)

    def jvp(self, M: Any) -> np.ndarray:
        parts = [self.forward(self.params, x, M, self.mean, self.scale) for x in self._batches()]
        return np.concatenate([np.asarray(part) for part in parts])

    def vjp(self, W: np.ndarray) -> Any:
        total = None
        for index, x in enumerate(self._batches()):
            part = self.reverse(self.params, x, W[BATCH * index : BATCH * index + len(x)], self.mean, self.scale)
            total = part if total is None else jax.tree.map(jnp.add, total, part)
        return total

    def _batches(self) -> list[np.ndarray]:
        return [self.X[a : a + BATCH] for a in range(0, len(self.X), BATCH)]

    def seconds(self) -> float:
        """Of one sweep with each product, from one batch of each after compilation."""
        x, W = self.X[:BATCH], np.ones((len(self.X[:BATCH]), self.columns), np.float32)
        M = jax.tree.map(lambda leaf: np.ones((self.columns, *leaf.shape), np.float32), self.params)
        pair = lambda: jax.block_until_ready(  # noqa: E731
            (
                self.forward(self.params, x, M, self.mean, self.scale),
                self.reverse(self.params, x, W, self.mean, self.scale),
            )
        )
        pair()
        started = time.perf_counter()
        pair()
        return (time.perf_counter() - started) * len(self.X) / len(x)

    def power_iterations(self, rank: int) -> np.ndarray:
        """Eigenvalues after one VJP sweep, ten of each, and one JVP sweep."""
        M = orthonormal(
            self.vjp(np.random.default_rng(0).standard_normal((len(self.X), self.columns), dtype=np.float32))
        )
        for _ in range((paper.SWEEPS - 2) // 2):
            M = orthonormal(self.vjp(self.jvp(M)))
        return np.linalg.svd(self.jvp(M), compute_uv=False)[:rank] ** 2


@jax.jit
def orthonormal(M: Any) -> Any:
    """Columns, which run along the leading axis of every leaf, made orthonormal by QR."""
    leaves, structure = jax.tree.flatten(M)
    joint = jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
    Q = jnp.linalg.qr(joint.T)[0].T
    ends = np.cumsum([leaf[0].size for leaf in leaves])[:-1]
    pieces = zip(jnp.split(Q, ends, axis=1), leaves, strict=True)
    return jax.tree.unflatten(structure, [piece.reshape(leaf.shape) for piece, leaf in pieces])


def moments(job: Job, score: Callable, params: Any, over: np.ndarray) -> tuple[Any, Any]:
    """z and s as trees of parameters."""
    if not job.kernel_is_fisher:
        return jax.tree.map(np.zeros_like, params), jax.tree.map(np.ones_like, params)
    per_example = jax.jit(jax.vmap(jax.grad(score), (None, 0)))
    total = squares = jax.tree.map(lambda leaf: np.zeros(leaf.shape), params)
    for a in range(0, len(over), BATCH):
        g = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), per_example(params, over[a : a + BATCH]))
        total = jax.tree.map(lambda sum_, leaf: sum_ + leaf.sum(0), total, g)
        squares = jax.tree.map(lambda sum_, leaf: sum_ + (leaf**2).sum(0), squares, g)
    z = jax.tree.map(lambda leaf: leaf / len(over) * job.settings.centred, total)
    F = jax.tree.map(lambda leaf, mean: np.maximum(leaf / len(over) - mean**2, 0), squares, z)
    everything = np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(F)])
    floor, ridge = DEAD * everything.max(), job.settings.damping * everything.mean()
    scale = jax.tree.map(lambda f: np.where(f > floor, 1 / np.sqrt(np.maximum(f, floor) + ridge), 0), F)
    single = lambda tree: jax.tree.map(lambda leaf: leaf.astype(np.float32), tree)  # noqa: E731
    return single(z), single(scale)


if __name__ == "__main__":
    contest(prepare)
