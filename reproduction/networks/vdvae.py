"""A very deep variational autoencoder after Child (2021): latents from coarse to fine, a residual decoder.

An encoder leaves one activation per resolution. The decoder walks its blocks from the coarsest to the finest; block l
has, given the state x that the latents before it made,

    prior  p(z_l | z_<l) from x,    posterior  q(z_l | z_<l, image) from x and the activation of its resolution,
    x  <-  x + residual(x) + project(z_l),    x  <-  x + branch(x).

Layers are strings. Encoder: `32x11` is eleven blocks at 32 x 32, `32d2` a block that then pools by 2. Decoder: `16m8`
is a block at 16 x 16 that first adds the grown state of 8 x 8, `16x10` ten blocks.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from reproduction.networks import logistic_mixture


class VDVAE(nnx.Module):
    """log p(image | z) is a mixture of discretised logistics; `elbo` and `bound` are in nats, one per example.

    With patch > 1 the network sees squares of patch x patch pixels as channels, and the strings count squares.
    """

    def __init__(
        self,
        encoder: str,
        decoder: str,
        *,
        size: int = 32,
        channels: int = 3,
        width: int = 384,
        latent: int = 16,
        bottleneck: float = 0.25,
        components: int = 10,
        patch: int = 1,
        rngs: nnx.Rngs,
    ) -> None:
        middle = int(width * bottleneck)
        self.shape, self.patch = (size, size, channels), patch
        self.encoder = Encoder(encoder, patch**2 * channels, width, middle, rngs=rngs)
        outputs = patch**2 * logistic_mixture.parameters_per_pixel(channels, components)
        self.decoder = Decoder(decoder, width, middle, latent, outputs, rngs=rngs)
        resolutions = dict.fromkeys(block.resolution for block in self.decoder.blocks)
        self.biases = nnx.List(nnx.Param(jnp.zeros((side, side, width))) for side in resolutions)

    @classmethod
    def paper(cls, *, rngs: nnx.Rngs) -> VDVAE:
        """The model of CIFAR-10: 39,145,700 parameters, 43 latents."""
        return cls("32x11,32d2,16x6,16d2,8x6,8d2,4x3,4d4,1x3", "1x1,4m1,4x2,8m4,8x5,16m8,16x10,32m16,32x21", rngs=rngs)

    @classmethod
    def small(cls, size: int = 32, channels: int = 1, *, rngs: nnx.Rngs) -> VDVAE:
        """A model that two cores train in minutes: 162,588 parameters, eight latents, for sides 4, 8, 12, ..."""
        if size % 4:
            raise ValueError(f"size={size} must be a multiple of 4: pad the images")
        half, quarter = size // 2, size // 4
        return cls(
            f"{half}x1,{half}d2,{quarter}x2,{quarter}d{quarter},1x1",
            f"1x2,{quarter}m1,{quarter}x3,{half}m{quarter},{half}x1",
            size=size,
            channels=channels,
            width=32,
            latent=8,
            bottleneck=0.5,
            components=5,
            patch=2,
            rngs=rngs,
        )

    def elbo(self, images: jax.Array, key: jax.Array) -> jax.Array:
        """log p(image | z) - sum_l KL(q_l || p_l) at one sample z of the posterior, (n,)."""
        likelihood, latents = self._infer(images, self._encode(images), key)
        return likelihood - sum(_total(latent.posterior.divergence(latent.prior)) for latent in latents)

    def log_weight(self, images: jax.Array, key: jax.Array) -> jax.Array:
        """log p(image, z) / q(z | image) at one sample z of the posterior, (n,)."""
        return self._log_weight(images, self._encode(images), key)

    def bound(self, images: jax.Array, key: jax.Array, K: int) -> jax.Array:
        """log (1 / K) sum_k p(image, z_k) / q(z_k | image), (n,): in expectation it grows with K to log p(image)."""
        activations = self._encode(images)
        weights = jax.lax.map(lambda key: self._log_weight(images, activations, key), jax.random.split(key, K))
        return jax.nn.logsumexp(weights, axis=0) - jnp.log(K)

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        """n images in [0, 1], on the grid of 256 levels."""
        latent_key, pixel_key = jax.random.split(key)
        states, _ = self.decoder(self._start(n), None, latent_key)
        return logistic_mixture.sample(pixel_key, self._pixels(states), self.shape[-1])

    def latents(self, images: jax.Array, blocks: int = 3) -> jax.Array:
        """The posterior means of the first latents, each at the means of those before it, (n, features)."""
        activations = self._encode(images)
        _, latents = self.decoder(self._start(len(images)), activations, None, blocks)
        return jnp.concatenate([latent.value.reshape(len(images), -1) for latent in latents], axis=1)

    def _log_weight(self, images: jax.Array, activations: dict[int, jax.Array], key: jax.Array) -> jax.Array:
        likelihood, latents = self._infer(images, activations, key)
        return likelihood + sum(_total(latent.log_ratio()) for latent in latents)

    def _infer(
        self, images: jax.Array, activations: dict[int, jax.Array], key: jax.Array
    ) -> tuple[jax.Array, list[Latent]]:
        states, latents = self.decoder(self._start(len(images)), activations, key)
        return logistic_mixture.log_prob(images, self._pixels(states)), latents

    def _start(self, n: int) -> dict[int, jax.Array]:
        return {len(bias[...]): jnp.broadcast_to(bias[...], (n, *bias.shape)) for bias in self.biases}

    def _encode(self, images: jax.Array) -> dict[int, jax.Array]:
        if images.shape[1:] != self.shape:
            raise ValueError(f"images of shape {images.shape[1:]} do not fit this model: it takes {self.shape}")
        return self.encoder(_fold(4 * images - 2, self.patch))

    def _pixels(self, states: dict[int, jax.Array]) -> jax.Array:
        return _unfold(self.decoder.pixels(states[max(states)]), self.patch)


class Gaussian(NamedTuple):
    """A normal with independent coordinates."""

    mean: jax.Array
    log_scale: jax.Array

    def at(self, noise: jax.Array) -> jax.Array:
        """mean + scale * noise."""
        return self.mean + jnp.exp(self.log_scale) * noise

    def log_prob(self, value: jax.Array) -> jax.Array:
        """The log-density of each coordinate."""
        standard = (value - self.mean) * jnp.exp(-self.log_scale)
        return -0.5 * standard**2 - self.log_scale - 0.5 * np.log(2 * np.pi)

    def divergence(self, other: Gaussian) -> jax.Array:
        """KL(self || other) of each coordinate."""
        ratio = self.log_scale - other.log_scale
        distance = (self.mean - other.mean) * jnp.exp(-other.log_scale)
        return 0.5 * (jnp.exp(2 * ratio) + distance**2 - 1) - ratio


class Latent(NamedTuple):
    """A value drawn from the posterior, with the two laws it has."""

    value: jax.Array
    posterior: Gaussian
    prior: Gaussian

    def log_ratio(self) -> jax.Array:
        """log p(z) - log q(z) of each coordinate."""
        return self.prior.log_prob(self.value) - self.posterior.log_prob(self.value)


class Encoder(nnx.Module):
    """Images to one activation per resolution: the output of the last block there."""

    def __init__(self, layers: str, channels: int, width: int, middle: int, *, rngs: nnx.Rngs) -> None:
        plan = _parse(layers)
        self.input = _conv(channels, width, 3, rngs=rngs)
        self.blocks = nnx.List(
            Branch(width, middle, width, side, last=1 / len(plan) ** 0.5, rngs=rngs) for side, _ in plan
        )
        self.downs = tuple(down for _, down in plan)

    def __call__(self, images: jax.Array) -> dict[int, jax.Array]:
        hidden = self.input(images)
        activations = {hidden.shape[1]: hidden}
        for block, down in zip(self.blocks, self.downs, strict=True):
            hidden = hidden + block(hidden)
            if down is not None:
                hidden = nnx.avg_pool(hidden, (down, down), (down, down))
            activations[hidden.shape[1]] = hidden
        return activations


class Decoder(nnx.Module):
    """The blocks from coarse to fine, and the parameters of the pixels from the last state."""

    def __init__(self, layers: str, width: int, middle: int, latent: int, outputs: int, *, rngs: nnx.Rngs) -> None:
        plan = _parse(layers)
        scale = 1 / len(plan) ** 0.5
        self.blocks = nnx.List(DecoderBlock(side, width, middle, latent, scale, rngs=rngs) for side, _ in plan)
        self.mixed = tuple(mixed for _, mixed in plan)
        self.gain, self.bias = nnx.Param(jnp.ones(width)), nnx.Param(jnp.zeros(width))
        self.output = _conv(width, outputs, 1, rngs=rngs)

    def __call__(
        self,
        states: dict[int, jax.Array],
        activations: dict[int, jax.Array] | None,
        key: jax.Array | None,
        count: int | None = None,
    ) -> tuple[dict[int, jax.Array], list[Latent]]:
        """The states after the first `count` blocks, by resolution, and their latents.

        Without activations the latents come from the prior; without a key each is the mean of its law.
        """
        states, latents = dict(states), []
        for index, (block, mixed) in enumerate(list(zip(self.blocks, self.mixed, strict=True))[:count]):
            side = block.resolution
            state = states[side]
            if mixed is not None:
                state = state + _repeat(states[mixed], side // mixed)
            activation = None if activations is None else activations[side]
            block_key = None if key is None else jax.random.fold_in(key, index)
            states[side], latent = block(state, activation, block_key)
            latents.append(latent)
        return states, latents

    def pixels(self, state: jax.Array) -> jax.Array:
        return self.output(state * self.gain[...] + self.bias[...])


class DecoderBlock(nnx.Module):
    """One latent per position: its prior, its posterior, and what it does to the state."""

    def __init__(self, resolution: int, width: int, middle: int, latent: int, scale: float, *, rngs: nnx.Rngs) -> None:
        self.resolution, self.latent = resolution, latent
        self.posterior = Branch(2 * width, middle, 2 * latent, resolution, rngs=rngs)
        self.prior = Branch(width, middle, 2 * latent + width, resolution, last=0.0, rngs=rngs)
        self.project = _conv(latent, width, 1, scale, rngs=rngs)
        self.branch = Branch(width, middle, width, resolution, last=scale, rngs=rngs)

    def __call__(
        self, state: jax.Array, activation: jax.Array | None, key: jax.Array | None
    ) -> tuple[jax.Array, Latent]:
        mean, log_scale, residual = jnp.split(self.prior(state), [self.latent, 2 * self.latent], axis=-1)
        prior = posterior = Gaussian(mean, log_scale)
        if activation is not None:
            both = self.posterior(jnp.concatenate([state, activation], axis=-1))
            posterior = Gaussian(*jnp.split(both, 2, axis=-1))
        value = posterior.mean if key is None else posterior.at(jax.random.normal(key, mean.shape, mean.dtype))
        state = state + residual + self.project(value)
        return state + self.branch(state), Latent(value, posterior, prior)


class Branch(nnx.Module):
    """Convolutions of 1 x 1, 3 x 3, 3 x 3 and 1 x 1, a GELU before each; all 1 x 1 on images of 2 x 2 or less."""

    def __init__(
        self, inputs: int, middle: int, outputs: int, resolution: int, last: float = 1.0, *, rngs: nnx.Rngs
    ) -> None:
        size = 3 if resolution > 2 else 1
        self.convs = nnx.List(
            [
                _conv(inputs, middle, 1, rngs=rngs),
                _conv(middle, middle, size, rngs=rngs),
                _conv(middle, middle, size, rngs=rngs),
                _conv(middle, outputs, 1, last, rngs=rngs),
            ]
        )

    def __call__(self, hidden: jax.Array) -> jax.Array:
        for conv in self.convs:
            hidden = conv(nnx.gelu(hidden))
        return hidden


def _conv(inputs: int, outputs: int, size: int, scale: float = 1.0, *, rngs: nnx.Rngs) -> nnx.Conv:
    """A convolution with weights uniform in +-scale / sqrt(fan_in)."""
    uniform = nnx.initializers.variance_scaling(scale**2 / 3, "fan_in", "uniform")
    return nnx.Conv(inputs, outputs, (size, size), kernel_init=uniform, rngs=rngs)


def _parse(layers: str) -> list[tuple[int, int | None]]:
    """`32x2,32d2,16m8` as (32, None), (32, None), (32, 2), (16, 8)."""
    plan = []
    for layer in layers.split(","):
        match = re.fullmatch(r"(\d+)([xdm])(\d+)", layer)
        if match is None:
            raise ValueError(f"layer {layer!r} of {layers!r} is not side x count, side d factor or side m side")
        side, kind, number = int(match[1]), match[2], int(match[3])
        plan += [(side, None)] * number if kind == "x" else [(side, number)]
    return plan


def _fold(images: jax.Array, patch: int) -> jax.Array:
    """Squares of patch x patch pixels as the channels of one position."""
    n, side, _, channels = images.shape
    squares = images.reshape(n, side // patch, patch, side // patch, patch, channels)
    return squares.swapaxes(2, 3).reshape(n, side // patch, side // patch, patch**2 * channels)


def _unfold(images: jax.Array, patch: int) -> jax.Array:
    """The inverse of `_fold`."""
    n, side, _, channels = images.shape
    squares = images.reshape(n, side, side, patch, patch, channels // patch**2)
    return squares.swapaxes(2, 3).reshape(n, side * patch, side * patch, channels // patch**2)


def _repeat(images: jax.Array, factor: int) -> jax.Array:
    return images.repeat(factor, axis=-3).repeat(factor, axis=-2)


def _total(values: jax.Array) -> jax.Array:
    return values.sum((1, 2, 3))
