"""Random keys from a seed."""

import jax
import numpy as np
import pytest

from nfk.model import seeded, split_key


@pytest.mark.parametrize("seed", [0, 7, np.int64(3), 2**31 - 1, 2**31, 2**40, -2])
def test_a_seed_and_its_key_are_split_alike(seed):
    """And as jax itself splits them: saved fits rest on it."""
    expected = jax.random.split(jax.random.key(int(seed)), 3)
    for found in (split_key(seed), split_key(jax.random.key(int(seed)))):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(jax.random.key_data(one), jax.random.key_data(other))
    np.testing.assert_array_equal(jax.random.key_data(seeded(int(seed))), jax.random.key_data(jax.random.key(int(seed))))
