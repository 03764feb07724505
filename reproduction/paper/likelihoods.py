"""Why likelihood models fall below their untrained networks: one thing of the kernel is changed at a time.

The networks are those of `reproduction.families`; the pool is a part of MNIST's test images, which none of them was
trained on. Its moments need no labels; the probes are trained on one half and tested on the other, over random halves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import nfk
from reproduction import figures
from reproduction.families import FAMILIES, Family
from reproduction.families.trained import trained
from reproduction.paper import raw
from reproduction.tasks.ledger import Ledger, Row, row

NETWORKS = ("PixelCNN", "affine coupling flow", "hierarchical VAE", "convolutional VAE", "causal transformer")
RESIDUALS = "PixelCNN"  # whose score is also taken with the pixels in place of what it could not foresee
SCALED = "hierarchical VAE"  # which the damping changes most, so that less of it is tried too


@dataclass(frozen=True)
class Settings:
    pool: int = 1_000
    rank: int = 64
    seeds: int = 5
    networks: tuple[str, ...] = NETWORKS


PRESETS = {
    "smoke": Settings(pool=40, rank=8, seeds=1, networks=("PixelCNN",)),
    "cpu": Settings(),
    "paper": Settings(pool=10_000),
}
SMALLER = (
    "One trained network of each kind; the spread is over five random halves of 1,000 test images, 500 labelled each "
    "time, and over no second training.",
)


def run(ledger: Ledger, pictures: Path, settings: Settings) -> list[Row]:
    rows, about = [], replace(settings, networks=())
    for name in settings.networks:
        family = next(one for one in FAMILIES if one.network == name and one.data == "mnist")
        for state in ("trained", "untrained"):
            found = ledger.once(f"{name}, {state}", _measure, about, family, name, state)
            facts = dict(network=name, state=state, data="MNIST", pool=settings.pool, metric="test accuracy")
            rows += [row(variant, values, **facts) for variant, values in found.items() if variant != "shares"]
            rows[-1]["shares"] = found["shares"]
            for other, make in {RESIDUALS: _pixels, SCALED: _less_damping}.items():
                if name == other:
                    extra = ledger.once(f"{name}, {state}, more", make, about, family, name, state)
                    rows += [row(variant, values, **facts) for variant, values in extra.items()]
    _figure(rows, pictures, settings)
    return rows


def _measure(settings: Settings, family: Family, name: str, state: str) -> dict[str, Any]:
    network = trained(family)[0] if state == "trained" else family.build(1000)
    test = family.splits()[1].take(slice(settings.pool))
    model = family.model(network)
    gradients = raw.gradients(model, family.examples(test))
    slices = raw.layers(model)
    kinds = {name: raw.summed(gradients, slices, damping) for name, damping in DAMPINGS.items()}
    del gradients
    found = raw.accuracies(variants(kinds), test.labels, settings.seeds, settings.rank)
    plain = kinds["as it is"]
    everything = [raw.accuracy(plain.total, test.labels, seed, None) for seed in range(settings.seeds)]
    return found | {"all components": everything, "shares": shares(plain)}


def _pixels(settings: Settings, family: Family, name: str, state: str) -> dict[str, list[float]]:
    """The same features of the network with the pixel itself where log p has pixel less prediction.

    d log p / d logit = x - p, what the network could not foresee; d (2 x - 1) logit / d logit = 2 x - 1.
    """
    network = trained(family)[0] if state == "trained" else family.build(1000)
    test = family.splits()[1].take(slice(settings.pool))
    logits, params = nfk.from_nnx(network, method="logits")
    model = nfk.density(lambda params, x: ((2 * x - 1) * logits(params, x)).sum(), params)
    kernel = raw.summed(raw.gradients(model, family.examples(test)), raw.layers(model), 1e-4).total
    ranks = {"pixels in place of residuals": settings.rank, "pixels in place of residuals, all components": None}
    return {
        variant: [raw.accuracy(kernel, test.labels, seed, rank) for seed in range(settings.seeds)]
        for variant, rank in ranks.items()
    }


def _less_damping(settings: Settings, family: Family, name: str, state: str) -> dict[str, list[float]]:
    """The same kernel with a hundredth of the damping."""
    network = trained(family)[0] if state == "trained" else family.build(1000)
    test, model = family.splits()[1].take(slice(settings.pool)), family.model(network)
    kernel = raw.summed(raw.gradients(model, family.examples(test)), raw.layers(model), 1e-6).total
    return {"damping 1e-6": [raw.accuracy(kernel, test.labels, seed, settings.rank) for seed in range(settings.seeds)]}


DAMPINGS = {"as it is": 1e-4, "damping 0.01": 1e-2, "damping 1": 1.0, "no Fisher scale": None}
EXTRA = ("pixels in place of residuals", "pixels in place of residuals, all components", "damping 1e-6")  # of one each
Kinds = Mapping[str, raw.Summed]


def variants(kinds: Kinds) -> dict[str, Callable[[], raw.Kernel]]:
    """The kernel as `nfk` has it by default for a likelihood, and with one thing changed."""
    plain = kinds["as it is"]
    changed: dict[str, Callable[[], raw.Kernel]] = {name: lambda name=name: kinds[name].total for name in kinds}
    return changed | {
        "mean taken away": lambda: raw.centred(plain.total),
        "rows at length one": lambda: raw.at_length_one(plain.total),
        "mean taken away, rows at length one": lambda: raw.at_length_one(raw.centred(plain.total)),
        "every layer at trace one": lambda: plain.balanced,
        "every layer at trace one, mean taken away": lambda: raw.centred(plain.balanced),
    }


def shares(kernel: raw.Summed) -> dict[str, float]:
    """What of the kernel's trace, and of its top eigenvalues, is the mean; and how unlike the rows' lengths are."""
    K = kernel.total
    middle, lengths = raw.centred(K), np.sqrt(np.diag(K))
    values = np.linalg.eigvalsh(middle)[::-1]
    return {
        "mean": 1 - np.trace(middle) / np.trace(K), "top 64": float(values[:64].sum() / values.sum()),
        "spread of lengths": float(lengths.std() / lengths.mean()),
        "largest layer": max(kernel.traces.values()) / float(np.trace(K)),
    }  # fmt: skip


def _figure(rows: list[Row], pictures: Path, settings: Settings) -> None:
    names = [name for name in dict.fromkeys(line["method"] for line in rows) if name not in EXTRA]
    lines = {}
    for network in settings.networks:
        for state in ("trained", "untrained"):
            found = {r["method"]: 100 * r["mean"] for r in rows if (r["network"], r["state"]) == (network, state)}
            lines[f"{network}, {state}"] = [found[name] for name in names]
    figures.heat(lines, names, pictures / "variants.png", "Test accuracy of a probe, %, with one thing changed")
