"""Random keys from a seed, by one small program: several take longer to compile than a small fit has."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import numpy as np

from nfk.model.compiling import ONCE, accepted

LARGEST = 2**31 - 1  # a seed that 32 bits hold


class Keys(NamedTuple):
    """The key of a fit, split once by purpose: the start of the SVD, the model samples, the randomness of the score."""

    whole: jax.Array
    start: jax.Array
    sample: jax.Array
    score: jax.Array


def split_key(key: int | jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A seed or a key, split once by purpose: the start of the SVD, the model samples, the randomness of the score."""
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        return _of_seed(int(key))[1:]
    if not hasattr(key, "shape"):
        raise TypeError(f"key={key!r} must be a whole number (a seed) or a jax key: key=0, say")
    return _split_program()(key)[1:]


def seeded(seed: int) -> jax.Array:
    """The same as `jax.random.key(seed)`."""
    return _of_seed(seed).whole


def _of_seed(seed: int) -> Keys:
    if 0 <= seed <= LARGEST:
        return _seed_program(jax.config.jax_default_prng_impl)(np.int32(seed))
    return _split_program()(jax.random.key(seed))


@cache
def _seed_program(kind: str) -> Callable[[np.int32], Keys]:
    """For each kind of generator: a compiled program does not see that another one has become the default."""
    return jax.jit(lambda seed: _split(jax.random.key(seed, impl=kind)), compiler_options=accepted(**ONCE))


@cache
def _split_program() -> Callable[[jax.Array], Keys]:
    return jax.jit(_split, compiler_options=accepted(**ONCE))


def _split(key: jax.Array) -> Keys:
    return Keys(key, *jax.random.split(key, 3))
