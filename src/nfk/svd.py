"""The leading singular triplets of an operator that is only ever applied, each with a bound on its error.

Sees an `Operator` and nothing else. Three methods, one ending: `krylov` (the default), `power` (the paper's algorithm)
and `exact` (the dense baseline) each find a block of right vectors; `certify` then makes one more pass with it, from
which come the singular values, both sides, and an honest residual for every component.
"""

from __future__ import annotations

import warnings
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
    joined,
    orthonormalise,
    placed,
    project_out,
    random_block,
    rotate,
)

MARGIN = 0.9  # the search stops a little below the tolerance, since the certificate may differ in its last digits
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


def krylov(
    operator: Operator,
    goal: Goal,
    *,
    seed: np.random.Generator,
    width: int,
    side: str = "parameters",
    most_blocks: int = 8,
    most_steps: int = 30,
    columns: int | None = None,
    start: Block | None = None,
    on_step: Callable[[float], None] = lambda worst: None,
) -> SVD:
    """Block Krylov with full reorthogonalisation, until every wanted residual is below `goal.tol`.

    `side="parameters"` iterates V'V on blocks of P rows, one fused pass a step, and keeps up to `most_blocks` of them;
    `side="examples"` iterates VV' on blocks of N rows, two passes a step, `columns` at a time. Both restart from their
    best `width` vectors when `most_blocks` is reached. One pass more (two on the examples' side) certifies. `start`
    is a block to begin with on the parameters' side, random by default.
    """
    normal = _RightNormal(operator) if side == "parameters" else _LeftNormal(operator, columns)
    width = min(width, *operator.shape)
    if start is None or side != "parameters":
        start = normal.start(seed, width)
    search = _Search(normal, goal, most_blocks, most_steps, on_step, fill=lambda count: normal.start(seed, count))
    try:
        found, worst = search.run(start)
        operator.label("certificate")
        Q = normal.right_vectors(found.basis[0])
    except KeyboardInterrupt:
        raise Interrupted("interrupted", search.result()) from None
    uncertified = lambda: _trimmed(found.as_svd(operator, Q, normal.left_vectors(found)), goal)  # noqa: E731
    del search, normal.images
    found.basis.clear()
    result = _trimmed(certify(operator, Q, columns, uncertified), goal)
    if result.residuals.max(initial=0) > goal.tol or goal.wanted(result.singular_values**2) is None:
        _warn(result, goal, worst)
    return result


def _warn(result: SVD, goal: Goal, worst: float) -> None:
    """`worst` is 0 where every component that is short of the tolerance is at the limit of the precision."""
    if goal.wanted(result.singular_values**2) is None:
        share = result.explained_variance_ratio.sum()
        text = f"{len(result.residuals)} components explain {share:.1%} of the variance, not the {goal.variance:.1%} "
        text += "asked for: raise max_steps or memory, or ask for less"
    else:
        short = int((result.residuals > goal.tol).sum())
        text = f"{short} of {len(result.residuals)} components have a residual above tol={goal.tol:.0e}, the worst "
        text += f"{result.residuals.max():.1e}: "
        remedy = "" if result.right.dtype == np.float64 else "; use float64, or side='examples'"
        text += "raise max_steps" if worst > 0 else f"the limit of {result.right.dtype}{remedy}"
    warnings.warn(text, ConvergenceWarning, stacklevel=3)


class _RightNormal:
    """V'V on blocks of P rows; W'V'V W = Z'Z with Z = V W, which keeps small values exact where W'(V'V W) would not."""

    def __init__(self, operator: Operator) -> None:
        self.operator, self.images = operator, []

    def start(self, seed: np.random.Generator, width: int) -> Block:
        return random_block(seed, (self.operator.shape[1], width), self.operator.dtype, self.operator.on_host)

    def apply(self, block: Block, basis: list[Block]) -> tuple[Block, np.ndarray]:
        """V'V W and the new columns of the projected matrix, (basis, W)' V'V W."""
        Z, image = self.operator.fused(block)
        self.images.append(Z)
        return image, np.concatenate([gram(other, Z) for other in self.images])

    def right_vectors(self, Q: Block) -> Block:
        return Q

    def left_vectors(self, found: _Ritz) -> np.ndarray:
        """V q / s."""
        return (found.images[0] / found.singular).astype(self.operator.dtype)


