"""The two symmetric operators of a matrix V: V'V on blocks of P rows, and VV' on blocks of N rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from nfk.solve.certify import Known, clear_directions
from nfk.solve.operator import CoarseOperator, Operator
from nfk.spaces import HOST, Block, Space

DOUBLE = np.dtype(np.float64)
FLOOR = 1e-2


class Side(ABC):
    """A symmetric operator A, and the way from its eigenvectors to both sides of the SVD."""

    operator: Operator
    space: Space  # where the blocks that A is applied to live
    image_space: Space  # where what is kept of A's work lives
    floor: float = 0.0  # eigenvalues below it are not told from rounding error

    @property
    def exact(self) -> Side:
        """The same without rounding beyond that of the operator's precision."""
        return self

    @abstractmethod
    def random(self, seed: Sequence[int], width: int) -> Block:
        """A block to begin with."""

    @abstractmethod
    def apply(self, block: Block) -> tuple[Block, Block]:
        """A W, and what of the work is to be kept."""

    @abstractmethod
    def projected_columns(self, basis: Sequence[Block], images: Sequence[Block]) -> Float[np.ndarray, "n b"]:
        """basis' A W for the newest block W, from what was kept."""

    def right_of(self, left: Float[Block, "rows k"]) -> Float[Block, "P k"]:
        """V' times left vectors, for right vectors that are certified after. One pass."""
        return self.operator.rmatmat(left)

    @abstractmethod
    def known(
        self, vectors: Block, images: Block, values: Float[np.ndarray, " k"], last: Remainder | None = None
    ) -> Known:
        """Both sides of the SVD, for Ritz vectors W y with A W y = values W y + R y_last, and what A made of them."""


@dataclass(frozen=True)
class Remainder:
    """What A has left outside the basis, and how the Ritz vectors reach it: R and y_last."""

    block: Float[Block, "n b"]
    coefficients: Float[np.ndarray, "b k"]


@dataclass(frozen=True)
class ParameterSide(Side):
    """V'V, one fused pass; W'V'V W = Z'Z with Z = V W, which keeps small values exact where W'(V'V W) would not."""

    operator: Operator

    @property
    def space(self) -> Space:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.operator.space

    @property
    def image_space(self) -> Space:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.operator.row_space

    def random(self, seed: Sequence[int], width: int) -> Block:
        return self.space.random(seed, self.operator.shape[1], width, self.operator.dtype)

    def apply(self, block: Block) -> tuple[Block, Block]:
        Z, image = self.operator.fused(block)
        return image, Z

    def projected_columns(self, basis: Sequence[Block], images: Sequence[Block]) -> np.ndarray:
        return np.concatenate([self.image_space.inner(other, images[-1]) for other in images])

    def known(self, vectors: Block, images: Block, values: np.ndarray, last: Remainder | None = None) -> Known:
        """Q = W y, V Q = Z y, and V'V Q = Q values + R y_last. No pass."""
        Z = self.image_space.get(images).astype(np.float64)
        return Known(vectors, Z, values) if last is None else Known(vectors, Z, values, last.block, last.coefficients)


@dataclass(frozen=True)
class ExampleSide(Side):
    """VV' in float64 on the host, two passes."""

    operator: Operator
    space = image_space = HOST

    def random(self, seed: Sequence[int], width: int) -> Block:
        return HOST.random(seed, self.operator.shape[0], width, DOUBLE)

    def apply(self, block: Block) -> tuple[Block, Block]:
        image = self.operator.row_space.get(self.operator.matmat(self.operator.rmatmat(block))).astype(DOUBLE)
        return image, image.copy()

    def projected_columns(self, basis: Sequence[Block], images: Sequence[Block]) -> np.ndarray:
        return np.concatenate([HOST.inner(other, images[-1]) for other in basis])

    def known(self, vectors: Block, images: Block, values: np.ndarray, last: Remainder | None = None) -> Known:
        """Q = V' phi d with lengths 1/d, V Q = K phi d, and V' V Q = Q values + (V'R) y_last d. Two passes."""
        Q, scaled = clear_directions(self.operator, self.operator.rmatmat(vectors))
        Z, values = images @ scaled, values[scaled.any(axis=1)]
        if last is None:
            return Known(Q, Z, values)
        return Known(Q, Z, values, self.operator.rmatmat(last.block), last.coefficients @ scaled)


@dataclass(frozen=True)
class CoarseSide(ExampleSide):
    """V~V~', V in bfloat16, one pass. Its blocks are rounded before it is applied to them, and what it finds is
    certified with V itself.

    With V~ = V + E, a right vector V~'phi / s has a part E'phi / s that is no part of V. It is about 2^-10 |V_x| / s
    long, for rows of a usual length |V_x|, and all that there is to a component whose s^2 is `FLOOR` |V_x|^2 or less.
    """

    operator: CoarseOperator  # pyright: ignore[reportIncompatibleVariableOverride]

    @cached_property
    def floor(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return FLOOR * self.operator.coarse_size()

    @property
    def exact(self) -> Side:
        return ExampleSide(self.operator)

    def apply(self, block: Block) -> tuple[Block, Block]:
        image = self.operator.coarse_kernel(block)
        return image, image.copy()

    def right_of(self, left: Block) -> Block:
        return self.operator.coarse_rmatmat(left)
