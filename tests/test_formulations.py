"""Each reading of a network as a density, against a closed form or an independent computation."""

from __future__ import annotations

import itertools

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
    assert leading[0] > 4 * leading[5]


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
            drawn = np.asarray(jax.vmap(lambda key, bound=bound: bound(PPCA, x, key))(keys))
            means.append(drawn.mean())
            errors.append(3 * drawn.std() / np.sqrt(len(drawn)))
        truth = float(exact_log_p(PPCA, x))
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
            lambda g: np.asarray(g).mean(axis=0), jax.vmap(lambda k: jax.grad(bound)(PPCA, x, k))(keys)
        )
        truth = jax.grad(exact_log_p)(PPCA, x)
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


# --- the lab's densities ---------------------------------------------------------------------------------------------

nnx = pytest.importorskip("flax.nnx")


def test_a_pixelcnn_is_a_density_of_binary_images():
    from nfk.lab.networks.pixelcnn import PixelCNN

    network = PixelCNN(width=4, blocks=2, rngs=nnx.Rngs(0))
    images = np.array(list(itertools.product([0.0, 1.0], repeat=9)), np.float32).reshape(-1, 3, 3, 1)
    assert abs(float(jnp.exp(network.log_prob(images)).sum()) - 1) < 1e-4


def test_a_causal_transformer_is_a_density_of_token_sequences_and_padding_changes_nothing():
    from nfk.lab.networks.transformer import CausalTransformer

    network = CausalTransformer(4, 6, 8, 1, 2, rngs=nnx.Rngs(0))
    sequences = np.array(list(itertools.product(range(4), repeat=3)), np.int32)
    assert abs(float(jnp.exp(network.log_prob(sequences)).sum()) - 1) < 1e-4

    log_prob = lambda module, x: module.log_prob(x["tokens"], x["mask"])  # noqa: E731
    model = nfk.density(*nfk.from_nnx(network, method=log_prob))
    short = {"tokens": sequences[:5], "mask": np.ones((5, 3), np.float32)}
    padded = {"tokens": np.pad(sequences[:5], ((0, 0), (0, 3)), constant_values=0), "mask": np.ones((5, 6), np.float32)}
    padded["mask"][:, 3:] = 0
    other = {"tokens": padded["tokens"].copy(), "mask": padded["mask"]}
    other["tokens"][:, 3:] = 2
    key = jax.random.key(0)
    plain, with_zeros, with_twos = (kernel.gradients(model, X, key) for X in (short, padded, other))
    np.testing.assert_allclose(with_zeros, plain, atol=1e-5)
    np.testing.assert_allclose(with_twos, plain, atol=1e-5)


def test_the_bounds_of_the_convolutional_vae_enclose_log_p():
    """One latent variable: log p(x) by quadrature."""
    from nfk.lab.networks.vaes import ConvVAE, bernoulli

    network = ConvVAE(latents=1, width=2, rngs=nnx.Rngs(3))
    x = (rng.random((1, 28, 28, 1)) < 0.2).astype(np.float32)
    grid = np.linspace(-8, 8, 4001, dtype=np.float32)[:, None]
    joint = np.asarray(bernoulli(jnp.asarray(x), network.decoder(grid)), np.float64)
    joint += -0.5 * grid[:, 0] ** 2 - 0.5 * np.log(2 * np.pi)
    truth = np.log(np.trapezoid(np.exp(joint - joint.max()), grid[:, 0])) + joint.max()
    keys = jax.random.split(jax.random.key(0), 2000)
    elbo = np.asarray(jax.vmap(lambda k: network.elbo(x, k)[0])(keys)).mean()
    weights = np.asarray(jax.vmap(lambda k: network.log_weight(x, k)[0])(keys), np.float64)
    importance = np.log(np.mean(np.exp(weights - weights.max()))) + weights.max()
    assert elbo < truth
    assert abs(weights.mean() - elbo) < 0.1, "the same bound, its divergence sampled and in closed form"
    assert abs(importance - truth) < 0.05


def test_the_denoising_bound_of_a_perfect_denoiser_is_the_log_probability():
    """Four images, each as likely: with the exact posterior mean the bound is log 1/4 on average."""
    from nfk.lab.networks import diffusion

    data = 2 * np.round(255 * rng.random((4, 2, 2, 1))).astype(np.float32) / 255 - 1

    class Perfect(diffusion.Diffusion):
        def noise(self, noisy, times):
            g = diffusion.gamma(times)[:, None, None, None]
            alpha, sigma = jnp.sqrt(nnx.sigmoid(-g)), jnp.sqrt(nnx.sigmoid(g))
            distance = jnp.sum((noisy[:, None] - alpha[:, None] * data) ** 2, axis=(2, 3, 4))
            weights = nnx.softmax(-0.5 * distance / sigma[:, :, 0, 0] ** 2)
            return (noisy - alpha * jnp.einsum("nm,m...->n...", weights, data)) / sigma

    network = Perfect(width=8, rngs=nnx.Rngs(0))
    images = np.repeat((data + 1) / 2, 3000, axis=0)
    bound = np.asarray(jax.jit(lambda x: network.bound(x, jax.random.key(0), 8))(images))
    assert abs(bound.mean() + np.log(4)) < 4 * bound.std() / np.sqrt(len(bound)) + 0.01
    assert bound.std() / np.sqrt(len(bound)) < 0.05


def test_the_flow_is_a_density_by_the_change_of_variables():
    pytest.importorskip("flowjax")
    import paramax

    from nfk.lab.networks.flows import coupling_flow

    flow = coupling_flow(4, 8, 2, key=jax.random.key(0))
    y = rng.standard_normal(4).astype(np.float32)
    inverse = paramax.unwrap(flow).bijection.inverse
    _sign, log_det = np.linalg.slogdet(np.asarray(jax.jacobian(inverse)(y)))
    base = -0.5 * np.sum(np.asarray(inverse(y)) ** 2) - 2 * np.log(2 * np.pi)
    assert abs(float(flow.log_prob(y)) - (base + log_det)) < 1e-4
    apply, params = nfk.from_equinox(flow, method="log_prob")
    model = nfk.density(apply, params, parameters=lambda path: "base_dist" not in path)
    X = rng.standard_normal((6, 4)).astype(np.float32)
    np.testing.assert_allclose(
        np.asarray(model.score_of(model.params, X[0], jax.random.key(0))), float(flow.log_prob(X[0])), rtol=1e-5
    )


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
