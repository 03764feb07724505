"""curvlinops' Jacobian as a SciPy operator, and SciPy's svds on V = (J - 1 z') diag(s).

curvlinops has no per-example moments: they are taken with `torch.func`, as its user would.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# user: begin
import numpy as np
import torch
from curvlinops import JacobianLinearOperator
from scipy.sparse.linalg import LinearOperator, svds
from torch.func import grad, vmap

# user: end
from benchmarks.peers import torch_networks
from benchmarks.peers.job import DEAD, Job
from benchmarks.peers.measure import Answer, Stopwatch, contest

BATCH = 128
TOLERANCE = 1e-6  # ARPACK's, for eigenvalues


class Score(torch.nn.Module):
    """The score of a batch as one column, which the library takes as the network's output."""

    def __init__(self, network: torch.nn.Module, family: str) -> None:
        super().__init__()
        self.network, self.family = network, family

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch_networks.scores(self.family, self.network(x))[:, None]


def prepare(job: Job) -> Callable[[Stopwatch], Answer]:
    module, X = torch_networks.module(job), torch_networks.examples(job)
    over = X if job.samples is None else torch_networks.examples(job, "samples")
    single = torch_networks.single_score(module, job.settings.family)
    network, settings = Score(module, job.settings.family), job.settings

    def solve(watch: Stopwatch) -> Answer:
        z, s = moments(job, single, dict(module.named_parameters()), over)
        watch.lap("moments")
        # user: begin
        data = [(x, x.new_zeros(len(x), 1)) for x in X.split(BATCH)]
        J = JacobianLinearOperator(network, list(network.parameters()), data).to_scipy(np.float32)
        V = LinearOperator(
            J.shape,
            matvec=lambda m: J @ (s * m.ravel()) - z @ (s * m.ravel()),
            rmatvec=lambda w: s * (J.T @ w.ravel() - z * w.sum()),
            dtype=np.float32,
        )
        # user: end
        least = pair_seconds(V) * (2 * settings.rank + 1)  # ARPACK's basis, before any restart
        if least > settings.budget_seconds:
            return Answer(projected_seconds=least, facts={"projection": "a product with V and V' times 2 k + 1"})
        # user: begin
        _, values, _ = svds(V, settings.rank, tol=settings.tol or TOLERANCE, random_state=0)
        # user: end
        watch.lap("svds")
        return Answer(values[::-1] ** 2)

    return solve


def pair_seconds(V: LinearOperator) -> float:
    started = time.perf_counter()
    V.rmatvec(V.matvec(np.ones(V.shape[1], np.float32)))
    return time.perf_counter() - started


def moments(job: Job, single: Callable, params: dict, over: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    if not job.kernel_is_fisher:
        return np.zeros(job.parameters, np.float32), np.ones(job.parameters, np.float32)
    # user: begin
    params = {name: leaf.detach() for name, leaf in params.items()}
    total, squares = torch.zeros(job.parameters, dtype=torch.float64), torch.zeros(job.parameters, dtype=torch.float64)
    for x in over.split(32):
        g = torch.cat([leaf.flatten(1) for leaf in vmap(grad(single), (None, 0))(params, x).values()], 1)
        total += g.sum(0)
        squares += (g.double() ** 2).sum(0)
    z = total / len(over) if job.settings.centred else torch.zeros_like(total)
    F = squares / len(over) - z**2
    s = torch.where(DEAD * F.max() < F, (F + job.settings.damping * F.mean()).rsqrt(), 0)
    # user: end
    return z.float().numpy(), s.float().numpy()


if __name__ == "__main__":
    contest(prepare)
