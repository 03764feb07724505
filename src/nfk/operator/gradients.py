"""V by per-example gradients and matrix products.

    V_x  = s * (g(x) - z)
    V  M = sum over chunks of V_chunk M        M: P x U
    V' W = sum over chunks of V_chunk' W       W: rows x U

A network that reuses its weights (a convolution) favours this engine over products by a factor of ten to a hundred.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cached_property
from itertools import chain

import numpy as np
from jaxtyping import Float

from nfk import interrupts
from nfk.operator.moments import Moments
from nfk.operator.stream import GradientStream, Lengths
from nfk.ranges import grid
from nfk.spaces import Block, Shelf, Store


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
        tile: int = 0,
        meeting: int = 0,
        shelf: Shelf | None = None,
    ) -> None:
        """`kept` is room for all rows, which stay there from the first pass on; `filled` where it has the raw
        gradients already, which are normalised here in place. `measure` takes the length of every row in the first
        pass, for the trace, and to find what is not finite. `tile` is how many examples' rows `gram` may hold where
        they are not kept, and `meeting` how many others meet them at once (0: a chunk). `shelf` is room for all rows on
        disk: they are computed once and read in each pass."""
        self.stream, self.moments, self.space = stream, moments, stream.space
        self.row_space, self.ranges = stream.space.row_space(stream.outputs), stream.row_ranges
        self.shape = (stream.rows, stream.layout.size)
        self.dtype = stream.layout.dtype
        self.passes = 0
        self.row_squares: np.ndarray | None = None
        self._measure = measure
        self._step, self._tile = chunk * stream.outputs, tile * stream.outputs
        self._met = (meeting or chunk) * stream.outputs
        self._kept = kept
        self._shelf = shelf
        self._scratch: Store | None = None
        for held in (kept, shelf):
            if held is not None and filled:
                held.normalise(moments.mean, moments.scale)
        self._filled = filled and kept is not None

    def trace(self) -> float:
        """|V|_F^2 = trace of the kernel, exact: the squared norms of the rows, free in the first pass."""
        if self.row_squares is None:
            self._measure = True
            deque(self.chunks(), maxlen=0)  # holds none of them
        assert self.row_squares is not None
        return float(self.row_squares.sum())

    def matmat(self, block: Float[Block, "P U"]) -> Float[Block, "rows U"]:
        """V M. One pass."""
        spread = self.space.spread(block)

        def parts() -> Iterator[tuple[slice, Block]]:
            for rows, V in self.chunks():
                part = self.space.product(V, spread)
                del V  # before the next chunk is begun: the plan counts one of them
                yield rows, part

        return self.row_space.stacked(parts(), self.shape[0], block.shape[1], self.dtype)

    def rmatmat(self, weights: Float[Block, "rows U"]) -> Float[Block, "P U"]:
        """V' W. One pass."""
        weights = self.row_space.put(weights, self.dtype)
        total = None
        for rows, V in self.chunks():
            total = self.space.outer(total, V, self.row_space.part(weights, rows))
            del V
        return self.space.summed(total)

    def fused(self, block: Float[Block, "P U"]) -> tuple[Float[Block, "rows U"], Float[Block, "P U"]]:
        """V M and V' V M from the same gradients. One pass."""
        total, spread = None, self.space.spread(block)

        def parts() -> Iterator[tuple[slice, Block]]:
            nonlocal total
            for rows, V in self.chunks():
                part = self.space.product(V, spread)
                total = self.space.outer(total, V, part)
                del V
                yield rows, part

        result = self.row_space.stacked(parts(), self.shape[0], block.shape[1], self.dtype)
        return result, self.space.summed(total)

    def images(self, block: Float[Block, "P U"]) -> Float[np.ndarray, "rows U"]:
        """V M in float64 on the host. One pass."""
        result, spread = np.empty((self.shape[0], block.shape[1])), self.space.spread(block)
        for rows, V in self.chunks():
            whole, there = self.ranges.places(rows)
            result[whole] = self.space.images(V, spread)[there, : block.shape[1]]
            del V
        return result

    def gram(self, double: bool = False) -> Float[np.ndarray, "rows rows"]:
        """V V', summed in float64: half of the products. One pass over rows that are kept.

        Else `tile` examples' rows are held while the later ones pass, so each of T tiles takes a part of a pass:
        (T + 1) / 2 in all.
        """
        K = np.empty((self.shape[0], self.shape[0]))
        self._scratch = None  # what meets tiles has more room
        for tile, held in self.tiles():
            columns, among = self.ranges.places(tile)
            everywhere = self.space.everywhere(held)
            for rows, V in chain([(tile, held)], self.after(tile)):
                whole, there = self.ranges.places(rows)
                part = self.space.kernel(V, everywhere, double)[there][:, among]
                K[grid(whole, columns)] = part
                K[grid(columns, whole)] = part.T
        self._scratch = None
        self.measured(K.diagonal())
        return K

    def measured(self, squares: Float[np.ndarray, " rows"]) -> None:
        """The squared lengths of all rows, where no pass has taken them."""
        if self.row_squares is None:
            self.row_squares = squares.copy()
            self.stream.check_finite(self.row_squares)

    def _fill(self) -> None:
        """All rows into their places; their lengths will be the kernel's diagonal. One pass."""
        self.passes += 1
        self.stream.begin_pass()
        for _ in self._compute():
            pass

    def tiles(self) -> Iterator[tuple[slice, Float[Block, "n P"]]]:
        """Parts of V that can be held, and their rows."""
        if self._kept is not None:
            if not self._filled:
                self._fill()
            self.passes += 1
            for rows in self.ranges.slices(self._step):
                yield rows, self._kept.block(rows)
            return
        slices = self.ranges.slices(self._tile)
        self.passes += (len(slices) + 2) // 2
        store = self.space.store(min(self._tile, self.ranges.each), self.stream.layout)
        for tile in slices:
            self.stream.begin_pass(tile.start // self.stream.outputs)
            store.clear()
            self._write(store, 0, tile)
            held = store.block(slice(0, tile.stop - tile.start))
            squares = self.space.collected([(self.space.row_squares(held), tile.stop - tile.start)])
            self.stream.check_finite(squares, tile)
            yield tile, held

    def after(self, tile: slice) -> Iterator[tuple[slice, Block]]:
        """Every row after a tile, as many at once as may meet one."""
        step = self._step if self._kept is not None else self._met
        later = [rows for rows in self.ranges.slices(step) if rows.stop > tile.stop]
        for rows in (slice(max(rows.start, tile.stop), rows.stop) for rows in later):
            if self._kept is not None:
                yield rows, self._kept.block(rows)
            else:
                yield rows, self._chunk(rows, step)

    def dense(self) -> Float[np.ndarray, "rows P"]:
        """V itself, to be read only; no copy where all rows are kept on the host."""
        if self._kept is not None and self._filled:
            return self.row_space.get(self._kept.block(slice(0, self.ranges.each)))[: self.shape[0]]
        V = np.empty(self.shape, self.dtype)
        for rows, part in self.chunks():
            whole, there = self.ranges.places(rows)
            V[whole] = self.space.get(part)[there]
        return V

    def chunks(self) -> Iterator[tuple[slice, Block]]:
        """Every row of V once, in chunks: `(rows, V[rows])`, rows of every range."""
        self.passes += 1
        self.stream.begin_pass()
        lengths = Lengths(self.stream) if self._measure and self.row_squares is None else None
        for rows, V in self._read() if self._filled else self._compute():
            if lengths is not None:
                lengths.add(rows, self.space.row_squares(V))
            yield rows, V
            del V
        if lengths is not None:
            self.row_squares = lengths.result()

    def _read(self) -> Iterator[tuple[slice, Block]]:
        assert self._kept is not None
        for rows in self.ranges.slices(self._step):
            yield rows, self._kept.block(rows)
            self.stream.advance((rows.stop - rows.start) // self.stream.outputs)

    def _compute(self) -> Iterator[tuple[slice, Block]]:
        for rows in self.ranges.slices(self._step):
            if self._kept is None:
                yield rows, self._chunk(rows)
            else:
                self._write(self._kept, rows.start, rows)
                yield rows, self._kept.block(rows)
        self._filled = self._kept is not None

    def _chunk(self, rows: slice, most: int = 0) -> Block:
        """V[rows] in a room that every chunk uses again: fresh pages cost more than the products."""
        if self._scratch is None:
            self._scratch = self.space.store(min(most or self._step, self.ranges.each), self.stream.layout)
        self._write(self._scratch, 0, rows)
        V = self._scratch.block(slice(0, rows.stop - rows.start))
        self._scratch.clear()  # of what V was put together from
        return V

    def _write(self, store: Store, base: int, rows: slice) -> None:
        """V[rows] into a store, from row `base` on: from the disk where they are there, else gradients in microbatches
        that suit the network."""
        stream, outputs, shelf = self.stream, self.stream.outputs, self._shelf
        first, last = rows.start // outputs, rows.stop // outputs
        if shelf is not None and shelf.has(rows):
            interrupts.check()
            shelf.read(rows, store.room(base, rows.stop - rows.start))
            stream.reporter.advance(last - first)
            return
        stream.write(store, base, *self._pieces, first, last)
        if shelf is not None:
            shelf.put(rows.start, store.room(base, rows.stop - rows.start))

    @cached_property
    def _pieces(self) -> tuple[list, list]:
        """Mean and scale, cut into leaves."""
        return self.stream.pieces(self.moments.mean), self.stream.pieces(self.moments.scale)
