"""The operator V (rows x P), never stored unless it fits: two engines with one answer.

    V_x  = s * (g(x) - z)
    V  M = J (s*M) - 1 (z . (s*M))          M: P x U
    V' W = s * (J' W - z (1' W))            W: rows x U

`GradientFeatures` computes per-example gradients chunk by chunk and multiplies them as matrices; `ProductFeatures`
never forms a gradient: JVPs and VJPs of the batch. A network that reuses its weights (a convolution) favours the first
by a factor of ten to a hundred, one with many outputs per example (an NTK) may favour the second.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from nfk.blocks import SLAB, Block, add_product, product, zeros
from nfk.gradients import Differentiator
from nfk.moments import Moments, check_rows, write_rows
from nfk.progress import Reporter
from nfk.stream import Examples, run


class GradientFeatures:
    """V by per-example gradients and matrix products.

    Holds `chunk` rows of P numbers (all rows when they are kept), the block it is given and the one it returns.
    A pass costs one gradient per example unless rows are kept, and 2 P U operations per row and product.
    """

    def __init__(
        self,
        differentiator: Differentiator,
        examples: Examples,
        moments: Moments,
        *,
        microbatch: int,
        chunk: int,
        on_host: bool = True,
        kept: np.ndarray | None = None,
        keep: bool = False,
        measure_rows: bool = True,
        reporter: Reporter | None = None,
    ) -> None:
        """`measure_rows` takes the norm of every row in the first pass (for the trace, and to find what is not finite).

        `kept` holds raw gradients already (they are normalised here, in place); `keep` keeps rows as they pass."""
        self.differentiator, self.examples, self.moments = differentiator, examples, moments
        self.microbatch, self.chunk, self.on_host = microbatch, chunk if on_host else microbatch, on_host
        self.reporter = reporter or Reporter(show=False)
        self.shape = (len(examples) * differentiator.outputs, differentiator.layout.size)
        self.dtype = differentiator.layout.dtype
        self.passes = 0
        self.row_norms: np.ndarray | None = None
        self._measure_rows = measure_rows
        self._label = "gradients"
        self._keep, self._chunks_kept, self._whole, self._buffer = keep, None, kept, None
        if kept is not None:
            self._normalise(kept)
            self._chunks_kept = [(rows, kept[rows]) for rows in self._row_slices()]

    def _normalise(self, kept: np.ndarray) -> None:
        for start in range(0, len(kept), 64):
            rows = kept[start : start + 64]
            rows -= self.moments.mean
            rows *= self.moments.scale

    def _row_slices(self) -> list[slice]:
        step = self.chunk * self.differentiator.outputs
        return [slice(a, min(a + step, self.shape[0])) for a in range(0, self.shape[0], step)]

    def label(self, text: str) -> None:
        """What the progress bar calls the passes that follow."""
        self._label = text

    def trace(self) -> float:
        """|V|_F^2 = trace of the kernel, exact: the squared norms of the rows, free in the first pass."""
        if self.row_norms is None:
            for _ in self.chunks():
                pass
        return float(self.row_norms.sum())

    def matmat(self, block: Block) -> np.ndarray:
        """V M: (rows, U) on the host. One pass."""
        result = np.empty((self.shape[0], block.shape[1]), self.dtype)
        for rows, V in self.chunks():
            result[rows] = product(V, block)
        return result

    def rmatmat(self, weights: np.ndarray) -> Block:
        """V' W: (P, U). One pass."""
        weights = np.asarray(weights, self.dtype)
        total = zeros((self.shape[1], weights.shape[1]), self.dtype, self.on_host)
        for rows, V in self.chunks():
            total = add_product(total, V.T, weights[rows] if self.on_host else jnp.asarray(weights[rows]))
        return total

    def fused(self, block: Block) -> tuple[np.ndarray, Block]:
        """V M and V' V M from the same gradients. One pass."""
        result = np.empty((self.shape[0], block.shape[1]), self.dtype)
        total = zeros((self.shape[1], block.shape[1]), self.dtype, self.on_host)
        for rows, V in self.chunks():
            part = product(V, block)
            result[rows] = part
            total = add_product(total, V.T, part)
        return result, total

    def dense(self) -> np.ndarray:
        """V itself, (rows, P): to be read only, where it is what is kept."""
        if self._whole is not None:
            return self._whole
        V = np.empty(self.shape, self.dtype)
        for rows, part in self.chunks():
            V[rows] = part
        return V

    def chunks(self) -> Iterator[tuple[slice, Block]]:
        """Every row of V once, in chunks: `(rows, V[rows])`."""
        self.passes += 1
        self.reporter.begin_pass(self._label, len(self.examples))
        norms = np.empty(self.shape[0]) if self._measure_rows and self.row_norms is None else None
        collected = []
        for rows, V in self._read_kept() if self._chunks_kept else self._compute():
            if norms is not None:
                norms[rows] = _row_norms(V)
                outputs = self.differentiator.outputs
                check_rows(norms[rows], rows.start // outputs, rows.stop // outputs, outputs, self.examples.name)
            if self._keep and self._chunks_kept is None:
                collected.append((rows, V.copy() if self.on_host else V))
            yield rows, V
        if norms is not None:
            self.row_norms = norms
        if collected:
            self._chunks_kept, self._buffer = collected, None

    def _chunk_buffer(self) -> Any:
        """One chunk of rows, used again in every pass: fresh pages cost more than the products they hold."""
        if self._buffer is None and self.on_host:
            rows = min(self.chunk * self.differentiator.outputs, self.shape[0])
            self._buffer = np.empty((rows, self.shape[1]), self.dtype)
        return self._buffer

    def _read_kept(self) -> Iterator[tuple[slice, Block]]:
        for rows, V in self._chunks_kept:
            yield rows, V
            self.reporter.advance((rows.stop - rows.start) // self.differentiator.outputs)

    def _compute(self) -> Iterator[tuple[slice, Block]]:
        """Gradients in microbatches that suit the network, gathered into chunks that suit the matrix product."""
        layout, outputs = self.differentiator.layout, self.differentiator.outputs
        mean = layout.pieces(jnp.asarray(self.moments.mean))
        scale = layout.pieces(jnp.asarray(self.moments.scale))
        compute = lambda batch: self.differentiator.rows(mean, scale, batch)  # noqa: E731
        buffer: Any = self._chunk_buffer()
        for rows in self._row_slices():
            first, last = rows.start // outputs, rows.stop // outputs
            for begin, end, leaves in run(compute, self.examples, first, last, self.microbatch, self.reporter):
                if self.on_host:
                    write_rows(buffer[(begin - first) * outputs : (end - first) * outputs], leaves, layout)
                else:
                    buffer = jnp.concatenate([_joined(leaf) for leaf in leaves], axis=1)
            yield rows, buffer[: rows.stop - rows.start]


def _joined(leaf: Block | list) -> Block:
    return jnp.concatenate(leaf) if isinstance(leaf, (list, tuple)) else leaf


def _row_norms(V: Block) -> np.ndarray:
    """Squared norms of the rows, slab by slab in float64."""
    total = np.zeros(V.shape[0])
    for start in range(0, V.shape[1], SLAB):
        part = V[:, start : start + SLAB]
        total += np.einsum("ij,ij->i", part, part) if isinstance(part, np.ndarray) else jnp.sum(part**2, axis=1)
    return total


class ProductFeatures:
    """V by JVPs and VJPs of a batch: no gradient is formed.

    A pass costs about two forward passes per example and column for V M, three for V' W. Holds the activations of
    `microbatch` examples for `columns` columns at a time, the block it is given and the one it returns.
    """

    def __init__(
        self,
        differentiator: Differentiator,
        examples: Examples,
        moments: Moments,
        *,
        microbatch: int,
        columns: int,
        gradients: int = 1,
        on_host: bool = True,
        trace: float | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        """`trace`, where the moments pass has given it already, saves the pass that `trace()` needs; else it takes
        that many `gradients` at once."""
        self.differentiator, self.examples, self.moments = differentiator, examples, moments
        self.microbatch, self.columns, self.gradients, self.on_host = microbatch, columns, gradients, on_host
        self.reporter = reporter or Reporter(show=False)
        self.shape = (len(examples) * differentiator.outputs, differentiator.layout.size)
        self.dtype = differentiator.layout.dtype
        self.passes = 0
        self._trace = trace
        self._label = "products"

    def label(self, text: str) -> None:
        """What the progress bar calls the passes that follow."""
        self._label = text

    def trace(self) -> float:
        """|V|_F^2, exact; without a known value this needs a pass of per-example gradients."""
        if self._trace is None:
            rows = GradientFeatures(
                self.differentiator, self.examples, self.moments,
                microbatch=self.gradients, chunk=self.gradients, on_host=self.on_host, reporter=self.reporter,
            )  # fmt: skip
            self._trace = rows.trace()
            self.passes += 1
        return self._trace

    def matmat(self, block: Block) -> np.ndarray:
        """V M: (rows, U) on the host. One pass."""
        return self._sweep(block=block)[0]

    def rmatmat(self, weights: np.ndarray) -> Block:
        """V' W: (P, U). One pass."""
        return self._sweep(weights=np.asarray(weights, self.dtype))[1]

    def fused(self, block: Block) -> tuple[np.ndarray, Block]:
        """V M and V' V M. One pass."""
        return self._sweep(block=block, reverse=True)

    def dense(self) -> np.ndarray:
        """V itself, (rows, P): one row at a time through V' W."""
        blocks = range(0, self.shape[0], self.columns)
        eye = np.eye(self.shape[0], dtype=self.dtype)
        return np.concatenate([np.asarray(self.rmatmat(eye[:, a : a + self.columns])).T for a in blocks])

    def _sweep(self, block: Block = None, weights: Any = None, reverse: bool = False) -> tuple[Any, Any]:
        self.passes += 1
        self.reporter.begin_pass(self._label, len(self.examples))
        outputs = self.differentiator.outputs
        width = (block if block is not None else weights).shape[1]
        groups = [slice(a, min(a + self.columns, width)) for a in range(0, width, self.columns)]
        tangents, shift = self._tangents(block, groups) if block is not None else ([], None)
        result = np.empty((self.shape[0], width), self.dtype) if block is not None else weights
        total = zeros((self.shape[1], width), self.dtype, True) if reverse or block is None else None
        for begin, end, batch in run(lambda b: b, self.examples, 0, len(self.examples), self.microbatch, self.reporter):
            rows = slice(begin * outputs, end * outputs)
            if block is not None:
                for group, columns in zip(groups, tangents, strict=True):
                    part = np.asarray(self.differentiator.forward_product(columns, batch))
                    result[rows, group] = part[: rows.stop - rows.start, : group.stop - group.start]
                result[rows] -= shift
            if total is not None:
                self._accumulate(total, result[rows], groups, batch)
        return result if block is not None else None, self._normalised(total, result)

    def _tangents(self, block: Block, groups: list[slice]) -> tuple[list, np.ndarray]:
        """s*M as parameter-shaped tangents, a group of columns at a time, and z . (s*M)."""
        scaled = np.asarray(block) * self.moments.scale[:, None]
        tangents = []
        for group in groups:
            columns = _padded_columns(scaled[:, group], self.columns)
            tangents.append(self.differentiator.layout.leaves(jnp.asarray(columns.T)))
        return tangents, self.moments.mean @ scaled

    def _accumulate(self, total: np.ndarray, weights: np.ndarray, groups: list[slice], batch: object) -> None:
        """total += J' W for one batch; padding examples get weight zero."""
        padded = np.zeros((self.microbatch * self.differentiator.outputs, weights.shape[1]), self.dtype)
        padded[: len(weights)] = weights
        for group in groups:
            columns = _padded_columns(padded[:, group], self.columns)
            part = np.asarray(self.differentiator.reverse_product(jnp.asarray(columns), batch))
            total[:, group] += part[:, : group.stop - group.start]

    def _normalised(self, total: np.ndarray | None, weights: np.ndarray) -> Block | None:
        if total is None:
            return None
        sums = weights.sum(axis=0, dtype=np.float64).astype(self.dtype)
        for start in range(0, self.shape[1], SLAB):
            rows = slice(start, start + SLAB)
            total[rows] = self.moments.scale[rows, None] * (total[rows] - np.outer(self.moments.mean[rows], sums))
        return total if self.on_host else jnp.asarray(total)


def _padded_columns(matrix: np.ndarray, columns: int) -> np.ndarray:
    missing = columns - matrix.shape[1]
    return matrix if missing == 0 else np.pad(matrix, ((0, 0), (0, missing)))
