"""The residual GAN of Adversarial Fisher Vectors (Zhai et al., 2019), for images of 32 x 32."""

from __future__ import annotations

import jax
from flax import nnx

from reproduction.networks.layers import SpectralConv, grow, pool


class ResidualCritic(nnx.Module):
    """Four residual blocks, rectified spatial means and a linear output; spectral norm throughout, no sigmoid.

    Images lie in [0, 1]. At width 256 it has 5,915,393 parameters, at 128 1,483,137, at 32 94,305.
    """

    def __init__(self, width: int = 256, channels: int = 3, *, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List(
            _CriticBlock(width if block else channels, width, first=block == 0, down=block < 2, rngs=rngs)
            for block in range(4)
        )
        self.output = SpectralConv(width, 1, 1, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        hidden = 2 * images - 1
        for block in self.blocks:
            hidden = block(hidden)
        return self.output(nnx.relu(hidden).mean((1, 2), keepdims=True))[:, 0, 0, 0]


class _CriticBlock(nnx.Module):
    """conv(relu(conv(a))) + conv(a), then perhaps pooled, with a = relu(x) except in the first block.

    The original rectifies in place, which the shortcut sees too; all three convolutions are 3 x 3.
    """

    def __init__(self, inputs: int, outputs: int, first: bool, down: bool, *, rngs: nnx.Rngs) -> None:
        self.conv1 = SpectralConv(inputs, outputs, rngs=rngs)
        self.conv2 = SpectralConv(outputs, outputs, rngs=rngs)
        self.shortcut = SpectralConv(inputs, outputs, rngs=rngs)
        self.first, self.down = first, down

    def __call__(self, hidden: jax.Array) -> jax.Array:
        active = hidden if self.first else nnx.relu(hidden)
        result = self.conv2(nnx.relu(self.conv1(active))) + self.shortcut(active)
        return pool(result) if self.down else result


class ResidualGenerator(nnx.Module):
    """Normal latents to 4 x 4, three residual blocks that double the side, tanh; images in [0, 1].

    With 256 latents and width 256 it has 6,370,051 parameters.
    """

    def __init__(self, latents: int = 256, width: int = 256, channels: int = 3, *, rngs: nnx.Rngs) -> None:
        self.latents = latents
        self.input = nnx.ConvTranspose(latents, width, (4, 4), padding="VALID", rngs=rngs)
        self.blocks = nnx.List(_GeneratorBlock(width, rngs=rngs) for _ in range(3))
        self.norm = nnx.BatchNorm(width, momentum=0.9, rngs=rngs)
        self.output = nnx.Conv(width, channels, (3, 3), rngs=rngs)

    def __call__(self, latents: jax.Array) -> jax.Array:
        hidden = self.input(latents[:, None, None, :])
        for block in self.blocks:
            hidden = block(hidden)
        return (nnx.tanh(self.output(nnx.relu(self.norm(hidden)))) + 1) / 2


class _GeneratorBlock(nnx.Module):
    """conv(relu(norm(conv(grow(relu(norm(x))))))) + conv(grow(x))."""

    def __init__(self, width: int, *, rngs: nnx.Rngs) -> None:
        self.norm1 = nnx.BatchNorm(width, momentum=0.9, rngs=rngs)
        self.conv1 = nnx.Conv(width, width, (3, 3), rngs=rngs)
        self.norm2 = nnx.BatchNorm(width, momentum=0.9, rngs=rngs)
        self.conv2 = nnx.Conv(width, width, (3, 3), rngs=rngs)
        self.shortcut = nnx.Conv(width, width, (3, 3), rngs=rngs)

    def __call__(self, hidden: jax.Array) -> jax.Array:
        branch = self.conv1(grow(nnx.relu(self.norm1(hidden))))
        return self.conv2(nnx.relu(self.norm2(branch))) + self.shortcut(grow(hidden))
