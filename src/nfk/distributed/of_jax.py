"""The processes that `jax.distributed` has connected."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from nfk.distributed.processes import Processes

LENGTH = 8  # bytes that say how long a text is
SMALL = 1024  # bytes that travel at once: most values are shorter, and every length is compiled for


class JaxProcesses(Processes):
    """All of them; one alone where nothing was connected. Values travel as bytes: JAX would round float64."""

    @property
    def rank(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return jax.process_index()

    @property
    def size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return jax.process_count()

    def everyone(self, value: Any) -> list[Any]:
        if not self.several:
            return [value]
        from jax.experimental import multihost_utils

        return [pickle.loads(text) for text in _exchanged(pickle.dumps(value), multihost_utils.process_allgather)]

    def of_first(self, value: Any) -> Any:
        if not self.several:
            return value
        from jax.experimental import multihost_utils

        text = pickle.dumps(value if self.is_first else None)
        return pickle.loads(_exchanged(text, multihost_utils.broadcast_one_to_all)[0])


def _exchanged(text: bytes, travel: Callable[[np.ndarray], Any]) -> list[bytes]:
    """The texts that come back from a journey of this one and its like: their beginnings with their lengths, and then,
    where one is longer, the rest of them."""
    begun = _arrived(len(text).to_bytes(LENGTH, "little") + text, SMALL, travel)
    lengths = [int.from_bytes(row[:LENGTH], "little") for row in begun]
    longest = LENGTH + max(lengths)
    if longest <= SMALL:
        return [row[LENGTH : LENGTH + length] for row, length in zip(begun, lengths, strict=True)]
    rest = _arrived(text[SMALL - LENGTH :], 1 << (longest - SMALL - 1).bit_length(), travel)
    whole = [first[LENGTH:] + last for first, last in zip(begun, rest, strict=True)]
    return [row[:length] for row, length in zip(whole, lengths, strict=True)]


def _arrived(text: bytes, room: int, travel: Callable[[np.ndarray], Any]) -> list[bytes]:
    padded = np.zeros(room, np.uint8)
    padded[: len(text)] = np.frombuffer(text[:room], np.uint8)
    return [row.tobytes() for row in np.atleast_2d(np.asarray(travel(padded))).astype(np.uint8)]


JAX = JaxProcesses()
