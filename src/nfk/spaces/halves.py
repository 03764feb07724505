"""Rows of gradients with every number in two halves of 16 bits. The first half is the number in bfloat16.

A processor that multiplies bfloat16 does so about twice as fast as float32, and reads half of the bytes. A search can
do with the first halves: what they round off is noise, nearly all of it outside of what is searched for. Both halves
together are the number itself, to the last bit, for the certificate.

Rows are cut into slabs of parameters, each one piece of memory. So V V' W is a sum over slabs, V_s (V_s' W), which
reads V once and holds nothing as long as the parameters. The products are XLA's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from nfk.layout import Layout
from nfk.spaces.host import BFLOAT16, CACHE, HostStore, fresh, pages
from nfk.spaces.pool import each
from nfk.spaces.space import Leaves, Store

SLAB_BYTES = 2**24  # of a slab in float32: past twice as much, the C library asks for fresh pages every time
WIDTHS = 64, 2**16  # parameters of a slab, least and most; halves begin where XLA takes them without a copy
BITS = 16
ROUNDING = np.uint32(1 << BITS - 1)


@dataclass(frozen=True)
class Slab:
    """Some parameters of all rows, `place` among them; filled up with zeros to the width of all slabs."""

    place: slice
    high: jax.Array
    low: jax.Array

    def coarse_kernel(self, turned: Float[jax.Array, "b rows"]) -> Float[np.ndarray, "rows b"]:
        """What these parameters give to V V' W, from first halves. Both factors are in bfloat16."""
        return np.asarray(_kernel(self.high, turned))

    def coarse_outer(self, turned: Float[jax.Array, "b rows"]) -> Float[np.ndarray, "p b"]:
        """These rows of V' W, from first halves."""
        return self._own(_outer(turned, self.high))

    def product(self, block: Float[np.ndarray, "P b"]) -> Float[np.ndarray, "rows b"]:
        """What these parameters give to V M."""
        part = block[self.place]
        missing = self.high.shape[1] - len(part)
        return np.asarray(_product(self.high, self.low, np.pad(part, ((0, missing), (0, 0))) if missing else part))

    def outer(self, turned: Float[jax.Array, "b rows"]) -> Float[np.ndarray, "p b"]:
        """These rows of V' W."""
        return self._own(_exact_outer(turned, self.high, self.low))

    def _own(self, turned: jax.Array) -> Float[np.ndarray, "p b"]:
        return np.asarray(turned).T[: self.place.stop - self.place.start]


