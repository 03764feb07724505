"""An autoregressive model of binary images by masked convolutions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from reproduction.networks.vaes import bernoulli


class PixelCNN(nnx.Module):
    """log p(x) = sum over pixels of log p(x_i | pixels above, or left in its row), exact in one forward pass."""

    def __init__(self, width: int = 16, blocks: int = 5, channels: int = 1, *, rngs: nnx.Rngs) -> None:
        self.first = masked(channels, width, 7, False, rngs)
        self.blocks = nnx.List([masked(width, width, 3, True, rngs) for _ in range(blocks)])
        self.mixers = nnx.List([nnx.Conv(width, width, (1, 1), rngs=rngs) for _ in range(blocks)])
        self.last = nnx.Conv(width, channels, (1, 1), rngs=rngs)

    def maps(self, images: jax.Array) -> list[jax.Array]:
        hidden, found = self.first(2 * images - 1), []
        for block, mixer in zip(self.blocks, self.mixers, strict=True):
            hidden = hidden + mixer(nnx.gelu(block(nnx.gelu(hidden))))
            found.append(hidden)
        return found

    def logits(self, images: jax.Array) -> jax.Array:
        return self.last(nnx.gelu(self.maps(images)[-1]))

    def log_prob(self, images: jax.Array) -> jax.Array:
        """Nats per example: (n,)."""
        return bernoulli(images, self.logits(images))

    def sample(self, key: jax.Array, count: int, side: int = 28) -> jax.Array:
        """Pixel by pixel: a forward pass each."""
        noise = jax.random.uniform(key, (count, side, side, 1))

        def draw(place: jax.Array, images: jax.Array) -> jax.Array:
            row, column = place // side, place % side
            chance = nnx.sigmoid(self.logits(images)[:, row, column])
            return images.at[:, row, column].set((noise[:, row, column] < chance).astype(images.dtype))

        return jax.lax.fori_loop(0, side * side, draw, jnp.zeros((count, side, side, 1)))


def masked(inputs: int, outputs: int, size: int, own: bool, rngs: nnx.Rngs) -> nnx.Conv:
    """A convolution that sees the rows above and the pixels to the left; with `own`, the pixel itself too."""
    mask = np.zeros((size, size, inputs, outputs), np.float32)
    mask[: size // 2] = 1
    mask[size // 2, : size // 2 + own] = 1
    return nnx.Conv(inputs, outputs, (size, size), mask=jnp.asarray(mask), rngs=rngs)
