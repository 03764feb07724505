"""A normalising flow from flowjax: affine couplings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def coupling_flow(dimensions: int = 196, width: int = 128, layers: int = 6, *, key: jax.Array) -> Any:
    """log p(y) exact, by `layers` affine couplings with one hidden layer each, a permutation between them.

    The base distribution is N(0, I) and does not learn. The module is equinox's: `nfk.from_equinox` reads it.
    """
    try:
        import paramax
        from flowjax.bijections import Affine
        from flowjax.distributions import Normal
        from flowjax.flows import coupling_flow as build
    except ImportError as error:
        raise ImportError("flows come from flowjax: pip install flowjax") from error
    base = paramax.non_trainable(Normal(jnp.zeros(dimensions)))
    return build(key, base_dist=base, transformer=Affine(), flow_layers=layers, nn_width=width, nn_depth=1)
