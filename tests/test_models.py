"""Models, layouts and streams: options, filters, keys, and examples of every kind."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import linear_sampler, mlp, mlp_params, vectors

import nfk
from nfk.layout import Layout
from nfk.model.fingerprint import fingerprint
from nfk.stream import Examples, Generated

PARAMS = mlp_params(np.float32, 6, 8, 4)
X = vectors(np.float32, 6)


def test_defaults_are_those_of_the_table():
    critic = lambda params, x: mlp(params, x)[0]  # noqa: E731
    sample = linear_sampler(np.float32, 6)
    table = {
        ("classifier", True, "diagonal", "data"): nfk.classifier(mlp, PARAMS),
        ("gan", True, "diagonal", "model"): nfk.gan(critic, PARAMS, sample=sample),
        ("energy", True, "diagonal", "data"): nfk.energy(critic, PARAMS),
        ("energy", True, "diagonal", "model"): nfk.energy(critic, PARAMS, sample=sample),
        ("vae", False, "diagonal", "data"): nfk.vae(lambda p, x, key: critic(p, x), PARAMS),
        ("vae", False, "diagonal", "model"): nfk.vae(lambda p, x, key: critic(p, x), PARAMS, sample=sample),
        ("density", False, "diagonal", "model"): nfk.density(critic, PARAMS, sample=sample),
        ("network", False, "identity", "data"): nfk.network(mlp, PARAMS),
    }
    for row, model in table.items():
        assert (model.family, model.centred, model.fisher, model.expectation) == row


def test_paths_filters_and_places():
    layout = Layout.of(PARAMS)
    assert layout.paths == ("first/bias", "first/kernel", "second/bias", "second/kernel")
    assert layout.size == 8 + 48 + 4 + 32
    assert layout.slices["second/bias"] == slice(56, 60)
    assert Layout.of(PARAMS, "*/kernel").sizes == (48, 32)
    assert Layout.of(PARAMS, ["first/*", "second/bias"]).sizes == (8, 48, 4)
    assert Layout.of(PARAMS, lambda path: "second" in path).sizes == (4, 32)


def test_split_and_join_are_inverse():
    layout = Layout.of(PARAMS, "*/bias")
    chosen, others = layout.split(PARAMS)
    jax.tree.map(np.testing.assert_array_equal, layout.join(chosen, others), PARAMS)


def test_parameters_left_out_have_no_share():
    whole = nfk.gram(nfk.classifier(mlp, PARAMS, fisher="identity", centred=False), X)
    parts = [
        nfk.gram(nfk.classifier(mlp, PARAMS, fisher="identity", centred=False, parameters=p), X)
        for p in ("first/*", "second/*")
    ]
    np.testing.assert_allclose(whole, parts[0] + parts[1], rtol=1e-5, atol=1e-5)


def test_half_precision_parameters_are_differentiated_and_summed_in_single():
    half = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), PARAMS)
    embedding = nfk.fit(nfk.classifier(mlp, half), X, 3)
    assert embedding.right.dtype == np.float32
    assert np.isfinite(embedding(X)).all()


def test_damping_is_relative_to_the_mean_fisher():
    embedding = nfk.fit(nfk.classifier(mlp, PARAMS, damping=0.5), X, 2)
    moments = embedding.moments
    np.testing.assert_allclose(moments.scale, 1 / np.sqrt(moments.fisher + 0.5 * moments.fisher.mean()), rtol=1e-5)


def test_more_samples_bring_the_moments_nearer_to_the_truth():
    """score = w . x with x ~ N(0, I): z = 0 and F = 1."""
    errors = []
    for samples in (64, 16_384):
        model = nfk.gan(
            lambda w, x: w @ x,
            np.ones(6, np.float32),
            sample=lambda key, n: jax.random.normal(key, (n, 6)),
            samples=samples,
        )
        moments = nfk.fit(model, X, 2).moments
        assert moments.count == samples
        errors.append(np.abs(moments.fisher - 1).max() + np.abs(moments.mean).max())
    assert errors[1] < errors[0] / 4


@pytest.mark.parametrize(
    "leaf", [X[0], X[0].astype(np.float64), np.arange(5), np.arange(5, dtype=np.uint8), np.array([True, False])]
)
def test_a_fingerprint_sees_every_entry_and_its_place(leaf):
    changed = leaf.copy()
    changed[-1] = ~changed[-1] if leaf.dtype == bool else changed[-1] + 1
    prints = {int(fingerprint(value)) for value in (leaf, changed, leaf[::-1].copy())}
    assert len(prints) == 3
    assert int(jax.jit(fingerprint)(leaf)) == int(fingerprint(leaf))


def test_fingerprints_of_many_examples_differ():
    many = np.random.default_rng(0).integers(0, 2, (2000, 28, 28)).astype(np.float32)
    assert len(np.unique(jax.vmap(fingerprint)(many))) == 2000


def test_generated_examples_do_not_depend_on_how_they_are_read():
    drawn = Generated(linear_sampler(np.float32, 6), jax.random.key(3), 700)
    whole = drawn[:]
    assert whole.shape == (700, 6)
    np.testing.assert_array_equal(np.concatenate([drawn[a : a + 33] for a in range(0, 700, 33)]), whole)


@pytest.mark.parametrize(
    "source",
    [
        X,
        list(X),
        jnp.asarray(X),
        type("Lazy", (), {"__len__": lambda self: 40, "__getitem__": lambda self, rows: X[rows]})(),
    ],
    ids=["array", "list", "jax array", "object with slices"],
)
def test_examples_of_every_kind_give_one_embedding(source):
    model = nfk.classifier(mlp, PARAMS)
    np.testing.assert_allclose(nfk.fit(model, source, 3).training, nfk.fit(model, X, 3).training, rtol=1e-6)
    assert len(Examples(source)) == 40


def test_a_memory_map_is_read_in_place(tmp_path):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    model = nfk.classifier(mlp, PARAMS)
    np.testing.assert_array_equal(nfk.fit(model, mapped, 3).training, nfk.fit(model, X, 3).training)


def test_parameters_of_every_kind():
    """Scalars, Python numbers, empty arrays, keys left out: whatever a network's pytree holds."""
    params = {"w": X[0], "gain": 1.5, "none": None, "empty": np.zeros((0, 3), np.float32), "key": jax.random.key(0)}
    score = lambda p, x: jnp.sum(jnp.tanh(p["w"] * x) * p["gain"])  # noqa: E731
    model = nfk.energy(score, params, parameters=lambda path: path != "key")
    for engine in ("gradients", "products"):
        assert np.isfinite(nfk.fit(model, X, 3, engine=engine)(X)).all()


