"""What a spectrum says: how many components matter, and in which layers they live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from scipy.sparse.linalg import eigsh

from nfk.notebook import Shown
from nfk.tasks.checks import one_of, whole
from nfk.tasks.estimates import Estimate

Of = Literal["variance", "squares"]


@dataclass(frozen=True)
class Spectrum(Shown):
    """The top k eigenvalues of a kernel over `rows` rows, in falling order, and its exact trace.

    What lies beyond k is known only by its sum, so a quantity that needs more comes with the bounds that this allows.
    `squares` is the sum of all squared eigenvalues, where it is known: `kernel_spectrum` knows it.
    """

    eigenvalues: np.ndarray
    trace: float
    rows: int
    squares: float | None = None

    @property
    def cumulative(self) -> np.ndarray:
        """Share of the trace in the first 1, 2, ..., k components."""
        return np.cumsum(self.eigenvalues) / self.trace

    @property
    def cumulative_squares(self) -> np.ndarray:
        """Share of the sum of all squared eigenvalues in the first 1, 2, ..., k components."""
        if self.squares is None:
            raise ValueError(
                "the squared eigenvalues beyond the first k are not known: use nfk.tasks.kernel_spectrum with "
                "embedding.gram(X), or pass squares, the sum of the squared entries of the kernel matrix"
            )
        return np.cumsum(self.eigenvalues**2) / self.squares

    def share(self, k: int, of: Of = "variance") -> float:
        """What the first k components hold.

        Of the "variance", sum of lambda_i / trace: how much of the squared length of the rows is left after projecting
        them on k directions. Of the "squares", sum of lambda_i^2 / sum of all lambda_i^2: how close the best kernel of
        rank k is to the kernel matrix, as the squared error of its entries. Squares favour the large eigenvalues, so
        the second number is larger, often by far: it says little about what the small ones hold together.

        Args:
            k: how many components.
            of: "variance" or "squares"; the second needs the sum of all squared eigenvalues.
        """
        k = whole("k", k, 1, len(self.eigenvalues), "a fit with a larger rank gives more components")
        one_of("of", of, get_args(Of))
        return float((self.cumulative if of == "variance" else self.cumulative_squares)[k - 1])

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
        their squares lies between that of equal parts and that of as few as possible. With `squares` it is one number.
        """
        if self.squares is not None:
            return Estimate(*[self.trace**2 / self.squares] * 3)
        known = float(np.sum(self.eigenvalues**2))
        rest = max(self.trace - float(np.sum(self.eigenvalues)), 0.0)
        rest = 0.0 if rest < 1e-6 * self.trace else rest
        unknown = max(self.rows - len(self.eigenvalues), 1)
        most, least = rest * float(self.eigenvalues[-1]), rest**2 / unknown
        low, high = (self.trace**2 / (known + part) for part in (max(most, least), least))
        return Estimate((low + high) / 2, low, high)


def spectrum(eigenvalues: Any, trace: float, rows: int, *, squares: float | None = None) -> Spectrum:
    """A `Spectrum`, checked: `spectrum(embedding.eigenvalues, embedding.trace, len(embedding.left))`.

    Args:
        eigenvalues: the leading ones, falling.
        trace: of the whole kernel.
        rows: of the kernel.
        squares: the sum of all squared eigenvalues, which is that of the squared entries of the kernel matrix.
    """
    values = np.asarray(eigenvalues, np.float64)
    if values.ndim != 1 or len(values) == 0 or (values < 0).any() or (np.diff(values) > 1e-6 * values.max()).any():
        raise ValueError("eigenvalues must be a vector of numbers, 0 or more, in falling order")
    if not trace > 0 or values.sum() > trace * (1 + 1e-4):
        raise ValueError(f"trace={trace} must be positive and at least the sum of the eigenvalues, {values.sum():.6g}")
    known = float(np.sum(values**2))
    if squares is not None and not squares >= known * (1 - 1e-4):
        raise ValueError(f"squares={squares} must be at least the sum of the squares of the eigenvalues, {known:.6g}")
    rows = whole("rows", rows, len(values), None, "the rows of the kernel")
    return Spectrum(values, float(trace), rows, None if squares is None else float(squares))


def kernel_spectrum(K: Any, rank: int, *, shift: bool = True) -> Spectrum:
    """The spectrum of a kernel matrix, `embedding.gram(X)`: the top `rank` eigenvalues, the trace, the sum of squares.

    `shift=False` takes out what is common to all rows: with H = I - 11'/n, the spectrum of H K H, as if the mean of the
    gradients had been taken over these very rows. Where the mean is that of generated images, the shift between them
    and the rows can be the first component and most of the trace. Lanczos steps of 2 n^2 operations, one copy of K.

    Args:
        K: the kernel of some examples, (n, n).
        rank: how many eigenvalues; fewer than n.
        shift: keep what is common to all rows.
    """
    K = np.array(K, copy=True)
    if K.ndim != 2 or K.shape[0] != K.shape[1] or not np.isfinite(K).all():
        raise ValueError(
            f"K has shape {K.shape}: it must be a square matrix of finite numbers, such as embedding.gram(X)"
        )
    rank = whole("rank", rank, 1, len(K) - 1, "fewer than the rows of K")
    if not shift:
        means = K.mean(axis=0, dtype=np.float64)
        K -= means.astype(K.dtype)
        K -= (means - means.mean()).astype(K.dtype)[:, None]
    squares = float(np.einsum("ij,ij->i", K, K).sum(dtype=np.float64))
    start = np.random.default_rng(0).standard_normal(len(K)).astype(K.dtype)
    found = eigsh(K, rank, tol=1e-6, v0=start, return_eigenvectors=False)  # pyright: ignore[reportArgumentType]
    values = np.sort(found)[::-1]
    return spectrum(np.maximum(values, 0), float(np.trace(K, dtype=np.float64)), len(K), squares=squares)


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
