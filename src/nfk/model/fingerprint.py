"""A hash of an example that is the same wherever it stands: for noise that depends on the example alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nfk.model.interface import Example


def fingerprint(example: Example) -> jax.Array:
    """A 32-bit hash of the example's bits, the same wherever it stands: exact integer arithmetic throughout."""
    total = jnp.uint32(2166136261)
    for leaf in jax.tree.leaves(example):
        leaf = jnp.asarray(leaf).reshape(-1)
        bits = (
            leaf.astype(jnp.uint32)
            if leaf.dtype == bool
            else jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{8 * leaf.dtype.itemsize}"))
        )
        words = bits.astype(jnp.uint32)
        if leaf.dtype.itemsize == 8:
            words = words ^ (bits >> 32).astype(jnp.uint32)
        place = jnp.arange(words.size, dtype=jnp.uint32)
        mixed = (words ^ (place * jnp.uint32(2654435761))) * jnp.uint32(2246822519)
        mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(3266489917)
        total = (total ^ jnp.sum(mixed ^ (mixed >> 13), dtype=jnp.uint32)) * jnp.uint32(16777619)
    return total
