"""Distillation: losses against their formulas written out, the loop on toys whose answer is known."""

from __future__ import annotations

import copy
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from nfk.tasks import distillation_losses as losses
from reproduction.teaching import (
    Alone,
    Attention,
    EmbeddingTarget,
    Hint,
    Selectivity,
    Softened,
    Teacher,
    Variational,
    distil,
    look,
)

pytestmark = pytest.mark.reproduction
RNG = np.random.default_rng(0)
S, T = (RNG.standard_normal((3, 4, 4, c)).astype(np.float32) for c in (5, 7))


def test_softened_is_the_scaled_divergence():
    s, t = RNG.standard_normal((2, 6, 5))
    p, q = (np.exp(x / 4) / np.exp(x / 4).sum(axis=1, keepdims=True) for x in (t, s))
    expected = 16 * np.mean(np.sum(p * np.log(p / q), axis=1))
    assert float(losses.softened(s, t)) == pytest.approx(expected, rel=1e-5)
    assert float(losses.softened(t, t)) == pytest.approx(0, abs=1e-6)


def test_attention_compares_where_not_how_much():
    assert float(losses.attention([S], [3 * S])) == pytest.approx(0, abs=1e-10)
    a, b = (np.mean(maps**2, axis=-1).reshape(3, -1) for maps in (S, T))
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    assert float(losses.attention([S], [T])) == pytest.approx(np.mean((a - b) ** 2), rel=1e-5)
    assert float(losses.attention([S, S], [T, T])) == pytest.approx(2 * np.mean((a - b) ** 2), rel=1e-5)


def test_selectivity_is_the_mmd_of_the_channels():
    def channels(maps, n):
        rows = maps[n].reshape(16, -1).T
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def mean_kernel(first, second):
        pairs = [(channels(first, n) @ channels(second, n).T) ** 2 for n in range(3)]
        return np.mean([pair.mean() for pair in pairs])

    expected = mean_kernel(T, T) + mean_kernel(S, S) - 2 * mean_kernel(S, T)
    assert float(losses.selectivity([S], [T])) == pytest.approx(expected, rel=1e-4)
    assert float(losses.selectivity([S], [S[..., ::-1]])) == pytest.approx(0, abs=1e-6)


def test_variational_is_the_negative_gaussian_log_likelihood():
    raw = RNG.standard_normal(7).astype(np.float32)
    variance = np.log1p(np.exp(raw)) + 1e-5
    mu = RNG.standard_normal(T.shape).astype(np.float32)
    log_density = -((mu - T) ** 2) / (2 * variance) - np.log(variance) / 2 - np.log(2 * np.pi) / 2
    found = float(losses.variational([mu], [T], [raw]))
    assert found == pytest.approx(-log_density.mean() - np.log(2 * np.pi) / 2, rel=1e-4)


