"""The derivative of a convolution in its weights as a matrix product for each example.

    y_o  = sum over offsets k of  x_(o + k) w_k
    dw_k = sum over positions o of  x_(o + k)' dy_o:   (window x channels, positions) times (positions, features)

XLA computes y and the derivative in x for a whole batch at once, as it shares w. Its derivative in w is a sum over the
batch; under vmap, which asks for one per example, it becomes a convolution with as many groups as examples, and that is
slow on a CPU. A matrix product per example is not: per-example gradients of a critic of 0.6 million parameters, four at
a time, took 1.17 plain batch gradients, against 1.67 under vmap and 1.46 for examples written out one after another
(`results/gradients.json`, a quick run on a busy machine).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from nfk.model.dense import by_products
from nfk.model.program import Computation, Jaxpr, JaxprEqn, array_of, as_it_stands, equations, rewritten

MANY = 16  # offsets of a window


def with_patches(function: Callable) -> Callable:
    """The same function with the same gradient; its convolutions have derivatives in their weights by patches, and
    those of many weights and few positions are products."""
    return rewritten(function, lambda equation: by_products(equation) or _by_patches(equation))


def with_products(function: Callable) -> Callable:
    """The same function with the same gradient; its convolutions of many weights and few positions are products."""
    return rewritten(function, by_products)


def patch_bytes(program: Jaxpr) -> int:
    """What the largest convolution's patches take for one evaluation: one layer has them at a time."""
    convolutions = (equation for equation in equations(program) if is_convolution(equation))
    return max((window_of(equation) * _smaller_side(equation) for equation in convolutions), default=0)


def is_convolution(equation: JaxprEqn) -> bool:
    """A convolution without groups, in one precision; with groups there is no matrix product in it."""
    if equation.primitive.name != "conv_general_dilated":
        return False
    params, arrays = equation.params, (*equation.invars, *equation.outvars)
    grouped = params["feature_group_count"] * params["batch_group_count"] > 1
    return not grouped and len({array_of(variable).dtype for variable in arrays}) == 1


