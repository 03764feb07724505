"""What no way can go below, in PyTorch: seconds of a plain batch gradient per example, and the rate of sgemm."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.peers import torch_networks
from benchmarks.peers.job import Job
from benchmarks.peers.measure import Answer, Stopwatch, best, contest

BATCHES = (8, 16, 32, 64, 128)


def prepare(job: Job) -> Callable[[Stopwatch], Answer]:
    network, X = torch_networks.module(job), torch_networks.examples(job)
    params = list(network.parameters())

    def gradient(size: int) -> Callable[[], object]:
        return lambda: torch.autograd.grad(torch_networks.scores(job.settings.family, network(X[:size])).sum(), params)

    def solve(watch: Stopwatch) -> Answer:
        seconds = {size: best(gradient(size)) / size for size in BATCHES if size <= len(X)}
        watch.lap("gradients")
        rates = {
            shape: 2 * shape[0] ** 2 * shape[1] / best(_product(*shape)) for shape in ((2048, 2048), (1024, 65_536))
        }
        watch.lap("sgemm")
        batch = min(seconds, key=seconds.get)
        facts = {"gradient_seconds": seconds[batch], "batch": batch, "flop_per_second": max(rates.values())}
        return Answer(facts=facts)

    return solve


def _product(rows: int, columns: int) -> Callable[[], object]:
    A = torch.randn(rows, columns)
    return lambda: A @ A.T


if __name__ == "__main__":
    contest(prepare)
