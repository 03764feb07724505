"""Table 1: linear probes of a CIFAR-10 critic's Fisher embedding, beside its activations and other features.

The critics were trained by others, the VAE here. A basis is fitted on some training images without labels; then more of
them are embedded, and a logistic regression learns from their labels, its strength chosen on a tenth of them. Two
accuracies over the same test images are compared image by image: their difference has a narrower interval than either.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from nfk.tasks import Estimate, average, kernel_features, probe, proportion
from reproduction import figures
from reproduction.data import Split, load
from reproduction.paper.critics import (
    Fisher,
    activations,
    embedded,
    few_inputs,
    fitted,
    full_kernel,
    last_weights,
    posterior_means,
)
from reproduction.paper.rehearsal import Fit
from reproduction.paper.runner import single
from reproduction.pretrained import load as load_network
from reproduction.pretrained.measuring import last_features
from reproduction.tasks.ledger import Ledger, Row

Pair = tuple[np.ndarray, np.ndarray]
COMPARED, DIFFERENCES = "the embedding and the activations", "differences"
STEPS = "from the last layer to the embedding, one change at a time"
LAST, POOLED = "last layer, in full", "all layers, means"


@dataclass(frozen=True)
class Settings:
    networks: tuple[tuple[str, int, int], ...] = (  # labels, components
        ("cifar10-dcgan-critic", 10_000, 512), ("cifar10-dcgan-critic-wide", 10_000, 512), ("cifar10-vae", 10_000, 256),
    )  # fmt: skip
    all_labels: int = 50_000  # of these, in the end
    whole: tuple[str, ...] = ("cifar10-dcgan-critic", "cifar10-dcgan-critic-wide")
    supervised: str = "cifar10-wrn-16-2-a"
    fitted: int = 2_000  # images, without labels, that the basis is fitted on
    ranks: tuple[int, ...] = (64, 128, 256, 512)
    used: int = 256  # components, and principal ones, of what is varied
    test: int = 10_000
    full: tuple[int, int] = (5_000, 3_000)  # labels and test images of the full Fisher vector
    in_full: tuple[str, ...] = ("cifar10-dcgan-critic", "cifar10-dcgan-critic-wide")  # whose it is
    stepped: tuple[str, ...] = (  # from whose last layer one goes to the embedding
        "cifar10-dcgan-critic", "cifar10-dcgan-critic-wide",
    )  # fmt: skip
    varied_fitted: int = 1_000
    varied_samples: int = 2_048
    few: int = 2_000  # labels of what is varied, and as many test images
    samples: int = 4_096
    strengths: tuple[float, ...] = (1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0)  # of the probes, to choose from


PRESETS = {
    "smoke": Settings(
        networks=(("mnist-gan-critic", 80, 16),), all_labels=120, whole=("mnist-gan-critic",),
        supervised="mnist-lenet5", in_full=("mnist-gan-critic",), stepped=("mnist-gan-critic",),
        fitted=50, ranks=(4, 16), used=16, test=60, full=(50, 40), varied_fitted=30, varied_samples=16, few=50,
        samples=16,
    ),
    "cpu": Settings(),
    "paper": Settings(
        networks=(("cifar10-dcgan-critic", 10_000, 512), ("cifar10-dcgan-critic-wide", 50_000, 512),
                  ("cifar10-vae", 50_000, 512)),
        fitted=50_000, full=(50_000, 10_000), varied_fitted=50_000, few=10_000,
    ),
}  # fmt: skip
SMALLER = (
    "The basis is fitted on 2,000 of the 50,000 training images, without labels. The critics then embed 10,000 and all "
    "50,000, the VAE 10,000. The second critic (`-wide`) has no generator: its moments are over the data.",
    "The full Fisher vector is probed with 5,000 labels and 3,000 test images, through the exact kernel of these "
    "images; its leading components and the activations stand beside it at that size.",
    "What is varied one at a time has rank 256, a basis from 1,000 images, moments over 2,048 generated images, 2,000 "
    "labels and 2,000 test images; the same embedding, unvaried, stands first.",
    "The paper's critic is an SN-DCGAN trained for long, and its VAE has 39 million parameters; these two critics are "
    "small DCGANs that others trained, and the VAE (397,700 parameters, 6,000 steps) is trained here. One network "
    "each: intervals are over test images.",
)


@dataclass(frozen=True)
class Probed:
    """What the accuracy of a probe depends on, beside its name and the images in their order."""

    source: str  # of the features
    labels: int
    tested: int
    strengths: tuple[float, ...]


def fits(settings: Settings) -> Iterator[Fit]:
    """The bases, as they are fitted."""
    for name, _, rank in settings.networks:
        fisher = Fisher(name, rank, settings.fitted, samples=settings.samples)
        yield Fit(f"{name}, rank {fisher.rank}", fisher.model, few_inputs(fisher.network), fisher.fitted, fisher.rank)


def run(ledger: Ledger, pictures: Path, settings: Settings) -> Iterator[Row]:
    """What is dear comes last."""
    first, *others = settings.networks
    chosen = (settings.whole, settings.in_full, settings.stepped)
    whole, full, stepped = ([one for one in settings.networks if one[0] in names] for names in chosen)
    data = load_network(first[0]).network.data
    train, test = (load(data, split) for split in ("train", "test"))
    task = Task(ledger, settings, data, train, test.take(slice(settings.test)))
    rows: list[Row] = []
    parts = [task.compared(*first), task.baselines(), *(task.compared(*other) for other in others)]
    for several in (
        *parts,
        *(task.in_full(*network) for network in full),
        task.variations(),
        *(task.steps(*network) for network in stepped),
        *(task.compared(name, settings.all_labels, rank) for name, _, rank in whole),
    ):
        for row in several:
            rows.append(row)
            yield row
    _picture(rows, pictures)


@dataclass(frozen=True)
class Task:
    """All measurements over the same images; `critic` is the first network, of which more is measured."""

    ledger: Ledger
    settings: Settings
    data: str
    train: Split
    test: Split

    @property
    def critic(self) -> str:
        return self.settings.networks[0][0]

    def fisher(self, name: str, rank: int) -> Fisher:
        return Fisher(name, rank, self.settings.fitted, self.data, self.settings.samples, used=rank)

    def pair(self, fisher: Fisher, labelled: int, tested: int) -> Pair:
        """Embeddings of the first training and the first test images."""
        parts = (("train", self.train.take(slice(labelled))), ("test", self.test.take(slice(tested))))
        a, b = (embedded(fisher, self.ledger, self.train, part.images, name) for name, part in parts)
        return a, b

    def row(self, method: str, pair: Any, source: str = "", **facts: Any) -> Row:
        """A probe of the pair (or of the pair that is made when it is called), measured once."""
        about = Probed(source, facts["labels"], facts["tested"], self.settings.strengths)
        name = f"{facts['role']}, {facts['network']}: {method}, {about.labels} labels, {about.tested} tested"
        found = self.ledger.once(name, self._probe, about, pair)
        interval = Estimate(found["value"], found["low"], found["high"])
        kept = {key: found[key] for key in ("features", "strength", "held_out", "converged", "correct")}
        return single(method, interval, metric="test accuracy", **facts, **kept)

    def _probe(self, about: Probed, pair: Any) -> dict[str, Any]:
        a, b = pair() if callable(pair) else pair
        labels, test_labels = self.train.labels[: about.labels], self.test.labels[: about.tested]
        result = probe(a, labels, b, test_labels, strengths=about.strengths)
        return {
            "value": result.accuracy.value, "low": result.accuracy.low, "high": result.accuracy.high,
            "features": result.features, "strength": result.strength, "held_out": result.held_out[result.strength],
            "converged": result.classifier.converged, "correct": np.packbits(result.correct).tobytes().hex(),
        }  # fmt: skip

    def compared(self, name: str, labels: int, rank: int) -> Iterator[Row]:
        """The Fisher embedding against its rank, and the activations; then each rank against the best of these."""
        facts = dict(network=name, labels=labels, tested=len(self.test), role=COMPARED)
        fisher = self.fisher(name, rank)
        a, b = self.pair(fisher, labels, len(self.test))
        ranks = [k for k in self.settings.ranks if k <= rank]
        ours = [self.row(f"Fisher embedding, {k}", (a[:, :k], b[:, :k]), fisher.name, **facts) for k in ranks]
        seen = self.activations(name, labels, len(self.test))
        theirs = [self.row(f"activations: {layer}", (seen[0][layer], seen[1][layer]), **facts) for layer in seen[0]]
        yield from map(_shown, ours + theirs)
        few = self.settings.used
        if seen[0].get(LAST, a).shape[1] > few:
            pair = lambda: _principal(seen[0][LAST], seen[1][LAST], few)  # noqa: E731
            as_many = self.row(f"activations: {LAST}, their PCA, {few}", pair, **facts)
            yield _shown(as_many)
            yield from _differences(ours, [as_many], facts)
        for pooled in (row for row in theirs if row["method"].endswith(POOLED)):  # what the paper compares with
            yield from _differences(ours, [pooled], facts)
        yield from _differences(ours, theirs, facts)

    def activations(self, name: str, labels: int, tested: int) -> list[dict[str, np.ndarray]]:
        network = self.fisher(name, 1).network
        parts = (self.train.take(slice(labels)), self.test.take(slice(tested)))
        if network.network.kind == "vae":
            return [{"means of the latents": posterior_means(network, part.images)} for part in parts]
        return [activations(network, part.images) for part in parts]

    def baselines(self) -> Iterator[Row]:
        """Pixels, and a supervised network of the same images: its own accuracy, and a probe of its features."""
        n, m = self.settings.networks[0][1], len(self.test)
        facts = dict(labels=n, tested=m, role="other features")
        train = self.train.take(slice(n))
        flat = [part.images.reshape(len(part), -1) for part in (train, self.test)]
        rank = self.settings.used
        yield _shown(self.row(f"PCA of the pixels, {rank}", lambda: _principal(*flat, rank), network="-", **facts))
        name = self.settings.supervised

        def features() -> Pair:
            network = load_network(name)
            a, b = (last_features(network, network.inputs(part.images)) for part in (train, self.test))
            return a, b

        few = self.settings.few
        facts = dict(network=name, labels=few, tested=m, role="other features")
        train = train.take(slice(few))
        yield _shown(self.row("last features of a supervised network", features, **facts))
        found = self.ledger.once(f"{name}: itself", self._itself, Probed(name, 0, m, ()))
        interval = Estimate(found["value"], found["low"], found["high"])
        yield single("a supervised network itself", interval, metric="test accuracy", **facts)

    def _itself(self, about: Probed) -> dict[str, float]:
        network = load_network(about.source)
        share = proportion(network.outputs(network.inputs(self.test.images)).argmax(1) == self.test.labels)
        return {"value": share.value, "low": share.low, "high": share.high}

    def in_full(self, critic: str, _: int, rank: int) -> Iterator[Row]:
        """The full Fisher vector and its leading components through the exact kernel; activations beside it.

        The kernel gives as many numbers as there are labels, whose inner products are those of the full vectors.
        """
        n, m = self.settings.full
        fisher, parts = self.fisher(critic, rank), (self.train.take(slice(n)), self.test.take(slice(m)))

        @cache
        def full() -> Pair:
            kernel = full_kernel(fisher, self.ledger, self.train, *parts)
            a, b = kernel_features(kernel["train"], kernel["test"])
            return a, b

        def leading(k: int) -> Pair:
            return full()[0][:, :k], full()[1][:, :k]

        facts = dict(network=critic, labels=n, tested=m, role="full Fisher vector")
        names = {f"Fisher embedding, {k}": k for k in self.settings.ranks} | {"full Fisher vector": n}
        source = f"{self.settings.samples} generated"
        ours = [self.row(name, lambda k=k: leading(k), source, **facts) for name, k in names.items()]
        seen = self.activations(critic, n, m)
        layers = [layer for layer in seen[0] if layer in (POOLED, LAST)]
        theirs = [self.row(f"activations: {layer}", (seen[0][layer], seen[1][layer]), **facts) for layer in layers]
        yield from map(_shown, ours + theirs)
        yield from _differences(ours, theirs, facts)
        yield from _differences(ours[:-1], ours[-1:], facts)

    def steps(self, critic: str, labels: int, rank: int) -> Iterator[Row]:
        """Four probes, each of what differs from the one before by one change, and the difference.

        The gradient in the last weights is what the last layer sees. So its Fisher vector is these numbers, each
        divided by its own deviation; then the leading components of that; then the gradients in all other weights, too.
        """
        used, tested = min(self.settings.used, rank), len(self.test)
        facts = dict(network=critic, labels=labels, tested=tested, role=STEPS)
        whole = self.fisher(critic, rank)
        last = replace(whole, rank=used, used=used, parameters=last_weights(whole.network))
        seen = [part[LAST] for part in self.activations(critic, labels, tested)]

        def scaled() -> Pair:
            scale = fitted(last, self.ledger, self.train).moments.scale
            return seen[0] * scale, seen[1] * scale

        def leading() -> Pair:
            a, b = self.pair(whole, labels, tested)
            return a[:, :used], b[:, :used]

        changes: dict[str, Any] = {
            f"{LAST}": (seen[0], seen[1]),
            "each number over its deviation": scaled,
            f"the first {used} components of these": lambda: self.pair(last, labels, tested),
            f"and of the gradients of all other weights, {used}": leading,
        }
        made = [self.row(name, pair, last.name, **facts) for name, pair in changes.items()]
        yield from map(_shown, made)
        for before, after in itertools.pairwise(made):
            yield from _differences([after], [before], facts)

    def variations(self) -> Iterator[Row]:
        """One thing at a time is varied, at a smaller size; the embedding without any variation comes first."""
        s = self.settings
        plain = Fisher(self.critic, s.used, s.varied_fitted, self.data, s.varied_samples, used=s.used)
        facts = dict(network=self.critic, labels=s.few, tested=s.few, role="one thing varied")
        varied = {
            "Fisher embedding": plain, "score after the sigmoid": replace(plain, sigmoid=True),
            "moments over the data": replace(plain, expectation="data"),
            "untrained critic": replace(plain, state="untrained"),
            "random directions of the Fisher vector": replace(plain, state="projected"),
        }  # fmt: skip
        made = [
            self.row(f"{name}, {s.used}", lambda one=one: self.pair(one, s.few, s.few), one.name, **facts)
            for name, one in varied.items()
        ]
        made.append(self.row(f"mean with the mirror image, {s.used}", lambda: self._mirrored(plain), **facts))
        made.append(self.row(f"each component to variance one, {s.used}", lambda: self._whitened(plain), **facts))
        seen = self.activations(self.critic, s.few, s.few)
        pair = lambda: _principal(seen[0][LAST], seen[1][LAST], s.used)  # noqa: E731
        made.append(self.row(f"activations: {LAST}, their PCA, {s.used}", pair, **facts))
        yield from map(_shown, made)
        yield from _differences(made[1:], made[:1], facts)

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


def _shown(row: Row) -> Row:
    """Without the single images, which the ledger keeps."""
    return {key: value for key, value in row.items() if key != "correct"}


def _differences(ours: list[Row], theirs: list[Row], facts: Row) -> Iterator[Row]:
    """Each of ours less the best of theirs, image by image; the best on held-out training images, not in the test."""
    best = max(theirs, key=lambda row: row["held_out"])
    for row in ours:
        a, b = (np.unpackbits(np.frombuffer(bytes.fromhex(one["correct"]), np.uint8)) for one in (row, best))
        each = np.subtract(a, b, dtype=np.int8)[: facts["tested"]]
        about = facts | {"role": DIFFERENCES, "of": facts["role"], "less": best["method"]}
        yield single(row["method"], average(each), metric="difference of test accuracies", **about)


def _principal(a: np.ndarray, b: np.ndarray, rank: int) -> Pair:
    fitted = PCA(min(rank, *a.shape), random_state=0, svd_solver="randomized").fit(a)
    return fitted.transform(a), fitted.transform(b)


def _picture(rows: list[Row], pictures: Path) -> None:
    """Accuracy against k with its interval, and the best activations with as many labels as levels."""
    lines, levels = {}, {}
    several = [row for row in rows if row["role"] == COMPARED and "PCA" not in row["method"]]
    for critic, labels in dict.fromkeys((row["network"], row["labels"]) for row in several):
        mine = [row for row in several if (row["network"], row["labels"]) == (critic, labels)]
        ours = [row for row in mine if row["method"].startswith("Fisher")]
        name = f"{critic.removeprefix('cifar10-')}, {labels:,} labels"
        half = [50 * (row["high"] - row["low"]) for row in ours]
        ranks = [int(row["method"].split(", ")[1]) for row in ours]
        lines[f"Fisher embedding ({name})"] = (ranks, [100 * row["value"] for row in ours], half)
        best = max((row for row in mine if row["method"].startswith("activations")), key=lambda row: row["held_out"])
        levels[f"{best['method']} ({name})"] = 100 * best["value"]
    figures.curves(
        lines, pictures / "accuracy.png", "Linear probes on CIFAR-10",
        "components k of the Fisher embedding", "test accuracy, %", levels, logarithmic=True,
    )  # fmt: skip
