"""Gradients of single examples, kept, and kernels made of them in several ways: for experiments that vary one thing.

One pool of examples; moments over all of it. A variant of the kernel is a matrix over the pool; seeds are random halves
of it, one to learn from and one to test on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import nfk
from nfk.tasks import kernel_features, probe

Kernel = np.ndarray


def gradients(model: nfk.Model, X: Any, key: int = 0) -> np.ndarray:
    """One row of P numbers for each example, float32: all of them in memory."""
    rows = np.empty((len(X), model.layout.size), np.float32)
    for index, example in enumerate(X):
        found = model.network.jacobian(example, jax.random.key(key))
        rows[index] = np.concatenate([np.asarray(leaf, np.float32).ravel() for leaf in found])
    return rows


def layers(model: nfk.Model) -> dict[str, slice]:
    """The columns of each array of parameters."""
    return model.layout.slices


@dataclass(frozen=True)
class Summed:
    """A kernel over the pool; the same with every array of parameters at trace one; and the trace of each array."""

    total: Kernel
    balanced: Kernel
    traces: dict[str, float]


def summed(rows: np.ndarray, slices: Mapping[str, slice], damping: float | None, columns: int = 20_000) -> Summed:
    """The inner products of scaled gradients, array by array of parameters; `damping=None` is no scale at all.

    s = 1 / sqrt(F + damping * mean(F)), F = E[g^2] over the pool, as `nfk` has it for a model that is not centred.
    """
    scale = np.ones(rows.shape[1], np.float32) if damping is None else _scale(rows, slices, damping)
    total, balanced = np.zeros((2, len(rows), len(rows)))
    traces = {}
    for name, where in slices.items():
        part = np.zeros_like(total)
        for first in range(where.start, where.stop, columns):
            place = slice(first, min(first + columns, where.stop))
            block = rows[:, place] * scale[place]
            part += block @ block.T
        traces[name] = float(np.trace(part))
        total += part
        balanced += part / traces[name] if traces[name] > 0 else 0
    return Summed(total, balanced, traces)


def _scale(rows: np.ndarray, slices: Mapping[str, slice], damping: float) -> np.ndarray:
    """Of the columns that take part; the mean of F is theirs alone."""
    fisher = np.einsum("ij,ij->j", rows, rows, dtype=np.float64) / len(rows)
    chosen = np.concatenate([fisher[where] for where in slices.values()])
    alive = fisher >= 1e-12 * chosen.max()
    scale = np.where(alive, 1 / np.sqrt(np.where(alive, fisher, 1) + damping * chosen.mean()), 0)
    return scale.astype(np.float32)


def centred(K: Kernel) -> Kernel:
    """Of rows from which their mean over the pool has been taken away."""
    means = K.mean(axis=0)
    return K - means - means[:, None] + means.mean()


def at_length_one(K: Kernel) -> Kernel:
    """Cosines: every row divided by its length."""
    lengths = np.sqrt(np.maximum(np.diag(K), 1e-30))
    return K / lengths / lengths[:, None]


def accuracy(K: Kernel, labels: np.ndarray, seed: int, rank: int | None) -> float:
    """A probe of `rank` components (None: of all), trained on a random half of the pool, tested on the other."""
    order = np.random.default_rng(seed).permutation(len(K))
    train, test = order[: len(K) // 2], order[len(K) // 2 :]
    features = kernel_features(K[np.ix_(train, train)], K[np.ix_(test, train)])
    a, b = (part[:, :rank] for part in features)
    return float(probe(a, labels[train], b, labels[test]).accuracy.value)


def accuracies(
    variants: Mapping[str, Callable[[], Kernel]], labels: np.ndarray, seeds: int, rank: int | None
) -> dict[str, list[float]]:
    """Of each variant over the same halves."""
    found = {}
    for name, make in variants.items():
        K = make()
        found[name] = [accuracy(K, labels, seed, rank) for seed in range(seeds)]
    return found
