"""The paper's printed formulas that do not hold, each beside the one that does. docs/findings.md names these tests."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nfk
from nfk import kernel

ROWS, PARAMETERS, RANK = 30, 12, 5


@pytest.fixture
def rows():
    """V of examples, and of one more."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((ROWS, PARAMETERS)) * np.linspace(3, 0.3, PARAMETERS), rng.standard_normal(PARAMETERS)


def test_the_printed_eigenfunction_of_a_new_example_is_too_small_by_the_root_of_n(rows):
    """phi_i(x) = 1 / (N lambda_i) sum_j K(x, x_j) Phi_ji, as printed, gives x_j itself 1 / sqrt(N) of its own row."""
    V, _ = rows
    left, values, _ = np.linalg.svd(V, full_matrices=False)
    training = left * values
    mercer = values**2 / ROWS
    printed = np.sqrt(mercer) * ((V @ V.T) @ left / (ROWS * mercer))
    np.testing.assert_allclose(printed, training / np.sqrt(ROWS), atol=1e-10)
    right = np.sqrt(mercer) * ((V @ V.T) @ (np.sqrt(ROWS) * left) / (ROWS * mercer))
    np.testing.assert_allclose(right, training, atol=1e-10)


def test_the_algorithms_last_line_weighs_each_component_by_its_singular_value(rows):
    """V_x diag(Sigma) P is K(x, X) Phi, s_i times the embedding V_x Q."""
    V, new = rows
    left, values, right = np.linalg.svd(V, full_matrices=False)
    printed = new @ (right.T * values)
    np.testing.assert_allclose(printed, (V @ new) @ left, atol=1e-10)
    np.testing.assert_allclose(printed, values * (new @ right.T), atol=1e-10)
    assert np.abs(printed @ printed - new @ new) > 1  # no longer the kernel of x with itself


def test_whitened_rows_do_not_give_the_kernel_and_scaled_ones_do(rows):
    """The appendix calls both Q(x) and Q(x) Sigma the embedding."""
    V, _ = rows
    left, values, _ = np.linalg.svd(V, full_matrices=False)
    np.testing.assert_allclose((left * values) @ (left * values).T, V @ V.T, atol=1e-10)
    assert np.abs(left @ left.T - V @ V.T).max() > 1


def test_the_scale_belongs_to_the_tangents_and_the_mean_to_every_row():
    """As printed, diag(I)^(-1/2) would multiply a (B, U) product from the left; it belongs to M before the JVP."""
    rng = np.random.default_rng(1)
    J, z, s = rng.standard_normal((7, 4)), rng.standard_normal(4), rng.random(4) + 0.5
    M, W = rng.standard_normal((4, 3)), rng.standard_normal((7, 3))
    V = (J - z) * s
    np.testing.assert_allclose(J @ (s[:, None] * M) - z @ (s[:, None] * M), V @ M, atol=1e-12)
    np.testing.assert_allclose(s[:, None] * (J.T @ W - np.outer(z, W.sum(axis=0))), V.T @ W, atol=1e-12)
    with pytest.raises(ValueError, match="matmul"):
        np.diag(s) @ (J @ M - z @ M)  # (P, P) times (B, U)
    with pytest.raises(ValueError, match=r"matmul|broadcast"):
        z[:, None] @ W  # "Z M"


def test_the_mean_of_the_supervised_score_weighs_each_example_by_its_own_probabilities():
    """With p(y|x) of the other argument inside the expectation, as printed, rows no longer have mean zero."""
    rng = np.random.default_rng(2)
    logit_gradients = rng.standard_normal((9, 3, 4))  # examples, classes, parameters
    chances = rng.dirichlet(np.ones(3), 9)
    g = np.einsum("ny,nyp->np", chances, logit_gradients)
    np.testing.assert_allclose((g - g.mean(axis=0)).mean(axis=0), 0, atol=1e-12)
    printed = g - np.einsum("ny,myp->nmp", chances, logit_gradients).mean(axis=1)
    assert np.abs(printed.mean(axis=0)).max() > 0.05


