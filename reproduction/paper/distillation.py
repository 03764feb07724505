"""Distillation: a WRN-16-2 that others trained (94.0 %) teaches a WRN-16-1 on CIFAR-10, every method by one recipe.

Examples are some training images and their mirror images, so that what the teacher says of both can be computed once.
The weight of each method is chosen on a fifth of them, held out, by shorter trainings. The teacher itself was trained
on all 50,000 training images.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA

import nfk
from nfk.tasks import embedding_targets, probe_by_rank
from reproduction import figures
from reproduction.data import Split, cifar10
from reproduction.distillation.contents import held
from reproduction.distillation.looking import look, look_at_all
from reproduction.distillation.methods import METHODS, Weights, build
from reproduction.distillation.teaching import Lessons, Lookers, Recipe, correct, taught
from reproduction.paper.critics import few_inputs
from reproduction.paper.rehearsal import Fit
from reproduction.pretrained import Pretrained, load
from reproduction.tasks.ledger import Ledger, Row, row

TEACHER = "cifar10-wrn-16-2-a"
Lend = Callable[[], Lessons]  # made when they are wanted


@dataclass(frozen=True)
class Settings:
    images: int = 10_000  # training images, and as many mirror images
    tested: int = 10_000
    probed: int = 2_000  # test images of the probe against k
    fitted: int = 2_000  # training images of the basis
    rank: int = 64
    target: int = 20  # components that a student learns
    ranks: tuple[int, ...] = (1, 2, 3, 5, 7, 9, 12, 16, 20, 32, 64)
    epochs: int = 3
    trial_epochs: int = 2  # of the trainings that choose a weight
    seeds: int = 2
    methods: tuple[str, ...] = ("no teacher", "NFKD", "KD", "FitNet")
    once: tuple[str, ...] = ("FitNet",)  # methods of which one student is trained, by the first seed
    compiled: bool = True
    memory: str = "3GB"


PRESETS = {
    "smoke": Settings(
        images=160, tested=40, probed=40, fitted=30, rank=20, ranks=(1, 20), epochs=1, trial_epochs=1, seeds=1,
        methods=("no teacher", "NFKD"), compiled=False,
    ),
    "cpu": Settings(),
    "paper": Settings(
        images=50_000, probed=10_000, fitted=50_000, epochs=250, trial_epochs=50, seeds=5,
        methods=tuple(METHODS), once=(),
    ),
}  # fmt: skip
SMALLER = (
    "Students see 10,000 training images and their mirror images in three epochs (the paper: 50,000, 250 epochs), so "
    "their level is far below the paper's; the order of the methods is what can be compared.",
    "Two seeds, of FitNet one; AT, NST, VID, NFKD's variants and the PCA target are not trained yet at this size.",
    "The weight of each method is chosen among three by one training of two epochs over 8,000 of the images, on the "
    "other 2,000.",
)


def fits(settings: Settings) -> Iterator[Fit]:
    """The teacher's basis."""
    found = load(TEACHER)
    yield Fit(f"{TEACHER}, rank {settings.rank}", found.model(), few_inputs(found), settings.fitted, settings.rank)


@dataclass(frozen=True)
class Teacher:
    """The settings that the teacher's embedding and outputs depend on: more seeds do not change them."""

    images: int
    probed: int
    fitted: int
    rank: int
    memory: str


def run(ledger: Ledger, pictures: Path, settings: Settings) -> list[Row]:
    """What the teacher says of all images is computed only where a measurement still wants it."""
    found, train, test = load(TEACHER), *_examples(settings)
    about = Teacher(settings.images, settings.probed, settings.fitted, settings.rank, settings.memory)
    told = cache(lambda: ledger.arrays("teacher", _said, about, ledger, found, train, test))
    lessons = cache(lambda: _lessons(settings, found, train, told()))
    rows = _contents(ledger, settings, about, found, train)
    rows += _probes(ledger, settings, about, told, train, test, pictures)
    classroom = Classroom(ledger, settings, lessons, found, test)
    chosen = {name: classroom.weights(name) for name in settings.methods}
    return rows + classroom.trials() + classroom.students(chosen)


def _examples(settings: Settings) -> tuple[Split, Split]:
    """Training images in an order of their own, always the same; the first test images."""
    train, test = cifar10("train"), cifar10("test")
    order = np.random.default_rng(0).permutation(len(train))
    return train.take(order[: settings.images]), test.take(slice(settings.tested))


