"""The linear probe: how much a linear classifier can read out of some features."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression

STRENGTHS = (0.01, 0.1, 1.0, 10.0)


def probe(train: Any, labels: np.ndarray, test: Any, test_labels: np.ndarray) -> float:
    """Test accuracy of a logistic regression; its strength is chosen on a tenth of the training examples.

    All features are divided by one number: scaling each one by its own would change the kernel.
    """
    scale = _root_mean_square(train) * np.sqrt(train.shape[1]) / 10
    train, test = train / scale, test / scale
    held = train.shape[0] // 10
    held_out = []
    for strength in STRENGTHS:
        fitted = LogisticRegression(C=strength, max_iter=500).fit(train[held:], labels[held:])
        held_out.append(fitted.score(train[:held], labels[:held]))
    best = STRENGTHS[int(np.argmax(held_out))]
    return float(LogisticRegression(C=best, max_iter=500).fit(train, labels).score(test, test_labels))


def _root_mean_square(features: Any) -> float:
    if sparse.issparse(features):
        return float(np.sqrt(features.multiply(features).sum() / np.prod(features.shape)))
    return float(np.sqrt(np.mean(np.asarray(features, np.float64) ** 2)))
