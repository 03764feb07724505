"""How processes that JAX connects find one another."""

from __future__ import annotations

import os

import jax

ADDRESS, PROCESSES, PROCESS = "NFK_ADDRESS", "NFK_PROCESSES", "NFK_PROCESS"
HEARTBEAT_SECONDS = 10  # a process that was not heard of for so long is dead, and the others end


def initialize(address: str | None = None, processes: int | None = None, process: int | None = None) -> None:
    """Connect this process with the others. Call it before anything else that uses JAX.

    Without arguments it reads `NFK_ADDRESS`, `NFK_PROCESSES` and `NFK_PROCESS`, which `python -m nfk.launch` sets;
    where they are not set, JAX finds the others by the variables of `srun`, `mpirun`, Kubernetes or a TPU.

    Args:
        address: host:port of process 0, the same for all: a free port of a machine that all can reach.
        processes: how many there are.
        process: the number of this one, from 0.
    """
    address = address or os.environ.get(ADDRESS)
    processes = _number(PROCESSES, "processes", processes)
    process = _number(PROCESS, "process", process)
    given = {"address": address, "processes": processes, "process": process}
    missing = [name for name, value in given.items() if value is None]
    if 0 < len(missing) < len(given):
        raise ValueError(
            f"nfk.distributed.initialize is not told {' and '.join(missing)}: give address, processes and process, as "
            f"arguments or as {ADDRESS}, {PROCESSES} and {PROCESS}, or none of them under srun or mpirun"
        )
    if process is not None and processes is not None and not 0 <= process < processes:
        raise ValueError(f"process={process} must be from 0 to {processes - 1}: there are processes={processes}")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, processes, process, heartbeat_timeout_seconds=HEARTBEAT_SECONDS)


def _number(variable: str, name: str, value: int | None) -> int | None:
    text = os.environ.get(variable)
    if value is not None or text is None:
        return value
    if not text.isdecimal():
        raise ValueError(f"{variable}={text!r} is no number: it says {name}= of nfk.distributed.initialize")
    return int(text)
