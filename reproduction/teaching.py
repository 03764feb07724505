"""Teaching a small network what a large one knows: every method in one training loop, under one recipe.

What the teacher says of each training example (logits, maps, embedding) is computed once and travels with it as rows of
arrays; a method names the signals it needs, the heads it adds to the student, and its loss.
"""

from __future__ import annotations

import itertools
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nfk.tasks import distillation_losses as losses
from nfk.tasks.checks import as_features, as_labels, one_of, same_length
from reproduction.training import cross_entropy, momentum, train_module

Signals = Mapping[str, Any]


class Seen(NamedTuple):
    """What a network makes of a batch: the outputs of its groups of layers, its pooled features, its logits."""

    groups: list[jax.Array]
    features: jax.Array
    logits: jax.Array


def look(network: Any, images: jax.Array) -> Seen:
    """Of a network with `groups`, `pooled` and `dense`, as `WideResNet` has."""
    groups = network.groups(images)
    features = network.pooled(groups[-1])
    return Seen(groups, features, network.dense(features))


@dataclass(frozen=True)
class Teacher:
    """Signals, one row per example, and a fingerprint of every example they were computed on."""

    signals: Signals
    fingerprints: np.ndarray

    @classmethod
    def of(cls, network: Any, images: np.ndarray, embedding: np.ndarray | None = None, batch: int = 250) -> Teacher:
        """The logits, maps and features of `network`, put in eval mode, on `images`; and any (n, k) target."""
        network.eval()
        compiled = nnx.jit(look)
        parts = [compiled(network, jnp.asarray(images[a : a + batch])) for a in range(0, len(images), batch)]
        join = lambda pick: np.concatenate([np.asarray(pick(part)) for part in parts])  # noqa: E731
        signals = {"logits": join(lambda seen: seen.logits), "features": join(lambda seen: seen.features)}
        for index in range(len(parts[0].groups)):
            signals[f"group{index + 1}"] = join(lambda seen, i=index: seen.groups[i])
        return cls(signals, fingerprints(images)).with_embedding(embedding)

    @classmethod
    def from_embedding(cls, images: np.ndarray, embedding: np.ndarray) -> Teacher:
        """A teacher that is only an (n, k) target, from wherever: enough for `EmbeddingTarget`."""
        return cls({}, fingerprints(images)).with_embedding(embedding)

    def with_embedding(self, embedding: np.ndarray | None) -> Teacher:
        """The same with another (n, k) target for `EmbeddingTarget`."""
        if embedding is None:
            return self
        embedding = as_features("embedding", embedding)
        same_length("embedding", embedding, "the teacher", len(self.fingerprints))
        return Teacher({**self.signals, "embedding": embedding.astype(np.float32)}, self.fingerprints)


def fingerprints(images: np.ndarray) -> np.ndarray:
    """A checksum of each example."""
    return np.array([zlib.crc32(np.ascontiguousarray(image).tobytes()) for image in images], np.uint32)


class Method(ABC):
    """label_weight * cross-entropy + weight * loss(what the student saw, the teacher's signals)."""

    name: str
    signals: tuple[str, ...] = ()
    label_weight: float = 1.0
    weight: float = 1.0

    def heads(self, student: Seen, teacher: Signals, rngs: nnx.Rngs) -> nnx.Module:
        """Layers between student and teacher that are trained with the student and thrown away after."""
        return nnx.List([])

    @abstractmethod
    def loss(self, seen: Seen, heads: Any, teacher: Signals) -> jax.Array: ...


class Alone(Method):
    name = "no teacher"

    def loss(self, seen: Seen, heads: Any, teacher: Signals) -> jax.Array:
        return jnp.zeros(())


class Softened(Method):
    name, signals = "KD", ("logits",)
    label_weight, weight = 0.1, 0.9

    def loss(self, seen: Seen, heads: Any, teacher: Signals) -> jax.Array:
        return losses.softened(seen.logits, teacher["logits"])


class Hint(Method):
    """The end of the second group, through a 1 x 1 convolution; normalised, or a weight of 100 diverges."""

    name, signals, weight = "FitNet", ("group2",), 100.0

    def heads(self, student: Seen, teacher: Signals, rngs: nnx.Rngs) -> nnx.Module:
        inputs, outputs = student.groups[1].shape[-1], teacher["group2"].shape[-1]
        return nnx.Sequential(nnx.Conv(inputs, outputs, (1, 1), rngs=rngs), nnx.BatchNorm(outputs, rngs=rngs))

    def loss(self, seen: Seen, heads: Any, teacher: Signals) -> jax.Array:
        return losses.hint(heads(seen.groups[1]), teacher["group2"])


GROUPS = ("group1", "group2", "group3")


class Attention(Method):
    """The usual weight, 1,000, is for images of 32 x 32: on a quarter of the places, the mean square of unit vectors is
    four times as large."""

    name, signals, weight = "AT", GROUPS, 250.0

    def loss(self, seen: Seen, heads: Any, teacher: Signals) -> jax.Array:
        return losses.attention(seen.groups, [teacher[name] for name in GROUPS])


