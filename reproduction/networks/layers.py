"""Layers that several networks share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


class SpectralConv(nnx.Module):
    """A convolution by W / sigma with sigma = v' W u, the largest singular value of W as a matrix.

    One power step per call in training; in evaluation u and v stand still, so that the output is a function of the
    parameters W and the bias alone and its gradient flows through sigma, as in Adversarial Fisher Vectors. (The
    wrapper in flax overwrites W by W / sigma in every call, which leaves no such parameters.)
    """

    def __init__(
        self, inputs: int, outputs: int, size: int = 3, strides: int = 1, padding: Any = "SAME", *, rngs: nnx.Rngs
    ) -> None:
        shape = (size, size, inputs, outputs)
        self.kernel = nnx.Param(nnx.initializers.orthogonal()(rngs.params(), shape))
        self.bias = nnx.Param(jnp.zeros(outputs))
        self.u = nnx.BatchStat(_unit(jax.random.normal(rngs.params(), (outputs,))))
        self.v = nnx.BatchStat(jnp.zeros(size * size * inputs))
        self.strides, self.padding = strides, padding
        self.use_running_average = False
        for _ in range(5):
            self._power_step()

    def _power_step(self) -> None:
        matrix = jax.lax.stop_gradient(self.kernel[...].reshape(-1, self.kernel.shape[-1]))
        self.v[...] = _unit(matrix @ self.u[...])
        self.u[...] = _unit(self.v[...] @ matrix)

    def __call__(self, images: jax.Array) -> jax.Array:
        if not self.use_running_average:
            self._power_step()
        kernel = self.kernel[...]
        sigma = self.v[...] @ kernel.reshape(-1, kernel.shape[-1]) @ self.u[...]
        strides = (self.strides, self.strides)
        numbers = ("NHWC", "HWIO", "NHWC")
        result = jax.lax.conv_general_dilated(images, kernel / sigma, strides, self.padding, dimension_numbers=numbers)
        return result + self.bias[...]


def _unit(vector: jax.Array) -> jax.Array:
    return vector / (jnp.linalg.norm(vector) + 1e-12)


def pool(images: jax.Array) -> jax.Array:
    """Means of 2 x 2 squares."""
    return nnx.avg_pool(images, (2, 2), (2, 2))


def grow(images: jax.Array) -> jax.Array:
    """Each pixel as a 2 x 2 square."""
    return images.repeat(2, axis=-3).repeat(2, axis=-2)
