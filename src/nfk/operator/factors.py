"""The kernel matrix of raw gradients, K = J J', from the factors of every layer's gradient.

For kernels without a Fisher scale: the neural tangent kernel, and fisher="identity". `model.factors` has the equation.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from nfk.operator.gradients import GradientOperator
from nfk.operator.moments import Moments
from nfk.operator.stream import GradientStream

MOST_POSITIONS = 2048  # of all rows in a tile: a tile of their inner products stays near the cache


class FactorOperator(GradientOperator):
    """V by gradients, but for its kernel matrix: that comes from factors, and no gradient is formed for it."""

    def __init__(self, stream: GradientStream, moments: Moments, chunk: int, centred: bool) -> None:
        super().__init__(stream, moments, chunk)
        self._centred = centred

    def gram(self, double: bool = False) -> Float[np.ndarray, "rows rows"]:
        """V V' of products in the precision of the gradients, summed in float64. One pass."""
        self.passes += 1
        K = factor_gram(self.stream, self.moments.unit, self._centred)
        self.measured(K.diagonal())
        return K


def factor_gram(stream: GradientStream, unit: float = 1.0, centred: bool = False) -> Float[np.ndarray, "rows rows"]:
    """<unit g(x), unit g(y)> for all rows in float64, from products in the precision of the gradients. One pass.

    With T positions, A inputs and D outputs in a layer, o outputs of the network and R parameters without factors, it
    holds N (o R + sum of T (A + o D)) numbers beside K, and takes N^2 (o^2 R + sum of T^2 (A + o^2 D)) operations. With
    `centred`, the mean gradient over the same rows is taken off: H K H with H = I - 1 1' / rows.
    """
    rest, layers = _gathered(stream, unit)
    K = np.zeros((stream.rows, stream.rows))
    for leaf in rest:
        K += leaf @ leaf.T
    for a, d in layers:
        _add_layer(K, a, d)
    if centred:
        K -= K.mean(axis=0)
        K -= K.mean(axis=1, keepdims=True)
    return K


def _gathered(stream: GradientStream, unit: float) -> tuple[list[np.ndarray], list[tuple[np.ndarray, np.ndarray]]]:
    """Gradients of the leaves without factors, each (rows, size), and a and d of every layer, for all examples."""
    rest: list[list] = []
    layers: list[tuple[list, list]] = []
    stream.begin_pass()
    for begin, end, (leaves, factors) in stream.batches(stream.differentiator.factors, stream.microbatch):
        rest = rest or [[] for _ in leaves]
        layers = layers or [([], []) for _ in factors]
        for parts, leaf in zip(rest, leaves.values(), strict=True):
            parts.append(np.asarray(leaf)[: end - begin].reshape(-1, leaf.shape[-1]) * leaf.dtype.type(unit))
        for (first, second), (a, d) in zip(layers, factors, strict=True):
            first.append(np.asarray(a)[: end - begin])
            second.append(np.asarray(d)[: end - begin] * d.dtype.type(unit))
    return [np.concatenate(parts) for parts in rest], [(np.concatenate(a), np.concatenate(d)) for a, d in layers]


def _add_layer(K: np.ndarray, a: Float[np.ndarray, "N T A"], d: Float[np.ndarray, "N o T D"]) -> None:
    """K += sum over positions s, t of (a_xs . a_yt) (d_xos . d_ypt), in tiles, of which half are computed."""
    examples, outputs, positions, _ = d.shape
    step = max(MOST_POSITIONS // (outputs * positions), 1)
    tiles = [slice(start, min(start + step, examples)) for start in range(0, examples, step)]
    for index, rows in enumerate(tiles):
        for columns in tiles[: index + 1]:
            part = _tile(a[rows], d[rows], a[columns], d[columns])
            here, there = (slice(s.start * outputs, s.stop * outputs) for s in (rows, columns))
            K[here, there] += part
            if rows != columns:
                K[there, here] += part.T


def _tile(a: np.ndarray, d: np.ndarray, b: np.ndarray, e: np.ndarray) -> np.ndarray:
    (n, o, T, _), m = d.shape, len(e)
    inner = (a.reshape(n * T, -1) @ b.reshape(m * T, -1).T).reshape(n, 1, T, m, 1, T)
    outer = (d.reshape(n * o * T, -1) @ e.reshape(m * o * T, -1).T).reshape(n, o, T, m, o, T)
    return (inner * outer).sum(axis=(2, 5), dtype=np.float64).reshape(n * o, m * o)
