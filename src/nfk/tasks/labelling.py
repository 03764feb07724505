"""Few labels: features learnt from all examples without labels, a linear classifier on the few that have one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedKFold

from nfk.notebook import Shown
from nfk.tasks.checks import whole
from nfk.tasks.estimates import Repeated, repeated
from nfk.tasks.linear import Loss, fit_linear
from nfk.tasks.probing import ROW_NORM, checked_sets, grid, row_length

BUDGETS = (100, 250, 500, 1000, 2000, 4000)
FOLDS = 5


@dataclass(frozen=True)
class FewLabels(Shown):
    """Test accuracies with `budget` labels, one for each draw of the labelled examples."""

    budget: int
    accuracy: Repeated
    strengths: tuple[float, ...]


def few_labels(
    features: Any,
    labels: Any,
    test: Any,
    test_labels: Any,
    budgets: Iterable[int] = BUDGETS,
    *,
    seeds: int = 5,
    loss: Loss = "logistic",
    strengths: Iterable[float] | None = None,
) -> list[FewLabels]:
    """For each budget and seed: as many labels of every class, a classifier on them, its accuracy on `test`.

    The strength is chosen by cross-validation in five folds among the labelled examples alone: no other label is seen.
    Features are divided by one number, that of all examples, which needs no label either.

    Args:
        features: of the examples to draw labels from, (n, d).
        labels: one for each of them; only those that are drawn are seen.
        test: features of other examples.
        test_labels: one for each of them.
        budgets: how many labels to draw.
        seeds: draws for each budget.
        loss: "logistic" or "squared_hinge".
        strengths: regularisations to choose from; a usual grid by default.
    """
    features, labels, test, test_labels = checked_sets(features, labels, test, test_labels)
    seeds = whole("seeds", seeds, 1, None, "each is a draw of the labelled examples")
    strengths = grid(loss, strengths)
    classes = np.unique(labels)
    remedy = "each class needs a label, and no more labels can be drawn than there are"
    budgets = [whole("budget", budget, len(classes), len(labels), remedy) for budget in budgets]
    scale = row_length(features) / ROW_NORM
    features, test = features / scale, test / scale
    results = []
    for budget in budgets:
        scores, chosen = [], []
        for seed in range(seeds):
            rows = balanced_draw(labels, budget, np.random.default_rng([seed, budget]))
            strength = _strength_by_folds(features[rows], labels[rows], strengths, loss, seed)
            classifier = fit_linear(features[rows], labels[rows], strength=strength, loss=loss)
            scores.append(np.mean(classifier.correct(test, test_labels)))
            chosen.append(strength)
        results.append(FewLabels(budget, repeated(scores), tuple(chosen)))
    return results


def balanced_draw(labels: np.ndarray, budget: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of `budget` examples, equally many of every class (one more of some, drawn, where it does not divide)."""
    classes = np.unique(labels)
    counts = np.full(len(classes), budget // len(classes))
    counts[rng.permutation(len(classes))[: budget % len(classes)]] += 1
    rows = []
    for label, count in zip(classes, counts, strict=True):
        there = np.flatnonzero(labels == label)
        if len(there) < count:
            raise ValueError(
                f"budget={budget} wants {count} examples of class {label!r}, but there are {len(there)}: lower it"
            )
        rows.append(rng.permutation(there)[:count])
    return rng.permutation(np.concatenate(rows))


def _strength_by_folds(features: Any, labels: np.ndarray, strengths: list[float], loss: Loss, seed: int) -> float:
    """The strength with the best accuracy over the folds; the most regularised among equals.

    Where the rarest class has fewer labels than there are folds, there are as many folds as it has labels; with one
    label nothing can be held out, and the most regularised is taken.
    """
    folds = min(FOLDS, int(np.unique(labels, return_counts=True)[1].min()))
    if folds < 2:
        return strengths[0]
    hits = np.zeros(len(strengths))
    for inside, outside in StratifiedKFold(folds, shuffle=True, random_state=seed).split(labels, labels):
        for place, strength in enumerate(strengths):
            fitted = fit_linear(features[inside], labels[inside], strength=strength, loss=loss)
            hits[place] += np.sum(fitted.predict(features[outside]) == labels[outside])
    return strengths[int(np.argmax(hits))]
