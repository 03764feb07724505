"""The kernel matrix itself: K = V V' = Phi Lambda Phi', then Q = V' Phi / sqrt(Lambda).

N^2 P operations, half of a full product, in one pass over gradients that are kept, and one pass for the basis. For few
examples this beats every iteration. K is summed in float64 from products in the precision of the rows, so small
components carry rounding error of the largest: where the certificate says so, the basis is improved by V'V.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from jaxtyping import Float

from nfk.solve.certify import certify, clear_directions
from nfk.solve.goal import Goal, limit_of
from nfk.solve.operator import Operator
from nfk.solve.svd import SVD

IMPROVEMENTS = 2


@dataclass(frozen=True)
class GramState:
    """The wanted eigenvectors of K, once they are found."""

    left: Float[np.ndarray, "rows k"] | None = None


@dataclass(frozen=True)
class Gram:
    """The method: three passes, one of them to certify."""

    operator: Operator
    goal: Goal

    def init(self) -> GramState:
        return GramState()

    def step(self, state: GramState) -> GramState:
        K = self.operator.gram()
        size, rank = len(K), self.goal.rank
        wanted = None if rank is None else (size - min(rank, size), size - 1)
        values, vectors = scipy.linalg.eigh(K, subset_by_index=wanted, overwrite_a=True)
        count = self.goal.wanted(np.maximum(values[::-1], 0)) or len(values)
        return GramState(vectors[:, ::-1][:, :count])

    def done(self, state: GramState) -> bool:
        return state.left is not None

    def label(self, state: GramState) -> str:
        return "kernel matrix"

    def note(self, state: GramState) -> str:
        return ""

    def conclude(self, state: GramState) -> SVD:
        assert state.left is not None
        operator, count = self.operator, state.left.shape[1]
        found = certify(operator, clear_directions(operator, operator.rmatmat(state.left)))
        for _ in range(IMPROVEMENTS):
            if found.residuals.max(initial=0) <= self.goal.tol:
                break
            better = certify(operator, self._improved(found))
            if better.residuals.max(initial=0) >= found.residuals.max(initial=0):
                break
            found = better
        result = found.first(count)
        self.goal.warn(result, limit_of(operator.dtype))
        return result

    def _improved(self, found: SVD) -> object:
        """V' V Q again, each column at length one; not orthonormalised, which would mix rounding error of the long
        columns into the short ones: the certificate takes their inner products into account."""
        return clear_directions(self.operator, self.operator.rmatmat(found.left * found.singular_values))

    def salvage(self, state: GramState) -> SVD | None:
        """Before it is done there is nothing; after, the certifying pass is all that is missing."""
        return None if state.left is None else self.conclude(state)
