"""Knowledge distillation: WRN-16-2 teaches WRN-10-1 on CIFAR-10 at half its resolution, every method by one recipe.

Training examples are the teacher's 10,000 images and their mirror images, so that all that the teacher says can be
computed once; no other augmentation. The embedding is fitted on 2,000 of the images and applied to all.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from sklearn.decomposition import PCA

import nfk
from nfk.lab import figures
from nfk.lab.data import Split
from nfk.lab.families.classifier import PhotoClassifier
from nfk.lab.families.trained import trained
from nfk.lab.networks import WideResNet
from nfk.lab.tasks.ledger import Ledger, Row, row
from nfk.lab.teaching import (
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
from nfk.lab.training import accuracy
from nfk.tasks import embedding_targets, probe_by_rank

RANK, FITTED, SEEDS, EPOCHS = 64, 2_000, 3, 10
TARGET = 20
RANKS = (1, 2, 3, 5, 7, 9, 12, 16, 20, 32, 64)
TESTED = 2_000

WEIGHTS = (0.1, 0.5, 0.9)  # of the labels in NFKD, to choose from


def methods(weight: float) -> list[tuple[Method, str]]:
    """Every method, and the target it takes where it takes one; `weight` is that of the labels beside an embedding."""
    ours = partial(EmbeddingTarget, label_weight=weight)
    return [
        (Alone(), ""), (ours(name="NFKD"), "scaled"), (Softened(), ""), (Hint(), ""), (Attention(), ""),
        (Selectivity(), ""), (Variational(), ""), (ours("cosine", name="NFKD, cosine"), "scaled"),
        (ours(name="NFKD, whitened"), "whitened"), (ours(name="PCA of the teacher's features, as a target"), "pca"),
    ]  # fmt: skip


def run(ledger: Ledger, pictures: Path) -> list[Row]:
    family = PhotoClassifier()
    network, _ = trained(family)
    train, test = (Split(family.examples(part), part.labels) for part in family.splits())
    train = train.take(slice(family.trained_on))
    both = Split(np.concatenate([train.images, train.images[:, :, ::-1]]), np.concatenate([train.labels] * 2))
    found = ledger.arrays("teacher", lambda: _embedded(family, network, both, test))
    teacher = Teacher.of(network, both.images)
    targets = {
        "": None,
        "scaled": embedding_targets(found["train"], found["singular_values"], TARGET, "scaled"),
        "whitened": embedding_targets(found["train"], found["singular_values"], TARGET, "whitened"),
        "pca": _unit(PCA(TARGET, random_state=0).fit_transform(teacher.signals["features"])),
    }
    own = ledger.once("teacher", lambda: {"accuracy": accuracy(network, test)})["accuracy"]
    here = ledger.once("teacher, where probed", lambda: {"accuracy": accuracy(network, test.take(slice(TESTED)))})
    rows = _probes(ledger, found, both, test, here["accuracy"], pictures)
    weight, tried = _choose_weight(ledger, both, targets["scaled"])
    rows += tried
    scores: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        for method, target in methods(weight):
            told = teacher.with_embedding(targets[target])
            score = ledger.once(f"{method.name}, seed {seed}", _student, method, told, seed, both, test)
            scores.setdefault(method.name, []).append(score["accuracy"])
    facts = dict(data="CIFAR-10, 16 x 16, 10,000 images and their mirror images", metric="test accuracy")
    rows += [row("the teacher, WRN-16-2", [own], parameters=691_674, role="teacher", **facts)]
    rows += [row(name, values, parameters=77_850, role="student", **facts) for name, values in scores.items()]
    return rows


def _embedded(family: PhotoClassifier, network: WideResNet, both: Split, test: Split) -> dict[str, np.ndarray]:
    embedding = nfk.fit(family.model(network), both.images[:FITTED], RANK)
    return {
        "train": embedding(both.images), "test": embedding(test.images[:TESTED]),
        "singular_values": embedding.singular_values, "residuals": embedding.residuals,
        "explained_variance": np.cumsum(embedding.explained_variance_ratio),
    }  # fmt: skip


def _student(method: Method, teacher: Teacher | None, seed: int, train: Split, test: Split) -> dict[str, float]:
    student = WideResNet(10, 1, rngs=nnx.Rngs(seed))
    distil(student, train.images, train.labels, method, teacher, epochs=EPOCHS, seed=seed)
    student.eval()
    return {"accuracy": accuracy(student, test)}


def _probes(ledger: Ledger, found: dict, train: Split, test: Split, own: float, pictures: Path) -> list[Row]:
    """The paper's figure: a linear probe of the teacher's embedding against k."""
    rows, labels = slice(len(train) // 2), train.labels[: len(train) // 2]

    def measure() -> dict[str, float]:
        made = probe_by_rank(found["train"][rows], labels, found["test"], test.labels[:TESTED], RANKS)
        return {str(k): result.accuracy.value for k, result in made.items()}

    scores = ledger.once("probe of the teacher's embedding", measure)
    figures.curves(
        {"linear probe of the embedding": (RANKS, [100 * scores[str(k)] for k in RANKS])},
        pictures / "teacher-probe.png", "WRN-16-2 on CIFAR-10 (16 x 16)", "components k", "test accuracy, %",
        levels={"the teacher itself": 100 * own}, logarithmic=True,
    )  # fmt: skip
    facts = dict(data="CIFAR-10, 16 x 16", role="probe of the teacher's embedding", metric="test accuracy")
    return [row(f"k = {k}", [scores[str(k)]], features=k, **facts) for k in RANKS]


def _choose_weight(ledger: Ledger, both: Split, target: Any) -> tuple[float, list[Row]]:
    """The weight of the labels in NFKD: the best on a fifth of the training images, held out, one seed."""
    half = len(both) // 2
    cut, seed = half - half // 5, 100
    kept = np.concatenate([np.arange(cut), half + np.arange(cut)])
    part, held = both.take(kept), both.take(slice(cut, half))
    teacher = Teacher.from_embedding(part.images, target[kept])
    found = {}
    for weight in WEIGHTS:
        method = EmbeddingTarget(label_weight=weight)
        score = ledger.once(f"held out, label weight {weight}", _student, method, teacher, seed, part, held)
        found[f"NFKD, label weight {weight}"] = score["accuracy"]
    best = WEIGHTS[int(np.argmax(list(found.values())))]
    found["no teacher"] = ledger.once("held out, no teacher", _student, Alone(), None, seed, part, held)["accuracy"]
    metric = "accuracy on held-out training images"
    facts = dict(data="CIFAR-10, 16 x 16", role="choice of the label weight")
    return best, [row(name, [score], metric=metric, **facts) for name, score in found.items()]


def _unit(target: np.ndarray) -> np.ndarray:
    return (target / np.sqrt(np.mean(target**2))).astype(np.float32)
