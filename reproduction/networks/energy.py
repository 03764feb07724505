"""A classifier without normalisation layers, smooth in its input: an energy-based model of labelled images (JEM)."""

from __future__ import annotations

import jax
from flax import nnx

from reproduction.networks.layers import pool


class EnergyNetwork(nnx.Module):
    """Logits f_y(x) of 14 x 14 images; E(x) = -logsumexp_y f_y(x).

    Swish units and no batch statistics: the sampler follows the gradient in x, one example at a time.
    """

    def __init__(self, width: int = 16, classes: int = 10, *, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, width, (3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(width, 2 * width, (3, 3), rngs=rngs)
        self.dense1 = nnx.Linear(7 * 7 * 2 * width, 64, rngs=rngs)
        self.dense2 = nnx.Linear(64, classes, rngs=rngs)

    def features(self, images: jax.Array) -> jax.Array:
        hidden = pool(nnx.swish(self.conv1(2 * images - 1)))
        hidden = nnx.swish(self.conv2(hidden))
        return nnx.swish(self.dense1(hidden.reshape(len(hidden), -1)))

    def __call__(self, images: jax.Array) -> jax.Array:
        return self.dense2(self.features(images))

    def energy(self, images: jax.Array) -> jax.Array:
        return -jax.nn.logsumexp(self(images), axis=-1)
