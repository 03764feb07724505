"""Inverting generators that others trained: from an image's embedding by the critic to latents, and back to an image.

The basis and the linear map come from generated images; they are tried on real test images and on other generated ones.
Pixel error favours principal components by construction, so a classifier that others trained says what the images show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA

import nfk
from nfk.tasks import invert, sharpness
from reproduction import figures
from reproduction.data import load as images_of
from reproduction.paper.rehearsal import FEW, Fit
from reproduction.pretrained import Pretrained, load
from reproduction.pretrained.measuring import last_features
from reproduction.tasks.features import flat
from reproduction.tasks.ledger import Ledger, Row, row

CRITICS = ("mnist-wgan-gp-critic", "mnist-gan-critic", "cifar10-dcgan-critic")
SHOWN = "shown, "
JUDGES = {"mnist": "mnist-lenet5", "cifar10": "cifar10-resnet20"}
METRICS = {
    "r2": "R^2 of latents, held-out generated images", "agreement": "same class, real images",
    "agreement_generated": "same class, held-out generated images",
    "sharpness": "share of pixels near black or white", "error": "mean squared pixel error, real images",
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    critics: tuple[str, ...] = CRITICS
    rank: int = 100
    generated: int = 1_500  # a fifth of them held out
    tested: int = 1_000
    shown: int = 12
    seeds: int = 3
    memory: str = "3GB"


PRESETS = {
    "smoke": Settings(critics=CRITICS[:1], rank=8, generated=100, tested=40, shown=4, seeds=1),
    "cpu": Settings(),
    "paper": Settings(generated=50_000, tested=10_000, seeds=5),
}
SMALLER = (
    "The basis and the map come from 1,200 generated images; seeds draw other latents, the networks are one each.",
)
Judge = Callable[[np.ndarray], np.ndarray]


def fits(settings: Settings) -> Iterator[Fit]:
    """The bases, over generated images."""
    for name in settings.critics:
        critic = load(name)
        yield Fit(name, critic.model(), critic.sample(0, FEW), settings.generated, settings.rank)


def run(ledger: Ledger, pictures: Path, settings: Settings) -> list[Row]:
    rows, about = [], replace(settings, critics=(), seeds=0)
    for name in settings.critics:
        seeds = range(settings.seeds)
        found = [ledger.arrays(f"{name}, seed {seed}", _measure, about, name, seed) for seed in seeds]
        facts = dict(network=name, data=name.split("-")[0], generated=settings.generated, features=settings.rank)
        for kept in (kept for kept in found[0] if not kept.startswith(SHOWN)):
            method, key = kept.split(": ")
            rows.append(row(method, [float(one[kept]) for one in found], metric=METRICS[key], **facts))
        shown = {kept.removeprefix(SHOWN): images for kept, images in found[0].items() if kept.startswith(SHOWN)}
        title = f"{name}: real test images, and what comes back through the generator"
        figures.strips(shown, pictures / f"{name}.png", title)
    return rows


def _measure(about: Settings, name: str, seed: int) -> dict[str, Any]:
    """Numbers as "method: metric", and the first images that each method gives back."""
    results, shown = _again(about, name, seed)
    numbers = {f"{method}: {key}": value for method, found in results.items() for key, value in found.items()}
    return numbers | {SHOWN + method: images for method, images in shown.items()}


def _again(settings: Settings, name: str, seed: int) -> tuple[dict[str, dict[str, float]], dict[str, np.ndarray]]:
    """What each way of inversion is worth, and the first images that it gives back."""
    critic = load(name)
    test = images_of(critic.network.data, "test").images[: settings.tested]
    real, judge = critic.inputs(test), _judge(critic)
    latents, made = _generated(critic, settings.generated, seed)
    cut = settings.generated - settings.generated // 5
    embedding = nfk.fit(critic.model(), made[:cut], settings.rank, key=seed, memory=settings.memory)
    sources = {
        f"Fisher embedding, {settings.rank}": (embedding(made), embedding(real)),
        "critic's last activations": (last_features(critic, made), last_features(critic, real)),
        "pixels": (flat(made), flat(real)),
    }
    results, shown = {}, {"real": critic.network.pixels.images(real[: settings.shown])}
    for method, (E, E_real) in sources.items():
        inversion = invert(E[:cut], latents[:cut])
        again, copies = (_images(critic, inversion(part)) for part in (E_real, E[cut:]))
        same = np.mean(judge(copies) == judge(critic.network.pixels.images(made[cut:])))
        results[method] = {
            "r2": inversion.determination(E[cut:], latents[cut:]).value, **_judged(again, test, judge),
            "agreement_generated": float(same),
        }  # fmt: skip
        shown[method] = again[: settings.shown]
    pca = PCA(settings.rank, random_state=seed).fit(flat(images_of(critic.network.data).images[:5_000]))
    again = np.clip(pca.inverse_transform(pca.transform(flat(test))), 0, 1).reshape(test.shape).astype(np.float32)
    shown[f"PCA, {settings.rank}"] = again[: settings.shown]
    results["PCA of real images, reconstruction"] = _judged(again, test, judge)
    return results, shown


def _generated(critic: Pretrained, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Latents, and the images of them as inputs of the critic."""
    assert critic.generator is not None
    z = torch.randn(count, critic.generator.module.latents, generator=torch.Generator().manual_seed(seed))
    return z.numpy(), critic.generator.outputs(z.numpy())


def _images(critic: Pretrained, latents: np.ndarray) -> np.ndarray:
    assert critic.generator is not None
    return critic.network.pixels.images(critic.generator.outputs(latents.astype(np.float32)))


def _judge(critic: Pretrained) -> Judge:
    judge = load(JUDGES[critic.network.data])
    return lambda images: judge.outputs(judge.inputs(images)).argmax(1)


def _judged(again: np.ndarray, real: np.ndarray, judge: Judge) -> dict[str, float]:
    return {
        "agreement": float(np.mean(judge(again) == judge(real))), "sharpness": sharpness(again),
        "error": float(np.mean((again - real) ** 2)),
    }  # fmt: skip
