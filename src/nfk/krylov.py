"""Block Krylov with full reorthogonalisation: the default way to the leading singular vectors.

On the parameters' side a step takes the block W_j (P x U) and returns Z_j = V W_j and V' Z_j from the same gradients:
one pass a step, with W_i' V'V W_j = Z_i' Z_j. On the examples' side a step is Y_{j+1} = V (V' Y_j): two passes, but
blocks of N rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from nfk.blocks import Block, column_norms, combine, gram, joined, orthonormalise, project_out, random_block
from nfk.svd import (
    SVD,
    ConvergenceWarning,
    Goal,
    Interrupted,
    Operator,
    certify,
    clear_directions,
    column_slices,
    trimmed,
)

MARGIN = 0.9  # the search stops a little below the tolerance, since the certificate may differ in its last digits


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
    uncertified = lambda: trimmed(found.as_svd(operator, Q, normal.left_vectors(found)), goal)  # noqa: E731
    del search, normal.images
    found.basis.clear()
    result = trimmed(certify(operator, Q, columns, uncertified), goal)
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
