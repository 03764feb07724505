"""What one evaluation of a score costs, from a trace of it: nothing is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Cost:
    """One forward pass over one example. `unroll` says that a CPU prefers its examples one after another to a vmap."""

    flops: float
    activation_bytes: int
    unroll: bool


def cost_of(function: Callable, *arguments: Any) -> Cost:
    """FLOPs, bytes of all intermediate values, and whether there are convolutions, which vmap turns into slow ones."""
    try:
        flops = float(jax.jit(function).lower(*arguments).cost_analysis()["flops"])
    except (TypeError, KeyError, NotImplementedError):
        flops = 0.0
    jaxpr = jax.make_jaxpr(function)(*arguments)
    return Cost(flops, _intermediate_bytes(jaxpr), "conv_general_dilated" in str(jaxpr))


def _intermediate_bytes(jaxpr: Any) -> int:
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    total = 0
    for equation in inner.eqns:
        nested = [value for value in equation.params.values() if hasattr(value, "eqns") or hasattr(value, "jaxpr")]
        if nested:
            total += equation.params.get("length", 1) * sum(_intermediate_bytes(value) for value in nested)
        else:
            sized = [v.aval for v in equation.outvars if hasattr(v.aval, "size")]
            total += sum(aval.size * getattr(aval.dtype, "itemsize", 4) for aval in sized)
    return total
