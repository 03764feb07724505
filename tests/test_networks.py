"""Networks: their sizes against the literature, and the laws that likelihoods, bounds and norms obey."""

from __future__ import annotations

import itertools
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from flax import nnx

import nfk
from nfk import kernel
from reproduction.networks import MLP, LeNet5, diffusion, logistic_mixture
from reproduction.networks.layers import SpectralConv
from reproduction.networks.pixelcnn import PixelCNN
from reproduction.networks.residual_gan import ResidualCritic, ResidualGenerator
from reproduction.networks.transformer import CausalTransformer
from reproduction.networks.vaes import ConvVAE, bernoulli
from reproduction.networks.vdvae import VDVAE, Gaussian
from reproduction.networks.wide_resnet import WideResNet

pytestmark = pytest.mark.reproduction
KEY = jax.random.key(0)
rng = np.random.default_rng(0)


def shapes(build):
    """The network without its numbers. One key for all: counting draws under a trace costs a quadratic time."""
    return nnx.eval_shape(lambda: build(rngs=SimpleNamespace(params=lambda: jax.random.key(0))))


def count(network) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(network, nnx.Param)))


def functional(build):
    """f(params, method, *arguments) of a network in evaluation, and random parameters, drawn by numpy to save time."""
    network = shapes(build)
    network.eval()
    graph, params, rest = nnx.split(network, nnx.Param, ...)
    generator = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.asarray(0.15 * generator.normal(size=leaf.shape), leaf.dtype), params)
    rest = jax.tree.map(lambda leaf: jnp.asarray(generator.uniform(0.5, 1, leaf.shape), leaf.dtype), rest)
    return lambda params, method, *arguments: getattr(nnx.merge(graph, params, rest), method)(*arguments), params


def levels(key, shape):
    return jax.random.randint(key, shape, 0, 256) / 255


# Sizes


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (LeNet5, 61_706),
        (partial(MLP, 784, 70, 10), 784 * 70 + 70 + 70 * 70 + 70 + 70 * 10 + 10),
        (partial(WideResNet, 10, 1), 77_850),
        (partial(WideResNet, 16, 1), 175_066),
        (partial(WideResNet, 16, 2), 691_674),
        (partial(WideResNet, 40, 1), 563_930),
        (partial(WideResNet, 40, 2), 2_243_546),
        (partial(ResidualCritic, 16), 24_113),
        (partial(ResidualCritic, 32), 94_305),
        (partial(ResidualCritic, 64), 372_929),
        (partial(ResidualCritic, 128), 1_483_137),
        (partial(ResidualCritic, 256), 5_915_393),
        (ResidualGenerator, 6_370_051),
        (VDVAE.small, 162_588),
    ],
)
def test_networks_have_the_sizes_of_the_literature(build, expected):
    assert count(shapes(build)) == expected


def test_the_vdvae_of_the_paper_and_its_three_parts():
    network = shapes(VDVAE.paper)
    assert count(network.encoder) == 7_497_888
    assert count(network.decoder) == 31_125_188
    assert count(network.biases) == 522_624
    assert count(network) == 39_145_700
    assert len(network.decoder.blocks) == 43
    assert sum(16 * block.resolution**2 for block in network.decoder.blocks) == 412_432


# Spectral normalisation


def spectral_conv():
    conv = SpectralConv(2, 3, rngs=nnx.Rngs(0))
    conv.kernel[...] = jax.random.normal(KEY, conv.kernel.shape, conv.kernel.dtype)
    return conv


def test_spectral_conv_divides_by_the_largest_singular_value():
    conv, images = spectral_conv(), jax.random.normal(KEY, (1, 4, 4, 2))
    call = nnx.jit(lambda conv: conv(images))
    for _ in range(60):
        normalised = call(conv)
    plain = jax.lax.conv(images.transpose(0, 3, 1, 2), conv.kernel[...].transpose(3, 2, 0, 1), (1, 1), "SAME")
    sigma = np.linalg.svd(np.asarray(conv.kernel[...]).reshape(-1, 3), compute_uv=False)[0]
    np.testing.assert_allclose(normalised * sigma, plain.transpose(0, 2, 3, 1), rtol=1e-4, atol=1e-4)


def test_evaluation_freezes_the_singular_vectors():
    conv, images = spectral_conv(), jnp.ones((1, 4, 4, 2))
    before = np.asarray(conv.u[...]), np.asarray(conv.v[...])
    conv.eval()
    conv(images)
    np.testing.assert_array_equal(before[0], conv.u[...])
    np.testing.assert_array_equal(before[1], conv.v[...])
    conv.train()
    conv(images)
    assert not np.array_equal(before[0], conv.u[...])


