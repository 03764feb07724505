"""The definition, dense and literal: Fisher vectors, the Gram matrix, and the paper's baseline algorithm.

For small N, and the oracle of the tests: it shares no code with the fast path and holds all N x P numbers. Every
gradient is taken on its own, by `Network.jacobian`; every sum is a float64 sum on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from nfk.model import Batch, Model, split_key
from nfk.stream import Examples, Generated


def gradients(model: Model, X: Batch, key: jax.Array) -> np.ndarray:
    """g(x) = d score(params, x) / d params, one row per example and output, float64: (rows, P)."""
    examples = Examples(X)
    rows = []
    for index in range(len(examples)):
        example = jax.tree.map(lambda leaf: np.asarray(leaf)[0], examples.slice(index, index + 1))
        outputs = model.outputs(example)
        leaves = [np.asarray(leaf, np.float64).reshape(outputs, -1) for leaf in model.network.jacobian(example, key)]
        rows.append(np.concatenate(leaves, axis=1))
    return np.concatenate(rows)


@dataclass(frozen=True)
class DenseMoments:
    """z and s of V_x = s * (g(x) - z)."""

    mean: np.ndarray
    scale: np.ndarray


def moments(model: Model, X: Batch, key: int | jax.Array = 0) -> DenseMoments:
    """z = E[g];  F = E[(g - z)^2];  s = 1 / sqrt(F + damping * mean(F)), 0 where F < 1e-12 max(F) or rounding error."""
    _, sample_key, score_key = split_key(key)
    P = model.layout.size
    if not model.needs_moments:
        return DenseMoments(np.zeros(P), np.ones(P))
    over = Generated(model.sample, sample_key, model.samples)[:] if model.expectation == "model" else X
    g = gradients(model, over, score_key)
    z = g.mean(axis=0) if model.centred else np.zeros(P)
    if model.fisher == "identity":
        return DenseMoments(z, np.ones(P))
    F = ((g - z) ** 2).mean(axis=0)
    noise = (10 * np.finfo(model.layout.dtype).eps) ** 2 * (F + z**2)  # what rounding makes of equal gradients
    alive = (1e-12 * F.max() <= F) & (noise < F)
    s = np.zeros(P)
    s[alive] = 1 / np.sqrt(F[alive] + model.damping * F.mean())
    return DenseMoments(z, s)


def fisher_vectors(model: Model, X: Batch, reference: Batch | None = None, key: int | jax.Array = 0) -> np.ndarray:
    """V_x = s * (g(x) - z), with moments over `reference` (X itself when None) where they are taken over data."""
    m = moments(model, X if reference is None else reference, key)
    return m.scale * (gradients(model, X, split_key(key)[2]) - m.mean)


def gram(model: Model, X: Batch, Y: Batch | None = None, *, key: int | jax.Array = 0) -> np.ndarray:
    """K(x, y) = <V_x, V_y>, exact in float64 sums: (rows of X, rows of Y). Holds all N x P numbers: for small N.

    Moments over data are those of X. `Y=None` gives K(X, X).

    Args:
        model: what `nfk.classifier`, ... return.
        X: the examples of the rows, and those over which moments are taken.
        Y: the examples of the columns; None for X itself.
        key: a seed or a jax key, as for `nfk.fit`.
    """
    for name, examples in (("X", X), ("Y", Y)):
        if examples is not None:
            Examples(examples, name).check()
    V = fisher_vectors(model, X, key=key)
    return V @ (V if Y is None else fisher_vectors(model, Y, reference=X, key=key)).T


def baseline(
    model: Model, X: Batch, rank: int, X_new: Batch, *, key: int | jax.Array = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The paper's Algorithm 1: eigenvalues of K = Phi diag(Lambda) Phi', and e(x*) = K(x*, X) Phi / sqrt(Lambda).

    The paper prints another factor in e(x*); with this one a training example gets its own row of Phi sqrt(Lambda).
    """
    values, vectors = np.linalg.eigh(gram(model, X, key=key))
    values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
    return values, gram(model, X, X_new, key=key).T @ vectors / np.sqrt(values)
