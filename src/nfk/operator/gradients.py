"""V by per-example gradients and matrix products.

    V_x  = s * (g(x) - z)
    V  M = sum over chunks of V_chunk M        M: P x U
    V' W = sum over chunks of V_chunk' W       W: rows x U

A network that reuses its weights (a convolution) favours this engine over products by a factor of ten to a hundred.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from nfk.operator.moments import Moments
from nfk.operator.stream import GradientStream
from nfk.spaces import Block, Store


class GradientOperator:
    """Holds `chunk` examples' rows of P numbers (all rows when they are kept), the block given and the one returned.

    A pass costs one gradient per example unless rows are kept, and 2 P U operations per row and product.
    """

    def __init__(
        self,
        stream: GradientStream,
        moments: Moments,
        chunk: int,
        kept: Store | None = None,
        filled: bool = False,
        measure: bool = True,
    ) -> None:
        """`kept` is room for all rows, which stay there from the first pass on; `filled` where it has the raw
        gradients already, which are normalised here in place. `measure` takes the length of every row in the first
        pass, for the trace, and to find what is not finite."""
        self.stream, self.moments, self.space = stream, moments, stream.space
        self.shape = (stream.rows, stream.layout.size)
        self.dtype = stream.layout.dtype
        self.passes = 0
        self.row_squares: np.ndarray | None = None
        self._measure = measure
        self._step = chunk * stream.outputs
        self._kept, self._filled = kept, filled
        self._scratch: Store | None = None
        if kept is not None and filled:
            kept.normalise(moments.mean, moments.scale)

    def trace(self) -> float:
        """|V|_F^2 = trace of the kernel, exact: the squared norms of the rows, free in the first pass."""
        if self.row_squares is None:
            self._measure = True
            for _ in self.chunks():
                pass
        assert self.row_squares is not None
        return float(self.row_squares.sum())

    def matmat(self, block: Float[Block, "P U"]) -> Float[Block, "rows U"]:
        """V M. One pass."""
        parts = ((rows, self.space.product(V, block)) for rows, V in self.chunks())
        return self.space.stacked(parts, self.shape[0], block.shape[1], self.dtype)

    def rmatmat(self, weights: Float[Block, "rows U"]) -> Float[Block, "P U"]:
        """V' W. One pass."""
        weights = self.space.put(weights.astype(self.dtype))
        total = self.space.zeros(self.shape[1], weights.shape[1], self.dtype)
        for rows, V in self.chunks():
            total = self.space.add_product(total, V.T, weights[rows])
        return total

    def fused(self, block: Float[Block, "P U"]) -> tuple[Float[Block, "rows U"], Float[Block, "P U"]]:
        """V M and V' V M from the same gradients. One pass."""
        total = self.space.zeros(self.shape[1], block.shape[1], self.dtype)

        def parts() -> Iterator[tuple[slice, Block]]:
            nonlocal total
            for rows, V in self.chunks():
                part = self.space.product(V, block)
                total = self.space.add_product(total, V.T, part)
                yield rows, part

        result = self.space.stacked(parts(), self.shape[0], block.shape[1], self.dtype)
        return result, total

    def gram(self) -> Float[np.ndarray, "rows rows"]:
        """V V' in float64, from products in the precision of the rows. One pass, of which half is computed.

        The rows must be kept: each chunk meets those before it.
        """
        assert self._kept is not None
        K = np.empty((self.shape[0], self.shape[0]))
        for rows, V in self.chunks():
            for others in self._row_slices():
                if others.start <= rows.start:
                    part = self.space.inner(V.T, self._kept.block(others).T)
                    K[rows, others], K[others, rows] = part, part.T
        return K

    def dense(self) -> Float[np.ndarray, "rows P"]:
        """V itself, to be read only; no copy where all rows are kept on the host."""
        if self._kept is not None and self._filled:
            return self.space.get(self._kept.block(slice(0, self.shape[0])))
        V = np.empty(self.shape, self.dtype)
        for rows, part in self.chunks():
            V[rows] = self.space.get(part)
        return V

    def chunks(self) -> Iterator[tuple[slice, Block]]:
        """Every row of V once, in chunks: `(rows, V[rows])`."""
        self.passes += 1
        self.stream.reporter.begin_pass(len(self.stream.examples))
        squares = np.empty(self.shape[0]) if self._measure and self.row_squares is None else None
        for rows, V in self._read() if self._filled else self._compute():
            if squares is not None:
                squares[rows] = self.space.row_squares(V)
                outputs = self.stream.outputs
                self.stream.check_finite(squares[rows], rows.start // outputs, rows.stop // outputs)
            yield rows, V
        if squares is not None:
            self.row_squares = squares

    def _row_slices(self) -> list[slice]:
        return [slice(a, min(a + self._step, self.shape[0])) for a in range(0, self.shape[0], self._step)]

    def _read(self) -> Iterator[tuple[slice, Block]]:
        assert self._kept is not None
        for rows in self._row_slices():
            yield rows, self._kept.block(rows)
            self.stream.reporter.advance((rows.stop - rows.start) // self.stream.outputs)

    def _compute(self) -> Iterator[tuple[slice, Block]]:
        """Gradients in microbatches that suit the network, gathered into chunks that suit the matrix product."""
        stream, outputs = self.stream, self.stream.outputs
        mean, scale = stream.pieces(self.moments.mean), stream.pieces(self.moments.scale)
        for rows in self._row_slices():
            store = self._room()
            base = 0 if self._kept is None else rows.start
            first, last = rows.start // outputs, rows.stop // outputs
            stream.write(store, base, mean, scale, first, last)
            yield rows, store.block(slice(base, base + rows.stop - rows.start))
        self._filled = self._kept is not None

    def _room(self) -> Store:
        """Where the next chunk goes. One chunk is used again in every pass: fresh pages cost more than the products."""
        if self._kept is not None:
            return self._kept
        if self._scratch is None:
            self._scratch = self.space.store(min(self._step, self.shape[0]), self.stream.layout)
        self._scratch.clear()
        return self._scratch
