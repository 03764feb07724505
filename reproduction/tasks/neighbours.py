"""Nearest neighbours of test digits, and data sets as vectors.

The ten nearest of some thousand training images, by cosine. A seed draws those images, the fit's key, the random
projection and the untrained network.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import nfk
from nfk.tasks import nearest, retrieval
from reproduction import figures
from reproduction.data import load
from reproduction.families import Family
from reproduction.families.classifier import Classifier
from reproduction.families.gan import DigitGAN
from reproduction.families.trained import trained
from reproduction.tasks.features import Sizes, compared, draw, fisher
from reproduction.tasks.ledger import Ledger, Row, row

Families = tuple[tuple[Family, int], ...]  # a network, and the examples to search among
FAMILIES: Families = ((DigitGAN(), 5_000), (Classifier(), 3_000))


@dataclass(frozen=True)
class Settings:
    rank: int = 64
    count: int = 10
    queries: int = 2_000
    images: int = 2_000  # of each data set, in two halves


SETTINGS = Settings()


def run(
    ledger: Ledger, pictures: Path, settings: Settings = SETTINGS, families: Families = FAMILIES, seeds: int = 3
) -> list[Row]:
    rows, runs = [], ledger.folder.parent
    metrics = {"precision": f"precision of {settings.count} neighbours", "accuracy": "accuracy of their vote"}
    for family, reference in families:
        found = [
            ledger.once(f"{family.label}, seed {seed}", _measure, settings, family, reference, seed, runs)
            for seed in range(seeds)
        ]
        facts = dict(network=family.network, data=family.data, examples=reference, test_examples=settings.queries)
        for name in found[0]["precision"]:
            for key, metric in metrics.items():
                rows.append(row(name, [one[key][name] for one in found], metric=metric, **facts))
    _picture(settings, families[0][1], pictures)
    return rows + _data_sets(ledger, settings, seeds)


def _measure(settings: Settings, family: Family, reference: int, seed: int, runs: Path) -> dict[str, Any]:
    rank, queries = settings.rank, settings.queries
    data = compared(family, Sizes(reference), seed, runs)  # the files of the probe
    labels, query_labels = data.train.labels, data.test.labels[:queries]
    made = {}
    for name, (a, b) in data.sets.items():
        words, _, number = name.rpartition(", ")
        width = rank if number.isdigit() else a.shape[1]  # the first components are those of a smaller fit
        short = f"{words}, {rank}" if number.isdigit() else name
        made[short] = retrieval(a[:, :width], labels, b[:queries, :width], query_labels, settings.count)
    return {
        "precision": {name: result.precision.value for name, result in made.items()},
        "accuracy": {name: result.accuracy.value for name, result in made.items()},
        "fisher": made[f"Fisher embedding, {rank}"].precision.value,
    }


def _picture(settings: Settings, reference: int, pictures: Path) -> None:
    family = DigitGAN()
    train, test = family.splits()
    train, test = draw(train, reference, 0), test.take(slice(12))
    embedding = fisher(family, train.images, settings.rank, 0)
    found = nearest(embedding.training, embedding(test.images), settings.count)
    shown = np.concatenate([np.concatenate([test.images[i : i + 1], train.images[found.rows[i]]]) for i in range(12)])
    title = f"test digits (first column) and their {settings.count} nearest, DCGAN"
    figures.grid(shown, pictures / "neighbours.png", title, columns=settings.count + 1)


def _data_sets(ledger: Ledger, settings: Settings, seeds: int) -> list[Row]:
    """Distances between data-set vectors under LeNet-5: halves of one set, and one set against another."""
    names = ("mnist", "fashion_mnist", "svhn")

    def measure(settings: Settings, seed: int) -> dict[str, float]:
        network, _ = trained(Classifier())
        model = Classifier().model(network)
        vectors: dict[str, list[nfk.DatasetVector]] = {}
        for name in names:
            images = draw(load(name, "train"), settings.images, seed).images
            images = images if name != "svhn" else images.mean(axis=3, keepdims=True)[:, 2:30, 2:30]
            vectors[name] = [nfk.dataset_vector(model, images[part::2]) for part in (0, 1)]
        inside = {f"{name}, two halves": halves[0].distance(halves[1]) for name, halves in vectors.items()}
        pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
        return inside | {f"{a} and {b}": vectors[a][0].distance(vectors[b][0]) for a, b in pairs}

    found = [ledger.once(f"data sets, seed {seed}", measure, settings, seed) for seed in range(seeds)]
    metric = "distance of data-set vectors"
    facts = dict(network="LeNet-5 trained on mnist", examples=settings.images // 2)
    return [row(name, [one[name] for one in found], metric=metric, data=name, **facts) for name in found[0]]
