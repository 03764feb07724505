"""What an embedding can say beside its numbers, over models of every kind, against the dense definition."""

from __future__ import annotations

import warnings
from dataclasses import replace

import jax
import numpy as np
import pytest
from registry import mlp, mlp_params, vectors

import nfk
from nfk.memory import available_bytes, parse_memory
from nfk.planning import Problem, plan_gram, plan_rows
from nfk.spaces import HOST, Mesh
from nfk.stream import Examples


def rows_of(case, start, stop):
    return jax.tree.map(lambda leaf: leaf[start:stop], case.X)


def full_fit(case, start, stop):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nfk.ConvergenceWarning)
        rank = min((stop - start) * case.outputs, case.model.layout.size)
        return nfk.fit(case.model, rows_of(case, start, stop), rank, method="exact")


def near(actual, expected, tolerance=1e-9):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(np.asarray(actual) / scale, np.asarray(expected) / scale, rtol=0, atol=tolerance)


def test_parts_are_those_of_the_fisher_vector(double):
    parts = double.embedding.decompose(double.X)
    near(parts.total, np.sum(double.V**2, axis=1))
    near(parts.embedding, double.embedding.training)
    Q = np.asarray(double.embedding.right)
    rest = double.V - double.V @ Q @ Q.T
    near(parts.outside, np.sum(rest**2, axis=1))
    near(parts.outside_share, np.sum(rest**2, axis=1) / np.sum(double.V**2, axis=1))


def test_a_basis_on_a_device_says_the_same(double):
    space = Mesh.of([jax.devices()[1]])
    device = replace(double.embedding, right=space.put(double.embedding.right), space=space)
    parts, expected = device.decompose(double.X), double.embedding.decompose(double.X)
    near(parts.outside, expected.outside)
    near(parts.embedding, expected.embedding)
    near(device.gram(double.X), double.K)
    assert device.truncated(2).right.devices() == {jax.devices()[1]}
    merged = nfk.merge(device, device)
    assert merged.right.devices() == {jax.devices()[1]}
    layers, expected = device.layer_shares(), double.embedding.layer_shares()
    near(list(layers.values()), list(expected.values()))
    near(merged.eigenvalues, 2 * double.embedding.eigenvalues[: merged.rank], 1e-7)


def test_the_exact_kernel_in_tiles_is_the_dense_one(double):
    few = rows_of(double, 3, 12)
    block = double.V[3 * double.outputs : 12 * double.outputs]
    near(double.embedding.gram(double.X), double.K)
    near(double.embedding.gram(few, double.X), block @ double.V.T)
    for first, second, expected in ((few, double.X, block @ double.V.T), (double.X, None, double.K)):
        with pytest.raises(ValueError, match="give at least") as refused:
            double.embedding.gram(first, second, memory=1)
        least = parse_memory(str(refused.value).split("give at least ")[1].split(",")[0], available_bytes)
        problems = [Problem.of(double.model, Examples(first if part is None else part)) for part in (first, second)]
        plan = plan_gram(*problems, double.embedding.space, least)
        assert plan.tile < problems[0].examples
        assert plan.peak_bytes <= least
        near(double.embedding.gram(first, second, memory=least), expected)


def test_truncated_is_the_fit_of_that_rank(double):
    smaller = nfk.fit(double.model, double.X, 2, tol=1e-9)
    cut = double.full.truncated(2)
    near(cut.eigenvalues, smaller.eigenvalues)
    near(cut(double.X) @ cut(double.X).T, smaller.training @ smaller.training.T, 1e-6)
    assert cut.rank == 2
    assert cut.trace == double.full.trace


def test_layer_shares_sum_to_one_and_are_the_columns_lengths(double):
    shares = double.embedding.layer_shares()
    assert list(shares) == list(double.model.layout.slices)
    near(sum(shares.values()), np.ones(double.embedding.rank))
    name, place = next(iter(double.model.layout.slices.items()))
    near(shares[name] + 1, np.sum(np.asarray(double.embedding.right)[place] ** 2, axis=0) + 1)


def test_merged_fits_equal_the_joint_fit(double):
    """Two thirds and one third, each with moments of its own, at full rank: the joint fit, moments and trace too."""
    first, second = (full_fit(double, *part) for part in ((0, 26), (26, 40)))
    merged, joint = nfk.merge(first, second, rank=4), double.embedding
    near(merged.moments.mean + 1, joint.moments.mean + 1)
    near(merged.moments.scale, joint.moments.scale, 1e-8)
    near(merged.eigenvalues, joint.eigenvalues, 1e-8)
    near(merged.training @ merged.training.T, joint.training @ joint.training.T, 1e-6)
    near(merged(double.X), merged.training, 1e-7)
    assert merged.trace == pytest.approx(joint.trace, rel=1e-8)


def test_merged_low_rank_fits_are_within_their_bound(double):
    first, second = (nfk.fit(double.model, rows_of(double, *part), 3, tol=1e-8) for part in ((0, 26), (26, 40)))
    merged = nfk.merge(first, second)
    assert merged.rank == 3
    error = np.abs(merged.eigenvalues - double.values[:3])
    assert (error <= merged.residuals * merged.eigenvalues + 1e-9 * double.values[0]).all()


def test_a_merged_embedding_is_saved_and_loaded(tmp_path):
    X = vectors(np.dtype(np.float32), 6)
    model = nfk.classifier(mlp, mlp_params(np.dtype(np.float32), 6, 8, 4))
    merged = nfk.merge(nfk.fit(model, X[:20], 5), nfk.fit(model, X[20:], 5))
    again = nfk.load(merged.save(tmp_path / "run"), model)
    np.testing.assert_array_equal(again(X), merged(X))


