"""Blocks as jax arrays on one device, where everything is compiled: only small matrices travel to the host.

Sums over slabs are compensated (each sum with the rounding error of its additions beside it), so they are as good as
float64 on devices that have none, without a copy of a block in another precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nfk.layout import Layout
from nfk.memory import available_bytes
from nfk.spaces.space import ROWS_PER_STREAM, SLAB, Block, Leaves, Space, Store
from nfk.spaces.tally import JaxTally, largest


@dataclass(frozen=True)
class Device(Space):
    """Blocks in the memory of one JAX device."""

    device: jax.Device
    name = "device"

    def free_bytes(self) -> int:
        stats = self.device.memory_stats() or {}
        limit = stats.get("bytes_limit")
        return limit - stats.get("bytes_in_use", 0) if limit else available_bytes()

    def zeros(self, rows: int, columns: int, dtype: np.dtype) -> Block:
        return jnp.zeros((rows, columns), dtype, device=self.device)

    def random(self, seed: Sequence[int], rows: int, columns: int, dtype: np.dtype) -> Block:
        key = jax.random.key(0)
        for number in seed:
            key = jax.random.fold_in(key, number)
        return _random(jax.device_put(key, self.device), rows, columns, np.dtype(dtype))

    def put(self, array: np.ndarray | Block, dtype: np.dtype | None = None) -> Block:
        return jax.device_put(array if dtype in (None, array.dtype) else array.astype(dtype), self.device)

    def get(self, block: Block) -> np.ndarray:
        return np.asarray(block)

    def inner(self, left: Block, right: Block, double: bool = False) -> np.ndarray:
        return _in_float64(_inner(left, right))

    def norms(self, block: Block, minus: Block | None = None, factors: np.ndarray | float = 1.0) -> np.ndarray:
        if minus is None:
            return np.sqrt(_in_float64(_column_squares(block)))
        factors = np.broadcast_to(np.asarray(factors, block.dtype), block.shape[1:])
        return np.sqrt(_in_float64(_column_squares(block, minus, self.put(factors))))

    def row_squares(self, block: Block) -> np.ndarray:
        return _in_float64(_row_squares(block))

    def product(self, left: Block, right: Block) -> Block:
        return _product(left, self._like(right, left))

    def add_product(self, total: Block, left: Block, right: Block, sign: float = 1.0) -> Block:
        return _add_product(total, left, self._like(right, total), sign)

    def add_columns(self, total: Block, place: slice, part: Any) -> Block:
        return _add_columns(total, part[:, : place.stop - place.start], place.start)

    def rotate(self, block: Block, rotation: np.ndarray) -> Block:
        return self.product(block, rotation)

    def normalise(self, block: Block, scale: np.ndarray, mean: np.ndarray, sums: np.ndarray) -> Block:
        return _normalise(block, self.put(scale), self.put(mean), self.put(sums.astype(block.dtype)))

    def joined(self, blocks: Sequence[Block]) -> Block:
        return blocks[0] if len(blocks) == 1 else jnp.concatenate(list(blocks), axis=1)

    def stacked(self, blocks: Iterable[tuple[slice, Block]], rows: int, columns: int, dtype: np.dtype) -> Block:
        return jnp.concatenate([block for _, block in blocks])

    def columns(self, block: Block, place: slice) -> Block:
        return block[:, place]

    def padded(self, block: Block, rows: int, columns: int) -> Block:
        missing = (rows - block.shape[0], columns - block.shape[1])
        return jnp.pad(block, [(0, count) for count in missing]) if any(missing) else block

    def store(self, rows: int, layout: Layout) -> DeviceStore:
        return DeviceStore(self, {})

    def lend(self, block: Block) -> jax.Array:
        return self.put(block)

    def tally(self, layout: Layout) -> JaxTally:
        return JaxTally(layout, self.lend)

    def largest(self, leaves: Leaves) -> float:
        return largest(leaves)

    def _like(self, matrix: Any, block: Block) -> Block:
        return matrix if isinstance(matrix, jax.Array) else self.put(np.asarray(matrix, block.dtype))


@dataclass(frozen=True)
class DeviceStore(Store):
    """A block for every microbatch, by its first row."""

    space: Device
    parts: dict[int, jax.Array]

    def write(self, first: int, leaves: Leaves, count: int) -> None:
        whole = [jnp.concatenate(leaf) if isinstance(leaf, (list, tuple)) else leaf for leaf in leaves]
        self.parts[first] = self.space.put(jnp.concatenate(whole, axis=1)[:count])

    def block(self, rows: slice) -> Block:
        parts = [self.parts[first] for first in sorted(self.parts) if rows.start <= first < rows.stop]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)

    def normalise(self, mean: np.ndarray, scale: np.ndarray) -> None:
        z, s = self.space.put(mean), self.space.put(scale)
        for first, part in self.parts.items():
            self.parts[first] = _normalise_rows(part, z, s)

    def clear(self) -> None:
        self.parts.clear()


@partial(jax.jit, static_argnums=(1, 2, 3))
def _random(key: jax.Array, rows: int, columns: int, dtype: np.dtype) -> jax.Array:
    draw = lambda stream: jax.random.normal(jax.random.fold_in(key, stream), (ROWS_PER_STREAM, columns), dtype)  # noqa: E731
    drawn = jax.vmap(draw)(jnp.arange(-(-rows // ROWS_PER_STREAM)))
    return drawn.reshape(-1, columns)[:rows]


def _compensated(length: int, slab: Callable[[Any, int], jax.Array]) -> tuple[jax.Array, jax.Array]:
    """The sum of `slab(start, rows)` over all slabs of `length` rows, and what its additions have lost."""
    full, rest = divmod(length, SLAB)
    total = slab(full * SLAB, rest)
    if not full:
        return total, jnp.zeros_like(total)

    def add(index: jax.Array, carry: tuple) -> tuple:
        total, lost = carry
        part = slab(index * SLAB, SLAB)
        summed = total + part
        virtual = summed - total
        return summed, lost + ((total - (summed - virtual)) + (part - virtual))

    return jax.lax.fori_loop(0, full, add, (total, jnp.zeros_like(total)))


def _in_float64(parts: tuple[jax.Array, jax.Array]) -> np.ndarray:
    total, lost = (np.asarray(part, np.float64) for part in parts)
    return total + lost


@jax.jit
def _inner(left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array]:
    def slab(start: Any, rows: int) -> jax.Array:
        cut = lambda block: jax.lax.dynamic_slice_in_dim(block, start, rows)  # noqa: E731
        return jnp.matmul(cut(left).T, cut(right), precision="highest")

    return _compensated(left.shape[0], slab)


@jax.jit
def _column_squares(block: jax.Array, minus: Any = None, factors: Any = None) -> tuple[jax.Array, jax.Array]:
    def slab(start: Any, rows: int) -> jax.Array:
        part = jax.lax.dynamic_slice_in_dim(block, start, rows)
        if minus is not None:
            part = part - jax.lax.dynamic_slice_in_dim(minus, start, rows) * factors
        return jnp.sum(part**2, axis=0)

    return _compensated(block.shape[0], slab)


@jax.jit
def _row_squares(block: jax.Array) -> tuple[jax.Array, jax.Array]:
    def slab(start: Any, columns: int) -> jax.Array:
        return jnp.sum(jax.lax.dynamic_slice_in_dim(block, start, columns, axis=1) ** 2, axis=1)

    return _compensated(block.shape[1], slab)


@jax.jit
def _product(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left, right, precision="highest")


@partial(jax.jit, donate_argnums=0)
def _add_product(total: jax.Array, left: jax.Array, right: jax.Array, sign: float) -> jax.Array:
    return total + sign * jnp.matmul(left, right, precision="highest")


@partial(jax.jit, donate_argnums=0)
def _add_columns(total: jax.Array, part: jax.Array, start: int) -> jax.Array:
    old = jax.lax.dynamic_slice_in_dim(total, start, part.shape[1], axis=1)
    return jax.lax.dynamic_update_slice_in_dim(total, old + part.astype(total.dtype), start, axis=1)


@partial(jax.jit, donate_argnums=0)
def _normalise_rows(rows: jax.Array, mean: jax.Array, scale: jax.Array) -> jax.Array:
    return (rows - mean) * scale


@partial(jax.jit, donate_argnums=0)
def _normalise(block: jax.Array, scale: jax.Array, mean: jax.Array, sums: jax.Array) -> jax.Array:
    return scale[:, None] * (block - mean[:, None] * sums)
