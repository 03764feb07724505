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
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from nfk.layout import Layout

if TYPE_CHECKING:
    from nfk.spaces.processes import Processes
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
    processes: Processes | None = None  # that share out the rows; blocks are whole in each of them
    device: Any  # where networks should compute, None for JAX's default

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

    @abstractmethod
    def padded(self, block: Block, rows: int, columns: int) -> Block:
        """The block filled up with zeros; itself where it has that shape."""

    def combine(self, blocks: Sequence[Block], coefficients: Small) -> Block:
        """[blocks_0 blocks_1 ...] @ coefficients, without joining the blocks."""
        total = self.zeros(blocks[0].shape[0], coefficients.shape[1], blocks[0].dtype)
        start = 0
        for block in blocks:
            width = block.shape[1]
            total = self.add_product(total, block, coefficients[start : start + width])
            start += width
        return total

    # --- rows of gradients

    @abstractmethod
    def store(self, rows: int, layout: Layout) -> Store:
        """Room for rows of gradients."""

    @abstractmethod
    def lend(self, block: Block) -> Any:
        """A block or a vector as an argument for the derivatives of a network; not copied where that can be."""

    @abstractmethod
    def tally(self, layout: Layout) -> Tally:
        """The mean and the spread of rows of gradients, taken where the derivatives of a network are."""

    @abstractmethod
    def largest(self, leaves: Leaves) -> float:
        """The largest magnitude in a microbatch of gradients."""


class Store(ABC):
    """Rows of gradients, (rows, P), written a microbatch at a time and read as blocks."""

    @abstractmethod
    def write(self, first: int, leaves: Leaves, count: int) -> None:
        """Rows first:first + count from gradients leaf by leaf; further rows of theirs are padding."""

    def room(self, first: int, count: int) -> Any:
        """Rows first:first + count as memory that derivatives can be written into in place of `write`, where there is
        such: an array of the host, or what the networks of this place compute with."""
        return None

    @abstractmethod
    def block(self, rows: slice) -> Block:
        """Some rows, to be read only. They begin and end where microbatches do."""

    @abstractmethod
    def normalise(self, mean: np.ndarray, scale: np.ndarray) -> None:
        """(row - mean) * scale for every row, in place."""

    @abstractmethod
    def clear(self) -> None:
        """Nothing that was written is needed any more."""


def normals(seed: Sequence[int], start: int, stop: int, columns: int, dtype: np.dtype) -> Float[np.ndarray, "n a"]:
    """Rows start:stop of a tall block of standard normals; a row's numbers do not depend on who draws it."""
    parts = [np.empty((0, columns), dtype)]
    for stream in range(start // ROWS_PER_STREAM, -(-stop // ROWS_PER_STREAM)):
        first = stream * ROWS_PER_STREAM
        rng = np.random.default_rng([*seed, stream])
        drawn = rng.standard_normal((min(stop - first, ROWS_PER_STREAM), columns), dtype=dtype)
        parts.append(drawn[max(start - first, 0) :])
    return np.concatenate(parts)
