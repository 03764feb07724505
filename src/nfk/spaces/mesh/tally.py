"""Mean and spread of rows of gradients over the devices of a mesh: each has its own sums, reduced once at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Float

from nfk.layout import Layout
from nfk.ranges import Ranges
from nfk.spaces.mesh import local
from nfk.spaces.mesh.sharding import EACH, ROWS, SAME
from nfk.spaces.space import Leaves
from nfk.spaces.tally import Tally

if TYPE_CHECKING:
    from nfk.spaces.mesh.mesh import Mesh


class MeshTally(Tally):
    """Compiled, on every device for its own examples."""

    def __init__(self, space: Mesh, layout: Layout, ranges: Ranges) -> None:
        self._space, self._ranges, self._dtype, self._begin = space, ranges, layout.dtype, 0
        devices = space.grid.mesh.size
        zeros = [space.grid.put(np.zeros((devices, size), layout.dtype), EACH) for size in layout.sizes]
        self._state = space.grid.put(np.zeros(devices, layout.dtype), EACH), zeros, zeros

    def add(self, leaves: Leaves, count: int, unit: float) -> jax.Array:
        grid, rows = self._space.grid, slice(self._begin, self._begin + count)
        valid = self._space.valid(self._ranges, rows, len(leaves[0]) // grid.mesh.size)
        given = grid.put(valid.astype(self._dtype), EACH), grid.put(np.asarray(unit, self._dtype), SAME)
        ins = (EACH, EACH, EACH, SAME)
        self._state, norms = grid.each(local.tallied, ins, (EACH, ROWS), self._state, list(leaves), *given)
        self._begin += count
        return norms.block_until_ready()  # no further ahead: microbatches on their way take memory

    def result(self) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"], int]:
        grid = self._space.grid
        total, mean, squares = grid.each(local.united, (EACH,), SAME, self._state)
        join = lambda pieces: np.concatenate([grid.fetch(piece) for piece in pieces])  # noqa: E731
        return join(mean), join(squares), int(grid.fetch(total))
