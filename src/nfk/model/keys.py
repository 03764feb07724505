"""Random keys from a seed, without a program of XLA where it can be: several take longer to compile than a small fit
has."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np

from nfk.model.compiling import ONCE, accepted

LARGEST = 2**31 - 1  # a seed that 32 bits hold
THREEFRY = "threefry2x32"  # jax's generator, if no other is asked for
MASK, PARITY = 2**32 - 1, 0x1BD11BDA
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


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
    if isinstance(key, bool) or not hasattr(key, "shape"):
        raise TypeError(f"key={key!r} must be a whole number (a seed) or a jax key: key=0, say")
    return _split_program()(key)[1:]


def seeded(seed: int) -> jax.Array:
    """The same as `jax.random.key(seed)`."""
    return _of_seed(seed).whole


def _of_seed(seed: int) -> Keys:
    if 0 <= seed <= LARGEST and _is_default():
        whole = (0, seed)
        return Keys(*map(_wrapped, (whole, *(threefry(whole, (0, place)) for place in range(3)))))
    return _split_program()(jax.random.key(seed))


def _is_default() -> bool:
    """Whether jax makes keys of seeds as it does if nobody asks for anything else."""
    config: Any = jax.config  # whose attributes type checkers do not see, and which come and go with versions
    usual = getattr(config, "jax_threefry_partitionable", True) and not getattr(config, "jax_random_seed_offset", 0)
    return config.jax_default_prng_impl == THREEFRY and usual


def _wrapped(numbers: tuple[int, int]) -> jax.Array:
    return jax.random.wrap_key_data(jax.device_put(np.array(numbers, np.uint32)), impl=THREEFRY)


def threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """Threefry-2x32 with 20 rounds (Salmon et al., 2011), which is how jax splits its default keys: key number i is
    that of the counter (0, i). To compile it takes a third as long as a small fit through PyTorch (0.1 s)."""
    words = (*key, key[0] ^ key[1] ^ PARITY)
    x, y = (counter[0] + words[0]) & MASK, (counter[1] + words[1]) & MASK
    for turn in range(5):
        for bits in ROTATIONS[turn % 2]:
            x = (x + y) & MASK
            y = (y << bits | y >> (32 - bits)) & MASK ^ x
        x, y = (x + words[(turn + 1) % 3]) & MASK, (y + words[(turn + 2) % 3] + turn + 1) & MASK
    return x, y


@cache
def _split_program() -> Callable[[jax.Array], Keys]:
    return jax.jit(_split, compiler_options=accepted(**ONCE))


def _split(key: jax.Array) -> Keys:
    return Keys(key, *jax.random.split(key, 3))
