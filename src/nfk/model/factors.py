"""The gradient of a layer's weights in two factors, which are never multiplied.

A dense layer or a convolution sees T positions; its weights (A x D) have the gradient

    G_x = sum over positions t of  a_xt d_xt'          a: what the weights meet,  d: the derivative in what they give

so that two examples have the inner product

    <G_x, G_y> = sum over positions s, t of (a_xs . a_yt) (d_xs . d_yt)

which costs T^2 (A + D) operations where that of two gradients costs A D, and a T-th of the room or less. It holds for a
weight that is used once. One that is used twice (shared, tied, or in a loop) has a sum of two products for a gradient,
whose cross terms are not in the above: it takes part by its gradient, as biases and all other parameters do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax

from nfk.model.patches import is_convolution, is_transposed, sides, window_of
from nfk.model.program import Jaxpr, JaxprEqn, Literal, Var, as_it_stands, evaluated, flat

VIEWS = ("reshape", "transpose", "squeeze", "rev", "copy")  # the same numbers in another order


@dataclass(frozen=True)
class Layer:
    """A parameter, by its place among the leaves, and the one equation that uses it, as its operand `side`."""

    leaf: int
    equation: JaxprEqn
    side: int
    positions: int
    inputs: int
    outputs: int

    @property
    def pays(self) -> bool:
        """Whether an inner product of two gradients costs less by its factors."""
        return self.positions**2 * (self.inputs + self.outputs) < self.inputs * self.outputs

    def factors(self, other: jax.Array, derivative: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Of one example: a (T, A) and d (T, D), from the other operand and the derivative in the result."""
        params = self.equation.params
        if self.equation.primitive.name == "dot_general":
            (contracted, _) = params["dimension_numbers"]
            free = [axis for axis in range(other.ndim) if axis not in contracted[1 - self.side]]
            other = other.transpose(*free, *contracted[1 - self.side])
            first = derivative.reshape(*((self.positions, -1) if self.side == 1 else (-1, self.positions)))
            return other.reshape(self.positions, -1), first if self.side == 1 else first.T
        shape = self.equation.invars[1].aval.shape
        seen, beside = sides(other, derivative, shape, params)
        examples, window, channels = seen.shape[:3]
        seen = seen.reshape(examples, window * channels, -1).swapaxes(1, 2).reshape(self.positions, -1)
        beside = beside.reshape(*beside.shape[:2], -1).swapaxes(1, 2).reshape(self.positions, -1)
        return (beside, seen) if is_transposed(params) else (seen, beside)


def layers_of(program: Jaxpr, leaves: int) -> list[Layer]:
    """The layers among the first `leaves` inputs for which factors pay."""
    uses = _uses(program)
    found = (_layer(index, program.invars[index], uses) for index in range(leaves))
    return [layer for layer in found if layer is not None and layer.pays]


def split_gradients(
    evaluate: Callable, outputs: int, chosen: Sequence, others: Sequence, key: jax.Array, example: Any
) -> tuple[dict[int, jax.Array], list[tuple[jax.Array, jax.Array]]]:
    """Of one example: gradients of the leaves without factors, each (outputs, size), by their place; and the factors of
    every layer, a (T, A) and d (outputs, T, D)."""
    arguments = (list(chosen), list(others), example, key)
    closed = jax.make_jaxpr(flat(evaluate))(*arguments)
    layers, values = layers_of(closed.jaxpr, len(chosen)), jax.tree.leaves(arguments)
    rest = {index: chosen[index] for index in range(len(chosen)) if index not in {layer.leaf for layer in layers}}

    def scores(rest: dict[int, jax.Array], shifts: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
        inputs = [rest.get(index, value) for index, value in enumerate(values)]
        met: dict[int, jax.Array] = {}
        results = evaluated(closed.jaxpr, closed.consts, inputs, _shifted(layers, shifts, met))
        return results[0].reshape(outputs), [met[place] for place in range(len(layers))]

    zeros = [jax.numpy.zeros(v.shape, v.dtype) for v in (layer.equation.outvars[0].aval for layer in layers)]
    (gradients, derivatives), met = jax.jacrev(scores, argnums=(0, 1), has_aux=True)(rest, zeros)
    flattened = {index: leaf.reshape(outputs, -1) for index, leaf in gradients.items()}
    triples = zip(layers, met, derivatives, strict=True)
    return flattened, [_factors(layer, operand, derivative) for layer, operand, derivative in triples]


def _factors(layer: Layer, operand: jax.Array, derivatives: jax.Array) -> tuple[jax.Array, jax.Array]:
    """a and d for all outputs; `derivatives` has them on its first axis."""
    a, d = jax.vmap(layer.factors, in_axes=(None, 0))(operand, derivatives)
    return a[0], d


def _shifted(layers: Sequence[Layer], shifts: Sequence[jax.Array], met: dict[int, jax.Array]) -> Callable:
    """The rule that adds a shift to each layer's result, to differentiate in it, and notes what its weights met."""
    places = {id(layer.equation): place for place, layer in enumerate(layers)}

    def rule(equation: JaxprEqn) -> Callable | None:
        place = places.get(id(equation))
        if place is None:
            return None

        def compute(*operands: jax.Array) -> list[jax.Array]:
            met[place] = operands[1 - layers[place].side]
            return [as_it_stands(equation)(*operands)[0] + shifts[place]]

        return compute

    return rule


def _uses(program: Jaxpr) -> dict[Var, list[tuple[JaxprEqn | None, int]]]:
    """Where each variable is used: equation and operand; None for a result of the program."""
    uses: dict[Var, list[tuple[JaxprEqn | None, int]]] = {}
    for equation, atom, side in _atoms(program):
        if not isinstance(atom, Literal):
            uses.setdefault(atom, []).append((equation, side))
    return uses


def _atoms(program: Jaxpr) -> Iterator[tuple[JaxprEqn | None, Any, int]]:
    for equation in program.eqns:
        yield from ((equation, atom, side) for side, atom in enumerate(equation.invars))
    yield from ((None, atom, 0) for atom in program.outvars)


def _layer(leaf: int, variable: Var, uses: dict) -> Layer | None:
    """The one layer that a parameter, or a view of it, is the weight of."""
    places = uses.get(variable, [])
    if len(places) != 1 or places[0][0] is None:
        return None
    equation, side = places[0]
    if equation.primitive.name in VIEWS:
        return _layer(leaf, equation.outvars[0], uses)
    if len({atom.aval.dtype for atom in (*equation.invars, *equation.outvars) if hasattr(atom.aval, "dtype")}) != 1:
        return None
    if equation.primitive.name == "dot_general":
        return _dense(leaf, equation, side)
    return _convolution(leaf, equation) if is_convolution(equation) and side == 1 else None


def _dense(leaf: int, equation: JaxprEqn, side: int) -> Layer | None:
    contracted, batched = equation.params["dimension_numbers"]
    if batched[0]:
        return None
    weight, other = equation.invars[side].aval, equation.invars[1 - side].aval
    inputs = prod(weight.shape[axis] for axis in contracted[side])
    return Layer(leaf, equation, side, other.size // inputs, inputs, weight.size // inputs)


def _convolution(leaf: int, equation: JaxprEqn) -> Layer:
    numbers, (x, w), y = equation.params["dimension_numbers"], equation.invars, equation.outvars[0].aval
    channels, features = (w.aval.shape[numbers.rhs_spec[axis]] for axis in (1, 0))
    window = window_of(equation)
    if is_transposed(equation.params):
        return Layer(leaf, equation, 1, x.aval.size // channels, channels, window * features)
    return Layer(leaf, equation, 1, y.size // features, window * channels, features)
