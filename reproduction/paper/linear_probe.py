"""Table 1: linear probes of a CIFAR-10 critic's Fisher embedding, beside its activations and other features.

The critics were trained by others. A basis is fitted on some training images without labels; then all training images
are embedded, and a logistic regression learns from all their labels, its strength chosen on a tenth of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from nfk.tasks import Estimate, kernel_features, probe, proportion
from reproduction import figures
from reproduction.data import Split, load
from reproduction.paper.critics import Fisher, activations, embedded, few_inputs, full_kernel
from reproduction.paper.rehearsal import Fit
from reproduction.paper.runner import single
from reproduction.pretrained import load as load_network
from reproduction.pretrained.measuring import last_features
from reproduction.tasks.ledger import Ledger, Row

Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Settings:
    critics: tuple[tuple[str, int], ...] = (("cifar10-dcgan-critic", 512), ("cifar10-dcgan-critic-wide", 256))  # rank
    varied: str = "cifar10-dcgan-critic"  # of which everything else is varied
    supervised: str = "cifar10-wrn-16-2-a"
    fitted: int = 2_000  # images, without labels, that the basis is fitted on
    ranks: tuple[int, ...] = (64, 128, 256, 512)
    train: int = 50_000
    test: int = 10_000
    varied_rank: int = 256
    varied_fitted: int = 1_000
    few: int = 4_000  # labels of what is varied, and as many test images
    full: int = 3_000  # labels of the full Fisher vector
    full_test: int = 2_000
    samples: int = 4_096


PRESETS = {
    "smoke": Settings(
        critics=(("mnist-gan-critic", 16),), varied="mnist-gan-critic", supervised="mnist-lenet5", fitted=60,
        ranks=(4, 16), train=200, test=100, varied_rank=8, varied_fitted=30, few=100, full=60, full_test=50, samples=32,
    ),
    "cpu": Settings(),
    "paper": Settings(fitted=50_000, varied_fitted=50_000, few=10_000, full=50_000, full_test=10_000),
}  # fmt: skip
SMALLER = (
    "The basis is fitted on 2,000 of the 50,000 training images (no labels); all 50,000 are embedded and probed.",
    "What is varied one at a time (score, moments, weights, directions) has rank 256, a basis from 1,000 images, "
    "4,000 labels and 4,000 test images; the same embedding, unvaried, stands beside it at that size.",
    "The full Fisher vector is probed with 3,000 labels and 2,000 test images, through its exact kernel; rank 256 and "
    "the activations stand beside it at that size.",
    "The paper's critic is an SN-DCGAN trained for long; these two are small DCGANs that others trained. One network "
    "each: intervals are over test images.",
)


def fits(settings: Settings) -> Iterator[Fit]:
    """The bases, as they are fitted."""
    for critic, rank in settings.critics:
        fisher = Fisher(critic, rank, settings.fitted, samples=settings.samples)
        yield Fit(f"{critic}, rank {rank}", fisher.model, few_inputs(fisher.network), settings.fitted, rank)


def run(ledger: Ledger, pictures: Path, settings: Settings) -> list[Row]:
    data = load_network(settings.varied).network.data
    train, test = (load(data, split) for split in ("train", "test"))
    task = Task(ledger, settings, data, train.take(slice(settings.train)), test.take(slice(settings.test)))
    rows = [row for critic, _ in settings.critics for row in task.compared(critic)]
    for several in (task.in_full(), task.variations(), task.baselines()):
        rows += several
    _picture(rows, settings, pictures)
    return rows


@dataclass(frozen=True)
class Task:
    """All measurements over the same images."""

    ledger: Ledger
    settings: Settings
    data: str
    train: Split
    test: Split

    def fisher(self, critic: str) -> Fisher:
        s = self.settings
        return Fisher(critic, dict(s.critics)[critic], s.fitted, self.data, s.samples)

    def pair(self, fisher: Fisher, labelled: int, tested: int) -> Pair:
        """Embeddings of the first training and the first test images."""
        parts = (("train", self.train.take(slice(labelled))), ("test", self.test.take(slice(tested))))
        a, b = (embedded(fisher, self.ledger, self.train, part.images, name) for name, part in parts)
        return a, b

    def row(self, method: str, pair: Any, **facts: Any) -> Row:
        """A probe of the pair (or of the pair that is made when it is called), measured once; labels by its length."""
        labelled, tested = facts["labels"], facts["tested"]
        name = f"{facts['network']}: {method}, {labelled} labels, {tested} tested"
        found = self.ledger.once(name, self._probe, self.settings, pair, labelled, tested)
        interval = Estimate(found["value"], found["low"], found["high"])
        kept = {key: found[key] for key in ("features", "strength", "converged")}
        return single(method, interval, metric="test accuracy", **facts, **kept)

    def _probe(self, _: Settings, pair: Any, labelled: int, tested: int) -> dict[str, Any]:
        a, b = pair() if callable(pair) else pair
        result = probe(a, self.train.labels[:labelled], b, self.test.labels[:tested])
        return {
            "value": result.accuracy.value, "low": result.accuracy.low, "high": result.accuracy.high,
            "features": result.features, "strength": result.strength, "converged": result.classifier.converged,
        }  # fmt: skip

    def compared(self, critic: str) -> Iterator[Row]:
        """The Fisher embedding against its rank, and the critic's activations; all training images."""
        facts = dict(network=critic, labels=len(self.train), tested=len(self.test), role="all labels")
        a, b = self.pair(self.fisher(critic), len(self.train), len(self.test))
        for k in (k for k in self.settings.ranks if k <= a.shape[1]):
            yield self.row(f"Fisher embedding, {k}", (a[:, :k], b[:, :k]), **facts)
        network = load_network(critic)
        seen = [activations(network, part.images) for part in (self.train, self.test)]
        for name in seen[0]:
            yield self.row(f"activations: {name}", (seen[0][name], seen[1][name]), **facts)

    def baselines(self) -> Iterator[Row]:
        """Pixels, and a supervised network of the same images: its own accuracy, and a probe of its features."""
        facts = dict(labels=len(self.train), tested=len(self.test), role="all labels")
        flat = [part.images.reshape(len(part), -1) for part in (self.train, self.test)]
        rank = min(self.settings.varied_rank, len(flat[0]) - 1)
        yield self.row(f"PCA of the pixels, {rank}", lambda: _principal(*flat, rank), network="-", **facts)
        name = self.settings.supervised

        def features() -> Pair:
            network = load_network(name)
            a, b = (last_features(network, network.inputs(part.images)) for part in (self.train, self.test))
            return a, b

        yield self.row("last features of a supervised network", features, network=name, **facts)
        found = self.ledger.once(f"{name}: itself", self._itself, self.settings, name)
        interval = Estimate(found["value"], found["low"], found["high"])
        yield single("a supervised network itself", interval, metric="test accuracy", network=name, **facts)

    def _itself(self, _: Settings, name: str) -> dict[str, float]:
        network = load_network(name)
        share = proportion(network.outputs(network.inputs(self.test.images)).argmax(1) == self.test.labels)
        return {"value": share.value, "low": share.low, "high": share.high}

    def in_full(self) -> Iterator[Row]:
        """The full Fisher vector through its kernel; the same images' embeddings and activations beside it."""
        critic, n, m = self.settings.varied, self.settings.full, self.settings.full_test
        facts = dict(network=critic, labels=n, tested=m, role="full Fisher vector")
        few, tested = self.train.take(slice(n)), self.test.take(slice(m))

        def full() -> Pair:
            kernel = full_kernel(self.fisher(critic), self.ledger, self.train, few, tested)
            a, b = kernel_features(kernel["train"], kernel["test"])
            return a, b

        yield self.row("full Fisher vector", full, **facts)
        a, b = self.pair(self.fisher(critic), len(self.train), len(self.test))
        for k in self.settings.ranks:
            yield self.row(f"Fisher embedding, {k}", (a[:n, :k], b[:m, :k]), **facts)
        network = load_network(critic)
        seen = [activations(network, part.images) for part in (few, tested)]
        for name in ("all layers, means", "last layer, in full"):
            yield self.row(f"activations: {name}", (seen[0][name], seen[1][name]), **facts)

    def variations(self) -> Iterator[Row]:
        """One thing at a time is varied, at a smaller size; the embedding without any variation comes first."""
        s = self.settings
        plain = Fisher(s.varied, s.varied_rank, s.varied_fitted, self.data, s.samples)
        facts = dict(network=s.varied, labels=s.few, tested=s.few, role="one thing varied")
        varied = {
            "Fisher embedding": plain, "score after the sigmoid": replace(plain, sigmoid=True),
            "moments over the data": replace(plain, expectation="data"),
            "untrained critic": replace(plain, state="untrained"),
            "random directions of the Fisher vector": replace(plain, state="projected"),
        }  # fmt: skip
        for name, fisher in varied.items():
            yield self.row(f"{name}, {s.varied_rank}", lambda fisher=fisher: self.pair(fisher, s.few, s.few), **facts)
        yield self.row(f"and mirror images as examples, {s.varied_rank}", lambda: self._mirrored(plain), **facts)
        yield self.row(f"each component to variance one, {s.varied_rank}", lambda: self._whitened(plain), **facts)
        network = load_network(s.varied)
        seen = [
            activations(network, part.images) for part in (self.train.take(slice(s.few)), self.test.take(slice(s.few)))
        ]
        name = "last layer, in full"
        yield self.row(f"activations: {name}", (seen[0][name], seen[1][name]), **facts)
        pair = lambda: _principal(seen[0][name], seen[1][name], s.varied_rank)  # noqa: E731
        yield self.row(f"activations: {name}, PCA, {s.varied_rank}", pair, **facts)

    def _mirrored(self, fisher: Fisher) -> Pair:
        """The mean of an image's embedding and its mirror image's, both in training and in the test."""
        few = self.settings.few
        a, b = self.pair(fisher, few, few)
        parts = (("train", self.train.take(slice(few))), ("test", self.test.take(slice(few))))
        c, d = (
            embedded(fisher, self.ledger, self.train, part.images[:, :, ::-1], f"{name}-mirrored")
            for name, part in parts
        )
        return (a + c) / 2, (b + d) / 2

    def _whitened(self, fisher: Fisher) -> Pair:
        a, b = self.pair(fisher, self.settings.few, self.settings.few)
        return a / a.std(0), b / a.std(0)


def _principal(a: np.ndarray, b: np.ndarray, rank: int) -> Pair:
    fitted = PCA(min(rank, *a.shape), random_state=0, svd_solver="randomized").fit(a)
    return fitted.transform(a), fitted.transform(b)


def _picture(rows: list[Row], settings: Settings, pictures: Path) -> None:
    """Accuracy against k with its interval, and the best activations of the same critic as levels."""
    lines, levels = {}, {}
    for critic, _ in settings.critics:
        mine = [row for row in rows if row["network"] == critic and row["role"] == "all labels"]
        by_rank = [row for row in mine if row["method"].startswith("Fisher")]
        half = [50 * (row["high"] - row["low"]) for row in by_rank]
        lines[critic] = (settings.ranks[: len(by_rank)], [100 * row["value"] for row in by_rank], half)
        best = max((row for row in mine if row["method"].startswith("activations")), key=lambda row: row["value"])
        levels[f"{best['method']} ({critic})"] = 100 * best["value"]
    title = f"Linear probes with all {settings.train:,} labels"
    figures.curves(
        lines, pictures / "accuracy.png", title, "components k of the Fisher embedding", "test accuracy, %", levels,
        logarithmic=True,
    )  # fmt: skip
