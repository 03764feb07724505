"""A small training loop for classifiers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from nfk.lab.data import Split


def train_classifier(
    module: nnx.Module, data: Split, *, epochs: int, batch: int = 64, learning_rate: float = 2e-3, seed: int = 0
) -> nnx.Module:
    """Adam on the cross-entropy with a cosine schedule; trains `module` in place and returns it."""
    steps = epochs * (len(data) // batch)
    optimizer = nnx.Optimizer(module, optax.adam(optax.cosine_decay_schedule(learning_rate, steps)), wrt=nnx.Param)

    @nnx.jit
    def step(module: nnx.Module, optimizer: nnx.Optimizer, images: Any, labels: Any) -> None:
        def loss(module: nnx.Module) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(module(images), labels).mean()

        optimizer.update(module, nnx.grad(loss)(module))

    order = np.random.default_rng(seed)
    for _ in range(epochs):
        rows = order.permutation(len(data))
        for start in range(0, len(rows) - batch + 1, batch):
            chosen = rows[start : start + batch]
            step(module, optimizer, data.images[chosen], data.labels[chosen])
    return module


def accuracy(module: nnx.Module, data: Split, batch: int = 500) -> float:
    """Share of examples whose largest logit is their label's."""
    predict = nnx.jit(lambda module, images: jnp.argmax(module(images), axis=-1))
    guesses: list[Any] = [predict(module, data.images[a : a + batch]) for a in range(0, len(data), batch)]
    return float(np.mean(np.concatenate(guesses) == data.labels))
