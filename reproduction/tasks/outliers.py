"""Telling examples from elsewhere: MNIST against Fashion-MNIST, CIFAR-10 against SVHN.

The score of the Fisher kernel is the squared length of V_x outside the top k components of a fit on training images of
the inliers; a share of |V_x|^2 besides. Beside it: maximum softmax and free energy of the classifiers, log-likelihoods
and bounds of the generative models, the critic's output, and the error of a PCA reconstruction. Larger is stranger.
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
from nfk.tasks import detection
from reproduction import figures
from reproduction.data import load
from reproduction.families import Family
from reproduction.families.autoregressive import Autoregressive
from reproduction.families.classifier import Classifier, PhotoClassifier
from reproduction.families.gan import DigitGAN, PhotoGAN
from reproduction.families.trained import trained
from reproduction.families.vae import VAE
from reproduction.tasks.features import draw, flat
from reproduction.tasks.ledger import Ledger, Row, row
from reproduction.training import in_batches

Pairs = tuple[tuple[str, str, tuple[tuple[Family, int], ...]], ...]  # inliers, outliers, networks and their examples
DIGITS = ((Classifier(), 2_000), (DigitGAN(), 2_000), (VAE(), 2_000), (Autoregressive(), 2_000))
PHOTOS = ((PhotoClassifier(), 1_000), (PhotoGAN(), 2_000))
PAIRS: Pairs = (("mnist", "fashion_mnist", DIGITS), ("cifar10", "svhn", PHOTOS))


@dataclass(frozen=True)
class Settings:
    rank: int = 64
    tested: int = 1_000
    examples_of_pca: int = 2_000


SETTINGS = Settings()


def run(
    ledger: Ledger, pictures: Path, settings: Settings = SETTINGS, pairs: Pairs = PAIRS, seeds: int = 3
) -> list[Row]:
    rows = []
    for inside, outside, families in pairs:
        made = []
        for family, count in families:
            made += _rows(ledger, settings, family, count, inside, outside, seeds)
        found = [
            ledger.once(f"PCA, {inside}, seed {seed}", _pca, settings, inside, outside, seed) for seed in range(seeds)
        ]
        made += _table(f"error of a PCA of the pixels, {settings.rank}", found, settings, inside, outside, "-")
        shown = {
            line["method"] if line["network"] == "-" else f"{line['network']}: {line['method']}": line["mean"]
            for line in made
            if line["metric"] == "AUROC"
        }
        figures.bars(shown, pictures / f"{inside}.png", f"{inside} against {outside}: AUROC")
        rows += made
    return rows


def _rows(
    ledger: Ledger, settings: Settings, family: Family, count: int, inside: str, outside: str, seeds: int
) -> list[Row]:
    name = f"{family.label}, {family.network}"
    found = [
        ledger.once(f"{name}, seed {seed}", _measure, settings, family, count, inside, outside, seed)
        for seed in range(seeds)
    ]
    rows = []
    for score in found[0]["auroc"]:
        values = [{key: one[key][score] for key in one} for one in found]
        rows += _table(score, values, settings, inside, outside, family.network)
    return rows


def _table(method: str, found: list[dict], settings: Settings, inside: str, outside: str, network: str) -> list[Row]:
    facts = dict(network=network, data=f"{inside} against {outside}", test_examples=settings.tested)
    return [
        row(method, [one["auroc"] for one in found], metric="AUROC", **facts,
            half_interval=float(np.mean([one["half_interval"] for one in found]))),
        row(method, [one["missed"] for one in found], metric="outliers missed when 95 % of inliers pass", **facts),
    ]  # fmt: skip


def _measure(
    settings: Settings, family: Family, count: int, inside: str, outside: str, seed: int
) -> dict[str, dict[str, float]]:
    network, _ = trained(family)
    X = family.examples(draw(load(inside, "train"), count, seed))
    known, strange = (family.examples(draw(load(name, "test"), settings.tested, seed)) for name in (inside, outside))
    embedding = nfk.fit(family.model(network), X, settings.rank, key=seed)
    parts = [embedding.decompose(Z) for Z in (known, strange)]
    scores: dict[str, Any] = {
        f"outside the top {settings.rank}, squared length": [part.outside for part in parts],
        f"outside the top {settings.rank}, share": [part.outside_share for part in parts],
        "length of the Fisher vector": [part.total for part in parts],
    }
    scores |= {name: [score(Z) for Z in (known, strange)] for name, score in _own_scores(family, network).items()}
    return _detected(scores)


def _own_scores(family: Family, network: Any) -> dict[str, Any]:
    """What the network itself would say, larger for stranger."""
    if isinstance(family, Classifier):
        return {
            "maximum softmax": lambda Z: -in_batches(lambda x: jnp.max(jax.nn.softmax(network(x)), axis=1), Z),
            "free energy": lambda Z: -in_batches(lambda x: jax.nn.logsumexp(network(x), axis=1), Z),
        }
    model = family.model(network)
    name = {"gan": "the critic's output", "vae": "likelihood (ELBO)"}.get(family.name, "likelihood")
    score = jax.vmap(lambda x: model.network.score_of(model.params, x, jax.random.key(0)))
    return {name: lambda Z: -in_batches(score, Z)}


def _pca(settings: Settings, inside: str, outside: str, seed: int) -> dict[str, float]:
    train = draw(load(inside, "train"), settings.examples_of_pca, seed)
    pca = PCA(settings.rank, random_state=seed).fit(flat(train.images))
    errors = []
    for name in (inside, outside):
        pixels = flat(draw(load(name, "test"), settings.tested, seed).images)
        errors.append(np.sum((pca.inverse_transform(pca.transform(pixels)) - pixels) ** 2, axis=1))
    return {key: value["PCA"] for key, value in _detected({"PCA": errors}).items()}


def _detected(scores: dict[str, Any]) -> dict[str, dict[str, float]]:
    found = {name: detection(*pair) for name, pair in scores.items()}
    return {
        "auroc": {name: each.auroc.value for name, each in found.items()},
        "half_interval": {name: (each.auroc.high - each.auroc.low) / 2 for name, each in found.items()},
        "missed": {name: each.missed_at_95 for name, each in found.items()},
    }
