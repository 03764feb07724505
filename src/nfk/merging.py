"""Two fits over different data as one, without starting again.

The rows of the first fit are known as V_1 = Phi_1 Sigma_1 Q_1', under its own moments. Under the moments of both data
sets together, z and s, they are

    V_1 diag(s / s_1) + 1 c_1',   c_1 = s * (z_1 - z),

so the joint matrix is L R' with L of N rows, R of P rows and k_1 + k_2 + 2 columns: a small SVD between the two.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from nfk.embedding import Embedding
from nfk.identity import describe
from nfk.operator.moments import Moments
from nfk.solve.svd import largest_positive
from nfk.spaces import HOST


def merge(first: Embedding, second: Embedding, rank: int | None = None) -> Embedding:
    """The embedding of both data sets together, rows of the first before those of the second. No pass over the data.

    Exact where both fits have full rank; otherwise what the two left out is missing, and the residuals bound its
    effect: |s_i(joint) - s_i(found)| <= |what is missing|. `rank` is the larger of the two by default (less where both
    together have less). Costs 2 P (k_1 + k_2 + 2)^2 operations, holds two more blocks of P x (k_1 + k_2 + 2).

    Args:
        first: an embedding.
        second: another one, of the same model and options over other data.
        rank: components to keep; the larger rank of the two by default.
    """
    _check(first, second)
    moments = joint_moments(first, second)
    left, right = _factors((first, second), moments)
    inner, outer = _root(left), _root(right)
    U, values, W = np.linalg.svd(inner @ outer.T)
    rank = _checked_rank(rank, first, second, int(np.sum(values > values[0] * np.finfo(right.dtype).eps * 10)))
    values = values[:rank] * moments.factor
    # L = A inner with A orthonormal, so the left vectors are A U = L inner^-1 U, and likewise on the right.
    left_vectors = left @ (np.linalg.pinv(inner, rcond=1e-12) @ U[:, :rank]).astype(left.dtype)
    right_vectors = HOST.product(right, (np.linalg.pinv(outer, rcond=1e-12) @ W[:rank].T).astype(right.dtype))
    signs = largest_positive(left_vectors).astype(left.dtype)
    left_vectors, right_vectors = left_vectors * signs, right_vectors * signs
    trace = sum(_trace(part, moments) for part in (first, second))
    missing = np.sqrt(sum(_missing(part, moments) ** 2 for part in (first, second))) / values
    return replace(
        first, moments=moments, left=left_vectors, right=first.space.put(right_vectors), trace=trace,
        singular_values=values, residuals=2 * missing + missing**2, passes=first.passes + second.passes,
        engine=first.engine if first.engine == second.engine else "gradients", plan=None,
    )  # fmt: skip


def joint_moments(first: Embedding, second: Embedding) -> Moments:
    """The moments over both data sets: Chan's formula for means and sums of squared deviations."""
    a, b, model = first.moments, second.moments, first.model
    if not model.moments_over_data:
        return a  # those of the same samples
    count, unit = a.count + b.count, a.unit
    means = [unit * part.mean.astype(np.float64) for part in (a, b)]
    mean = (a.count * means[0] + b.count * means[1]) / count
    squares = sum(part.count * (unit / part.unit) ** 2 * part.spread.astype(np.float64) for part in (a, b))
    squares += (means[0] - means[1]) ** 2 * (a.count * b.count / count)
    return Moments.of(model, mean.astype(a.mean.dtype), squares.astype(a.spread.dtype), count, unit)


def _factors(parts: tuple[Embedding, Embedding], moments: Moments) -> tuple[np.ndarray, np.ndarray]:
    """L (rows x c) and R (P x c) with the joint matrix factor L R': numbers of ordinary size."""
    rows = [len(part.left) for part in parts]
    width = sum(part.rank + 1 for part in parts)
    left = np.zeros((sum(rows), width), parts[0].left.dtype)
    right = np.empty((len(moments.mean), width), parts[0].left.dtype)
    row = column = 0
    for part, count in zip(parts, rows, strict=True):
        own = slice(column, column + part.rank)
        left[row : row + count, own] = part.training / moments.factor
        left[row : row + count, own.stop] = 1
        right[:, own] = part.space.get(part.right) * _rescaling(part, moments)[:, None]
        right[:, own.stop] = moments.scale * (part.moments.mean - moments.mean)
        row, column = row + count, own.stop + 1
    return left, right


def _rescaling(part: Embedding, moments: Moments) -> np.ndarray:
    """s / s_1; 0 where s_1 = 0: there all gradients of that data set equal their mean."""
    own = part.moments.factor * part.moments.scale
    return np.divide(moments.factor * moments.scale, own, out=np.zeros_like(own), where=own > 0)


def _root(block: np.ndarray) -> np.ndarray:
    """A square matrix R with block' block = R' R, in float64."""
    values, vectors = np.linalg.eigh(HOST.inner(block, block))
    return np.sqrt(np.maximum(values, 0))[:, None] * vectors.T


def _trace(part: Embedding, moments: Moments) -> float:
    """|V_1 diag(s / s_1) + 1 c_1'|_F^2, exactly: where moments change, they were taken over these very rows."""
    own, model = part.moments, part.model
    if not model.moments_over_data:
        return part.trace
    shift = (own.mean.astype(np.float64) - moments.mean) ** 2
    if model.fisher == "identity":
        return part.trace + len(part.left) * float(np.sum(shift))
    spread = own.spread / own.unit**2
    return len(part.left) * float(np.sum(moments.scale.astype(np.float64) ** 2 * (spread + shift)))


def _missing(part: Embedding, moments: Moments) -> float:
    """A bound on the norm of the rows' part outside the fitted components, under the new scale.

    Its largest singular value is not above the smallest fitted one, nor its squared length above what the trace leaves.
    """
    rest = max(part.trace - float(np.sum(part.eigenvalues)), 0.0)
    rest = 0.0 if rest < 10 * np.finfo(part.left.dtype).eps * part.trace else rest
    stretch = float(_rescaling(part, moments).max())
    return stretch * float(np.sqrt(min(rest, part.eigenvalues[-1])))


def _checked_rank(rank: int | None, first: Embedding, second: Embedding, found: int) -> int:
    most = first.rank + second.rank
    if rank is None:
        return min(max(first.rank, second.rank), found)
    if not isinstance(rank, (int, np.integer)) or not 1 <= rank <= most:
        raise ValueError(
            f"rank={rank!r} must be a whole number from 1 to {most}, the components of both fits: fit with larger ranks"
        )
    return int(min(rank, found))


def _check(first: Embedding, second: Embedding) -> None:
    for name, part in (("first", first), ("second", second)):
        if not isinstance(part, Embedding):
            raise TypeError(f"{name} is a {type(part).__name__}: pass what nfk.fit or nfk.load returned")
    a, b = first.model, second.model
    if describe(a) != describe(b) or (a.expectation, a.damping) != (b.expectation, b.damping):
        raise ValueError("the two embeddings are of different networks or options: fit both with the same model")
    if first.example_shapes != second.example_shapes:
        raise ValueError(
            f"the first embedding is of examples of shape {first.example_shapes}, the second of "
            f"{second.example_shapes}: both must be of one kind"
        )
    if a.random and (jax.random.key_data(first.score_key) != jax.random.key_data(second.score_key)).any():
        raise ValueError("the two embeddings were fitted with different keys: fit both with the same key")
    if a.expectation == "model" and not np.allclose(first.moments.scale, second.moments.scale, rtol=1e-2):
        raise ValueError("the two embeddings have moments over different samples: fit both with one model and key")
