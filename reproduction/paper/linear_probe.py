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
COMPARED = "the embedding and the activations"


@dataclass(frozen=True)
class Settings:
    critics: tuple[tuple[str, int], ...] = (("cifar10-dcgan-critic", 10_000), ("cifar10-dcgan-critic-wide", 10_000))
    all_labels: int = 50_000  # of the first critic, in the end
    varied: str = "cifar10-dcgan-critic"  # of which everything else is varied
    supervised: str = "cifar10-wrn-16-2-a"
    fitted: int = 2_000  # images, without labels, that the basis is fitted on
    rank: int = 512
    ranks: tuple[int, ...] = (64, 128, 256, 512)
    used: int = 256  # components that are computed for all images
    test: int = 10_000
    varied_fitted: int = 1_000
    varied_samples: int = 2_048
    few: int = 2_000  # labels of what is varied and of the full Fisher vector, and as many test images
    samples: int = 4_096
    strengths: tuple[float, ...] = (1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0)  # of the probes, to choose from


PRESETS = {
    "smoke": Settings(
        critics=(("mnist-gan-critic", 80),), all_labels=120, varied="mnist-gan-critic", supervised="mnist-lenet5",
        fitted=50, rank=16, ranks=(4, 16), used=16, test=60, varied_fitted=30, varied_samples=16, few=50, samples=16,
    ),
    "cpu": Settings(),
    "paper": Settings(
        critics=(("cifar10-dcgan-critic", 10_000), ("cifar10-dcgan-critic-wide", 50_000)), fitted=50_000, used=512,
        varied_fitted=50_000, few=10_000,
    ),
}  # fmt: skip
SMALLER = (
    "The basis is fitted on 2,000 of the 50,000 training images, without labels. The first critic then embeds 10,000 "
    "and all 50,000, the second (`-wide`, without a generator: its moments are over the data) 10,000; 256 components.",
    "Rank 512 and the full Fisher vector are probed with 2,000 labels and 2,000 test images, through the exact kernel "
    "of these images; smaller ranks and the activations stand beside them at that size.",
    "What is varied one at a time has rank 256, a basis from 1,000 images, moments over 2,048 generated images, 2,000 "
    "labels and 2,000 test images; the same embedding, unvaried, stands first.",
    "The paper's critic is an SN-DCGAN trained for long; these two are small DCGANs that others trained. One network "
    "each: intervals are over test images.",
)


def fits(settings: Settings) -> Iterator[Fit]:
    """The bases, as they are fitted."""
    for critic, _ in settings.critics:
        fisher = Fisher(critic, settings.rank, settings.fitted, samples=settings.samples)
        yield Fit(f"{critic}, rank {fisher.rank}", fisher.model, few_inputs(fisher.network), fisher.fitted, fisher.rank)


