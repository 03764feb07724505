"""A diffusion model on MNIST, read as a density through its denoising bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import nfk
from reproduction.data import Split
from reproduction.families.family import Family, bits
from reproduction.networks.diffusion import HIGH, LOW, Diffusion, diffused
from reproduction.networks.gans import pooled
from reproduction.training import in_batches, train_module

DRAWS = 4


class Denoiser(Family):
    """The bound with four times, evenly spread from one random shift; every example gets the same times and noise."""

    name, network, data = "diffusion", "small U-net", "mnist"
    steps, rows, test_rows = 2_500, 3_000, 2_000

    def build(self, seed: int) -> Diffusion:
        return Diffusion(rngs=nnx.Rngs(seed))

    def train(self, network: Any, train: Split, seed: int, folder: Path | None) -> Any:
        return train_module(
            network, lambda module, images, key: -module.bound(images, key).mean() / images[0].size,
            self.examples(train),
            optimizer=optax.chain(
                optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(2e-3, self.steps))
            ),
            average=0.995, steps=self.steps, batch=64, seed=seed, folder=folder, name=self.label,
        )  # fmt: skip

    def metric(self, network: Diffusion, test: Split) -> tuple[str, float]:
        X = self.examples(test)
        return "bits per dimension (bound)", bits(
            in_batches(lambda images: network.bound(images, jax.random.key(0), DRAWS), X), X[0].size
        )

    def model(self, network: Diffusion) -> nfk.Model:
        score = lambda module, images, key: module.bound(images, key, DRAWS)  # noqa: E731
        return nfk.vae(*nfk.from_nnx(network, method=score))

    def activations(self, network: Diffusion, X: np.ndarray) -> np.ndarray:
        """The maps of the U-net for an image with half noise, pooled."""

        def maps(images: jax.Array) -> jax.Array:
            times = jnp.full(len(images), LOW / (LOW - HIGH))
            noise = jax.random.normal(jax.random.key(0), images.shape)
            return pooled(network.maps(diffused(2 * images - 1, times, noise), times))

        return in_batches(maps, X)

    def samples(self, network: Diffusion, key: jax.Array, count: int) -> np.ndarray:
        return np.asarray(jax.jit(network.sample, static_argnums=1)(key, count))
