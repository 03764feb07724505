"""Convolutional GANs. Images are in [0, 1] on both sides; the critic's output is raw."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
from flax import nnx

from reproduction.networks.layers import SpectralConv


class DCGANCritic(nnx.Module):
    """The discriminator of a DCGAN on 28 x 28 digits, framed to 32 x 32: 16,871 parameters at width 10.

    Four 4 x 4 convolutions with spectral normalisation and no batch normalisation: examples must be independent.
    """

    def __init__(self, width: int = 10, *, rngs: nnx.Rngs) -> None:
        widths = (1, width, 2 * width, 4 * width)
        self.convs = nnx.List([SpectralConv(a, b, 4, 2, rngs=rngs) for a, b in itertools.pairwise(widths)])
        self.last = SpectralConv(4 * width, 1, 4, padding="VALID", rngs=rngs)

    def maps(self, images: jax.Array) -> list[jax.Array]:
        """The activations of every hidden layer."""
        hidden = 2 * jnp.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0))) - 1
        found = []
        for conv in self.convs:
            hidden = nnx.leaky_relu(conv(hidden), 0.2)
            found.append(hidden)
        return found

    def __call__(self, images: jax.Array) -> jax.Array:
        return self.last(self.maps(images)[-1]).reshape(len(images))


class SpectralCritic(nnx.Module):
    """Seven convolutions with spectral normalisation for 32 x 32 x 3 images: 186 K parameters at width 16."""

    def __init__(self, width: int = 16, channels: int = 3, *, rngs: nnx.Rngs) -> None:
        w = width
        plan = [(channels, w, 3, 1), (w, w, 4, 2), (w, 2 * w, 3, 1), (2 * w, 2 * w, 4, 2), (2 * w, 4 * w, 3, 1)]
        plan += [(4 * w, 4 * w, 4, 2), (4 * w, 8 * w, 3, 1)]
        self.convs = nnx.List([SpectralConv(*layer, rngs=rngs) for layer in plan])
        self.last = SpectralConv(8 * w, 1, 4, padding="VALID", rngs=rngs)

    def maps(self, images: jax.Array) -> list[jax.Array]:
        hidden, found = 2 * images - 1, []
        for conv in self.convs:
            hidden = nnx.leaky_relu(conv(hidden), 0.1)
            found.append(hidden)
        return found

    def __call__(self, images: jax.Array) -> jax.Array:
        return self.last(self.maps(images)[-1]).reshape(len(images))


def pooled(maps: list[jax.Array]) -> jax.Array:
    """The mean over space of every map, side by side: the usual "activations" of a critic."""
    return jnp.concatenate([layer.mean(axis=(1, 2)) for layer in maps], axis=-1)


class Generator(nnx.Module):
    """The generator of a DCGAN: latents to images of 32 x 32, cut to `side`; 143,841 parameters at width 16."""

    def __init__(
        self, latents: int = 100, width: int = 16, channels: int = 1, side: int = 28, *, rngs: nnx.Rngs
    ) -> None:
        widths = (latents, 4 * width, 2 * width, width)
        paddings = ("VALID", "SAME", "SAME")
        self.convs = nnx.List([
            nnx.ConvTranspose(a, b, (4, 4), 1 if p == "VALID" else 2, padding=p, use_bias=False, rngs=rngs)
            for a, b, p in zip(widths, widths[1:], paddings, strict=False)
        ])  # fmt: skip
        self.norms = nnx.List([nnx.BatchNorm(w, momentum=0.9, rngs=rngs) for w in widths[1:]])
        self.last = nnx.ConvTranspose(width, channels, (4, 4), 2, padding="SAME", rngs=rngs)
        self.latents, self.side = latents, side

    def __call__(self, latents: jax.Array) -> jax.Array:
        hidden = latents[:, None, None, :]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            hidden = nnx.relu(norm(conv(hidden)))
        images = (nnx.tanh(self.last(hidden)) + 1) / 2
        edge = (32 - self.side) // 2
        return images[:, edge : 32 - edge, edge : 32 - edge]
