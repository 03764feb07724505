"""The kernel matrix itself: K = V V' = Phi Lambda Phi', then Q = V' Phi / sqrt(Lambda).

N^2 P operations, half of a full product, in one pass over gradients that are kept, and one pass for the basis. For few
examples this beats every iteration. K is summed in float64 from products in the precision of the rows, so small
components carry rounding error of the largest: where the certificate says so, the basis is improved by V'V.

Where the gradients cannot be kept, a tile of them is held at a time and later ones are computed again for each tile.
Then gradients cost far more than products, so K has products in float64, and with it the certificate needs one pass
of V Q and no second block of P rows. Without a Fisher scale K may also come from the factors of layers
(`operator.factors`), and gradients are computed for the basis and its certificate alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from nfk.solve.certify import Known, certify_by_kernel, clear_directions, improved, verify
from nfk.solve.goal import Goal, limit_of
from nfk.solve.operator import Operator
from nfk.solve.svd import SVD
from nfk.spaces import eigh

PROBES = 10


@dataclass(frozen=True)
class GramState:
    """The wanted eigenvectors of K and their values, once they are found; and K itself where it certifies them."""

    left: Float[np.ndarray, "rows k"] | None = None
    values: Float[np.ndarray, " k"] | None = None
    kernel: Float[np.ndarray, "rows rows"] | None = None


@dataclass(frozen=True)
class Gram:
    """The method: K, the basis, a pass to verify it. `single`: the products of K are in the precision of the rows."""

    operator: Operator
    goal: Goal
    seed: Sequence[int] = (0,)
    single: bool = True

    def init(self) -> GramState:
        return GramState()

    def step(self, state: GramState) -> GramState:
        K = self.operator.gram(double=not self.single)
        size, rank = len(K), self.goal.rank
        wanted = None if rank is None else (size - min(rank, size), size - 1)
        values, vectors = eigh(K, subset_by_index=wanted, overwrite_a=self.single)
        values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
        count = self.goal.wanted(values) or len(values)
        return GramState(vectors[:, :count], values[:count], None if self.single else K)

    def done(self, state: GramState) -> bool:
        return state.left is not None

    def label(self, state: GramState) -> str:
        return "kernel matrix"

    def note(self, state: GramState) -> str:
        return ""

    def conclude(self, state: GramState) -> SVD:
        assert state.left is not None
        assert state.values is not None
        operator, count = self.operator, state.left.shape[1]
        Q, scaled = clear_directions(operator, operator.rmatmat(state.left))
        if state.kernel is not None:
            found = certify_by_kernel(operator, Q, state.kernel)
        else:
            values = state.values[scaled.any(axis=1)]
            known = Known(Q, (state.left * state.values) @ scaled, values)
            found = improved(operator, verify(operator, known, [*self.seed, 1], PROBES, self.goal.tol), self.goal.tol)
        result = found.first(count)
        self.goal.warn(result, limit_of(operator.dtype))
        return result

    def salvage(self, state: GramState) -> SVD | None:
        """Before it is done there is nothing; after, the certifying pass is all that is missing."""
        return None if state.left is None else self.conclude(state)
