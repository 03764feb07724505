"""A number with its uncertainty."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest, norm

from nfk.notebook import Shown

NORMAL = float(norm.ppf(0.975))


@dataclass(frozen=True)
class Estimate(Shown):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Repeated(Shown):
    """A value for each seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def spread(self) -> float:
        """The standard deviation over the seeds (with n - 1); 0 for a single one."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.spread:.2g} over {len(self.values)}"


def repeated(values: Iterable[float]) -> Repeated:
    """A value for each seed, as one result.

    Args:
        values: one for each seed.
    """
    return Repeated(tuple(float(value) for value in values))


def proportion(hits: np.ndarray) -> Estimate:
    """The share of hits with Wilson's interval, which stays within 0 and 1 and is right near both.

    Args:
        hits: True or False for each trial.
    """
    counted = binomtest(int(np.sum(hits)), len(hits))
    interval = counted.proportion_ci(0.95, method="wilson")
    return Estimate(float(counted.statistic), float(interval.low), float(interval.high))


def average(values: np.ndarray) -> Estimate:
    """The mean with 1.96 standard errors on either side.

    Args:
        values: one for each example.
    """
    values = np.asarray(values, np.float64)
    mean = float(values.mean())
    half = NORMAL * float(values.std(ddof=1)) / np.sqrt(len(values)) if len(values) > 1 else np.inf
    return Estimate(mean, mean - half, mean + half)
