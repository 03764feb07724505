"""Nearest neighbours of test digits, and data sets as vectors.

The ten nearest of some thousand training images, by cosine. A seed draws those images, the fit's key, the random
projection and the untrained network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import nfk
from nfk.lab import figures
from nfk.lab.data import load
from nfk.lab.families import Family
from nfk.lab.families.classifier import Classifier
from nfk.lab.families.gan import DigitGAN
from nfk.lab.families.trained import trained
from nfk.lab.tasks.features import compared, draw, fisher
from nfk.lab.tasks.ledger import Ledger, Row, row
from nfk.tasks import nearest, retrieval

RANK, SEEDS, COUNT, QUERIES = 64, 3, 10, 2_000
FAMILIES: tuple[tuple[Family, int], ...] = ((DigitGAN(), 5_000), (Classifier(), 3_000))
PRECISION, VOTE = "precision of 10 neighbours", "accuracy of their vote"


def run(ledger: Ledger, pictures: Path) -> list[Row]:
    rows = []
    for family, reference in FAMILIES:
        found = [
            ledger.once(f"{family.label}, seed {seed}", _measure, family, reference, seed, ledger.folder.parent)
            for seed in range(SEEDS)
        ]
        for name in found[0]["precision"]:
            facts = dict(network=family.network, data=family.data, examples=reference, test_examples=QUERIES)
            rows.append(row(name, [one["precision"][name] for one in found], metric=PRECISION, **facts))
            rows.append(row(name, [one["accuracy"][name] for one in found], metric=VOTE, **facts))
    _picture(pictures)
    return rows + _data_sets(ledger)


def _measure(family: Family, reference: int, seed: int, runs: Path) -> dict[str, Any]:
    data = compared(family, reference, 5_000, 256, 128, seed, runs)  # the files of the probe
    labels, query_labels = data.train.labels, data.test.labels[:QUERIES]
    made = {}
    for name, (a, b) in data.sets.items():
        words, _, number = name.rpartition(", ")
        width = RANK if number.isdigit() else a.shape[1]  # the first components are those of a smaller fit
        short = f"{words}, {RANK}" if number.isdigit() else name
        made[short] = retrieval(a[:, :width], labels, b[:QUERIES, :width], query_labels, COUNT)
    return {
        "precision": {name: result.precision.value for name, result in made.items()},
        "accuracy": {name: result.accuracy.value for name, result in made.items()},
        "fisher": made[f"Fisher embedding, {RANK}"].precision.value,
    }


def _picture(pictures: Path) -> None:
    family = DigitGAN()
    train, test = family.splits()
    train, test = draw(train, FAMILIES[0][1], 0), test.take(slice(12))
    embedding = fisher(family, train.images, RANK, 0)
    found = nearest(embedding.training, embedding(test.images), COUNT)
    shown = np.concatenate([np.concatenate([test.images[i : i + 1], train.images[found.rows[i]]]) for i in range(12)])
    title = "test digits (first column) and their ten nearest, DCGAN"
    figures.grid(shown, pictures / "neighbours.png", title, columns=COUNT + 1)


def _data_sets(ledger: Ledger) -> list[Row]:
    """Distances between data-set vectors under LeNet-5: halves of one set, and one set against another."""
    names = ("mnist", "fashion_mnist", "svhn")

    def measure(seed: int) -> dict[str, float]:
        network, _ = trained(Classifier())
        model = Classifier().model(network)
        vectors: dict[str, list[nfk.DatasetVector]] = {}
        for name in names:
            images = draw(load(name, "train"), 2_000, seed).images
            images = images if name != "svhn" else images.mean(axis=3, keepdims=True)[:, 2:30, 2:30]
            vectors[name] = [nfk.dataset_vector(model, images[part::2]) for part in (0, 1)]
        inside = {f"{name}, two halves": halves[0].distance(halves[1]) for name, halves in vectors.items()}
        pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
        return inside | {f"{a} and {b}": vectors[a][0].distance(vectors[b][0]) for a, b in pairs}

    found = [ledger.once(f"data sets, seed {seed}", measure, seed) for seed in range(SEEDS)]
    metric, facts = "distance of data-set vectors", dict(network="LeNet-5 trained on mnist", examples=1_000)
    return [row(name, [one[name] for one in found], metric=metric, data=name, **facts) for name in found[0]]
