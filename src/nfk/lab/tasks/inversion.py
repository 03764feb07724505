"""Inverting the DCGAN of digits: from an image's embedding to latents, and through the generator back to an image.

The basis and the linear map come from 9,000 generated images; they are tried on real test digits and on 1,000 other
generated ones. Pixel error favours
principal components by construction, so what the images show is judged by a classifier and by their sharpness.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.decomposition import PCA

import nfk
from nfk.lab import figures
from nfk.lab.families.classifier import Classifier
from nfk.lab.families.gan import DigitGAN
from nfk.lab.families.trained import trained
from nfk.lab.tasks.features import flat, random_projection
from nfk.lab.tasks.ledger import Ledger, Row, row
from nfk.lab.training import in_batches
from nfk.tasks import invert, sharpness

RANK, GENERATED, TESTED, SEEDS, SHOWN = 100, 10_000, 2_000, 3, 12
METRICS = {
    "r2": "R^2 of latents, held-out generated images", "agreement": "same class under LeNet-5, real images",
    "agreement_generated": "same class under LeNet-5, held-out generated images",
    "sharpness": "share of pixels near black or white", "error": "mean squared pixel error, real images",
}  # fmt: skip


def run(ledger: Ledger, pictures: Path) -> list[Row]:
    found = [ledger.once(f"seed {seed}", _measure, seed, ledger) for seed in range(SEEDS)]
    shown = ledger.arrays("shown", lambda: _reconstructed(0)[1])
    title = "real test digits, and what comes back through the generator (the last row: through PCA)"
    figures.strips(shown, pictures / "reconstructions.png", title)
    rows = []
    for method in found[0]:
        for key, metric in METRICS.items():
            if key in found[0][method]:
                values = [one[method][key] for one in found]
                rows.append(row(method, values, metric=metric, network="DCGAN", data="mnist", generated=GENERATED))
    return rows


def _measure(seed: int, ledger: Ledger) -> dict[str, dict[str, float]]:
    results, shown = _reconstructed(seed)
    if seed == 0:
        ledger.arrays("shown", lambda: shown)
    return results


def _reconstructed(seed: int) -> tuple[dict[str, dict[str, float]], dict[str, np.ndarray]]:
    """What each way of inversion is worth, and the first images it gives back."""
    family = DigitGAN()
    network, _ = trained(family)
    train, test = family.splits()
    real = test.images[:TESTED]
    latents = np.asarray(jax.random.normal(jax.random.key(seed + 10), (GENERATED, network.generator.latents)))
    made = in_batches(network.generator, latents)
    cut = GENERATED - GENERATED // 10  # the basis and the maps come from these; the others are held out
    embedding = nfk.fit(family.model(network), made[:cut], RANK, key=seed)
    wide = random_projection(embedding, made, real, 10 * RANK, seed)
    sources = {
        f"Fisher embedding, {RANK}": (embedding(made), embedding(real)),
        f"random projection of the Fisher vector, {10 * RANK}": wide,
        "critic's activations": tuple(family.activations(network, part) for part in (made, real)),
        "pixels": (flat(made), flat(real)),
    }  # fmt: skip
    label = _classifier()
    results, shown = {}, {"real": real[:SHOWN]}
    for name, (E, E_real) in sources.items():
        inversion = invert(E[:cut], latents[:cut])
        again, copies = (in_batches(network.generator, inversion(part)) for part in (E_real, E[cut:]))
        results[name] = {
            "r2": inversion.determination(E[cut:], latents[cut:]).value, **_judged(again, real, label),
            "agreement_generated": float(np.mean(label(copies) == label(made[cut:]))),
        }  # fmt: skip
        shown[name] = again[:SHOWN]
    pca = PCA(RANK, random_state=seed).fit(flat(train.images[:GENERATED]))
    again = np.clip(pca.inverse_transform(pca.transform(flat(real))), 0, 1).reshape(real.shape).astype(np.float32)
    shown[f"PCA, {RANK}"] = again[:SHOWN]
    results[f"PCA of real images, {RANK}, reconstruction"] = _judged(again, real, label)
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