def test_gradients_flow_through_the_singular_value():
    with jax.enable_x64(True):
        f, params = functional(partial(SpectralConv, 2, 3))
        images, weights = jax.random.normal(KEY, (1, 4, 4, 2)), jax.random.normal(jax.random.key(1), (1, 4, 4, 3))
        value = jax.jit(lambda kernel: (f({**params, "kernel": kernel}, "__call__", images) * weights).sum())
        kernel = params["kernel"][...]
        gradient, direction = jax.grad(value)(kernel), jax.random.normal(jax.random.key(2), kernel.shape)
        difference = (value(kernel + 1e-5 * direction) - value(kernel - 1e-5 * direction)) / 2e-5
        np.testing.assert_allclose((gradient * direction).sum(), difference, rtol=1e-6)
        # W / sigma does not change when W is scaled.
        np.testing.assert_allclose((gradient * kernel).sum(), 0, atol=1e-9)


# Wide residual networks


def test_wide_resnet_groups_features_and_logits():
    f, params = functional(partial(WideResNet, 10, 1))
    images = levels(KEY, (3, 8, 8, 3))

    @jax.jit
    def everything(images):
        return {method: f(params, method, images) for method in ("groups", "features", "__call__")}

    whole, changed = everything(images), everything(images.at[1:].set(0))
    assert [group.shape for group in whole["groups"]] == [(3, 8, 8, 16), (3, 4, 4, 32), (3, 2, 2, 64)]
    assert whole["features"].shape == (3, 64)
    logits = whole["features"] @ params["dense"]["kernel"][...] + params["dense"]["bias"][...]
    np.testing.assert_allclose(whole["__call__"], logits, rtol=1e-4)
    np.testing.assert_allclose(whole["__call__"][0], changed["__call__"][0], rtol=1e-4)
    assert not np.allclose(whole["__call__"][1], changed["__call__"][1])


def test_wide_resnet_without_norm_has_parameters_only():
    network = shapes(partial(WideResNet, 10, 2, norm=False))
    assert not jax.tree.leaves(nnx.state(network, nnx.BatchStat))
    assert network.conv.bias.shape == (16,)


def test_wide_resnet_refuses_a_depth_without_whole_groups():
    with pytest.raises(ValueError, match=r"depth=12 must be 6 n \+ 4"):
        WideResNet(12, 1, rngs=nnx.Rngs(0))


# The residual GAN


def test_critic_and_generator():
    f, params = functional(partial(ResidualCritic, 4))
    g, generator_params = functional(partial(ResidualGenerator, 5, 4))

    @jax.jit
    def everything(params):
        images = g(generator_params, "__call__", jax.random.normal(KEY, (2, 5)))
        return images, f(params, "__call__", images)

    images, values = everything(params)
    assert images.shape == (2, 32, 32, 3)
    assert 0 <= images.min() < images.max() <= 1
    assert values.shape == (2,)
    # Each kernel is divided by its norm, so that its length has no effect.
    longer = jax.tree.map(lambda leaf: 3 * leaf if leaf.ndim == 4 else leaf, params)
    np.testing.assert_allclose(everything(longer)[1], values, rtol=1e-4)


# Mixtures of discretised logistics


def mixture(channels: int, components: int = 4):
    """Wide and narrow components, inside and outside of the range: log-scales from below the floor to 1."""
    rows = logistic_mixture.parameters_per_pixel(channels, 1)
    table = 0.7 * jax.random.normal(jax.random.key(channels), (rows, components))
    log_scales = jnp.linspace(-9, 1, channels * components).reshape(channels, components)
    return table.at[1 + channels : 1 + 2 * channels].set(log_scales)


def probabilities(table, values) -> np.ndarray:
    """p of each of the values (n, channels) in {0, ..., 255}, as images of one pixel."""
    values = jnp.asarray(values)
    parameters = jnp.broadcast_to(table.reshape(-1), (len(values), 1, 1, table.size))
    return np.exp(jax.jit(logistic_mixture.log_prob)(values[:, None, None] / 255, parameters))


