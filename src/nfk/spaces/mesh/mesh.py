"""Rows of gradients over the devices of a mesh, and what the derivatives of a network take and give there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nfk.layout import Layout
from nfk.ranges import Ranges
from nfk.spaces.mesh import local
from nfk.spaces.mesh.blocks import MeshBlocks, Tall
from nfk.spaces.mesh.sharding import COLUMNS, EACH, ROWS, SAME, SUMS, TALL, WIDE, Grid
from nfk.spaces.mesh.tally import MeshTally
from nfk.spaces.space import Leaves, Store, padded


@dataclass(frozen=True)
class Rows:
    """Rows of gradients, (rows, P), those of a range on each place of the data axis; columns are filled up."""

    array: jax.Array
    width: int


@dataclass(frozen=True)
class Sums:
    """V' W as far as it is summed up, on each place of the data axis for its own rows."""

    array: jax.Array
    shape: tuple[int, int]


@dataclass(frozen=True)
class Columns:
    """Tangents or cotangents, of which the derivatives of a network take `at_once`."""

    arrays: Any
    at_once: int


@dataclass(frozen=True)
class Shared:
    """A batch of examples, shared out over all devices; those that are not `inside` are padding."""

    examples: Any
    inside: jax.Array


@dataclass(frozen=True)
class Mesh(MeshBlocks):
    """A mesh of JAX devices as a place for blocks, and for the derivatives of a network (`model.interface.Place`)."""

    name = "mesh"
    chunk_copies = 2  # pyright: ignore[reportIncompatibleVariableOverride]

    @classmethod
    def of(cls, devices: Sequence[jax.Device], basis: int = 1) -> Mesh:
        """These devices in their order, `basis` of them for the columns of each range of rows."""
        return cls(Grid.of(devices, basis))

    @property
    def device(self) -> Mesh:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self

    def row_space(self, outputs: int) -> Mesh:
        return replace(self, unit=outputs)

    # --- rows of gradients

    def store(self, rows: int, layout: Layout) -> MeshStore:
        return MeshStore(self, layout, Ranges(rows, self.parts, self._each(rows)), {})

    def length(self, parameters: int) -> int:
        """P, filled up."""
        return -(-parameters // self.parts) * self.parts

    def get(self, block: Any) -> np.ndarray:
        if isinstance(block, Rows):
            return self.grid.fetch(block.array)[:, : block.width]
        return super().get(block)

    def lend(self, block: Any) -> jax.Array:
        return self.grid.put(np.asarray(block), SAME)

    def product(self, left: Tall | Rows, right: Any) -> Tall:
        if isinstance(left, Tall):
            return super().product(left, right)
        array = self.grid.each(local.matmul, (ROWS, WIDE), TALL, left.array, right.array)
        return self.tall(array, len(array), right.shape[1])

    def spread(self, block: Tall) -> Tall:
        """With all rows of P on every place of the data axis; itself where there is one."""
        if self.parts == 1:
            return block
        return replace(block, array=self.grid.each(local.gather_rows, (TALL,), WIDE, block.array))

    def outer(self, total: Sums | None, V: Rows, part: Tall) -> Sums:
        if total is None:
            array = self.grid.each(local.first_outer, (ROWS, TALL), SUMS, V.array, part.array)
            return Sums(array, (V.width, part.shape[1]))
        ins = (SUMS, ROWS, TALL)
        return replace(
            total, array=self.grid.each(local.outer, ins, SUMS, total.array, V.array, part.array, donate=True)
        )

    def summed(self, total: Sums) -> Tall:
        """On CPUs by `exchanged`. Processes are connected by gloo there, whose reduce-scatter overwrites what it still
        sends: process 0 gets wrong numbers now and then where its part is larger than a socket's buffer, some MB. As
        many bytes travel, and the sum has one order."""
        function = local.exchanged if self.processor == "cpu" else local.summed
        array = self.grid.each(function, (SUMS,), TALL, total.array)
        return replace(self, unit=1).tall(array, *total.shape)

    def row_squares(self, block: Rows) -> jax.Array:
        return self.grid.each(local.row_squares, (ROWS,), ROWS, block.array)

    def collected(self, pieces: Sequence[tuple[jax.Array, int]]) -> np.ndarray:
        """A second number for a row is what the sum of the first has lost."""
        arrays = [piece if piece.ndim == 2 else piece[:, None] for piece, _ in pieces]
        stacked = self.grid.each(local.stacked, (ROWS,) * len(arrays), ROWS, *arrays)
        whole = self.grid.fetch(stacked).astype(np.float64).sum(axis=1).reshape(self.parts, -1)
        starts = np.cumsum([0, *(len(array) // self.parts for array in arrays)])
        kept = [whole[:, start : start + count] for start, (_, count) in zip(starts, pieces, strict=False)]
        return np.concatenate(kept, axis=1).reshape(-1)

    def images(self, V: Rows, block: Tall) -> np.ndarray:
        return self._with_lost(self.grid.each(local.images, (ROWS, WIDE), TALL, V.array, block.array))

    def everywhere(self, V: Rows) -> Rows:
        return replace(V, array=self.grid.each(local.gather_rows, (ROWS,), SAME, V.array))

    def kernel(self, V: Rows, held: Rows, double: bool = False) -> np.ndarray:
        return self._with_lost(self.grid.each(local.kernel, (ROWS, SAME), ROWS, V.array, held.array))

    def _with_lost(self, array: jax.Array) -> np.ndarray:
        return self.grid.fetch(array).astype(np.float64).sum(axis=-1)

    def add_sums(self, total: jax.Array | None, block: Tall) -> jax.Array:
        sums = self.grid.each(local.column_sums, (TALL,), SUMS, block.array)
        return sums if total is None else total + sums

    def sums_of(self, total: jax.Array) -> np.ndarray:
        return self.grid.fetch(total).astype(np.float64).sum(axis=(0, 1))

    # --- batches of examples, and a state for each device

    def own(self, examples: int) -> slice:
        ranges, mine = Ranges.of(examples, self.parts), [number // self.shards for number, _ in self.grid.own]
        return slice(min(min(mine) * ranges.each, examples), min((max(mine) + 1) * ranges.each, examples))

    def _share(self, size: int) -> int:
        """Examples of a microbatch that each device of a place of the data axis takes."""
        return -(-size // self.shards)

    def batch(self, read: Callable[[int, int], Any], ranges: Ranges, begin: int, end: int, size: int) -> Shared:
        share = self._share(size)
        parts, inside = {}, {}
        for number, _ in self.grid.own:
            first, stop = self._bounds(number, ranges, begin, end, share)
            inside[number] = np.arange(share) < stop - first
            parts[number] = padded(read(first, stop) if stop > first else read(ranges.count - 1, ranges.count), share)
        numbers = list(parts)
        examples = jax.tree.map(
            lambda *leaves: self.grid.gathered(dict(zip(numbers, leaves, strict=True))), *parts.values()
        )
        return Shared(examples, self.grid.gathered(inside))

    def _bounds(self, number: int, ranges: Ranges, begin: int, end: int, share: int) -> tuple[int, int]:
        """The examples that one device takes of begin:end of every range."""
        range_, shard = divmod(number, self.shards)
        start = range_ * ranges.each
        first = start + begin + shard * share
        return first, min(first + share, start + end, ranges.count)

    def valid(self, ranges: Ranges, rows: slice, share: int) -> np.ndarray:
        """How many of the `share` rows that each device has of a microbatch are no padding."""
        numbers = range(self.grid.mesh.size)
        bounds = [self._bounds(number, ranges, rows.start, rows.stop, share) for number in numbers]
        return np.asarray([max(stop - first, 0) for first, stop in bounds])

    def tally(self, layout: Layout, ranges: Ranges) -> MeshTally:
        return MeshTally(self, layout, ranges)

    def largest(self, leaves: Leaves) -> float:
        parts = [leaf for leaf in leaves if leaf.size]
        return float(self.grid.fetch(self.grid.whole(local.largest, SAME, *parts))) if parts else 0.0

    # --- the derivatives of a network

    def share(self, tree: Any) -> Any:
        return jax.tree.map(self._everywhere, tree)

    def _everywhere(self, leaf: Any) -> Any:
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(self.lend(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        return self.lend(leaf)

    def gradients(self, function: Callable, outputs: int, same: tuple, batch: Shared) -> list:
        ins, given = (SAME, EACH, EACH), (same, batch.examples, batch.inside)
        return self.grid.each(local.gradients, ins, EACH, *given, function=function, outputs=outputs)

    def forward(self, function: Callable, outputs: int, same: tuple, columns: Columns, batch: Shared) -> jax.Array:
        ins, given = (SAME, COLUMNS, EACH), (same, columns.arrays, batch.examples)
        static = {"function": function, "outputs": outputs, "at_once": columns.at_once}
        return self.grid.each(local.forward, ins, TALL, *given, **static)

    def reverse(self, function: Callable, outputs: int, same: tuple, weights: Columns, batch: Shared) -> jax.Array:
        ins, given = (SAME, TALL, EACH), (same, weights.arrays, batch.examples)
        static = {"function": function, "outputs": outputs, "at_once": weights.at_once, "parts": self.parts}
        return self.grid.each(local.reverse, ins, SUMS, *given, **static)

    def sums(self, rows: int, columns: int, dtype: np.dtype) -> Sums:
        shape = self.parts, self.length(rows), self._wide(columns)
        return Sums(self.grid.whole(local.zeros, SUMS, shape=shape, dtype=np.dtype(dtype)), (rows, columns))

    def groups(self, width: int, columns: int) -> list[slice]:
        """All at once: each device takes some of its own at a time."""
        return [slice(0, width)]

    def tangents(self, block: Tall, group: slice, columns: int, layout: Layout) -> Columns:
        spread = self.spread(block).array
        return Columns(self.grid.each(local.tangents, (WIDE,), COLUMNS, spread, layout=layout), columns)

    def cotangents(self, weights: Tall, group: slice, rows: int, columns: int) -> Columns:
        outputs = self.unit
        rows = self._share(rows // outputs) * self.shards * outputs
        return Columns(self.grid.each(local.cotangents, (TALL,), TALL, weights.array, rows=rows), columns)

    def image(self, parts: list, batch: Shared, rows: int, width: int, shift: np.ndarray) -> Tall:
        array, ins = parts[0], (TALL, EACH, COLUMNS)
        given = array, batch.inside, self.numbers(shift, width, array.dtype)
        found = self.grid.each(local.image, ins, TALL, *given, count=rows)
        return self.tall(found, len(found), width)

    def add_columns(self, total: Sums, place: slice, part: jax.Array) -> Sums:
        return replace(total, array=self.grid.each(local.add, (SUMS, SUMS), SUMS, total.array, part, donate=True))


@dataclass(frozen=True)
class MeshStore(Store):
    """Rows of gradients for every microbatch, by its first row."""

    space: Mesh
    layout: Layout
    ranges: Ranges
    parts: dict[int, Rows]

    def write(self, first: int, leaves: Leaves, count: int) -> None:
        static = {"count": count, "width": self.space.length(self.layout.size)}
        array = self.space.grid.each(local.written, (EACH,), ROWS, list(leaves), **static)
        self.parts[first] = Rows(array, self.layout.size)

    def block(self, rows: slice) -> Rows:
        parts = [self.parts[first].array for first in sorted(self.parts) if rows.start <= first < rows.stop]
        if len(parts) > 1:
            parts = [self.space.grid.each(local.stacked, (ROWS,) * len(parts), ROWS, *parts)]
        return Rows(parts[0], self.layout.size)

    def normalise(self, mean: np.ndarray, scale: np.ndarray) -> None:
        grid, missing = self.space.grid, self.space.length(self.layout.size) - self.layout.size
        z, s = (grid.put(np.pad(vector, (0, missing)), SAME) for vector in (mean, scale))
        ins, static = (ROWS, SAME, SAME, SAME), {"each": self.ranges.each, "count": self.ranges.count}
        for first, part in self.parts.items():
            place = grid.put(np.asarray(first, np.int32), SAME)
            array = grid.each(local.normalise_rows, ins, ROWS, part.array, z, s, place, donate=True, **static)
            self.parts[first] = replace(part, array=array)

    def clear(self) -> None:
        self.parts.clear()
