"""Blocks at rest over the devices of a mesh, and the operations on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nfk.distributed import ALONE, JAX, Processes
from nfk.memory import available_bytes
from nfk.ranges import Ranges
from nfk.spaces.mesh import local
from nfk.spaces.mesh.sharding import COLUMNS, ROWS, SAME, TALL, Grid
from nfk.spaces.space import Space, normals


@dataclass(frozen=True)
class Tall:
    """A block; `array` is filled up with zeros to rows and columns that can be shared out."""

    array: jax.Array
    shape: tuple[int, int]
    space: MeshBlocks

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.array.dtype)

    def devices(self) -> set:
        return self.array.devices()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.space.get(self).astype(dtype or self.dtype)


@dataclass(frozen=True)
class MeshBlocks(Space):
    """Blocks over the devices of a grid; `unit` rows of a block stay together."""

    grid: Grid
    unit: int = 1

    @property
    def parts(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.grid.data

    @property
    def shards(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.grid.basis

    @property
    def devices(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        mesh, of = self.grid.mesh, f" of {self.processes.size} processes" if self.processes.several else ""
        return f"{mesh.size} ({self.processor}){of}: {self.parts} for the data, {self.shards} for the basis"

    @property
    def processes(self) -> Processes:  # pyright: ignore[reportIncompatibleVariableOverride]
        return JAX if len({device.process_index for device in self.grid.mesh.devices.flat}) > 1 else ALONE

    @property
    def processor(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.grid.mesh.devices.flat[0].platform

    def free_bytes(self) -> int:
        """Of the device that has least, of all processes; simulated ones share the memory of the machine."""
        stats = [device.memory_stats() or {} for _, device in self.grid.own]
        free = [known["bytes_limit"] - known.get("bytes_in_use", 0) for known in stats if known.get("bytes_limit")]
        return min(self.processes.everyone(min(free) if free else available_bytes() // len(stats)))

    # --- making blocks, and taking them away

    def _each(self, rows: int) -> int:
        """Rows of a block on each place of the data axis, with padding."""
        return Ranges.of(-(-rows // self.unit), self.parts, self.unit).each

    def _wide(self, columns: int) -> int:
        """Columns with padding: few sizes, since each is compiled for."""
        share = -(-columns // self.shards)
        rounded = share if share < 3 else 4 if share < 5 else -(-share // 8) * 8
        return rounded * self.shards

    def tall(self, array: jax.Array, rows: int, columns: int) -> Tall:
        return Tall(array, (rows, columns), self)

    def zeros(self, rows: int, columns: int, dtype: np.dtype) -> Tall:
        shape = self.parts * self._each(rows), self._wide(columns)
        return self.tall(self.grid.whole(local.zeros, TALL, shape=shape, dtype=np.dtype(dtype)), rows, columns)

    def random(self, seed: Sequence[int], rows: int, columns: int, dtype: np.dtype) -> Tall:
        ranges = Ranges(rows, self.parts, self._each(rows))
        return replace(self.normals(seed, ranges, slice(0, ranges.each), columns, dtype), shape=(rows, columns))

    def normals(self, seed: Sequence[int], ranges: Ranges, rows: slice, columns: int, dtype: np.dtype) -> Tall:
        count, width = rows.stop - rows.start, self._wide(columns)

        def draw(index: tuple[slice, ...]) -> np.ndarray:
            """For one place of the data axis, and the columns of one shard."""
            first = (index[0].start or 0) // count * ranges.each + rows.start
            filled = np.zeros((count, width), dtype)
            if (stop := min(first + count, ranges.count)) > first:
                filled[: stop - first, :columns] = normals(seed, first, stop, columns, dtype)
            return filled[:, index[1]]

        shape = self.parts * count, width
        return self.tall(self.grid.made(shape, TALL, draw), shape[0], columns)

    def put(self, array: Any, dtype: Any = None) -> Tall:
        if isinstance(array, Tall):
            return array if dtype in (None, array.dtype) else replace(array, array=array.array.astype(dtype))
        array = np.asarray(array, dtype)
        filled = np.zeros((self.parts * self._each(len(array)), self._wide(array.shape[1])), array.dtype)
        filled[: len(array), : array.shape[1]] = array
        return self.tall(self.grid.put(filled, TALL), *array.shape)

    def get(self, block: Any) -> np.ndarray:
        if isinstance(block, Tall):
            return self.grid.fetch(block.array)[: block.shape[0], : block.shape[1]]
        return self.grid.fetch(block)

    def kept(self, block: Tall) -> np.ndarray:
        return self.grid.own_pieces(block.array) if self.processes.several else self.get(block)

    def restored(self, part: np.ndarray, shape: tuple[int, ...]) -> Tall:
        if not self.processes.several:
            return self.put(part)
        filled = self.parts * self._each(shape[0]), self._wide(shape[1])
        return self.tall(self.grid.of_pieces(part, filled, TALL), *shape)

    def sampled(self, block: Any, step: int) -> np.ndarray:
        if not isinstance(block, Tall):
            return np.asarray(block)[::step]
        rows = self.grid.whole(_every, SAME, block.array, step=step, rows=block.shape[0])
        return self.grid.fetch(rows)[:, : block.shape[1]]

    def _small(self, matrix: np.ndarray, dtype: np.dtype, rows: int, columns: int) -> jax.Array:
        """A small matrix on every device, filled up."""
        filled = np.zeros((rows, columns), dtype)
        filled[: matrix.shape[0], : matrix.shape[1]] = matrix
        return self.grid.put(filled, SAME)

    def vector(self, numbers: np.ndarray) -> jax.Array:
        """A number for each row of a block."""
        missing = self.parts * self._each(len(numbers)) - len(numbers)
        return self.grid.put(np.pad(numbers, (0, missing)), ROWS)

    def numbers(self, values: Any, columns: int, dtype: np.dtype) -> jax.Array:
        """A number for each column of a block."""
        values = np.broadcast_to(np.asarray(values, dtype), (columns,))
        return self.grid.put(np.pad(values, (0, self._wide(columns) - columns)), COLUMNS)

    # --- small matrices from blocks

    def inner(self, left: Tall, right: Tall, double: bool = False) -> np.ndarray:
        found = self.grid.each(local.inner, (TALL, TALL), (SAME, SAME), left.array, right.array)
        return self._in_float64(found).T[: left.shape[1], : right.shape[1]]

    def norms(self, block: Tall, minus: Tall | None = None, factors: np.ndarray | float = 1.0) -> np.ndarray:
        arguments, ins = [block.array], [TALL]
        if minus is not None:
            arguments += [minus.array, self.numbers(factors, block.shape[1], block.dtype)]
            ins += [TALL, COLUMNS]
        found = self.grid.each(local.column_squares, ins, (SAME, SAME), *arguments)
        return np.sqrt(self._in_float64(found))[: block.shape[1]]

    def _in_float64(self, parts: Sequence[jax.Array]) -> np.ndarray:
        total, lost = (self.grid.fetch(part).astype(np.float64) for part in parts)
        return total + lost

    # --- blocks from blocks

    def product(self, left: Tall, right: np.ndarray) -> Tall:
        columns = right.shape[1]
        small = self._small(right, left.dtype, left.array.shape[1], self._wide(columns))
        return self.tall(self.grid.each(local.product, (TALL, SAME), TALL, left.array, small), left.shape[0], columns)

    def add_product(self, total: Tall, left: Tall, right: np.ndarray, sign: float = 1.0) -> Tall:
        small = self._small(sign * right, total.dtype, left.array.shape[1], total.array.shape[1])
        ins = (TALL, TALL, SAME)
        found = self.grid.each(local.add_product, ins, TALL, total.array, left.array, small, donate=True)
        return replace(total, array=found)

    def rotate(self, block: Tall, rotation: np.ndarray) -> Tall:
        return self.product(block, rotation)

    def scaled(self, block: Tall, scale: np.ndarray) -> Tall:
        found = self.grid.each(local.scaled, (TALL, ROWS), TALL, block.array, self.vector(scale))
        return replace(block, array=found)

    def normalise(self, block: Tall, scale: np.ndarray, mean: np.ndarray, sums: np.ndarray) -> Tall:
        vectors = self.vector(scale), self.vector(mean), self.numbers(sums, block.shape[1], block.dtype)
        ins = (TALL, ROWS, ROWS, COLUMNS)
        return replace(block, array=self.grid.each(local.normalise, ins, TALL, block.array, *vectors, donate=True))

    def joined(self, blocks: Sequence[Tall]) -> Tall:
        if len(blocks) == 1:
            return blocks[0]
        widths = tuple(block.shape[1] for block in blocks)
        arrays = (block.array for block in blocks)
        array = self.grid.whole(_joined, TALL, *arrays, widths=widths, wide=self._wide(sum(widths)))
        return self.tall(array, blocks[0].shape[0], sum(widths))

    def stacked(self, blocks: Iterable[tuple[slice, Tall]], rows: int, columns: int, dtype: np.dtype) -> Tall:
        parts = [block.array for _, block in blocks]
        return self.tall(self.grid.each(local.stacked, (TALL,) * len(parts), TALL, *parts), rows, columns)

    def columns(self, block: Tall, place: slice) -> Tall:
        start, stop, _ = place.indices(block.shape[1])
        array = self.grid.whole(_columns, TALL, block.array, start=start, stop=stop, wide=self._wide(stop - start))
        return self.tall(array, block.shape[0], stop - start)

    def padded(self, block: Tall, rows: int, columns: int) -> Tall:
        if rows != block.shape[0]:
            raise ValueError("a block over devices is filled up with columns alone")
        array = self.grid.whole(_columns, TALL, block.array, start=0, stop=block.shape[1], wide=self._wide(columns))
        return self.tall(array, rows, columns)

    def between(self, block: Tall, rows: slice) -> Tall:
        count = rows.stop - rows.start
        height = self.parts * self._each(count)
        array = self.grid.whole(_between, TALL, block.array, start=rows.start, stop=rows.stop, height=height)
        return self.tall(array, count, block.shape[1])

    def part(self, block: Tall, rows: slice) -> Tall:
        array = self.grid.each(local.part, (TALL,), TALL, block.array, start=rows.start, stop=rows.stop)
        return self.tall(array, array.shape[0], block.shape[1])


def _every(array: jax.Array, step: int, rows: int) -> jax.Array:
    return array[:rows:step]


def _joined(*arrays: jax.Array, widths: tuple[int, ...], wide: int) -> jax.Array:
    cut = [array[:, :width] for array, width in zip(arrays, widths, strict=True)]
    return jnp.pad(jnp.concatenate(cut, axis=1), ((0, 0), (0, wide - sum(widths))))


def _columns(array: jax.Array, start: int, stop: int, wide: int) -> jax.Array:
    return jnp.pad(array[:, start:stop], ((0, 0), (0, wide - (stop - start))))


def _between(array: jax.Array, start: int, stop: int, height: int) -> jax.Array:
    return jnp.pad(array[start:stop], ((0, height - (stop - start)), (0, 0)))