class Selectivity(Method):
    name, signals, weight = "NST", GROUPS, 50.0

    def loss(self, seen: Seen, heads: Any, teacher: Signals) -> jax.Array:
        return losses.selectivity(seen.groups, [teacher[name] for name in GROUPS])


class VariationalHead(nnx.Module):
    """1 x 1 convolutions with rectifiers between, without bias, as wide as the teacher; and a variance per channel."""

    def __init__(self, inputs: int, outputs: int, rngs: nnx.Rngs) -> None:
        widths = (inputs, outputs, outputs, outputs)
        pairs = itertools.pairwise(widths)
        self.convs = nnx.List([nnx.Conv(a, b, (1, 1), use_bias=False, rngs=rngs) for a, b in pairs])
        self.raw_variance = nnx.Param(jnp.full(outputs, np.log(np.expm1(5.0 - 1e-5))))

    def __call__(self, maps: jax.Array) -> jax.Array:
        for conv in self.convs[:-1]:
            maps = nnx.relu(conv(maps))
        return self.convs[-1](maps)


class Variational(Method):
    name, signals = "VID", GROUPS

    def heads(self, student: Seen, teacher: Signals, rngs: nnx.Rngs) -> nnx.Module:
        pairs = zip(student.groups, GROUPS, strict=True)
        return nnx.List([VariationalHead(s.shape[-1], teacher[name].shape[-1], rngs) for s, name in pairs])

    def loss(self, seen: Seen, heads: Any, teacher: Signals) -> jax.Array:
        predicted = [head(maps) for head, maps in zip(heads, seen.groups, strict=True)]
        variances = [head.raw_variance[...] for head in heads]
        return losses.variational(predicted, [teacher[name] for name in GROUPS], variances)


class EmbeddingTarget(Method):
    """NFKD: a linear head on the student's pooled features predicts the teacher's k numbers.

    The paper leaves the weight of the labels open; `reproduction.tasks.distillation` chooses it on held-out training
    images.
    """

    signals = ("embedding",)

    def __init__(self, distance: losses.Distance = "squared", label_weight: float = 0.5, name: str = "NFKD") -> None:
        one_of("distance", distance, losses.DISTANCES)
        self.distance: losses.Distance = distance
        self.name, self.label_weight, self.weight = name, label_weight, 1 - label_weight

    def heads(self, student: Seen, teacher: Signals, rngs: nnx.Rngs) -> nnx.Module:
        return nnx.Linear(student.features.shape[-1], teacher["embedding"].shape[-1], rngs=rngs)

    def loss(self, seen: Seen, heads: Any, teacher: Signals) -> jax.Array:
        return losses.embedding_loss(heads(seen.features), teacher["embedding"], self.distance)


class Pupil(nnx.Module):
    """A student and the heads of a method."""

    def __init__(self, student: Any, heads: Any) -> None:
        self.student, self.heads = student, heads


def distil(
    student: Any,
    images: np.ndarray,
    labels: np.ndarray,
    method: Method,
    teacher: Teacher | None = None,
    *,
    epochs: int,
    batch: int = 128,
    seed: int = 0,
    optimizer: Any = momentum,
    **options: Any,
) -> Pupil:
    """Train `student` in place by `method`; its heads come back with it, as a `Pupil`. Options as for `train`.

    `optimizer(steps)` is SGD with momentum and a cosine schedule, the same for every method.
    """
    labels = as_labels("labels", labels, "images", len(images))
    signals = _signals(images, method, teacher)
    sample = {name: rows[:2] for name, rows in signals.items()}
    student.eval()
    pupil = Pupil(student, method.heads(look(student, jnp.asarray(images[:2])), sample, nnx.Rngs(seed + 1)))

    def loss(pupil: Any, data: dict, key: jax.Array) -> jax.Array:
        seen = look(pupil.student, data["images"])
        taught = method.loss(seen, pupil.heads, data["teacher"])
        return method.label_weight * cross_entropy(lambda _: seen.logits, data, key) + method.weight * taught

    data = {"images": images, "labels": labels, "teacher": signals}
    steps = epochs * max(len(images) // batch, 1)
    train_module(pupil, loss, data, optimizer=optimizer(steps), steps=steps, batch=batch, seed=seed, **options)
    return pupil


def _signals(images: np.ndarray, method: Method, teacher: Teacher | None) -> dict[str, np.ndarray]:
    """The teacher's rows that the method asks for, once they are known to be about these examples."""
    if not method.signals:
        return {}
    if teacher is None:
        raise ValueError(f"{method.name} needs a teacher: pass Teacher.of(network, images)")
    losses.check_same_examples(fingerprints(images), teacher.fingerprints)
    missing = [name for name in method.signals if name not in teacher.signals]
    if missing:
        raise ValueError(
            f"{method.name} needs the teacher's {missing[0]!r}, but it has {sorted(teacher.signals)}: "
            + ("add it with .with_embedding(...)" if missing[0] == "embedding" else "use Teacher.of(network, images)")
        )
    return {name: teacher.signals[name] for name in method.signals}