class _LeftNormal:
    """VV' on blocks of N rows in float64, a few columns of P rows alive at a time."""

    def __init__(self, operator: Operator, columns: int | None) -> None:
        self.operator, self.columns, self.images = operator, columns, []

    def start(self, seed: np.random.Generator, width: int) -> Block:
        return random_block(seed, (self.operator.shape[0], width), np.dtype(np.float64), True)

    def apply(self, block: Block, basis: list[Block]) -> tuple[Block, np.ndarray]:
        image = np.empty(block.shape)
        for part in column_slices(block.shape[1], self.columns):
            image[:, part] = self.operator.matmat(self.operator.rmatmat(block[:, part]))
        self.images.append(image.copy())
        return image, np.concatenate([gram(other, image) for other in [*basis, block]])

    def right_vectors(self, Phi: np.ndarray) -> Block:
        """V' phi at length one: a pass, since only the left vectors are at hand."""
        if self.columns is None:
            return clear_directions(self.operator.rmatmat(Phi))
        Q = np.empty((self.operator.shape[1], Phi.shape[1]), self.operator.dtype)
        for part in column_slices(Phi.shape[1], self.columns):
            Q[:, part] = self.operator.rmatmat(Phi[:, part])
        return clear_directions(Q)

    def left_vectors(self, found: _Ritz) -> np.ndarray:
        """V q / s = K phi / s^2."""
        return (found.images[0] / found.singular**2).astype(self.operator.dtype)


def clear_directions(Q: Block) -> Block:
    """The columns of Q at length one, without those that are rounding error beside the longest."""
    norms = column_norms(Q)
    clear = norms > 10 * np.finfo(Q.dtype).eps * norms.max(initial=0)
    return rotate(Q, np.diag(1 / np.where(clear, norms, 1))[:, clear])


class _Search:
    """The Krylov iteration on a symmetric operator: grows a basis, watches the residuals, restarts when full."""

    def __init__(
        self,
        normal: _RightNormal | _LeftNormal,
        goal: Goal,
        most_blocks: int,
        most_steps: int,
        on_step: Callable[[float], None],
        fill: Callable[[int], Block],
    ) -> None:
        self.normal, self.goal, self.on_step, self.fill = normal, goal, on_step, fill
        self.most_blocks, self.most_steps = most_blocks, most_steps
        self.basis: list[Block] = []
        self.projected = np.zeros((0, 0))
        self.finished: _Ritz | None = None

    def run(self, start: Block) -> tuple[_Ritz, float]:
        """Returns the best vectors, a few more than are wanted, and the worst wanted residual."""
        width = start.shape[1]
        block = orthonormalise(start, [], float(column_norms(start).max()))
        if block.shape[1] < width:  # a start of lower rank is filled up with random directions
            block = joined([block, orthonormalise(self.fill(width - block.shape[1]), [block], 0.0)])
        for step in range(1, self.most_steps + 1):
            self.normal.operator.label(f"Krylov step {step}")
            values, vectors, residuals, remainder = self._extend(block)
            worst = self.goal.worst(values, residuals, self._floor(values))
            self.finished = _Ritz(list(self.basis), list(self.normal.images), values, vectors, residuals)
            self.on_step(self.goal.worst(values, residuals))
            full = len(self.basis) >= self.most_blocks
            if worst <= MARGIN * self.goal.tol:
                worst = 0.0
                break
            if step == self.most_steps or (full and self.goal.variance is not None):
                break
            if full:
                self.finished = self.finished.shortened(width)
                self.basis, self.projected, self.normal.images = [], np.zeros((0, 0)), []
                block = orthonormalise(self.finished.basis[0].copy(), [], 0.0)
                continue
            block = orthonormalise(remainder, self.basis, values[0])
            if block.shape[1] == 0:  # nothing is left outside the basis but rounding error
                worst = 0.0
                break
        count = self.goal.wanted(values) or self.goal.most
        return self.finished.shortened(max(min(count + 10, self.goal.most), width)), worst

    def _extend(self, block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray, Block]:
        """Add a block: Ritz values (falling), their coefficients, residual norms, and what points out of the basis."""
        image, columns = self.normal.apply(block, self.basis)
        self.basis.append(block)
        self.projected = _bordered(self.projected, columns)
        remainder = project_out(image, self.basis, columns)
        outside = gram(remainder, remainder)
        values, vectors = scipy.linalg.eigh(self.projected)
        values, vectors = values[::-1], vectors[:, ::-1]
        last = vectors[-block.shape[1] :]
        residuals = np.sqrt(np.maximum(np.einsum("ij,ik,kj->j", last, outside, last), 0))
        return np.maximum(values, 0), vectors, residuals, remainder

    def _floor(self, values: np.ndarray) -> np.ndarray:
        """Residuals that rounding alone leaves: eps * s_1 * s_i."""
        eps = np.finfo(self.normal.operator.dtype).eps
        return 30 * eps * np.sqrt(values[0] * values)

    def result(self) -> SVD | None:
        """What the finished steps are worth, with the recurrence's residuals in place of the certifying pass."""
        if self.finished is None:
            return None
        count = min(self.goal.wanted(self.finished.values) or self.goal.most, len(self.finished.values))
        found = self.finished.shortened(count)
        self.normal.operator.label("finishing (Ctrl-C again to drop it)")
        return found.as_svd(
            self.normal.operator, self.normal.right_vectors(found.basis[0]), self.normal.left_vectors(found)
        )


