"""Sentences about arrays that do not fit together."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse


def as_features(name: str, features: Any, *, sparse_too: bool = False) -> Any:
    """A matrix with one row per example, floating-point and finite; sparse ones stay sparse where that is allowed."""
    if sparse.issparse(features):
        if not sparse_too:
            raise TypeError(
                f"{name} is sparse, and this needs a dense matrix: use {name}.toarray(), or an embedding of it"
            )
        features = features.tocsr()
        values, row_of = features.data, lambda bad: int(np.searchsorted(features.indptr, bad, side="right")) - 1
    else:
        features = np.asarray(features)
        if features.ndim != 2:
            raise ValueError(
                f"{name} has shape {features.shape}, but features are a matrix with one row per example: use "
                f"{name}.reshape(len({name}), -1)"
            )
        values, row_of = features.reshape(-1), lambda bad: bad // features.shape[1]
    if 0 in features.shape:
        raise ValueError(f"{name} has shape {features.shape}: there must be at least one example and one feature")
    finite = np.isfinite(values)
    if not finite.all():
        raise ValueError(f"{name}[{row_of(int(np.argmin(finite)))}] holds NaN or infinity: look at that example")
    return features if np.issubdtype(features.dtype, np.floating) else features.astype(np.float32)


def as_labels(name: str, labels: Any, features_name: str, count: int) -> np.ndarray:
    """One label for each example."""
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(f"{name} has shape {labels.shape}, but must hold one label per example: a vector")
    same_length(name, labels, features_name, count)
    return labels


def same_length(name: str, given: Any, other: str, count: int) -> None:
    if len(given) != count:
        raise ValueError(
            f"{name} has length {len(given):,}, but {other} holds {count:,} examples: give each example its own"
        )


def same_width(name: str, given: Any, other: str, width: int) -> None:
    if given.shape[1] != width:
        raise ValueError(
            f"{name} has {given.shape[1]:,} features, but {other} has {width:,}: embed both with the same embedding"
        )


def all_classes_known(name: str, labels: np.ndarray, known: np.ndarray, known_name: str) -> None:
    """Every class that is asked for has a labelled example to learn it from."""
    missing = np.setdiff1d(labels, known)
    if len(missing):
        raise ValueError(
            f"class {missing[0]!r} is in {name} but has no labelled example in {known_name}: label one, or leave the "
            "class out"
        )


def at_least_two_classes(name: str, labels: np.ndarray) -> np.ndarray:
    classes = np.unique(labels)
    if len(classes) < 2:
        raise ValueError(f"{name} holds one class only ({classes[0]!r}): a classifier needs at least two")
    return classes


def whole(name: str, value: Any, low: int, high: int | None, remedy: str) -> int:
    """A whole number between two bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low or (high and value > high):
        bounds = f"from {low} to {high}" if high else f"{low} or more"
        raise ValueError(f"{name}={value!r} must be a whole number {bounds}: {remedy}")
    return int(value)


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is unknown: choose {' or '.join(map(repr, allowed))}")
    return value
