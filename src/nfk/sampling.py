"""Samples of an energy-based model by Langevin dynamics in a box, and whether they can be trusted.

x <- x + step grad_x score(x) + sqrt(2 step temperature) noise, reflected at the walls of the box.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nfk.model import Model, split_key
from nfk.model.in_jax import traceable


class ChainWarning(UserWarning):
    """The samples of a chain lie where the data do not."""


@dataclass(frozen=True)
class Diagnosis:
    """Where a chain ended, against the data: scores of either, and how much of the chain lies outside."""

    data_scores: tuple[float, float]
    chain_scores: tuple[float, float]
    share_outside: float
    share_at_walls: float

    @property
    def left_the_data(self) -> bool:
        """More than half of the samples have a score that no example of the data has."""
        return self.share_outside > 0.5

    def __str__(self) -> str:
        return (
            f"{self.share_outside:.0%} of the chain's samples score outside the data's range: from "
            f"{self.chain_scores[0]:.4g} to {self.chain_scores[1]:.4g}, the data from {self.data_scores[0]:.4g} to "
            f"{self.data_scores[1]:.4g}; {self.share_at_walls:.0%} of their numbers lie at the walls of the box"
        )


class Langevin:
    """`sample(key, n)`: n chains of `steps` steps, each from an example of the data drawn at random.

    A pass costs `steps` gradients in x per sample; nothing is stored. `diagnose` says how far a chain went.
    """

    def __init__(
        self, model: Model, X: Any, steps: int, step_size: float, temperature: float, low: float, high: float
    ) -> None:
        self.model, self.X = model, X
        self.steps, self.step_size, self.temperature = steps, step_size, temperature
        self.low, self.high = low, high
        self._run = jax.jit(self._chains)
        self._scores = jax.jit(jax.vmap(self._score, in_axes=(None, 0)))
        self._warned = False

    def _score(self, params: Any, example: jax.Array) -> jax.Array:
        return traceable(self.model).score_of(params, example, jax.random.key(0))

    def _chains(self, params: Any, start: jax.Array, key: jax.Array) -> jax.Array:
        gradient = jax.vmap(jax.grad(self._score, argnums=1), in_axes=(None, 0))
        step = langevin_step(lambda x: gradient(params, x), self.step_size, self.temperature, self.low, self.high)
        return jax.lax.fori_loop(0, self.steps, lambda i, x: step(x, jax.random.fold_in(key, i)), start)

    def _starts(self, key: jax.Array, count: int) -> np.ndarray:
        rows = np.sort(np.asarray(jax.random.randint(key, (count,), 0, len(self.X))))
        return np.asarray(self.X[rows])

    def __call__(self, key: jax.Array, count: int) -> jax.Array:
        start_key, chain_key = jax.random.split(key)
        starts = self._starts(start_key, count)
        ends = self._run(self.model.params, starts, chain_key)
        if not self._warned:
            found = self._compare(starts, ends)
            if found.left_the_data:
                self._warned = True
                warnings.warn(
                    f"{found}. Expectations over such samples say little of the data: take expectation='data', a "
                    "smaller step_size or temperature, or a network trained as an energy model",
                    ChainWarning,
                    stacklevel=2,
                )
        return ends

    def diagnose(self, count: int = 256, key: Any = 0) -> Diagnosis:
        """Run `count` chains and compare their ends with the examples they started from."""
        start_key, chain_key, _ = split_key(key)
        starts = self._starts(start_key, count)
        return self._compare(starts, self._run(self.model.params, starts, chain_key))

    def _compare(self, starts: np.ndarray, ends: jax.Array) -> Diagnosis:
        data = np.asarray(self._scores(self.model.params, starts))
        chain = np.asarray(self._scores(self.model.params, ends))
        places = np.asarray(ends)
        edge = 1e-3 * (self.high - self.low)
        outside = ~((chain >= data.min()) & (chain <= data.max()))
        return Diagnosis(
            data_scores=(float(data.min()), float(data.max())),
            chain_scores=(float(chain.min()), float(chain.max())),
            share_outside=float(outside.mean()),
            share_at_walls=float(((places <= self.low + edge) | (places >= self.high - edge)).mean()),
        )


def langevin_step(gradient: Any, step_size: float, temperature: float, low: float, high: float) -> Any:
    """One step `(x, key) -> x` of stochastic-gradient Langevin dynamics (blackjax), reflected into [low, high]."""
    try:
        import blackjax
    except ImportError as error:
        raise ImportError("Langevin sampling uses blackjax: pip install blackjax") from error
    sgld: Any = blackjax.sgld(lambda x, _: gradient(x))
    return lambda x, key: reflected(sgld.step(key, x, None, step_size, temperature), low, high)


def reflected(x: jax.Array, low: float, high: float) -> jax.Array:
    """x folded back into [low, high] at its walls, as often as needed: the uniform density stays uniform."""
    width = high - low
    place = jnp.mod(x - low, 2 * width)
    return low + jnp.minimum(place, 2 * width - place)


def langevin(
    model: Model,
    X: Any,
    *,
    steps: int = 100,
    step_size: float = 1e-3,
    temperature: float = 1.0,
    low: float | None = None,
    high: float | None = None,
) -> Langevin:
    """A sampler for `sample=`: Langevin dynamics on the score of `model`, started at examples of `X`.

    `nfk.energy(f, params, sample=nfk.langevin(nfk.energy(f, params), X))`. The chain is kept in the box [low, high],
    by default the range of X, since a network that was not trained as an energy model has scores that grow without
    bound away from the data. `temperature` below one makes a colder chain (JEM's is 5e-5 with step_size=1). A
    `ChainWarning` says when most samples have scores that the data do not have.

    Args:
        model: the energy model.
        X: examples to start the chains from, an array.
        steps: of each chain.
        step_size: of each step.
        temperature: of the noise; below 1, chains stay nearer to the data.
        low: of the box; the least value in X by default.
        high: of the box; the largest value in X by default.
    """
    X = np.asarray(X) if not hasattr(X, "shape") else X
    if not np.issubdtype(X.dtype, np.floating):
        raise TypeError(f"X has dtype {X.dtype}: Langevin dynamics moves real numbers; pass floats")
    traceable(model)
    if model.row_per_output:
        raise ValueError("nfk.network has no scalar score to climb: pass an nfk.energy or nfk.classifier model")
    for name, value in (("steps", steps), ("step_size", step_size)):
        if not value > 0:
            raise ValueError(f"{name}={value!r} must be positive")
    if not temperature >= 0:
        raise ValueError(f"temperature={temperature!r} must be 0 or more")
    low = float(X.min()) if low is None else low
    high = float(X.max()) if high is None else high
    if not low < high:
        raise ValueError(f"low={low} and high={high} enclose nothing: low must be below high")
    return Langevin(model, X, int(steps), step_size, temperature, low, high)
