"""The script where gradients do not fit: a tile of rows is kept, the rows below it are computed again beside it."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.peers.job import DEAD, Settings
from benchmarks.peers.measure import Stopwatch

FEW = 256  # rows that are computed again at a time
STEP = 512  # columns of the Gram matrix at a time within a tile

Fill = Callable[[Tensor, Tensor], Tensor]


class Tiles:
    """K and the basis of `len(X)` rows with `rows` of them in memory: (T + 1) / 2 + 2 passes for T tiles."""

    def __init__(self, X: Tensor, fill: Fill, rows: int, parameters: int) -> None:
        self.X, self.fill, self.G = X, fill, torch.empty(rows, parameters)
        self.few = torch.empty(FEW, parameters)
        self.mean, self.scale = torch.zeros(parameters), torch.ones(parameters)
        self.least = 0.0

    def solve(
        self, samples: Tensor | None, settings: Settings, moments: Callable, watch: Stopwatch
    ) -> tuple[Tensor, Tensor] | None:
        """Eigenvalues and basis; None where they would take longer than the budget, `least` seconds."""
        if settings.kernel == "fisher":
            if samples is None:
                self.mean, self.scale = self.moments(settings.centred, settings.damping)
            else:
                over = self.fill(samples, torch.empty(len(samples), self.G.shape[1]))
                self.mean, self.scale = moments(over, settings.centred, settings.damping)
            watch.lap("moments")
        self.least = self.least_seconds()
        if self.least > settings.budget_seconds:
            return None
        K = self.gram()
        watch.lap("gradients and gram")
        values, vectors = torch.linalg.eigh(K)
        values, vectors = values.flip(0)[: settings.rank], vectors.flip(1)[:, : settings.rank]
        watch.lap("eigh")
        basis = self.basis(vectors / values.sqrt())
        watch.lap("basis")
        return values, basis

    def moments(self, centred: bool, damping: float) -> tuple[Tensor, Tensor]:
        """z and s over all rows, a tile at a time, by Chan's update."""
        count, mean, squares = 0, torch.zeros_like(self.mean), torch.zeros_like(self.mean)
        for a in range(0, len(self.X), len(self.G)):
            x = self.X[a : a + len(self.G)]
            g = self.fill(x, self.G[: len(x)])
            part, total = g.mean(0), count + len(g)
            squares += g.var(0, correction=0) * len(g) + (part - mean) ** 2 * (count * len(g) / total)
            mean += (part - mean) * (len(g) / total)
            count = total
        F = squares / count if centred else squares / count + mean**2
        scale = torch.where(DEAD * F.max() < F, (F + damping * F.mean()).rsqrt(), 0)
        return (mean if centred else torch.zeros_like(mean)), scale

    def least_seconds(self) -> float:
        """Of the gradients and of half of all products, without `eigh`: some rows and a part of a tile are timed."""
        N, part = len(self.X), self.G[: 8 * FEW].zero_()
        seconds = []
        for _ in range(2):  # the first time warms up
            started = time.perf_counter()
            few = self.rows(0, FEW, self.few)
            middle = time.perf_counter()
            few @ part.T
            seconds = [middle - started, time.perf_counter() - middle]
        passes = (-(-N // len(self.G)) + 1) / 2 + 1
        return passes * seconds[0] * N / len(few) + seconds[1] * N**2 / 2 / (len(few) * len(part))

    def rows(self, a: int, b: int, out: Tensor) -> Tensor:
        """V of examples a to b, normalised in place."""
        x = self.X[a:b]
        return self.fill(x, out[: len(x)]).sub_(self.mean).mul_(self.scale)

    def gram(self) -> Tensor:
        N = len(self.X)
        K = torch.empty(N, N)  # eigh reads its lower triangle
        for a in range(0, N, len(self.G)):
            tile = self.rows(a, a + len(self.G), self.G)
            end = a + len(tile)
            for b in range(0, len(tile), STEP):
                block = tile[b : b + STEP]
                K[a + b : end, a + b : a + b + len(block)] = tile[b:] @ block.T
            for b in range(end, N, FEW):
                other = self.rows(b, b + FEW, self.few)
                K[b : b + len(other), a:end] = other @ tile.T
        return K

    def basis(self, vectors: Tensor) -> Tensor:
        basis = torch.zeros(self.G.shape[1], vectors.shape[1])
        for a in range(0, len(self.X), len(self.G)):
            tile = self.rows(a, a + len(self.G), self.G)
            basis.addmm_(tile.T, vectors[a : a + len(tile)])
        return basis


if __name__ == "__main__":
    raise SystemExit("part of the script: run benchmarks.peers.contestants.script")