class TestDatasetVector:
    dtype = np.dtype(np.float32)
    model = nfk.classifier(mlp, mlp_params(dtype, 6, 8, 4))
    X, Y = vectors(dtype, 6), 3 * vectors(dtype, 6, seed=8)

    def test_it_is_the_mean_squared_deviation_of_the_gradients(self):
        from nfk import kernel
        from nfk.model import split_key

        g = kernel.gradients(self.model, self.X, split_key(0)[2])
        vector = nfk.dataset_vector(self.model, self.X)
        np.testing.assert_allclose(vector.values, g.var(axis=0), rtol=1e-4, atol=1e-8)
        assert vector.count == len(self.X)
        name, place = next(iter(vector.slices.items()))
        assert vector.by_layer()[name] == pytest.approx(vector.values[place].mean(), rel=1e-5)

    def test_distance_is_symmetric_zero_for_equal_sets_and_larger_for_others(self):
        first, same, other = (nfk.dataset_vector(self.model, data) for data in (self.X, self.X[::-1], self.Y))
        assert first.distance(same) == pytest.approx(0, abs=1e-6)
        assert first.distance(other) == pytest.approx(other.distance(first))
        halves = [nfk.dataset_vector(self.model, self.X[part::2]) for part in (0, 1)]
        assert first.distance(other) > halves[0].distance(halves[1])

    def test_expectations_are_over_the_data_even_for_a_gan(self):
        critic = lambda params, x: mlp(params, x)[0]  # noqa: E731
        sample = lambda key, n: jax.random.normal(key, (n, 6))  # noqa: E731
        gan = nfk.gan(critic, mlp_params(self.dtype, 6, 8, 1), sample=sample)
        a, b = (nfk.dataset_vector(gan, data) for data in (self.X, self.Y))
        assert a.count == len(self.X)
        assert not np.allclose(a.values, b.values)


class TestBadInput:
    dtype = np.dtype(np.float32)
    model = nfk.classifier(mlp, mlp_params(dtype, 6, 8, 4))
    X = vectors(dtype, 6)

    @pytest.fixture(scope="class")
    @classmethod
    def embedding(cls):
        return nfk.fit(cls.model, cls.X, 4)

    @pytest.mark.parametrize("rank", [0, 5, 2.0])
    def test_truncated_to_a_rank_that_is_not_there(self, embedding, rank):
        with pytest.raises(ValueError, match=rf"rank={rank} must be a whole number from 1 to the fitted rank 4"):
            embedding.truncated(rank)

    def test_a_budget_below_one_tile(self, embedding):
        with pytest.raises(ValueError, match=r"memory=1.0 kB does not hold the 40 x 40 kernel .* give at least"):
            embedding.gram(self.X, memory=1024)

    def test_the_second_set_is_named(self, embedding):
        with pytest.raises(ValueError, match=r"Y holds examples of shape \(5,\)"):
            embedding.gram(self.X, self.X[:, :5])

    def test_merging_other_networks_keys_and_kinds(self, embedding):
        other = nfk.fit(nfk.classifier(mlp, mlp_params(self.dtype, 6, 9, 4)), self.X, 3)
        with pytest.raises(ValueError, match="different networks or options"):
            nfk.merge(embedding, other)
        with pytest.raises(ValueError, match="different networks or options"):
            nfk.merge(embedding, nfk.fit(nfk.classifier(mlp, self.model.params, damping=0.1), self.X, 3))
        assert nfk.merge(embedding, nfk.fit(self.model, self.X, 3, key=1)).rank == 4  # nothing random in it
        critic = lambda params, x: mlp(params, x)[0]  # noqa: E731
        gan = nfk.gan(critic, mlp_params(self.dtype, 6, 8, 1), sample=lambda key, n: jax.random.normal(key, (n, 6)))
        with pytest.raises(ValueError, match="different keys"):
            nfk.merge(nfk.fit(gan, self.X, 3), nfk.fit(gan, self.X, 3, key=1))
        with pytest.raises(TypeError, match="second is a ndarray"):
            nfk.merge(embedding, self.X)
        with pytest.raises(ValueError, match=r"rank=9 must be a whole number from 1 to 8"):
            nfk.merge(embedding, embedding, rank=9)

    def test_data_set_vectors_of_two_networks(self):
        wide = nfk.classifier(mlp, mlp_params(self.dtype, 6, 9, 4))
        with pytest.raises(ValueError, match="different networks"):
            nfk.dataset_vector(self.model, self.X).distance(nfk.dataset_vector(wide, self.X))
        twin = nfk.classifier(mlp, jax.tree.map(lambda leaf: 2 * leaf, self.model.params))
        with pytest.raises(ValueError, match="different networks"):
            nfk.dataset_vector(self.model, self.X).distance(nfk.dataset_vector(twin, self.X))


@pytest.mark.parametrize(
    ("parameters", "examples", "chunk"),
    [(1_000, 1_000, 256), (530_017, 500, 64), (530_017, 1_600, 200), (530_017, 10_000, 256), (11_000_000, 10_000, 24)],
)
def test_a_call_gathers_no_more_rows_than_a_product_needs(parameters, examples, chunk):
    """Fresh pages cost time: where rows are large 64 of them or an eighth of all, fewer where they would take more than
    a gigabyte."""
    problem = Problem.of(
        nfk.classifier(lambda w, x: x[:2] * w.sum(), np.zeros(parameters, np.float32)),
        Examples(np.ones((2, 3), np.float32)),
    )
    found = plan_rows(replace(problem, examples=examples), HOST, "16GB", 128)
    assert found.batches.chunk == chunk
