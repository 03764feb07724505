"""A PixelCNN on binary MNIST, and a causal transformer over the grey levels of 14 x 14 MNIST."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

import nfk
from reproduction.data import Split
from reproduction.families.family import Family, binary, bits, halved
from reproduction.networks.gans import pooled
from reproduction.networks.pixelcnn import PixelCNN
from reproduction.networks.transformer import CausalTransformer
from reproduction.training import in_batches, train_module


class Autoregressive(Family):
    name, network, data = "autoregressive", "PixelCNN", "mnist"
    test_rows = 2_000
    steps, batch, rate = 2_500, 64, 3e-3

    def examples(self, data: Split) -> np.ndarray:
        return binary(data.images)

    def build(self, seed: int) -> Any:
        return PixelCNN(rngs=nnx.Rngs(seed))

    def train(self, network: Any, train: Split, seed: int, folder: Path | None) -> Any:
        return train_module(
            network, lambda module, examples, key: -module.log_prob(examples).mean(), self.examples(train),
            optimizer=optax.adam(optax.cosine_decay_schedule(self.rate, self.steps)),
            steps=self.steps, batch=self.batch, seed=seed, folder=folder, name=self.label,
        )  # fmt: skip

    def metric(self, network: Any, test: Split) -> tuple[str, float]:
        X = self.examples(test)
        return "bits per pixel", bits(in_batches(network.log_prob, X), X[0].size)

    def model(self, network: Any) -> nfk.Model:
        return nfk.density(*nfk.from_nnx(network, method="log_prob"))

    def activations(self, network: Any, X: np.ndarray) -> np.ndarray:
        return in_batches(lambda images: pooled(network.maps(images)), X)

    def samples(self, network: Any, key: jax.Array, count: int) -> np.ndarray:
        return np.asarray(jax.jit(network.sample, static_argnums=1)(key, count))


class PixelTransformer(Autoregressive):
    """196 tokens of eight grey levels: 23,976 parameters."""

    network = "causal transformer"
    steps, batch, rate = 800, 32, 3e-3
    levels = 8

    @property
    def label(self) -> str:
        return "transformer-mnist"

    def examples(self, data: Split) -> np.ndarray:
        pixels = halved(data.images).reshape(len(data), -1)
        return np.minimum(pixels * self.levels, self.levels - 1).astype(np.int32)

    def build(self, seed: int) -> CausalTransformer:
        return CausalTransformer(self.levels, 196, 32, 2, 4, 64, rngs=nnx.Rngs(seed))

    def activations(self, network: CausalTransformer, X: np.ndarray) -> np.ndarray:
        return in_batches(lambda tokens: network.hidden(tokens).mean(axis=1), X)

    def samples(self, network: CausalTransformer, key: jax.Array, count: int) -> np.ndarray:
        tokens = jax.jit(network.sample, static_argnums=1)(key, count)
        return np.asarray(tokens).reshape(count, 14, 14, 1) / (self.levels - 1)
