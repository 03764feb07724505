"""Every network that others trained, by the figure that its weights are known for, in full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nfk.tasks import Estimate
from reproduction import figures
from reproduction.data import load as load_images
from reproduction.paper.rehearsal import Fit
from reproduction.paper.runner import single
from reproduction.pretrained import NETWORKS, load
from reproduction.pretrained.files import ORIGINS
from reproduction.pretrained.measuring import KNOWN, measured
from reproduction.tasks.ledger import Ledger, Row


@dataclass(frozen=True)
class Settings:
    networks: tuple[str, ...] = tuple(NETWORKS)
    images: int | None = None  # None: as many as the figure is known from
    shown: int = 32
    seed: int = 0


PRESETS = {
    "smoke": Settings(networks=("mnist-lenet5", "mnist-gan-critic", "mnist-gan-generator"), images=100, shown=8),
    "cpu": Settings(), "paper": Settings(),
}  # fmt: skip
SMALLER = ("Some figures are known from fewer than all test images: the column says from how many.",)


def fits(settings: Settings) -> Iterator[Fit]:
    """None is needed for their figures; the smallest critic stands for all."""
    network = load("mnist-wgan-gp-critic")
    few = network.inputs(load_images("mnist", "test").images[:32])
    yield Fit(network.name, network.model(), few, 10_000, 128)


def run(ledger: Ledger, pictures: Path, settings: Settings) -> Iterator[Row]:
    for name in settings.networks:
        network, origin = NETWORKS[name], ORIGINS[name]
        facts = {
            "data": network.data, "parameters": network.parameters, "kind": network.kind, "licence": origin.licence,
            "origin": f"{origin.repository}@{origin.commit[:10]}:{origin.path}",
        }  # fmt: skip
        known = {one.figure: one for one in KNOWN.get(name, ())}
        for figure, (value, low, high) in ledger.once(name, _measure, settings, name).items():
            told = {"known": known[figure].value, "images": known[figure].images} if figure in known else {}
            yield single(name, Estimate(value, low, high), metric=figure, **facts, **told)
        if network.kind == "generator":
            samples = network.pixels.images(load(name).sample(settings.seed, settings.shown))
            figures.grid(samples, pictures / f"{name}.png", f"samples: {name}")


def _measure(settings: Settings, name: str) -> dict[str, Any]:
    found = measured(load(name), settings.images, settings.seed)
    return {figure: [one.value, one.low, one.high] for figure, one in found.items()}
