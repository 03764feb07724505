"""The paper's algorithm as it is printed: vmap of jvp and of vjp over the columns, 2 L + 2 sweeps over the data.

With the scale applied where the dimensions allow it (to the columns before the JVP, to the sum after the VJP).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

SWEEPS = 22  # L = 10: one VJP sweep, ten of each, one JVP sweep


def jacobian_matrix_product(score: Callable) -> Callable:
    """(params, X, M, mean, scale) -> V M for a batch; M has parameter leaves with a leading axis of U columns."""

    def product(params: Any, X: Any, M: Any, mean: Any, scale: Any) -> jax.Array:
        batch = lambda params: jax.vmap(lambda x: score(params, x))(X)  # noqa: E731
        scaled = jax.tree.map(lambda m, s: m * s, M, scale)
        columns = jax.vmap(lambda m: jax.jvp(batch, (params,), (m,))[1])(scaled)
        shift = sum(
            jnp.tensordot(m, z, m.ndim - 1) for m, z in zip(jax.tree.leaves(scaled), jax.tree.leaves(mean), strict=True)
        )
        return (columns - shift[:, None]).T

    return jax.jit(product)


def matrix_jacobian_product(score: Callable) -> Callable:
    """(params, X, W, mean, scale) -> V' W for a batch, as parameter leaves with a leading axis of U columns."""

    def product(params: Any, X: Any, W: jax.Array, mean: Any, scale: Any) -> Any:
        batch = lambda params: jax.vmap(lambda x: score(params, x))(X)  # noqa: E731
        pullback = jax.vjp(batch, params)[1]
        columns = jax.vmap(lambda w: pullback(w)[0])(W.T)
        sums = W.sum(axis=0)
        return jax.tree.map(lambda c, z, s: s * (c - z * sums.reshape(-1, *([1] * z.ndim))), columns, mean, scale)

    return jax.jit(product)
