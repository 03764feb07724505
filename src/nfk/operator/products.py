"""V by JVPs and VJPs of a batch: no gradient is formed.

    V  M = J (s*M) - 1 (z . (s*M))          M: P x U
    V' W = s * (J' W - z (1' W))            W: rows x U

A network with many outputs per example (an NTK) may favour this engine over per-example gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float

from nfk.model.interface import Batch
from nfk.operator.gradients import GradientOperator
from nfk.operator.moments import Moments
from nfk.operator.stream import GradientStream
from nfk.spaces import Block


class ProductOperator:
    """A pass costs about two forward passes per example and column for V M, three for V' W.

    Holds the activations of `batch` examples for `columns` columns at a time, the block given, its scaled copy and the
    block returned.
    """

    def __init__(
        self, stream: GradientStream, moments: Moments, batch: int, columns: int, trace: float | None = None
    ) -> None:
        """`trace`, where the moments pass has given it already, saves the pass of gradients that `trace()` needs."""
        self.stream, self.moments, self.space = stream, moments, stream.space
        self.row_space = stream.space.row_space(stream.outputs)
        self.batch, self.columns = batch, columns
        self.shape = (stream.rows, stream.layout.size)
        self.dtype = stream.layout.dtype
        self.passes = 0
        self._trace = trace

    def trace(self) -> float:
        """|V|_F^2, exact; without a known value this needs a pass of per-example gradients."""
        if self._trace is None:
            self._trace = GradientOperator(self.stream, self.moments, self.stream.microbatch).trace()
            self.passes += 1
        return self._trace

    def matmat(self, block: Float[Block, "P U"]) -> Float[Block, "rows U"]:
        """V M. One pass."""
        forward = self._forward(block)
        parts = ((rows, forward(batch, rows)) for rows, batch in self._batches())
        return self.row_space.stacked(parts, self.shape[0], block.shape[1], self.dtype)

    def rmatmat(self, weights: Float[Block, "rows U"]) -> Float[Block, "P U"]:
        """V' W. One pass."""
        weights = self.row_space.put(weights, self.dtype)
        total = None
        for rows, batch in self._batches():
            total = self._add(total, self.row_space.part(weights, rows), batch)
        return self._normalised(total, weights)

    def fused(self, block: Float[Block, "P U"]) -> tuple[Float[Block, "rows U"], Float[Block, "P U"]]:
        """V M and V' V M. One pass."""
        forward, total = self._forward(block), None

        def parts() -> Iterator[tuple[slice, Block]]:
            nonlocal total
            for rows, batch in self._batches():
                part = forward(batch, rows)
                total = self._add(total, part, batch)
                yield rows, part

        result = self.row_space.stacked(parts(), self.shape[0], block.shape[1], self.dtype)
        return result, self._normalised(total, result)

    def images(self, block: Float[Block, "P U"]) -> Float[np.ndarray, "rows U"]:
        """V M in float64 on the host, from products in the precision of the network. One pass."""
        return self.row_space.get(self.matmat(block)).astype(np.float64)

    def gram(self, double: bool = False) -> Float[np.ndarray, "rows rows"]:
        """V V' in float64 on the host, from all of V."""
        V = self.dense().astype(np.float64)
        return V @ V.T

    def dense(self) -> Float[np.ndarray, "rows P"]:
        """V itself: some rows at a time through V' W."""
        V = np.empty(self.shape, self.dtype)
        for start in range(0, self.shape[0], self.columns):
            stop = min(start + self.columns, self.shape[0])
            unit = np.zeros((self.shape[0], stop - start), self.dtype)
            unit[np.arange(start, stop), np.arange(stop - start)] = 1
            V[start:stop] = self.space.get(self.rmatmat(unit)).T
        return V

    def _batches(self) -> Iterator[tuple[slice, Batch]]:
        """Every batch of examples once, padded, with the rows of every range that it stands for."""
        self.passes += 1
        self.stream.begin_pass()
        outputs = self.stream.outputs
        for begin, end, batch in self.stream.batches(lambda batch: batch, self.batch):
            yield slice(begin * outputs, end * outputs), batch

    def _forward(self, block: Float[Block, "P U"]) -> Callable[[Batch, slice], Block]:
        """The function from a batch to its rows of J (s*M) - 1 (z . (s*M))."""
        space, width, differentiator = self.space, block.shape[1], self.stream.differentiator
        scaled = space.scaled(block, self.moments.scale)
        shift = space.inner(space.put(self.moments.mean[:, None]), scaled)[0]
        groups = space.groups(width, self.columns)
        tangents = [space.tangents(scaled, group, self.columns, self.stream.layout) for group in groups]

        def forward(batch: Batch, rows: slice) -> Float[Block, "n U"]:
            parts = [differentiator.forward_product(tangent, batch) for tangent in tangents]
            return space.image(parts, batch, rows.stop - rows.start, width, shift)

        return forward

    def _add(self, total: Block | None, weights: Float[Block, "n U"], batch: Batch) -> Block:
        """total + J' W for one batch; padding examples get weight zero."""
        rows, width = self.batch * self.stream.outputs, weights.shape[1]
        total = self.space.sums(self.shape[1], width, self.dtype) if total is None else total
        for group in self.space.groups(width, self.columns):
            columns = self.row_space.cotangents(weights, group, rows, self.columns)
            part = self.stream.differentiator.reverse_product(columns, batch)
            total = self.space.add_columns(total, group, part)
        return total

    def _normalised(self, total: Block, weights: Float[Block, "rows U"]) -> Float[Block, "P U"]:
        ones = np.ones((self.shape[0], 1), self.dtype)
        sums = self.row_space.inner(self.row_space.put(ones), weights)[0]
        return self.space.normalise(self.space.summed(total), self.moments.scale, self.moments.mean, sums)