def run(ledger: Ledger, pictures: Path, settings: Settings) -> Iterator[Row]:
    """What is dear comes last."""
    data = load_network(settings.varied).network.data
    train, test = (load(data, split) for split in ("train", "test"))
    task = Task(ledger, settings, data, train, test.take(slice(settings.test)))
    (first, labels), *others = settings.critics
    rows = []
    for several in (task.compared(first, labels), task.in_full(), task.variations(), task.baselines()):
        for row in several:
            rows.append(row)
            yield row
    for critic, labels in (*others, (first, settings.all_labels)):
        for row in task.compared(critic, labels):
            rows.append(row)
            yield row
    _picture(rows, pictures)


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
        rank = s.rank if critic == s.varied else s.used
        return Fisher(critic, rank, s.fitted, self.data, s.samples, used=s.used)

    def pair(self, fisher: Fisher, labelled: int, tested: int) -> Pair:
        """Embeddings of the first training and the first test images."""
        parts = (("train", self.train.take(slice(labelled))), ("test", self.test.take(slice(tested))))
        a, b = (embedded(fisher, self.ledger, self.train, part.images, name) for name, part in parts)
        return a, b

    def row(self, method: str, pair: Any, **facts: Any) -> Row:
        """A probe of the pair (or of the pair that is made when it is called), measured once; labels by its length."""
        labelled, tested = facts["labels"], facts["tested"]
        name = f"{facts['role']}, {facts['network']}: {method}, {labelled} labels, {tested} tested"
        found = self.ledger.once(name, self._probe, self.settings, pair, labelled, tested)
        interval = Estimate(found["value"], found["low"], found["high"])
        kept = {key: found[key] for key in ("features", "strength", "converged")}
        return single(method, interval, metric="test accuracy", **facts, **kept)

    def _probe(self, _: Settings, pair: Any, labelled: int, tested: int) -> dict[str, Any]:
        a, b = pair() if callable(pair) else pair
        labels, test_labels = self.train.labels[:labelled], self.test.labels[:tested]
        result = probe(a, labels, b, test_labels, strengths=self.settings.strengths)
        return {
            "value": result.accuracy.value, "low": result.accuracy.low, "high": result.accuracy.high,
            "features": result.features, "strength": result.strength, "converged": result.classifier.converged,
        }  # fmt: skip

    def compared(self, critic: str, labels: int) -> Iterator[Row]:
        """The Fisher embedding against its rank, and the critic's activations."""
        facts = dict(network=critic, labels=labels, tested=len(self.test), role=COMPARED)
        a, b = self.pair(self.fisher(critic), labels, len(self.test))
        for k in (k for k in self.settings.ranks if k <= a.shape[1]):
            yield self.row(f"Fisher embedding, {k}", (a[:, :k], b[:, :k]), **facts)
        seen = self.activations(critic, labels, len(self.test))
        for name in seen[0]:
            yield self.row(f"activations: {name}", (seen[0][name], seen[1][name]), **facts)

    def activations(self, critic: str, labels: int, tested: int) -> list[dict[str, np.ndarray]]:
        parts = (self.train.take(slice(labels)), self.test.take(slice(tested)))
        return [activations(load_network(critic), part.images) for part in parts]

    def baselines(self) -> Iterator[Row]:
        """Pixels, and a supervised network of the same images: its own accuracy, and a probe of its features."""
        n, m = self.settings.critics[0][1], len(self.test)
        facts = dict(labels=n, tested=m, role="other features")
        train = self.train.take(slice(n))
        flat = [part.images.reshape(len(part), -1) for part in (train, self.test)]
        rank = self.settings.used
        yield self.row(f"PCA of the pixels, {rank}", lambda: _principal(*flat, rank), network="-", **facts)
        name = self.settings.supervised

        def features() -> Pair:
            network = load_network(name)
            a, b = (last_features(network, network.inputs(part.images)) for part in (train, self.test))
            return a, b

        few = self.settings.few
        facts = dict(network=name, labels=few, tested=m, role="other features")
        train = train.take(slice(few))
        yield self.row("last features of a supervised network", features, **facts)
        found = self.ledger.once(f"{name}: itself", self._itself, self.settings, name)
        interval = Estimate(found["value"], found["low"], found["high"])
        yield single("a supervised network itself", interval, metric="test accuracy", **facts)

    def _itself(self, _: Settings, name: str) -> dict[str, float]:
        network = load_network(name)
        share = proportion(network.outputs(network.inputs(self.test.images)).argmax(1) == self.test.labels)
        return {"value": share.value, "low": share.low, "high": share.high}

    def in_full(self) -> Iterator[Row]:
        """The full Fisher vector and its leading components through the exact kernel; activations beside it."""
        critic, n = self.settings.varied, self.settings.few
        facts = dict(network=critic, labels=n, tested=n, role="full Fisher vector")

        def full() -> Pair:
            parts = (part.take(slice(n)) for part in (self.train, self.test))
            kernel = full_kernel(self.fisher(critic), self.ledger, self.train, *parts)
            a, b = kernel_features(kernel["train"], kernel["test"])
            return a, b

        def leading(k: int) -> Pair:
            a, b = full()
            return a[:, :k], b[:, :k]

        for k in self.settings.ranks:
            yield self.row(f"Fisher embedding, {k}", lambda k=k: leading(k), **facts)
        yield self.row("full Fisher vector", full, **facts)
        seen = self.activations(critic, n, n)
        for name in ("all layers, means", "last layer, in full"):
            yield self.row(f"activations: {name}", (seen[0][name], seen[1][name]), **facts)

    def variations(self) -> Iterator[Row]:
        """One thing at a time is varied, at a smaller size; the embedding without any variation comes first."""
        s = self.settings
        plain = Fisher(s.varied, s.used, s.varied_fitted, self.data, s.varied_samples, used=s.used)
        facts = dict(network=s.varied, labels=s.few, tested=s.few, role="one thing varied")
        varied = {
            "Fisher embedding": plain, "score after the sigmoid": replace(plain, sigmoid=True),
            "moments over the data": replace(plain, expectation="data"),
            "untrained critic": replace(plain, state="untrained"),
            "random directions of the Fisher vector": replace(plain, state="projected"),
        }  # fmt: skip
        for name, fisher in varied.items():
            yield self.row(f"{name}, {s.used}", lambda fisher=fisher: self.pair(fisher, s.few, s.few), **facts)
        yield self.row(f"mean with the mirror image, {s.used}", lambda: self._mirrored(plain), **facts)
        yield self.row(f"each component to variance one, {s.used}", lambda: self._whitened(plain), **facts)
        seen, name = self.activations(s.varied, s.few, s.few), "last layer, in full"
        pair = lambda: _principal(seen[0][name], seen[1][name], s.used)  # noqa: E731
        yield self.row(f"activations: {name}, their PCA, {s.used}", pair, **facts)

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


def _picture(rows: list[Row], pictures: Path) -> None:
    """Accuracy against k with its interval, and the best activations with as many labels as levels."""
    lines, levels = {}, {}
    several = [row for row in rows if row["role"] == COMPARED]
    for critic, labels in dict.fromkeys((row["network"], row["labels"]) for row in several):
        mine = [row for row in several if (row["network"], row["labels"]) == (critic, labels)]
        ours = [row for row in mine if row["method"].startswith("Fisher")]
        name = f"{critic.removeprefix('cifar10-')}, {labels:,} labels"
        half = [50 * (row["high"] - row["low"]) for row in ours]
        ranks = [int(row["method"].split(", ")[1]) for row in ours]
        lines[f"Fisher embedding ({name})"] = (ranks, [100 * row["value"] for row in ours], half)
        best = max((row for row in mine if row["method"].startswith("activations")), key=lambda row: row["value"])
        levels[f"{best['method']} ({name})"] = 100 * best["value"]
    figures.curves(
        lines, pictures / "accuracy.png", "Linear probes of critics that others trained",
        "components k of the Fisher embedding", "test accuracy, %", levels, logarithmic=True,
    )  # fmt: skip
