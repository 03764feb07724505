"""All that a task compares: the Fisher embedding of a trained network, and its baselines, for the same examples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

import nfk
from nfk.tasks import kernel_features
from reproduction.data import Split
from reproduction.families import Family
from reproduction.families.trained import trained
from reproduction.tasks.ledger import Ledger

FULL = "full Fisher vector"
Pair = tuple[np.ndarray, np.ndarray]  # features of the training examples, of the test examples


def draw(split: Split, count: int, seed: int) -> Split:
    """`count` examples drawn without replacement."""
    return split.take(np.random.default_rng(seed).permutation(len(split))[:count])


def flat(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1)


def baselines(family: Family, network: Any, train: Split, test: Split, rank: int, seed: int = 0) -> dict[str, Pair]:
    """Features that cost no gradient: the network's activations, the pixels, their principal components."""
    X, X_test = family.examples(train), family.examples(test)
    pca = PCA(rank, random_state=seed).fit(flat(train.images))
    return {
        "activations": (family.activations(network, X), family.activations(network, X_test)),
        f"PCA of the pixels, {rank}": (pca.transform(flat(train.images)), pca.transform(flat(test.images))),
        "pixels": (flat(train.images), flat(test.images)),
    }


def random_projection(embedding: nfk.Embedding, X: Any, X_test: Any, rank: int, seed: int = 0) -> Pair:
    """V_x Omega / sqrt(rank) with a Gaussian Omega: as many numbers from the same Fisher vectors, chosen blindly."""
    shape = (embedding.model.layout.size, rank)
    omega = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(rank))
    blind = replace(embedding.truncated(min(rank, embedding.rank)), right=omega)
    return blind(X), blind(X_test)


def untrained(family: Family, X: Any, X_test: Any, rank: int, seed: int) -> Pair:
    """The Fisher embedding of the same network with fresh random weights."""
    embedding = nfk.fit(family.model(family.build(seed + 1000)), X, rank, key=seed)
    return embedding.training, embedding(X_test)


@dataclass(frozen=True)
class Sizes:
    """Training and test examples, the rank of the Fisher embedding, the features of the controls."""

    count: int
    tested: int = 5_000
    rank: int = 256
    control: int = 128


@dataclass(frozen=True)
class Compared:
    """A draw of training examples, the test examples, and the features of both by method."""

    train: Split
    test: Split
    sets: dict[str, Pair]
    parameters: int


def compared(family: Family, sizes: Sizes, seed: int, runs: Path) -> Compared:
    """The Fisher embedding, the controls, and all else in full; kept in a file for other tasks.

    A seed draws the training images, the fit's key, the random projection and the untrained network.
    """
    rank, control = sizes.rank, sizes.control
    train, test = family.splits()
    train, test = draw(train, sizes.count, seed), test.take(slice(sizes.tested))
    network, _ = trained(family)
    X, X_test = family.examples(train), family.examples(test)
    model = family.model(network)

    def make(_: Sizes) -> dict[str, np.ndarray]:
        embedding = nfk.fit(model, X, rank, key=seed)
        full = kernel_features(embedding.gram(X), embedding.gram(X_test, X))
        pairs = {
            "fisher": (embedding.training, embedding(X_test)), "full": full,
            "random": random_projection(embedding, X, X_test, control, seed),
            "untrained": untrained(family, X, X_test, control, seed),
        }  # fmt: skip
        return {f"{name} {part}": pair[part == "test"] for name, pair in pairs.items() for part in ("train", "test")}

    name = f"{family.label}-{sizes.count}-{sizes.tested}-{rank}-{control}-{seed}"
    found = Ledger("features", runs).arrays(name, make, sizes)
    pair = lambda name: (found[f"{name} train"], found[f"{name} test"])  # noqa: E731
    sets = {
        f"Fisher embedding, {rank}": pair("fisher"), FULL: pair("full"),
        f"random projection of the Fisher vector, {control}": pair("random"),
        f"Fisher embedding of the untrained network, {control}": pair("untrained"),
        **baselines(family, network, train, test, control, seed),
    }  # fmt: skip
    return Compared(train, test, sets, model.layout.size)


def fisher(family: Family, X: Any, rank: int, seed: int) -> nfk.Embedding:
    """The Fisher embedding of the family's trained network."""
    return nfk.fit(family.model(trained(family)[0]), X, rank, key=seed)
