"""What one device does with its part of a block, and how parts meet: functions for `mesh`, which says where they run.

Sums over slabs are compensated (each sum with the rounding error of its additions beside it), so they are as good as
float64 on devices that have none, without a copy of a block in another precision. `DATA` is the axis of devices that
rows are shared out over, `BASIS` the one for columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nfk.spaces.space import SLAB
from nfk.spaces.tally import merge

DATA, BASIS = "data", "basis"
Pair = tuple[jax.Array, jax.Array]  # a sum, and what its additions have lost


def matmul(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left, right, precision="highest")


def _add(sum_: Pair, part: jax.Array) -> Pair:
    """One part more: the sum, and what is lost by now."""
    total, lost = sum_
    summed = total + part
    virtual = summed - total
    return summed, lost + ((total - (summed - virtual)) + (part - virtual))


def compensated(length: int, slab: Callable[[Any, int], jax.Array]) -> Pair:
    """The sum of `slab(start, rows)` over all slabs of `length` rows."""
    full, rest = divmod(length, SLAB)
    total = slab(full * SLAB, rest)
    begin = total, jnp.zeros_like(total)
    return jax.lax.fori_loop(0, full, lambda i, sum_: _add(sum_, slab(i * SLAB, SLAB)), begin) if full else begin


def _cut(block: jax.Array, start: Any, rows: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(block, start, rows)


def _over_data(sum_: Pair) -> Pair:
    """The sums of all places of the data axis as one."""
    if jax.lax.axis_size(DATA) == 1:
        return sum_
    totals, losts = (jax.lax.all_gather(part, DATA) for part in sum_)
    total, lost = totals[0], losts.sum(axis=0)
    for part in totals[1:]:
        total, lost = _add((total, lost), part)
    return total, lost


def _rounds(block: jax.Array, use: Callable[[Any, jax.Array], None]) -> None:
    """`use(shard, columns)` for every shard of the basis axis, which pass by one after another."""
    shards, own = jax.lax.axis_size(BASIS), jax.lax.axis_index(BASIS)
    for turn in range(shards):
        use((own + turn) % shards, block)
        if turn + 1 < shards:
            block = jax.lax.ppermute(block, BASIS, [((i + 1) % shards, i) for i in range(shards)])


def _columns(parts: Any) -> Any:
    """Every shard's columns side by side."""
    return jax.tree.map(lambda part: jax.lax.all_gather(part, BASIS, axis=part.ndim - 1, tiled=True), parts)


# --- small matrices from blocks


def inner(left: jax.Array, right: jax.Array) -> Pair:
    parts: list[tuple[Any, Pair]] = []

    def meet(shard: Any, columns: jax.Array) -> None:
        slab = lambda start, rows: matmul(_cut(columns, start, rows).T, _cut(left, start, rows))  # noqa: E731
        parts.append((shard, compensated(len(left), slab)))

    _rounds(right, meet)
    shards, width = len(parts), right.shape[1]
    total = jnp.zeros((shards * width, left.shape[1]), left.dtype)
    place = lambda whole, shard, part: jax.lax.dynamic_update_slice_in_dim(whole, part, shard * width, 0)  # noqa: E731
    sum_ = total, total
    for shard, pair in parts:
        sum_ = place(sum_[0], shard, pair[0]), place(sum_[1], shard, pair[1])
    return _columns(_over_data(sum_))  # (right, left), of all shards


def column_squares(block: jax.Array, minus: jax.Array | None = None, factors: jax.Array | None = None) -> Pair:
    def slab(start: Any, rows: int) -> jax.Array:
        part = _cut(block, start, rows)
        if minus is not None and factors is not None:
            part = part - _cut(minus, start, rows) * factors
        return jnp.sum(part**2, axis=0)

    return _columns(_over_data(compensated(len(block), slab)))


# --- blocks from blocks