def test_leading_eigenvalues_of_few_examples_are_biased_upwards():
    """The paper calls them unbiased; the largest eigenvalue of a sample of a white Gaussian is above one on average."""
    rng = np.random.default_rng(3)

    def largest(count: int) -> float:
        draws = rng.standard_normal((40, count, 10))
        return float(np.mean([np.linalg.norm(draw, 2) ** 2 / count for draw in draws]))

    few, many = largest(20), largest(500)
    assert few > 1.5 > many > 1


def test_shares_of_eigenvalues_and_of_their_squares_are_far_apart():
    """The paper's r_k sums lambda^2, with lambda a singular value there and an eigenvalue elsewhere."""
    eigenvalues = 1 / np.arange(1, 5_001)
    shares = [np.sum(eigenvalues[:100] ** power) / np.sum(eigenvalues**power) for power in (1, 2)]
    assert shares[0] < 0.6
    assert shares[1] > 0.99


def _log_prob(params, x):
    """A mixture of two products of Bernoulli variables."""
    each = jnp.log(0.5) + (x * jax.nn.log_sigmoid(params) + (1 - x) * jax.nn.log_sigmoid(-params)).sum(axis=1)
    return jax.nn.logsumexp(each)


def _bound(params, x):
    """The ELBO with q(h|x) = 1/2 for both, whatever x is."""
    each = (x * jax.nn.log_sigmoid(params) + (1 - x) * jax.nn.log_sigmoid(-params)).sum(axis=1)
    return each.mean()


def test_the_score_of_a_likelihood_has_mean_zero_and_that_of_a_bound_has_not():
    params = jnp.asarray(np.random.default_rng(4).standard_normal((2, 4)))
    everything = jnp.asarray(list(itertools.product((0.0, 1.0), repeat=4)))
    chances = np.exp([_log_prob(params, x) for x in everything])
    assert chances.sum() == pytest.approx(1, abs=1e-6)
    mean = lambda score: np.einsum("n,n...->...", chances, jax.vmap(jax.grad(score), (None, 0))(params, everything))  # noqa: E731
    np.testing.assert_allclose(mean(_log_prob), 0, atol=1e-6)
    assert np.abs(mean(_bound)).max() > 0.01


def test_a_parameter_that_is_dead_on_generated_examples_does_not_take_over():
    """An absolute 1e-6 beside the standard deviation would multiply its gradient by a million."""

    def critic(params, x):
        return params @ x

    def sample(key, count):
        made = jax.random.normal(key, (count, 3))
        return made.at[:, 2].set(0)  # no generated example reaches the third

    X = np.random.default_rng(5).standard_normal((20, 3)).astype(np.float32)
    model = nfk.gan(critic, jnp.ones(3), sample=sample, samples=64)
    moments = kernel.moments(model, X)
    assert moments.scale[2] == 0
    literal = (X[:, 2] - 0) / (0 + 1e-6)
    assert np.abs(literal).max() > 1e5 * np.abs(kernel.fisher_vectors(model, X)).max()


def test_a_score_that_draws_new_noise_in_every_product_is_no_matrix():
    """<W, V M> = <V' W, M> holds for noise that is fixed, and fails for noise that is drawn anew."""
    rng = np.random.default_rng(6)
    V, M, W = rng.standard_normal((8, 5)), rng.standard_normal((5, 2)), rng.standard_normal((8, 2))
    drawn = lambda: V + 0.3 * rng.standard_normal(V.shape)  # noqa: E731
    fixed = drawn()
    assert np.sum(W * (fixed @ M)) == pytest.approx(np.sum((fixed.T @ W) * M))
    assert abs(np.sum(W * (drawn() @ M)) - np.sum((drawn().T @ W) * M)) > 0.1


