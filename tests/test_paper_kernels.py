"""Kernels from kept gradients, for experiments that vary one thing: each against `nfk.kernel` or numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nfk
from nfk import kernel
from reproduction.paper import bound_noise, raw

pytestmark = pytest.mark.reproduction
rng = np.random.default_rng(0)
PARAMS = {"w": rng.standard_normal((3, 4)).astype("float32"), "v": rng.standard_normal(4).astype("float32")}
X = rng.standard_normal((12, 3)).astype("float32")


def model(**options) -> nfk.Model:
    return nfk.density(lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], PARAMS, **options)


@pytest.mark.parametrize(("damping", "options"), [(1e-4, {}), (0.1, {"damping": 0.1}), (None, {"fisher": "identity"})])
def test_the_sum_over_arrays_is_the_dense_kernel(damping, options):
    made = raw.summed(raw.gradients(model(), X), raw.layers(model()), damping, columns=3)
    np.testing.assert_allclose(made.total, kernel.gram(model(**options), X), rtol=1e-4, atol=1e-5)
    assert sum(made.traces.values()) == pytest.approx(np.trace(made.total))
    assert np.trace(made.balanced) == pytest.approx(len(made.traces))


def test_a_part_of_the_parameters_has_a_kernel_of_its_own():
    whole = model()
    chosen = {"w": raw.layers(whole)["w"]}
    made = raw.summed(raw.gradients(whole, X), chosen, 1e-4)
    np.testing.assert_allclose(made.total, kernel.gram(model(parameters="w"), X), rtol=1e-4, atol=1e-5)


def test_a_centred_kernel_is_that_of_centred_rows():
    V = rng.standard_normal((9, 5)) + 3
    K, centred = V @ V.T, V - V.mean(axis=0)
    np.testing.assert_allclose(raw.centred(K), centred @ centred.T, atol=1e-9)
    np.testing.assert_allclose(np.diag(raw.at_length_one(K)), 1)


def test_several_draws_give_the_bounds_own_gradients():
    """The self-normalised mean of single draws' gradients is the gradient of the importance-weighted bound."""

    def log_weight(params, x, key):
        return jnp.tanh(x @ params["w"]) @ params["v"] + jax.random.normal(key, (3,)) @ x * params["v"][0]

    weighted, mean = bound_noise.several(log_weight, PARAMS, 4)(X[0], jax.random.key(7))
    bound = nfk.vae(nfk.importance_weighted(log_weight, 4), PARAMS)
    np.testing.assert_allclose(weighted, raw.gradients(bound, X[:1], 7)[0], rtol=1e-4, atol=1e-5)
    assert not np.allclose(mean, weighted, atol=1e-3)


def test_rows_that_noise_does_not_touch_agree_and_unrelated_ones_do_not():
    a, b = rng.standard_normal((2, 40, 500))
    assert bound_noise.agreement(a, a) == pytest.approx(1, abs=0.02)
    assert bound_noise.agreement(a, b) == pytest.approx(0, abs=0.03)
