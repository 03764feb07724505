"""Where tall blocks of columns live, and the few operations on them: on the host, or over a mesh of devices."""

from typing import Any

import jax

from nfk.spaces.halves import Halves, Slab, turned
from nfk.spaces.host import HOST, Host
from nfk.spaces.mapped import Mapped
from nfk.spaces.mesh import Mesh, chosen
from nfk.spaces.orthonormal import orthonormalise, project_out
from nfk.spaces.scratch import Scratch
from nfk.spaces.shelf import Shelf
from nfk.spaces.small import eigh
from nfk.spaces.space import Block, Space, Store, normals

__all__ = [
    "HOST", "Block", "Halves", "Host", "Mapped", "Mesh", "Scratch", "Shelf", "Slab", "Space", "Store", "default_space",
    "eigh", "normals", "orthonormalise", "project_out", "space_for", "turned",
]  # fmt: skip


def default_space(preferred: Space | None = None, meshes: bool = True) -> Space:
    """The place that a network prefers; else the host where JAX computes on the CPU, whose memory it is; else all
    accelerators of this process, and with several processes all devices of all of them. For a network that cannot
    compute there (`meshes`), the host."""
    if preferred is not None:
        return preferred
    if not meshes or (jax.default_backend() == "cpu" and jax.process_count() == 1):
        return HOST
    return Mesh.of(jax.devices())


def space_for(mesh: Any, network: Any) -> Space:
    """The place that `mesh=` asks for; None leaves the choice to the network and `default_space`."""
    if mesh is None:
        return default_space(network.space, network.meshes)
    if not network.meshes:
        raise ValueError(
            f"mesh={mesh!r} needs a network written in JAX: a PyTorch module computes on its own device. Leave mesh out"
        )
    return chosen(mesh)
