"""A data set cut into ranges of one length, each read and worked on by itself.

Every range is a run of consecutive rows; where the rows cannot be shared out evenly, the last ranges end with padding.
All ranges go forward together: "rows begin:end" are those of every range, one range after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Ranges:
    """`count` rows in `parts` ranges of `each` rows; rows from `count` on are padding."""

    count: int
    parts: int
    each: int

    @classmethod
    def of(cls, examples: int, parts: int = 1, outputs: int = 1) -> Ranges:
        """The rows of `examples` examples, `outputs` for each, which stay together."""
        return cls(examples * outputs, parts, -(-examples // parts) * outputs)

    def slices(self, step: int) -> list[slice]:
        """Every range from its beginning to its end, `step` rows at a time."""
        return [slice(start, min(start + step, self.each)) for start in range(0, self.each, step)]

    def index(self, rows: slice) -> np.ndarray:
        """Which rows of the whole stand there, range after range; padding has numbers from `count` on."""
        return (np.arange(self.parts)[:, None] * self.each + np.arange(rows.start, rows.stop)).reshape(-1)

    def places(self, rows: slice) -> tuple[Any, Any]:
        """Which rows of the whole stand there, and which of those there they are: all but padding."""
        if self.parts == 1:
            return rows, slice(None)
        index = self.index(rows)
        inside = np.flatnonzero(index < self.count)
        return index[inside], inside

    def padded(self, array: np.ndarray) -> np.ndarray:
        """An array over all rows with its padding, zeros; itself where there is none."""
        missing = self.parts * self.each - len(array)
        return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)]) if missing else array


def grid(first: Any, second: Any) -> tuple[Any, ...]:
    """Where rows and columns meet in a matrix, as an index: of two slices, or of two lists of numbers."""
    return (first, second) if isinstance(first, slice) else np.ix_(first, second)
