"""How programs are compiled: with as much effort as they are worth."""

from __future__ import annotations

from functools import cache

import jax

# Slices and patches compile in half of the time without XLA's fusion emitters and with less optimisation, and run as
# fast (critic of 613,761 parameters: 1.9 s against 4.0, 4.9 ms an example against 4.8; WRN-16-2: 4.8 s against 7.1, 20
# ms against 20). Attention runs slower: it keeps them.
QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
# By how examples are batched. Of a transformer and a few dense networks, nothing but the compilation was slower at the
# default level (1.2 s against 1.1).
EFFORT: dict[str, dict[str, bool | int]] = {
    "vmap": {"xla_backend_optimization_level": 1}, "unrolled": {}, "patches": QUICK
}  # fmt: skip
ONCE = {**QUICK, "xla_backend_optimization_level": 0}  # for what runs once: compiled in a third of the time


def accepted(**options: bool | int) -> dict[str, bool | int] | None:
    """Options of the compiler, where this version of XLA knows those that are used here, and these."""
    if not options:
        return None
    names = tuple(sorted({**QUICK, **options}))
    return options if _known(names) else None


@cache
def _known(names: tuple[str, ...]) -> bool:
    """Tried once for all values: a trial takes 0.03 s."""
    try:
        jax.jit(lambda: 0, compiler_options={name: QUICK.get(name, 0) for name in names}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
