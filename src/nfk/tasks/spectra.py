"""What a spectrum says: how many components matter, and in which layers they live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nfk.notebook import Shown
from nfk.tasks.checks import whole
from nfk.tasks.estimates import Estimate


@dataclass(frozen=True)
class Spectrum(Shown):
    """The top k eigenvalues of a kernel over `rows` rows, in falling order, and its exact trace.

    What lies beyond k is known only by its sum, so a quantity that needs it comes with the bounds that sum allows.
    """

    eigenvalues: np.ndarray
    trace: float
    rows: int

    @property
    def cumulative(self) -> np.ndarray:
        """Share of the trace in the first 1, 2, ..., k components."""
        return np.cumsum(self.eigenvalues) / self.trace

    def share(self, k: int) -> float:
        """Share of the trace in the first k components."""
        k = whole("k", k, 1, len(self.eigenvalues), "a fit with a larger rank gives more components")
        return float(self.cumulative[k - 1])

    def components_for(self, share: float) -> int | None:
        """The fewest components that hold that share of the trace; None if those that are known do not."""
        if not 0 < share <= 1:
            raise ValueError(f"share={share} must lie between 0 and 1, such as 0.95")
        enough = self.cumulative >= share
        return int(np.argmax(enough)) + 1 if enough.any() else None

    @property
    def effective_rank(self) -> Estimate:
        """trace^2 / sum of squared eigenvalues (the participation ratio): the number of components that take part.

        The interval is certain, not statistical: the unknown eigenvalues are at most the last known one, so the sum of
        their squares lies between that of equal parts and that of as few as possible.
        """
        known = float(np.sum(self.eigenvalues**2))
        rest = max(self.trace - float(np.sum(self.eigenvalues)), 0.0)
        rest = 0.0 if rest < 1e-6 * self.trace else rest
        unknown = max(self.rows - len(self.eigenvalues), 1)
        most, least = rest * float(self.eigenvalues[-1]), rest**2 / unknown
        low, high = (self.trace**2 / (known + part) for part in (max(most, least), least))
        return Estimate((low + high) / 2, low, high)


def spectrum(eigenvalues: Any, trace: float, rows: int) -> Spectrum:
    """A `Spectrum`, checked: `spectrum(embedding.eigenvalues, embedding.trace, len(embedding.left))`.

    Args:
        eigenvalues: the leading ones, falling.
        trace: of the whole kernel.
        rows: of the kernel.
    """
    values = np.asarray(eigenvalues, np.float64)
    if values.ndim != 1 or len(values) == 0 or (values < 0).any() or (np.diff(values) > 1e-6 * values.max()).any():
        raise ValueError("eigenvalues must be a vector of numbers, 0 or more, in falling order")
    if not trace > 0 or values.sum() > trace * (1 + 1e-4):
        raise ValueError(f"trace={trace} must be positive and at least the sum of the eigenvalues, {values.sum():.6g}")
    return Spectrum(values, float(trace), whole("rows", rows, len(values), None, "the rows of the kernel"))


def mean_share(embeddings: Any, trace: float) -> float:
    """n |mean of the rows|^2 / trace: how much of the variance is one shift common to all examples.

    For a GAN the mean z is that of generated images, and the first component may be little else than the shift. Of an
    embedding, it is the part of the shift within the top k components: a lower bound.

    Args:
        embeddings: (n, k).
        trace: of the kernel.
    """
    rows = np.asarray(embeddings, np.float64)
    return float(len(rows) * np.sum(rows.mean(axis=0) ** 2) / trace)


def by_layer(shares: Mapping[str, np.ndarray], depth: int = 1) -> dict[str, np.ndarray]:
    """Shares of parameter arrays ("conv1/kernel") summed over layers: the first `depth` parts of their paths.

    Args:
        shares: what `Embedding.layer_shares` gives.
        depth: how many parts of a path name a layer.
    """
    layers: dict[str, np.ndarray] = {}
    for path, share in shares.items():
        name = "/".join(path.split("/")[:depth])
        layers[name] = layers.get(name, 0) + np.asarray(share)
    return layers
