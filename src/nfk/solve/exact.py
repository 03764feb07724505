"""The dense baseline: all of V, its Gram matrix on the smaller side in float64, an eigendecomposition."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from nfk.solve.certify import certify, clear_directions
from nfk.solve.goal import Goal, limit_of
from nfk.solve.operator import Operator
from nfk.solve.svd import SVD
from nfk.spaces import Block, eigh

DENSE_SLAB = 4096  # rows that are turned into float64 at a time


@dataclass(frozen=True)
class ExactState:
    """The right vectors, once they are found."""

    right: Block = None
    count: int = 0


@dataclass(frozen=True)
class Exact:
    """The method: two passes."""

    operator: Operator
    goal: Goal

    def init(self) -> ExactState:
        return ExactState()

    def step(self, state: ExactState) -> ExactState:
        V = self.operator.dense()
        tall = V.shape[0] > V.shape[1]
        size, rank = min(V.shape), self.goal.rank
        wanted = None if rank is None else (size - rank, size - 1)
        gram = _gram_float64(V if tall else V.T)
        values, vectors = eigh(gram, subset_by_index=wanted, overwrite_a=True)
        values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
        count = self.goal.wanted(values) or len(values)
        vectors = vectors[:, :count]
        return ExactState(np.ascontiguousarray(vectors).astype(V.dtype) if tall else _blockwise(V, vectors), count)

    def done(self, state: ExactState) -> bool:
        return state.right is not None

    def label(self, state: ExactState) -> str:
        return "Gram matrix"

    def note(self, state: ExactState) -> str:
        return ""

    def conclude(self, state: ExactState) -> SVD:
        Q, _ = clear_directions(self.operator, self.operator.space.put(state.right))
        result = replace(self.goal, rank=state.count).of(certify(self.operator, Q))
        self.goal.warn(result, limit_of(self.operator.dtype))
        return result

    def salvage(self, state: ExactState) -> SVD | None:
        return None


def _gram_float64(V: Float[np.ndarray, "n m"]) -> Float[np.ndarray, "m m"]:
    """V'V, every product and sum in float64."""
    total = np.zeros((V.shape[1], V.shape[1]))
    for start in range(0, V.shape[0], DENSE_SLAB):
        part = V[start : start + DENSE_SLAB].astype(np.float64)
        total += part.T @ part
    return total


def _blockwise(V: Float[np.ndarray, "rows P"], Phi: Float[np.ndarray, "rows k"]) -> Float[np.ndarray, "P k"]:
    """V' Phi in float64 sums, a slab of parameters at a time."""
    return np.concatenate([
        (V[:, a : a + DENSE_SLAB].T.astype(np.float64) @ Phi).astype(V.dtype) for a in range(0, V.shape[1], DENSE_SLAB)
    ])  # fmt: skip