class Halves(Store):
    """Room for all rows. Holds a microbatch of them beside, while it is written, and a slab, while it is read."""

    def __init__(self, rows: int, layout: Layout) -> None:
        self._layout, self._width = layout, slab_width(rows, layout.size)
        shape = -(-layout.size // self._width), rows, self._width
        self._high, self._low = (fresh(shape, np.dtype(np.uint16), zeros=True) for _ in range(2))
        self._stage: HostStore | None = None
        self.squares = np.zeros(rows)
        """Of the lengths of all rows, in float32: to know their size, and whether they are finite."""

    def write(self, first: int, leaves: Leaves, count: int) -> None:
        self._staged(count).write(0, leaves, count)
        self.settle(first, count)

    def write_normalised(self, first: int, leaves: Leaves, count: int, mean: list, scale: list) -> None:
        self._staged(count).write_normalised(0, leaves, count, mean, scale)
        self.settle(first, count)

    def room(self, first: int, count: int) -> np.ndarray:
        return self._staged(count).array[:count]

    def settle(self, first: int, count: int) -> None:
        assert self._stage is not None
        numbers, rows = self._stage.array[:count], slice(first, first + count)
        self.squares[rows] = np.sum(each(lambda slabs: self._take_apart(numbers, rows, slabs), self._groups(count)), 0)

    def _groups(self, count: int) -> list[slice]:
        """One slab, or more whose parts of so many rows fit in the cache. The last, which may be narrower, is alone."""
        last, most = len(self._high) - 1, max(CACHE // (4 * count * self._width), 1)
        return [slice(start, min(start + most, last)) for start in range(0, last, most)] + [slice(last, last + 1)]

    def _take_apart(self, numbers: Float[np.ndarray, "n P"], rows: slice, slabs: slice) -> Float[np.ndarray, " n"]:
        """The upper 16 bits of numbers, rounded, and the lower ones, into some slabs; what these add to the lengths.

        By numpy, in the cache: as a program of XLA it took six times as long (2.6 s for 1,024 rows of 613,761)."""
        part = numbers[:, slabs.start * self._width : slabs.stop * self._width]
        bits = part.view(np.uint32)
        upper = bits + ROUNDING
        upper >>= BITS
        apart = len(part), slabs.stop - slabs.start, -1
        for half, values in ((self._high, upper), (self._low, bits)):
            target = half[slabs, rows, : part.shape[1]].transpose(1, 0, 2)
            np.copyto(target, values.reshape(apart), casting="unsafe")
        by_slab = part.reshape(apart)  # short sums in float32, long ones in float64
        return np.einsum("nsp,nsp->ns", by_slab, by_slab).sum(axis=1, dtype=np.float64)

    def _staged(self, count: int) -> HostStore:
        """Room for a microbatch, which the next one uses again."""
        if self._stage is None or len(self._stage.array) < count:
            self._stage = HostStore(pages((count, self._layout.size), self._layout.dtype), self._layout.places)
        return self._stage

    def normalise(self, mean: np.ndarray, scale: np.ndarray) -> None:
        self.squares[:] = 0
        for slab, place in enumerate(self._places):
            missing = (0, self._width - (place.stop - place.start))
            shift = (np.pad(vector[place], missing) for vector in (mean, scale))
            halves = _lent(self._high[slab].view(jnp.bfloat16)), _lent(self._low[slab])
            high, low, squares = _normalised(*halves, *shift)
            self._high[slab], self._low[slab] = high, low
            self.squares += squares

    def clear(self) -> None:
        pass

    def block(self, rows: slice) -> Float[np.ndarray, "n P"]:
        """Some rows, in memory of their own."""
        whole = np.empty((rows.stop - rows.start, self._layout.size), self._layout.dtype)
        for slab in self.slabs:
            width = slab.place.stop - slab.place.start
            whole[:, slab.place] = np.asarray(_joined(slab.high[rows], slab.low[rows]))[:, :width]
        return whole

    @property
    def _places(self) -> list[slice]:
        size = self._layout.size
        return [slice(start, min(start + self._width, size)) for start in range(0, size, self._width)]

    @cached_property
    def slabs(self) -> list[Slab]:
        """All of V, in place. Nothing is written any more."""
        self._stage = None
        halves = zip(self._places, self._high.view(jnp.bfloat16), self._low, strict=True)
        return [Slab(place, _lent(high), _lent(low)) for place, high, low in halves]


def slab_width(rows: int, parameters: int) -> int:
    """Parameters of a slab."""
    least, most = WIDTHS
    fitting = SLAB_BYTES // (4 * max(rows, 1)) // least * least
    return max(min(fitting, most, -(-parameters // least) * least), least)


def _lent(array: np.ndarray) -> jax.Array:
    """An array as XLA takes it: in place where it begins at a multiple of 64 bytes, as pages and slabs do."""
    return jax.device_put(array, may_alias=True)


def turned(weights: Float[np.ndarray, "rows b"], dtype: np.dtype = BFLOAT16) -> jax.Array:
    """A block of rows as slabs take it."""
    return jax.device_put(np.ascontiguousarray(weights.T, np.float32).astype(dtype))


def _dot(left: jax.Array, right: jax.Array, axis: int) -> jax.Array:
    """The last axis of `left` with that axis of `right`."""
    return jax.lax.dot_general(left, right, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.float32)


@jax.jit
def _kernel(high: jax.Array, turned: jax.Array) -> jax.Array:
    return _dot(high, _dot(turned, high, 0).astype(high.dtype), 1)


@jax.jit
def _outer(turned: jax.Array, high: jax.Array) -> jax.Array:
    return _dot(turned, high, 0)


@jax.jit
def _product(high: jax.Array, low: jax.Array, block: jax.Array) -> jax.Array:
    return _dot(_joined(high, low), block, 0)


@jax.jit
def _exact_outer(turned: jax.Array, high: jax.Array, low: jax.Array) -> jax.Array:
    return _dot(turned, _joined(high, low), 0)


@jax.jit
def _split(rows: Float[jax.Array, "n p"]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The upper 16 bits of every number, rounded, the lower ones, and the squared length of every row."""
    bits = jax.lax.bitcast_convert_type(rows, jnp.uint32)
    high = (bits + ROUNDING) >> BITS
    return high.astype(jnp.uint16), bits.astype(jnp.uint16), jnp.square(rows).sum(axis=1)


@jax.jit
def _joined(high: jax.Array, low: jax.Array) -> Float[jax.Array, "n p"]:
    """The numbers themselves: the lower bits, with a sign, undo the rounding of the upper ones."""
    upper, lower = (jax.lax.bitcast_convert_type(half, jnp.int16).astype(jnp.int32) for half in (high, low))
    return jax.lax.bitcast_convert_type((upper << BITS) + lower, jnp.float32)


@jax.jit
def _normalised(high: jax.Array, low: jax.Array, mean: jax.Array, scale: jax.Array) -> tuple[jax.Array, ...]:
    return _split((_joined(high, low) - mean) * scale)
