"""A convolutional variational autoencoder for binary 28 x 28 images."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx


class ConvVAE(nnx.Module):
    """q(h|x) = N(mean, diag), p(h) = N(0, I), p(x|h) = Bernoulli, in nats per example."""

    def __init__(self, latents: int = 20, width: int = 16, *, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(latents, width, rngs=rngs)
        self.decoder = Decoder(latents, width, rngs=rngs)
        self.latents = latents

    def elbo(self, images: jax.Array, key: jax.Array) -> jax.Array:
        """log p(x|h) - KL(q(h|x) | p(h)) with one h ~ q(h|x) and the divergence in closed form: (n,)."""
        mean, log_deviation = self.encoder(images)
        latents = mean + jnp.exp(log_deviation) * jax.random.normal(key, mean.shape)
        divergence = 0.5 * (mean**2 + jnp.exp(2 * log_deviation) - 1) - log_deviation
        return bernoulli(images, self.decoder(latents)) - divergence.sum(axis=-1)

    def elbo_at_mean(self, images: jax.Array) -> jax.Array:
        """The same with the mean of q(h|x) in place of a draw: no noise, and no bound any more: (n,)."""
        mean, log_deviation = self.encoder(images)
        divergence = 0.5 * (mean**2 + jnp.exp(2 * log_deviation) - 1) - log_deviation
        return bernoulli(images, self.decoder(mean)) - divergence.sum(axis=-1)

    def log_weight(self, images: jax.Array, key: jax.Array) -> jax.Array:
        """log p(x, h) - log q(h|x) for one h ~ q(h|x): (n,)."""
        mean, log_deviation = self.encoder(images)
        noise = jax.random.normal(key, mean.shape)
        latents = mean + jnp.exp(log_deviation) * noise
        ratio = (noise**2 / 2 + log_deviation - latents**2 / 2).sum(axis=-1)
        return bernoulli(images, self.decoder(latents)) + ratio

    def sample(self, key: jax.Array, count: int) -> jax.Array:
        """Binary images: h ~ p(h), x ~ p(x|h)."""
        prior, pixels = jax.random.split(key)
        logits = self.decoder(jax.random.normal(prior, (count, self.latents)))
        return jax.random.bernoulli(pixels, nnx.sigmoid(logits)).astype(jnp.float32)


class Encoder(nnx.Module):
    def __init__(self, latents: int, width: int, *, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, width, (4, 4), 2, rngs=rngs)
        self.conv2 = nnx.Conv(width, 2 * width, (4, 4), 2, rngs=rngs)
        self.dense = nnx.Linear(98 * width, 2 * latents, rngs=rngs)

    def __call__(self, images: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = nnx.gelu(self.conv2(nnx.gelu(self.conv1(2 * images - 1))))
        mean, log_deviation = jnp.split(self.dense(hidden.reshape(len(hidden), -1)), 2, axis=-1)
        return mean, jnp.clip(log_deviation, -6, 3)


class Decoder(nnx.Module):
    def __init__(self, latents: int, width: int, *, rngs: nnx.Rngs) -> None:
        self.dense = nnx.Linear(latents, 98 * width, rngs=rngs)
        self.conv1 = nnx.ConvTranspose(2 * width, width, (4, 4), 2, rngs=rngs)
        self.conv2 = nnx.ConvTranspose(width, 1, (4, 4), 2, rngs=rngs)

    def __call__(self, latents: jax.Array) -> jax.Array:
        hidden = nnx.gelu(self.dense(latents)).reshape(len(latents), 7, 7, -1)
        return self.conv2(nnx.gelu(self.conv1(hidden)))


def bernoulli(images: jax.Array, logits: jax.Array) -> jax.Array:
    """log p of binary images under independent pixels: (n,)."""
    return (images * nnx.log_sigmoid(logits) + (1 - images) * nnx.log_sigmoid(-logits)).sum(axis=(1, 2, 3))
