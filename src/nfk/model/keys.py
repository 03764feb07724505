"""Random keys from a seed, by one small program: several take longer to compile than a small fit has."""

from __future__ import annotations

from functools import cache, partial
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
    return _programs().split(key)[1:]


def seeded(seed: int) -> jax.Array:
    """The same as `jax.random.key(seed)`."""
    return _of_seed(seed).whole


def _of_seed(seed: int) -> Keys:
    if 0 <= seed <= LARGEST:
        return _programs().seeded(np.int32(seed))
    return _programs().split(jax.random.key(seed))


class _Programs(NamedTuple):
    seeded: jax.stages.Wrapped
    split: jax.stages.Wrapped


@cache
def _programs() -> _Programs:
    once = partial(jax.jit, compiler_options=accepted(**ONCE))
    return _Programs(once(lambda seed: _split(jax.random.key(seed))), once(_split))


def _split(key: jax.Array) -> Keys:
    return Keys(key, *jax.random.split(key, 3))
