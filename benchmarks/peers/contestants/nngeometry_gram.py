"""nngeometry's Gram matrix of the score (the plain kernel), and eigh."""

from __future__ import annotations

from collections.abc import Callable

# user: begin
import torch
from nngeometry.gram import GramMatrix
from nngeometry.layercollection import LayerCollection
from torch.utils.data import DataLoader, TensorDataset

# user: end
from benchmarks.peers import torch_networks
from benchmarks.peers.job import Job
from benchmarks.peers.measure import Answer, Stopwatch, contest

BATCH = 256


def prepare(job: Job) -> Callable[[Stopwatch], Answer]:
    module, X = torch_networks.module(job), torch_networks.examples(job)
    family, rank = job.settings.family, job.settings.rank

    def solve(watch: Stopwatch) -> Answer:
        # user: begin
        loader = DataLoader(TensorDataset(X), batch_size=BATCH)
        score = lambda x: torch_networks.scores(family, module(x))[:, None]  # noqa: E731
        K = GramMatrix(module, loader, score, layer_collection=LayerCollection.from_model(module)).to_torch()
        # user: end
        watch.lap("gram")
        # user: begin
        values, vectors = torch.linalg.eigh(K[0, :, 0].detach())
        values, vectors = values.flip(0)[:rank], vectors.flip(1)[:, :rank]
        # user: end
        watch.lap("eigh")
        return Answer(values.double().numpy(), {"batch": BATCH})

    return solve


if __name__ == "__main__":
    contest(prepare)