def add_product(total: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
    """total + left @ right, for a small matrix that all have: its own columns of it."""
    height, width = left.shape[1], right.shape[1] // jax.lax.axis_size(BASIS)
    own = jax.lax.dynamic_slice_in_dim(right, jax.lax.axis_index(BASIS) * width, width, axis=1)
    sums = [total]
    _rounds(left, lambda shard, columns: sums.append(sums.pop() + matmul(columns, _cut(own, shard * height, height))))
    return sums[0]


def product(left: jax.Array, right: jax.Array) -> jax.Array:
    width = right.shape[1] // jax.lax.axis_size(BASIS)
    return add_product(jnp.zeros((len(left), width), left.dtype), left, right)


def normalise(block: jax.Array, scale: jax.Array, mean: jax.Array, sums: jax.Array) -> jax.Array:
    return scale[:, None] * (block - mean[:, None] * sums)


def scaled(block: jax.Array, scale: jax.Array) -> jax.Array:
    return block * scale[:, None]


# --- rows of gradients, and what they meet


def gather_rows(block: jax.Array) -> jax.Array:
    """The rows of all places of the data axis."""
    return jax.lax.all_gather(block, DATA, tiled=True)


def written(leaves: list, count: int, width: int) -> jax.Array:
    """Gradients of a microbatch as `count` rows, filled up to `width` columns, on every shard of the basis axis."""
    whole = [jnp.concatenate(leaf) if isinstance(leaf, (list, tuple)) else leaf for leaf in leaves]
    rows = jnp.concatenate(whole, axis=1)
    rows = jnp.pad(rows, ((0, 0), (0, width - rows.shape[1])))
    return jax.lax.all_gather(rows, BASIS, tiled=True)[:count]


def normalise_rows(rows: jax.Array, mean: jax.Array, scale: jax.Array, first: jax.Array, each: int, count: int) -> Any:
    """(row - mean) * scale; padding stays zero."""
    number = jax.lax.axis_index(DATA) * each + first + jnp.arange(len(rows))
    return jnp.where(number[:, None] < count, (rows - mean) * scale, 0)


def row_squares(rows: jax.Array) -> jax.Array:
    """(rows, 2): the squared norms, and what their sums have lost."""
    slab = lambda start, size: jnp.sum(jax.lax.dynamic_slice_in_dim(rows, start, size, axis=1) ** 2, axis=1)  # noqa: E731
    return jnp.stack(compensated(rows.shape[1], slab), axis=1)


def outer(total: jax.Array, rows: jax.Array, part: jax.Array) -> jax.Array:
    return total + matmul(rows.T, part)[None]


def first_outer(rows: jax.Array, part: jax.Array) -> jax.Array:
    return matmul(rows.T, part)[None]


def summed(total: jax.Array) -> jax.Array:
    return jax.lax.psum_scatter(total[0], DATA, tiled=True)


def exchanged(total: jax.Array) -> jax.Array:
    """The same with sums at the end alone: each place receives its rows of every place's total, and adds them up in
    the order of the places."""
    places = jax.lax.axis_size(DATA)
    pieces = total[0].reshape(places, -1, total.shape[2])
    return jnp.sum(jax.lax.all_to_all(pieces, DATA, 0, 0), axis=0)


def column_sums(block: jax.Array) -> jax.Array:
    return jnp.sum(block, axis=0)[None, None]


def kernel(rows: jax.Array, held: jax.Array) -> jax.Array:
    """(rows, held rows, 2): rows held', and what its sums have lost."""

    def slab(start: Any, size: int) -> jax.Array:
        cut = lambda part: jax.lax.dynamic_slice_in_dim(part, start, size, axis=1)  # noqa: E731
        return matmul(cut(rows), cut(held).T)

    return jnp.stack(compensated(rows.shape[1], slab), axis=2)


def images(rows: jax.Array, block: jax.Array) -> jax.Array:
    """(rows, columns, 2): rows @ block, and what its sums have lost."""
    return kernel(rows, block.T)


def stacked(*parts: jax.Array) -> jax.Array:
    return jnp.concatenate(parts)


def part(block: jax.Array, start: int, stop: int) -> jax.Array:
    return block[start:stop]


# --- a state for each device


def _own(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _for_each(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[None], tree)


def tallied(state: tuple, leaves: list, valid: jax.Array, unit: jax.Array) -> tuple:
    *found, norms = merge(*_own(state), leaves, valid[0], unit)
    return _for_each(tuple(found)), jax.lax.all_gather(norms, BASIS, tiled=True)


def united(state: tuple) -> tuple:
    """The sums of all devices as one: counts, means by their counts, and what they deviate."""
    count, mean, squares = _own(state)
    add = lambda part: jax.lax.psum(part, (DATA, BASIS))  # noqa: E731
    total = add(count)
    whole = [add(z * (count / total)) for z in mean]
    return total, whole, [add(m2 + count * (z - w) ** 2) for m2, z, w in zip(squares, mean, whole, strict=True)]


def largest(*leaves: jax.Array) -> jax.Array:
    return jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in leaves]))


