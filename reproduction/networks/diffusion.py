"""A diffusion model, read as a density through its denoising bound.

alpha^2 = sigmoid(-gamma), sigma^2 = sigmoid(gamma), with gamma(t) = low + (high - low) t the negative log
signal-to-noise ratio; x_t = alpha x + sigma eps. For data on 256 levels (Kingma and others, 2021),

    -log p(x) <= KL(q(x_1|x) | N(0, I))  -  E log p(x|x_0)  +  (high - low)/2  E_t |eps - eps_net(x_t, t)|^2

and only the last term depends on the parameters.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from reproduction.networks.layers import grow, pool

LOW, HIGH = -13.3, 5.0


class Diffusion(nnx.Module):
    """A small U-net that predicts the noise in an image, for images in [0, 1] on 256 levels."""

    def __init__(self, width: int = 16, *, rngs: nnx.Rngs) -> None:
        w = width
        self.time = nnx.Linear(16, 4 * w, rngs=rngs)
        self.first = nnx.Conv(1, w, (3, 3), rngs=rngs)
        self.down1, self.down2 = Block(w, 2 * w, w, rngs=rngs), Block(2 * w, 4 * w, w, rngs=rngs)
        self.middle = Block(4 * w, 4 * w, w, rngs=rngs)
        self.up2, self.up1 = Block(6 * w, 2 * w, w, rngs=rngs), Block(3 * w, w, w, rngs=rngs)
        self.last = nnx.Conv(w, 1, (3, 3), kernel_init=nnx.initializers.zeros, rngs=rngs)

    def maps(self, noisy: jax.Array, times: jax.Array) -> list[jax.Array]:
        context = nnx.gelu(self.time(waves(times)))
        top = self.first(noisy)
        half = self.down1(pool(top), context)
        quarter = self.middle(self.down2(pool(half), context), context)
        half = self.up2(jnp.concatenate([grow(quarter), half], axis=-1), context)
        return [quarter, half, self.up1(jnp.concatenate([grow(half), top], axis=-1), context)]

    def noise(self, noisy: jax.Array, times: jax.Array) -> jax.Array:
        """The noise that the network sees in x_t. The image itself is nearly the answer at high noise."""
        return noisy * jnp.sqrt(nnx.sigmoid(gamma(times)))[:, None, None, None] + self.last(
            nnx.gelu(self.maps(noisy, times)[-1])
        )

    def bound(self, images: jax.Array, key: jax.Array, draws: int = 1) -> jax.Array:
        """A lower bound on log p(x) in nats, estimated with `draws` evenly spread times: (n,)."""
        shift_key, noise_key, end_key = jax.random.split(key, 3)
        x = 2 * images - 1
        times = (jnp.arange(draws)[:, None] + jax.random.uniform(shift_key, (1, len(x)))) / draws
        noise = jax.random.normal(noise_key, (draws, *x.shape))
        # All draws in one batch: in a sum over draws the network would be compiled once for each.
        times, noise, every = times.reshape(-1), noise.reshape(-1, *x.shape[1:]), jnp.tile(x, (draws, 1, 1, 1))
        difference = noise - self.noise(diffused(every, times, noise), times)
        errors = jnp.sum(difference**2, axis=(1, 2, 3)).reshape(draws, -1).mean(axis=0)
        return -(HIGH - LOW) / 2 * errors - prior_loss(x) + end_log_prob(x, end_key)

    def sample(self, key: jax.Array, count: int, steps: int = 100) -> jax.Array:
        """Images in [0, 1] by the ancestral sampler with `steps` steps."""
        start, *keys = jax.random.split(key, steps + 1)

        def back(x: jax.Array, now: tuple) -> tuple[jax.Array, None]:
            index, key = now
            t, s = (index + 1) / steps * jnp.ones(count), index / steps * jnp.ones(count)
            g_t, g_s = (gamma(time)[:, None, None, None] for time in (t, s))
            c = -jnp.expm1(g_s - g_t)
            alpha_t, alpha_s = jnp.sqrt(nnx.sigmoid(-g_t)), jnp.sqrt(nnx.sigmoid(-g_s))
            clean = jnp.clip((x - jnp.sqrt(nnx.sigmoid(g_t)) * self.noise(x, t)) / alpha_t, -1, 1)
            mean = alpha_s * (x * (1 - c) / alpha_t + c * clean)
            return mean + jnp.sqrt(nnx.sigmoid(g_s) * c) * jax.random.normal(key, x.shape), None

        order = jnp.arange(steps - 1, -1, -1)
        x, _ = jax.lax.scan(back, jax.random.normal(start, (count, 28, 28, 1)), (order, jnp.stack(keys)))
        return jnp.clip((x + 1) / 2, 0, 1)


class Block(nnx.Module):
    """Two convolutions with a shortcut; the time enters between them."""

    def __init__(self, inputs: int, outputs: int, width: int, *, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(inputs, outputs, (3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(outputs, outputs, (3, 3), rngs=rngs)
        self.norm = nnx.GroupNorm(outputs, num_groups=8, rngs=rngs)
        self.context = nnx.Linear(4 * width, outputs, rngs=rngs)
        self.shortcut = nnx.Conv(inputs, outputs, (1, 1), rngs=rngs)

    def __call__(self, images: jax.Array, context: jax.Array) -> jax.Array:
        hidden = self.norm(self.conv1(nnx.gelu(images))) + self.context(context)[:, None, None, :]
        return self.shortcut(images) + self.conv2(nnx.gelu(hidden))


def gamma(times: jax.Array) -> jax.Array:
    return LOW + (HIGH - LOW) * times


def waves(times: jax.Array) -> jax.Array:
    """t as sines and cosines of eight frequencies: (n, 16)."""
    angles = times[:, None] * jnp.asarray(np.pi * 2.0 ** np.arange(8), times.dtype)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def diffused(x: jax.Array, times: jax.Array, noise: jax.Array) -> jax.Array:
    g = gamma(times)[:, None, None, None]
    return jnp.sqrt(nnx.sigmoid(-g)) * x + jnp.sqrt(nnx.sigmoid(g)) * noise


def prior_loss(x: jax.Array) -> jax.Array:
    """KL(q(x_1|x) | N(0, I)), in nats."""
    variance = nnx.sigmoid(jnp.asarray(HIGH))
    return 0.5 * jnp.sum((1 - variance) * x**2 + variance - jnp.log(variance) - 1, axis=(1, 2, 3))


def end_log_prob(x: jax.Array, key: jax.Array) -> jax.Array:
    """log p(x|x_0): which of the 256 levels, given x with the last bit of noise."""
    levels = jnp.linspace(-1, 1, 256)
    ratio = jnp.exp(jnp.asarray(LOW) / 2)  # sigma / alpha at t = 0
    seen = x + ratio * jax.random.normal(key, x.shape)
    logits = -0.5 * ((seen[..., None] - levels) / ratio) ** 2
    index = jnp.round((x + 1) * 127.5).astype(int)[..., None]
    return jnp.take_along_axis(nnx.log_softmax(logits), index, axis=-1)[..., 0].sum(axis=(1, 2, 3))
