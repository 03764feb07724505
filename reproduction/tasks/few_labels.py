"""Few labels on MNIST: the basis from all 60,000 training images without labels, a linear classifier on a few.

Protocol: 100 to 4,000 labels, equally many of each class, five draws, the regularisation by cross-validation within
the labelled images, accuracy on all 10,000 test images.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nfk.tasks import few_labels
from reproduction import figures
from reproduction.families import Family
from reproduction.families.gan import DigitGAN
from reproduction.families.trained import trained
from reproduction.tasks.features import Pair, baselines, fisher, untrained
from reproduction.tasks.ledger import Ledger, Row, row


@dataclass(frozen=True)
class Settings:
    rank: int = 128
    budgets: tuple[int, ...] = (100, 250, 500, 1000, 2000, 4000)
    draws: int = 5


SETTINGS = Settings()


def run(ledger: Ledger, pictures: Path, settings: Settings = SETTINGS) -> list[Row]:
    rank, budgets = settings.rank, settings.budgets
    gan = DigitGAN()
    train, test = gan.splits()
    network, _ = trained(gan)
    sets = {
        f"Fisher embedding, {rank}": _embedded(ledger, settings, gan),
        f"Fisher embedding of the untrained network, {rank}": _untrained(ledger, settings, gan),
    }
    for name, pair in baselines(gan, network, train, test, rank).items():
        sets["activations of the critic" if name == "activations" else name] = pair
    rows, lines = [], {}
    for name, (features, new) in sets.items():
        scores = ledger.once(name, _accuracies, settings, features, train.labels, new, test.labels)
        made = [
            row(name, scores[str(budget)], labels=budget, features=features.shape[1], data="mnist",
                metric="test accuracy")
            for budget in budgets
        ]  # fmt: skip
        rows += made
        mean, spread = (np.array([100 * line[key] for line in made]) for key in ("mean", "spread"))
        lines[name] = (budgets, mean, spread)
    figures.curves(
        lines, pictures / "accuracy.png", "MNIST: a basis from 60,000 images, a classifier from a few labels",
        "labels", "test accuracy, %", logarithmic=True,
    )  # fmt: skip
    return rows


def _accuracies(
    settings: Settings, features: np.ndarray, labels: np.ndarray, new: np.ndarray, new_labels: np.ndarray
) -> dict[str, list]:
    results = few_labels(features, labels, new, new_labels, settings.budgets, seeds=settings.draws)
    return {str(result.budget): list(result.accuracy.values) for result in results}


def _embedded(ledger: Ledger, settings: Settings, family: Family) -> Pair:
    def make(settings: Settings) -> dict[str, np.ndarray]:
        embedding = fisher(family, train, settings.rank, seed=0)
        return {"train": embedding.training, "test": embedding(test)}

    train, test = (family.examples(part) for part in family.splits())
    found = ledger.arrays("trained", make, settings)
    return found["train"], found["test"]


def _untrained(ledger: Ledger, settings: Settings, family: Family) -> Pair:
    def make(settings: Settings) -> dict[str, np.ndarray]:
        return dict(zip(("train", "test"), untrained(family, train, test, settings.rank, 0), strict=True))

    train, test = (family.examples(part) for part in family.splits())
    found = ledger.arrays("untrained", make, settings)
    return found["train"], found["test"]
