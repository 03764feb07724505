"""A traced function, evaluated with some of its equations computed in another way.

The only module that uses `jax.extend`, JAX's documented way into its traced programs. What is not replaced is evaluated
by JAX as it stands, so every custom derivative rule stays in force. Programs inside a program (of `jit`, `checkpoint`,
`scan`, `cond`) are entered where they hold an equation that has a replacement; those with a derivative rule of their
own never are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import (
    ClosedJaxpr,
    DebugInfo,
    DropVar,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    jaxpr_as_fun,
    jaxprs_in_params,
)

__all__ = [
    "Computation", "Jaxpr", "JaxprEqn", "Literal", "Var", "as_it_stands", "equations", "evaluated", "flat", "rewritten",
]  # fmt: skip

Computation = Callable[..., Sequence]  # the results of an equation, from the values of its operands
Rule = Callable[[JaxprEqn], Computation | None]  # how an equation is computed instead; None leaves it alone


def rewritten(function: Callable, rule: Rule) -> Callable:
    """`function` with every equation replaced for which `rule` has a replacement. It is traced at each call."""

    def evaluate(*arguments: Any) -> Any:
        program, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        results = evaluated(program.jaxpr, program.consts, jax.tree.leaves(arguments), rule)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return evaluate


def evaluated(program: Jaxpr, constants: Sequence, values: Sequence, rule: Rule) -> list:
    """The results of a program for inputs `values`."""
    known = dict(zip((*program.constvars, *program.invars), (*constants, *values), strict=True))
    read = lambda atom: atom.val if isinstance(atom, Literal) else known[atom]  # noqa: E731
    for equation in program.eqns:
        compute = rule(equation) or _entered(equation, rule) or as_it_stands(equation)
        known.update(zip(equation.outvars, compute(*map(read, equation.invars)), strict=True))
    return [read(atom) for atom in program.outvars]


def flat(function: Callable) -> Callable:
    """`function` with no `jit` inside: one level of equations, so far as there is no loop or branch."""

    def inlined(equation: JaxprEqn) -> Computation | None:
        return _enter(equation.params["jaxpr"], inlined) if equation.primitive.name in ("jit", "pjit") else None

    return rewritten(function, inlined)


def equations(program: Jaxpr) -> Iterator[JaxprEqn]:
    """Every equation to which a rule may apply, in order."""
    for equation in program.eqns:
        yield equation
        if equation.primitive.name in _ENTERED:
            for inner in jaxprs_in_params(equation.params):
                yield from equations(inner)


def as_it_stands(equation: JaxprEqn) -> Computation:
    """One equation, evaluated by JAX."""
    inputs = list(dict.fromkeys(atom for atom in equation.invars if not isinstance(atom, Literal)))
    outputs = [variable for variable in equation.outvars if not isinstance(variable, DropVar)]
    names = DebugInfo("nfk", "one equation", None, None)
    single = jaxpr_as_fun(ClosedJaxpr(Jaxpr((), inputs, outputs, [equation], equation.effects, names), ()))

    def compute(*values: Any) -> list:
        known = {
            atom: value for atom, value in zip(equation.invars, values, strict=True) if not isinstance(atom, Literal)
        }
        results = iter(single(*(known[atom] for atom in inputs)))
        return [None if isinstance(variable, DropVar) else next(results) for variable in equation.outvars]

    return compute


def _entered(equation: JaxprEqn, rule: Rule) -> Computation | None:
    """A call whose program holds something to replace, with that replaced."""
    enter = _ENTERED.get(equation.primitive.name)
    if enter is None or not any(rule(inner) for part in jaxprs_in_params(equation.params) for inner in equations(part)):
        return None
    return enter(equation.params, rule)


def _enter(program: ClosedJaxpr | Jaxpr, rule: Rule) -> Computation:
    constants = getattr(program, "consts", ())
    return lambda *values: evaluated(getattr(program, "jaxpr", program), constants, values, rule)


def _enter_call(params: dict, rule: Rule) -> Computation:
    return _enter(params["jaxpr"], rule)


def _enter_checkpoint(params: dict, rule: Rule) -> Computation:
    return jax.checkpoint(_enter(params["jaxpr"], rule), prevent_cse=params["prevent_cse"], policy=params["policy"])


def _enter_cond(params: dict, rule: Rule) -> Computation:
    branches = [_enter(branch, rule) for branch in params["branches"]]
    return lambda index, *values: jax.lax.switch(index, branches, *values)


def _enter_scan(params: dict, rule: Rule) -> Computation:
    body, split, carried = _enter(params["jaxpr"], rule), params["num_consts"], params["num_carry"]

    def compute(*values: Any) -> list:
        constants, carry, over = values[:split], values[split : split + carried], values[split + carried :]

        def step(carry: tuple, slices: tuple) -> tuple[tuple, tuple]:
            results = body(*constants, *carry, *slices)
            return tuple(results[:carried]), tuple(results[carried:])

        options = {name: params[name] for name in ("length", "reverse", "unroll")}
        carry, stacked = jax.lax.scan(step, tuple(carry), tuple(over), **options)
        return [*carry, *stacked]

    return compute


_ENTERED: dict[str, Callable[[dict, Rule], Computation]] = {
    "jit": _enter_call, "pjit": _enter_call, "checkpoint": _enter_checkpoint, "remat2": _enter_checkpoint,
    "cond": _enter_cond, "scan": _enter_scan,
}  # fmt: skip
