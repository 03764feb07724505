"""Detecting examples from elsewhere by a score: the AUROC with its interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from nfk.notebook import Shown
from nfk.tasks.estimates import NORMAL, Estimate, proportion


@dataclass(frozen=True)
class Detection(Shown):
    """`auroc`: the chance that an outlier scores above an inlier. `missed_at_95`: the share of outliers that pass
    when 95 % of the inliers do."""

    auroc: Estimate
    missed_at_95: float


def detection(inliers: Any, outliers: Any) -> Detection:
    """From the scores of both, larger for stranger. The interval is DeLong's: both samples are drawn.

    A score to use: `embedding.decompose(X).outside`, the squared length outside the top k components.

    Args:
        inliers: a score for each ordinary example.
        outliers: a score for each example from elsewhere.
    """
    inside, outside = _scores("inliers", inliers), _scores("outliers", outliers)
    m, n = len(outside), len(inside)
    joint = rankdata(np.concatenate([outside, inside]))
    above = (joint[:m] - rankdata(outside)) / n  # for each outlier, the share of inliers below it
    below = 1 - (joint[m:] - rankdata(inside)) / m  # for each inlier, the share of outliers above it
    value = float(above.mean())
    half = NORMAL * float(np.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / n))
    limit = np.quantile(inside, 0.95)
    low, high = max(value - half, 0.0), min(value + half, 1.0)
    if half == 0:  # all on one side: what as many examples as the smaller sample has can still hide
        hidden = 1 - proportion(np.ones(min(m, n))).low
        low, high = max(value - hidden, 0.0), min(value + hidden, 1.0)
    auroc = Estimate(value, low, high)
    return Detection(auroc, float(np.mean(outside <= limit)))


def _scores(name: str, scores: Any) -> np.ndarray:
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 1 or len(scores) < 2:
        raise ValueError(f"{name} has shape {scores.shape}, but must be one score per example, two at least")
    if np.isnan(scores).any():
        raise ValueError(f"{name}[{int(np.argmax(np.isnan(scores)))}] is NaN: look at that example")
    return scores
