"""Models whose score and Fisher information are known on paper, and libraries that compute the same another way."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import gaussian_log_prob, gaussian_sampler, mlp, mlp_params, vectors
from sklearn.decomposition import TruncatedSVD

import nfk
from nfk import kernel


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def kernel_of(embedding, X) -> np.ndarray:
    E = embedding(X)
    return E @ E.T


def test_diagonal_gaussian():
    """g_mean = (x - m)/s^2, g_logs = ((x - m)/s)^2 - 1;  F_mean = 1/s^2, F_logs = 2."""
    params = {"mean": np.array([0.3, -1.0, 2.0]), "log_scale": np.array([0.1, -0.4, 0.5])}
    model = nfk.density(gaussian_log_prob, params, sample=gaussian_sampler(params), samples=200_000, damping=0.0)
    X = np.random.default_rng(0).standard_normal((50, 3))
    t = (X - params["mean"]) / np.exp(params["log_scale"])
    expected = t @ t.T + (t**2 - 1) @ (t**2 - 1).T / 2
    embedding = nfk.fit(model, X, 6)
    K = kernel_of(embedding, X)
    np.testing.assert_allclose(K, expected, rtol=0, atol=0.03 * np.abs(expected).max())  # F is a sample mean
    fisher = np.r_[2 * np.ones(3), np.exp(-2 * params["log_scale"])]
    np.testing.assert_allclose(embedding.moments.fisher, fisher, rtol=0.02)


def test_bernoulli_product():
    """g = x - p, and with every state of the model as its samples F = p (1 - p) exactly."""
    logits = np.array([0.5, -1.0, 0.2])
    p = 1 / (1 + np.exp(-logits))
    states = np.array([[(i >> j) & 1 for j in range(3)] for i in range(8)], np.float64)
    log_prob = lambda params, x: jnp.sum(x * jax.nn.log_sigmoid(params) + (1 - x) * jax.nn.log_sigmoid(-params))  # noqa: E731
    sample = lambda key, n: jax.random.bernoulli(key, p, (n, 3)).astype(jnp.float64)  # noqa: E731
    model = nfk.density(log_prob, logits, sample=sample, samples=100_000, damping=0.0)
    expected = ((states - p) / (p * (1 - p))) @ (states - p).T
    np.testing.assert_allclose(
        kernel_of(nfk.fit(model, states, 3), states), expected, rtol=0, atol=0.03 * expected.max()
    )


def test_softmax_score_is_the_probability_weighted_sum_of_logit_gradients():
    params, X = mlp_params(np.float64, 6, 8, 4), vectors(np.float64, 6)
    model = nfk.classifier(mlp, params, fisher="identity", centred=False)
    J = kernel.gradients(nfk.network(mlp, params), X, jax.random.key(0)).reshape(40, 4, -1)
    p = jax.nn.softmax(jax.vmap(lambda x: mlp(params, x))(X))
    g = np.einsum("nc,ncp->np", p, J)
    np.testing.assert_allclose(nfk.gram(model, X), g @ g.T, rtol=1e-10)


def test_linear_network_has_the_linear_kernel():
    """f(x) = W x, one row per output: K((x,a), (y,b)) = <x, y> [a = b]."""
    X = np.random.default_rng(0).standard_normal((20, 5))
    model = nfk.network(lambda W, x: W @ x, np.ones((3, 5)))
    np.testing.assert_allclose(kernel_of(nfk.fit(model, X, 15), X), np.kron(X @ X.T, np.eye(3)), atol=1e-10)


def test_moments_over_the_data_give_a_trace_of_rows_times_live_parameters():
    """Without damping every live column has mean square one: |V|_F^2 = N P_live."""
    params = mlp_params(np.float64, 6, 8, 4)
    X = vectors(np.float64, 6).copy()
    X[:, 2] = 0  # an input that is always zero: its weights are dead
    embedding = nfk.fit(nfk.classifier(mlp, params, damping=0.0), X, 5)
    assert embedding.moments.dead >= 8
    np.testing.assert_allclose(embedding.trace, 40 * (model_size(params) - embedding.moments.dead), rtol=1e-9)


def model_size(params) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_one_input_that_is_rescaled_changes_nothing_without_damping():
    """The diagonal Fisher makes the kernel blind to the scale of each parameter."""
    X = vectors(np.float64, 6)
    scales = np.array([1, 10, 0.1, 3, 5, 1e-2])
    kernels = []
    for factor in (np.ones(6), scales):
        model = nfk.energy(lambda w, x, f=factor: jnp.sum(jnp.cos(w * f * x)), 1 / factor, damping=0.0)
        kernels.append(nfk.gram(model, X))
    np.testing.assert_allclose(kernels[0], kernels[1], rtol=1e-9, atol=1e-9)


def test_scikit_learn_agrees():
    params, X = mlp_params(np.float64, 6, 8, 4), vectors(np.float64, 6)
    model = nfk.classifier(mlp, params)
    theirs = TruncatedSVD(5, algorithm="arpack", random_state=0).fit(kernel.fisher_vectors(model, X))
    np.testing.assert_allclose(nfk.fit(model, X, 5, tol=1e-8).singular_values, theirs.singular_values_, rtol=1e-9)


def test_matfree_agrees():
    from matfree import decomp, eig

    params, X = mlp_params(np.float64, 6, 8, 4), vectors(np.float64, 6)
    model = nfk.classifier(mlp, params)
    V = jnp.asarray(kernel.fisher_vectors(model, X))
    lanczos = eig.svd_partial(decomp.bidiag(30))
    values = np.sort(np.asarray(lanczos(lambda v: V @ v, jnp.ones(V.shape[1]))[1]))[::-1]
    np.testing.assert_allclose(nfk.fit(model, X, 5, tol=1e-8).singular_values, values[:5], rtol=1e-6)
