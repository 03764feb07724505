"""Orthonormal columns through small Gram matrices, wherever the blocks live."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from nfk.spaces.small import eigh
from nfk.spaces.space import Block, Space


def project_out(
    space: Space, block: Float[Block, "n a"], basis: Sequence[Block], coefficients: np.ndarray | None = None
) -> Float[Block, "n a"]:
    """`block - B B' block` for the orthonormal blocks B of the basis; `coefficients` are B' block where known.

    Gives up the memory of `block`.
    """
    start = 0
    for other in basis:
        width = other.shape[1]
        part = space.inner(other, block) if coefficients is None else coefficients[start : start + width]
        block = space.add_product(block, other, part, -1.0)
        start += width
    return block


def orthonormalise(space: Space, block: Float[Block, "n a"], basis: Sequence[Block], scale: float) -> Block:
    """Orthonormal columns with the span of `block`, orthogonal to `basis`; what is shorter than rounding error at
    length `scale` is dropped. Gives up the memory of `block`, which has been projected out of `basis` once already.

    Through Gram matrices: a Householder QR of a tall block costs fifteen times as much (measured). A Gram matrix shows
    only directions longer than sqrt(eps) of the longest, so the others are set apart and looked at again on their own.
    Then all is done once more, at length one, since the first round leaves an error of cond * eps; what loses most of
    its length there was rounding error, and goes.
    """
    nothing = space.columns(block, slice(0, 0))
    found = _spread(space, block, scale)
    if not found:
        return nothing
    whole = project_out(space, space.joined(found), basis)
    del found
    values, vectors = eigh(space.inner(whole, whole))
    clear = values > 0.01
    return space.rotate(whole, vectors[:, clear] / np.sqrt(values[clear]))


def _spread(space: Space, rest: Block, scale: float) -> list[Block]:
    """Nearly orthonormal blocks that span `rest`, the longest directions first."""
    found: list[Block] = []
    eps = space.eps(rest)
    while rest.shape[1]:
        rest = project_out(space, rest, found)
        values, vectors = eigh(space.inner(rest, rest))
        clear = values > max(len(values) * eps * values[-1], (10 * eps * scale) ** 2)
        if not clear.any():
            break
        found.append(space.product(rest, vectors[:, clear] / np.sqrt(values[clear])))
        if clear.all():
            break
        rest = space.product(rest, vectors[:, ~clear])
    return found
