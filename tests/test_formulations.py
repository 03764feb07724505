"""Each reading of a network as a density, against a closed form or an independent computation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import mlp, mlp_params

import nfk
from nfk import kernel

rng = np.random.default_rng(0)


# --- the unnormalised kernel, the tangent kernel, the full Fisher matrix ---------------------------------------------


def test_the_unnormalised_kernel_is_the_probability_weighted_contraction_of_the_tangent_kernel():
    """K(x, x') = sum over y, y' of p(y|x) p(y'|x') NTK[(x, y), (x', y')]: the identity of the paper's appendix."""
    with jax.enable_x64(True):
        params = mlp_params(np.float64, 6, 5, 4)
        X = rng.standard_normal((7, 6))
        tangent = nfk.gram(nfk.network(mlp, params), X).reshape(7, 4, 7, 4)
        p = np.asarray(jax.nn.softmax(jax.vmap(lambda x: mlp(params, x))(X)))
        contracted = np.einsum("iy,iyjz,jz->ij", p, tangent, p)
        unnormalised = nfk.gram(nfk.classifier(mlp, params, fisher="identity", centred=False), X)
    np.testing.assert_allclose(unnormalised, contracted, rtol=1e-10)


def test_the_full_fisher_matrix_leaves_a_flat_spectrum_and_the_diagonal_does_not():
    """K = N times a projection when the full Fisher matrix of the same data is inverted: no component leads."""
    with jax.enable_x64(True):
        N = 20
        model = nfk.classifier(mlp, mlp_params(np.float64, 6, 5, 4), damping=0.0)
        X = rng.standard_normal((N, 6))
        g = kernel.gradients(model, X, jax.random.key(0))
        centred = g - g.mean(axis=0)
        full = centred @ np.linalg.pinv(centred.T @ centred / N, rcond=1e-10) @ centred.T
        diagonal = nfk.gram(model, X)
    values = np.linalg.eigvalsh(full)
    np.testing.assert_allclose(values[1:], N, rtol=1e-7)  # rank N - 1: the mean is gone
    assert abs(values[0]) < 1e-7 * N
    leading = np.linalg.eigvalsh(diagonal)[::-1]
    assert leading[0] > 3 * leading[5]


# --- latent variables ------------------------------------------------------------------------------------------------


def linear_gaussian(params, example, key):
    """log p(x, h) - log q(h|x) for h ~ N(0, 1), x|h ~ N(w h + b, I), with a proposal that is not the posterior."""
    q_mean, q_deviation = 0.3 * example.sum(), 0.8
    noise = jax.random.normal(key)
    h = q_mean + q_deviation * noise
    log_p = -0.5 * h**2 - 0.5 * jnp.sum((example - params["w"] * h - params["b"]) ** 2)
    log_p -= 0.5 * (1 + example.size) * jnp.log(2 * jnp.pi)
    return log_p + 0.5 * noise**2 + jnp.log(q_deviation) + 0.5 * jnp.log(2 * jnp.pi)


def exact_log_p(params, x):
    """x ~ N(b, I + w w')."""
    covariance = jnp.eye(x.size) + jnp.outer(params["w"], params["w"])
    return jax.scipy.stats.multivariate_normal.logpdf(x, params["b"], covariance)


PPCA = {"w": np.array([0.7, -0.4, 0.9]), "b": np.array([0.1, 0.2, -0.3])}


def test_the_importance_weighted_bound_rises_with_its_samples_towards_log_p():
    with jax.enable_x64(True):
        x = np.array([0.5, -1.0, 1.5])
        keys = jax.random.split(jax.random.key(1), 4000)
        means, errors = [], []
        for K in (1, 2, 8, 32):
            bound = nfk.importance_weighted(linear_gaussian, K)
            drawn = np.asarray(jax.jit(jax.vmap(lambda key, bound=bound: bound(PPCA, x, key)))(keys))
            means.append(drawn.mean())
            errors.append(3 * drawn.std() / np.sqrt(len(drawn)))
        truth = float(jax.jit(exact_log_p)(PPCA, x))
    for low, high, e1, e2 in zip(means, means[1:], errors, errors[1:], strict=False):
        assert low <= high + e1 + e2
    assert means[0] < truth - 0.1, "the proposal is not the posterior, so one sample must fall short"
    assert truth - 0.02 < means[-1] <= truth + errors[-1]


def test_its_gradient_tends_to_the_true_score():
    with jax.enable_x64(True):
        x = np.array([0.5, -1.0, 1.5])
        bound = nfk.importance_weighted(linear_gaussian, 2000)
        keys = jax.random.split(jax.random.key(2), 100)
        estimate = jax.tree.map(
            lambda g: np.asarray(g).mean(axis=0), jax.jit(jax.vmap(lambda k: jax.grad(bound)(PPCA, x, k)))(keys)
        )
        truth = jax.jit(jax.grad(exact_log_p))(PPCA, x)
    for name in PPCA:
        np.testing.assert_allclose(estimate[name], truth[name], atol=0.01)


def test_a_fisher_kernel_by_the_importance_weighted_bound_comes_near_the_exact_one():
    with jax.enable_x64(True):
        X = rng.standard_normal((12, 3))
        many = nfk.vae(nfk.importance_weighted(linear_gaussian, 4000), PPCA)
        exact = nfk.density(exact_log_p, PPCA)
        few = nfk.vae(nfk.importance_weighted(linear_gaussian, 1), PPCA)
        K, near, far = (nfk.gram(model, X) for model in (exact, many, few))
    assert np.linalg.norm(near - K) < 0.1 * np.linalg.norm(K)
    assert np.linalg.norm(near - K) < 0.5 * np.linalg.norm(far - K)


@pytest.mark.parametrize(("samples", "fault"), [(0, "samples=0"), (2.5, "samples=2.5"), (True, "samples=True")])
def test_the_number_of_samples_is_checked(samples, fault):
    with pytest.raises(ValueError, match=fault):
        nfk.importance_weighted(linear_gaussian, samples)


# --- Langevin samples ------------------------------------------------------------------------------------------------


def tilted(params, x):
    """E(x) = -a x: p(x) is proportional to exp(a x) on [0, 1]."""
    return -params["a"] * x.sum()


def test_langevin_samples_have_the_density_of_the_energy_within_the_box():
    params, start = {"a": np.float32(3.0)}, np.full((50, 2), 0.5, np.float32)
    model = nfk.energy(tilted, params)
    sample = nfk.langevin(model, start, steps=600, step_size=2e-3, low=0.0, high=1.0)
    drawn = np.asarray(sample._run(model.params, np.full((4000, 2), 0.5, np.float32), jax.random.key(0)))
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    a = 3.0
    mean = 1 / (1 - np.exp(-a)) - 1 / a
    assert abs(drawn.mean() - mean) < 0.015
    below = np.expm1(a / 2) / np.expm1(a)
    assert abs((drawn < 0.5).mean() - below) < 0.02


def test_a_chain_that_leaves_the_data_is_reported_and_one_that_stays_is_not():
    X = rng.standard_normal((500, 2)).astype(np.float32)
    bowl = nfk.energy(lambda p, x: p["a"] * jnp.sum(x**2) / 2, {"a": np.float32(1.0)})
    stays = nfk.langevin(bowl, X, steps=50, step_size=0.01)
    assert not stays.diagnose().left_the_data
    slope = nfk.energy(tilted, {"a": np.float32(20.0)})
    leaves = nfk.langevin(slope, X, steps=50, step_size=0.1, low=-30.0, high=30.0)
    found = leaves.diagnose()
    assert found.left_the_data
    assert found.share_at_walls > 0
    with pytest.warns(nfk.ChainWarning, match=r"score outside the data's range.*expectation='data'"):
        leaves(jax.random.key(0), 64)


def test_an_energy_model_with_langevin_expectations_is_what_the_dense_definition_says():
    X = rng.standard_normal((30, 2)).astype(np.float32)
    params = {"a": np.float32(1.3), "b": np.array([0.2, -0.1], np.float32)}
    energy = lambda p, x: p["a"] * jnp.sum((x - p["b"]) ** 2) / 2  # noqa: E731
    sample = nfk.langevin(nfk.energy(energy, params), X, steps=5, step_size=0.01)
    model = nfk.energy(energy, params, sample=sample, samples=300)
    E = nfk.fit(model, X, 3, method="exact").training
    K = nfk.gram(model, X)
    np.testing.assert_allclose(E @ E.T, K, atol=2e-4 * np.abs(K).max())


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"steps": 0}, "steps=0 must be positive"),
        ({"step_size": -1.0}, "step_size=-1.0 must be positive"),
        ({"temperature": -1.0}, "temperature=-1.0 must be 0 or more"),
        ({"low": 2.0, "high": 1.0}, "low=2.0 and high=1.0 enclose nothing"),
    ],
)
def test_the_options_of_langevin_are_checked(options, fault):
    model = nfk.energy(tilted, {"a": np.float32(1.0)})
    with pytest.raises(ValueError, match=fault):
        nfk.langevin(model, np.eye(4, 2, dtype=np.float32), **options)
    with pytest.raises(TypeError, match="X has dtype int64: Langevin dynamics moves real numbers"):
        nfk.langevin(model, np.zeros((4, 2), np.int64))


def test_common_noise_does_not_hide_what_examples_have_in_common():
    """Two examples that are nearly equal have nearly equal Fisher vectors, unless each has noise of its own."""

    def noisy(params, x, key):
        return jnp.sum(params["w"] * (x + 10 * jax.random.normal(key, x.shape)))

    params = {"w": np.ones(4, np.float32)}
    X = np.repeat(rng.standard_normal((5, 4)).astype(np.float32), 2, axis=0)
    X[1::2] += 1e-3
    shared, own = (
        kernel.gradients(nfk.vae(noisy, params, common_noise=common), X, jax.random.key(0)) for common in (True, False)
    )
    assert np.abs(shared[::2] - shared[1::2]).max() < 2e-3
    assert np.abs(own[::2] - own[1::2]).min() > 1e-2
