"""Rows of gradients on disk: written once, when they are computed, and read again a chunk at a time."""

from __future__ import annotations

import os
import weakref

import numpy as np
from jaxtyping import Float

from nfk.layout import Layout
from nfk.spaces.host import HostStore, shift_rows
from nfk.spaces.scratch import Scratch
from nfk.spaces.space import Leaves


class Shelf:
    """Room for rows of gradients in a file. Holds a microbatch of them in memory, while it is written."""

    def __init__(self, scratch: Scratch, rows: int, layout: Layout) -> None:
        self._layout = layout
        self._row_bytes = layout.size * layout.dtype.itemsize
        self._file = scratch.file(rows * self._row_bytes)
        weakref.finalize(self, self._file.close)
        self._written = np.zeros(rows, bool)
        self._moments: tuple[np.ndarray, np.ndarray] | None = None
        self._stage: HostStore | None = None

    def write(self, first: int, leaves: Leaves, count: int) -> None:
        """Rows first:first + count from gradients leaf by leaf; further rows of theirs are padding."""
        if self._stage is None or len(self._stage.array) < count:
            self._stage = HostStore(np.empty((count, self._layout.size), self._layout.dtype), self._layout.places)
        self._stage.write(0, leaves, count)
        self.put(first, self._stage.array[:count])

    def put(self, first: int, rows: Float[np.ndarray, "n P"]) -> None:
        """Rows first:first + n as they are."""
        left, place = rows.data.cast("B"), first * self._row_bytes
        while left:
            done = os.pwrite(self._file.fileno(), left, place)
            left, place = left[done:], place + done
        self._written[first : first + len(rows)] = True

    def normalise(self, mean: Float[np.ndarray, " P"], scale: Float[np.ndarray, " P"]) -> None:
        """What stands here are raw gradients: from now on (row - mean) * scale is read."""
        self._moments, self._stage = (mean, scale), None

    def has(self, rows: slice) -> bool:
        return bool(self._written[rows].all())

    def read(self, rows: slice, into: Float[np.ndarray, "n P"]) -> None:
        """Rows that were written, into memory. The rows after them are asked of the disk meanwhile."""
        left, place = into.data.cast("B"), rows.start * self._row_bytes
        while left:
            done = os.preadv(self._file.fileno(), [left], place)
            left, place = left[done:], place + done
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), place, into.nbytes, os.POSIX_FADV_WILLNEED)
        if self._moments is not None:
            shift_rows(into, *self._moments)
