"""A network written in JAX: its score evaluated and differentiated. The only module that differentiates JAX.

Everything is compiled once per batch shape, with parameters, moments and examples passed as arguments. Compiled
functions are kept by what they depend on, the score and the layout of its parameters, so that another model of the same
function compiles nothing again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from types import FunctionType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from nfk.layout import KEY, Layout, PathFilter, normalised
from nfk.model.compiling import EFFORT, ONCE, accepted
from nfk.model.factors import layers_of, split_gradients
from nfk.model.fingerprint import fingerprint
from nfk.model.interface import Batch, Batching, Cost, Differentiator, Example, Network, Params, Place, Rows
from nfk.model.patches import with_patches, with_products
from nfk.model.program import flat
from nfk.model.tracing import cost_of

HALF = ("bfloat16", "float16")


@dataclass(frozen=True, eq=False)
class JaxNetwork(Network):
    """`score(params, example, key)` written in JAX.

    Parameters in half precision are read as float32, so that a derivative is exact in every engine; a function that
    insists on half precision gets them as they are.
    """

    score: Callable = field(kw_only=True)
    parameters: PathFilter = field(default=None, kw_only=True)
    wrapping: ClassVar[str] = "lambda params, x: network(params, x[None])[0]"
    sampler: ClassVar[str] = "sample(key, n)"
    meshes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for path, leaf in zip(self.layout.paths, jax.tree.leaves(self.params), strict=True):
            if _is_float(leaf) and not np.isfinite(np.asarray(leaf)).all():
                raise ValueError(f"params[{path!r}] holds NaN or infinity: the network did not train or did not load")

    @cached_property
    def layout(self) -> Layout:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Layout.of(self.params, self.parameters)

    @cached_property
    def _functions(self) -> Functions:
        try:
            shared = _is_pure(self.score) and hash((self.score, self.layout)) is not None
        except TypeError:
            shared = False
        return (_shared_functions if shared else Functions)(self.score, self.layout, self.noise == "own")

    @cached_property
    def _insists(self) -> dict[str, bool]:
        """Whether the function insists on half precision: known once it was tried."""
        return {}

    def _leaves(self) -> tuple[list, list]:
        """The parameters that take part, and the others."""
        chosen, others = self.layout.split(self.params)
        if any(self._insists.values()):
            return chosen, others
        return [_widened(leaf) for leaf in chosen], [_widened(leaf) for leaf in others]

    def score_of(self, params: Params, example: Example, key: jax.Array) -> jax.Array:
        """The score, with randomness from `key` (and from the example, if it has noise of its own)."""
        return self._functions.score_of(params, example, key)

    def result(self, example: Example) -> Any:
        kind = kind_of(example)
        if kind not in self._insists and set(HALF) & set(self.layout.dtypes):
            self._insists[kind] = self._fails(example, kind)
        return self._functions.result(*self._leaves(), example, kind)

    def _fails(self, example: Example, kind: str) -> bool:
        """Whether the function takes its half-precision parameters as they are, but not as float32."""
        try:
            self._functions.result(*self._leaves(), example, kind)
        except Exception:
            try:
                self._functions.result(*self.layout.split(self.params), example, kind)
            except Exception:
                return False
            return True
        return False

    def why_no_products(self, example: Example) -> str | None:
        self.result(example)
        if any(self._insists.values()):
            return "the network insists on parameters in half precision, in which tangents would be rounded"
        return None

    def evaluate(self, example: Example, key: jax.Array) -> Any:
        return self._functions.evaluate(*self._leaves(), example, key)

    def jacobian(self, example: Example, key: jax.Array) -> list:
        return self._functions.jacobian(*self._leaves(), example, key)

    def cost(self, example: Example) -> Cost:
        return self._functions.cost(*self._leaves(), example, kind_of(example))

    def factored(self, example: Example) -> tuple[tuple[int, int, int], ...]:
        chosen, others = self._leaves()
        program = jax.make_jaxpr(flat(self._functions._evaluate))(chosen, others, example, jax.random.key(0))
        layers = layers_of(program.jaxpr, len(chosen))
        return tuple((layer.positions, layer.inputs, layer.outputs) for layer in layers)

    def differentiate(
        self, key: jax.Array, outputs: int, batching: Batching = "vmap", device: Place | None = None
    ) -> Compiled:
        chosen, others = self._leaves()
        if device is None:
            chosen = jax.device_put(chosen)
        else:
            chosen, others, key = device.share((chosen, others, key))
        return Compiled(self._functions, chosen, others, key, outputs, batching, device)


@dataclass(frozen=True)
class Compiled(Differentiator):
    """The derivatives of a score written in JAX.

    `batching` is how a microbatch is differentiated, a choice of cost alone. "vmap" makes grouped convolutions of the
    per-example gradients of weights, which are slow on a CPU; "patches" makes matrix products of them; "unrolled"
    writes the examples one after another, so that there is nothing to group.
    """

    functions: Functions
    chosen: list
    others: list
    key: jax.Array
    outputs: int
    batching: Batching
    place: Place | None = None

    @property
    def layout(self) -> Layout:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.functions.layout

    @property
    def _same(self) -> tuple:
        return self.chosen, self.others, self.key

    @property
    def raw(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """On the host. Rows that XLA normalises are written and read once more (measured: 2.0 ms for an example of the
        critic of 613,761 parameters, 1.6 without), by a program for every leaf that takes its time to compile."""
        return self.place is None

    def gradients(self, batch: Batch) -> Rows:
        return self.functions.gradients[self.batching](self.outputs, *self._same, batch)

    def rows(self, mean: list, scale: list, batch: Batch) -> Rows:
        if self.place is None:
            return normalised(jax.tree.map(np.asarray, self.gradients(batch)), mean, scale)
        same = (*self._same, mean, scale)  # the place compiles what is around it, too
        return self.place.gradients(self.functions.rows[self.batching], self.outputs, same, batch)

    def factors(self, batch: Batch) -> tuple[dict, list]:
        """Raw gradients in factors, see `model.factors`: the leaves (examples, outputs, size) that have none, by their
        place, and for each layer a (examples, T, A) and d (examples, outputs, T, D)."""
        return self.functions.factors[self.batching](self.outputs, *self._same, batch)

    def forward_product(self, columns: list, batch: Batch) -> jax.Array:
        if self.place is not None:
            return self.place.forward(self.functions.forward, self.outputs, self._same, columns, batch)
        return self.functions.forward(self.outputs, *self._same, columns, batch)

    def reverse_product(self, weights: jax.Array, batch: Batch) -> jax.Array:
        if self.place is not None:
            return self.place.reverse(self.functions.reverse, self.outputs, self._same, weights, batch)
        return self.functions.reverse(self.outputs, *self._same, weights, batch)


class Functions:
    """The compiled functions of one score and one layout of its parameters."""

    def __init__(self, score: Callable, layout: Layout, own_noise: bool) -> None:
        self.score, self.layout, self.own_noise = score, layout, own_noise
        self.evaluate = jax.jit(self._evaluate, compiler_options=accepted(**ONCE))
        self.jacobian = jax.jit(self._jacobian)
        ways = {"vmap": self._gradients, "unrolled": self._unrolled_gradients, "patches": self._patch_gradients}
        self.gradients = {
            batching: jax.jit(function, static_argnums=0, compiler_options=accepted(**EFFORT[batching]))
            for batching, function in ways.items()
        }
        self.rows = {
            batching: jax.jit(partial(_rows, function), static_argnums=0) for batching, function in ways.items()
        }
        self.factors = {
            batching: jax.jit(self._factors, static_argnums=0, compiler_options=accepted(**EFFORT[batching]))
            for batching in ways
        }
        self.forward, self.reverse = (
            jax.jit(function, static_argnums=0) for function in (self._forward, self._reverse)
        )
        self._results: dict[tuple, Any] = {}
        self._costs: dict[str, Cost] = {}

    def score_of(self, params: Params, example: Example, key: jax.Array) -> jax.Array:
        if self.own_noise:
            key = jax.random.fold_in(key, fingerprint(example))
        return self.score(params, example, key)

    def result(self, chosen: list, others: list, example: Example, kind: str) -> Any:
        """What the score returns, as an abstract array; looked at once for examples of one kind."""
        known = (kind, *(str(jnp.result_type(leaf)) for leaf in chosen))
        if known not in self._results:
            self._results[known] = jax.eval_shape(self._evaluate, chosen, others, example, jax.random.key(0))
        return self._results[known]

    def cost(self, chosen: list, others: list, example: Example, kind: str) -> Cost:
        if kind not in self._costs:
            self._costs[kind] = cost_of(self._evaluate, chosen, others, example, jax.random.key(0))
        return self._costs[kind]

    def _evaluate(self, chosen: list, others: list, example: Example, key: jax.Array) -> jax.Array:
        return self.score_of(self.layout.join(chosen, others), example, key)

    def _jacobian(self, chosen: list, others: list, example: Example, key: jax.Array) -> list:
        return jax.jacrev(lambda leaves: self._evaluate(leaves, others, example, key))(chosen)

    def _batch_scores(self, others: list, key: jax.Array, batch: Batch) -> Callable[[list], jax.Array]:
        """All scores of a batch in one vector, as a function of the chosen parameters."""
        return lambda chosen: jax.vmap(lambda x: self._evaluate(chosen, others, x, key))(batch).reshape(-1)

    def _example_rows(
        self, evaluate: Callable, outputs: int, chosen: list, others: list, key: jax.Array, example: Example
    ) -> list:
        """g(x), leaf by leaf: each (outputs, size of the leaf)."""
        scores = lambda leaves: evaluate(leaves, others, example, key).reshape(outputs)  # noqa: E731
        gradient = jax.grad(lambda leaves: scores(leaves)[0])(chosen) if outputs == 1 else jax.jacrev(scores)(chosen)
        sizes = self.layout.sizes
        return [g.reshape(outputs, p).astype(self.layout.dtype) for g, p in zip(gradient, sizes, strict=True)]

    def _gradients(self, outputs: int, *arguments: Any) -> Rows:
        return self._mapped_gradients(self._evaluate, outputs, *arguments)

    def _patch_gradients(self, outputs: int, *arguments: Any) -> Rows:
        return self._mapped_gradients(with_patches(self._evaluate), outputs, *arguments)

    def _mapped_gradients(
        self, evaluate: Callable, outputs: int, chosen: list, others: list, key: jax.Array, batch: Batch
    ) -> Rows:
        own = lambda example: self._example_rows(evaluate, outputs, chosen, others, key, example)  # noqa: E731
        leaves = jax.vmap(own)(batch)
        return [leaf.reshape(leaf.shape[0] * leaf.shape[1], leaf.shape[2]) for leaf in leaves]

    def _unrolled_gradients(self, outputs: int, chosen: list, others: list, key: jax.Array, batch: Batch) -> Rows:
        size = len(jax.tree.leaves(batch)[0])
        examples = [jax.tree.map(lambda leaf, i=i: leaf[i], batch) for i in range(size)]
        evaluate = with_products(self._evaluate)
        parts = [self._example_rows(evaluate, outputs, chosen, others, key, example) for example in examples]
        return [list(leaves) for leaves in zip(*parts, strict=True)]

    def _factors(self, outputs: int, chosen: list, others: list, key: jax.Array, batch: Batch) -> tuple[dict, list]:
        return jax.vmap(lambda x: split_gradients(self._evaluate, outputs, chosen, others, key, x))(batch)

    def _forward(
        self, outputs: int, chosen: list, others: list, key: jax.Array, columns: list, batch: Batch
    ) -> jax.Array:
        scores = self._batch_scores(others, key, batch)
        columns = [tangent.astype(leaf.dtype) for tangent, leaf in zip(columns, chosen, strict=True)]
        return jax.vmap(lambda tangent: jax.jvp(scores, (chosen,), (tangent,))[1], out_axes=1)(columns)

    def _reverse(
        self, outputs: int, chosen: list, others: list, key: jax.Array, weights: jax.Array, batch: Batch
    ) -> jax.Array:
        values, pullback = jax.vjp(self._batch_scores(others, key, batch), chosen)
        leaves = jax.vmap(lambda w: pullback(w.astype(values.dtype))[0], in_axes=1)(weights)
        sizes = self.layout.sizes
        flat = [g.reshape(weights.shape[1], p).astype(self.layout.dtype) for g, p in zip(leaves, sizes, strict=True)]
        return jnp.concatenate(flat, axis=1).T


def _rows(gradients: Callable, outputs: int, *arguments: Any) -> Rows:
    """s * (g(x) - z), leaf by leaf."""
    *same, mean, scale, batch = arguments
    return normalised(gradients(outputs, *same, batch), mean, scale)


_shared_functions = lru_cache(maxsize=64)(Functions)


def _is_pure(score: object) -> bool:
    """A plain function, or a score made of one: equal ones compute the same. A method may depend on its object."""
    function = getattr(score, "function", score)
    return isinstance(function, FunctionType)


def kind_of(example: Example) -> str:
    """Structure, shapes and types of an example, and the precision in which JAX would compute with it."""
    leaves, structure = jax.tree.flatten(example)
    shapes = [(np.shape(leaf), str(jnp.result_type(leaf))) for leaf in leaves]
    return f"{structure} {shapes} {jax.dtypes.canonicalize_dtype(np.float64)}"


def traceable(model: Any) -> JaxNetwork:
    """The network of a model, where JAX can trace its score."""
    if not isinstance(model.network, JaxNetwork):
        raise TypeError(f"nfk.{model.family} is written in torch, and this needs a score that JAX can trace")
    return model.network


def _widened(leaf: Any) -> Any:
    return leaf.astype(np.float32) if str(getattr(leaf, "dtype", "")) in HALF else leaf


def _is_float(leaf: Any) -> bool:
    dtype = jnp.result_type(leaf)
    return str(dtype) != KEY and jnp.issubdtype(dtype, jnp.floating)
