"""How low the rank is: what the first k components hold, trained and untrained, and in which sense of "hold".

The paper says that 100 components of a trained critic hold 99.5 %, and that an untrained one has much less. Here one
thing at a time is varied: rows (real or generated images), moments (mean and Fisher over generated or real images),
the score (raw or after the sigmoid), the shift that all rows share (in or out), and the share itself (of the variance,
or of the squared eigenvalues). Then convolutional against dense, and classifiers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx

import nfk
from nfk.tasks import kernel_spectrum
from reproduction import figures
from reproduction.data import load
from reproduction.families.gan import GAN, DigitGAN
from reproduction.families.trained import trained
from reproduction.networks import MLP, LeNet5
from reproduction.paper.rehearsal import Fit
from reproduction.pretrained import NETWORKS, Pretrained, untrained
from reproduction.pretrained import load as load_network
from reproduction.tasks.features import draw
from reproduction.tasks.ledger import Ledger, Row, row
from reproduction.training import train_classifier

OWN, DENSE, LENET = "DCGAN of 16,871 parameters", "dense, 784-70-70", "LeNet-5"
THEIRS = "mnist-lenet5"  # that others trained
CONDITIONS: dict[str, dict[str, Any]] = {  # what each varies of the first
    "real rows, moments over generated images": {},
    "moments over the data": {"moments": "data"},
    "generated rows": {"rows": "generated"},
    "score after the sigmoid": {"sigmoid": True},
}

MAIN = tuple(CONDITIONS)[:2]  # which all sizes and all seeds have


@dataclass(frozen=True)
class Settings:
    own: tuple[int, ...] = (4_000, 10_000)  # rows for our own critic; all conditions with the fewest
    critics: tuple[str, ...] = (
        "mnist-wgan-gp-critic", "mnist-gan-critic", "cifar10-dcgan-critic", "cifar10-dcgan-critic-wide",
    )  # fmt: skip
    rows: int = 1_000  # for critics that others trained; for those of CIFAR-10, which are large, half
    samples: int = 1_024  # generated images for their moments
    classifier_rows: int = 2_000
    learnt: int = 10_000  # images that LeNet-5 and the dense network learn from
    epochs: int = 3
    ks: tuple[int, ...] = (1, 10, 100)
    seeds: int = 3


PRESETS = {
    "smoke": Settings(own=(), critics=("mnist-gan-critic",), rows=24, samples=16, classifier_rows=0, ks=(1, 10),
                      seeds=1),
    "cpu": Settings(), "paper": Settings(rows=10_000, samples=4_096, classifier_rows=10_000, learnt=60_000, epochs=20),
}  # fmt: skip
SMALLER = (
    "Our own critic of 16,871 parameters has N = 4,000 rows under all conditions, and 10,000 under the first two. The "
    "critics that others trained (134,721 to 692,065 parameters) have 1,000 rows, those of CIFAR-10 500, "
    "and moments over 1,024 generated images; the classifiers have 2,000 rows (`mnist-lenet5` is the one that others "
    "trained, its seeds are draws of the rows). Shares fall with N.",
    "A trained critic is one network: its seeds are draws of the rows and of the generated images. Untrained ones have "
    "a seed of their own each, and so do LeNet-5 and the dense network. Generated rows and the sigmoid have one seed "
    "for the critics that others trained.",
)


@dataclass(frozen=True)
class Measured:
    """A network in one state over one condition, all seeds: shares by (shift, of) and seed, at every k."""

    network: str
    state: str
    condition: str
    rows: int
    found: list[dict[str, Any]]


def fits(settings: Settings) -> Iterator[Fit]:
    """The kernels of the trained critics, as fits of that rank."""
    for name in settings.critics:
        model, X = Others(name, settings.samples).prepared(32, "trained", 0, {})
        yield Fit(name, model, X, settings.rows, max(settings.ks))


def run(ledger: Ledger, pictures: Path, settings: Settings) -> Iterator[Row]:
    found = []
    for one in _measured(ledger, settings):
        found.append(one)
        yield from _rows(one, settings)
    for condition in CONDITIONS:
        _picture([one for one in found if one.condition == condition], settings, pictures)
    if settings.classifier_rows:
        _picture([one for one in found if one.condition == "classifier"], settings, pictures)


def _measured(ledger: Ledger, settings: Settings) -> Iterator[Measured]:
    yield from _critics(ledger, settings, _subjects(settings))
    yield from _classifiers(ledger, settings)
    yield from _critics(ledger, settings, [(_own(settings), rows, MAIN) for rows in settings.own[1:]])


def _critics(
    ledger: Ledger, settings: Settings, several: Iterable[tuple[Subject, int, tuple[str, ...]]]
) -> Iterator[Measured]:
    for subject, rows, conditions in several:
        for condition in conditions:
            seeds = range(settings.seeds if subject.name == OWN or condition in MAIN else 1)
            for state in ("trained", "untrained"):
                name = f"{subject.name}, {rows} rows, {state}, {condition}"
                arguments = (_shares, Asked(settings.ks, subject.samples), subject, rows, state, condition)
                made = [ledger.once(f"{name}, {seed}", *arguments, seed) for seed in seeds]
                yield Measured(subject.name, state, condition, rows, made)


def _classifiers(ledger: Ledger, settings: Settings) -> Iterator[Measured]:
    about = Learning(settings.ks, settings.classifier_rows, settings.learnt, settings.epochs)
    for name in (LENET, DENSE, THEIRS) if settings.classifier_rows else ():
        make = _classifier_of_others if name == THEIRS else _classifier
        both = [ledger.once(f"{name}, {seed}", make, about, name, seed) for seed in range(settings.seeds)]
        for state in ("trained", "untrained"):
            several = [one[state] for one in both]
            yield Measured(name, state, "classifier", settings.classifier_rows, several)


def _own(settings: Settings) -> Own:
    return Own(max(settings.samples, min(max(settings.own, default=0), 4_096)))


def _subjects(settings: Settings) -> Iterator[tuple[Subject, int, tuple[str, ...]]]:
    """Critics with the rows of their kernels and the conditions."""
    own = _own(settings)
    for rows in settings.own[:1]:
        yield own, rows, own.conditions
    for name in settings.critics:
        large = NETWORKS[name].data == "cifar10"
        other = Others(name, settings.samples)
        yield other, settings.rows // 2 if large else settings.rows, other.conditions


@dataclass(frozen=True)
class Asked:
    """What the shares of a critic depend on, beside their name."""

    ks: tuple[int, ...]
    samples: int


@dataclass(frozen=True)
class Learning:
    """The same for a classifier that is trained for it."""

    ks: tuple[int, ...]
    rows: int
    learnt: int
    epochs: int


class Subject(Protocol):
    """A critic in two states, and the images that it is asked about."""

    name: str
    samples: int
    conditions: tuple[str, ...]

    def prepared(self, rows: int, state: str, seed: int, varied: dict[str, Any]) -> tuple[nfk.Model, np.ndarray]:
        """The model, and the rows of its kernel."""
        ...


@dataclass(frozen=True)
class Own:
    """The critic of `reproduction.families`, trained here."""

    samples: int
    name: str = OWN
    conditions: tuple[str, ...] = tuple(CONDITIONS)

    def prepared(self, rows: int, state: str, seed: int, varied: dict[str, Any]) -> tuple[nfk.Model, np.ndarray]:
        family = DigitGAN()
        network: GAN = trained(family)[0] if state == "trained" else family.build(seed + 1000)
        sample = family.model(network).sample
        over = varied.get("moments", "model")
        options = {"sigmoid": varied.get("sigmoid", False), "expectation": over, "samples": self.samples}
        model = nfk.gan(*nfk.from_nnx(network.critic), sample=sample, **options)
        if varied.get("rows") == "generated":
            return model, np.asarray(sample(jax.random.key(seed + 100), rows))
        return model, family.examples(draw(load("mnist", "train"), rows, seed))


@dataclass(frozen=True)
class Others:
    """A critic that others trained; untrained, its generator is untrained too."""

    name: str
    samples: int

    @property
    def conditions(self) -> tuple[str, ...]:
        paired = NETWORKS[self.name].partner is not None
        return tuple(CONDITIONS) if paired else ("moments over the data",)

    def prepared(self, rows: int, state: str, seed: int, varied: dict[str, Any]) -> tuple[nfk.Model, np.ndarray]:
        network = load_network(self.name) if state == "trained" else _untrained_pair(self.name, seed + 1000)
        over = "data" if network.generator is None else varied.get("moments", "model")
        options = {"sigmoid": varied.get("sigmoid", False), "expectation": over, "samples": self.samples}
        model = network.model(**options)
        if varied.get("rows") == "generated":
            return model, network.sample(seed + 100, rows)
        return model, network.inputs(draw(load(network.network.data, "train"), rows, seed).images)


def _untrained_pair(name: str, seed: int) -> Pretrained:
    made, partner = untrained(name, seed), NETWORKS[name].partner
    return Pretrained(made.network, made.module, untrained(partner, seed) if partner else None)


def _shares(about: Asked, subject: Subject, rows: int, state: str, condition: str, seed: int) -> dict[str, Any]:
    model, X = subject.prepared(rows, state, seed, CONDITIONS[condition])
    return shares(model, X, about.ks, seed)


def shares(model: nfk.Model, X: np.ndarray, ks: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Shares of the first k with and without the shift, of variance and of squares; the share of the shift."""
    seen = X if model.expectation == "data" else X[:2]  # what the moments need: all rows, or none of them
    K = nfk.fit(model, seen, 1, key=seed, tol=0.5, memory="4GB").gram(X, memory="4GB")
    made: dict[str, Any] = {"shift": float(K.mean(dtype=np.float64) * len(K) / np.trace(K, dtype=np.float64))}
    for shift, where in ((True, "in"), (False, "out")):
        found = kernel_spectrum(K, max(ks), shift=shift)
        made[f"shift {where}, variance"] = [float(found.cumulative[k - 1]) for k in ks]
        made[f"shift {where}, squares"] = [float(found.cumulative_squares[k - 1]) for k in ks]
    return made


