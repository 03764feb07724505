"""A coupling flow on 14 x 14 MNIST."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
import paramax

import nfk
from reproduction.data import Split
from reproduction.families.family import Family, bits, halved
from reproduction.networks.flows import coupling_flow
from reproduction.training import State, in_batches, train

EDGE = 0.05


class Flow(Family):
    """log p of y = logit(edge + (1 - 2 edge) (level + u) / 256), with u in [0, 1) fixed: per image in training."""

    name, network, data = "flow", "affine coupling flow", "mnist"
    steps, rows, test_rows = 10_000, 1_500, 1_500

    def examples(self, data: Split, common: bool = True) -> np.ndarray:
        """y of every image. With `common`, one u for all: u of their own drowned what the images have in common."""
        levels = 255 * halved(data.images).reshape(len(data), -1)
        u = np.random.default_rng(0).random(levels.shape[1] if common else levels.shape)
        inside = EDGE + (1 - 2 * EDGE) * (levels + u) / 256
        return np.log(inside / (1 - inside)).astype(np.float32)

    def build(self, seed: int) -> Any:
        return coupling_flow(key=jax.random.key(seed))

    def train(self, network: Any, train_data: Split, seed: int, folder: Path | None) -> Any:
        params, rest = eqx.partition(network, eqx.is_inexact_array)
        optimizer = optax.chain(
            optax.clip_by_global_norm(5.0), optax.adam(optax.cosine_decay_schedule(1e-3, self.steps))
        )

        def step(state: State, batch: jax.Array, key: jax.Array) -> tuple[State, dict]:
            value, gradient = jax.value_and_grad(lambda p: -eqx.combine(p, rest).log_prob(batch).mean())(
                state["params"]
            )
            update, memory = optimizer.update(gradient, state["optimizer"], state["params"])
            return {"params": optax.apply_updates(state["params"], update), "optimizer": memory}, {"loss": value}

        state = {"params": params, "optimizer": optimizer.init(params)}
        options: dict[str, Any] = dict(steps=self.steps, batch=128, seed=seed, folder=folder, name=self.label)
        return eqx.combine(train(step, state, self.examples(train_data, common=False), **options)["params"], rest)

    def metric(self, network: Any, test: Split) -> tuple[str, float]:
        Y = self.examples(test)
        log_p = in_batches(partial(type(network).log_prob, network), Y) + log_stretch(Y)
        return "bits per dimension", 8 + bits(log_p, Y.shape[1])

    def model(self, network: Any) -> nfk.Model:
        apply, params = nfk.from_equinox(network, method="log_prob")
        return nfk.density(apply, params, parameters=lambda path: "base_dist" not in path)

    def activations(self, network: Any, X: np.ndarray) -> np.ndarray:
        """The latents: the base variables that the flow maps an example to."""
        bijection = paramax.unwrap(network).bijection
        return in_batches(jax.vmap(partial(type(bijection).inverse, bijection)), X)

    def samples(self, network: Any, key: jax.Array, count: int) -> np.ndarray:
        inside = jax.nn.sigmoid(network.sample(key, (count,)))
        return np.clip(np.asarray((inside - EDGE) / (1 - 2 * EDGE)), 0, 1).reshape(count, 14, 14, 1)


def log_stretch(Y: np.ndarray) -> np.ndarray:
    """log |dy/dx| for x = (level + u) / 256, summed over pixels."""
    inside = 1 / (1 + np.exp(-Y.astype(np.float64)))
    return np.sum(np.log(1 - 2 * EDGE) - np.log(inside) - np.log(1 - inside), axis=1)
