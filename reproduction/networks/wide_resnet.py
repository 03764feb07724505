"""Wide residual networks for small images, after Zagoruyko and Komodakis (2016)."""

from __future__ import annotations

from collections.abc import Callable

import jax
from flax import nnx


class WideResNet(nnx.Module):
    """WRN-depth-width: three groups of (depth - 4) / 6 blocks with 16, 32 and 64 times `width` channels.

    Ten classes: 77,850 parameters for WRN-10-1, 175,066 for 16-1, 691,674 for 16-2, 2,243,546 for 40-2. With
    `norm=False` there is no batch normalisation and the convolutions have biases, as in JEM (WRN-28-10).
    """

    def __init__(
        self, depth: int, width: int, classes: int = 10, channels: int = 3, norm: bool = True, *, rngs: nnx.Rngs
    ) -> None:
        if depth < 10 or depth % 6 != 4:
            raise ValueError(f"depth={depth} must be 6 n + 4 with n >= 1 blocks a group: 10, 16, 22, 28, 40")
        count = (depth - 4) // 6
        widths = [16, 16 * width, 32 * width, 64 * width]
        # Without normalisation, branches of 1 / sqrt(blocks) keep the variance bounded.
        gain = 1.0 if norm else 1 / (3 * count)
        self.conv = _conv(channels, 16, use_bias=not norm, rngs=rngs)
        self.stages = nnx.List(
            nnx.List(
                _Block(widths[group] if block == 0 else outputs, outputs, stride if block == 0 else 1, norm, gain, rngs)
                for block in range(count)
            )
            for group, (outputs, stride) in enumerate(zip(widths[1:], (1, 2, 2), strict=True))
        )
        self.norm = _norm(widths[-1], norm, rngs)
        self.dense = nnx.Linear(widths[-1], classes, rngs=rngs)

    def groups(self, images: jax.Array) -> list[jax.Array]:
        """The outputs of the three groups, before the last normalisation: what distillation losses compare."""
        hidden, outputs = self.conv(images), []
        for stage in self.stages:
            for block in stage:
                hidden = block(hidden)
            outputs.append(hidden)
        return outputs

    def pooled(self, last: jax.Array) -> jax.Array:
        """Spatial means of the last group's output, normalised and rectified, (n, 64 width)."""
        return nnx.relu(self.norm(last)).mean((1, 2))

    def features(self, images: jax.Array) -> jax.Array:
        """The pooled features, (n, 64 width)."""
        return self.pooled(self.groups(images)[-1])

    def __call__(self, images: jax.Array) -> jax.Array:
        return self.dense(self.features(images))


class _Block(nnx.Module):
    """x + conv(relu(norm(conv(a)))) with a = relu(norm(x)); where shapes change, a 1 x 1 convolution of a for x."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: bool, gain: float, rngs: nnx.Rngs) -> None:
        bias = not norm
        self.norm1 = _norm(inputs, norm, rngs)
        self.conv1 = _conv(inputs, outputs, strides=stride, use_bias=bias, rngs=rngs)
        self.norm2 = _norm(outputs, norm, rngs)
        self.conv2 = _conv(outputs, outputs, gain=gain, use_bias=bias, rngs=rngs)
        changes = inputs != outputs or stride != 1
        self.shortcut = _conv(inputs, outputs, 1, strides=stride, use_bias=bias, rngs=rngs) if changes else None

    def __call__(self, hidden: jax.Array) -> jax.Array:
        active = nnx.relu(self.norm1(hidden))
        branch = self.conv2(nnx.relu(self.norm2(self.conv1(active))))
        return branch + (hidden if self.shortcut is None else self.shortcut(active))


def _conv(
    inputs: int, outputs: int, size: int = 3, *, strides: int = 1, gain: float = 1.0, use_bias: bool, rngs: nnx.Rngs
) -> nnx.Conv:
    he = nnx.initializers.variance_scaling(2 * gain, "fan_out", "normal")
    return nnx.Conv(
        inputs, outputs, (size, size), strides, padding=size // 2, use_bias=use_bias, kernel_init=he, rngs=rngs
    )


def _norm(features: int, norm: bool, rngs: nnx.Rngs) -> Callable[[jax.Array], jax.Array]:
    return nnx.BatchNorm(features, momentum=0.9, rngs=rngs) if norm else nnx.identity
