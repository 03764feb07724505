"""nfk as its user writes it, on the same PyTorch module as the script."""

from __future__ import annotations

from collections.abc import Callable

# user: begin
import nfk

# user: end
import nfk.torch
from benchmarks.peers import torch_networks
from benchmarks.peers.contestants.nfk_jax import answer, options
from benchmarks.peers.job import Job
from benchmarks.peers.measure import Answer, Stopwatch, contest

CONSTRUCTORS = {
    "classifier": nfk.torch.classifier,
    "gan": nfk.torch.gan,
    "density": lambda module, **options: nfk.torch.density(module, lambda module, x: module(x[None])[0], **options),
}


def prepare(job: Job) -> Callable[[Stopwatch], Answer]:
    module, X = torch_networks.module(job), job.examples
    constructor, rank = CONSTRUCTORS[job.settings.family], job.settings.rank
    tolerance = {} if job.settings.tol is None else {"tol": job.settings.tol}
    choices = options(job, lambda seed, n: job.samples[:n])

    def solve(watch: Stopwatch) -> Answer:
        # user: begin
        model = constructor(module, **choices)
        embedding = nfk.fit(model, X, rank, **tolerance)
        # user: end
        watch.lap("fit")
        return answer(embedding, job.new_examples)

    return solve


if __name__ == "__main__":
    contest(prepare)
