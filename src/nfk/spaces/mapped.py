"""The host, with tall blocks in memory maps: for a basis that is larger than memory.

Every operation of the host goes over its blocks slab by slab, so a block need not be in memory as a whole: the system
brings its pages in and writes them out. They belong to the file, not to the process, and are given up as soon as memory
is short. A basis of many columns is several such blocks, one after another against the same data.
"""

from __future__ import annotations

import numpy as np

from nfk.spaces.host import Host
from nfk.spaces.scratch import Scratch
from nfk.spaces.space import Block


class Mapped(Host):
    """Blocks of `tall` rows or more are memory maps of files in `scratch`."""

    def __init__(self, scratch: Scratch, tall: int) -> None:
        self.scratch, self.tall = scratch, tall

    def fresh(self, shape: tuple[int, int], dtype: np.dtype, zeros: bool = False) -> np.ndarray:
        return self.scratch.array(shape, dtype) if shape[0] >= self.tall else super().fresh(shape, dtype, zeros)

    def put(self, array: np.ndarray | Block, dtype: np.dtype | None = None) -> Block:
        """Arrays of other files are copied: theirs are not to be changed."""
        if not isinstance(array, np.memmap) or array.ndim < 2 or len(array) < self.tall:
            return super().put(array, dtype)
        return self.copied(array, dtype or array.dtype)
