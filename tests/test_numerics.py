"""Where float32 ends: very small and very large scores, equal examples, half precision, limits that are told."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import mlp, mlp_params, vectors

import nfk
from nfk.operator.moments import unit_of
from nfk.solve import SVD, Goal
from nfk.solve.goal import told_apart
from nfk.spaces import HOST

PARAMS = mlp_params(np.float32, 6, 8, 4)
X = vectors(np.float32, 6)
WAYS = {
    "parameters": {"side": "parameters"},
    "examples": {"side": "examples"},
    "products": {"engine": "products"},
    "power": {"method": "power", "tol": 0.5},
    "exact": {"method": "exact"},
}


def score(params, x):
    return params["factor"] * jax.nn.logsumexp(mlp(params["network"], x))


@cache
def scaled(factor: float, **options) -> nfk.Model:
    """The factor is a parameter that takes no part: one program serves all of them."""
    if factor == 1:
        return nfk.classifier(mlp, PARAMS, **options)
    params = {"network": PARAMS, "factor": np.float32(factor)}
    return nfk.density(score, params, parameters="network/*", **{"centred": True, **options})


@cache
def fitted(way: str) -> nfk.Embedding:
    return nfk.fit(scaled(1, fisher="identity"), X, 4, **WAYS[way])


@pytest.mark.xdist_group("scaled")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("factor", [1e-30, 1e-20, 1e-10, 1e5, 1e10, 1e20, 1e30])
def test_the_scale_of_the_score_scales_the_embedding_and_nothing_else(way, factor):
    """With the identity in place of the Fisher information, eigenvalues grow as the square of the scale."""
    expected = fitted(way)
    found = nfk.fit(scaled(factor, fisher="identity"), X, 4, **WAYS[way])
    np.testing.assert_allclose(found.singular_values / factor, expected.singular_values, rtol=1e-4)
    np.testing.assert_allclose(found.explained_variance_ratio, expected.explained_variance_ratio, rtol=1e-4)
    E, F = found(X).astype(np.float64) / factor, expected(X)
    np.testing.assert_allclose(np.abs(E), np.abs(F), atol=2e-3 * np.abs(F).max())
    np.testing.assert_allclose(found.training, found(X), atol=1e-3 * np.abs(found.training).max())
    assert found.residuals.max() <= 0.5


@pytest.mark.xdist_group("scaled")
@pytest.mark.parametrize("factor", [1e-25, 1e25])
def test_a_normalised_kernel_does_not_see_the_scale(factor):
    expected, found = (nfk.fit(scaled(f), X, 4) for f in (1, factor))
    np.testing.assert_allclose(found.eigenvalues, expected.eigenvalues, rtol=1e-4)
    np.testing.assert_allclose(found.moments.scale * factor, expected.moments.scale, rtol=1e-3)
    np.testing.assert_allclose(found.moments.mean / factor, expected.moments.mean, atol=1e-6)


@pytest.mark.xdist_group("scaled")
@pytest.mark.parametrize("factor", [1e-10, 1e10])
def test_saved_parts_and_merged_fits_keep_the_scale(factor, tmp_path):
    model = scaled(factor, fisher="identity")
    embedding = nfk.fit(model, X, 6)
    again = nfk.load(embedding.save(tmp_path), model)
    np.testing.assert_array_equal(again(X), embedding(X))
    parts = embedding.decompose(X)
    plain = nfk.fit(scaled(1, fisher="identity"), X, 6).decompose(X)
    np.testing.assert_allclose(parts.total / factor**2, plain.total, rtol=1e-4)
    K = embedding.gram(X[:5], X).astype(np.float64) / factor**2
    np.testing.assert_allclose(K, nfk.gram(scaled(1, fisher="identity"), X)[:5], atol=1e-4 * np.abs(K).max())
    halves = nfk.fit(model, X[:20], 12), nfk.fit(model, X[20:], 12)
    np.testing.assert_allclose(nfk.merge(*halves, rank=3).eigenvalues, embedding.eigenvalues[:3], rtol=2e-2)
    vector = nfk.dataset_vector(model, X)
    np.testing.assert_allclose(
        vector.values / factor**2, nfk.dataset_vector(scaled(1), X).values, atol=1e-4 * vector.values.max() / factor**2
    )


def test_ordinary_gradients_have_no_unit():
    assert unit_of(HOST.largest([jnp.ones((2, 3)), jnp.zeros((2, 0))])) == 1.0
    assert unit_of(HOST.largest([jnp.zeros((2, 3))])) is None
    assert unit_of(HOST.largest([[jnp.full((1, 3), 1e20), jnp.zeros((1, 3))]])) == pytest.approx(1e-20, rel=0.5)
    assert nfk.fit(nfk.classifier(mlp, PARAMS), X, 3).moments.unit == 1


@pytest.mark.parametrize("offset", [1.0, 1e4])
def test_equal_examples_have_no_fisher_information_about_their_mean(offset):
    """Rounding noise is not a component that explains everything."""
    same = np.repeat(X[:1], 30, axis=0)
    model = nfk.classifier(lambda p, x: offset * mlp(p, x), PARAMS)
    with pytest.raises(ValueError, match="zero Fisher information"):
        nfk.fit(model, same, 3)
    with pytest.raises(ValueError, match="zero Fisher information"):
        nfk.dataset_vector(model, same)


def test_a_small_deviation_about_a_large_mean_is_still_seen():
    """A hundred times above rounding error, a parameter takes part."""
    rng = np.random.default_rng(0)
    data = (1 + 1e-4 * rng.standard_normal((60, 5))).astype(np.float32)
    embedding = nfk.fit(nfk.energy(lambda w, x: w @ x, np.ones(5, np.float32)), data, 3)
    assert embedding.moments.dead == 0
    V = (data - data.mean(0)) / data.std(0)
    np.testing.assert_allclose(embedding.eigenvalues, np.linalg.eigvalsh(V.T @ V)[::-1][:3], rtol=1e-2)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("engine", ["gradients", "products"])
def test_half_precision_has_one_kernel_in_every_engine(dtype, engine):
    """Read as float32: the definition, both engines and their certificates agree."""
    half = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), PARAMS)
    model = nfk.classifier(mlp, half)
    values = np.linalg.eigvalsh(nfk.gram(model, X))[::-1]
    for key in range(3):
        embedding = nfk.fit(model, X, 5, engine=engine, key=key)
        nearest = np.abs(embedding.eigenvalues[:, None] - values).min(axis=1)
        assert (nearest <= embedding.residuals * embedding.eigenvalues + 1e-5 * values[0]).all()
        np.testing.assert_allclose(embedding.eigenvalues, values[:5], rtol=1e-4)


def test_a_network_that_insists_on_half_precision_has_gradients_but_no_products():
    half = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), PARAMS)

    def insisting(params, x):
        hidden = x.astype(jnp.bfloat16) @ params["first"]["kernel"].astype(jnp.bfloat16)
        hidden = jax.lax.add(hidden, jnp.broadcast_to(params["first"]["bias"], hidden.shape))  # promotes nothing
        return jnp.tanh(hidden) @ params["second"]["kernel"]

    model = nfk.classifier(insisting, half)
    embedding = nfk.fit(model, X, 3, tol=0.1)
    assert embedding.engine == "gradients"
    np.testing.assert_allclose(embedding.eigenvalues, np.linalg.eigvalsh(nfk.gram(model, X))[::-1][:3], rtol=1e-2)
    with pytest.raises(ValueError, match="engine='products' is not possible here: .* half precision.*engine='grad"):
        nfk.fit(model, X, 3, engine="products")


def test_the_dense_baseline_works_with_products():
    model = nfk.classifier(mlp, PARAMS)
    found = nfk.fit(model, X, 5, method="exact", engine="products")
    np.testing.assert_allclose(found.eigenvalues, nfk.fit(model, X, 5, method="exact").eigenvalues, rtol=1e-5)


def test_power_iterations_that_miss_the_tolerance_say_so():
    flat = nfk.network(lambda w, x: w * x, np.ones(6, np.float32))
    data = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
    with pytest.warns(nfk.ConvergenceWarning, match="power iterations do not reach it; use method='krylov'"):
        nfk.fit(flat, data, 3, method="power", oversamples=0, tol=1e-6)


def test_shares_that_look_alike_are_told_apart():
    assert told_apart(0.99991, 0.99994) == ("99.991%", "99.994%")
    assert told_apart(0.5, 0.9) == ("50.0%", "90.0%")
    values = np.array([3.0, 1.0])
    found = SVD(np.eye(2), values, np.eye(2), np.zeros(2), trace=10.0004, passes=1, space=HOST)
    goal = Goal(None, 0.99997, 1e-3, lambda: found.trace, 2)
    with pytest.warns(nfk.ConvergenceWarning, match=r"2 components explain 99.996% .*, not the 99.997% asked for"):
        goal.warn(found, "")


def test_object_arrays_and_other_lengths_get_advice_that_helps():
    with pytest.raises(TypeError, match=r"params\['first'\] is an array of Python objects \(dtype object\)"):
        nfk.classifier(mlp, {"first": np.array([None, 1], object)})
    score = lambda p, tokens: jnp.sum(p[tokens])  # noqa: E731
    tokens = np.random.default_rng(0).integers(0, 9, (20, 48))
    embedding = nfk.fit(nfk.density(score, np.ones(9, np.float32)), tokens, 2)
    with pytest.raises(ValueError, match=r"shape \(50,\), but .* fitted on \(48,\): pad or cut axis 1 to 48 in X"):
        embedding(np.zeros((3, 50), int))
