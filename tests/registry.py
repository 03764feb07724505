"""Small models of every constructor, with examples: the laws are tested on all of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nfk
from nfk import kernel
from nfk.model import Batching, split_key
from nfk.operator.moments import Moments, estimate
from nfk.operator.stream import GradientStream
from nfk.progress import Reporter
from nfk.spaces import HOST, Space
from nfk.stream import Examples, Generated

EXAMPLES = 40


@dataclass(frozen=True)
class Case:
    """A model and N examples for it, in one precision; what many tests need is computed once."""

    name: str
    model: nfk.Model
    X: Any

    @property
    def double(self) -> bool:
        return self.model.layout.dtype == np.float64

    @property
    def tol(self) -> float:
        return 1e-7 if self.double else 1e-3

    @cached_property
    def outputs(self) -> int:
        return self.model.outputs(jax.tree.map(lambda leaf: leaf[0], self.X))

    @property
    def rows(self) -> int:
        return EXAMPLES * self.outputs

    @cached_property
    def V(self) -> np.ndarray:
        """The dense definition."""
        return kernel.fisher_vectors(self.model, self.X)

    @cached_property
    def K(self) -> np.ndarray:
        return self.V @ self.V.T

    @cached_property
    def values(self) -> np.ndarray:
        """All eigenvalues, falling."""
        return np.linalg.eigvalsh(self.K)[::-1]

    @cached_property
    def embedding(self) -> nfk.Embedding:
        return nfk.fit(self.model, self.X, 4, tol=self.tol)

    @cached_property
    def full(self) -> nfk.Embedding:
        with warnings.catch_warnings():  # the smallest components are at the limit of float32
            warnings.simplefilter("ignore", nfk.ConvergenceWarning)
            return nfk.fit(self.model, self.X, min(self.rows, self.model.layout.size))

    def stream(self, microbatch: int = 7, space: Space = HOST, batching: Batching = "vmap") -> GradientStream:
        differentiator = self.model.network.differentiate(split_key(0)[2], self.outputs, batching, device=space.device)
        return GradientStream(differentiator, Examples(self.X), space, microbatch, Reporter(show=False))

    @cached_property
    def moments(self) -> Moments:
        return self.moments_in_batches_of(7)

    def moments_in_batches_of(self, microbatch: int, space: Space = HOST) -> Moments:
        if not self.model.needs_moments:
            return Moments.trivial(self.model)
        stream = self.stream(microbatch, space)
        if self.model.expectation == "model":
            samples = Generated(self.model.sample, split_key(0)[1], self.model.samples)
            stream = replace(stream, examples=Examples(samples))
        return estimate(stream, self.model)


CASES: dict[str, Callable[[np.dtype], Case]] = {}


def case(build: Callable[[np.dtype], tuple[nfk.Model, Any]]) -> Callable:
    name = build.__name__
    CASES[name] = lru_cache(lambda dtype: Case(name, *build(dtype)))
    return build


def weights(dtype: np.dtype, *shape: int, seed: int = 0) -> np.ndarray:
    scale = 1 / np.sqrt(max(np.prod(shape[:-1]), 1)) if len(shape) > 1 else 0.1
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(dtype)


def vectors(dtype: np.dtype, width: int, seed: int = 5, count: int = EXAMPLES) -> np.ndarray:
    """Correlated inputs, so that the spectra fall."""
    rng = np.random.default_rng(seed)
    return (
        (rng.standard_normal((count, width)) * 0.8 ** np.arange(width)) @ rng.standard_normal((width, width)) / 2
    ).astype(dtype)


def mlp_params(dtype: np.dtype, inputs: int, hidden: int, outputs: int) -> dict:
    return {
        "first": {"kernel": weights(dtype, inputs, hidden), "bias": weights(dtype, hidden)},
        "second": {"kernel": weights(dtype, hidden, outputs), "bias": weights(dtype, outputs)},
    }


def mlp(params: dict, x: jax.Array) -> jax.Array:
    hidden = jnp.tanh(x @ params["first"]["kernel"] + params["first"]["bias"])
    return hidden @ params["second"]["kernel"] + params["second"]["bias"]


def cnn_params(dtype: np.dtype) -> dict:
    return {"conv": weights(dtype, 3, 3, 1, 4), "shared": weights(dtype, 3, 3, 4, 4), "head": weights(dtype, 64, 3)}


def cnn(params: dict, image: jax.Array) -> jax.Array:
    """The second kernel is used twice: weight sharing across layers."""

    def conv(x: jax.Array, w: jax.Array, stride: int) -> jax.Array:
        return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    hidden = jnp.tanh(conv(image[None], params["conv"], 1))
    hidden = jnp.tanh(conv(hidden, params["shared"], 2))
    return jnp.tanh(conv(hidden, params["shared"], 1)).reshape(-1) @ params["head"]


def linear_sampler(dtype: np.dtype, width: int) -> Callable:
    mixing = weights(dtype, width, width, seed=9)
    return lambda key, n: jax.random.normal(key, (n, width), dtype) @ mixing


@case
def classifier_mlp(dtype):
    return nfk.classifier(mlp, mlp_params(dtype, 6, 8, 4)), vectors(dtype, 6)


@case
def classifier_cnn(dtype):
    return nfk.classifier(cnn, cnn_params(dtype)), vectors(dtype, 64).reshape(-1, 8, 8, 1)


@case
def classifier_some_parameters(dtype):
    return nfk.classifier(mlp, mlp_params(dtype, 6, 8, 4), parameters="second/*"), vectors(dtype, 6)


@case
def classifier_undamped(dtype):
    return nfk.classifier(mlp, mlp_params(dtype, 6, 8, 4), damping=0.0), vectors(dtype, 6)


@case
def classifier_unnormalised(dtype):
    model = nfk.classifier(mlp, mlp_params(dtype, 6, 8, 4), fisher="identity", centred=False)
    return model, vectors(dtype, 6)


@case
def classifier_identity_centred(dtype):
    return nfk.classifier(mlp, mlp_params(dtype, 6, 8, 4), fisher="identity"), vectors(dtype, 6)


@case
def gan_after_a_sigmoid(dtype):
    critic = lambda params, x: mlp(params, x)[0]  # noqa: E731
    sample = linear_sampler(dtype, 6)
    return nfk.gan(critic, mlp_params(dtype, 6, 8, 1), sample=sample, samples=256, sigmoid=True), vectors(dtype, 6)


@case
def gan(dtype):
    critic = lambda params, x: mlp(params, x)[0]  # noqa: E731
    model = nfk.gan(critic, mlp_params(dtype, 6, 8, 1), sample=linear_sampler(dtype, 6), samples=300)
    return model, vectors(dtype, 6)


@case
def energy_over_data(dtype):
    return nfk.energy(lambda params, x: jnp.sum(mlp(params, x) ** 2), mlp_params(dtype, 6, 8, 3)), vectors(dtype, 6)


@case
def energy_over_samples(dtype):
    energy = lambda params, x: jnp.sum(mlp(params, x) ** 2)  # noqa: E731
    model = nfk.energy(energy, mlp_params(dtype, 6, 8, 3), sample=linear_sampler(dtype, 6), samples=257)
    return model, vectors(dtype, 6)


@case
def vae(dtype):
    def elbo(params, x, key):
        mean, log_scale = jnp.split(mlp(params["encoder"], x), 2)
        latent = mean + jnp.exp(log_scale) * jax.random.normal(key, mean.shape, mean.dtype)
        divergence = 0.5 * jnp.sum(jnp.exp(2 * log_scale) + mean**2 - 1 - 2 * log_scale)
        return -0.5 * jnp.sum((x - mlp(params["decoder"], latent)) ** 2) - divergence

    params = {"encoder": mlp_params(dtype, 6, 7, 4), "decoder": mlp_params(dtype, 2, 7, 6)}
    return nfk.vae(elbo, params, common_noise=False), vectors(dtype, 6)


@case
def density_gaussian(dtype):
    params = {"mean": weights(dtype, 5), "log_scale": weights(dtype, 5, seed=1)}
    return nfk.density(gaussian_log_prob, params, sample=gaussian_sampler(params), samples=500), vectors(dtype, 5)


@case
def density_sequences(dtype):
    """Examples are a pytree: integer tokens and a mask."""

    def log_prob(params, example):
        inputs = params["embed"][example["tokens"][:-1]]
        logits = jax.nn.log_softmax(jnp.tanh(inputs) @ params["out"])
        chosen = jnp.take_along_axis(logits, example["tokens"][1:, None], axis=1)[:, 0]
        return jnp.sum(chosen * example["mask"][1:])

    params = {"embed": weights(dtype, 7, 5), "out": weights(dtype, 5, 7)}
    rng = np.random.default_rng(3)
    mask = (np.arange(9) < rng.integers(4, 10, (EXAMPLES, 1))).astype(dtype)
    return nfk.density(log_prob, params), {"tokens": rng.integers(0, 7, (EXAMPLES, 9)), "mask": mask}


@case
def network_three_outputs(dtype):
    return nfk.network(mlp, mlp_params(dtype, 6, 8, 3)), vectors(dtype, 6)


@case
def network_scalar(dtype):
    return nfk.network(lambda params, x: mlp(params, x)[0], mlp_params(dtype, 6, 8, 1)), vectors(dtype, 6)


def gaussian_log_prob(params: dict, x: jax.Array) -> jax.Array:
    standard = (x - params["mean"]) / jnp.exp(params["log_scale"])
    return jnp.sum(-0.5 * standard**2 - params["log_scale"] - 0.5 * jnp.log(2 * jnp.pi))


def gaussian_sampler(params: dict) -> Callable:
    def sample(key, n):
        noise = jax.random.normal(key, (n, len(params["mean"])), params["mean"].dtype)
        return params["mean"] + jnp.exp(params["log_scale"]) * noise

    return sample
