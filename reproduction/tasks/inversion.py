"""Inverting the DCGAN of digits: from an image's embedding to latents, and through the generator back to an image.

The basis and the linear map come from 9,000 generated images; they are tried on real test digits and on 1,000 other
generated ones. Pixel error favours principal components by construction, so what the images show is judged by a
classifier and by their sharpness.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.decomposition import PCA

import nfk
from nfk.tasks import invert, sharpness
from reproduction import figures
from reproduction.families.classifier import Classifier
from reproduction.families.gan import DigitGAN
from reproduction.families.trained import trained
from reproduction.tasks.features import flat, random_projection
from reproduction.tasks.ledger import Ledger, Row, row
from reproduction.training import in_batches

METRICS = {
    "r2": "R^2 of latents, held-out generated images", "agreement": "same class under LeNet-5, real images",
    "agreement_generated": "same class under LeNet-5, held-out generated images",
    "sharpness": "share of pixels near black or white", "error": "mean squared pixel error, real images",
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    rank: int = 100
    generated: int = 10_000
    tested: int = 2_000
    shown: int = 12


SETTINGS = Settings()


def run(ledger: Ledger, pictures: Path, settings: Settings = SETTINGS, seeds: int = 3) -> list[Row]:
    found = [ledger.once(f"seed {seed}", _measure, settings, seed, ledger) for seed in range(seeds)]
    shown = ledger.arrays("shown", lambda settings: _reconstructed(settings, 0)[1], settings)
    title = "real test digits, and what comes back through the generator (the last row: through PCA)"
    figures.strips(shown, pictures / "reconstructions.png", title)
    rows = []
    for method in found[0]:
        for key, metric in METRICS.items():
            if key in found[0][method]:
                values = [one[method][key] for one in found]
                facts = dict(network="DCGAN", data="mnist", generated=settings.generated)
                rows.append(row(method, values, metric=metric, **facts))
    return rows


def _measure(settings: Settings, seed: int, ledger: Ledger) -> dict[str, dict[str, float]]:
    results, shown = _reconstructed(settings, seed)
    if seed == 0:
        ledger.arrays("shown", lambda _: shown, settings)
    return results


def _reconstructed(settings: Settings, seed: int) -> tuple[dict[str, dict[str, float]], dict[str, np.ndarray]]:
    """What each way of inversion is worth, and the first images it gives back."""
    rank, count = settings.rank, settings.generated
    family = DigitGAN()
    network, _ = trained(family)
    train, test = family.splits()
    real = test.images[: settings.tested]
    latents = np.asarray(jax.random.normal(jax.random.key(seed + 10), (count, network.generator.latents)))
    made = in_batches(network.generator, latents)
    cut = count - count // 10  # the basis and the maps come from these; the others are held out
    embedding = nfk.fit(family.model(network), made[:cut], rank, key=seed)
    wide = random_projection(embedding, made, real, 10 * rank, seed)
    sources = {
        f"Fisher embedding, {rank}": (embedding(made), embedding(real)),
        f"random projection of the Fisher vector, {10 * rank}": wide,
        "critic's activations": tuple(family.activations(network, part) for part in (made, real)),
        "pixels": (flat(made), flat(real)),
    }  # fmt: skip
    label = _classifier()
    results, shown = {}, {"real": real[: settings.shown]}
    for name, (E, E_real) in sources.items():
        inversion = invert(E[:cut], latents[:cut])
        again, copies = (in_batches(network.generator, inversion(part)) for part in (E_real, E[cut:]))
        results[name] = {
            "r2": inversion.determination(E[cut:], latents[cut:]).value, **_judged(again, real, label),
            "agreement_generated": float(np.mean(label(copies) == label(made[cut:]))),
        }  # fmt: skip
        shown[name] = again[: settings.shown]
    pca = PCA(rank, random_state=seed).fit(flat(train.images[:count]))
    again = np.clip(pca.inverse_transform(pca.transform(flat(real))), 0, 1).reshape(real.shape).astype(np.float32)
    shown[f"PCA, {rank}"] = again[: settings.shown]
    results[f"PCA of real images, {rank}, reconstruction"] = _judged(again, real, label)
    results["the real images themselves"] = {"sharpness": sharpness(real)}
    results["the generator's own images"] = {"sharpness": sharpness(made)}
    return results, shown


def _classifier() -> Any:
    network, _ = trained(Classifier())
    return lambda images: in_batches(lambda batch: jnp.argmax(network(batch), axis=-1), images)


def _judged(again: np.ndarray, real: np.ndarray, label: Any) -> dict[str, float]:
    return {
        "agreement": float(np.mean(label(again) == label(real))),
        "sharpness": sharpness(again),
        "error": float(np.mean((again - real) ** 2)),
    }
