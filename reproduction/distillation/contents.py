"""What a target holds: how much of what else the teacher knows can be read from it by a linear map."""

from __future__ import annotations

import numpy as np

from nfk.tasks import feature_ridge


def held(target: np.ndarray, wanted: np.ndarray, seed: int) -> float:
    """The share of the variance of `wanted` that a ridge regression on `target` explains on the other half of the rows.

    Args:
        target: (n, k), what is taught.
        wanted: (n, m), what one would like to know.
        seed: of the half that the map is fitted on; its ridge is chosen there, by leaving one out.
    """
    order = np.random.default_rng(seed).permutation(len(target))
    fit, rest = order[: len(order) // 2], order[len(order) // 2 :]
    scale = target[fit].std() or 1.0
    x, y = (target - target[fit].mean(0)) / scale, wanted - wanted[fit].mean(0)
    error = y[rest] - feature_ridge(x[fit], y[fit]).predict(x[rest])
    return float(1 - np.sum(error**2) / np.sum(y[rest] ** 2))
