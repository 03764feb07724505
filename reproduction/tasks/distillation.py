"""Knowledge distillation: WRN-16-2 teaches WRN-10-1 on CIFAR-10 at half its resolution, every method by one recipe.

Training examples are the teacher's 10,000 images and their mirror images, so that all that the teacher says can be
computed once; no other augmentation. The embedding is fitted on 2,000 of the images and applied to all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from sklearn.decomposition import PCA

import nfk
from nfk.tasks import embedding_targets, probe_by_rank
from reproduction import figures
from reproduction.data import Split
from reproduction.families.classifier import PhotoClassifier
from reproduction.families.trained import trained
from reproduction.networks import WideResNet
from reproduction.tasks.ledger import Ledger, Row, row
from reproduction.teaching import (
    Alone,
    Attention,
    EmbeddingTarget,
    Hint,
    Method,
    Selectivity,
    Softened,
    Teacher,
    Variational,
    distil,
)
from reproduction.training import accuracy


@dataclass(frozen=True)
class Settings:
    rank: int = 64
    fitted: int = 2_000
    epochs: int = 10
    target: int = 20  # components that the student learns
    ranks: tuple[int, ...] = (1, 2, 3, 5, 7, 9, 12, 16, 20, 32, 64)  # of the probes
    tested: int = 2_000
    weights: tuple[float, ...] = (0.1, 0.5, 0.9)  # of the labels in NFKD, to choose from


SETTINGS = Settings()


def methods(weight: float) -> list[tuple[Method, str]]:
    """Every method, and the target it takes where it takes one; `weight` is that of the labels beside an embedding."""
    ours = partial(EmbeddingTarget, label_weight=weight)
    return [
        (Alone(), ""), (ours(name="NFKD"), "scaled"), (Softened(), ""), (Hint(), ""), (Attention(), ""),
        (Selectivity(), ""), (Variational(), ""), (ours("cosine", name="NFKD, cosine"), "scaled"),
        (ours(name="NFKD, whitened"), "whitened"), (ours(name="PCA of the teacher's features, as a target"), "pca"),
    ]  # fmt: skip


def run(ledger: Ledger, pictures: Path, settings: Settings = SETTINGS, seeds: int = 3) -> list[Row]:
    family = PhotoClassifier()
    network, _ = trained(family)
    train, test = (Split(family.examples(part), part.labels) for part in family.splits())
    train = train.take(slice(family.trained_on))
    both = Split(np.concatenate([train.images, train.images[:, :, ::-1]]), np.concatenate([train.labels] * 2))
    found = ledger.arrays("teacher", _embedded, settings, family, network, both, test)
    teacher = Teacher.of(network, both.images)
    targets = _targets(settings, found, teacher)
    own = ledger.once("teacher", _accuracy, settings, network, test)["accuracy"]
    part = test.take(slice(settings.tested))
    here = ledger.once("teacher, where probed", _accuracy, settings, network, part)["accuracy"]
    rows = _probes(ledger, settings, found, both, test, here, pictures)
    weight, tried = _choose_weight(ledger, settings, both, targets["scaled"])
    rows += tried
    scores: dict[str, list[float]] = {}
    for seed in range(seeds):
        for method, target in methods(weight):
            told = teacher.with_embedding(targets[target])
            name = f"{method.name}, label weight {method.label_weight}, seed {seed}"
            score = ledger.once(name, _student, settings, method, told, seed, both, test)
            scores.setdefault(method.name, []).append(score["accuracy"])
    facts = dict(data="CIFAR-10, 16 x 16, 10,000 images and their mirror images", metric="test accuracy")
    rows += [row("the teacher, WRN-16-2", [own], parameters=691_674, role="teacher", **facts)]
    rows += [row(name, values, parameters=77_850, role="student", **facts) for name, values in scores.items()]
    return rows


def _embedded(
    settings: Settings, family: PhotoClassifier, network: WideResNet, both: Split, test: Split
) -> dict[str, np.ndarray]:
    embedding = nfk.fit(family.model(network), both.images[: settings.fitted], settings.rank)
    return {
        "train": embedding(both.images), "test": embedding(test.images[: settings.tested]),
        "singular_values": embedding.singular_values, "residuals": embedding.residuals,
        "explained_variance": np.cumsum(embedding.explained_variance_ratio),
    }  # fmt: skip


def _targets(settings: Settings, found: dict, teacher: Teacher) -> dict[str, Any]:
    values, rank = found["singular_values"], settings.target
    return {
        "": None,
        "scaled": embedding_targets(found["train"], values, rank, "scaled"),
        "whitened": embedding_targets(found["train"], values, rank, "whitened"),
        "pca": _unit(PCA(rank, random_state=0).fit_transform(teacher.signals["features"])),
    }


def _accuracy(_: Settings, network: WideResNet, test: Split) -> dict[str, float]:
    return {"accuracy": accuracy(network, test)}


def _student(
    settings: Settings, method: Method, teacher: Teacher | None, seed: int, train: Split, test: Split
) -> dict[str, float]:
    student = WideResNet(10, 1, rngs=nnx.Rngs(seed))
    distil(student, train.images, train.labels, method, teacher, epochs=settings.epochs, seed=seed)
    student.eval()
    return {"accuracy": accuracy(student, test)}


def _probes(
    ledger: Ledger, settings: Settings, found: dict, train: Split, test: Split, own: float, pictures: Path
) -> list[Row]:
    """The paper's figure: a linear probe of the teacher's embedding against k."""
    rows, labels = slice(len(train) // 2), train.labels[: len(train) // 2]
    ranks = settings.ranks

    def measure(settings: Settings) -> dict[str, float]:
        made = probe_by_rank(found["train"][rows], labels, found["test"], test.labels[: settings.tested], ranks)
        return {str(k): result.accuracy.value for k, result in made.items()}

    scores = ledger.once("probe of the teacher's embedding", measure, settings)
    figures.curves(
        {"linear probe of the embedding": (ranks, [100 * scores[str(k)] for k in ranks])},
        pictures / "teacher-probe.png", "WRN-16-2 on CIFAR-10 (16 x 16)", "components k", "test accuracy, %",
        levels={"the teacher itself": 100 * own}, logarithmic=True,
    )  # fmt: skip
    facts = dict(data="CIFAR-10, 16 x 16", role="probe of the teacher's embedding", metric="test accuracy")
    return [row(f"k = {k}", [scores[str(k)]], features=k, **facts) for k in ranks]


def _choose_weight(ledger: Ledger, settings: Settings, both: Split, target: Any) -> tuple[float, list[Row]]:
    """The weight of the labels in NFKD: the best on a fifth of the training images, held out, one seed."""
    half = len(both) // 2
    cut, seed = half - half // 5, 100
    kept = np.concatenate([np.arange(cut), half + np.arange(cut)])
    part, held = both.take(kept), both.take(slice(cut, half))
    teacher = Teacher.from_embedding(part.images, target[kept])

    def score(name: str, method: Method, teacher: Teacher | None) -> float:
        return ledger.once(f"held out, {name}", _student, settings, method, teacher, seed, part, held)["accuracy"]

    found = {
        f"NFKD, label weight {weight}": score(f"label weight {weight}", EmbeddingTarget(label_weight=weight), teacher)
        for weight in settings.weights
    }
    best = settings.weights[int(np.argmax(list(found.values())))]
    found["no teacher"] = score("no teacher", Alone(), None)
    metric = "accuracy on held-out training images"
    facts = dict(data="CIFAR-10, 16 x 16", role="choice of the label weight")
    return best, [row(name, [score], metric=metric, **facts) for name, score in found.items()]


def _unit(target: np.ndarray) -> np.ndarray:
    return (target / np.sqrt(np.mean(target**2))).astype(np.float32)