def test_embedding_losses():
    a, b = RNG.standard_normal((2, 8, 3)).astype(np.float32)
    cosine = np.sum(a * b, axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert float(losses.embedding_loss(a, b)) == pytest.approx(np.sum((a - b) ** 2) / 8, rel=1e-5)
    assert float(losses.embedding_loss(a, b, "cosine")) == pytest.approx(1 - cosine.mean(), rel=1e-4)
    assert float(losses.embedding_loss(a, 9 * a, "cosine")) == pytest.approx(0, abs=1e-6)


def test_gradients_are_finite_where_maps_are_zero():
    """A ReLU's channel may be zero on a whole image."""
    b = RNG.standard_normal((8, 3)).astype(np.float32)
    assert np.isfinite(jax.grad(lambda x: losses.embedding_loss(x, b, "cosine"))(np.zeros_like(b))).all()
    for loss in (losses.attention, losses.selectivity):
        assert np.isfinite(jax.grad(lambda x, loss=loss: loss([x], [T]))(np.zeros_like(S))).all()


class Tiny(nnx.Module):
    """Three convolutions, each a group: what `look` asks of a network, and little else."""

    def __init__(self, width: int, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        widths = (3, width, width, 2 * width)
        self.convs = nnx.List([nnx.Conv(a, b, (3, 3), rngs=rngs) for a, b in itertools.pairwise(widths)])
        self.dense = nnx.Linear(2 * width, 10, rngs=rngs)

    def groups(self, images):
        found = []
        for conv in self.convs:
            images = jnp.tanh(conv(images))
            found.append(images)
        return found

    def pooled(self, last):
        return last.mean((1, 2))

    def __call__(self, images):
        return self.dense(self.pooled(self.groups(images)[-1]))


class Flat(nnx.Module):
    """A student whose features are its pixels, fixed: only a head can learn."""

    def __init__(self, classes: int = 3) -> None:
        self.dense = nnx.Linear(4, classes, rngs=nnx.Rngs(0))

    def groups(self, images):
        return [images]

    def pooled(self, last):
        return last.reshape(len(last), -1)


def test_a_target_linear_in_the_students_features_distils_to_zero_error():
    images = RNG.standard_normal((256, 2, 2, 1)).astype(np.float32)
    labels = RNG.integers(0, 3, 256)
    target = images.reshape(256, 4) @ RNG.standard_normal((4, 6)).astype(np.float32) + 1
    teacher = Teacher.from_embedding(images, target)
    method = EmbeddingTarget(label_weight=0.0)
    pupil = distil(
        Flat(), images, labels, method, teacher, epochs=150, batch=64, optimizer=lambda steps: optax.adam(0.05)
    )
    predicted = pupil.heads(jnp.asarray(images.reshape(256, 4)))
    assert float(losses.embedding_loss(predicted, target)) < 1e-6 * np.mean(target**2)


@pytest.fixture(scope="module")
def taught():
    """A small teacher, 40 images, and all it says of them."""
    images = RNG.random((40, 4, 4, 3)).astype(np.float32)
    network = Tiny(4, seed=1)
    network.eval()
    return images, RNG.integers(0, 10, 40), network, Teacher.of(network, images, RNG.standard_normal((40, 5)), batch=16)


METHODS = [
    Alone(), Softened(), Hint(), Attention(), Selectivity(), Variational(), EmbeddingTarget(), EmbeddingTarget("cosine")
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS[1:], ids=lambda method: f"{method.name} {getattr(method, 'distance', '')}")
def test_every_method_lowers_its_own_loss(taught, method):
    """With no weight on the labels, what the method itself asks for comes nearer."""
    images, labels, _, teacher = taught
    method = copy.copy(method)
    method.label_weight = 0.0
    signals = {name: teacher.signals[name] for name in method.signals}
    slow = lambda steps: optax.sgd(0.01 / max(method.weight, 1), momentum=0.9)  # noqa: E731
    after = {}
    for epochs in (0, 12):  # no epoch: the pupil as it begins
        pupil = distil(Tiny(2, seed=0), images, labels, method, teacher, epochs=epochs, batch=40, optimizer=slow)
        pupil.train()
        after[epochs] = float(method.loss(look(pupil.student, jnp.asarray(images)), pupil.heads, signals))
    assert after[12] < after[0]


def test_the_labels_are_learnt_without_a_teacher(taught):
    images, labels, _, _ = taught
    student = Tiny(4, seed=0)
    distil(student, images, labels, Alone(), epochs=400, batch=40, optimizer=lambda steps: optax.adam(0.02))
    assert np.mean(np.argmax(student(jnp.asarray(images)), axis=1) == labels) > 0.9


class Normed(Tiny):
    """With batch statistics, which a teacher in training mode would use and change."""

    def __init__(self) -> None:
        super().__init__(2, seed=0)
        self.norm = nnx.BatchNorm(4, rngs=nnx.Rngs(0))

    def pooled(self, last):
        return super().pooled(self.norm(last))


def test_a_teacher_is_asked_in_eval_mode(taught):
    images = taught[0]
    network = Normed()
    network.train()
    halves = [Teacher.of(network, part).signals["logits"] for part in (images[:20], images[20:])]
    np.testing.assert_allclose(np.concatenate(halves), Teacher.of(network, images).signals["logits"], atol=1e-5)


def test_the_teachers_signals_are_what_it_sees(taught):
    images, _, network, teacher = taught
    np.testing.assert_allclose(teacher.signals["logits"], network(jnp.asarray(images)), atol=1e-4)
    groups = network.groups(jnp.asarray(images))
    for index in range(3):
        np.testing.assert_allclose(teacher.signals[f"group{index + 1}"], groups[index], atol=1e-4)


def test_the_same_student_and_seed_without_a_teacher_is_plain_training(taught):
    """`Alone` is the training loop of every classifier, batch for batch."""
    from reproduction.data import Split
    from reproduction.training import momentum, train_classifier

    images, labels, _, _ = taught
    student, plain = (Tiny(2, seed=0) for _ in range(2))
    distil(student, images, labels, Alone(), epochs=2, batch=20, seed=3)
    train_classifier(plain, Split(images, labels), epochs=2, batch=20, seed=3, optimizer=momentum)
    np.testing.assert_allclose(student(jnp.asarray(images)), plain(jnp.asarray(images)), atol=1e-4)


class TestBadInput:
    def test_other_examples_are_refused_by_number(self, taught):
        images, labels, _, teacher = taught
        swapped = images[[1, 0, *range(2, 40)]]
        student = Tiny(2, seed=0)
        with pytest.raises(ValueError, match=r"student and teacher disagree on example 0 \(and 1 others\)"):
            distil(student, swapped, labels, Softened(), teacher, epochs=1)
        with pytest.raises(ValueError, match="the student has 30 examples and the teacher's signals are for 40"):
            distil(student, images[:30], labels[:30], Softened(), teacher, epochs=1)

    def test_labels_of_another_length(self, taught):
        images, labels, _, teacher = taught
        student = Tiny(2, seed=0)
        with pytest.raises(ValueError, match="labels has length 39, but images holds 40"):
            distil(student, images, labels[:-1], Softened(), teacher, epochs=1)

    def test_a_signal_or_a_teacher_that_is_missing(self, taught):
        images, labels, _, teacher = taught
        student = Tiny(2, seed=0)
        bare = Teacher({"logits": teacher.signals["logits"]}, teacher.fingerprints)
        with pytest.raises(ValueError, match=r"NFKD needs the teacher's 'embedding', but it has \['logits'\]"):
            distil(student, images, labels, EmbeddingTarget(), bare, epochs=1)
        with pytest.raises(ValueError, match="KD needs a teacher"):
            distil(student, images, labels, Softened(), epochs=1)
        with pytest.raises(ValueError, match="FitNet needs the teacher's 'group2'.*use Teacher.of"):
            distil(student, images, labels, Hint(), bare, epochs=1)
        with pytest.raises(ValueError, match="distance='l2' is unknown: choose 'squared' or 'cosine'"):
            EmbeddingTarget("l2")
        with pytest.raises(ValueError, match="embedding has length 3, but the teacher holds 40"):
            teacher.with_embedding(np.zeros((3, 5)))
