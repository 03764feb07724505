"""Blocks as numpy arrays, multiplied by BLAS and updated in place, on all cores.

On a CPU numpy's BLAS multiplies a chunk of gradients with a block 1.5 to 2.5 times as fast as XLA's own product does
(measured: 160 to 200 GFLOP/s against 70 to 130, two cores). Each operation is cut into pieces for a pool of workers.
How a sum is cut depends on the shapes alone, so its result does not depend on the number of cores.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from nfk.layout import Layout
from nfk.memory import available_bytes
from nfk.ranges import Ranges
from nfk.spaces.pool import each, workers
from nfk.spaces.space import SLAB, Block, Leaves, Small, Space, Store, normals
from nfk.spaces.tally import HostTally, largest, quietly

ROWS_IN_CACHE = 64
CACHE = 2**18  # bytes of rows that are normalised at once
LARGE = 64 * 2**20
WIDE_SLAB = 4 * SLAB  # of a large small matrix, whose own size costs as much as a slab's products
TILE = 1024  # columns of a small matrix that one worker sums up
DOUBLES = 2**22  # bytes of rows that one worker has in float64, or twice what their products have, if that is more
BFLOAT16 = np.dtype(jnp.bfloat16)  # the first half of a float32: its range, and 8 of its 24 digits
PIECES = 8  # parts of a long sum; and what a worker takes at a time is an eighth of its share


class Host(Space):
    """Blocks in the memory of this machine."""

    name = "host"
    exact = True

    def free_bytes(self) -> int:
        return available_bytes()

    def fresh(self, shape: tuple[int, int], dtype: np.dtype, zeros: bool = False) -> np.ndarray:
        """Room for a new block."""
        return fresh(shape, dtype, zeros)

    def zeros(self, rows: int, columns: int, dtype: np.dtype) -> Block:
        return self.fresh((rows, columns), dtype, zeros=True)

    def random(self, seed: Sequence[int], rows: int, columns: int, dtype: np.dtype) -> Block:
        block = self.fresh((rows, columns), dtype)
        for slab in slabs(slice(0, rows)):
            block[slab] = normals(seed, slab.start, slab.stop, columns, dtype)
        return block

    def put(self, array: np.ndarray | Block, dtype: np.dtype | None = None) -> Block:
        return np.ascontiguousarray(array, dtype)

    def get(self, block: Block) -> np.ndarray:
        return np.asarray(block)

    def inner(self, left: Block, right: Block, double: bool = False) -> np.ndarray:
        symmetric = left is right  # numpy computes half of A' A
        firsts, seconds = _pieces(left.shape[1], TILE), _pieces(right.shape[1], TILE)
        tiles = [(a, b) for a in firsts for b in seconds if not symmetric or a.start <= b.start]
        parts = _pieces(len(left), max(-(-len(left) * len(tiles) // PIECES), SLAB))
        tasks = [(a, b, rows) for a, b in tiles for rows in parts]
        total = np.zeros((left.shape[1], right.shape[1]))
        for (a, b, _), part in zip(tasks, each(lambda task: _inner(left, right, *task, double), tasks), strict=True):
            total[a, b] += part
        if symmetric:
            for a, b in tiles:
                total[b, a] = total[a, b].T
        return total

    def norms(self, block: Block, minus: Block | None = None, factors: np.ndarray | float = 1.0) -> np.ndarray:
        def squares(rows: slice) -> np.ndarray:
            total = np.zeros(block.shape[1])
            for slab in slabs(rows):
                part = block[slab].astype(np.float64)
                if minus is not None:
                    part -= minus[slab] * np.asarray(factors, np.float64)
                total += np.einsum("ij,ij->j", part, part)
            return total

        parts = each(squares, _pieces(len(block), max(-(-len(block) // PIECES), SLAB)))
        return np.sqrt(np.sum([np.zeros(block.shape[1]), *parts], axis=0))

    def row_squares(self, block: Block) -> np.ndarray:
        total = np.zeros(len(block))

        def add(rows: slice) -> None:
            for columns in slabs(slice(0, block.shape[1])):
                part = block[rows, columns]
                total[rows] += np.einsum("ij,ij->i", part, part)

        each(add, _shares(len(block)))
        return total

    def product(self, left: Block, right: Block) -> Block:
        """Of few long rows as a sum over slabs, shared out by slabs: workers that share rows would all read `right`."""
        right = _like(right, _wide(left[:0]))
        if left.shape[1] > max(SLAB, len(left)):
            return self.inner(left.T, right).astype(right.dtype)
        result = self.fresh((len(left), right.shape[1]), right.dtype)

        def multiply(rows: slice) -> None:
            for slab in slabs(rows):
                result[slab] = _multiplied(left[slab], right)

        each(multiply, _shares(len(left)))
        return result

    def add_product(self, total: Block, left: Block, right: Block, sign: float = 1.0) -> Block:
        right = _like(right, total)
        right = right if sign == 1 else sign * right

        def add(rows: slice) -> None:
            for slab in slabs(rows):
                total[slab] += _multiplied(left[slab], right)

        each(add, _shares(len(total)))
        return total

    def add_columns(self, total: Block, place: slice, part: Any) -> Block:
        total[:, place] += np.asarray(part)[:, : place.stop - place.start]
        return total

    def rotate(self, block: Block, rotation: np.ndarray) -> Block:
        rotation, columns = _like(rotation, block), rotation.shape[1]

        def turn(rows: slice) -> None:
            for slab in slabs(rows):
                block[slab, :columns] = block[slab] @ rotation

        each(turn, _shares(len(block)))
        return block if columns == block.shape[1] else self.copied(block[:, :columns], block.dtype)

    def normalise(self, block: Block, scale: np.ndarray, mean: np.ndarray, sums: np.ndarray) -> Block:
        sums = sums.astype(block.dtype)

        def shift(rows: slice) -> None:
            for slab in slabs(rows):
                block[slab] -= np.outer(mean[slab], sums)
                block[slab] *= scale[slab, None]

        each(shift, _shares(len(block)))
        return block

    def joined(self, blocks: Sequence[Block]) -> Block:
        if len(blocks) == 1:
            return blocks[0]
        result, start = self.fresh((len(blocks[0]), sum(b.shape[1] for b in blocks)), blocks[0].dtype), 0
        for block in blocks:
            result[:, start : start + block.shape[1]] = block
            start += block.shape[1]
        return result

    def stacked(self, blocks: Iterable[tuple[slice, Block]], rows: int, columns: int, dtype: np.dtype) -> Block:
        result = np.empty((rows, columns), dtype)
        for place, block in blocks:
            result[place] = block
        return result

    def columns(self, block: Block, place: slice) -> Block:
        return self.copied(block[:, place], block.dtype)

    def copied(self, block: Block, dtype: np.dtype) -> Block:
        result = self.fresh(block.shape, dtype)
        result[:] = block
        return result

    def rounded(self, block: Block) -> Block:
        result = self.fresh(block.shape, BFLOAT16)

        def round_off(rows: slice) -> None:
            for slab in slabs(rows):
                result[slab] = block[slab]
                block[slab] = result[slab]

        each(round_off, _shares(len(block)))
        return result

    def combine(self, blocks: Sequence[Block], coefficients: Small, dtype: np.dtype | None = None) -> Block:
        """Each slab of the result is written once."""
        total = self.fresh((len(blocks[0]), coefficients.shape[1]), dtype or blocks[0].dtype)
        ends = np.cumsum([block.shape[1] for block in blocks])
        parts = np.split(coefficients.astype(total.dtype), ends[:-1])

        def fill(rows: slice) -> None:
            for slab in slabs(rows):
                total[slab] = sum(_wide(block[slab]) @ part for block, part in zip(blocks, parts, strict=True))

        each(fill, _shares(len(total)))
        return total

    def padded(self, block: Block, rows: int, columns: int) -> Block:
        if block.shape == (rows, columns):
            return block
        result = self.fresh((rows, columns), block.dtype, zeros=True)
        result[: block.shape[0], : block.shape[1]] = block
        return result

    def store(self, rows: int, layout: Layout) -> HostStore:
        return HostStore(fresh((rows, layout.size), layout.dtype), layout.places)

    def lend(self, block: Block) -> jax.Array:
        return jax.device_put(block)  # jnp.asarray compiles a program for every shape, 20 ms each

    def tally(self, layout: Layout, ranges: Ranges) -> HostTally:
        return HostTally(layout)

    def largest(self, leaves: Leaves) -> float:
        return largest(leaves)


@dataclass(frozen=True)
class HostStore(Store):
    """One array for all rows, each written once, where it stays."""

    array: np.ndarray
    places: Sequence[slice]

    def write(self, first: int, leaves: Leaves, count: int) -> None:
        for target, rows, _ in self._targets(first, leaves, count):
            target[:] = rows

    def write_normalised(self, first: int, leaves: Leaves, count: int, mean: list, scale: list) -> None:
        for target, rows, leaf in self._targets(first, leaves, count):
            shift_into(target, rows, mean[leaf], scale[leaf])

    def _targets(self, first: int, leaves: Leaves, count: int) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        """Places of the array, the gradients that go there, and of which leaf they are."""
        for number, (place, leaf) in enumerate(zip(self.places, leaves, strict=True)):
            row, last = first, first + count
            for part in leaf if isinstance(leaf, (list, tuple)) else [leaf]:
                if row < last:
                    end = min(row + part.shape[0], last)
                    yield self.array[row:end, place], np.asarray(part)[: end - row], number
                    row = end

    def room(self, first: int, count: int) -> np.ndarray:
        return self.array[first : first + count]

    def block(self, rows: slice) -> Block:
        return self.array[rows]

    def normalise(self, mean: np.ndarray, scale: np.ndarray) -> None:
        shift_rows(self.array, mean, scale)

    def clear(self) -> None:
        pass


HOST = Host()


def shift_rows(array: Float[np.ndarray, "n P"], mean: np.ndarray, scale: np.ndarray) -> None:
    """(row - mean) * scale for every row, in place."""

    @quietly
    def shift(place: slice) -> None:
        rows = array[place]
        rows -= mean
        rows *= scale

    each(shift, _pieces(len(array), ROWS_IN_CACHE))


@quietly
def shift_into(target: np.ndarray, rows: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> None:
    """(row - mean) * scale for every row, slabs of columns that are in the cache at the second step."""
    width = max(CACHE // (len(rows) * rows.itemsize), ROWS_IN_CACHE)
    for start in range(0, rows.shape[1], width):
        columns = slice(start, start + width)
        np.subtract(rows[:, columns], mean[columns], out=target[:, columns])
        target[:, columns] *= scale[columns]


def fresh(shape: tuple[int, ...], dtype: np.dtype, zeros: bool = False) -> np.ndarray:
    """New memory. Large arrays are in small pages: numpy asks for huge ones, and where the machine must first move
    other memory aside to make them, touching a gigabyte takes two seconds, not 0.3 (measured). Products are as fast."""
    count = int(np.prod(shape))
    if count * np.dtype(dtype).itemsize < LARGE or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return (np.zeros if zeros else np.empty)(shape, dtype)
    return pages(shape, dtype)


def pages(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros in pages of their own, small ones where that can be asked for. They are this process's alone: Python's own
    choice are pages that a fork would share, which are slower to touch."""
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    room = mmap.mmap(-1, max(int(np.prod(shape)) * np.dtype(dtype).itemsize, 1), **flags)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        room.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(room, dtype, int(np.prod(shape))).reshape(shape)


