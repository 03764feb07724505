"""What the solver and the operator ask of a place for tall blocks: this, and nothing else.

A block has N rows (the examples' side) or P rows (the parameters' side) and a few columns. It stays where it is; what
travels are small matrices, as float64 numpy arrays. Products are summed slab by slab: within a slab in the precision of
the block, over the slabs in float64 or as well as that, since a float32 sum over a million rows would cost the last
digits that the eigenvalues are judged by.

A new place (the tensors of another framework, a mesh of devices) is a new subclass; blocks of it support `+`, `-`, `*`,
`@`, `.T`, `.shape`, `.dtype` and slices, as numpy, jax and torch arrays all do, and are asked for nothing else
(`tests/test_third_space.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Float

from nfk.distributed import ALONE, Processes
from nfk.layout import Layout, normalised
from nfk.ranges import Ranges

if TYPE_CHECKING:
    from nfk.spaces.tally import Tally

Block = Any  # what a place keeps: a numpy array, a jax array; no operation mixes two kinds
Small = Float[np.ndarray, "left right"]
Leaves = Sequence[Any]  # gradients of a microbatch, one array (rows, size) per parameter leaf, or a list of rows each

SLAB = 8192
ROWS_PER_STREAM = 256


class Space(ABC):
    """Where tall blocks live. Every operation that changes a block returns it: use what is returned."""

    name: str
    exact: bool = False  # whether `inner` has products in float64 for blocks in float32
    parts: int = 1  # ranges that rows are cut into, each worked on where it is
    shards: int = 1  # shares that the columns of a block are cut into
    chunk_copies: int = 1  # of rows of gradients, while a `Store` makes one block of its microbatches
    devices: str = ""  # in words, where there are several
    processor: str = "cpu"  # what computes there, by JAX's name for it
    processes: Processes = ALONE  # that work here together
    device: Any = None  # where networks should compute (`model.interface.Place`), None for JAX's default

    @abstractmethod
    def free_bytes(self) -> int:
        """Memory that this place can still give."""

    # --- making blocks, and taking them away

    @abstractmethod
    def zeros(self, rows: int, columns: int, dtype: np.dtype) -> Block: ...

    @abstractmethod
    def random(self, seed: Sequence[int], rows: int, columns: int, dtype: np.dtype) -> Block:
        """Standard normals, drawn by row: those of a row depend on the seed and its index alone."""

    @abstractmethod
    def put(self, array: np.ndarray | Block, dtype: np.dtype | None = None) -> Block:
        """An array of the host as a block, in that precision if one is given; a block of this place as it is."""

    @abstractmethod
    def get(self, block: Block) -> np.ndarray:
        """A block as an array of the host: for results and files, not for work."""

    def kept(self, block: Block) -> np.ndarray:
        """What this process keeps of a block in a file: all of it, or its part where there are several."""
        return self.get(block)

    def restored(self, part: np.ndarray, shape: tuple[int, ...]) -> Block:
        """A block of that shape, of which every process has kept its part."""
        return self.put(part)

    def eps(self, block: Block) -> float:
        """The rounding error of one operation on a block."""
        return float(np.finfo(block.dtype).eps)

    # --- small matrices from blocks

    @abstractmethod
    def inner(
        self, left: Float[Block, "n a"], right: Float[Block, "n b"], double: bool = False
    ) -> Float[np.ndarray, "a b"]:
        """left' right, in float64 on the host; half the work where both are one and the same. `double` asks for
        products in float64 too, where the place has them (`exact`)."""

    @abstractmethod
    def norms(
        self, block: Float[Block, "n a"], minus: Block | None = None, factors: np.ndarray | float = 1.0
    ) -> Float[np.ndarray, " a"]:
        """Norms of the columns of `block - minus * factors`, in float64 on the host."""

    @abstractmethod
    def row_squares(self, block: Float[Block, "n a"]) -> Float[np.ndarray, " n"]:
        """Squared norms of the rows, in float64 on the host."""

    # --- blocks from blocks

    @abstractmethod
    def product(self, left: Float[Block, "n a"], right: Float[Block, "a b"]) -> Float[Block, "n b"]:
        """left @ right in full precision; either may be a small matrix of the host."""

    @abstractmethod
    def add_product(
        self, total: Float[Block, "n b"], left: Float[Block, "n a"], right: Float[Block, "a b"], sign: float = 1.0
    ) -> Float[Block, "n b"]:
        """total + sign * left @ right; gives up the memory of `total`."""

    @abstractmethod
    def add_columns(self, total: Float[Block, "n b"], place: slice, part: Float[Block, "n a"]) -> Float[Block, "n b"]:
        """total with `part` added to the columns at `place`; gives up the memory of `total`."""

    @abstractmethod
    def rotate(self, block: Float[Block, "n a"], rotation: Float[np.ndarray, "a b"]) -> Float[Block, "n b"]:
        """block @ rotation for b <= a; gives up the memory of `block`."""

    @abstractmethod
    def normalise(
        self,
        block: Float[Block, "p b"],
        scale: Float[np.ndarray, " p"],
        mean: Float[np.ndarray, " p"],
        sums: np.ndarray,
    ) -> Float[Block, "p b"]:
        """scale * (block - mean sums'), row by row; gives up the memory of `block`."""

    @abstractmethod
    def joined(self, blocks: Sequence[Block]) -> Block:
        """The blocks side by side."""

    @abstractmethod
    def stacked(self, blocks: Iterable[tuple[slice, Block]], rows: int, columns: int, dtype: np.dtype) -> Block:
        """Blocks one above another, each at its rows; taken one by one, as they are made."""

    @abstractmethod
    def columns(self, block: Block, place: slice) -> Block:
        """A copy of some columns."""

    def between(self, block: Float[Block, "n a"], rows: slice) -> Float[Block, "m a"]:
        """Some rows, one after another, to be read only."""
        return block[rows]

    def sampled(self, block: Float[Block, "n a"], step: int) -> Float[np.ndarray, "m a"]:
        """Every `step`-th row, on the host; `block` may be an array of the host already."""
        return self.get(self.put(block[::step]))

    @abstractmethod
    def padded(self, block: Block, rows: int, columns: int) -> Block:
        """The block filled up with zeros; itself where it has that shape."""

    def rounded(self, block: Float[Block, "n a"]) -> Float[Block, "n a"]:
        """A copy in bfloat16, which `inner`, `add_product` and `combine` can read; `block` has the same numbers from
        now on. `block` itself where a place has no such copies."""
        return block

    def combine(self, blocks: Sequence[Block], coefficients: Small, dtype: np.dtype | None = None) -> Block:
        """[blocks_0 blocks_1 ...] @ coefficients, without joining the blocks; in their precision, or in that one."""
        total = self.zeros(blocks[0].shape[0], coefficients.shape[1], dtype or blocks[0].dtype)
        start = 0
        for block in blocks:
            width = block.shape[1]
            total = self.add_product(total, block, coefficients[start : start + width])
            start += width
        return total

    # --- rows: those of gradients, and blocks of as many rows

    def row_space(self, outputs: int) -> Space:
        """Where blocks of rows live, one row for each of an example's `outputs`."""
        return self

    @abstractmethod
    def store(self, rows: int, layout: Layout) -> Store:
        """Room for rows of gradients."""

    @abstractmethod
    def lend(self, block: Block) -> Any:
        """A block or a vector as an argument for the derivatives of a network; not copied where that can be."""

    def batch(self, read: Callable[[int, int], Any], ranges: Ranges, begin: int, end: int, size: int) -> Any:
        """Examples begin:end of every range, for the derivatives of a network: padded to `size` of each range."""
        return padded(read(begin, end), size)

    def normals(self, seed: Sequence[int], ranges: Ranges, rows: slice, columns: int, dtype: np.dtype) -> Block:
        """`random` for some rows of every range."""
        return self.put(normals(seed, rows.start, rows.stop, columns, dtype))

    def own(self, examples: int) -> slice:
        """The examples that this process reads."""
        return slice(0, examples)

    def part(self, block: Float[Block, "rows a"], rows: slice) -> Float[Block, "n a"]:
        """Some rows of every range."""
        return block[rows]

    def spread(self, block: Float[Block, "P a"]) -> Block:
        """A block as rows of gradients meet it, wherever they are."""
        return block

    def outer(self, total: Block | None, V: Float[Block, "n P"], part: Float[Block, "n b"]) -> Block:
        """total + V' part, summed up where the rows are; nothing is added to at first."""
        return self.product(V.T, part) if total is None else self.add_product(total, V.T, part)

    def summed(self, total: Block) -> Float[Block, "P b"]:
        """What `outer` has summed up, as a block: the one reduction of a pass."""
        return total

    def images(self, V: Float[Block, "n P"], block: Float[Block, "P a"]) -> Float[np.ndarray, "n a"]:
        """V M, in float64 on the host."""
        return self.inner(V.T, block, double=True)

    def everywhere(self, V: Float[Block, "n P"]) -> Block:
        """Rows of gradients as all other rows can meet them."""
        return V

    def kernel(self, V: Float[Block, "n P"], held: Float[Block, "m P"], double: bool = False) -> Small:
        """V held' in float64 on the host, `held` as `everywhere` gives it."""
        columns = V.T
        return self.inner(columns, columns if held is V else held.T, double)

    def collected(self, pieces: Sequence[tuple[Any, int]]) -> np.ndarray:
        """Numbers of rows on the host, range after range: from pieces, each with how many of every range count."""
        return np.concatenate([np.asarray(piece)[:count] for piece, count in pieces])

    def add_sums(self, total: Any, block: Float[Block, "n a"]) -> Any:
        """The sums of all columns added to `total`, nothing at first."""
        sums = self.get(block).sum(axis=0, dtype=np.float64)
        return sums if total is None else total + sums

    def sums_of(self, total: Any) -> Float[np.ndarray, " a"]:
        """What `add_sums` has summed up, in float64 on the host."""
        return total

    @abstractmethod
    def tally(self, layout: Layout, ranges: Ranges) -> Tally:
        """The mean and the spread of all rows of gradients, taken where the derivatives of a network are."""

    @abstractmethod
    def largest(self, leaves: Leaves) -> float:
        """The largest magnitude in a microbatch of gradients."""

    # --- products with tangents and cotangents

    def scaled(self, block: Float[Block, "P a"], scale: np.ndarray) -> Float[Block, "P a"]:
        """Every row times its number."""
        return block * self.put(scale)[:, None]

    def sums(self, rows: int, columns: int, dtype: np.dtype) -> Block:
        """Zeros to sum up in, as `outer` does, and for `summed`."""
        return self.zeros(rows, columns, dtype)

    def groups(self, width: int, columns: int) -> list[slice]:
        """The columns that the derivatives of a network take at once."""
        return [slice(a, min(a + columns, width)) for a in range(0, width, columns)]

    def tangents(self, block: Float[Block, "P a"], group: slice, columns: int, layout: Layout) -> list:
        """Some columns of a block, filled up to `columns` of them, as leaves of the parameters."""
        return layout.leaves(self.lend(self.padded(block[:, group], block.shape[0], columns).T))

    def cotangents(self, weights: Float[Block, "n a"], group: slice, rows: int, columns: int) -> Any:
        """Some columns of a block, filled up to that size."""
        return self.lend(self.padded(weights[:, group], rows, columns))

    def image(self, parts: list, batch: Any, rows: int, width: int, shift: np.ndarray) -> Float[Block, "n U"]:
        """What the derivatives of a network made of the tangents of all groups, less `shift`, without the padding."""
        joined = self.joined([self.put(part) for part in parts])
        return joined[:rows, :width] - self.put(shift, joined.dtype)


class Store(ABC):
    """Rows of gradients, (rows, P), written a microbatch at a time and read as blocks."""

    @abstractmethod
    def write(self, first: int, leaves: Leaves, count: int) -> None:
        """Rows first:first + count from gradients leaf by leaf; further rows of theirs are padding."""

    def write_normalised(self, first: int, leaves: Leaves, count: int, mean: list, scale: list) -> None:
        """(row - mean) * scale from raw gradients, with mean and scale leaf by leaf as well."""
        self.write(first, normalised(leaves, mean, scale), count)

    def room(self, first: int, count: int) -> Any:
        """Rows first:first + count as memory that derivatives can be written into in place of `write`, where there is
        such: an array of the host, or what the networks of this place compute with."""
        return None

    def settle(self, first: int, count: int) -> None:  # noqa: B027  (nothing to do where the room is the place)
        """Rows were written into their `room`, a microbatch of them."""

    @abstractmethod
    def block(self, rows: slice) -> Block:
        """Some rows, to be read only. They begin and end where microbatches do."""

    @abstractmethod
    def normalise(self, mean: np.ndarray, scale: np.ndarray) -> None:
        """(row - mean) * scale for every row, in place."""

    @abstractmethod
    def clear(self) -> None:
        """Nothing that was written is needed any more."""


def padded(batch: Any, size: int) -> Any:
    """The batch with its last example repeated up to `size`, so that one compiled shape serves every batch."""

    def pad(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        missing = size - len(leaf)
        return leaf if missing == 0 else np.concatenate([leaf, np.repeat(leaf[-1:], missing, axis=0)])

    return jax.tree.map(pad, batch)


def normals(seed: Sequence[int], start: int, stop: int, columns: int, dtype: np.dtype) -> Float[np.ndarray, "n a"]:
    """Rows start:stop of a tall block of standard normals; a row's numbers do not depend on who draws it."""
    parts = [np.empty((0, columns), dtype)]
    for stream in range(start // ROWS_PER_STREAM, -(-stop // ROWS_PER_STREAM)):
        first = stream * ROWS_PER_STREAM
        rng = np.random.default_rng([*seed, stream])
        drawn = rng.standard_normal((min(stop - first, ROWS_PER_STREAM), columns), dtype=dtype)
        parts.append(drawn[max(start - first, 0) :])
    return np.concatenate(parts)
