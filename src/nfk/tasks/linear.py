"""Linear classifiers on any features: multinomial logistic regression, and one-vs-rest with the squared hinge.

    min over W, b   strength * sum_i loss(W' x_i + b, y_i) + |W|^2 / 2

scikit-learn's solvers behind one face, so that all features are judged by the same ones.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from nfk.tasks.checks import all_classes_known, as_features, as_labels, at_least_two_classes, one_of, same_width

Loss = Literal["logistic", "squared_hinge"]
LOSSES = ("logistic", "squared_hinge")
ITERATIONS = 500


@dataclass(frozen=True)
class LinearClassifier:
    """The fitted estimator; `converged` says whether its solver reached its tolerance."""

    estimator: LogisticRegression | LinearSVC
    converged: bool

    def predict(self, features: Any) -> np.ndarray:
        features = as_features("features", features)
        same_width("features", features, "the classifier", self.estimator.coef_.shape[1])
        return np.asarray(self.estimator.predict(features))

    def correct(self, features: Any, labels: Any) -> np.ndarray:
        """For each example, whether the guess is its label."""
        labels = as_labels("labels", labels, "features", features.shape[0])
        all_classes_known("labels", labels, self.estimator.classes_, "what it was fitted on")
        return self.predict(features) == labels


def fit_linear(features: Any, labels: Any, *, strength: float = 1.0, loss: Loss = "logistic") -> LinearClassifier:
    """The minimiser of the sum above; a smaller `strength` regularises more. 4 n d classes operations an iteration."""
    features = as_features("features", features)
    labels = as_labels("labels", labels, "features", features.shape[0])
    at_least_two_classes("labels", labels)
    if not strength > 0:
        raise ValueError(f"strength={strength!r} must be positive: 1.0 is a good start, smaller regularises more")
    if one_of("loss", loss, LOSSES) == "logistic":
        estimator = LogisticRegression(C=strength, max_iter=ITERATIONS)
    else:  # liblinear regularises the intercept too, unless its column is large
        options: dict[str, Any] = {"dual": False, "intercept_scaling": 100, "tol": 1e-5}
        estimator = LinearSVC(C=strength, max_iter=ITERATIONS, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # `converged` tells
        estimator.fit(features, labels)
    return LinearClassifier(estimator, int(np.max(estimator.n_iter_)) < ITERATIONS)
