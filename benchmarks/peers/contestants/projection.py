"""TRAK-style embeddings: per-example gradients times a fixed random P x m matrix of signs. No eigenvalues.

The matrix is made again from its seed, a slab of parameters at a time: it never stands in memory whole.
"""

from __future__ import annotations

from collections.abc import Callable

# user: begin
import torch
from torch import Tensor
from torch.func import grad, vmap

# user: end
from benchmarks.peers import torch_networks
from benchmarks.peers.contestants.script import BATCH
from benchmarks.peers.job import Job
from benchmarks.peers.machine import free_bytes
from benchmarks.peers.measure import Answer, Stopwatch, contest

NUMBERS = 128
SLAB = 8192  # parameters at a time


def prepare(job: Job) -> Callable[[Stopwatch], Answer]:
    module, X = torch_networks.module(job), torch_networks.examples(job)
    new = None if job.new_examples is None else torch_networks.examples(job, "new_examples")
    score = torch_networks.single_score(module, job.settings.family)
    params = {name: tensor.detach() for name, tensor in module.named_parameters()}
    numbers, batch = int(job.settings.tol or NUMBERS), BATCH.get(job.settings.network, 64)
    rows = max(batch, min(len(X), int(free_bytes() / 2 / (4 * job.parameters))) // batch * batch)

    # user: begin
    def embed(x: Tensor) -> Tensor:
        per_example, parts = vmap(grad(score), (None, 0)), []
        for start in range(0, len(x), rows):
            tile = x[start : start + rows]
            G = torch.empty(len(tile), job.parameters)
            for a in range(0, len(tile), batch):
                leaves = per_example(params, tile[a : a + batch])
                torch.cat([leaf.flatten(1) for leaf in leaves.values()], 1, out=G[a : a + batch])
            parts.append(project(G, numbers))
        return torch.cat(parts)

    # user: end

    def solve(watch: Stopwatch) -> Answer:
        # user: begin
        train = embed(X)
        # user: end
        watch.lap("embed")
        return Answer(facts={"numbers": numbers}, train=train.numpy(), embed=lambda: embed(new).numpy())

    return solve


# user: begin
def project(G: Tensor, numbers: int) -> Tensor:
    generator, total = torch.Generator().manual_seed(0), torch.zeros(len(G), numbers)
    for slab in G.split(SLAB, 1):
        signs = torch.randint(0, 2, (slab.shape[1], numbers), generator=generator, dtype=torch.int8)
        total.addmm_(slab, signs.float().mul_(2).sub_(1))
    return total / numbers**0.5


# user: end

if __name__ == "__main__":
    contest(prepare)
