"""Ridge regression on the exact or the low-rank kernel; the ridge by leave-one-out, in closed form.

    K = U diag(v) U',   H = U diag(v / (v + ridge)) U',   fitted values H y
    left-out residual of block i:  (I - H_ii)^-1 (y - H y)_i          (exact, no refitting)

Low-rank features E = U sqrt(v) W' have the same U and v, so one formula serves both. Rows may come in blocks of
`outputs` that belong to one example (an NTK has one per output); then a whole example is left out at a time.

The linearised network is the special case K = NTK, targets y, offset f(X):  f(x) + K(x, X) (K + ridge)^-1 (y - f(X)).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from nfk.notebook import Shown
from nfk.tasks.checks import all_classes_known, as_features, same_length, same_width, whole
from nfk.tasks.estimates import Estimate, average

RELATIVE_RIDGES = tuple(10.0**power for power in np.arange(-7, 3.01, 0.5))


@dataclass(frozen=True)
class Ridge(Shown):
    """Predictions  offset + x . weights  (features) or  offset + K(x, X) . weights  (kernel)."""

    weights: np.ndarray
    ridge: float
    ridges: np.ndarray
    errors: np.ndarray
    error: Estimate
    left_out: np.ndarray
    vector: bool

    def predict(self, rows: Any, offset: Any = 0.0) -> np.ndarray:
        """For features of new examples, or the kernel's rows K(x, X); `offset` as it was subtracted in the fit."""
        rows = as_features("rows", rows)
        same_width("rows", rows, "the fit", len(self.weights))
        result = rows @ self.weights
        result = result[:, 0] if self.vector else result
        return result + _checked_offset(offset, result.shape)


def kernel_ridge(
    K: Any, targets: Any, *, offset: Any = 0.0, outputs: int = 1, ridges: Iterable[float] | None = None
) -> Ridge:
    """Ridge regression with the kernel matrix K of the training rows. n^3 operations, n^2 numbers.

    `targets` is (n,) or (n, t); `offset` is what is known already (the network's own outputs). Without `ridges`, a
    grid from 1e-7 to 1e3 times the mean of K's diagonal. The error is the mean squared one of the left-out rows.

    Args:
        K: the kernel of the training rows, (n, n).
        targets: (n,) or (n, t).
        offset: what is known already, such as the network's own outputs: a number, or the shape of the targets.
        outputs: rows that belong to one example, and are left out together.
        ridges: to choose from; a grid by default.
    """
    K = as_features("K", K)
    if K.shape[0] != K.shape[1]:
        raise ValueError(f"K has shape {K.shape}, but the kernel of the training rows is square")
    values, vectors = scipy.linalg.eigh(K.astype(np.float64))
    values = np.maximum(values, 0)
    return _fit(vectors, values, targets, offset, outputs, ridges, lambda rest, ridge, *_: rest / ridge)


def feature_ridge(
    features: Any, targets: Any, *, offset: Any = 0.0, outputs: int = 1, ridges: Iterable[float] | None = None
) -> Ridge:
    """The same with the kernel features @ features', never formed. n k^2 operations.

    Args:
        features: (n, k).
        targets: (n,) or (n, t).
        offset: as for `kernel_ridge`.
        outputs: as for `kernel_ridge`.
        ridges: as for `kernel_ridge`.
    """
    features = as_features("features", features).astype(np.float64)
    left, singular, right = np.linalg.svd(features, full_matrices=False)
    solve = lambda _, ridge, inside: right.T @ ((singular / (singular**2 + ridge))[:, None] * inside)  # noqa: E731
    return _fit(left, singular**2, targets, offset, outputs, ridges, solve)


def _fit(U: np.ndarray, v: np.ndarray, targets: Any, offset: Any, outputs: int, ridges: Any, solve: Any) -> Ridge:
    y, vector = _checked_targets(targets, offset, len(U), whole("outputs", outputs, 1, None, "rows of one example"))
    typical = float(np.sum(v)) / len(U) or 1.0
    values = typical * np.array(RELATIVE_RIDGES) if ridges is None else np.array(sorted(ridges), np.float64)
    if len(values) == 0 or not (values > 0).all():
        raise ValueError(f"ridges={values.tolist()} must be positive numbers, at least one")
    inside = U.T @ y
    residuals = [_left_out(U, v, y, inside, ridge, outputs) for ridge in values]
    errors = np.array([np.mean(part**2) for part in residuals])
    best = int(np.argmin(errors))
    ridge = float(values[best])
    rest = y - U @ ((v / (v + ridge))[:, None] * inside)
    error = average(np.mean(residuals[best].reshape(len(U) // outputs, -1) ** 2, axis=1))
    return Ridge(solve(rest, ridge, inside), ridge, values, errors, error, y - residuals[best], vector)


def _left_out(
    U: np.ndarray, v: np.ndarray, y: np.ndarray, inside: np.ndarray, ridge: float, outputs: int
) -> np.ndarray:
    """Residuals of every example predicted from all others: (I - H_ii)^-1 (y - H y)_i, block by block."""
    shrink = v / (v + ridge)
    rest = y - U @ (shrink[:, None] * inside)
    if outputs == 1:
        return rest / np.maximum(1 - (U**2) @ shrink, np.finfo(float).eps)[:, None]
    blocks = U.reshape(-1, outputs, U.shape[1])
    kept = np.eye(outputs) - np.einsum("iak,k,ibk->iab", blocks, shrink, blocks, optimize=True)
    return np.linalg.solve(kept, rest.reshape(-1, outputs, y.shape[1])).reshape(y.shape)


def _checked_targets(targets: Any, offset: Any, rows: int, outputs: int) -> tuple[np.ndarray, bool]:
    """Targets less the offset, as a matrix; and whether they were a vector."""
    y = np.asarray(targets, np.float64)
    if outputs > 1 and y.shape == (rows // outputs, outputs):
        raise ValueError(f"targets has shape {y.shape}, but the data has one row per output: use targets.reshape(-1)")
    same_length("targets", y, "the data", rows)
    if rows % outputs:
        raise ValueError(f"outputs={outputs} does not divide the {rows} rows: each example has as many rows as outputs")
    y = y - _checked_offset(offset, y.shape)
    if not np.isfinite(y).all():
        raise ValueError("targets or offset hold NaN or infinity: look at them")
    return (y[:, None], True) if y.ndim == 1 else (y, False)


def _checked_offset(offset: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A number, or one for every target: another shape would be spread over the targets in silence."""
    offset = np.asarray(offset, np.float64)
    if offset.ndim and offset.shape != shape:
        raise ValueError(f"offset has shape {offset.shape}, but the targets have {shape}: reshape it to theirs")
    return offset


def one_hot(labels: Any, classes: Any = None) -> np.ndarray:
    """Targets for classification by regression: 1 for the label's class less the share of one class, (n, classes).

    Args:
        labels: one for each example.
        classes: all classes, in the order of the columns; those of the labels by default.
    """
    labels = np.asarray(labels)
    classes = np.unique(labels) if classes is None else np.asarray(classes)
    all_classes_known("labels", labels, classes, "classes")
    return (labels[:, None] == classes).astype(np.float64) - 1 / len(classes)
