"""What the package asks of a trained network, whatever it is written in: a score, evaluated and differentiated.

The meaning of the score (which density, which moments) is not here but in `model`; neither knows the other's inside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Protocol

import jax
from jaxtyping import Float

from nfk.layout import Layout

Params = Any
Example = Any
Batch = Any  # examples with a leading axis
Rows = list[Any]  # gradients leaf by leaf: arrays of (rows, size of the leaf), or lists of such arrays
Noise = Literal["none", "common", "own"]
Batching = Literal["vmap", "unrolled", "patches"]  # how the gradients of a microbatch are computed together


class NotAScore(ValueError):
    """The function of a model does not return what its family needs."""


class NetworkChanged(RuntimeError):
    """The weights are not those that a model was made of."""


@dataclass(frozen=True)
class Cost:
    """One forward pass over one example; `patch_bytes` are more that its convolutions take as patches, 0 without any;
    `microbatch` is how many gradients are worth computing at once however large they are, and `microbatch_bytes` those
    of the gradients that are computed at once where they are small: they stay in the cache and off fresh pages.
    `operations` are those of the program that a compiler gets, 0 where nothing is compiled."""

    flops: float
    activation_bytes: int
    patch_bytes: int = 0
    microbatch: int = 4
    microbatch_bytes: int = 4 * 2**20
    operations: int = 0


class Place(Protocol):
    """Where derivatives are computed, where that is not JAX's default: the examples of a batch may be shared out.

    A `function` takes `outputs`, then the `same` arguments for all examples, then what follows here.
    """

    def share(self, tree: Any) -> Any:
        """Arrays that every example needs."""
        ...

    def gradients(self, function: Callable, outputs: int, same: tuple, batch: Batch) -> Rows:
        """`function(outputs, *same, batch)`, with rows for the examples of the batch."""
        ...

    def forward(self, function: Callable, outputs: int, same: tuple, columns: list, batch: Batch) -> Any:
        """`function(outputs, *same, columns, batch)`, with rows for the examples and columns for the tangents."""
        ...

    def reverse(self, function: Callable, outputs: int, same: tuple, weights: Any, batch: Batch) -> Any:
        """`function(outputs, *same, weights, batch)`, a sum over the examples."""
        ...


class Differentiator(ABC):
    """The derivatives of one network's score at its trained parameters, for one key of its randomness.

    What the engines ask for, and all that they ask for: whatever a network is written in, it has these three.
    """

    layout: Layout
    outputs: int
    writes: ClassVar[bool] = False  # whether it has `rows_into`
    raw: bool = False  # whether it gives `gradients` on the host, for whoever keeps them to normalise on the way

    @abstractmethod
    def rows(self, mean: list, scale: list, batch: Batch) -> Rows:
        """s * (g(x) - z) for a batch, leaf by leaf; z and s come cut into one piece per leaf.

        The arrays may be used again by the next call but one.
        """

    def gradients(self, batch: Batch) -> Rows:
        """g(x) for a batch, leaf by leaf."""
        raise NotImplementedError

    def rows_into(self, place: Float[Any, "rows P"], mean: list, scale: list, batch: Batch) -> None:
        """The same rows, written into memory of the host, or into the `room` of a space of the network's own."""
        raise NotImplementedError

    def factors(self, batch: Batch) -> tuple[dict, list]:
        """Raw gradients of a batch in factors (see `model.factors`), where the score is a program that can be read."""
        raise TypeError("gradients in factors need a score that JAX can trace: use the gradients themselves")

    @abstractmethod
    def forward_product(self, columns: list, batch: Batch) -> Float[Any, "rows U"]:
        """J M by JVP: `columns` are U tangents as parameter leaves with a leading axis."""

    @abstractmethod
    def reverse_product(self, weights: Float[Any, "rows U"], batch: Batch) -> Float[Any, "P U"]:
        """J' W by VJP."""


@dataclass(frozen=True, eq=False)
class Network(ABC):
    """A score `s(params, example)` with trained parameters; `noise` says what its randomness depends on.

    "none": there is none; "common": all examples share one draw; "own": an example's draw depends on its bits.
    """

    params: Params
    noise: Noise
    note: ClassVar[str] = ""  # a line for the plan
    wrapping: ClassVar[str]  # how a function of a batch becomes one of an example, for error messages
    sampler: ClassVar[str]  # what a sampler takes, for error messages
    meshes: ClassVar[bool] = False  # whether its derivatives can be computed by several JAX devices together

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The parameters that take part, as one vector."""

    @abstractmethod
    def result(self, example: Example) -> Any:
        """What the score returns for one example, with `shape` and `dtype`; anything else where it is no array."""

    @abstractmethod
    def evaluate(self, example: Example, key: jax.Array) -> Any:
        """The score of one example."""

    @abstractmethod
    def jacobian(self, example: Example, key: jax.Array) -> list:
        """d score / d params for one example, leaf by leaf: the definition, which shares nothing with the fast path."""

    @abstractmethod
    def cost(self, example: Example) -> Cost:
        """What one evaluation of the score costs."""

    @abstractmethod
    def differentiate(
        self, key: jax.Array, outputs: int, batching: Batching = "vmap", device: Any = None
    ) -> Differentiator:
        """The derivatives of the score, for one key of its randomness, computed on `device` (a `Place`)."""

    @property
    def space(self) -> Any:
        """Where its gradients and blocks stay (a `Space`), or None: then JAX's own device decides."""
        return None

    def factored(self, example: Example) -> tuple[tuple[int, int, int], ...]:
        """Positions, inputs and outputs of each layer whose gradient has factors that pay (see `model.factors`)."""
        return ()

    def why_no_products(self, example: Example) -> str | None:
        """A reason why derivatives by JVP and VJP are not exact here, or None."""
        return None

    def __getstate__(self) -> dict:
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}  # not what can be made again