def without_last_channel(table, channels: int):
    """The mixture of the channels before the last."""
    ends = [1 + channels, 1 + 2 * channels]
    _, means, log_scales, coefficients = np.split(np.asarray(table), [1, *ends])
    before = (channels - 1) * (channels - 2) // 2
    return jnp.concatenate([table[:1], means[:-1], log_scales[:-1], coefficients[:before]])


def test_probabilities_of_a_grey_pixel_sum_to_one():
    np.testing.assert_allclose(probabilities(mixture(1), np.arange(256)[:, None]).sum(), 1, rtol=1e-5)


@pytest.mark.parametrize("channels", [2, 3])
def test_the_sum_over_the_last_channel_is_the_mixture_of_the_others(channels):
    table, others = mixture(channels), np.array([0, 255, 120])[: channels - 1]
    values = np.column_stack([np.tile(others, (256, 1)), np.arange(256)])
    expected = probabilities(without_last_channel(table, channels), others[None])
    np.testing.assert_allclose(probabilities(table, values).sum(), expected[0], rtol=1e-4)


def test_colour_probabilities_match_the_formula():
    table = np.asarray(mixture(3), np.float64)
    values = np.random.default_rng(0).choice([0, 1, 17, 128, 254, 255], (50, 3))
    x, edges = values / 127.5 - 1, np.array([-1, 1]) / 255
    weights = np.exp(table[0]) / np.exp(table[0]).sum()
    scales, a = np.exp(np.maximum(table[4:7], -7)), np.tanh(table[7:])
    expected = np.zeros(len(x))
    for k in range(table.shape[1]):
        means = table[1:4, k] + np.column_stack([0 * x[:, 0], a[0, k] * x[:, 0], a[1, k] * x[:, 0] + a[2, k] * x[:, 1]])
        upper = np.where(values == 255, 1, scipy.stats.logistic.cdf((x + edges[1] - means) / scales[:, k]))
        lower = np.where(values == 0, 0, scipy.stats.logistic.cdf((x + edges[0] - means) / scales[:, k]))
        expected += weights[k] * (upper - lower).prod(1)
    np.testing.assert_allclose(probabilities(mixture(3), values), expected, rtol=2e-3, atol=1e-12)


def test_samples_follow_the_probabilities():
    table, n = mixture(2), 40_000
    grid = np.stack(np.meshgrid(np.arange(256), np.arange(256), indexing="ij"), -1).reshape(-1, 2)
    expected = probabilities(table, grid).reshape(8, 32, 8, 32).sum((1, 3))
    parameters = jnp.broadcast_to(table.reshape(-1), (200, 200, table.size))
    pixels = np.asarray(logistic_mixture.sample(KEY, parameters, 2)).reshape(-1, 2) * 255
    np.testing.assert_allclose(pixels, pixels.round(), atol=1e-3)
    drawn = np.histogram2d(*pixels.round().T, bins=np.arange(0, 257, 32))[0] / n
    assert (np.abs(drawn - expected) < 5 * np.sqrt(expected / n) + 1e-4).all()


def test_gradients_are_finite_in_every_bin():
    means, log_scales = jnp.meshgrid(jnp.array([-50.0, 0.0, 50.0]), jnp.array([-20.0, -7.0, 0.0, 20.0]))
    parameters = jnp.stack([0 * means, means, log_scales], -1).reshape(-1, 1, 1, 3).repeat(256, axis=1)
    images = jnp.broadcast_to(jnp.arange(256)[:, None, None] / 255, (12, 256, 1, 1))
    total, gradient = jax.jit(jax.value_and_grad(lambda p: logistic_mixture.log_prob(images, p).sum()))(parameters)
    assert np.isfinite(total)
    assert np.isfinite(gradient).all()


def test_a_wrong_number_of_parameters_is_refused():
    with pytest.raises(ValueError, match="must be a multiple of 10 for 3 channels"):
        logistic_mixture.log_prob(jnp.zeros((2, 2, 3)), jnp.zeros((2, 2, 11)))


# The hierarchical autoencoder


@pytest.fixture(scope="module")
def vdvae():
    """Two latents, at 1 x 1 and 4 x 4, on 8 x 8 images."""
    options = {"size": 8, "channels": 1, "width": 8, "latent": 2, "bottleneck": 0.5, "components": 2, "patch": 2}
    return functional(partial(VDVAE, "4d4,1x1", "1x1,4m1", **options))


@pytest.fixture(scope="module")
def elbo(vdvae):
    f, params = vdvae
    return jax.jit(lambda images: f(params, "elbo", images, KEY))


