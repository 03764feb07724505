"""The same question as `likelihoods`, for larger likelihood models that others trained: fewer images, fewer changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduction import figures
from reproduction.data import mnist
from reproduction.paper import raw
from reproduction.paper.critics import few_inputs
from reproduction.paper.likelihoods import shares, variants
from reproduction.paper.rehearsal import Fit
from reproduction.pretrained import load, untrained
from reproduction.tasks.ledger import Ledger, Row, row


@dataclass(frozen=True)
class Settings:
    pool: int = 400
    rank: int = 64
    seeds: int = 5
    networks: tuple[str, ...] = ("mnist-vae", "mnist-pixelcnn", "mnist-flow")


PRESETS = {
    "smoke": Settings(pool=40, rank=8, seeds=1, networks=("mnist-vae",)),
    "cpu": Settings(),
    "paper": Settings(pool=10_000),
}
SMALLER = ("One network of each kind, and five random halves of 400 test images, 200 labelled each time.",)


def fits(settings: Settings) -> Iterator[Fit]:
    """Their kernels, as fits of that rank."""
    for name in settings.networks:
        found = load(name)
        yield Fit(name, found.model(), few_inputs(found), settings.pool, settings.rank)


def run(ledger: Ledger, pictures: Path, settings: Settings) -> list[Row]:
    rows, lines = [], {}
    for name in settings.networks:
        for state in ("trained", "untrained"):
            found = dict(ledger.once(f"{name}, {state}", _measure, settings, name, state))
            told = found.pop("shares")
            facts = dict(network=name, state=state, data="MNIST", pool=settings.pool, metric="test accuracy")
            rows += [row(variant, values, **facts) for variant, values in found.items()]
            rows[-1]["shares"] = told
            lines[f"{name}, {state}"] = [100 * line["mean"] for line in rows[-len(found) :]]
    names = list(dict.fromkeys(line["method"] for line in rows))
    figures.heat(lines, names, pictures / "variants.png", "Test accuracy of a probe, %, with one thing changed")
    return rows


def _measure(settings: Settings, name: str, state: str) -> dict[str, Any]:
    found = load(name) if state == "trained" else untrained(name, seed=1000)
    test, model = mnist("test").take(slice(settings.pool)), found.model()
    kernel = raw.summed(raw.gradients(model, found.inputs(test.images)), raw.layers(model), 1e-4)
    scores = raw.accuracies(variants({"as it is": kernel}), test.labels, settings.seeds, settings.rank)
    everything = [raw.accuracy(kernel.total, test.labels, seed, None) for seed in range(settings.seeds)]
    return scores | {"all components": everything, "shares": shares(kernel)}
