"""The script that a good PyTorch engineer writes: per-example gradients in one array, Gram matrix, eigh, basis.

Where they do not fit in two thirds of the memory, `script_tiles` keeps a tile of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable

# user: begin
import torch
from torch import Tensor
from torch.func import grad, vmap

# user: end
from benchmarks.peers import torch_networks
from benchmarks.peers.contestants import script_tiles
from benchmarks.peers.job import DEAD, Job
from benchmarks.peers.machine import free_bytes
from benchmarks.peers.measure import Answer, Stopwatch, contest

BATCH = {"resnet-18": 8, "critic": 32, "wrn-16-2": 32}  # the fastest of 8, 16, 32, 64, 128; 64 elsewhere
TILE = 512  # columns of the Gram matrix at a time, from the diagonal down
SMALLEST = 256  # rows of a tile where not all are kept are a multiple of this


def prepare(job: Job) -> Callable[[Stopwatch], Answer]:
    module, X = torch_networks.module(job), torch_networks.examples(job)
    samples = None if job.samples is None else torch_networks.examples(job, "samples")
    score = torch_networks.single_score(module, job.settings.family)
    params = {name: tensor.detach() for name, tensor in module.named_parameters()}
    batch, rank, damping = BATCH.get(job.settings.network, 64), job.settings.rank, job.settings.damping
    fisher_kernel, centred = job.kernel_is_fisher, job.settings.centred
    N, P = len(X), job.parameters
    rows = min(N, int(free_bytes() * 2 / 3 / (4 * P)))

    def kept(watch: Stopwatch) -> tuple[Tensor, Tensor]:
        """Eigenvalues and basis with all gradients in memory."""
        # user: begin
        G = gradients(score, params, X, batch, torch.empty(N, P))
        watch.lap("gradients")
        if fisher_kernel:
            over = G if samples is None else gradients(score, params, samples, batch, torch.empty(len(samples), P))
            mean, scale = moments(over, centred, damping)
            watch.lap("moments")
            G.sub_(mean).mul_(scale)
            watch.lap("normalise")
        K = torch.empty(N, N)  # eigh reads its lower triangle
        for a in range(0, N, TILE):
            K[a:, a : a + TILE] = G[a:] @ G[a : a + TILE].T
        watch.lap("gram")
        values, vectors = torch.linalg.eigh(K)
        values, vectors = values.flip(0)[:rank], vectors.flip(1)[:, :rank]
        watch.lap("eigh")
        basis = G.T @ (vectors / values.sqrt())
        watch.lap("basis")
        # user: end
        return values, basis

    def solve(watch: Stopwatch) -> Answer:
        if rows == N:
            values, basis = kept(watch)
        else:
            fill = lambda x, out: gradients(score, params, x, batch, out)  # noqa: E731
            tiles = script_tiles.Tiles(X, fill, max(SMALLEST, rows // SMALLEST * SMALLEST), P)
            found = tiles.solve(samples, job.settings, moments, watch)
            if found is None:
                facts = {"projection": "timed rows and products, without eigh", "rows_kept": rows}
                return Answer(projected_seconds=tiles.least, facts=facts)
            values, basis = found
        return Answer(values.double().numpy(), {"rows_kept": rows, "batch": batch, "basis": list(basis.shape)})

    return solve


# user: begin
def gradients(score: Callable, params: dict, x: Tensor, batch: int, out: Tensor) -> Tensor:
    """One row per example, written where it stays."""
    per_example = vmap(grad(score), (None, 0))
    for start in range(0, len(x), batch):
        leaves = per_example(params, x[start : start + batch])
        torch.cat([leaf.flatten(1) for leaf in leaves.values()], 1, out=out[start : start + batch])
    return out


def moments(G: Tensor, centred: bool, damping: float) -> tuple[Tensor, Tensor]:
    """The mean (or zero) and the scale 1 / sqrt(F + damping)."""
    mean = G.mean(0) if centred else torch.zeros(G.shape[1])
    F = G.var(0, correction=0) if centred else torch.linalg.vector_norm(G, dim=0) ** 2 / len(G)
    return mean, torch.where(DEAD * F.max() < F, (F + damping * F.mean()).rsqrt(), 0)


# user: end

if __name__ == "__main__":
    contest(prepare)
