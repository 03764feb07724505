"""Why the importance-weighted bound costs a VAE its embedding: one thing of the score or of the kernel at a time.

The network is the VAE of `reproduction.families`; the pool is a part of MNIST's test images. Examples share normals
(`common_noise`), but where the variant says otherwise. Seeds draw other normals and other halves of the pool.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from reproduction.networks.vaes import ConvVAE
from reproduction.paper import raw
from reproduction.tasks.ledger import Ledger, Row, row

PARTS = ("all parameters", "decoder", "encoder")


@dataclass(frozen=True)
class Settings:
    pool: int = 1_000
    rank: int = 64
    seeds: int = 5
    draws: int = 16


PRESETS = {
    "smoke": Settings(pool=40, rank=8, seeds=1, draws=2),
    "cpu": Settings(),
    "paper": Settings(pool=10_000, draws=64),
}
SMALLER = ("One trained network; the spread is over five draws of noise and random halves of 1,000 test images.",)
ACCURACY = "test accuracy"


def run(ledger: Ledger, pictures: Path, settings: Settings) -> list[Row]:
    found = [ledger.once(f"seed {seed}", _measure, settings, seed) for seed in range(settings.seeds)]
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


def _measure(settings: Settings, seed: int) -> dict[str, dict[str, float]]:
    family = VAE()
    test = family.splits()[1].take(slice(settings.pool))
    X, network = family.examples(test), trained(family)[0]
    few, found = max(len(X) // 10, 2), {}
    again = {name: rows for name, rows, _ in gradients(network, X[:few], settings.draws, 2 * seed + 1)}
    for name, rows, slices in gradients(network, X, settings.draws, 2 * seed):
        other = again[name]
        for part in PARTS:
            chosen = {path: where for path, where in slices.items() if part == PARTS[0] or path.startswith(part)}
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


def gradients(
    network: ConvVAE, X: np.ndarray, draws: int, seed: int
) -> Iterator[tuple[str, np.ndarray, dict[str, slice]]]:
    """(name, rows, columns of each array) of every score; those of several draws come from one pass."""
    log_weight, params = nfk.from_nnx(network, method="log_weight")
    slices = raw.layers(nfk.vae(log_weight, params))
    rows = _several(log_weight, params, X, draws, seed)
    yield from ((f"{draws} draws, {kind}", part, slices) for kind, part in rows.items())
    del rows
    elbo, params = nfk.from_nnx(network, method="elbo")
    for name, common in (("ELBO, one draw", True), ("ELBO, own noise", False)):
        yield name, raw.gradients(nfk.vae(elbo, params, common_noise=common), X, seed), slices
    middle, params = nfk.from_nnx(network, method="elbo_at_mean")
    yield "ELBO at the posterior's mean", raw.gradients(nfk.density(middle, params), X), slices


def _several(log_weight: Any, params: Any, X: np.ndarray, draws: int, seed: int) -> dict[str, np.ndarray]:
    """Gradients of the self-normalised bound and of the plain mean, from the same draws: (n, P) each."""

    @jax.jit
    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        keys = jax.random.split(jax.random.key(seed), draws)
        weights, slopes = jax.vmap(lambda key: jax.value_and_grad(log_weight)(params, x, key))(keys)
        flat = jnp.concatenate([leaf.reshape(draws, -1) for leaf in jax.tree.leaves(slopes)], axis=1)
        return jax.nn.softmax(weights) @ flat, flat.mean(axis=0)

    parts = [both(x) for x in X]
    kinds = ("self-normalised", "plain mean")
    return {kind: np.stack([np.asarray(part[place]) for part in parts]) for place, kind in enumerate(kinds)}


def agreement(a: np.ndarray, b: np.ndarray) -> float:
    """The mean cosine of an example's gradients under two draws, less that of two different examples'."""
    a, b = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (a, b))
    cosines = a @ b.T
    same = np.trace(cosines) / len(a)
    return float(same - (cosines.sum() - np.trace(cosines)) / (len(a) * (len(a) - 1)))
