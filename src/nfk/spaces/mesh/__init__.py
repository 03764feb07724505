"""Blocks over several JAX devices, of one process or of many; one device is a mesh, too.

A mesh has two axes. `data`: each of its places reads a range of the examples and works on their rows. `basis`: the
columns of blocks are shared out over it. A block rests in equal pieces on all devices, its rows over `data`, its
columns over `basis`, filled up with zeros. For a pass its rows are gathered (`spread`), every device sums up V' W for
its own examples and columns (`outer`), and one reduction per pass brings the sum where blocks rest (`summed`).
Besides, only small matrices travel.
"""

from nfk.spaces.mesh.choice import chosen
from nfk.spaces.mesh.mesh import Mesh

__all__ = ["Mesh", "chosen"]
