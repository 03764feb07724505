"""Why the importance-weighted bound costs a VAE its embedding: one thing of the score is changed at a time.

The network is the VAE of `reproduction.families`; the pool is a part of MNIST's test images. Examples share their
normals (`common_noise`), but where the variant says otherwise. Seeds draw other normals and other halves of the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nfk
from reproduction import figures
from reproduction.families.trained import trained
from reproduction.families.vae import VAE
from reproduction.paper import raw
from reproduction.tasks.ledger import Ledger, Row, row

DECODER, ENCODER, BOTH = "decoder/*", "encoder/*", None


@dataclass(frozen=True)
class Variant:
    """Which bound, how many draws, whose gradient; `own` noise of each example."""

    bound: str
    draws: int
    parameters: str | None
    own: bool = False


VARIANTS: Mapping[str, Variant] = {
    "ELBO, all parameters (the default)": Variant("elbo", 1, BOTH),
    "ELBO, encoder alone": Variant("elbo", 1, ENCODER),
    "ELBO, decoder alone": Variant("elbo", 1, DECODER),
    "log weight, decoder alone": Variant("weighted", 1, DECODER),
    "4 draws, self-normalised, decoder alone": Variant("weighted", 4, DECODER),
    "16 draws, self-normalised, decoder alone": Variant("weighted", 16, DECODER),
    "64 draws, self-normalised, decoder alone": Variant("weighted", 64, DECODER),
    "16 draws, self-normalised, all parameters": Variant("weighted", 16, BOTH),
    "16 draws, plain mean, decoder alone": Variant("mean", 16, DECODER),
    "16 draws, plain mean, all parameters": Variant("mean", 16, BOTH),
    "ELBO, own noise, all parameters": Variant("elbo", 1, BOTH, own=True),
    "ELBO, own noise, decoder alone": Variant("elbo", 1, DECODER, own=True),
    "ELBO at the posterior's mean, decoder alone": Variant("middle", 1, DECODER),
    "ELBO at the posterior's mean, all parameters": Variant("middle", 1, BOTH),
}


@dataclass(frozen=True)
class Settings:
    pool: int = 1_000
    rank: int = 64
    seeds: int = 5
    variants: tuple[str, ...] = tuple(VARIANTS)


PRESETS = {
    "smoke": Settings(
        pool=60, rank=8, seeds=2, variants=("ELBO, decoder alone", "4 draws, self-normalised, decoder alone")
    ),
    "cpu": Settings(),
    "paper": Settings(pool=10_000),
}
SMALLER = ("One trained network; the spread is over five draws of noise and random halves of 1,000 test images.",)


def run(ledger: Ledger, pictures: Path, settings: Settings) -> list[Row]:
    rows: list[Row] = []
    for name in settings.variants:
        found = [ledger.once(f"{name}, seed {seed}", _measure, settings, name, seed) for seed in range(settings.seeds)]
        facts = dict(network="convolutional VAE", data="MNIST", pool=settings.pool, features=settings.rank)
        rows += [row(name, [one[metric] for one in found], metric=metric, **facts) for metric in found[0]]
    values = {r["method"]: r["mean"] for r in rows if r["metric"] == "test accuracy"}
    figures.bars(values, pictures / "variants.png", "A probe of 64 components of a VAE's kernel", chance=0.1)
    return rows


def _measure(settings: Settings, name: str, seed: int) -> dict[str, Any]:
    """The probe's accuracy; and how alike the rows of an example are under other noise."""
    family = VAE()
    test = family.splits()[1].take(slice(settings.pool))
    X, model = family.examples(test), _model(trained(family)[0], VARIANTS[name])
    slices = raw.layers(model)
    rows = raw.gradients(model, X, 2 * seed)
    kernel = np.sum(list(raw.layer_kernels(rows, slices, 1e-4).values()), axis=0)
    few = max(len(X) // 10, 2)
    return {
        "test accuracy": raw.accuracy(kernel, test.labels, seed, settings.rank),
        "agreement of two draws": agreement(rows[:few], raw.gradients(model, X[:few], 2 * seed + 1)),
    }


def agreement(a: np.ndarray, b: np.ndarray) -> float:
    """The mean cosine of an example's gradients under two draws, less that of two different examples'."""
    a, b = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (a, b))
    cosines = a @ b.T
    same = np.trace(cosines) / len(a)
    return float(same - (cosines.sum() - np.trace(cosines)) / (len(a) * (len(a) - 1)))


def _model(network: Any, variant: Variant) -> nfk.Model:
    options = dict(common_noise=not variant.own) | ({"parameters": variant.parameters} if variant.parameters else {})
    return nfk.vae(*_score(network, variant), **options)


def _score(network: Any, variant: Variant) -> tuple[Callable, Any]:
    if variant.bound == "elbo":
        return nfk.from_nnx(network, method="elbo")
    if variant.bound == "middle":
        elbo, params = nfk.from_nnx(network, method="elbo_at_mean")
        return (lambda params, x, key: elbo(params, x)), params
    log_weight, params = nfk.from_nnx(network, method="log_weight")
    if variant.bound == "weighted":
        return nfk.importance_weighted(log_weight, variant.draws), params

    def mean(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(lambda one: log_weight(params, x, one))(jax.random.split(key, variant.draws)))

    return mean, params
