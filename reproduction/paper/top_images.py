"""The images at either end of the leading components, for critics that others trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import nfk
from nfk.tasks import Estimate, proportion
from reproduction import figures
from reproduction.data import load as images_of
from reproduction.paper.critics import few_inputs
from reproduction.paper.rehearsal import Fit
from reproduction.paper.runner import single
from reproduction.pretrained import load
from reproduction.tasks.ledger import Ledger, Row

CRITICS = ("cifar10-dcgan-critic", "mnist-wgan-gp-critic")


@dataclass(frozen=True)
class Settings:
    critics: tuple[str, ...] = CRITICS
    fitted: int = 1_000
    images: int = 3_000  # among which the ends are looked for
    components: int = 8
    shown: int = 10
    memory: str = "3GB"


PRESETS = {
    "smoke": Settings(critics=CRITICS[1:], fitted=80, images=100, components=2, shown=4),
    "cpu": Settings(),
    "paper": Settings(fitted=50_000, images=50_000),
}
SMALLER = ("The basis comes from 1,000 training images, and the ends are looked for among 3,000.",)
METRIC = "share of the most frequent class among the images at one end"


def fits(settings: Settings) -> Iterator[Fit]:
    """The bases, with either kind of moments."""
    for name in settings.critics:
        critic = load(name)
        for over in ("data", "model"):
            model = critic.model(expectation=over)
            yield Fit(
                f"{name}, moments over the {over}", model, few_inputs(critic), settings.fitted, settings.components
            )


def run(ledger: Ledger, pictures: Path, settings: Settings) -> list[Row]:
    rows = []
    for name in settings.critics:
        for centre in ("data", "model"):
            kept = ledger.arrays(f"{name}, moments over the {centre}", _embedded, settings, name, centre)
            split = images_of(load(name).network.data).take(slice(settings.images))
            title = f"{name}, moments over the {centre}: the ends of the leading components"
            path = pictures / f"{name}-{centre}.png"
            figures.leading_images(kept["E"], split.images, path, title, settings.components, settings.shown)
            rows += _rows(settings, name, centre, kept, split.labels)
    return rows


def _embedded(settings: Settings, name: str, expectation: str) -> dict[str, Any]:
    critic = load(name)
    X = critic.inputs(images_of(critic.network.data).images[: settings.images])
    model = critic.model(expectation=expectation)
    embedding = nfk.fit(model, X[: settings.fitted], settings.components, memory=settings.memory)
    return {"E": embedding(X), "shares": embedding.explained_variance_ratio}


def _rows(settings: Settings, name: str, centre: str, kept: dict, labels: np.ndarray) -> list[Row]:
    """How much of the variance a component has, and how much of one class its ends are."""
    facts = dict(network=name, data=name.split("-", maxsplit=1)[0], moments=centre, fitted=settings.fitted)
    rows = []
    for component, (scores, share) in enumerate(zip(kept["E"].T, kept["shares"], strict=False)):
        order = np.argsort(scores)
        for end, which in (("lowest", order[: settings.shown]), ("highest", order[-settings.shown :])):
            most = np.bincount(labels[which]).argmax()
            told: Estimate = proportion(labels[which] == most)
            method = f"component {component + 1}, {end}"
            rows.append(single(method, told, metric=METRIC, most=int(most), variance=float(share), **facts))
    return rows
