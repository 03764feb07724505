"""Pixels of 256 levels as a mixture of discretised logistics, autoregressive over the channels (PixelCNN++).

With pixels x in [-1, 1] and components k with weights pi, means m, log-scales s and coefficients a,

    p(x) = sum_k pi_k prod_c P[bin of x_c],    x_c ~ Logistic(m_kc + sum_{d < c} tanh(a_kcd) x_d,  exp(max(s_kc, -7))).

The two outer bins reach to infinity. A pixel takes 1 + 2 channels + channels (channels - 1) / 2 numbers per component:
3 for grey images, 10 for colour. All functions sum or act over (height, width) and keep any axes before them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

LOG_SCALE_FLOOR = -7.0
HALF_BIN = 1 / 255


def parameters_per_pixel(channels: int, components: int = 10) -> int:
    """Numbers that describe one pixel: 100 for ten components in colour, 30 in grey."""
    return components * (1 + 2 * channels + channels * (channels - 1) // 2)


def log_prob(images: jax.Array, parameters: jax.Array) -> jax.Array:
    """log p(image) in nats, summed over pixels; images in [0, 1] on the grid of 256 levels."""
    mixture = _Mixture.of(parameters, images.shape[-1])
    pixels = 2 * images - 1
    bins = [
        _log_bin(pixels[..., channel, None], mixture.mean(channel, pixels), mixture.log_scales[..., channel, :])
        for channel in range(images.shape[-1])
    ]
    joint = jax.nn.log_softmax(mixture.logits) + sum(bins)
    return jax.nn.logsumexp(joint, axis=-1).sum((-2, -1))


def sample(key: jax.Array, parameters: jax.Array, channels: int) -> jax.Array:
    """Images in [0, 1] on the grid of 256 levels, drawn from exactly the law of `log_prob`."""
    component_key, logistic_key = jax.random.split(key)
    mixture = _Mixture.of(parameters, channels)
    mixture = mixture.only(jax.random.categorical(component_key, mixture.logits))
    noise = jax.random.logistic(logistic_key, (*mixture.logits.shape[:-1], channels), parameters.dtype)
    pixels = jnp.zeros_like(noise)
    for channel in range(channels):
        mean, scale = mixture.mean(channel, pixels)[..., 0], jnp.exp(mixture.log_scales[..., channel, 0])
        pixels = pixels.at[..., channel].set(_round(mean + scale * noise[..., channel]))
    return (pixels + 1) / 2


class _Mixture(NamedTuple):
    """The numbers of a pixel by meaning; components are the last axis, channels the one before."""

    logits: jax.Array
    means: jax.Array
    log_scales: jax.Array
    coefficients: jax.Array  # of the pairs (1, 0), (2, 0), (2, 1), ... of a channel and one before it

    @classmethod
    def of(cls, parameters: jax.Array, channels: int) -> _Mixture:
        rows = parameters_per_pixel(channels, 1)
        if parameters.shape[-1] % rows:
            raise ValueError(
                f"parameters.shape[-1]={parameters.shape[-1]} must be a multiple of {rows} for {channels} channels: "
                "see parameters_per_pixel"
            )
        table = parameters.reshape(*parameters.shape[:-1], rows, -1)
        logits, means, log_scales, coefficients = jnp.split(table, [1, 1 + channels, 1 + 2 * channels], axis=-2)
        return cls(logits[..., 0, :], means, jnp.maximum(log_scales, LOG_SCALE_FLOOR), jnp.tanh(coefficients))

    def mean(self, channel: int, pixels: jax.Array) -> jax.Array:
        """m_c + sum over the channels d before c of a_cd x_d, for every component."""
        first = channel * (channel - 1) // 2
        weights = self.coefficients[..., first : first + channel, :]
        return self.means[..., channel, :] + (weights * pixels[..., :channel, None]).sum(-2)

    def only(self, component: jax.Array) -> _Mixture:
        """The mixture that is left when every pixel keeps one component."""
        index = component[..., None]
        rows = (jnp.take_along_axis(table, index[..., None], axis=-1) for table in self[1:])
        return _Mixture(jnp.take_along_axis(self.logits, index, axis=-1), *rows)


def _log_bin(pixel: jax.Array, mean: jax.Array, log_scale: jax.Array) -> jax.Array:
    """log(sigmoid(u) - sigmoid(l)) = log sigmoid(u) + log sigmoid(-l) + log(1 - exp(l - u)), finite for every u > l.

    In the lowest bin l is minus infinity, in the highest u is infinity, and the terms with it are zero.
    """
    precision = jnp.exp(-log_scale)
    upper, lower = precision * (pixel - mean + HALF_BIN), precision * (pixel - mean - HALF_BIN)
    lowest, highest = pixel < HALF_BIN - 1, pixel > 1 - HALF_BIN
    return (
        jnp.where(highest, 0, jax.nn.log_sigmoid(upper))
        + jnp.where(lowest, 0, jax.nn.log_sigmoid(-lower))
        + jnp.where(lowest | highest, 0, jnp.log(-jnp.expm1(-2 * HALF_BIN * precision)))
    )


def _round(pixels: jax.Array) -> jax.Array:
    """The nearest of 256 levels in [-1, 1]."""
    return jnp.clip(jnp.round((pixels + 1) / (2 * HALF_BIN)), 0, 255) * (2 * HALF_BIN) - 1