def _fitted(about: Teacher, ledger: Ledger, found: Pretrained, train: Split) -> nfk.Embedding:
    """The teacher's basis; saved, and read again by a second call."""
    folder, model = ledger.folder / f"teacher-{about.fitted}-{about.rank}", found.model()
    if any(folder.glob("*.json")):
        return nfk.load(folder, model)
    inputs = found.inputs(train.images[: about.fitted])
    return nfk.fit(model, inputs, about.rank, memory=about.memory, save=folder)


def _said(about: Teacher, ledger: Ledger, found: Pretrained, train: Split, test: Split) -> dict[str, np.ndarray]:
    """The teacher's embedding, features and logits of both views; the embedding of test images."""
    views = [found.inputs(images) for images in (train.images, train.images[:, :, ::-1])]
    embedding = _fitted(about, ledger, found, train)
    outputs = [look_at_all(found.module, torch.as_tensor(view)) for view in views]
    return {
        "embedding": np.stack([embedding(view) for view in views]),
        "features": np.stack([features.numpy() for features, _ in outputs]),
        "logits": np.stack([logits.numpy() for _, logits in outputs]),
        "tested": embedding(found.inputs(test.images[: about.probed])),
        "singular_values": embedding.singular_values,
        "explained_variance": np.cumsum(embedding.explained_variance_ratio),
    }


def _lessons(settings: Settings, found: Pretrained, train: Split, told: dict) -> Lessons:
    flat = {name: told[name].reshape(-1, told[name].shape[-1]) for name in ("embedding", "features")}
    values, k = told["singular_values"], settings.target
    scores = PCA(k, random_state=0).fit_transform(flat["features"])
    targets = {
        "scaled": embedding_targets(flat["embedding"], values, k, "scaled"),
        "whitened": embedding_targets(flat["embedding"], values, k, "whitened"),
        "pca": scores / np.sqrt(np.mean(scores**2)),
    }
    signals = {name: torch.as_tensor(rows.reshape(2, -1, k), dtype=torch.float32) for name, rows in targets.items()}
    signals["logits"] = torch.as_tensor(told["logits"])
    return Lessons(torch.as_tensor(found.inputs(train.images)), torch.as_tensor(train.labels), signals)


def _contents(ledger: Ledger, settings: Settings, about: Teacher, found: Pretrained, train: Split) -> list[Row]:
    """How much of the teacher's features, logits and maps can be read from each target; over the basis's images."""
    measure = lambda about, target: _read(settings, about, ledger, found, train)  # noqa: E731
    made = ledger.once("what the targets hold", measure, about, settings.target)
    facts = dict(data="CIFAR-10", role="what a target holds", images=about.fitted)
    pairs = (pair.split(" -> ") for pair in made)
    return [row(a, made[f"{a} -> {b}"], metric=f"R^2 of the teacher's {b}", **facts) for a, b in pairs]


def _read(settings: Settings, about: Teacher, ledger: Ledger, found: Pretrained, train: Split) -> dict[str, Any]:
    """ "target -> wanted": shares over five random halves."""
    images = torch.as_tensor(found.inputs(train.images[: about.fitted]))
    E, k = _fitted(about, ledger, found, train).training, settings.target
    with torch.no_grad():
        seen = [look(found.module.eval(), part, True) for part in images.split(250)]
    features, logits = (torch.cat([getattr(one, part) for one in seen]).numpy() for part in ("features", "logits"))
    maps = torch.cat([one.groups[1].flatten(1) for one in seen]).numpy()
    targets = {
        f"NFKD's target, {k} components": E[:, :k], f"PCA of the features, {k}": PCA(k).fit_transform(features),
        "logits": logits, "labels": np.eye(10)[train.labels[: about.fitted]],
    }  # fmt: skip
    wanted = {"pooled features": features, "logits": logits, "maps that FitNet teaches": maps}
    return {f"{a} -> {b}": [held(targets[a], wanted[b], seed) for seed in range(5)] for a in targets for b in wanted}


