"""The leading singular triplets of an operator that is only ever applied, each with a bound on its error.

Sees an `Operator` and nothing else. Three methods, one ending: block Krylov (`krylov.py`, the default), `power` (the
paper's algorithm) and `exact` (the dense baseline) each find a block of right vectors; `certify` then makes one more
pass with it, from which come the singular values, both sides, and an honest residual for every component.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import scipy.linalg

from nfk.blocks import (
    Block,
    column_norms,
    combine,
    gram,
    orthonormalise,
    placed,
    random_block,
    rotate,
)

DENSE_SLAB = 4096  # rows that the dense baseline turns into float64 at a time


class Operator(Protocol):
    """V, rows x P. Blocks of P rows live where the operator wants them; blocks of `rows` rows on the host."""

    shape: tuple[int, int]
    dtype: np.dtype
    on_host: bool
    passes: int

    def matmat(self, block: Block) -> np.ndarray: ...
    def rmatmat(self, weights: np.ndarray) -> Block: ...
    def fused(self, block: Block) -> tuple[np.ndarray, Block]: ...
    def dense(self) -> np.ndarray: ...
    def trace(self) -> float: ...
    def label(self, text: str) -> None: ...


@dataclass(frozen=True)
class SVD:
    """V ~ left * singular_values @ right'.

    `residuals[i]` = |V'V q_i - s_i^2 q_i| / s_i^2, so an eigenvalue of the kernel lies within a relative distance
    `residuals[i]` of `s_i^2`; the usual error is near its square over the relative gap. A component beyond the
    operator's numerical rank is zero throughout.
    """

    left: np.ndarray
    singular_values: np.ndarray
    right: Block
    residuals: np.ndarray
    trace: float
    passes: int

    @property
    def explained_variance_ratio(self) -> np.ndarray:
        """s_i^2 / trace: the share of all variance, not only of what was found."""
        return self.singular_values**2 / self.trace if self.trace > 0 else np.zeros_like(self.singular_values)


class ConvergenceWarning(UserWarning):
    """The requested tolerance was not reached."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a fit. `result` is what the finished passes are worth, or None before the first of them."""

    def __init__(self, message: str, result: object = None) -> None:
        super().__init__(message)
        self.result = result


@dataclass(frozen=True)
class Goal:
    """How many components are wanted (`rank`, or as many as explain the fraction `variance`), and how exactly."""

    rank: int | None
    variance: float | None
    tol: float
    trace: Callable[[], float]
    most: int

    def wanted(self, values: np.ndarray) -> int | None:
        """Components wanted given Ritz values in falling order; None while they do not explain enough."""
        if self.rank is not None:
            return self.rank
        reached = np.cumsum(values) >= self.variance * self.trace() * (1 - 1e-12)
        return int(np.argmax(reached)) + 1 if reached.any() else None

    def worst(self, values: np.ndarray, residuals: np.ndarray, floor: np.ndarray | float = 0.0) -> float:
        """The largest relative residual among the wanted that stand above `floor`; infinite if there are too few."""
        count = self.wanted(values)
        if count is None or count > len(values):
            return np.inf
        still_open = (residuals > floor) & (values > values[0] * np.finfo(np.float64).eps)
        relative = residuals / np.where(values > 0, values, 1)
        return float(np.max(relative[:count], where=still_open[:count], initial=0))


def clear_directions(Q: Block) -> Block:
    """The columns of Q at length one, without those that are rounding error beside the longest."""
    norms = column_norms(Q)
    clear = norms > 10 * np.finfo(Q.dtype).eps * norms.max(initial=0)
    return rotate(Q, np.diag(1 / np.where(clear, norms, 1))[:, clear])


def power(
    operator: Operator, rank: int, *, seed: np.random.Generator, iterations: int = 10, oversamples: int = 10
) -> SVD:
    """The paper's Algorithm `truncated_svd`: V' Omega, then L times (V, V', orthonormalise), then V. 2 L + 2 passes."""
    width = min(rank + oversamples, *operator.shape)
    Omega = random_block(seed, (operator.shape[0], width), operator.dtype, True)
    goal = Goal(rank, None, 0.0, operator.trace, rank)
    operator.label("power start")
    block = operator.rmatmat(Omega)
    try:
        for step in range(1, iterations + 1):
            operator.label(f"power iteration {step}")
            block = operator.rmatmat(operator.matmat(block))
            block = orthonormalise(block, [], column_norms(block).max())
            if block.shape[1] == 0:
                break
    except KeyboardInterrupt:
        operator.label("finishing (Ctrl-C again to drop it)")
        block = orthonormalise(block, [], column_norms(block).max())
        raise Interrupted("interrupted", trimmed(certify(operator, block), goal)) from None
    operator.label("certificate")
    return trimmed(certify(operator, block), goal)


