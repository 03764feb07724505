"""The end of every method: Rayleigh-Ritz in the span that was found, and the true residual of every vector."""

from __future__ import annotations

import numpy as np
import scipy.linalg
from jaxtyping import Float

from nfk.solve.operator import Operator
from nfk.solve.svd import SVD, empty, largest_positive
from nfk.spaces import Block


def certify(operator: Operator, Q: Float[Block, "P k"], columns: int | None = None) -> SVD:
    """V Q and V' V Q in one fused pass give the values, both sides, and

        residuals[i] = |V'V q_i - s_i^2 q_i| / s_i^2.

    With `columns`, when two blocks of P rows do not fit: one pass for the values, then one per group of columns.
    Gives up the memory of Q.
    """
    if Q.shape[1] == 0:
        return empty(operator)
    space = operator.space
    Z, image = operator.fused(Q) if columns is None else (operator.matmat(Q), None)
    Z = space.get(Z).astype(np.float64)
    rotation, values = rayleigh_ritz(Z.T @ Z, space.inner(Q, Q), operator.dtype)
    Z = Z @ rotation
    signs = largest_positive(Z)
    Z, rotation = Z * signs, rotation * signs
    Q = space.rotate(Q, rotation)
    alive = np.where(values > 0, values, 1)
    if image is not None:
        lengths = space.norms(space.rotate(image, rotation), Q, values)
    else:
        parts = column_slices(len(values), columns)
        lengths = np.concatenate([_residual_lengths(operator, Q, values, part) for part in parts])
    left = (Z / np.sqrt(alive)).astype(operator.dtype)
    return SVD(left, np.sqrt(values), Q, lengths / alive, operator.trace(), operator.passes, space)


def _residual_lengths(operator: Operator, Q: Block, values: np.ndarray, part: slice) -> np.ndarray:
    """|V'V q - s^2 q| for some columns of Q. One pass."""
    some = operator.space.columns(Q, part)
    return operator.space.norms(operator.fused(some)[1], some, values[part])


def rayleigh_ritz(
    projected: Float[np.ndarray, "k k"], metric: Float[np.ndarray, "k k"], dtype: np.dtype
) -> tuple[Float[np.ndarray, "k m"], Float[np.ndarray, " m"]]:
    """Solve projected y = theta metric y over the directions of the metric above rounding; values fall."""
    weights, vectors = scipy.linalg.eigh(metric)
    keep = weights > weights[-1] * np.finfo(dtype).eps * len(weights)
    whiten = vectors[:, keep] / np.sqrt(weights[keep])
    values, rotation = scipy.linalg.eigh(whiten.T @ projected @ whiten)
    values, rotation = values[::-1], (whiten @ rotation)[:, ::-1]
    rounding = max((np.finfo(dtype).eps * len(values)) ** 2, 4 * len(values) * np.finfo(np.float64).eps)
    return rotation, np.where(values > max(values[0], 0) * rounding, values, 0)


def clear_directions(operator: Operator, Q: Float[Block, "P k"]) -> Float[Block, "P m"]:
    """The columns of Q at length one, without those that are rounding error beside the longest."""
    norms = operator.space.norms(Q)
    clear = norms > 10 * np.finfo(operator.dtype).eps * norms.max(initial=0)
    return operator.space.rotate(Q, np.diag(1 / np.where(clear, norms, 1))[:, clear])


def column_slices(width: int, columns: int | None) -> list[slice]:
    step = columns or width
    return [slice(a, min(a + step, width)) for a in range(0, width, step)]
