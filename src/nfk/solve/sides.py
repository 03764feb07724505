"""The two symmetric operators of a matrix V: V'V on blocks of P rows, and VV' on blocks of N rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from nfk.solve.certify import clear_directions, column_slices
from nfk.solve.operator import Operator
from nfk.spaces import HOST, Block, Space

DOUBLE = np.dtype(np.float64)


class Side(ABC):
    """A symmetric operator A, and the way from its eigenvectors to both sides of the SVD."""

    operator: Operator
    space: Space  # where the blocks that A is applied to live
    image_space: Space  # where what is kept of A's work lives

    @abstractmethod
    def random(self, seed: Sequence[int], width: int) -> Block:
        """A block to begin with."""

    @abstractmethod
    def apply(self, block: Block) -> tuple[Block, Block]:
        """A W, and what of the work is to be kept."""

    @abstractmethod
    def projected_columns(self, basis: Sequence[Block], images: Sequence[Block]) -> Float[np.ndarray, "n b"]:
        """basis' A W for the newest block W, from what was kept."""

    @abstractmethod
    def right_vectors(self, vectors: Block) -> Float[Block, "P k"]: ...

    @abstractmethod
    def left_vectors(
        self, images: Float[np.ndarray, "rows k"], values: Float[np.ndarray, " k"]
    ) -> Float[np.ndarray, "rows k"]: ...


@dataclass(frozen=True)
class ParameterSide(Side):
    """V'V, one fused pass; W'V'V W = Z'Z with Z = V W, which keeps small values exact where W'(V'V W) would not."""

    operator: Operator

    @property
    def space(self) -> Space:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.operator.space

    @property
    def image_space(self) -> Space:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.operator.space

    def random(self, seed: Sequence[int], width: int) -> Block:
        return self.space.random(seed, self.operator.shape[1], width, self.operator.dtype)

    def apply(self, block: Block) -> tuple[Block, Block]:
        Z, image = self.operator.fused(block)
        return image, Z

    def projected_columns(self, basis: Sequence[Block], images: Sequence[Block]) -> np.ndarray:
        return np.concatenate([self.image_space.inner(other, images[-1]) for other in images])

    def right_vectors(self, vectors: Block) -> Block:
        return vectors

    def left_vectors(self, images: np.ndarray, values: np.ndarray) -> np.ndarray:
        """V q / s."""
        return (images / np.sqrt(values)).astype(self.operator.dtype)


@dataclass(frozen=True)
class ExampleSide(Side):
    """VV' in float64 on the host, two passes; `columns` columns of P rows are alive at a time."""

    operator: Operator
    columns: int | None = None
    space = image_space = HOST

    def random(self, seed: Sequence[int], width: int) -> Block:
        return HOST.random(seed, self.operator.shape[0], width, DOUBLE)

    def apply(self, block: Block) -> tuple[Block, Block]:
        image = np.empty(block.shape)
        for part in column_slices(block.shape[1], self.columns):
            image[:, part] = self.operator.space.get(self.operator.matmat(self.operator.rmatmat(block[:, part])))
        return image, image.copy()

    def projected_columns(self, basis: Sequence[Block], images: Sequence[Block]) -> np.ndarray:
        return np.concatenate([HOST.inner(other, images[-1]) for other in basis])

    def right_vectors(self, vectors: Block) -> Block:
        """V' phi at length one: a pass, since only the left vectors are at hand."""
        space, operator = self.operator.space, self.operator
        if self.columns is None:
            return clear_directions(operator, operator.rmatmat(vectors))
        Q = space.zeros(operator.shape[1], vectors.shape[1], operator.dtype)
        for part in column_slices(vectors.shape[1], self.columns):
            Q = space.add_columns(Q, part, operator.rmatmat(vectors[:, part]))
        return clear_directions(operator, Q)

    def left_vectors(self, images: np.ndarray, values: np.ndarray) -> np.ndarray:
        """V q / s = K phi / s^2."""
        return (images / values).astype(self.operator.dtype)
