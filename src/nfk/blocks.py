"""Tall blocks of columns, on the host (numpy, BLAS) or on a device (jax), and the few operations the SVD needs.

On a CPU the blocks are numpy arrays: its BLAS multiplies a chunk of gradients with a block 1.5 to 2.5 times as fast as
XLA's own product does (measured: 160 to 200 GFLOP/s against 70 to 130, two cores), and updates a block in place.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from scipy.linalg import blas

Block = Any  # np.ndarray on the host, jax.Array on a device; no function mixes the two

# Rows of a block whose inner products are summed in its own precision before they are added in float64: a float32 sum
# over a million rows would cost the last digits that the eigenvalues are judged by.
SLAB = 8192


def zeros(shape: tuple[int, int], dtype: np.dtype, on_host: bool) -> Block:
    return np.zeros(shape, dtype) if on_host else jnp.zeros(shape, dtype)


def placed(block: np.ndarray, on_host: bool) -> Block:
    return np.ascontiguousarray(block) if on_host else jnp.asarray(block)


def random_block(seed: np.random.Generator, shape: tuple[int, int], dtype: np.dtype, on_host: bool) -> Block:
    return placed(seed.standard_normal(shape, dtype=dtype), on_host)


def add_product(total: Block, left: Block, right: Block, sign: float = 1.0) -> Block:
    """`total + sign * left @ right`; a numpy `total` is updated in place, a jax one is donated."""
    if isinstance(total, np.ndarray):
        return _add_product_in_place(total, left, right, sign)
    return _add_product_on_device(total, left, right, sign)


def _add_product_in_place(total: np.ndarray, left: np.ndarray, right: np.ndarray, sign: float) -> np.ndarray:
    # BLAS thinks in columns: total' += sign * right' left', where total' is the Fortran view of a C array.
    gemm = getattr(blas, "dgemm" if total.dtype == np.float64 else "sgemm")
    a, transposed_a = _fortran_view(right.T)
    b, transposed_b = _fortran_view(left.T)
    gemm(sign, a, b, beta=1.0, c=total.T, trans_a=transposed_a, trans_b=transposed_b, overwrite_c=True)
    return total


def _fortran_view(matrix: np.ndarray) -> tuple[np.ndarray, bool]:
    """`matrix` as a Fortran array and whether BLAS must transpose it: no copy for contiguous input."""
    if matrix.flags.f_contiguous:
        return matrix, False
    return (matrix.T if matrix.flags.c_contiguous else np.ascontiguousarray(matrix).T), True


@partial(jax.jit, donate_argnums=0)
def _add_product_on_device(total: jax.Array, left: jax.Array, right: jax.Array, sign: float) -> jax.Array:
    return total + sign * jnp.matmul(left, right.astype(total.dtype), precision="highest")


def product(left: Block, right: Block) -> Block:
    """`left @ right` in full precision."""
    if isinstance(left, np.ndarray):
        return left @ np.asarray(right)
    return jnp.matmul(left, right, precision="highest")


def gram(left: Block, right: Block) -> np.ndarray:
    """`left' right` as float64 on the host, summed slab by slab."""
    total = np.zeros((left.shape[1], right.shape[1]))
    for start in range(0, left.shape[0], SLAB):
        rows = slice(start, start + SLAB)
        total += np.asarray(product(left[rows].T, right[rows]), np.float64)
    return total


def rotate(block: Block, rotation: np.ndarray) -> Block:
    """`block @ rotation`; a numpy block gives up its own memory when the result fits in it."""
    rotation = _like(rotation, block)
    if not isinstance(block, np.ndarray):
        return product(block, rotation)
    columns = rotation.shape[1]
    for start in range(0, block.shape[0], SLAB):
        rows = slice(start, start + SLAB)
        block[rows, :columns] = block[rows] @ rotation
    return block if columns == block.shape[1] else np.ascontiguousarray(block[:, :columns])


def combine(basis: list[Block], coefficients: np.ndarray) -> Block:
    """`[basis_0 basis_1 ...] @ coefficients`, without joining the blocks."""
    starts = np.cumsum([0, *(block.shape[1] for block in basis)])
    total = zeros((basis[0].shape[0], coefficients.shape[1]), basis[0].dtype, isinstance(basis[0], np.ndarray))
    for block, start in zip(basis, starts, strict=False):
        total = add_product(total, block, _like(coefficients[start : start + block.shape[1]], block))
    return total


def column_norms(block: Block, minus: Block | None = None, factors: np.ndarray | float = 1.0) -> np.ndarray:
    """Norms of the columns of `block - minus * factors` (of `block` alone without `minus`), summed in float64."""
    total = np.zeros(block.shape[1])
    for start in range(0, block.shape[0], SLAB):
        rows = slice(start, start + SLAB)
        part = np.asarray(block[rows], np.float64)
        if minus is not None:
            part = part - np.asarray(minus[rows], np.float64) * factors
        total += np.einsum("ij,ij->j", part, part)
    return np.sqrt(total)


def project_out(block: Block, basis: list[Block], coefficients: np.ndarray | None = None) -> Block:
    """`block - B B' block` for the orthonormal blocks B of the basis; `coefficients` are B' block where known."""
    start = 0
    for other in basis:
        width = other.shape[1]
        part = gram(other, block) if coefficients is None else coefficients[start : start + width]
        block = add_product(block, other, _like(part, block), -1.0)
        start += width
    return block


def _like(matrix: np.ndarray, block: Block) -> Block:
    """A small host matrix in the precision and the place of `block`."""
    matrix = np.ascontiguousarray(matrix, block.dtype)
    return matrix if isinstance(block, np.ndarray) else jnp.asarray(matrix)


def orthonormalise(block: Block, basis: list[Block], scale: float) -> Block:
    """Orthonormal columns with the span of `block`, orthogonal to `basis`; what is shorter than rounding error at
    length `scale` is dropped.

    `block` has been projected out of `basis` once already. Through Gram matrices: a Householder QR of a tall block
    costs fifteen times as much (measured). A Gram matrix shows only directions longer than sqrt(eps) of the longest, so
    the others are set apart and looked at again on their own. Then all is done once more, at length one, since the
    first round leaves an error of cond * eps; what loses most of its length there was rounding error, and goes.
    """
    found: list[Block] = []
    rest = block
    while rest.shape[1]:
        rest = project_out(rest, found)
        values, vectors = scipy.linalg.eigh(gram(rest, rest))
        eps = np.finfo(rest.dtype).eps
        clear = values > max(len(values) * eps * values[-1], (10 * eps * scale) ** 2)
        if not clear.any():
            break
        found.append(product(rest, _like(vectors[:, clear] / np.sqrt(values[clear]), rest)))
        rest = product(rest, _like(vectors[:, ~clear], rest))
    if not found:
        return block[:, :0]
    whole = joined(found)
    del rest, found
    whole = project_out(whole, basis)
    values, vectors = scipy.linalg.eigh(gram(whole, whole))
    clear = values > 0.01
    return rotate(whole, vectors[:, clear] / np.sqrt(values[clear]))


def joined(blocks: list[Block]) -> Block:
    """The blocks side by side."""
    if len(blocks) == 1:
        return blocks[0]
    return (np if isinstance(blocks[0], np.ndarray) else jnp).concatenate(blocks, axis=1)
