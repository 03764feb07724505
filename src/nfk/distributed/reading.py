"""What each of JAX's processes reads of a data set, for those who have only that."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from nfk.distributed.of_jax import JAX


def own_rows(examples: int) -> slice:
    """The examples that this process reads of `examples` in a fit over all devices: for those who have only these.

    Args:
        examples: how many all processes have together.
    """
    mine = [i for i, device in enumerate(jax.devices()) if device.process_index == jax.process_index()]
    each = -(-examples // len(jax.devices()))
    start, stop = mine[0] * each, (mine[-1] + 1) * each
    return slice(min(start, examples), min(stop, examples))


class Own:
    """Examples of which this process has only its own, as `X` for `nfk.fit`: all must make it together.

    Args:
        rows: the examples `own_rows(examples)` of all: an array, or a pytree of arrays.
        examples: how many all processes have together.
    """

    def __init__(self, rows: Any, examples: int) -> None:
        self._place, self._rows, self._length = own_rows(examples), rows, examples
        held = len(jax.tree.leaves(rows)[0])
        if held != self._place.stop - self._place.start:
            place = f"{self._place.start}:{self._place.stop}"
            raise ValueError(
                f"process {jax.process_index()} holds {held} examples, but reads {place} of {examples}: give "
                f"rows[nfk.distributed.own_rows({examples})]"
            )
        self._first = JAX.of_first(jax.tree.map(lambda leaf: np.asarray(leaf[:1]), rows))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, rows: slice) -> Any:
        start, stop, _ = rows.indices(self._length)
        if (start, stop) == (0, 1):
            return self._first
        if start < self._place.start or stop > self._place.stop:
            raise IndexError(f"process {jax.process_index()} has no example {start}:{stop}, only {self._place}")
        return jax.tree.map(lambda leaf: leaf[start - self._place.start : stop - self._place.start], self._rows)