def test_products_with_rows_are_stacked_over_batches_and_those_with_columns_summed():
    """The appendix has V as P x N and as N x P, and one batch: its two products are not put together alike."""
    rng = np.random.default_rng(7)
    X, params = rng.standard_normal((9, 3)), jnp.asarray(rng.standard_normal(3))
    score = lambda params, batch: jnp.tanh(batch @ params)  # noqa: E731
    J = np.asarray(jax.jacobian(score)(params, X))
    M, W = rng.standard_normal(3), rng.standard_normal(9)
    batches = [slice(0, 4), slice(4, 9)]
    ahead = [jax.jvp(lambda p, rows=rows: score(p, X[rows]), (params,), (jnp.asarray(M),))[1] for rows in batches]
    back = [jax.vjp(lambda p, rows=rows: score(p, X[rows]), params)[1](jnp.asarray(W[rows]))[0] for rows in batches]
    np.testing.assert_allclose(np.concatenate(ahead), J @ M, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.sum(back, axis=0), J.T @ W, rtol=1e-4, atol=1e-5)
    assert np.abs(np.mean(back, axis=0) - J.T @ W).max() > 0.1  # the mean over batches is another number


def test_a_shift_that_all_rows_share_looks_like_low_rank():
    """With the mean gradient of other examples taken away, the first component may be that difference alone."""
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((400, 50))
    rows -= rows.mean(axis=0)
    shift = np.full(50, 1.5)
    first = lambda V: np.linalg.norm(V, 2) ** 2 / np.sum(V**2)  # noqa: E731
    share = len(rows) * shift @ shift / np.sum((rows + shift) ** 2)
    assert first(rows) < 0.05
    assert first(rows + shift) == pytest.approx(share, rel=0.01)
    assert share > 0.6


@pytest.mark.parametrize("count", [64, 4_000])
def test_no_fit_does_with_less_memory_than_its_basis_however_few_the_examples(count):
    """The paper's memory "remains constant" in N; the basis, P x k numbers, is in it, and new examples need it."""
    rank, params = 16, {"w": jnp.ones((4, 4_000)), "v": jnp.ones((4_000, 2))}
    model = nfk.classifier(lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], params)
    examples = np.zeros((count, 4), np.float32)
    with pytest.raises(MemoryError):
        nfk.plan(model, examples, rank, memory=2 * model.layout.size * rank)  # two bytes for each number
    assert nfk.plan(model, examples, rank, memory=64 * model.layout.size * rank).problem.examples == count


def test_a_step_adds_the_gradient_times_the_step_and_the_rate_does_not_come_twice():
    """The appendix has f - eta grad f . (new - old); the step holds the rate and the sign already."""
    old, x, rate = np.array([0.7, -0.4, 1.1]), np.array([0.3, 1.2, -0.5]), 1e-3
    f = lambda params: jnp.tanh(params @ x) + (params @ x) ** 2  # noqa: E731
    gradient = np.asarray(jax.grad(f)(jnp.asarray(old)))
    new = old - rate * gradient  # of the loss f itself, for which the kernel is the gradient's squared length
    change = float(f(new) - f(old))
    np.testing.assert_allclose(gradient @ (new - old), change, rtol=1e-2)
    np.testing.assert_allclose(-rate * gradient @ gradient, change, rtol=1e-2)
    printed = -rate * gradient @ (new - old)
    assert printed > 0 > change
    assert abs(printed) < 2 * rate * abs(change)


def test_the_printed_products_take_as_much_as_two_thousand_epochs_of_training():
    """Ten iterations with 128 + 10 columns, each by a JVP and a VJP; an epoch is three evaluations of each example."""
    params = {"w": jnp.ones((16, 40)), "v": jnp.ones(40)}
    model = nfk.energy(lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], params, expectation="data")
    plan = nfk.plan(model, np.zeros((300, 16), np.float32), 128, method="power", engine="products")
    assert plan.width == 138
    assert plan.way.network_flops > 2_000 * 3 * plan.problem.forward_flops * plan.problem.examples


def test_every_erratum_of_the_page_names_a_test_that_exists():
    here = Path(__file__).parent
    named = re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", (here.parent / "docs" / "findings.md").read_text())
    assert len(named) >= 12
    for file, name in named:
        assert f"def {name}(" in (here / file).read_text() if name else (here / file).exists(), (file, name)
