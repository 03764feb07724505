"""Table 2: few labels. Features from critics that others trained, without any label; a linear classifier on a few.

Equally many labels of each class, five draws of them, the strength by cross-validation within the labelled images,
accuracy on all test images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from nfk.tasks import few_labels
from reproduction import figures
from reproduction.data import Split, load
from reproduction.paper.critics import Fisher, activations, embedded, few_inputs
from reproduction.paper.rehearsal import Fit
from reproduction.pretrained import NETWORKS
from reproduction.pretrained import load as load_network
from reproduction.tasks.ledger import Ledger, Row, row

Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Settings:
    sets: tuple[tuple[str, int, int], ...] = (("cifar10", 10_000, 10_000), ("svhn", 10_000, 5_000))  # images
    critics: tuple[tuple[str, int], ...] = (  # the first one for images of another data set, too
        ("cifar10-dcgan-critic", 512), ("cifar10-dcgan-critic-wide", 256),  # with the rank of its basis
    )  # fmt: skip
    used: int = 256  # components that the classifier sees
    fitted: int = 2_000
    samples: int = 4_096
    budgets: tuple[int, ...] = (500, 1_000, 2_000, 4_000)
    draws: int = 5
    strengths: tuple[float, ...] = (1e-3, 0.01, 0.1, 1.0)


PRESETS = {
    "smoke": Settings(sets=(("mnist", 120, 60),), critics=(("mnist-gan-critic", 16),), used=16, fitted=50, samples=16,
                      budgets=(20, 50), draws=2),
    "cpu": Settings(),
    "paper": Settings(sets=(("cifar10", 50_000, 10_000), ("svhn", 73_257, 26_032)), fitted=50_000),
}  # fmt: skip
SMALLER = (
    "The basis is fitted on 2,000 images without labels (the paper: all). Labels are drawn among the first 10,000 "
    "training images; 10,000 test images of CIFAR-10, the first 5,000 of SVHN.",
    "SVHN has a critic that was trained on CIFAR-10, not on SVHN; its basis is fitted on SVHN images. The second "
    "critic (`-wide`) has no generator: its moments are over the data.",
    "The paper compares with semi-supervised networks (MixMatch and others), which train on the images without labels; "
    "here are features of the same critic instead.",
)


def fits(settings: Settings) -> Iterator[Fit]:
    """The bases, as they are fitted."""
    for data, *_ in settings.sets:
        for fisher in _fishers(settings, data):
            few = few_inputs(fisher.network, data)
            yield Fit(f"{fisher.critic}, {data}", fisher.model, few, fisher.fitted, fisher.rank)


def run(ledger: Ledger, pictures: Path, settings: Settings) -> Iterator[Row]:
    for data, *counts in settings.sets:
        splits = [load(data, split).take(slice(count)) for split, count in zip(("train", "test"), counts, strict=True)]
        made = []
        for method, network, features in _sets(ledger, settings, data, *splits):
            made += _rows(ledger, settings, data, method, network, features, *splits)
            yield from made[-len(settings.budgets) :]
        _picture(made, settings, data, pictures)


def _sets(
    ledger: Ledger, settings: Settings, data: str, train: Split, test: Split
) -> list[tuple[str, str, Callable[[], Pair]]]:
    """Method, network, and the features of all training and test images when they are asked for."""
    shared = Ledger("linear-probe", ledger.folder.parent, ledger.say)  # which embeds the same images

    def ours(fisher: Fisher) -> Pair:
        parts = (("train", train), ("test", test))
        a, b = (embedded(fisher, shared, train, part.images, name)[:, : settings.used] for name, part in parts)
        return a, b

    def theirs(critic: str, kind: str) -> Pair:
        a, b = (activations(load_network(critic), part.images)[kind] for part in (train, test))
        return a, b

    made: list[tuple[str, str, Callable[[], Pair]]] = []
    for fisher in _fishers(settings, data):
        made.append((f"Fisher embedding, {settings.used}", fisher.critic, partial(ours, fisher)))
        for kind in ("all layers, means", "last layer, in full"):
            made.append((f"activations: {kind}", fisher.critic, partial(theirs, fisher.critic, kind)))
    made.append((f"PCA of the pixels, {settings.used}", "-", lambda: _principal(train, test, settings.used)))
    return made


def _fishers(settings: Settings, data: str) -> list[Fisher]:
    """Of critics of these images the bases that `linear-probe` has; where there is none, the first one, as needed."""
    own = [(critic, rank) for critic, rank in settings.critics if NETWORKS[critic].data == data]
    several = own or [(settings.critics[0][0], settings.used)]
    return [Fisher(critic, rank, settings.fitted, data, settings.samples, used=rank) for critic, rank in several]


@dataclass(frozen=True)
class Drawn:
    """What an accuracy depends on, beside its name: the draws, and where features and labels come from."""

    draws: int
    strengths: tuple[float, ...]
    source: str
    images: int
    tested: int


def _principal(train: Split, test: Split, rank: int) -> Pair:
    a, b = (part.images.reshape(len(part), -1) for part in (train, test))
    fitted = PCA(min(rank, len(a) - 1), random_state=0, svd_solver="randomized").fit(a)
    return fitted.transform(a), fitted.transform(b)


def _rows(
    ledger: Ledger, settings: Settings, data: str, method: str, network: str, features: Callable[[], Pair],
    train: Split, test: Split,
) -> list[Row]:  # fmt: skip
    """A row for each budget; the features are made only where something is still to be measured."""
    kept: dict[str, Pair] = {}
    names = {fisher.critic: fisher.name for fisher in _fishers(settings, data)}
    source = names[network] if method.startswith("Fisher") else method
    about = Drawn(settings.draws, settings.strengths, source, len(train), len(test))

    def measure(about: Drawn, budget: int) -> dict[str, Any]:
        if not kept:
            kept["features"] = features()
        a, b = kept["features"]
        (found,) = few_labels(a, train.labels, b, test.labels, (budget,), seeds=about.draws, strengths=about.strengths)
        return {"values": list(found.accuracy.values), "strengths": list(found.strengths), "features": a.shape[1]}

    made = []
    for budget in settings.budgets:
        found = ledger.once(f"{data}, {network}: {method}, {budget} labels", measure, about, budget)
        facts = {key: found[key] for key in ("strengths", "features")}
        made.append(
            row(method, found["values"], metric="test accuracy", network=network, data=data, labels=budget,
                tested=len(test), **facts)
        )  # fmt: skip
    return made


def _picture(rows: list[Row], settings: Settings, data: str, pictures: Path) -> None:
    lines = {}
    for name in dict.fromkeys((line["network"], line["method"]) for line in rows):
        mine = [line for line in rows if (line["network"], line["method"]) == name]
        mean, spread = ([100 * line[key] for line in mine] for key in ("mean", "spread"))
        title = name[1] if name[0] == "-" else f"{name[1]} ({name[0].removeprefix('cifar10-')})"
        lines[title] = (settings.budgets, mean, spread)
    figures.curves(
        lines, pictures / f"{data}.png", f"{data}: features without labels, a classifier from a few", "labels",
        "test accuracy, %", logarithmic=True,
    )  # fmt: skip