def _pieces(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def slabs(rows: slice, size: int = SLAB) -> Iterable[slice]:
    return (slice(start, min(start + size, rows.stop)) for start in range(rows.start, rows.stop, size))


def _shares(length: int) -> list[slice]:
    """Rows of a block, for the workers to take in turn; all at once for a single one."""
    share = length if workers() == 1 else -(-length // (PIECES * workers()))
    return _pieces(length, max(share, ROWS_IN_CACHE))


def _inner(left: Block, right: Block, a: slice, b: slice, rows: slice, double: bool) -> np.ndarray:
    """left[rows, a]' right[rows, b]: products in the precision of the blocks, or in float64, sums in float64."""
    total = np.zeros((a.stop - a.start, b.stop - b.start))
    same, size = left is right and a == b, SLAB if min(total.shape) < TILE // 2 else WIDE_SLAB
    if double:  # of which there are copies
        # A product of few columns costs less than to add it up: by 4 MB, 1,024 x 1,024 took 1.25 times as long.
        size = min(SLAB, max(DOUBLES, 2 * total.nbytes) // (8 * sum(total.shape)))
    for slab in slabs(rows, size):
        first = left[slab, a].astype(np.float64) if double else _wide(left[slab, a])
        second = first if same else _wide(right[slab, b])
        total += first.T @ second
    return total


def _multiplied(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left @ right; of a transposed matrix as (right' left')', which BLAS does up to 1.7 times as fast where its rows
    do not begin at multiples of 64 bytes. With few of them it takes longer to turn the result (all measured)."""
    left = _wide(left)
    if left.strides[0] >= left.strides[1] or left.shape[1] < 4 * right.shape[1]:
        return left @ right
    return (np.ascontiguousarray(right.T) @ left.T).T


def _wide(part: np.ndarray) -> np.ndarray:
    """Numbers that BLAS can multiply: those of bfloat16 as float32, no others copied."""
    return part.astype(np.float32) if part.dtype == BFLOAT16 else part


def _like(matrix: np.ndarray, block: np.ndarray) -> np.ndarray:
    """A small matrix in the precision of `block`."""
    return matrix if matrix.dtype == block.dtype else np.ascontiguousarray(matrix, block.dtype)
