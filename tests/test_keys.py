"""Random keys from a seed."""

import jax
import numpy as np
import pytest

from nfk.model import keys, seeded, split_key


@pytest.mark.parametrize("seed", [0, 1, 7, 123456789, np.int64(3), 2**31 - 1, 2**31, 2**40, -2])
@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_a_seed_and_its_key_are_split_alike(seed, kind):
    """And as jax itself splits them, by whichever generator is the default now: saved fits rest on it."""
    before = jax.config.jax_default_prng_impl
    try:
        for now in ("threefry2x32", kind, "threefry2x32"):
            jax.config.update("jax_default_prng_impl", now)
            check_split(seed)
    finally:
        jax.config.update("jax_default_prng_impl", before)


@pytest.mark.parametrize(("option", "value"), [("jax_threefry_partitionable", False), ("jax_random_seed_offset", 5)])
def test_seeds_follow_what_jax_was_asked_for(option, value):
    before = getattr(jax.config, option)
    try:
        for now in (value, before):
            jax.config.update(option, now)
            check_split(3)
    finally:
        jax.config.update(option, before)


def check_split(seed):
    expected = jax.random.split(jax.random.key(int(seed)), 3)
    for found in (split_key(seed), split_key(jax.random.key(int(seed)))):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(jax.random.key_data(one), jax.random.key_data(other))
    whole = jax.random.key(int(seed))
    assert jax.random.key_impl(seeded(int(seed))) == jax.random.key_impl(whole)
    np.testing.assert_array_equal(jax.random.key_data(seeded(int(seed))), jax.random.key_data(whole))


def test_a_seed_needs_no_program(monkeypatch):
    monkeypatch.setattr(keys, "_split_program", None)
    assert len(split_key(11)) == 3
