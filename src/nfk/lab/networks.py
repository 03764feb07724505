"""Networks in flax nnx, and their reading as plain functions `apply(params, example)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx


class LeNet5(nnx.Module):
    """LeNet-5 with its tanh units, on 28 x 28 images: 61,706 parameters for ten classes."""

    def __init__(self, classes: int = 10, *, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 6, (5, 5), padding="SAME", rngs=rngs)
        self.conv2 = nnx.Conv(6, 16, (5, 5), padding="VALID", rngs=rngs)
        self.dense1 = nnx.Linear(400, 120, rngs=rngs)
        self.dense2 = nnx.Linear(120, 84, rngs=rngs)
        self.dense3 = nnx.Linear(84, classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        hidden = nnx.avg_pool(nnx.tanh(self.conv1(images)), (2, 2), (2, 2))
        hidden = nnx.avg_pool(nnx.tanh(self.conv2(hidden)), (2, 2), (2, 2))
        hidden = nnx.tanh(self.dense1(hidden.reshape(len(hidden), -1)))
        return self.dense3(nnx.tanh(self.dense2(hidden)))


def as_function(module: nnx.Module) -> tuple[Callable[[Any, jax.Array], jax.Array], Any]:
    """`(apply, params)` with apply(params, example) for one example of a batched module."""
    definition, params, rest = nnx.split(module, nnx.Param, ...)

    def apply(params: Any, example: jax.Array) -> jax.Array:
        return nnx.merge(definition, params, rest)(example[None])[0]

    return apply, nnx.to_pure_dict(params)
