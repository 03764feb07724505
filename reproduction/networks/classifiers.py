"""Classifiers: images to logits; `features` is the last hidden layer."""

from __future__ import annotations

import jax
from flax import nnx

from reproduction.networks.layers import pool


class LeNet5(nnx.Module):
    """LeNet-5 with its tanh units, on 28 x 28 images: 61,706 parameters for ten classes."""

    def __init__(self, classes: int = 10, *, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 6, (5, 5), padding="SAME", rngs=rngs)
        self.conv2 = nnx.Conv(6, 16, (5, 5), padding="VALID", rngs=rngs)
        self.dense1 = nnx.Linear(400, 120, rngs=rngs)
        self.dense2 = nnx.Linear(120, 84, rngs=rngs)
        self.dense3 = nnx.Linear(84, classes, rngs=rngs)

    def features(self, images: jax.Array) -> jax.Array:
        """The last hidden layer, (n, 84)."""
        hidden = pool(nnx.tanh(self.conv1(images)))
        hidden = pool(nnx.tanh(self.conv2(hidden)))
        hidden = nnx.tanh(self.dense1(hidden.reshape(len(hidden), -1)))
        return nnx.tanh(self.dense2(hidden))

    def __call__(self, images: jax.Array) -> jax.Array:
        return self.dense3(self.features(images))


class MLP(nnx.Module):
    """Three dense layers with tanh units; 784-70-70-10 has LeNet-5's number of parameters, nearly."""

    def __init__(self, inputs: int = 784, hidden: int = 256, classes: int = 10, *, rngs: nnx.Rngs) -> None:
        self.dense1 = nnx.Linear(inputs, hidden, rngs=rngs)
        self.dense2 = nnx.Linear(hidden, hidden, rngs=rngs)
        self.dense3 = nnx.Linear(hidden, classes, rngs=rngs)

    def features(self, images: jax.Array) -> jax.Array:
        return nnx.tanh(self.dense2(nnx.tanh(self.dense1(images.reshape(len(images), -1)))))

    def __call__(self, images: jax.Array) -> jax.Array:
        return self.dense3(self.features(images))
