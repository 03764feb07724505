"""What one evaluation of a score written in JAX costs, from a trace of it: nothing is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

from nfk.model.interface import Cost
from nfk.model.patches import patch_bytes


def cost_of(function: Callable, *arguments: Any) -> Cost:
    """FLOPs, bytes of all intermediate values and of the patches of the largest convolution, and operations."""
    try:
        flops = float(jax.jit(function).lower(*arguments).cost_analysis()["flops"])
    except (TypeError, KeyError, NotImplementedError):
        flops = 0.0
    program = jax.make_jaxpr(function)(*arguments)
    equations = list(_equations(program, 1))
    size = sum(times * _bytes_of(equation) for equation, times in equations)
    return Cost(flops, size, patch_bytes(program.jaxpr), operations=len(equations))


def _equations(jaxpr: Any, times: int) -> Iterator[tuple[Any, int]]:
    """Every equation that is no call itself, and how often it runs."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        inner = [value for value in equation.params.values() if hasattr(value, "eqns") or hasattr(value, "jaxpr")]
        for value in inner:
            yield from _equations(value, times * equation.params.get("length", 1))
        if not inner:
            yield equation, times


def _bytes_of(equation: Any) -> int:
    sized = [variable.aval for variable in equation.outvars if hasattr(variable.aval, "size")]
    return sum(aval.size * getattr(aval.dtype, "itemsize", 4) for aval in sized)