@dataclass(frozen=True)
class _Ritz:
    """Ritz pairs in a basis: values (falling), coefficients, residual norms; and the images of the basis on N rows."""

    basis: list[Block]
    images: list[np.ndarray]
    values: np.ndarray
    vectors: np.ndarray
    residuals: np.ndarray

    def shortened(self, count: int) -> _Ritz:
        """The first `count` pairs, with their vectors themselves as the basis."""
        chosen = self.vectors[:, :count]
        basis, images = [combine(self.basis, chosen)], [combine(self.images, chosen)]
        return _Ritz(basis, images, self.values[:count], np.eye(chosen.shape[1]), self.residuals[:count])

    @property
    def singular(self) -> np.ndarray:
        """Square roots of the values, 1 where they are zero."""
        return np.sqrt(np.where(self.values > 0, self.values, 1))

    def as_svd(self, operator: Operator, right: Block, left: np.ndarray) -> SVD:
        """With the recurrence's residuals, where no certifying pass was made."""
        count = right.shape[1]
        residuals = self.residuals[:count] / self.singular[:count] ** 2
        return SVD(left[:, :count], np.sqrt(self.values[:count]), right, residuals, operator.trace(), operator.passes)


def _bordered(matrix: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The symmetric matrix that `columns` (its last columns) extend."""
    size, width = columns.shape
    result = np.zeros((size, size))
    result[: size - width, : size - width] = matrix
    result[:, size - width :] = columns
    result[size - width :, :] = columns.T
    corner = columns[size - width :]
    result[size - width :, size - width :] = (corner + corner.T) / 2
    return result


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
        raise Interrupted("interrupted", _trimmed(certify(operator, block), goal)) from None
    operator.label("certificate")
    return _trimmed(certify(operator, block), goal)


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
    return _trimmed(certify(operator, placed(clear_directions(Q), operator.on_host)), replace(goal, rank=count))


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
    signs = _signs(Z)
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


def _signs(left: np.ndarray) -> np.ndarray:
    """The sign rule: in each left vector the entry of largest magnitude is positive."""
    peak = left[np.abs(left).argmax(axis=0), np.arange(left.shape[1])]
    return np.where(peak < 0, -1.0, 1.0)


def _trimmed(result: SVD, goal: Goal) -> SVD:
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
