"""V by gradients that are kept in two halves: coarse products for a search, exact ones for its certificate.

    coarse   V~ V~' W and V~' W, where V~ is V in bfloat16
    exact    V M, V' W, in float32, as everywhere

The products are in float32, as those of bfloat16 numbers are; sums over slabs of parameters are in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float

from nfk import interrupts
from nfk.operator.gradients import GradientOperator
from nfk.operator.moments import Moments
from nfk.operator.stream import GradientStream
from nfk.spaces import HOST, Block, Halves, Slab, turned


class HalvedOperator(GradientOperator):
    """All rows are kept. An exact product takes 2 P U operations a row, and so does a coarse one, at a faster rate."""

    def __init__(self, stream: GradientStream, moments: Moments, chunk: int, kept: Halves, filled: bool) -> None:
        super().__init__(stream, moments, chunk, kept, filled)
        self._halves = kept

    def coarse_kernel(self, weights: Float[np.ndarray, "rows U"]) -> Float[np.ndarray, "rows U"]:
        """V~ V~' W in float64; the numbers of W are those of bfloat16 already. One pass."""
        columns = turned(weights)
        return self._sum(lambda slab: slab.coarse_kernel(columns), weights.shape)

    def coarse_size(self) -> float:
        self._complete()
        return float(self._halves.squares.mean())

    def coarse_rmatmat(self, weights: Float[np.ndarray, "rows U"]) -> Float[Block, "P U"]:
        """V~' W, with W rounded to bfloat16. One pass."""
        columns = turned(weights)
        return self._stack(lambda slab: slab.coarse_outer(columns), weights.shape[1])

    def matmat(self, block: Float[Block, "P U"]) -> Float[Block, "rows U"]:
        return self._sum(lambda slab: slab.product(block), (self.shape[0], block.shape[1])).astype(self.dtype)

    def rmatmat(self, weights: Float[Block, "rows U"]) -> Float[Block, "P U"]:
        columns = turned(weights, self.dtype)
        return self._stack(lambda slab: slab.outer(columns), weights.shape[1])

    def fused(self, block: Float[Block, "P U"]) -> tuple[Float[Block, "rows U"], Float[Block, "P U"]]:
        """V M, then V' V M: two passes over rows in memory, which count as one."""
        image = self.matmat(block)
        self.passes -= 1
        return image, self.rmatmat(image)

    def _sum(self, part: Callable[[Slab], np.ndarray], shape: tuple[int, ...]) -> Float[np.ndarray, "rows U"]:
        total = np.zeros(shape)
        for slab in self._pass():
            total += part(slab)
        return total

    def _stack(self, part: Callable[[Slab], np.ndarray], columns: int) -> Float[Block, "P U"]:
        whole = HOST.fresh((self.shape[1], columns), self.dtype)
        for slab in self._pass():
            whole[slab.place] = part(slab)
        return whole

    def trace(self) -> float:
        self._complete()
        return super().trace()

    def _pass(self) -> Iterator[Slab]:
        """Every slab once."""
        self._complete()
        self.passes += 1
        self.stream.begin_pass()
        slabs, shown = self._halves.slabs, 0
        for number, slab in enumerate(slabs, 1):
            interrupts.check()
            yield slab
            done = len(self.stream.examples) * number // len(slabs)
            self.stream.advance(done - shown)
            shown = done

    def chunks(self) -> Iterator[tuple[slice, Block]]:
        self._complete()
        return super().chunks()

    def _complete(self) -> None:
        """All rows are there, and their lengths, which were taken while they were written."""
        if not self._filled:
            self._fill()
        if self.row_squares is None:
            self.stream.check_finite(self._halves.squares)
            self.row_squares = self._halves.squares

    def _fill(self) -> None:
        self.passes += 1
        self.stream.begin_pass()
        for rows in self.ranges.slices(self._step):
            self._write(self._halves, rows.start, rows)
        self._filled = True