def _by_patches(equation: JaxprEqn) -> Computation | None:
    """y and dx as they are, dw by patches."""
    if not is_convolution(equation):
        return None
    convolve = lambda x, w: as_it_stands(equation)(x, w)[0]  # noqa: E731

    @jax.custom_vjp
    def convolution(x: jax.Array, w: jax.Array) -> jax.Array:
        return convolve(x, w)

    def forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple]:
        return convolve(x, w), (x, w)

    def backward(saved: tuple, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, w = saved
        (dx,) = jax.linear_transpose(lambda x: convolve(x, w), x)(dy)
        return dx, _weight_gradient(x, dy, w.shape, equation.params)

    convolution.defvjp(forward, backward)
    return lambda x, w: [convolution(x, w)]


def _weight_gradient(x: jax.Array, dy: jax.Array, shape: Sequence[int], params: dict) -> jax.Array:
    """dw, in the order of axes that w has."""
    numbers = params["dimension_numbers"]
    window = [shape[axis] for axis in numbers.rhs_spec[2:]]
    seen, other = sides(x, dy, shape, params)
    dw = _product(seen, other)
    if is_transposed(params):
        dw = dw.swapaxes(1, 2)
    dw = dw.reshape(*window, *dw.shape[1:])  # space, channels, features
    axes = (*numbers.rhs_spec[2:], numbers.rhs_spec[1], numbers.rhs_spec[0])
    return dw.transpose([axes.index(axis) for axis in range(len(axes))])


def sides(x: jax.Array, dy: jax.Array, shape: Sequence[int], params: dict) -> tuple[jax.Array, jax.Array]:
    """The two factors of dw, whose product over examples and positions it is.

    Patches (examples, window, channels, positions), and what meets them, (examples, channels, positions). They are
    patches of x that meet dy; in a transposed convolution patches of dy that meet x.
    """
    numbers, dilation = params["dimension_numbers"], params["rhs_dilation"]
    x, dy = x.transpose(numbers.lhs_spec), dy.transpose(numbers.out_spec)
    window = [shape[axis] for axis in numbers.rhs_spec[2:]]
    if not is_transposed(params):
        low = [pad for pad, _ in params["padding"]]
        return _windows(x, low, params["lhs_dilation"], window, dilation, params["window_strides"], dy.shape[2:]), dy
    # x_i meets dy at i * stride + low - k: the windows run backwards.
    low = [(size - 1) * step - pad for size, step, (pad, _) in zip(window, dilation, params["padding"], strict=True)]
    seen = _windows(dy, low, (1,) * len(window), window, dilation, params["lhs_dilation"], x.shape[2:])
    return jnp.flip(seen, 1), x


def _windows(
    image: jax.Array, low: Sequence[int], spread: Sequence[int], window: Sequence[int], dilation: Sequence[int],
    strides: Sequence[int], positions: Sequence[int],
) -> jax.Array:  # fmt: skip
    """What a window sees at every position: (examples, window, channels, positions).

    `low` zeros stand before the image and as many after it as the last position needs; `spread` - 1 between its pixels.
    """
    starts = [[k * step for k in range(size)] for size, step in zip(window, dilation, strict=True)]
    lengths = [(count - 1) * stride + 1 for count, stride in zip(positions, strides, strict=True)]
    sizes = [(size - 1) * step + 1 for size, step in zip(image.shape[2:], spread, strict=True)]
    high = [first[-1] + n - size - pad for first, n, size, pad in zip(starts, lengths, sizes, low, strict=True)]
    space = [(a, b, step - 1) for a, b, step in zip(low, high, spread, strict=True)]
    image = lax.pad(image, jnp.zeros((), image.dtype), [(0, 0, 0), (0, 0, 0), *space])
    if math.prod(window) > MANY:
        return _line_by_line(image[:, None], starts, lengths, strides)
    parts = []
    for start in itertools.product(*starts):
        stop = [first + n for first, n in zip(start, lengths, strict=True)]
        part = lax.slice(image, (0, 0, *start), (*image.shape[:2], *stop), (1, 1, *strides))
        parts.append(part[:, None])
    return lax.concatenate(parts, 1)


def _line_by_line(
    image: jax.Array, starts: Sequence[Sequence[int]], lengths: Sequence[int], strides: Sequence[int]
) -> jax.Array:
    """The same by one axis after another, the last one first: with 5 x 5 offsets 10 slices, not 25, and two thirds of
    the time to compile. It copies a little more, so small windows are cut out one by one."""
    for axis in reversed(range(len(starts))):
        pieces = [
            lax.slice_in_dim(image, start, start + lengths[axis], strides[axis], axis + 3) for start in starts[axis]
        ]
        image = jnp.stack(pieces, 1).reshape(image.shape[0], -1, *pieces[0].shape[2:])
    return image


def _product(seen: jax.Array, other: jax.Array) -> jax.Array:
    """The sum over examples and positions of both: (window, channels of the windows, channels of the other)."""
    space = range(2, other.ndim)
    return lax.dot_general(seen, other, (((0, *(axis + 1 for axis in space)), (0, *space)), ((), ())))


def is_transposed(params: dict) -> bool:
    """Strides between the input's pixels, none between the output's: the windows are fewer in the output."""
    return max(params["lhs_dilation"], default=1) > 1 and max(params["window_strides"]) == 1


def window_of(equation: JaxprEqn) -> int:
    shape = array_of(equation.invars[1]).shape
    size = 1
    for axis in equation.params["dimension_numbers"].rhs_spec[2:]:
        size *= shape[axis]
    return size


def _smaller_side(equation: JaxprEqn) -> int:
    """Bytes of patches for one offset of the window."""
    (x, w), y, params = (
        (array_of(variable) for variable in equation.invars),
        array_of(equation.outvars[0]),
        equation.params,
    )
    numbers = params["dimension_numbers"]
    if is_transposed(params):
        return x.size // x.shape[numbers.lhs_spec[1]] * w.shape[numbers.rhs_spec[0]] * x.dtype.itemsize
    return y.size // y.shape[numbers.out_spec[1]] * w.shape[numbers.rhs_spec[1]] * x.dtype.itemsize
