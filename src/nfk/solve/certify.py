"""The end of every method: Rayleigh-Ritz in the span that was found, and an honest residual for every vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from nfk.solve.operator import Operator
from nfk.solve.svd import SVD, empty, largest_positive
from nfk.spaces import Block, eigh, normals

IMPROVEMENTS = 2
DOUBT = 1e-10  # the probability that a bound from random probes does not hold


def certify(operator: Operator, Q: Float[Block, "P k"]) -> SVD:
    """V Q and V' V Q in one fused pass give the values, both sides, and

        residuals[i] = |V'V q_i - s_i^2 q_i| / s_i^2.

    Gives up the memory of Q.
    """
    if Q.shape[1] == 0:
        return empty(operator)
    space = operator.space
    Z, image = operator.fused(Q)
    Z = operator.row_space.get(Z).astype(np.float64)
    rotation, values = _rotation(Z, space.inner(Q, Q), operator.dtype)
    Q = space.rotate(Q, rotation)
    lengths = space.norms(space.rotate(image, rotation), Q, values)
    return _svd(operator, Q, Z @ rotation, values, lengths / _alive(values))


@dataclass(frozen=True)
class Known:
    """What a method knows of its right vectors without a pass: V Q = Z, and V' Z = Q diag(values) + T B."""

    Q: Float[Block, "P k"]
    Z: Float[np.ndarray, "rows k"]
    values: Float[np.ndarray, " k"]
    T: Float[Block, "P b"] | None = None
    B: Float[np.ndarray, "b k"] | None = None


def verify(operator: Operator, known: Known, seed: Sequence[int], probes: int, tol: float) -> SVD:
    """The residuals that follow from what is known, and the most by which all of it can be wrong.

    With D = V'V Q - (Q diag(values) + T B), a fused pass over a few random combinations w of the vectors shows D w, and
    |D| <= c max |D w| but for a probability of `DOUBT`. So a bound for every vector costs `probes` columns, not k.
    Where it is above `tol`, the full certificate is taken instead. Gives up the memory of Q.
    """
    if known.Q.shape[1] == 0:
        return empty(operator)
    space, Q = operator.space, known.Q
    metric = space.inner(Q, Q)
    rotation, values = _rotation(known.Z, metric, operator.dtype)
    Z, alive = known.Z @ rotation, _alive(values)
    lengths = _known_lengths(operator, known, metric, rotation, values)
    random = normals(seed, 0, len(values), probes, np.dtype(np.float64)) / alive[:, None]
    shown, image = operator.fused(space.product(Q, rotation @ random))
    image = space.add_product(image, Q, known.values[:, None] * (rotation @ random), -1.0)
    if known.T is not None:
        image = space.add_product(image, known.T, known.B @ rotation @ random, -1.0)
    unlikely = np.sqrt(2 / np.pi) * DOUBT ** (-1 / probes)
    wrong = unlikely * space.norms(image).max()
    wrong_left = (
        unlikely * np.linalg.norm(operator.row_space.get(shown) - Z @ random, axis=0).max() * np.sqrt(values[0])
    )
    residuals = lengths / alive + np.where(values > 0, wrong, 0)
    del image
    if max(residuals.max(), wrong_left) > tol:
        return certify(operator, space.rotate(Q, rotation))
    return _svd(operator, space.rotate(Q, rotation), Z, values, residuals)


def unverified(operator: Operator, known: Known, residuals: Float[np.ndarray, " k"]) -> SVD:
    """A result with residuals that a method believes in, for when there is no time to verify them. Gives up Q's
    memory."""
    if known.Q.shape[1] == 0:
        return empty(operator)
    rotation, values = _rotation(known.Z, operator.space.inner(known.Q, known.Q), operator.dtype)
    Q = operator.space.rotate(known.Q, rotation)
    return _svd(operator, Q, known.Z @ rotation, values, residuals[: len(values)])


def _known_lengths(
    operator: Operator, known: Known, metric: np.ndarray, rotation: np.ndarray, values: np.ndarray
) -> Float[np.ndarray, " m"]:
    """|V'V q - s^2 q| for the rotated vectors, if V'V Q is what is known: norms of Q X + T Y from small matrices."""
    X = known.values[:, None] * rotation - rotation * values
    squares = np.einsum("ij,ij->j", X, metric @ X)
    if known.T is not None and known.B is not None:
        space, Y = operator.space, known.B @ rotation
        cross, own = space.inner(known.Q, known.T), space.inner(known.T, known.T)
        squares += 2 * np.einsum("ij,ij->j", X, cross @ Y) + np.einsum("ij,ij->j", Y, own @ Y)
    return np.sqrt(np.maximum(squares, 0))


