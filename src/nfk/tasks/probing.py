"""The linear probe: how much a linear classifier can read out of some features, with its uncertainty."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from scipy import sparse
from sklearn.model_selection import train_test_split

from nfk.notebook import Shown
from nfk.tasks.checks import (
    all_classes_known,
    as_features,
    as_labels,
    at_least_two_classes,
    one_of,
    same_width,
    whole,
)
from nfk.tasks.estimates import Estimate, proportion
from nfk.tasks.linear import LinearClassifier, Loss, fit_linear

STRENGTHS: dict[str, tuple[float, ...]] = {"logistic": (0.01, 0.1, 1.0, 10.0), "squared_hinge": (1e-3, 0.01, 0.1, 1.0)}
ROW_NORM = 10.0


@dataclass(frozen=True)
class Probe(Shown):
    """Test accuracy of a linear classifier on `features` numbers per example."""

    accuracy: Estimate
    features: int
    strength: float
    held_out: dict[float, float]
    correct: np.ndarray
    classifier: LinearClassifier
    scale: float

    def __str__(self) -> str:
        a = self.accuracy
        return f"{a.value:.2%} ({a.low:.2%} to {a.high:.2%}) with {self.features} features, strength {self.strength:g}"

    def predict(self, features: Any) -> np.ndarray:
        """The guessed labels of other examples."""
        return self.classifier.predict(as_features("features", features, sparse_too=True) / self.scale)


def probe(
    train: Any,
    labels: Any,
    test: Any,
    test_labels: Any,
    *,
    loss: Loss = "logistic",
    strengths: Iterable[float] | None = None,
    seed: int = 0,
) -> Probe:
    """Fit on the labelled features `train` (n, d), report the accuracy on `test` with its 95 % interval.

    The strength of the regularisation is the one with the best accuracy on a tenth of the training examples, held out
    class by class; then all of them are used. All features are divided by one number, so that rows have length ten on
    average: scaling each feature by its own would change the kernel.

    Args:
        train: features of the labelled examples, (n, d), dense or sparse.
        labels: one for each of them.
        test: features of other examples, (m, d).
        test_labels: one for each of them.
        loss: "logistic" or "squared_hinge".
        strengths: regularisations to choose from; a usual grid by default.
        seed: of the tenth that is held out.
    """
    train, labels, test, test_labels = checked_sets(train, labels, test, test_labels)
    scale = row_length(train) / ROW_NORM
    train, test = train / scale, test / scale
    kept, held = held_out_rows(labels, 0.1, seed)
    scores = {}
    for strength in grid(loss, strengths):
        fitted = fit_linear(train[kept], labels[kept], strength=strength, loss=loss)
        scores[strength] = float(np.mean(fitted.predict(train[held]) == labels[held]))
    best = max(scores, key=lambda strength: scores[strength])  # the most regularised among equals
    classifier = fit_linear(train, labels, strength=best, loss=loss)
    correct = classifier.correct(test, test_labels)
    return Probe(proportion(correct), train.shape[1], best, scores, correct, classifier, scale)


def probe_by_rank(
    train: Any, labels: Any, test: Any, test_labels: Any, ranks: Iterable[int], **options: Any
) -> dict[int, Probe]:
    """A probe of the first k columns for each k of `ranks`: one fit gives every smaller rank.

    Args:
        train: features of the labelled examples, (n, d), the leading components first.
        labels: one for each of them.
        test: features of other examples, (m, d).
        test_labels: one for each of them.
        ranks: how many columns to use.
        options: `loss`, `strengths` and `seed` of `probe`.
    """
    train, labels, test, test_labels = checked_sets(train, labels, test, test_labels)
    limit, remedy = train.shape[1], "a fit with a larger rank gives more components"
    ranks = [whole("k", k, 1, limit, remedy) for k in ranks]
    options["strengths"] = grid(options.get("loss", "logistic"), options.get("strengths"))
    return {k: probe(train[:, :k], labels, test[:, :k], test_labels, **options) for k in ranks}


def kernel_features(K: Any, *others: Any) -> tuple[np.ndarray, ...]:
    """Features whose inner products are the kernel: linear models on them are linear models on the full rows.

    K = U diag(v) U' gives U sqrt(v), at most one number per training example; rows K(x, X) of new examples go to
    K(x, X) U / sqrt(v), exactly what their part in the span of the training rows is, and no linear model that is
    regularised by its squared length sees any other. So a probe of Fisher vectors with hundreds of thousands of
    entries costs a probe of n features. n^3 operations.

    Args:
        K: the kernel of the training examples, (n, n).
        others: kernels of other examples with the training examples, (m, n) each.
    """
    K = np.asarray(K)
    K = K if np.issubdtype(K.dtype, np.floating) else K.astype(np.float64)
    if K.ndim != 2 or K.shape[0] != K.shape[1]:
        raise ValueError(f"K has shape {K.shape}, but the kernel of the training examples is square")
    for other in others:
        same_width("the kernel of new examples", np.asarray(other), "K", len(K))
    values, vectors = scipy.linalg.eigh(K.astype(np.float64))
    kept = values > values[-1] * np.sqrt(len(K)) * np.finfo(K.dtype).eps  # below, rounding errors of K itself
    values, vectors = values[kept][::-1], vectors[:, kept][:, ::-1]
    train = (vectors * np.sqrt(values)).astype(K.dtype)
    return train, *((np.asarray(other) @ (vectors / np.sqrt(values))).astype(K.dtype) for other in others)


def grid(loss: Loss, strengths: Iterable[float] | None) -> list[float]:
    """The strengths to choose from, rising: those given, or the usual ones of the loss."""
    chosen = sorted(STRENGTHS[one_of("loss", loss, tuple(STRENGTHS))] if strengths is None else strengths)
    if not chosen:
        raise ValueError("strengths is empty: give at least one number, or None for the usual ones")
    return chosen


def held_out_rows(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(kept, held out): a share of every class is held out; a class with one example is kept.

    With one example in every class nothing can be held out, and both are all rows.
    """
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    alone, several = (np.flatnonzero((counts[codes] > 1) == flag) for flag in (False, True))
    if not len(several):
        return alone, alone
    size = max(round(share * len(several)), int(np.sum(counts > 1)))
    kept, held = train_test_split(several, test_size=size, stratify=labels[several], random_state=seed)
    return np.concatenate([alone, kept]), np.asarray(held)


def row_length(features: Any) -> float:
    """The root of the mean squared length of the rows."""
    squares = features.multiply(features) if sparse.issparse(features) else np.square(features, dtype=np.float64)
    return float(np.sqrt(squares.sum() / features.shape[0])) or 1.0


def checked_sets(train: Any, labels: Any, test: Any, test_labels: Any) -> tuple:
    train, test = as_features("train", train, sparse_too=True), as_features("test", test, sparse_too=True)
    labels = as_labels("labels", labels, "train", train.shape[0])
    test_labels = as_labels("test_labels", test_labels, "test", test.shape[0])
    same_width("test", test, "train", train.shape[1])
    all_classes_known("test_labels", test_labels, at_least_two_classes("labels", labels), "labels")
    return train, labels, test, test_labels
