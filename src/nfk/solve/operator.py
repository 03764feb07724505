"""What the solver sees of a kernel: a tall matrix V that is only ever applied."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from jaxtyping import Float

from nfk.spaces import Block, Space


class Operator(Protocol):
    """V, rows x P. Blocks of P rows live in `space`, blocks of `rows` rows in `row_space`."""

    shape: tuple[int, int]
    dtype: np.dtype
    space: Space
    row_space: Space

    @property
    def passes(self) -> int:
        """Over the rows, so far; a checkpoint that gives results again counts them, too."""
        ...

    @passes.setter
    def passes(self, count: int) -> None: ...

    def matmat(self, block: Float[Block, "P U"]) -> Float[Block, "rows U"]:
        """V M. One pass."""
        ...

    def rmatmat(self, weights: Float[Block, "rows U"]) -> Float[Block, "P U"]:
        """V' W. One pass; `weights` may be an array of the host, in any precision."""
        ...

    def fused(self, block: Float[Block, "P U"]) -> tuple[Float[Block, "rows U"], Float[Block, "P U"]]:
        """V M and V' V M. One pass."""
        ...

    def gram(self, double: bool = False) -> Float[np.ndarray, "rows rows"]:
        """V V', summed in float64 on the host; with `double` its products are in float64 too. One pass where all rows
        are kept; more, where only a tile of them can be held."""
        ...

    def images(self, block: Float[Block, "P U"]) -> Float[np.ndarray, "rows U"]:
        """V M in float64 on the host, products and all. One pass."""
        ...

    def dense(self) -> Float[np.ndarray, "rows P"]:
        """V itself on the host, to be read only."""
        ...

    def trace(self) -> float:
        """|V|_F^2, the trace of the kernel; a pass where none has shown it yet."""
        ...


class CoarseOperator(Operator, Protocol):
    """V, and V~ beside it: V with every number rounded to bfloat16, which is faster to apply."""

    def coarse_kernel(self, weights: Float[np.ndarray, "rows U"]) -> Float[np.ndarray, "rows U"]:
        """V~ V~' W in float64 on the host, for a W of such numbers. One pass."""
        ...

    def coarse_rmatmat(self, weights: Float[np.ndarray, "rows U"]) -> Float[Block, "P U"]:
        """V~' W, with W rounded, too. One pass."""
        ...

    def coarse_size(self) -> float:
        """About the mean squared length of all rows: of eigenvalues far below it, V~ knows nothing. No pass, once it
        has been applied."""
        ...