IMAGES = levels(jax.random.key(3), (3, 8, 8, 1))
REPEATED = jnp.tile(IMAGES, (400, 1, 1, 1))


def test_divergence_is_the_mean_of_the_log_ratio():
    p, q = Gaussian(jnp.array(0.3), jnp.array(0.4)), Gaussian(jnp.array(-0.5), jnp.array(-0.6))
    z = q.at(jax.random.normal(KEY, (100_000,)))
    ratios = q.log_prob(z) - p.log_prob(z)
    np.testing.assert_allclose(q.divergence(p), ratios.mean(), atol=5 * ratios.std() / 100_000**0.5)
    np.testing.assert_allclose(p.log_prob(z[:9]), scipy.stats.norm.logpdf(z[:9], 0.3, np.exp(0.4)), rtol=1e-4)
    assert q.divergence(q) == 0


def test_bounds_rise_with_samples_from_the_elbo(vdvae, elbo):
    f, params = vdvae
    one = jax.jit(lambda images: f(params, "log_weight", images, KEY))(REPEATED).reshape(400, 3)
    many = jax.jit(lambda images: f(params, "bound", images, KEY, 16))(REPEATED).reshape(400, 3)
    analytic = elbo(REPEATED).reshape(400, 3)
    error = np.sqrt((analytic.var(0) + one.var(0)) / 400)
    assert (np.abs(analytic.mean(0) - one.mean(0)) < 5 * error).all()
    assert (many.mean(0) > analytic.mean(0) + 3 * error).all()


def test_examples_of_a_batch_are_independent(elbo):
    whole, changed = elbo(REPEATED), elbo(REPEATED.at[1].set(0))
    others = np.arange(len(REPEATED)) != 1
    np.testing.assert_allclose(whole[others], changed[others], rtol=1e-5)
    assert whole[1] != changed[1]
    assert len(np.unique(whole)) > len(whole) / 2  # each example has noise of its own


def test_gradients_of_single_examples_are_finite_and_alive(vdvae):
    f, params = vdvae
    extremes = jnp.stack([IMAGES[0], jnp.zeros_like(IMAGES[0]), jnp.ones_like(IMAGES[0])])
    score = lambda params, image: f(params, "elbo", image[None], KEY)[0]  # noqa: E731
    gradients = jax.jit(jax.vmap(jax.grad(score), (None, 0)))(params, extremes)
    for leaf in jax.tree.leaves(gradients):
        assert np.isfinite(leaf).all()
        assert np.abs(leaf).max() > 0


def test_samples_and_latents(vdvae):
    f, params = vdvae
    sample = jax.jit(lambda key: f(params, "sample", key, 4))
    images = sample(KEY)
    assert images.shape == (4, 8, 8, 1)
    np.testing.assert_array_equal(images, sample(KEY))
    assert not np.array_equal(images, sample(jax.random.key(1)))
    np.testing.assert_allclose(images * 255, (images * 255).round(), atol=1e-3)
    latents = jax.jit(lambda images: f(params, "latents", images, 2))(IMAGES)
    assert latents.shape == (3, 2 + 2 * 16)


def test_mistakes_in_layers_and_shapes_are_named(vdvae):
    f, params = vdvae
    with pytest.raises(ValueError, match=r"images of shape \(9, 9, 1\) do not fit this model: it takes \(8, 8, 1\)"):
        f(params, "elbo", jnp.zeros((1, 9, 9, 1)), KEY)
    with pytest.raises(ValueError, match="layer '4y1' of '1x1,4y1' is not"):
        shapes(partial(VDVAE, "4x1", "1x1,4y1"))
    with pytest.raises(ValueError, match="size=30 must be a multiple of 4"):
        VDVAE.small(30, rngs=nnx.Rngs(0))


# Densities that can be summed or integrated


def test_a_pixelcnn_is_a_density_of_binary_images():
    network = PixelCNN(width=4, blocks=2, rngs=nnx.Rngs(0))
    images = np.array(list(itertools.product([0.0, 1.0], repeat=9)), np.float32).reshape(-1, 3, 3, 1)
    assert abs(float(jnp.exp(network.log_prob(images)).sum()) - 1) < 1e-4


def test_a_causal_transformer_is_a_density_of_token_sequences_and_padding_changes_nothing():
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

    from reproduction.networks.flows import coupling_flow

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
        np.asarray(model.network.score_of(model.params, X[0], jax.random.key(0))), float(flow.log_prob(X[0])), rtol=1e-5
    )
