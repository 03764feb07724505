"""Bounds on log p(x) for a model with latent variables, as scores for `nfk.vae`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class ImportanceWeighted:
    """log (1/K) sum_k exp w_k,  w_k = log p(x, h_k) - log q(h_k|x),  h_k ~ q(h|x)."""

    log_weight: Callable
    samples: int

    def __call__(self, params: Any, example: Any, key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, self.samples)
        weights = jax.vmap(lambda k: self.log_weight(params, example, k))(keys)
        return jax.nn.logsumexp(weights) - jnp.log(self.samples)


def importance_weighted(log_weight: Callable, samples: int) -> ImportanceWeighted:
    """The importance-weighted bound with K = `samples`: `nfk.vae(nfk.importance_weighted(log_weight, 50), params)`.

    `log_weight(params, example, key)` is log p(x, h) - log q(h|x) for one h drawn with the key. The bound never falls,
    in expectation, as K grows, and tends to log p(x). Its gradient in the generative parameters (choose them with
    `parameters="decoder/*"`) is sum_k softmax(w)_k grad log p(x, h_k), which tends to the true score. K forward and
    backward passes per example.

    Args:
        log_weight: `log_weight(params, example, key) -> scalar`, log p(x, h) - log q(h|x) for one draw of h.
        samples: K, the number of draws.
    """
    if not callable(log_weight):
        raise TypeError("log_weight must be a function: log_weight(params, example, key) -> scalar")
    if isinstance(samples, bool) or not isinstance(samples, (int, np.integer)) or samples < 1:
        raise ValueError(f"samples={samples!r} must be a whole number, at least 1: K of the importance-weighted bound")
    return ImportanceWeighted(log_weight, int(samples))
