"""How arrays lie on the devices of a mesh, and functions that run there: the only module that knows of sharding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec

from nfk.spaces.mesh.local import BASIS, DATA

SAME = Spec()  # all of it on every device
TALL = Spec(DATA, BASIS)  # a block at rest
WIDE = Spec(None, BASIS)  # a block that rows of gradients meet
ROWS = Spec(DATA)  # rows of gradients, and numbers for the rows of a block
COLUMNS = Spec(BASIS)  # numbers for its columns, and tangents
EACH = Spec((DATA, BASIS))  # the examples of a microbatch, and what a device has for itself
SUMS = Spec(DATA, None, BASIS)  # sums that each place of the data axis has for itself


@dataclass(frozen=True)
class Grid:
    """The devices of a jax mesh with the axes `data` and `basis`."""

    mesh: jax.sharding.Mesh

    @classmethod
    def of(cls, devices: Sequence[jax.Device], basis: int = 1) -> Grid:
        return cls(jax.sharding.Mesh(np.asarray(devices).reshape(-1, basis), (DATA, BASIS)))

    @property
    def data(self) -> int:
        return self.mesh.shape[DATA]

    @property
    def basis(self) -> int:
        return self.mesh.shape[BASIS]

    @property
    def own(self) -> list[tuple[int, jax.Device]]:
        """The devices of this process, with their numbers."""
        mine = jax.process_index()
        return [(i, device) for i, device in enumerate(self.mesh.devices.flat) if device.process_index == mine]

    def put(self, array: np.ndarray, spec: Spec) -> jax.Array:
        """An array that every process has, of which each device takes its part."""
        return self.made(array.shape, spec, lambda index: array[index])

    def made(self, shape: tuple[int, ...], spec: Spec, make: Callable[[Any], np.ndarray]) -> jax.Array:
        """An array of which `make` gives each device's part."""
        return jax.make_array_from_callback(shape, NamedSharding(self.mesh, spec), make)

    def gathered(self, parts: dict[int, np.ndarray]) -> jax.Array:
        """Parts of one shape for the devices of this process, by their numbers, one above another."""
        arrays = [jax.device_put(parts[number], device) for number, device in self.own]
        shape = len(arrays[0]) * self.mesh.size, *arrays[0].shape[1:]
        return jax.make_array_from_single_device_arrays(shape, NamedSharding(self.mesh, EACH), arrays)

    def own_pieces(self, array: jax.Array) -> np.ndarray:
        """What the devices of this process have of an array, one piece of one shape each."""
        pieces = {piece.device: piece.data for piece in array.addressable_shards}
        return np.stack([np.asarray(pieces[device]) for _, device in self.own])

    def of_pieces(self, pieces: np.ndarray, shape: tuple[int, ...], spec: Spec) -> jax.Array:
        """The array of which `own_pieces` gave the pieces, in every process."""
        arrays = [jax.device_put(piece, device) for piece, (_, device) in zip(pieces, self.own, strict=True)]
        return jax.make_array_from_single_device_arrays(shape, NamedSharding(self.mesh, spec), arrays)

    def fetch(self, array: jax.Array) -> np.ndarray:
        """An array on the host of every process."""
        if not array.is_fully_addressable:
            array = self.whole(_itself, SAME, array).addressable_data(0)
        return np.asarray(array)

    def each(self, function: Callable, ins: Sequence[Any], outs: Any, /, *arguments: Any, **static: Any) -> Any:
        """`function` of every device's part of the arguments, compiled; `donate` gives up the first one's memory."""
        return self._ended(_each(self.mesh, function, tuple(ins), outs, tuple(static.items()))(*arguments))

    def whole(self, function: Callable, spec: Spec, /, *arguments: Any, **static: Any) -> jax.Array:
        """`function` of the arguments as if they lay on one device, compiled."""
        return self._ended(_whole(self.mesh, function, spec, tuple(static.items()))(*arguments))

    def _ended(self, result: Any) -> Any:
        """Simulated devices run one program at a time. They share one pool of as many threads, and a device that waits
        for the others in a collective holds one: where the next program has another, the last device finds none, and
        all wait for ever."""
        return jax.block_until_ready(result) if self._simulated else result

    @cached_property
    def _simulated(self) -> bool:
        return len(self.own) > 1 and self.mesh.devices.flat[0].platform == "cpu"


def _itself(array: jax.Array) -> jax.Array:
    return array


@lru_cache(maxsize=512)
def _each(mesh: jax.sharding.Mesh, function: Callable, ins: tuple, outs: Any, static: tuple) -> Callable:
    named = dict(static)
    donate = named.pop("donate", False)
    part = lambda *arguments: function(*arguments, **named)  # noqa: E731
    spread = jax.shard_map(part, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)
    return jax.jit(spread, donate_argnums=0 if donate else ())


@lru_cache(maxsize=512)
def _whole(mesh: jax.sharding.Mesh, function: Callable, spec: Spec, static: tuple) -> Callable:
    whole = lambda *arguments: function(*arguments, **dict(static))  # noqa: E731
    return jax.jit(whole, out_shardings=NamedSharding(mesh, spec))