def certify_by_kernel(operator: Operator, Q: Float[Block, "P k"], K: Float[np.ndarray, "rows rows"]) -> SVD:
    """With the exact kernel at hand, a pass of V Q alone:

        |V'V q - s^2 q|^2 = z'K z - 2 s^2 z'z + s^4 q'q,    z = V q,

    in float64, so that what cancels is rounding error of 1e-16: a residual below 3e-8 s_1 / s_i cannot be seen. The
    columns of Q come in the order of their values, nearly orthonormal. Holds no second block. Gives up the memory of Q.
    """
    if Q.shape[1] == 0:
        return empty(operator)
    space = operator.space
    # Each vector orthogonal to those before it: a trace of the largest in a small one would be most of its residual.
    Q = space.rotate(Q, np.linalg.inv(np.linalg.cholesky(space.inner(Q, Q, double=True))).T)
    Z, squares_of_q = operator.images(Q), np.diagonal(space.inner(Q, Q, double=True))
    squares_of_z = np.einsum("ij,ij->j", Z, Z)
    values = squares_of_z / squares_of_q
    alive = _alive(values)
    squares = np.einsum("ij,ij->j", Z, K @ Z) - 2 * values * squares_of_z + values**2 * squares_of_q
    rounding = 4 * np.finfo(np.float64 if space.exact else operator.dtype).eps * values.max() / alive
    residuals = np.sqrt(np.maximum(squares, 0) / alive**2 + rounding)
    order = np.argsort(-values)
    signs = largest_positive(Z[:, order])
    Q = space.rotate(Q, np.eye(len(values))[:, order] * signs)
    return _svd(operator, Q, Z[:, order] * signs, values[order], residuals[order])


def improved(operator: Operator, found: SVD, tol: float) -> SVD:
    """V' V Q again, while that brings residuals nearer to the tolerance: each column at length one, since making them
    orthonormal would mix rounding error of the long ones into the short. Two passes each time."""
    for _ in range(IMPROVEMENTS):
        if found.residuals.max(initial=0) <= tol:
            break
        image = operator.rmatmat(found.left * found.singular_values)
        better = certify(operator, clear_directions(operator, image)[0])
        if better.residuals.max(initial=0) >= found.residuals.max(initial=0):
            break
        found = better
    return found


def _alive(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, 1)


def _rotation(Z: np.ndarray, metric: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of the Ritz vectors, by the sign rule, and their values."""
    rotation, values = rayleigh_ritz(Z.T @ Z, metric, dtype)
    return rotation * largest_positive(Z @ rotation), values


def _svd(operator: Operator, Q: Block, Z: np.ndarray, values: np.ndarray, residuals: np.ndarray) -> SVD:
    left = (Z / np.sqrt(_alive(values))).astype(operator.dtype)
    return SVD(left, np.sqrt(values), Q, residuals, operator.trace(), operator.passes, operator.space)


def rayleigh_ritz(
    projected: Float[np.ndarray, "k k"], metric: Float[np.ndarray, "k k"], dtype: np.dtype
) -> tuple[Float[np.ndarray, "k m"], Float[np.ndarray, " m"]]:
    """Solve projected y = theta metric y over the directions of the metric above rounding; values fall."""
    weights, vectors = eigh(metric)
    keep = weights > weights[-1] * np.finfo(dtype).eps * len(weights)
    whiten = vectors[:, keep] / np.sqrt(weights[keep])
    values, rotation = eigh(whiten.T @ projected @ whiten)
    values, rotation = values[::-1], (whiten @ rotation)[:, ::-1]
    rounding = max((np.finfo(dtype).eps * len(values)) ** 2, 4 * len(values) * np.finfo(np.float64).eps)
    return rotation, np.where(values > max(values[0], 0) * rounding, values, 0)


def clear_directions(
    operator: Operator, Q: Float[Block, "P k"]
) -> tuple[Float[Block, "P m"], Float[np.ndarray, "k m"]]:
    """The columns of Q at length one, without those that are rounding error beside the longest; and how they are
    made of Q."""
    norms = operator.space.norms(Q)
    clear = norms > 10 * np.finfo(operator.dtype).eps * norms.max(initial=0)
    chosen = np.diag(1 / np.where(clear, norms, 1))[:, clear]
    return operator.space.rotate(Q, chosen), chosen