def exact(operator: Operator, goal: Goal) -> SVD:
    """The dense baseline: all of V, its Gram matrix on the smaller side in float64, an eigendecomposition."""
    V = operator.dense()
    tall = V.shape[0] > V.shape[1]
    size = min(V.shape)
    wanted = None if goal.rank is None else (size - goal.rank, size - 1)
    values, vectors = scipy.linalg.eigh(_gram_float64(V if tall else V.T), subset_by_index=wanted, overwrite_a=True)
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    count = goal.wanted(values) or len(values)
    Q = np.ascontiguousarray(vectors[:, :count]).astype(V.dtype) if tall else _blockwise(V, vectors[:, :count])
    del V
    operator.label("certificate")
    return trimmed(certify(operator, placed(clear_directions(Q), operator.on_host)), replace(goal, rank=count))


def _gram_float64(V: np.ndarray) -> np.ndarray:
    total = np.zeros((V.shape[1], V.shape[1]))
    for start in range(0, V.shape[0], DENSE_SLAB):
        part = V[start : start + DENSE_SLAB].astype(np.float64)
        total += part.T @ part
    return total


def _blockwise(V: np.ndarray, Phi: np.ndarray) -> np.ndarray:
    """V' Phi in float64 sums, a slab of parameters at a time."""
    return np.concatenate([
        (V[:, a : a + DENSE_SLAB].T.astype(np.float64) @ Phi).astype(V.dtype) for a in range(0, V.shape[1], DENSE_SLAB)
    ])  # fmt: skip


def certify(
    operator: Operator, Q: Block, columns: int | None = None, uncertified: Callable[[], SVD | None] = lambda: None
) -> SVD:
    """Rayleigh-Ritz in the span of Q and the true residual of every vector, in one fused pass.

    With `columns`, when two blocks of P rows do not fit: one pass for the values, then one per group of columns.
    `uncertified()` is what Ctrl-C in the first of these passes leaves.
    """
    if Q.shape[1] == 0:
        return _nothing(operator)
    try:
        Z, image = operator.fused(Q) if columns is None else (operator.matmat(Q), None)
    except KeyboardInterrupt:
        raise Interrupted("interrupted", uncertified()) from None
    Z = Z.astype(np.float64)
    rotation, values = _ritz(Z.T @ Z, gram(Q, Q), operator.dtype)
    Z = Z @ rotation
    signs = largest_positive(Z)
    Z, rotation = Z * signs, rotation * signs
    Q = rotate(Q, rotation)
    alive = np.where(values > 0, values, 1)
    left = (Z / np.sqrt(alive)).astype(operator.dtype)
    residuals = np.full(len(values), np.inf)
    conclude = lambda: SVD(left, np.sqrt(values), Q, residuals, operator.trace(), operator.passes)  # noqa: E731
    if image is not None:
        residuals[:] = column_norms(rotate(image, rotation), Q, values) / alive
        return conclude()
    try:
        for part in column_slices(len(values), columns):
            _, image = operator.fused(np.ascontiguousarray(Q[:, part]))
            residuals[part] = column_norms(image, Q[:, part], values[part]) / alive[part]
    except KeyboardInterrupt:
        raise Interrupted("interrupted", conclude()) from None
    return conclude()


def _ritz(projected: np.ndarray, metric: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Solve projected y = theta metric y over the directions of the metric above rounding; values fall."""
    weights, vectors = scipy.linalg.eigh(metric)
    keep = weights > weights[-1] * np.finfo(dtype).eps * len(weights)
    whiten = vectors[:, keep] / np.sqrt(weights[keep])
    values, rotation = scipy.linalg.eigh(whiten.T @ projected @ whiten)
    values, rotation = values[::-1], (whiten @ rotation)[:, ::-1]
    floor = max(values[0], 0) * max(
        (np.finfo(dtype).eps * len(values)) ** 2, 4 * len(values) * np.finfo(np.float64).eps
    )
    return rotation, np.where(values > floor, values, 0)


def largest_positive(left: np.ndarray) -> np.ndarray:
    """The sign rule: in each left vector the entry of largest magnitude is positive."""
    peak = left[np.abs(left).argmax(axis=0), np.arange(left.shape[1])]
    return np.where(peak < 0, -1.0, 1.0)


def trimmed(result: SVD, goal: Goal) -> SVD:
    """The wanted components; where the operator has fewer, the rest are zero."""
    count = goal.wanted(result.singular_values**2) or len(result.singular_values)
    alive = result.singular_values[:count] > 0
    keep = np.zeros((len(result.singular_values), count))
    keep[np.arange(alive.sum()), np.arange(alive.sum())] = 1

    def padded(values: np.ndarray) -> np.ndarray:
        return np.pad(values[:count] * alive, (0, count - len(alive)))

    return replace(
        result,
        left=result.left @ keep.astype(result.left.dtype),
        right=combine([result.right], keep),
        singular_values=padded(result.singular_values),
        residuals=padded(result.residuals),
    )


def _nothing(operator: Operator) -> SVD:
    empty = np.zeros(0)
    right = random_block(np.random.default_rng(0), (operator.shape[1], 0), operator.dtype, operator.on_host)
    return SVD(np.zeros((operator.shape[0], 0), operator.dtype), empty, right, empty, operator.trace(), operator.passes)


def column_slices(width: int, columns: int | None) -> list[slice]:
    step = columns or width
    return [slice(a, min(a + step, width)) for a in range(0, width, step)]