def _classifier(about: Learning, name: str, seed: int) -> dict[str, Any]:
    """Before and after a short training; moments over the rows, as for every classifier."""
    rngs = nnx.Rngs(seed)
    network = LeNet5(10, rngs=rngs) if name == LENET else MLP(hidden=70, classes=10, rngs=rngs)
    X = draw(load("mnist", "test"), about.rows, seed).images
    before = shares(nfk.classifier(*nfk.from_nnx(network)), X, about.ks, seed)
    train_classifier(network, draw(load("mnist", "train"), about.learnt, seed), epochs=about.epochs, seed=seed)
    return {"trained": shares(nfk.classifier(*nfk.from_nnx(network)), X, about.ks, seed), "untrained": before}


def _classifier_of_others(about: Learning, name: str, seed: int) -> dict[str, Any]:
    images = draw(load("mnist", "test"), about.rows, seed).images
    networks = {"trained": load_network(name), "untrained": untrained(name, seed + 1000)}
    return {state: shares(one.model(), one.inputs(images), about.ks, seed) for state, one in networks.items()}


def _rows(one: Measured, settings: Settings) -> Iterator[Row]:
    facts = dict(network=one.network, state=one.state, condition=one.condition, rows=one.rows)
    for kind in (key for key in one.found[0] if key != "shift"):
        shift, of = kind.split(", ")
        for place, k in enumerate(settings.ks):
            values = [found[kind][place] for found in one.found]
            yield row(f"{one.network}, {one.state}", values, metric=f"share of the {of}, k = {k}", k=k, of=of,
                      shift=shift.removeprefix("shift "), **facts)  # fmt: skip
    values = [found["shift"] for found in one.found]
    yield row(f"{one.network}, {one.state}", values, metric="share of the shift in the variance", **facts)


def _picture(several: list[Measured], settings: Settings, pictures: Path) -> None:
    """Shares against k for every network, trained and untrained: of the variance and of the squares, shift out.

    A bar is one standard deviation over seeds, where there are several.
    """
    condition = several[0].condition
    for of in ("variance", "squares"):
        lines = {}
        for one in several:
            found = 100 * np.array([found[f"shift out, {of}"] for found in one.found])
            spread = found.std(axis=0, ddof=1) if len(found) > 1 else np.zeros(len(settings.ks))
            lines[f"{one.network}, {one.rows:,} rows", one.state == "trained"] = settings.ks, found.mean(axis=0), spread
        name = f"{condition.replace(',', '').replace(' ', '-')}-{of}.png"
        title = f"Share of the {of} ({condition}; without the common shift)"
        figures.pairs(lines, pictures / name, title, "components k", f"share of the {of}, %")
