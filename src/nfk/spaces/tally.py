"""Mean and spread of rows of gradients as they pass: of a space's own arrays, without a second pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from nfk.layout import Layout
from nfk.spaces.pool import each
from nfk.spaces.space import Leaves

CACHE = 2**18  # bytes of a microbatch that are looked at together
# Where a gradient is infinite: an error that names its example follows, and no warning of numpy goes before it.
quietly = np.errstate(over="ignore", invalid="ignore")
GATHERED, GATHERED_BYTES = 8, 2**25  # rows, and what they may take


class Tally(ABC):
    """The number of rows, their mean z and the sum of their squared deviations from it, in units of a power of two.

    By Chan's update: E[g^2] - E[g]^2 would lose all digits of a small variance in float32.
    """

    @abstractmethod
    def add(self, leaves: Leaves, count: int, unit: float) -> Any:
        """Take in the next `count` rows of every range, a microbatch, times `unit`; every row's |unit g|^2."""

    @abstractmethod
    def result(self) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"], int]:
        """Mean, sum of squared deviations and number of rows."""


class HostTally(Tally):
    """By numpy, in memory of the host: a compiled program takes longer to compile than a small fit has (0.8 s).

    An update takes 14 P operations whatever the number of rows, so those of small microbatches are gathered first.
    """

    def __init__(self, layout: Layout) -> None:
        self._count, self._places = 0, layout.places
        self._mean, self._squares = (np.zeros(layout.size, layout.dtype) for _ in range(2))
        self._room, self._gathered, self._filled = rows_gathered(layout.size * self._mean.itemsize), self._mean[:0], 0
        self._gathers: bool | None = None  # the first microbatch decides: the last one may be a small rest

    def add(self, leaves: Leaves, count: int, unit: float) -> Float[np.ndarray, " n"]:
        slabs = [
            (part, place) for leaf, whole in zip(leaves, self._places, strict=True)
            for part, place in _slabs(_joined(leaf)[:count], whole.start)
        ]  # fmt: skip
        if self._gathers is None:
            self._gathers = 2 * count <= self._room
        if not self._gathers or count > self._room:
            return self._merged(slabs, count, unit)
        if not self._gathered.size:
            self._gathered = np.empty((self._room, len(self._mean)), self._mean.dtype)
        if self._filled + count > self._room:
            self._flush()
        lengths = each(lambda slab: self._gather(*slab, unit), slabs)
        self._filled += count
        return np.asarray(np.sum(lengths, axis=0, dtype=np.float64))

    @quietly
    def _gather(self, rows: np.ndarray, place: slice, unit: float) -> Float[np.ndarray, " n"]:
        into = self._gathered[self._filled : self._filled + len(rows), place]
        np.multiply(rows, rows.dtype.type(unit), out=into)
        return np.vecdot(into, into)

    def _flush(self) -> None:
        rows, self._filled = self._gathered[: self._filled], 0
        each(lambda slab: self._merge(*slab), list(_slabs(rows, 0)))
        self._count += len(rows)

    def _merged(self, slabs: list[tuple[np.ndarray, slice]], count: int, unit: float) -> Float[np.ndarray, " n"]:
        lengths = each(lambda slab: self._measured(*slab, unit), slabs)
        self._count += count
        return np.asarray(np.sum(lengths, axis=0, dtype=np.float64))

    @quietly
    def _measured(self, rows: np.ndarray, place: slice, unit: float) -> Float[np.ndarray, " n"]:
        rows = rows if unit == 1 else rows * rows.dtype.type(unit)
        self._merge(rows, place)
        return np.vecdot(rows, rows)

    @quietly
    def _merge(self, rows: np.ndarray, place: slice) -> None:
        mean, squares, number = self._mean[place], self._squares[place], rows.dtype.type
        share = number(len(rows) / (self._count + len(rows)))
        part = np.ones(len(rows), rows.dtype) @ rows / number(len(rows))
        shift, deviations = part - mean, rows - part
        mean += shift * share
        squares += np.einsum("ij,ij->j", deviations, deviations)
        squares += shift**2 * number(self._count * share)

    def result(self) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"], int]:
        if self._filled:
            self._flush()
        return self._mean, self._squares, self._count


def rows_gathered(row_bytes: int) -> int:
    """How many rows of small microbatches are held until the moments take them in together."""
    return min(GATHERED, GATHERED_BYTES // max(row_bytes, 1))


def _joined(leaf: Any) -> np.ndarray:
    return np.concatenate(leaf) if isinstance(leaf, (list, tuple)) else np.asarray(leaf)


def _slabs(rows: np.ndarray, first: int) -> Iterator[tuple[np.ndarray, slice]]:
    """Columns that stay in the cache, and their places in a vector of all parameters."""
    width = max(CACHE // max(len(rows) * rows.itemsize, 1), 64)
    for start in range(0, rows.shape[1], width):
        part = rows[:, start : start + width]
        yield part, slice(first + start, first + start + part.shape[1])


def largest(leaves: Leaves) -> float:
    """The largest magnitude of gradients in jax arrays. On the host: it is asked once a fit, and compiling it would
    take longer."""
    parts = [part for leaf in leaves for part in (leaf if isinstance(leaf, (list, tuple)) else [leaf])]
    return max(float(np.abs(np.asarray(part)).max(initial=0)) for part in parts)


@jax.jit
def merge(count: jax.Array, mean: list, squares: list, leaves: list, valid: jax.Array, unit: float) -> tuple:
    """Chan's update of (count, mean, sum of squared deviations) by the first `valid` rows; every row's |unit g|^2."""
    whole = [jnp.concatenate(leaf) if isinstance(leaf, (list, tuple)) else leaf for leaf in leaves]
    rows = [leaf * jnp.asarray(unit, leaf.dtype) for leaf in whole]
    inside = (jnp.arange(len(rows[0])) < valid).astype(valid.dtype)
    total = count + valid
    share = valid / jnp.maximum(total, 1)
    new_mean, new_squares = [], []
    for z, m2, leaf in zip(mean, squares, rows, strict=True):
        # Sums over rows as products with a vector: XLA's reduction over the first axis is ten times slower on a CPU.
        part = inside @ leaf / jnp.maximum(valid, 1)
        spread = inside @ (leaf - part) ** 2
        shift = part - z
        new_mean.append(z + shift * share)
        new_squares.append(m2 + spread + shift**2 * (count * share))
    return total, new_mean, new_squares, sum(jnp.sum(leaf**2, axis=1) for leaf in rows)
