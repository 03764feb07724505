"""Linear probes of three networks' embeddings, of the full Fisher vectors they come from, and of all controls.

A seed draws the training images, the fit's key, the random projection and the untrained network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nfk.lab import figures
from nfk.lab.families import Family
from nfk.lab.families.classifier import Classifier
from nfk.lab.families.gan import DigitGAN, PhotoGAN
from nfk.lab.tasks.features import FULL, compared
from nfk.lab.tasks.ledger import Ledger, Row, row
from nfk.tasks import probe, probe_by_rank
from nfk.tasks.linear import Loss

RANK, MIDDLE, SEEDS = 256, 128, 3
RANKS = (2, 4, 8, 16, 32, 64, 128, 256)
FAMILIES: tuple[tuple[Family, int, int], ...] = (
    (DigitGAN(), 5_000, 5_000), (Classifier(), 3_000, 5_000), (PhotoGAN(), 2_000, 2_000),
)  # fmt: skip
BOTH_LOSSES: tuple[Loss, ...] = ("logistic", "squared_hinge")


def run(ledger: Ledger, pictures: Path) -> list[Row]:
    rows = []
    for family, count, tested in FAMILIES:
        found = [
            ledger.once(f"{family.label}, seed {seed}", _measure, family, count, tested, seed, ledger.folder.parent)
            for seed in range(SEEDS)
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
        _picture([line for line in rows if line["network"] == family.network], family, pictures)
    return rows


def _measure(family: Family, count: int, tested: int, seed: int, runs: Path) -> dict[str, Any]:
    data = compared(family, count, tested, RANK, MIDDLE, seed, runs)
    labels, test_labels = data.train.labels, data.test.labels
    E, E_test = data.sets.pop(f"Fisher embedding, {RANK}")
    made = {
        f"Fisher embedding, {k} | logistic": result
        for k, result in probe_by_rank(E, labels, E_test, test_labels, RANKS).items()
    }
    hinged = probe(E[:, :MIDDLE], labels, E_test[:, :MIDDLE], test_labels, loss="squared_hinge")
    made[f"Fisher embedding, {MIDDLE} | squared_hinge"] = hinged
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
        "features": features, "fisher": made[f"Fisher embedding, {MIDDLE} | logistic"].accuracy.value,
        "full": made[f"{FULL} | logistic"].accuracy.value,
    }  # fmt: skip


def _picture(rows: list[Row], family: Family, pictures: Path) -> None:
    """The paper's appendix figure: accuracy against k, from one fit."""
    logistic = {line["method"]: line for line in rows if line["loss"] == "logistic"}
    by_rank = [logistic[f"Fisher embedding, {k}"] for k in RANKS]
    mean, spread = (np.array([100 * line[key] for line in by_rank]) for key in ("mean", "spread"))
    levels = {name: 100 * line["mean"] for name, line in logistic.items() if not name.startswith("Fisher embedding, ")}
    figures.curves(
        {"Fisher embedding": (RANKS, mean, spread)}, pictures / f"{family.label}.png",
        f"{family.network}, {family.data}", "components k", "test accuracy, %", levels, logarithmic=True,
    )  # fmt: skip
