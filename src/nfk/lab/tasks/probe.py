"""Linear probes of three networks' embeddings, of the full Fisher vectors they come from, and of all controls.

A seed draws the training images, the fit's key, the random projection and the untrained network.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nfk.lab import figures
from nfk.lab.families import Family
from nfk.lab.families.classifier import Classifier
from nfk.lab.families.gan import DigitGAN, PhotoGAN
from nfk.lab.families.trained import trained
from nfk.lab.tasks.features import Pair, baselines, draw, fisher, random_projection, untrained
from nfk.lab.tasks.ledger import Ledger, Row, row
from nfk.tasks import kernel_features, probe, probe_by_rank
from nfk.tasks.linear import Loss

NAME = "probe"
RANK, MIDDLE, SEEDS = 256, 128, 3
RANKS = (2, 4, 8, 16, 32, 64, 128, 256)
FAMILIES: tuple[tuple[Family, int, int], ...] = (
    (DigitGAN(), 5_000, 5_000), (Classifier(), 5_000, 5_000), (PhotoGAN(), 3_000, 3_000),
)  # fmt: skip
FULL = "full Fisher vector"
BOTH_LOSSES: tuple[Loss, ...] = ("logistic", "squared_hinge")


def run(ledger: Ledger, pictures: Path) -> list[Row]:
    rows = []
    for family, count, tested in FAMILIES:
        found = [
            ledger.once(f"{family.label}, seed {seed}", _measure, family, count, tested, seed, ledger.say)
            for seed in range(SEEDS)
        ]
        for name in found[0]["accuracy"]:
            method, loss = name.split(" | ")
            values = [one["accuracy"][name] for one in found]
            half = np.mean([one["half_interval"][name] for one in found])
            rows.append(
                row(method, values, metric="test accuracy", network=family.network, data=family.data, loss=loss,
                    features=found[0]["features"][name], examples=count, test_examples=tested,
                    half_interval=float(half))
            )  # fmt: skip
        _picture([line for line in rows if line["network"] == family.network], family, pictures)
    return rows


def _measure(family: Family, count: int, tested: int, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    train, test = family.splits()
    train, test = draw(train, count, seed), test.take(slice(tested))
    network, _ = trained(family)
    X, X_test = family.examples(train), family.examples(test)
    embedding = fisher(family, X, RANK, seed)
    E, E_test = embedding.training, embedding(X_test)
    say(f"{family.label}: {embedding}")
    sets: dict[str, Pair] = baselines(family, network, train, test, MIDDLE, seed)
    sets[f"random projection of the Fisher vector, {MIDDLE}"] = random_projection(embedding, X, X_test, MIDDLE, seed)
    sets[f"Fisher embedding of the untrained network, {MIDDLE}"] = untrained(family, X, X_test, MIDDLE, seed)
    train_full, test_full = kernel_features(embedding.gram(X), embedding.gram(X_test, X))
    sets[FULL] = train_full, test_full
    made = {
        f"Fisher embedding, {k} | logistic": result
        for k, result in probe_by_rank(E, train.labels, E_test, test.labels, RANKS).items()
    }
    hinged = probe(E[:, :MIDDLE], train.labels, E_test[:, :MIDDLE], test.labels, loss="squared_hinge")
    made[f"Fisher embedding, {MIDDLE} | squared_hinge"] = hinged
    for name, (a, b) in sets.items():
        for loss in BOTH_LOSSES:
            made[f"{name} | {loss}"] = probe(a, train.labels, b, test.labels, loss=loss)
    features = {name: result.features for name, result in made.items()}
    features |= {f"{FULL} | {loss}": embedding.model.layout.size for loss in BOTH_LOSSES}
    return {
        "accuracy": {name: result.accuracy.value for name, result in made.items()},
        "half_interval": {name: (r.accuracy.high - r.accuracy.low) / 2 for name, r in made.items()},
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