# --- the derivatives of a network


def gradients(same: tuple, examples: Any, inside: jax.Array, function: Callable, outputs: int) -> list:
    """Rows of the gradients of this device's examples, leaf by leaf; those of padding are zero."""
    leaves = function(outputs, *same, examples)
    whole = [jnp.concatenate(leaf) if isinstance(leaf, (list, tuple)) else leaf for leaf in leaves]
    rows = jnp.repeat(inside, outputs, total_repeat_length=len(inside) * outputs)[:, None]
    return [jnp.where(rows, leaf, 0) for leaf in whole]


def tangents(block: jax.Array, layout: Any) -> list:
    return layout.leaves(block[: layout.size].T)


def _shared(examples: Any) -> Any:
    """The examples of all shards: each of them has columns of its own."""
    return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, BASIS, tiled=True), examples)


def _grouped(function: Callable, columns: Any, at_once: int) -> jax.Array:
    """`function` of some columns, (..., columns), for `at_once` of them at a time; they are the first axis."""
    width = len(jax.tree.leaves(columns)[0])
    if width <= at_once:
        return function(columns)
    groups = -(-width // at_once)
    fill = lambda leaf: jnp.pad(leaf, ((0, groups * at_once - width), *((0, 0) for _ in leaf.shape[1:])))  # noqa: E731
    cut = jax.tree.map(lambda leaf: fill(leaf).reshape(groups, at_once, *leaf.shape[1:]), columns)
    found = jax.lax.map(function, cut)  # (groups, n, columns)
    return jnp.moveaxis(found, 0, 1).reshape(found.shape[1], -1)[:, :width]


def forward(same: tuple, columns: list, examples: Any, function: Callable, outputs: int, at_once: int) -> jax.Array:
    batch = _shared(examples)
    return _grouped(lambda some: function(outputs, *same, some, batch), columns, at_once)


def reverse(
    same: tuple, weights: jax.Array, examples: Any, function: Callable, outputs: int, at_once: int, parts: int
) -> jax.Array:
    batch = _shared(examples)
    found = _grouped(lambda some: function(outputs, *same, some.T, batch), weights.T, at_once)
    return jnp.pad(found, ((0, -len(found) % parts), (0, 0)))[None]


def image(rows: jax.Array, inside: jax.Array, shift: jax.Array, count: int) -> jax.Array:
    """rows - shift without the padding: the first `count`, and zeros for examples that are none."""
    inside = jax.lax.all_gather(inside, BASIS, tiled=True)
    outputs = len(rows) // len(inside)
    mask = jnp.repeat(inside, outputs, total_repeat_length=len(rows))[:, None]
    return jnp.where(mask, rows - shift, 0)[:count]


def cotangents(weights: jax.Array, rows: int) -> jax.Array:
    return jnp.pad(weights, ((0, rows - len(weights)), (0, 0)))


def add(total: jax.Array, part: jax.Array) -> jax.Array:
    return total + part


def zeros(shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return jnp.zeros(shape, dtype)
