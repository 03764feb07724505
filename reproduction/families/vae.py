"""A convolutional VAE on binary MNIST, by its ELBO and by the importance-weighted bound; and a hierarchical one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

import nfk
from reproduction.data import Split
from reproduction.families.family import Family, binary, bits
from reproduction.networks.vaes import ConvVAE
from reproduction.networks.vdvae import VDVAE
from reproduction.training import in_batches, train_module


class VAE(Family):
    name, network, data = "vae", "convolutional VAE", "mnist"
    steps, batch = 5_000, 64

    def examples(self, data: Split) -> np.ndarray:
        return binary(data.images)

    def build(self, seed: int) -> ConvVAE:
        return ConvVAE(rngs=nnx.Rngs(seed))

    def train(self, network: Any, train: Split, seed: int, folder: Path | None) -> Any:
        return train_module(
            network, lambda module, images, key: -module.elbo(images, key).mean(), self.examples(train),
            optimizer=optax.adam(optax.cosine_decay_schedule(2e-3, self.steps)),
            steps=self.steps, batch=self.batch, seed=seed, folder=folder, name=self.label,
        )  # fmt: skip

    def metric(self, network: Any, test: Split) -> tuple[str, float]:
        X = self.examples(test)
        elbo = in_batches(lambda images: network.elbo(images, jax.random.key(0)), X)
        return "bits per pixel (ELBO)", bits(elbo, X[0].size)

    def model(self, network: Any) -> nfk.Model:
        return nfk.vae(*nfk.from_nnx(network, method="elbo"))

    def activations(self, network: Any, X: np.ndarray) -> np.ndarray:
        return in_batches(lambda images: network.encoder(images)[0], X)

    def samples(self, network: Any, key: jax.Array, count: int) -> np.ndarray:
        return np.asarray(network.sample(key, count))


class ImportanceWeightedVAE(VAE):
    """The same network: log p(x) by 16 samples, and the gradient in the generative parameters alone."""

    network = "convolutional VAE, 16 samples"

    def metric(self, network: ConvVAE, test: Split) -> tuple[str, float]:
        X = self.examples(test)
        bound = self.model(network).network.score
        params = self.model(network).params
        each = in_batches(jax.vmap(lambda x: bound(params, x, jax.random.key(0))), X)
        return "bits per pixel (16 samples)", bits(each, X[0].size)

    def model(self, network: ConvVAE) -> nfk.Model:
        log_weight, params = nfk.from_nnx(network, method="log_weight")
        return nfk.vae(nfk.importance_weighted(log_weight, 16), params, parameters="decoder/*")


class HierarchicalVAE(VAE):
    """Eight layers of latents and a likelihood of 256 grey levels, after VDVAE (`VDVAE.paper` is the original)."""

    network = "hierarchical VAE"
    steps, rows, test_rows = 1_200, 3_000, 2_000

    @property
    def label(self) -> str:
        return "vdvae-mnist"

    def examples(self, data: Split) -> np.ndarray:
        return data.images

    def build(self, seed: int) -> VDVAE:
        return VDVAE.small(28, 1, rngs=nnx.Rngs(seed))

    def train(self, network: Any, train: Split, seed: int, folder: Path | None) -> Any:
        schedule = optax.warmup_cosine_decay_schedule(0, 2e-3, 100, self.steps, 1e-4)
        return train_module(
            network, lambda module, images, key: -module.elbo(images, key).mean() / images[0].size, train.images,
            optimizer=optax.chain(optax.clip_by_global_norm(20.0), optax.adam(schedule)),
            average=0.99, steps=self.steps, batch=self.batch, seed=seed, folder=folder, name=self.label,
        )  # fmt: skip

    def metric(self, network: Any, test: Split) -> tuple[str, float]:
        return "bits per dimension (ELBO)", super().metric(network, test)[1]

    def activations(self, network: Any, X: np.ndarray) -> np.ndarray:
        return in_batches(network.latents, X)
