"""Linear classifiers on any features: multinomial logistic regression, and one-vs-rest with the squared hinge.

    min over W, b   strength * sum_i loss(W' x_i + b, y_i) + |W|^2 / 2

The first is scikit-learn's. Its solver for the second (liblinear) walks over rows and classes one by one: minutes for
the full Fisher vectors of 5,000 examples, where L-BFGS with matrix products over all classes at once takes seconds.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from nfk.notebook import Shown
from nfk.tasks.checks import all_classes_known, as_features, as_labels, at_least_two_classes, one_of, same_width

Loss = Literal["logistic", "squared_hinge"]
LOSSES = ("logistic", "squared_hinge")
ITERATIONS = 500


@dataclass(frozen=True)
class LinearClassifier(Shown):
    """scores(x) = weights x + intercept, a row of `weights` for each class; for two classes logistic has one row.

    `converged` says whether the solver reached its tolerance.
    """

    classes: np.ndarray
    weights: np.ndarray
    intercept: np.ndarray
    converged: bool

    def predict(self, features: Any) -> np.ndarray:
        features = as_features("features", features, sparse_too=True)
        same_width("features", features, "the classifier", self.weights.shape[1])
        scores = np.asarray(features @ self.weights.T) + self.intercept
        largest = (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else np.argmax(scores, axis=1)
        return self.classes[largest]

    def correct(self, features: Any, labels: Any) -> np.ndarray:
        """For each example, whether the guess is its label."""
        labels = as_labels("labels", labels, "features", features.shape[0])
        all_classes_known("labels", labels, self.classes, "what it was fitted on")
        return self.predict(features) == labels


def fit_linear(features: Any, labels: Any, *, strength: float = 1.0, loss: Loss = "logistic") -> LinearClassifier:
    """The minimiser over W, b of strength * sum_i loss(W' x_i + b, y_i) + |W|^2 / 2. 4 n d classes operations a step.

    Args:
        features: (n, d), dense or sparse.
        labels: one for each row.
        strength: the weight of the loss; smaller regularises more.
        loss: "logistic" or "squared_hinge".
    """
    features = as_features("features", features, sparse_too=True)
    labels = as_labels("labels", labels, "features", features.shape[0])
    classes = at_least_two_classes("labels", labels)
    if not strength > 0:
        raise ValueError(f"strength={strength!r} must be positive: 1.0 is a good start, smaller regularises more")
    if one_of("loss", loss, LOSSES) == "squared_hinge":
        return _squared_hinge(features, labels, classes, strength)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # `converged` tells
        fitted = LogisticRegression(C=strength, max_iter=ITERATIONS).fit(features, labels)
    return LinearClassifier(classes, fitted.coef_, fitted.intercept_, int(np.max(fitted.n_iter_)) < ITERATIONS)


def _squared_hinge(features: Any, labels: np.ndarray, classes: np.ndarray, strength: float) -> LinearClassifier:
    """sum over examples and classes of max(0, 1 - t s)^2, t = +1 for the label's class and -1 for the others."""
    width, dtype = features.shape[1], features.dtype
    signs = np.where(labels[:, None] == classes, 1, -1).astype(dtype)

    def value_and_gradient(vector: np.ndarray) -> tuple[float, np.ndarray]:
        matrix = vector.reshape(width + 1, len(classes)).astype(dtype)
        short = np.maximum(0, 1 - signs * (features @ matrix[:-1] + matrix[-1]))
        slope = (-2 * strength) * signs * short
        gradient = np.concatenate([features.T @ slope + matrix[:-1], slope.sum(axis=0, keepdims=True)])
        value = strength * np.sum(short**2, dtype=np.float64) + np.sum(matrix[:-1] ** 2, dtype=np.float64) / 2
        return float(value), gradient.astype(np.float64).reshape(-1)

    start = np.zeros((width + 1) * len(classes))
    steepest = np.abs(value_and_gradient(start)[1]).max()
    options = {"maxiter": ITERATIONS, "gtol": 1e-4 * steepest, "ftol": 1e-9}
    found = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options)
    matrix = found.x.reshape(width + 1, len(classes)).astype(dtype)
    return LinearClassifier(classes, np.ascontiguousarray(matrix[:-1].T), matrix[-1], bool(found.success))
