"""How many components are wanted and how exactly, and what is said when that is not reached."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from nfk.solve.svd import SVD


class ConvergenceWarning(UserWarning):
    """The requested tolerance was not reached."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a fit. `result` is what the finished passes are worth, or None before the first of them."""

    def __init__(self, message: str, result: object = None) -> None:
        super().__init__(message)
        self.result = result


@dataclass(frozen=True)
class Goal:
    """`rank` components, or as many as explain the fraction `variance` (`most` at the most), to a residual of `tol`."""

    rank: int | None
    variance: float | None
    tol: float
    trace: Callable[[], float]
    most: int

    def wanted(self, values: Float[np.ndarray, " n"]) -> int | None:
        """Components wanted given Ritz values in falling order; None while they do not explain enough."""
        if self.rank is not None:
            return self.rank
        reached = np.cumsum(values) >= self.variance * self.trace() * (1 - 1e-12)
        return int(np.argmax(reached)) + 1 if reached.any() else None

    def worst(
        self,
        values: Float[np.ndarray, " n"],
        residuals: Float[np.ndarray, " n"],
        floor: Float[np.ndarray, " n"] | float = 0.0,
    ) -> float:
        """The largest relative residual among the wanted that stand above `floor`; infinite if there are too few."""
        count = self.wanted(values)
        if count is None or count > len(values):
            return np.inf
        still_open = (residuals > floor) & (values > values[0] * np.finfo(np.float64).eps)
        relative = residuals / np.where(values > 0, values, 1)
        return float(np.max(relative[:count], where=still_open[:count], initial=0))

    def of(self, result: SVD) -> SVD:
        """The wanted components of a result."""
        return result.first(self.wanted(result.singular_values**2) or len(result.singular_values))

    def warn(self, result: SVD, remedy: str) -> None:
        """Say by how much a result misses the goal, and `remedy`, what to do about it."""
        count = len(result.residuals)
        if self.wanted(result.singular_values**2) is None:
            found, asked = told_apart(result.explained_variance_ratio.sum(), self.variance)
            text = f"{count} components explain {found} of the variance, not the {asked} asked for: raise max_steps or "
            text += "memory, or ask for less"
        elif result.residuals.max(initial=0) > self.tol:
            short = int((result.residuals > self.tol).sum())
            text = f"{short} of {count} components have a residual above tol={self.tol:.0e}, the worst "
            text += f"{result.residuals.max():.1e}: {remedy}"
        else:
            return
        warnings.warn(text, ConvergenceWarning, stacklevel=2)


def limit_of(dtype: np.dtype) -> str:
    """What to do about a residual that rounding alone leaves."""
    return f"the limit of {dtype}" + ("" if dtype == np.float64 else "; use float64, or side='examples'")


def told_apart(found: float, asked: float | None) -> tuple[str, str]:
    """Two shares in per cent, with as many decimals as it takes to see that they differ."""
    assert asked is not None
    for decimals in range(1, 12):
        texts = f"{found:.{decimals}%}", f"{asked:.{decimals}%}"
        if texts[0] != texts[1]:
            return texts
    return f"{found:.12%}", f"{asked:.12%}"
