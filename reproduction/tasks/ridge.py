"""Kernel ridge regression on MNIST: the exact Fisher kernel, its low rank, and the linearised network.

Ten classes by regression on one-hot targets with the Fisher kernels of LeNet-5 and of the DCGAN; parity by the NTK of a
LeNet-5 with one output, fresh or trained, linearised about its weights. The ridge is chosen by leave-one-out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import nfk
from nfk.tasks import Ridge, feature_ridge, kernel_ridge, one_hot
from reproduction import figures
from reproduction.data import Split, load
from reproduction.families.classifier import Classifier
from reproduction.families.gan import DigitGAN
from reproduction.families.trained import trained
from reproduction.networks import LeNet5
from reproduction.tasks.features import draw, flat
from reproduction.tasks.ledger import Ledger, Row, row
from reproduction.training import in_batches, train_classifier


@dataclass(frozen=True)
class Settings:
    examples: int = 2_000
    tested: int = 2_000
    ranks: tuple[int, ...] = (16, 64, 256)
    epochs: int = 15  # of the network that tells even from odd


SETTINGS = Settings()


def run(ledger: Ledger, pictures: Path, settings: Settings = SETTINGS, seeds: int = 3) -> list[Row]:
    rows, curves = [], {}
    tables = {
        task: [ledger.once(f"{task}, seed {seed}", measure, settings, seed) for seed in range(seeds)]
        for task, measure in (("ten classes", _classes), ("parity", _parity))
    }
    for task, found in tables.items():
        for name in found[0]:
            scores = [one[name] for one in found]
            facts = dict(data=f"mnist, {task}", examples=settings.examples, test_examples=settings.tested)
            rows.append(row(name, [one["accuracy"] for one in scores], metric="test accuracy", **facts))
            if "left_out" in scores[0]:
                metric = "leave-one-out squared error, at the chosen ridge"
                rows.append(row(name, [one["left_out"] for one in scores], metric=metric, **facts))
                curves[f"{name}, {task}"] = scores[0]["relative_ridges"], scores[0]["errors"]
    shown = {name: line for name, line in curves.items() if "exact" in name}
    figures.curves(
        shown, pictures / "leave-one-out.png", "Choosing the ridge without refitting",
        "log10 of the ridge / mean of K's diagonal", "leave-one-out squared error", logarithmic_y=True,
    )  # fmt: skip
    return rows


def _splits(settings: Settings, seed: int) -> tuple[Split, Split]:
    train, test = load("mnist", "train"), load("mnist", "test")
    return draw(train, settings.examples, seed), test.take(slice(settings.tested))


def _classes(settings: Settings, seed: int) -> dict[str, Any]:
    train, test = _splits(settings, seed)
    y = one_hot(train.labels)
    results = {}
    for family in (Classifier(), DigitGAN()):
        embedding = nfk.fit(family.model(trained(family)[0]), train.images, max(settings.ranks), key=seed)
        E, E_test = embedding.training, embedding(test.images)
        exact = kernel_ridge(embedding.gram(train.images), y)
        guesses = exact.predict(embedding.gram(test.images, train.images))
        results[f"Fisher kernel of {family.network}, exact"] = _scores(exact, guesses, test.labels)
        for k in settings.ranks:
            low = feature_ridge(E[:, :k], y)
            results[f"Fisher kernel of {family.network}, rank {k}"] = _scores(
                low, low.predict(E_test[:, :k]), test.labels
            )
    pixels = feature_ridge(flat(train.images), y)
    results["linear in the pixels"] = _scores(pixels, pixels.predict(flat(test.images)), test.labels)
    return results


def _scores(fitted: Ridge, guesses: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    right = np.argmax(guesses, axis=1) == labels if guesses.ndim == 2 else (guesses > 0) == (labels > 0)
    typical = fitted.ridges[0] / 1e-7  # the first of the grid is 1e-7 of the mean of the kernel's diagonal
    return {
        "accuracy": float(np.mean(right)), "left_out": fitted.error.value, "ridge": fitted.ridge,
        "relative_ridges": np.log10(fitted.ridges / typical).tolist(), "errors": fitted.errors.tolist(),
    }  # fmt: skip


def _parity(settings: Settings, seed: int) -> dict[str, Any]:
    """f(x) + K(x, X) (K + ridge)^-1 (y - f(X)): about fresh weights, and about trained ones."""
    train, test = (Split(part.images, 2 * (part.labels % 2) - 1) for part in _splits(settings, seed))
    network = LeNet5(1, rngs=nnx.Rngs(seed))
    results = {"NTK of a fresh LeNet-5, exact": _linearised(network, train, test)}
    pair = _Pair(network)
    train_classifier(pair, Split(train.images, (train.labels > 0).astype(int)), epochs=settings.epochs, seed=seed)
    output = in_batches(lambda images: network(images)[:, 0], test.images)
    results["the trained LeNet-5 itself"] = {"accuracy": float(np.mean((output > 0) == (test.labels > 0)))}
    results["NTK of the trained LeNet-5, exact"] = _linearised(network, train, test)
    return results


class _Pair(nnx.Module):
    """Logits (-f, f) of a network with one output f."""

    def __init__(self, network: LeNet5) -> None:
        self.network = network

    def __call__(self, images: jax.Array) -> jax.Array:
        output = self.network(images)
        return jnp.concatenate([-output, output], axis=1)


def _linearised(network: LeNet5, train: Split, test: Split) -> dict[str, Any]:
    apply, params = nfk.from_nnx(network)
    embedding = nfk.fit(nfk.network(lambda p, x: apply(p, x)[0], params), train.images, 8)
    f, f_test = (in_batches(lambda images: network(images)[:, 0], part.images) for part in (train, test))
    fitted = kernel_ridge(embedding.gram(train.images), train.labels.astype(float), offset=f)
    return _scores(fitted, fitted.predict(embedding.gram(test.images, train.images), offset=f_test), test.labels)
