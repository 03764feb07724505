"""The paper's Algorithm `truncated_svd`: V' Omega, then L times (V, V', orthonormalise), then V. 2 L + 2 passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nfk.solve.certify import certify
from nfk.solve.goal import Goal
from nfk.solve.operator import Operator
from nfk.solve.svd import SVD
from nfk.spaces import Block, normals, orthonormalise

ITERATIONS = 10


@dataclass(frozen=True)
class PowerState:
    """P x width columns after some iterations."""

    block: Block
    iteration: int = 0


@dataclass(frozen=True)
class Power:
    """The method, with `width` columns."""

    operator: Operator
    goal: Goal
    seed: Sequence[int]
    width: int
    iterations: int = ITERATIONS

    def init(self) -> PowerState:
        rows = self.operator.shape[0]
        omega = normals(self.seed, 0, rows, min(self.width, *self.operator.shape), np.dtype(self.operator.dtype))
        return PowerState(self.operator.rmatmat(omega))

    def step(self, state: PowerState) -> PowerState:
        image = self.operator.rmatmat(self.operator.matmat(state.block))
        space = self.operator.space
        return PowerState(orthonormalise(space, image, (), space.norms(image).max(initial=0)), state.iteration + 1)

    def done(self, state: PowerState) -> bool:
        return state.iteration >= self.iterations or state.block.shape[1] == 0

    def label(self, state: PowerState) -> str:
        return f"power iteration {state.iteration + 1}"

    def note(self, state: PowerState) -> str:
        return ""

    def conclude(self, state: PowerState) -> SVD:
        result = self._certified(state.block)
        self.goal.warn(result, f"{self.iterations} power iterations do not reach it; use method='krylov'")
        return result

    def salvage(self, state: PowerState) -> SVD | None:
        """Takes the certifying pass: the iteration itself knows no residual."""
        return self._certified(state.block) if state.iteration else None

    def _certified(self, block: Block) -> SVD:
        return self.goal.of(certify(self.operator, block))
