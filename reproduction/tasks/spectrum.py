"""Spectra: a convolutional against a dense network, trained against untrained, and where components live.

LeNet-5 and a dense network of nearly as many parameters learn the parity of MNIST's digits from 10,000 images, by the
same recipe and with two logits each; then the GAN and the VAE of digits. A seed is a network of its own (for the GAN
and the VAE, which are trained once: a draw of the images, and another untrained network).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

import nfk
from nfk.tasks import alignment, by_layer, mean_share, spectrum
from reproduction import figures
from reproduction.data import Split, load
from reproduction.families import Family
from reproduction.families.gan import DigitGAN
from reproduction.families.trained import trained
from reproduction.families.vae import VAE
from reproduction.networks import MLP, LeNet5
from reproduction.tasks.features import draw
from reproduction.tasks.ledger import Ledger, Row, row
from reproduction.training import accuracy, train_classifier

NETWORKS: dict[str, Callable[[int], Any]] = {
    "LeNet-5": lambda seed: LeNet5(2, rngs=nnx.Rngs(seed)),
    "dense, 784-70-70": lambda seed: MLP(hidden=70, classes=2, rngs=nnx.Rngs(seed)),
}
GENERATIVE: tuple[Family, ...] = (DigitGAN(), VAE())
Found = dict[str, list[dict[str, np.ndarray]]]  # by network, the arrays of every seed


@dataclass(frozen=True)
class Settings:
    rank: int = 100
    examples: int = 2_000
    learnt: int = 10_000
    epochs: int = 5
    ks: tuple[int, ...] = (1, 5, 10, 20, 50, 100)


SETTINGS = Settings()


def run(ledger: Ledger, pictures: Path, settings: Settings = SETTINGS, seeds: int = 3) -> list[Row]:
    curves = _measured(ledger, settings, seeds)
    rows = []
    for name, found in curves.items():
        data = "parity of mnist" if name in NETWORKS else "mnist"
        for state in ("trained", "untrained"):
            rows += _rows(settings, name, state, data, found)
    _pictures_of_spectra(settings, curves, pictures)
    for family in GENERATIVE:
        _pictures_of_components(settings, family, curves[family.network][0], pictures)
    return rows + _accuracies(curves) + _alignments(curves)


def _measured(ledger: Ledger, settings: Settings, seeds: int) -> Found:
    made = {
        name: [ledger.arrays(f"{name}, {seed}", _parity, settings, name, seed) for seed in range(seeds)]
        for name in NETWORKS
    }
    return made | {
        family.network: [
            ledger.arrays(f"{family.label}, {seed}", _generative, settings, family, seed) for seed in range(seeds)
        ]
        for family in GENERATIVE
    }


def _pictures_of_spectra(settings: Settings, curves: Found, pictures: Path) -> None:
    """Explained variance against k, the mean over seeds: one picture of the classifiers, one of the others."""
    kinds = {"classifiers": list(NETWORKS), "generative": [family.network for family in GENERATIVE]}
    across = np.arange(1, settings.rank + 1)
    for file, names in kinds.items():
        lines = {
            f"{name}, {state}": (across, np.mean([100 * _cumulative(one, state) for one in curves[name]], axis=0))
            for name in names
            for state in ("trained", "untrained")
        }
        figures.spectra(lines, pictures / f"{file}.png", f"Explained variance over {settings.examples:,} images")


def _pictures_of_components(settings: Settings, family: Family, found: dict, pictures: Path) -> None:
    """In which layers the components of a network live, and the images with the largest projections on them."""
    figures.layers(
        dict(zip(found["layers"].tolist(), found["shares"], strict=True)), pictures / f"{family.label}-layers.png",
        f"{family.network}: share of each layer in the components",
    )  # fmt: skip
    images = draw(load(family.data, "train"), settings.examples, 0).images
    figures.leading_images(
        found["embedding"], images, pictures / f"{family.label}-images.png",
        f"{family.network}: images with the largest projections",
    )  # fmt: skip


def _accuracies(curves: Found) -> list[Row]:
    facts = dict(metric="accuracy of the trained network", data="parity of mnist")
    return [row(name, [float(one["accuracy"]) for one in curves[name]], **facts) for name in NETWORKS]


def _rows(settings: Settings, name: str, state: str, data: str, found: list[dict]) -> list[Row]:
    """Shares of variance, components for 90 %, effective rank, and the share of the mean."""
    rank, examples = settings.rank, settings.examples
    facts = dict(network=name, state=state, data=data, examples=examples)
    method = f"{name}, {state}"
    made = [
        row(method, [float(_cumulative(one, state)[k - 1]) for one in found], metric=f"variance explained, k = {k}",
            k=k, **facts)
        for k in settings.ks
    ]  # fmt: skip
    spectra = [spectrum(one[f"{state}_eigenvalues"], float(one[f"{state}_trace"]), examples) for one in found]
    ranks = [each.effective_rank for each in spectra]
    made.append(
        row(method, [rank.value for rank in ranks], metric="effective rank", low=min(rank.low for rank in ranks),
            high=max(rank.high for rank in ranks), **facts)
    )  # fmt: skip
    counts = [each.components_for(0.9) or rank + 1 for each in spectra]
    made.append(row(method, counts, metric=f"components for 90 % ({rank + 1}: more than {rank})", **facts))
    shares = [float(one[f"{state}_mean_share"]) for one in found]
    made.append(row(method, shares, metric="share of the common shift", **facts))
    return made


def _cumulative(found: dict, state: str) -> np.ndarray:
    return np.cumsum(found[f"{state}_eigenvalues"]) / found[f"{state}_trace"]


def _facts(embedding: nfk.Embedding, state: str) -> dict[str, Any]:
    return {
        f"{state}_eigenvalues": embedding.eigenvalues, f"{state}_trace": embedding.trace,
        f"{state}_mean_share": mean_share(embedding.training, embedding.trace),
    }  # fmt: skip


def _parity(settings: Settings, name: str, seed: int) -> dict[str, Any]:
    train, test = (Split(part.images, part.labels % 2) for part in (load("mnist", "train"), load("mnist", "test")))
    network = NETWORKS[name](seed)
    X = test.images[: settings.examples]  # the same for every network, so that they can be aligned
    before = nfk.fit(nfk.classifier(*nfk.from_nnx(network)), X, settings.rank, key=seed)
    train_classifier(network, draw(train, settings.learnt, seed), epochs=settings.epochs, seed=seed)
    after = nfk.fit(nfk.classifier(*nfk.from_nnx(network)), X, settings.rank, key=seed)
    return _found(before, after) | {"accuracy": accuracy(network, test)}


def _generative(settings: Settings, family: Family, seed: int) -> dict[str, Any]:
    X = family.examples(draw(load(family.data, "train"), settings.examples, seed))
    before = nfk.fit(family.model(family.build(seed + 1000)), X, settings.rank, key=seed)
    return _found(before, nfk.fit(family.model(trained(family)[0]), X, settings.rank, key=seed))


def _found(before: nfk.Embedding, after: nfk.Embedding) -> dict[str, Any]:
    layers = by_layer(after.layer_shares(), 2)
    return {
        **_facts(before, "untrained"), **_facts(after, "trained"), "layers": np.array(list(layers)),
        "shares": np.array(list(layers.values())), "embedding": after.training, "embedding_before": before.training,
    }  # fmt: skip


def _alignments(curves: Found) -> list[Row]:
    """Network against network, over the same test images."""
    first, second = (curves[name] for name in NETWORKS)
    pairs = list(itertools.combinations(range(len(first)), 2))
    made = {
        "two LeNet-5, trained": [(first[a]["embedding"], first[b]["embedding"]) for a, b in pairs],
        "two dense networks, trained": [(second[a]["embedding"], second[b]["embedding"]) for a, b in pairs],
        "LeNet-5 and dense, trained": [(a["embedding"], b["embedding"]) for a, b in zip(first, second, strict=True)],
        "LeNet-5, before and after training": [(one["embedding_before"], one["embedding"]) for one in first],
        "two LeNet-5, untrained": [(first[a]["embedding_before"], first[b]["embedding_before"]) for a, b in pairs],
    }
    rows = []
    for name, several in made.items():
        found = [alignment(a, b) for a, b in several]
        half = float(np.mean([(each.high - each.low) / 2 for each in found]))
        rows.append(row(name, [each.value for each in found], metric="alignment (CKA)", data="parity of mnist",
                        half_interval=half))  # fmt: skip
    return rows
