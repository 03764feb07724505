"""Where tall blocks of columns live, and the few operations on them: on the host, or on a device."""

import jax

from nfk.spaces.device import Device
from nfk.spaces.host import HOST, Host
from nfk.spaces.mapped import Mapped
from nfk.spaces.orthonormal import orthonormalise, project_out
from nfk.spaces.scratch import Scratch
from nfk.spaces.shelf import Shelf
from nfk.spaces.space import Block, Space, Store, normals

__all__ = [
    "HOST", "Block", "Device", "Host", "Mapped", "Scratch", "Shelf", "Space", "Store", "default_space",
    "normals", "orthonormalise", "project_out",
]  # fmt: skip


def default_space(preferred: Space | None = None) -> Space:
    """The place that a network prefers; else the host where JAX computes on the CPU, whose memory it is; else the first
    accelerator of this process."""
    if preferred is not None:
        return preferred
    return HOST if jax.default_backend() == "cpu" else Device(jax.local_devices()[0])
