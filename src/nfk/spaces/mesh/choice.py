"""What a caller may say about devices: how many of them, or a jax mesh of their own."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from nfk.spaces.mesh.local import BASIS, DATA
from nfk.spaces.mesh.mesh import Mesh
from nfk.spaces.mesh.sharding import Grid

SHAPES = "a number of devices, a pair (data, basis) of numbers, or a jax.sharding.Mesh with the axes 'data' and 'basis'"


def chosen(mesh: Any) -> Mesh:
    """The mesh that `mesh=` asks for, or an error that says what would be one."""
    if isinstance(mesh, jax.sharding.Mesh):
        return Mesh(Grid(_with_both_axes(mesh)))
    pair = (mesh, 1) if isinstance(mesh, (int, np.integer)) else mesh
    if isinstance(mesh, bool) or not isinstance(pair, tuple) or len(pair) != 2 or not all(map(_is_count, pair)):
        raise ValueError(f"mesh={mesh!r} is no mesh: give {SHAPES}")
    data, basis = map(int, pair)
    found = jax.devices()
    if data * basis > len(found):
        raise ValueError(
            f"mesh={mesh!r} needs {data * basis} devices, but JAX sees {len(found)} ({found[0].platform}): ask for "
            "fewer, or start JAX with more"
        )
    _check_processes(found[: data * basis], mesh)
    return Mesh.of(found[: data * basis], basis)


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value > 0)


def _with_both_axes(mesh: jax.sharding.Mesh) -> jax.sharding.Mesh:
    """With the axes in the order of ours; one of one place where an axis is missing."""
    others = [name for name in mesh.axis_names if name not in (DATA, BASIS)]
    if others or mesh.empty:
        raise ValueError(f"mesh= has the axes {mesh.axis_names}: give {SHAPES}")
    _check_processes(list(mesh.devices.flat), mesh.shape_tuple)
    devices = mesh.devices
    if mesh.axis_names == (BASIS, DATA):
        devices = devices.T
    return jax.sharding.Mesh(devices.reshape(mesh.shape.get(DATA, 1), mesh.shape.get(BASIS, 1)), (DATA, BASIS))


def _check_processes(devices: list[jax.Device], mesh: Any) -> None:
    missing = sorted(set(range(jax.process_count())) - {device.process_index for device in devices})
    if missing:
        raise ValueError(
            f"mesh={mesh} leaves out process {missing[0]} of {jax.process_count()}: every process takes part with a "
            f"device at least; use all {len(jax.devices())} devices, or start fewer processes"
        )
