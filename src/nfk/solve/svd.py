"""The result of every method: singular triplets and their residuals."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from nfk.solve.operator import Operator
from nfk.spaces import Block, Space


@dataclass(frozen=True)
class SVD:
    """V ~ left * singular_values @ right'.

    `residuals[i]` = |V'V q_i - s_i^2 q_i| / s_i^2, so an eigenvalue of the kernel lies within a relative distance
    `residuals[i]` of `s_i^2`; the usual error is near its square over the relative gap. A component beyond the
    operator's numerical rank is zero throughout. `right` lives in `space`, the rest on the host.
    """

    left: Float[np.ndarray, "rows k"]
    singular_values: Float[np.ndarray, " k"]
    right: Float[Block, "P k"]
    residuals: Float[np.ndarray, " k"]
    trace: float
    passes: int
    space: Space

    @property
    def explained_variance_ratio(self) -> Float[np.ndarray, " k"]:
        """s_i^2 / trace: the share of all variance, not only of what was found."""
        return self.singular_values**2 / self.trace if self.trace > 0 else np.zeros_like(self.singular_values)

    def first(self, count: int) -> SVD:
        """The first `count` components; where the operator has fewer, the rest are zero."""
        alive = int((self.singular_values[:count] > 0).sum())
        if alive == count == len(self.singular_values):
            return self
        kept = slice(0, alive)
        right = self.space.columns(self.right, kept)
        return replace(
            self,
            left=np.pad(self.left[:, kept], ((0, 0), (0, count - alive))),
            right=self.space.padded(right, right.shape[0], count),
            singular_values=np.pad(self.singular_values[kept], (0, count - alive)),
            residuals=np.pad(self.residuals[kept], (0, count - alive)),
        )


def empty(operator: Operator) -> SVD:
    """No component at all: of an operator that is zero."""
    rows, columns = operator.shape
    nothing = np.zeros(0)
    right = operator.space.zeros(columns, 0, operator.dtype)
    left = np.zeros((rows, 0), operator.dtype)
    return SVD(left, nothing, right, nothing, operator.trace(), operator.passes, operator.space)


def largest_positive(left: Float[np.ndarray, "rows k"]) -> Float[np.ndarray, " k"]:
    """The sign rule: in each left vector the entry of largest magnitude is positive."""
    peak = left[np.abs(left).argmax(axis=0), np.arange(left.shape[1])]
    return np.where(peak < 0, -1.0, 1.0)
