"""Linear probes of three networks' embeddings, of the full Fisher vectors they come from, and of all controls.

A seed draws the training images, the fit's key, the random projection and the untrained network.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nfk.tasks import probe, probe_by_rank
from nfk.tasks.linear import Loss
from reproduction import figures
from reproduction.families import Family
from reproduction.families.classifier import Classifier
from reproduction.families.gan import DigitGAN, PhotoGAN
from reproduction.tasks.features import FULL, Sizes, compared
from reproduction.tasks.ledger import Ledger, Row, row

Families = tuple[tuple[Family, int, int], ...]  # a network, its training and its test examples
FAMILIES: Families = ((DigitGAN(), 5_000, 5_000), (Classifier(), 3_000, 5_000), (PhotoGAN(), 2_000, 2_000))
BOTH_LOSSES: tuple[Loss, ...] = ("logistic", "squared_hinge")


@dataclass(frozen=True)
class Settings:
    rank: int = 256
    middle: int = 128  # the rank that is set beside the controls, which have as many features
    ranks: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128, 256)


SETTINGS = Settings()


def run(
    ledger: Ledger, pictures: Path, settings: Settings = SETTINGS, families: Families = FAMILIES, seeds: int = 3
) -> list[Row]:
    rows, runs = [], ledger.folder.parent
    for family, count, tested in families:
        found = [
            ledger.once(f"{family.label}, seed {seed}", _measure, settings, family, count, tested, seed, runs)
            for seed in range(seeds)
        ]
        for name in found[0]["accuracy"]:
            method, loss = name.split(" | ")
            values = [one["accuracy"][name] for one in found]
            half = np.mean([one["half_interval"][name] for one in found])
            strengths = [one["strength"][name] for one in found]
            converged = all(one["converged"][name] for one in found)
            rows.append(
                row(method, values, metric="test accuracy", network=family.network, data=family.data, loss=loss,
                    features=found[0]["features"][name], examples=count, test_examples=tested,
                    half_interval=float(half), strengths=strengths, converged=converged)
            )  # fmt: skip
        _picture([line for line in rows if line["network"] == family.network], settings.ranks, family, pictures)
    return rows


def _measure(settings: Settings, family: Family, count: int, tested: int, seed: int, runs: Path) -> dict[str, Any]:
    rank, middle = settings.rank, settings.middle
    data = compared(family, Sizes(count, tested, rank, middle), seed, runs)
    labels, test_labels = data.train.labels, data.test.labels
    E, E_test = data.sets.pop(f"Fisher embedding, {rank}")
    made = {
        f"Fisher embedding, {k} | logistic": result
        for k, result in probe_by_rank(E, labels, E_test, test_labels, settings.ranks).items()
    }
    hinged = probe(E[:, :middle], labels, E_test[:, :middle], test_labels, loss="squared_hinge")
    made[f"Fisher embedding, {middle} | squared_hinge"] = hinged
    for name, (a, b) in data.sets.items():
        for loss in BOTH_LOSSES:
            made[f"{name} | {loss}"] = probe(a, labels, b, test_labels, loss=loss)
    features = {name: result.features for name, result in made.items()}
    features |= {f"{FULL} | {loss}": data.parameters for loss in BOTH_LOSSES}
    return {
        "accuracy": {name: result.accuracy.value for name, result in made.items()},
        "half_interval": {name: (r.accuracy.high - r.accuracy.low) / 2 for name, r in made.items()},
        "strength": {name: result.strength for name, result in made.items()},
        "converged": {name: result.classifier.converged for name, result in made.items()},
        "features": features, "fisher": made[f"Fisher embedding, {middle} | logistic"].accuracy.value,
        "full": made[f"{FULL} | logistic"].accuracy.value,
    }  # fmt: skip


def _picture(rows: list[Row], ranks: tuple[int, ...], family: Family, pictures: Path) -> None:
    """The paper's appendix figure: accuracy against k, from one fit."""
    logistic = {line["method"]: line for line in rows if line["loss"] == "logistic"}
    by_rank = [logistic[f"Fisher embedding, {k}"] for k in ranks]
    mean, spread = (np.array([100 * line[key] for line in by_rank]) for key in ("mean", "spread"))
    levels = {name: 100 * line["mean"] for name, line in logistic.items() if not name.startswith("Fisher embedding, ")}
    figures.curves(
        {"Fisher embedding": (ranks, mean, spread)}, pictures / f"{family.label}.png",
        f"{family.network}, {family.data}", "components k", "test accuracy, %", levels, logarithmic=True,
    )  # fmt: skip
