"""Why the importance-weighted bound costs a VAE its embedding: one thing of the score or of the kernel at a time.

The network is the VAE of `reproduction.families`; the pool is a part of MNIST's test images. Examples share normals
(`common_noise`), but where the variant says otherwise. Seeds draw other normals and other halves of the pool.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nfk
from reproduction import figures
from reproduction.families.trained import trained
from reproduction.families.vae import VAE
from reproduction.networks.vaes import ConvVAE
from reproduction.paper import raw
from reproduction.tasks.ledger import Ledger, Row, row

PARTS = ("all parameters", "decoder", "encoder")


@dataclass(frozen=True)
class Settings:
    pool: int = 1_000
    rank: int = 64
    seeds: int = 5
    draws: tuple[int, ...] = (4, 16)  # of the bounds of several


PRESETS = {
    "smoke": Settings(pool=40, rank=8, seeds=1, draws=(2,)),
    "cpu": Settings(),
    "paper": Settings(pool=10_000, draws=(16, 64)),
}
SMALLER = ("One trained network; the spread is over five draws of noise and random halves of 1,000 test images.",)
ACCURACY = "test accuracy"


def run(ledger: Ledger, pictures: Path, settings: Settings) -> list[Row]:
    about = replace(settings, seeds=0, draws=())  # more of them leave those that are there as they are
    found: list[dict[str, dict[str, float]]] = [{} for _ in range(settings.seeds)]
    for seed, draws in itertools.product(range(settings.seeds), (*settings.draws, 1)):
        found[seed] |= ledger.once(f"seed {seed}, {draws} draws", _measure, about, seed, draws)
    facts = dict(network="convolutional VAE", data="MNIST", pool=settings.pool, features=settings.rank)
    rows = [
        row(name, [one[name][metric] for one in found], metric=metric, **facts)
        for name, measured in found[0].items()
        for metric in measured
    ]
    columns = [metric for metric in next(iter(found[0].values())) if metric.startswith(ACCURACY)]
    mean = {(r["method"], r["metric"]): 100 * r["mean"] for r in rows}
    lines = {name: [mean[name, column] for column in columns] for name in found[0]}
    shown = [column.removeprefix(ACCURACY).strip(", ") or "as it is" for column in columns]
    figures.heat(lines, shown, pictures / "variants.png", "A probe of a VAE's kernel on MNIST, test accuracy, %")
    return rows


def _measure(settings: Settings, seed: int, draws: int) -> dict[str, dict[str, float]]:
    family = VAE()
    test = family.splits()[1].take(slice(settings.pool))
    X, network = family.examples(test), trained(family)[0]
    few, found = max(len(X) // 10, 2), {}
    scores = Scores(network, draws)
    again = dict(scores(X[:few], 2 * seed + 1))
    for name, rows in scores(X, 2 * seed):
        other = again[name]
        for part in PARTS:
            chosen = {path: where for path, where in scores.slices.items() if part == PARTS[0] or path.startswith(part)}
            if name != "ELBO, one draw" and part == "encoder":
                continue
            kernel = raw.summed(rows, chosen, 1e-4).total
            columns = np.concatenate([np.arange(where.start, where.stop) for where in chosen.values()])
            found[f"{name}, {part}"] = _scores(kernel, test.labels, seed, settings.rank) | {
                "agreement of two draws": agreement(rows[:few, columns], other[:, columns])
            }
    return found


def _scores(K: raw.Kernel, labels: np.ndarray, seed: int, rank: int) -> dict[str, float]:
    """Accuracies with one thing changed, and how unlike the rows are in length."""
    squares = np.sort(np.diag(K))[::-1]
    return {
        ACCURACY: raw.accuracy(K, labels, seed, rank),
        f"{ACCURACY}, rows at length one": raw.accuracy(raw.at_length_one(K), labels, seed, rank),
        f"{ACCURACY}, mean taken away": raw.accuracy(raw.centred(K), labels, seed, rank),
        f"{ACCURACY}, all components": raw.accuracy(K, labels, seed, None),
        f"{ACCURACY}, rows at length one, all components": raw.accuracy(raw.at_length_one(K), labels, seed, None),
        "share of the longest hundredth": float(squares[: max(len(squares) // 100, 1)].sum() / squares.sum()),
    }


class Scores:
    """Scores of the network, compiled once: bounds of several draws from one pass, or all that have a single draw."""

    def __init__(self, network: ConvVAE, draws: int) -> None:
        elbo, middle = (nfk.from_nnx(network, method=method) for method in ("elbo", "elbo_at_mean"))
        self.models = {
            "ELBO, one draw": nfk.vae(*elbo),
            "ELBO, own noise": nfk.vae(*elbo, common_noise=False),
            "ELBO at the posterior's mean": nfk.density(*middle),
        }
        self.draws, self.several = draws, several(*nfk.from_nnx(network, method="log_weight"), draws)
        self.names = tuple(f"{draws} draws, {kind}" for kind in ("self-normalised", "plain mean"))
        self.slices = raw.layers(self.models["ELBO, one draw"])

    def __call__(self, X: np.ndarray, seed: int) -> Iterator[tuple[str, np.ndarray]]:
        """(name, gradients) of each."""
        if self.draws == 1:
            for name, model in self.models.items():
                yield name, raw.gradients(model, X, seed)
            return
        parts = [self.several(x, jax.random.key(seed)) for x in X]
        for place, name in enumerate(self.names):
            yield name, np.stack([np.asarray(part[place]) for part in parts])


def several(log_weight: Any, params: Any, draws: int) -> Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]]:
    """Gradients of the self-normalised bound and of the plain mean, from the same draws: P numbers each."""

    @jax.jit
    def both(x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        keys = jax.random.split(key, draws)
        weights, slopes = jax.vmap(lambda key: jax.value_and_grad(log_weight)(params, x, key))(keys)
        flat = jnp.concatenate([leaf.reshape(draws, -1) for leaf in jax.tree.leaves(slopes)], axis=1)
        return jax.nn.softmax(weights) @ flat, flat.mean(axis=0)

    return both


def agreement(a: np.ndarray, b: np.ndarray) -> float:
    """The mean cosine of an example's gradients under two draws, less that of two different examples'."""
    a, b = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (a, b))
    cosines = a @ b.T
    same = np.trace(cosines) / len(a)
    return float(same - (cosines.sum() - np.trace(cosines)) / (len(a) * (len(a) - 1)))
