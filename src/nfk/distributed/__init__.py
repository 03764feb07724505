"""Several processes of one program, on one machine or on many: how they start, what each reads, what they agree on.

Every process runs the same script, makes the same model and passes the same `X`. Each reads only its own rows of it.
JAX's own runtime connects them (`jax.distributed`); on CPUs it uses gloo. A PyTorch module has its own: `group=`.
"""

from nfk.distributed.of_jax import JAX
from nfk.distributed.processes import ALONE, Processes, ProcessLost, Replicas, current
from nfk.distributed.reading import Own, own_rows
from nfk.distributed.starting import ADDRESS, PROCESS, PROCESSES, initialize

__all__ = [
    "ADDRESS", "ALONE", "JAX", "PROCESS", "PROCESSES", "Own", "ProcessLost", "Processes", "Replicas", "current",
    "initialize", "own_rows",
]  # fmt: skip