def test_a_list_of_lists_is_an_array():
    model = nfk.classifier(mlp, PARAMS)
    np.testing.assert_allclose(nfk.fit(model, X.tolist(), 3).training, nfk.fit(model, X, 3).training, rtol=1e-4)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_any_kind_of_key_is_saved_and_loaded(impl, tmp_path):
    elbo = lambda p, x, key: mlp(p, x + jax.random.normal(key, x.shape))[0]  # noqa: E731
    model = nfk.vae(elbo, PARAMS)
    embedding = nfk.fit(model, X, 3, key=jax.random.key(5, impl=impl))
    np.testing.assert_array_equal(nfk.load(embedding.save(tmp_path), model)(X), embedding(X))


def test_a_second_call_of_anything_traces_nothing():
    """Compiled functions are kept by what they depend on: the function and the shapes, not the model or its options."""
    traced = []

    def apply(params, x):
        traced.append(1)
        return mlp(params, x)

    def everything(**options):
        model = nfk.classifier(apply, PARAMS, **options)
        embedding = nfk.fit(model, X, 3, key=len(traced))
        nfk.fit(model, X, 3, engine="products")
        embedding(X), embedding.gram(X[:4], X), embedding.decompose(X), nfk.dataset_vector(model, X)
        nfk.plan(model, X, 3), nfk.gram(model, X[:3])

    everything()
    first = len(traced)
    assert first > 0
    everything()
    everything(damping=0.1, fisher="identity")
    assert len(traced) == first


def test_a_method_is_compiled_for_each_model():
    """A method may depend on its object: another model of it looks again."""

    class Scaled:
        factor = 1.0

        def energy(self, params, x):
            return self.factor * jnp.sum(mlp(params, x) ** 2)

    network = Scaled()
    options = {"fisher": "identity", "centred": False}
    before = nfk.fit(nfk.energy(network.energy, PARAMS, **options), X, 2).singular_values
    network.factor = 2.0
    np.testing.assert_allclose(nfk.fit(nfk.energy(network.energy, PARAMS, **options), X, 2).singular_values, 2 * before)


def test_an_empty_call_gives_an_empty_embedding():
    assert nfk.fit(nfk.classifier(mlp, PARAMS), X, 3)(X[:0]).shape == (0, 3)


@pytest.mark.around
def test_parts_of_the_package_are_imported_when_they_are_used():
    code = (
        "import sys, nfk; assert 'nfk.tasks' not in sys.modules; assert callable(nfk.tasks.probe); "
        "assert 'nfk.tasks' in sys.modules; assert not hasattr(nfk, 'task')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