class Classroom:
    """Trains students, once for each method, weight and seed, and keeps how many test images each has right."""

    def __init__(self, ledger: Ledger, settings: Settings, lessons: Lend, found: Pretrained, test: Split) -> None:
        self.ledger, self.settings, self.lessons, self.teacher = ledger, settings, lessons, found.module
        self.lookers = Lookers.of(settings.compiled)
        self.cut = settings.images - settings.images // 5
        self.test = Lessons(torch.as_tensor(found.inputs(test.images)), torch.as_tensor(test.labels), {})
        self.tried: list[Row] = []

    def weights(self, name: str) -> Weights:
        """The best of those that the method tries, on held-out training images and one seed."""
        tried = build(name, self.settings.target).tried
        part, rest = (
            (lambda: self.lessons().take(slice(self.cut))),
            (lambda: self.lessons().take(slice(self.cut, None))),
        )
        recipe = Recipe(self.settings.trial_epochs, compiled=self.settings.compiled)
        scores = [self.score(f"held out, {name}", weights, part, rest, recipe, 100, self.cut) for weights in tried]
        self.tried += [
            row(f"{name}, {weights.labels:g} labels + {weights.teacher:g} teacher", [score],
                role="choice of the weight", metric="accuracy on held-out training images", **self.facts(recipe))
            for weights, score in zip(tried, scores, strict=True)
        ]  # fmt: skip
        return tried[int(np.argmax(scores))]

    def trials(self) -> list[Row]:
        return self.tried

    def students(self, chosen: dict[str, Weights]) -> list[Row]:
        recipe = Recipe(self.settings.epochs, compiled=self.settings.compiled)
        scores: dict[str, list[float]] = {name: [] for name in chosen}
        for seed in range(self.settings.seeds):
            for name, weights in chosen.items():
                if seed and name in self.settings.once:
                    continue
                about = (self.lessons, lambda: self.test, recipe, seed, self.settings.images)
                scores[name].append(self.score(f"student, {name}", weights, *about))
        return [
            row(name, values, role="student", metric="test accuracy", label_weight=chosen[name].labels,
                teacher_weight=chosen[name].teacher, **self.facts(recipe))
            for name, values in scores.items()
        ]  # fmt: skip

    def facts(self, recipe: Recipe) -> Row:
        return {"data": "CIFAR-10", "images": self.settings.images, "epochs": recipe.epochs, "parameters": 175_066}

    def score(
        self, name: str, weights: Weights, lessons: Lend, test: Lend, recipe: Recipe, seed: int, examples: int
    ) -> float:
        """Test accuracy of one student, nought where its training diverged."""
        full = f"{name}, {weights.labels:g} + {weights.teacher:g}, {recipe.epochs} epochs, seed {seed}"
        folder = self.ledger.folder / "checkpoints" / full.replace(" ", "-").replace(",", "")

        def measure(recipe: Recipe, *recorded: int) -> dict[str, Any]:
            torch.manual_seed(seed + 1)
            method = build(name.split(", ", 1)[1], self.settings.target)
            try:
                student = taught(method, weights, lessons(), self.teacher, recipe, seed, self.lookers, folder)
            except FloatingPointError:
                return {"accuracy": 0.0, "diverged": True}
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            right = correct(student, test().images, test().labels)
            return {"accuracy": float(right.mean()), "diverged": False}

        return self.ledger.once(full, measure, recipe, examples, self.settings.target)["accuracy"]


def _probes(
    ledger: Ledger,
    settings: Settings,
    about: Teacher,
    told: Callable[[], dict],
    train: Split,
    test: Split,
    pictures: Path,
) -> list[Row]:
    """The paper's figure: a linear probe of the teacher's embedding against k."""
    ranks, part = settings.ranks, test.take(slice(settings.probed))

    def measure(about: Teacher, ranks: tuple[int, ...]) -> dict[str, Any]:
        made = probe_by_rank(told()["embedding"][0], train.labels, told()["tested"], part.labels, ranks)
        return {
            str(k): [getattr(result.accuracy, part) for part in ("value", "low", "high")] for k, result in made.items()
        }

    scores = ledger.once("probe of the teacher's embedding", measure, about, ranks)
    figures.curves(
        {"linear probe of the embedding": (ranks, [100 * scores[str(k)][0] for k in ranks])},
        pictures / "teacher-probe.png", "WRN-16-2 on CIFAR-10", "components k", "test accuracy, %",
        levels={"the teacher itself": 94.0}, logarithmic=True,
    )  # fmt: skip
    facts = dict(data="CIFAR-10", role="probe of the teacher's embedding", metric="test accuracy")
    intervals = {k: dict(low=scores[str(k)][1], high=scores[str(k)][2]) for k in ranks}
    return [row(f"k = {k}", [scores[str(k)][0]], features=k, **intervals[k], **facts) for k in ranks]
