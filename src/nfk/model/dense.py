"""A convolution of many weights and few positions as matrix products: a dense layer of its patches.

    y      = cols(x) w         cols: what the window sees at every position, (positions, window x channels)
    dw     = cols(x)' dy
    dx     = cols'(dy w')      every number back to the pixel that it came from

XLA's convolutions on a CPU turn and pack all weights in each call. With few positions that is most of the work: one
example's gradient of a convolutional network of 40 million parameters took 1.03 s, and 0.08 s this way; of a ResNet-18,
40 and 25 ms (one core). Where weights fit in the cache, or positions are many, nothing is gained.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nfk.model.program import Computation, JaxprEqn, array_of

SINGLE = 4  # bytes of a number
LARGE = 2**20  # bytes of weights that do not stay in the cache
FEW = 4  # times as many features as positions
WIDEST = 32  # offsets of a window, each with operations of its own: 5 x 5, but no patches of a vision transformer


def by_products(equation: JaxprEqn) -> Computation | None:
    """y, dx and dw by matrix products, where weights are many and positions few."""
    if not is_dense(equation):
        return None
    layer = Dense.of(equation)

    @jax.custom_vjp
    def convolution(x: jax.Array, w: jax.Array) -> jax.Array:
        return layer.forward(x, w)

    def forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple]:
        return layer.forward(x, w), (x, w)

    def backward(saved: tuple, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, w = saved
        return layer.backward(x, w, dy)

    convolution.defvjp(forward, backward)
    return lambda x, w: [convolution(x, w)]


def is_dense(equation: JaxprEqn) -> bool:
    """A convolution without groups, in one precision, that is not transposed: of many weights and few positions.

    Not in half precision, in which the derivative in a pixel would be rounded at every offset of the window.
    """
    if equation.primitive.name != "conv_general_dilated":
        return False
    params = equation.params
    (x, w), y = map(array_of, equation.invars), array_of(equation.outvars[0])
    grouped = params["feature_group_count"] * params["batch_group_count"] > 1
    if grouped or max(params["lhs_dilation"], default=1) > 1 or len({x.dtype, w.dtype, y.dtype}) > 1:
        return False
    numbers = params["dimension_numbers"]
    features, window = y.shape[numbers.out_spec[1]], math.prod(w.shape[axis] for axis in numbers.rhs_spec[2:])
    if w.dtype.itemsize < SINGLE or window > WIDEST or y.size == 0:
        return False
    return w.size * w.dtype.itemsize > LARGE and features * features >= FEW * y.size


@dataclass(frozen=True)
class Dense:
    """The shapes of one convolution. Inside, images are (examples, *space, channels)."""

    numbers: Any
    window: tuple[int, ...]
    image: tuple[int, ...]
    positions: tuple[int, ...]
    low: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    precision: Any

    @classmethod
    def of(cls, equation: JaxprEqn) -> Dense:
        params, numbers = equation.params, equation.params["dimension_numbers"]
        (x, w), y = map(array_of, equation.invars), array_of(equation.outvars[0])
        return cls(
            numbers, tuple(w.shape[axis] for axis in numbers.rhs_spec[2:]),
            tuple(x.shape[axis] for axis in numbers.lhs_spec[2:]),
            tuple(y.shape[axis] for axis in numbers.out_spec[2:]), tuple(pad for pad, _ in params["padding"]),
            tuple(params["window_strides"]), tuple(params["rhs_dilation"]), params["precision"],
        )  # fmt: skip

    def forward(self, x: jax.Array, w: jax.Array) -> jax.Array:
        y = self._product(self._cols(x), self._matrix(w), 2, self._seen)
        y = y.reshape(len(y), *self.positions, y.shape[-1])
        return y.transpose(_inverse(_channels_last(self.numbers.out_spec)))

    def backward(self, x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        cols, matrix = self._cols(x), self._matrix(w)
        dy = dy.transpose(_channels_last(self.numbers.out_spec)).reshape(*cols.shape[:2], -1)
        both = (cols, dy) if self._features_last else (dy, cols)
        dw = lax.dot_general(*both, (((0, 1), (0, 1)), ((), ())), precision=self.precision)
        dcols = self._product(dy, matrix, 2, 1 - self._seen)
        return self._to_pixels(dcols), self._weights(dw, w.shape)

    def _product(self, left: jax.Array, right: jax.Array, of_left: int, of_right: int) -> jax.Array:
        return lax.dot_general(left, right, (((of_left,), (of_right,)), ((), ())), precision=self.precision)

    @property
    def _features_last(self) -> bool:
        return self.numbers.rhs_spec[0] == len(self.numbers.rhs_spec) - 1

    @property
    def _seen(self) -> int:
        """Which axis of the weights as a matrix meets patches."""
        return 0 if self._features_last else 1

    def _matrix(self, w: jax.Array) -> jax.Array:
        """(window x channels, features), or the other way round: as they stand, wherever that is possible."""
        features = self.numbers.rhs_spec[0]
        if self._features_last:
            return w.reshape(-1, w.shape[features])
        return jnp.moveaxis(w, features, 0).reshape(w.shape[features], -1)

    def _weights(self, matrix: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Back from there."""
        features = self.numbers.rhs_spec[0]
        if self._features_last:
            return matrix.reshape(shape)
        others = [size for axis, size in enumerate(shape) if axis != features]
        return jnp.moveaxis(matrix.reshape(shape[features], *others), 0, features)

    @property
    def _order(self) -> list[int]:
        """Where w has each of (window, channels), the features left out: patches have them in the same order, so that
        weights are read where they are."""
        features, own = self.numbers.rhs_spec[0], (*self.numbers.rhs_spec[2:], self.numbers.rhs_spec[1])
        return [own.index(axis) for axis in range(len(own) + 1) if axis != features]

    @property
    def _offsets(self) -> list[tuple[int, ...]]:
        """First pixels of the padded image that each offset of the window sees."""
        steps = ([k * step for k in range(size)] for size, step in zip(self.window, self.dilation, strict=True))
        return list(itertools.product(*steps))

    @property
    def _spans(self) -> list[int]:
        """Pixels from the first to the last position."""
        return [(count - 1) * stride + 1 for count, stride in zip(self.positions, self.strides, strict=True)]

    @property
    def _high(self) -> list[int]:
        """Zeros after the image, as many as the last position needs; negative where it ends before."""
        reach = [(size - 1) * step for size, step in zip(self.window, self.dilation, strict=True)]
        sizes = zip(reach, self._spans, self.image, self.low, strict=True)
        return [far + n - size - pad for far, n, size, pad in sizes]

    def _cols(self, x: jax.Array) -> jax.Array:
        """(examples, positions, window x channels in the order of w)."""
        x = x.transpose(_channels_last(self.numbers.lhs_spec))
        space = [(a, b, 0) for a, b in zip(self.low, self._high, strict=True)]
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *space, (0, 0, 0)])
        parts = []
        for offset in self._offsets:
            stop = [first + n for first, n in zip(offset, self._spans, strict=True)]
            parts.append(lax.slice(x, (0, *offset, 0), (len(x), *stop, x.shape[-1]), (1, *self.strides, 1)))
        whole = lax.concatenate(parts, x.ndim - 1).reshape(len(x), -1, *self.window, x.shape[-1])
        whole = whole.transpose(0, 1, *(2 + place for place in self._order))
        return whole.reshape(*whole.shape[:2], -1)

    def _to_pixels(self, dcols: jax.Array) -> jax.Array:
        """The sum of what every pixel gave to patches, in the layout of x."""
        channels = dcols.shape[-1] // math.prod(self.window)
        own = (*self.window, channels)
        dcols = dcols.reshape(*dcols.shape[:2], *(own[place] for place in self._order))
        dcols = dcols.transpose(0, 1, *(2 + self._order.index(place) for place in range(len(own))))
        dcols = dcols.reshape(len(dcols), *self.positions, -1, channels)
        sizes = [a + size + b for a, size, b in zip(self.low, self.image, self._high, strict=True)]
        zero, parts = jnp.zeros((), dcols.dtype), []
        for number, offset in enumerate(self._offsets):
            fits = zip(offset, self._spans, sizes, self.strides, strict=True)
            space = [(start, size - start - n, stride - 1) for start, n, size, stride in fits]
            parts.append(lax.pad(dcols[..., number, :], zero, [(0, 0, 0), *space, (0, 0, 0)]))
        space = [(-a, -b, 0) for a, b in zip(self.low, self._high, strict=True)]
        dx = lax.pad(reduce(lax.add, parts), zero, [(0, 0, 0), *space, (0, 0, 0)])
        return dx.transpose(_inverse(_channels_last(self.numbers.lhs_spec)))


def _channels_last(spec: Sequence[int]) -> tuple[int, ...]:
    """(examples, channels, *space) as axes -> (examples, *space, channels)."""
    return (spec[0], *spec[2:], spec[1])


def _inverse(axes: Sequence[int]) -> list[int]:
    return [axes.index(axis) for axis in range(len(axes))]
