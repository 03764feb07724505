"""Laws of the tasks: each on data where the answer is known, or against an independent computation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse
from scipy.special import logsumexp
from sklearn.linear_model import Ridge as ReferenceRidge
from sklearn.metrics import roc_auc_score

import nfk
from nfk.tasks import (
    Repeated,
    alignment,
    average,
    by_layer,
    detection,
    embedding_targets,
    feature_ridge,
    few_labels,
    fit_linear,
    invert,
    kernel_features,
    kernel_ridge,
    kernel_spectrum,
    mean_share,
    nearest,
    one_hot,
    probe,
    probe_by_rank,
    proportion,
    retrieval,
    sharpness,
    spectrum,
)
from nfk.tasks.labelling import balanced_draw
from nfk.tasks.probing import held_out_rows

RNG = np.random.default_rng


def blobs(count: int, classes: int = 4, width: int = 6, gap: float = 8.0, seed: int = 0):
    """Clouds around far corners: separable."""
    rng = RNG(seed)
    labels = rng.integers(0, classes, count)
    centres = gap * np.eye(classes, width)
    return (centres[labels] + rng.standard_normal((count, width))).astype(np.float32), labels


class TestEstimates:
    def test_wilson_covers_the_truth_nineteen_times_in_twenty(self):
        rng = RNG(0)
        intervals = [proportion(np.arange(80) < hits) for hits in range(81)]
        for truth in (0.02, 0.5, 0.97):
            drawn = [intervals[hits] for hits in np.sum(rng.random((2000, 80)) < truth, axis=1)]
            assert 0.93 <= np.mean([each.low <= truth <= each.high for each in drawn]) <= 0.985

    def test_wilson_at_the_ends_is_not_empty(self):
        assert proportion(np.ones(50, bool)).low < 1
        assert proportion(np.zeros(50, bool)).high > 0
        assert proportion(np.ones(50, bool)).high == 1

    def test_average_is_the_mean_with_its_standard_error(self):
        values = RNG(1).standard_normal(400) + 3
        estimate = average(values)
        assert estimate.value == pytest.approx(values.mean())
        assert estimate.high - estimate.value == pytest.approx(1.96 * values.std(ddof=1) / 20, rel=1e-3)

    def test_repeated_has_mean_and_spread(self):
        assert Repeated((1.0, 2.0, 3.0)).mean == 2
        assert Repeated((1.0, 2.0, 3.0)).spread == pytest.approx(1)
        assert Repeated((1.0,)).spread == 0


class TestProbe:
    @pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
    def test_a_separable_toy_gives_accuracy_one(self, loss):
        X, y = blobs(300)
        Z, z = blobs(200, seed=1)
        result = probe(X, y, Z, z, loss=loss)
        assert result.accuracy.value == 1
        assert result.accuracy.low < 1
        assert result.features == 6
        np.testing.assert_array_equal(result.predict(Z), z)

    @pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
    def test_shuffled_labels_give_chance(self, loss):
        X, y = blobs(600)
        Z, z = blobs(800, seed=1)
        rng = RNG(2)
        accuracy = probe(X, rng.permutation(y), Z, rng.permutation(z), loss=loss).accuracy
        assert abs(accuracy.value - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 800)

    def test_one_scale_for_all_features_changes_nothing(self):
        X, y = blobs(300, gap=2.0)
        Z, z = blobs(300, gap=2.0, seed=1)
        a, b = probe(X, y, Z, z), probe(1000 * X, y, 1000 * Z, z)
        assert a.strength == b.strength
        np.testing.assert_array_equal(a.correct, b.correct)

    def test_the_strength_is_the_best_on_what_is_held_out(self):
        X, y = blobs(300, gap=1.5)
        result = probe(X, y, X, y, strengths=(1e-4, 1e-2, 1.0))
        assert set(result.held_out) == {1e-4, 1e-2, 1.0}
        assert result.held_out[result.strength] == max(result.held_out.values())

    def test_test_labels_cannot_change_the_classifier(self):
        X, y = blobs(200, gap=1.5)
        Z, z = blobs(100, gap=1.5, seed=1)
        np.testing.assert_array_equal(probe(X, y, Z, z).predict(Z), probe(X, y, Z, (z + 1) % 4).predict(Z))

    def test_by_rank_is_the_probe_of_the_first_columns(self):
        X, y = blobs(200, gap=2.0)
        found = probe_by_rank(X, y, X, y, (1, 3, 6))
        assert list(found) == [1, 3, 6]
        assert found[3].accuracy == probe(X[:, :3], y, X[:, :3], y).accuracy

    def test_sparse_features_are_probed_alike(self):
        X, y = blobs(200)
        X[np.abs(X) < 2] = 0
        assert probe(sparse.csr_matrix(X), y, sparse.csr_matrix(X), y).accuracy == probe(X, y, X, y).accuracy

    def test_kernel_features_are_the_kernel_and_probe_the_full_rows(self):
        """600 features, 120 examples: the probe of all features, through inner products alone."""
        rng = RNG(3)
        X, Z = rng.standard_normal((120, 600)), rng.standard_normal((80, 600))
        y = X[:, :40].sum(axis=1) > 0
        train, new, half = kernel_features(X @ X.T, Z @ X.T, Z[:40] @ X.T)
        np.testing.assert_allclose(train @ train.T, X @ X.T, atol=1e-8)
        np.testing.assert_allclose(new @ train.T, Z @ X.T, atol=1e-8)
        np.testing.assert_allclose(half, new[:40])
        for strength in (0.01, 1.0):
            through, direct = fit_linear(train, y, strength=strength), fit_linear(X, y, strength=strength)
            np.testing.assert_array_equal(through.predict(new), direct.predict(Z))

    def test_logistic_is_the_minimum_of_its_sum(self):
        X, y = blobs(150, gap=1.0)
        X = X.astype(np.float64)
        fitted = fit_linear(X, y, strength=0.7)

        def value(weights, intercept):
            scores = X @ weights.T + intercept
            return 0.7 * np.sum(logsumexp(scores, axis=1) - scores[np.arange(150), y]) + np.sum(weights**2) / 2

        best = value(fitted.weights, fitted.intercept)
        rng = RNG(4)
        for _ in range(20):
            step = 1e-2 * rng.standard_normal(fitted.weights.shape)
            assert value(fitted.weights + step, fitted.intercept) > best - 1e-6

    def test_squared_hinge_is_scikit_learns(self):
        from sklearn.svm import LinearSVC

        X, y = blobs(150, gap=1.0)
        X = X.astype(np.float64)
        fitted = fit_linear(X, y, strength=0.3, loss="squared_hinge")
        # liblinear regularises the intercept too, unless its column is large
        reference = LinearSVC(C=0.3, dual=False, tol=1e-8, intercept_scaling=1e3, max_iter=10_000).fit(X, y)
        np.testing.assert_allclose(fitted.weights, reference.coef_, atol=2e-3)
        np.testing.assert_allclose(fitted.intercept, reference.intercept_, atol=2e-3)
        assert fitted.converged

    def test_two_classes(self):
        X, y = blobs(200, classes=2, gap=3.0)
        for loss in ("logistic", "squared_hinge"):
            assert probe(X, np.array(["no", "yes"])[y], X, np.array(["no", "yes"])[y], loss=loss).accuracy.value > 0.95

    def test_held_out_rows_take_a_share_of_every_class(self):
        labels = np.repeat([0, 1, 2], [50, 30, 1])
        kept, held = held_out_rows(labels, 0.1, 0)
        assert np.bincount(labels[held], minlength=3).tolist() == [5, 3, 0]
        assert sorted([*kept, *held]) == list(range(81))
        np.testing.assert_array_equal(held_out_rows(labels, 0.1, 0)[1], held)
        assert set(held_out_rows(labels, 0.1, 1)[1]) != set(held)

    @pytest.mark.parametrize("counts", [[2, 2, 2], [1, 2], [1, 1, 1], [3, 40], [2, 1, 100]])
    def test_every_class_can_be_learnt_from_what_is_kept_however_small_it_is(self, counts):
        labels = np.repeat(np.arange(len(counts)), counts)
        kept, held = held_out_rows(labels, 0.1, 0)
        assert len(held) > 0
        assert set(labels[kept]) == set(range(len(counts)))


class TestFewLabels:
    def test_draws_are_balanced_and_differ(self):
        labels = RNG(0).integers(0, 4, 500)
        rows = balanced_draw(labels, 40, RNG(1))
        assert len(set(rows)) == 40
        assert np.bincount(labels[rows]).tolist() == [10] * 4
        assert np.bincount(labels[balanced_draw(labels, 42, RNG(1))]).sum() == 42
        assert set(rows) != set(balanced_draw(labels, 40, RNG(2)))

    def test_accuracy_rises_with_labels_and_ends_near_the_probe(self):
        X, y = blobs(2000, gap=2.5)
        Z, z = blobs(1000, gap=2.5, seed=1)
        results = few_labels(X, y, Z, z, (8, 40, 400), seeds=4)
        means = [result.accuracy.mean for result in results]
        assert means[0] < means[1] < means[2] + 0.01
        assert len(results[0].accuracy.values) == 4
        assert abs(means[2] - probe(X, y, Z, z).accuracy.value) < 0.03

    def test_labels_that_are_not_drawn_are_not_seen(self, monkeypatch):
        X, y = blobs(400, gap=2.0)
        Z, z = blobs(200, gap=2.0, seed=1)
        rows = balanced_draw(y, 40, RNG(0))
        monkeypatch.setattr("nfk.tasks.labelling.balanced_draw", lambda *_: rows)
        others = np.where(np.isin(np.arange(400), rows), y, RNG(1).permutation(y))
        assert few_labels(X, y, Z, z, (40,), seeds=1) == few_labels(X, others, Z, z, (40,), seeds=1)
        monkeypatch.undo()
        assert few_labels(X, y, Z, z, (40,), seeds=1) != few_labels(X, others, Z, z, (40,), seeds=1)


class TestRidge:
    rng = RNG(5)
    X, y = rng.standard_normal((30, 4)), rng.standard_normal((30, 2))
    Z = rng.standard_normal((7, 4))

    def test_both_forms_are_scikit_learns(self):
        for ridge in (0.1, 10.0):
            reference = ReferenceRidge(alpha=ridge, fit_intercept=False).fit(self.X, self.y).predict(self.Z)
            primal = feature_ridge(self.X, self.y, ridges=[ridge])
            dual = kernel_ridge(self.X @ self.X.T, self.y, ridges=[ridge])
            np.testing.assert_allclose(primal.predict(self.Z), reference, atol=1e-10)
            np.testing.assert_allclose(dual.predict(self.Z @ self.X.T), reference, atol=1e-8)

    @pytest.mark.parametrize("form", ["features", "kernel"])
    def test_left_out_is_what_refitting_gives(self, form):
        fit = lambda X, y: (  # noqa: E731
            feature_ridge(X, y, ridges=[0.5]) if form == "features" else kernel_ridge(X @ X.T, y, ridges=[0.5])
        )
        whole = fit(self.X, self.y)
        for index in (0, 11, 29):
            others = np.arange(30) != index
            X = self.X[others]
            row = self.X[index : index + 1] if form == "features" else self.X[index : index + 1] @ X.T
            np.testing.assert_allclose(whole.left_out[index], fit(X, self.y[others]).predict(row)[0], atol=1e-8)
        assert whole.error.value == pytest.approx(np.mean((whole.left_out - self.y) ** 2))

    def test_whole_examples_are_left_out_where_they_have_several_rows(self):
        """Rows 3 i to 3 i + 2 are one example, as in an NTK of three outputs."""
        targets = self.y[:, 0]
        whole = kernel_ridge(self.X @ self.X.T, targets, outputs=3, ridges=[0.5])
        for index in (0, 9):
            own = np.arange(30) // 3 == index
            fitted = feature_ridge(self.X[~own], targets[~own], ridges=[0.5])
            np.testing.assert_allclose(whole.left_out[own, 0], fitted.predict(self.X[own]), atol=1e-8)

    def test_the_ridge_is_the_best_left_out(self):
        rng = RNG(6)
        X = rng.standard_normal((60, 40))
        y = X @ rng.standard_normal(40) + 5 * rng.standard_normal(60)
        found = feature_ridge(X, y)
        assert found.errors.min() == found.errors[list(found.ridges).index(found.ridge)]
        assert found.ridges[0] < found.ridge < found.ridges[-1]

    def test_one_hot_sums_to_zero(self):
        targets = one_hot([2, 0, 1, 2])
        np.testing.assert_allclose(targets.sum(axis=1), 0, atol=1e-12)
        assert targets.argmax(axis=1).tolist() == [2, 0, 1, 2]

    def test_the_linearised_network_is_ridge_regression_in_its_parameters(self):
        """f(x) + J(x) d with d minimising |y - f(X) - J d|^2 + ridge |d|^2: by the NTK, and in parameter space."""
        with jax.enable_x64(True):
            rng = RNG(7)
            params = {"w": rng.standard_normal((3, 5)), "v": rng.standard_normal((5, 2))}
            apply = lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"]  # noqa: E731
            X, Z, y = rng.standard_normal((12, 3)), rng.standard_normal((4, 3)), rng.standard_normal((12, 2))
            embedding = nfk.fit(nfk.network(apply, params), X, 4)
            f, f_new = (np.asarray(jax.vmap(lambda x: apply(params, x))(part)) for part in (X, Z))
            found = kernel_ridge(embedding.gram(X), y.reshape(-1), offset=f.reshape(-1), outputs=2, ridges=[0.3])
            prediction = found.predict(embedding.gram(Z, X), offset=f_new.reshape(-1)).reshape(4, 2)

            def jacobian(part):
                leaves = jax.tree.leaves(jax.vmap(jax.jacrev(apply), (None, 0))(params, part))
                return np.concatenate([np.asarray(leaf).reshape(len(part) * 2, -1) for leaf in leaves], axis=1)

            J = jacobian(X)
            step = np.linalg.solve(J.T @ J + 0.3 * np.eye(J.shape[1]), J.T @ (y - f).reshape(-1))
            expected = f_new + (jacobian(Z) @ step).reshape(4, 2)
        np.testing.assert_allclose(prediction, expected, atol=1e-6)


class TestInversion:
    def test_a_linear_generator_is_inverted_exactly(self):
        """G(h) = A h + b and a critic w . x: the Fisher vectors are linear in x, so latents are linear in them."""
        rng = RNG(8)
        A, b = rng.standard_normal((5, 9)).astype(np.float32), rng.standard_normal(9).astype(np.float32)
        generate = lambda h: h @ A + b  # noqa: E731
        model = nfk.gan(
            lambda p, x: x @ p["w"], {"w": np.ones(9, np.float32)},
            sample=lambda key, n: generate(jax.random.normal(key, (n, 5))),
        )  # fmt: skip
        latents = rng.standard_normal((400, 5)).astype(np.float32)
        embedding = nfk.fit(model, generate(latents), 5)
        inversion = invert(embedding.training, latents)
        new = rng.standard_normal((50, 5)).astype(np.float32)
        found = inversion(embedding(generate(new)))
        np.testing.assert_allclose(found, new, atol=2e-3)
        np.testing.assert_allclose(generate(found), generate(new), atol=1e-2)
        assert inversion.score.value > 0.9999
        assert inversion.determination(embedding(generate(new)), new).value > 0.9999
        assert inversion.determination(embedding(generate(new)), new[::-1]).value < 0.5

    def test_unrelated_latents_have_no_determination(self):
        rng = RNG(9)
        score = invert(rng.standard_normal((500, 4)), rng.standard_normal((500, 3))).score
        assert abs(score.value) < 0.05
        assert score.low < score.value < score.high

    def test_without_intercept_zero_goes_to_zero(self):
        rng = RNG(10)
        E = rng.standard_normal((200, 4)) + 1
        H = E @ rng.standard_normal((4, 2))
        assert np.abs(invert(E, H, intercept=False)(np.zeros((1, 4)))).max() == 0
        np.testing.assert_allclose(invert(E, H, intercept=False)(E), H, atol=1e-4)

    def test_sharpness_is_the_share_of_black_and_white(self):
        assert sharpness(np.array([0.0, 1.0, 0.5, 0.02])) == 0.75


class TestSpectrum:
    values = 2.0 ** -np.arange(10)

    def test_shares_and_counts(self):
        found = spectrum(self.values[:4], self.values.sum(), 10)
        assert found.share(2) == pytest.approx(1.5 / self.values.sum())
        assert found.components_for(0.74) == 2
        assert found.components_for(0.999) is None

    def test_the_effective_rank_lies_in_its_interval_however_few_are_known(self):
        for values in (self.values, np.ones(10), np.linspace(3, 1, 10), np.eye(1, 10)[0] + 0.01):
            truth = values.sum() ** 2 / np.sum(values**2)
            for known in (1, 3, 9, 10):
                rank = spectrum(values[:known], values.sum(), 10).effective_rank
                assert rank.low <= truth * (1 + 1e-9)
                assert truth <= rank.high * (1 + 1e-9)
            assert rank.low == pytest.approx(rank.high)

    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    @pytest.mark.parametrize("shift", [True, False])
    def test_a_kernel_tells_all_shares_with_and_without_the_shift(self, shift, dtype):
        rows = RNG(3).standard_normal((30, 8)) * self.values[:8] + np.array([3.0, *[0.5] * 7])
        K = (rows @ rows.T).astype(dtype)
        centred = rows if shift else rows - rows.mean(axis=0)
        values = np.linalg.svd(centred, compute_uv=False) ** 2
        kept = K.copy()
        found = kernel_spectrum(K, 5, shift=shift)
        np.testing.assert_allclose(found.eigenvalues, values[:5], rtol=1e-4)
        assert found.share(3) == pytest.approx(values[:3].sum() / values.sum(), rel=1e-4)
        assert found.share(3, "squares") == pytest.approx(np.sum(values[:3] ** 2) / np.sum(values**2), rel=1e-4)
        assert found.share(3, "squares") > found.share(3)
        assert found.effective_rank.value == pytest.approx(values.sum() ** 2 / np.sum(values**2), rel=1e-4)
        np.testing.assert_array_equal(K, kept)

    def test_the_mean_takes_its_share(self):
        rows = RNG(11).standard_normal((100, 3)) + np.array([5.0, 0, 0])
        trace = np.sum(rows**2)
        centred = np.sum((rows - rows.mean(axis=0)) ** 2)
        assert mean_share(rows, trace) == pytest.approx(1 - centred / trace)

    def test_layers_gather_their_arrays(self):
        shares = {"a/kernel": np.array([0.5, 0.2]), "a/bias": np.array([0.1, 0.1]), "b/kernel": np.array([0.4, 0.7])}
        layers = by_layer(shares)
        assert list(layers) == ["a", "b"]
        np.testing.assert_allclose(layers["a"], [0.6, 0.3])


class TestNeighbours:
    def test_an_example_is_its_own_nearest(self):
        X, _ = blobs(100, gap=1.0)
        found = nearest(X, X, 3, "euclidean")
        assert found.rows[:, 0].tolist() == list(range(100))
        assert (np.diff(found.distances, axis=1) >= 0).all()

    def test_cosine_is_blind_to_length_and_euclidean_is_not(self):
        reference = np.array([[10.0, 1.0], [0.0, 1.1]])
        query = np.array([[1.0, 0.1]])
        assert nearest(reference, query, 1, "cosine").rows[0, 0] == 0
        assert nearest(reference, query, 1, "euclidean").rows[0, 0] == 1

    def test_separable_clouds_are_retrieved_and_shuffled_labels_are_not(self):
        X, y = blobs(300)
        Z, z = blobs(200, seed=1)
        found = retrieval(X, y, Z, z)
        assert found.accuracy.value == found.precision.value == 1
        precision = retrieval(X, RNG(0).permutation(y), Z, z).precision
        assert precision.low - 0.03 < 0.25 < precision.high + 0.03

    def test_a_tie_goes_to_the_nearer(self):
        reference, labels = np.array([[1.0], [1.2], [0.7], [0.6]]), np.array([1, 1, 0, 0])
        found = retrieval(reference, labels, np.array([[0.9]]), np.array([1]), 4, "euclidean")
        assert found.accuracy.value == 1


class TestOutliers:
    def test_the_auroc_is_scikit_learns_ties_included(self):
        rng = RNG(12)
        inside, outside = np.round(rng.standard_normal(300), 1), np.round(rng.standard_normal(200) + 0.7, 1)
        found = detection(inside, outside)
        scores = np.concatenate([inside, outside])
        reference = roc_auc_score(np.repeat([0, 1], [300, 200]), scores)
        assert found.auroc.value == pytest.approx(reference)

    def test_delongs_interval_covers_nineteen_times_in_twenty(self):
        from scipy.stats import norm

        truth = norm.cdf(1 / np.sqrt(2))  # of N(1, 1) against N(0, 1)
        rng = RNG(13)
        inside = []
        for _ in range(600):
            found = detection(rng.standard_normal(60), rng.standard_normal(80) + 1).auroc
            inside.append(found.low <= truth <= found.high)
        assert 0.92 <= np.mean(inside) <= 0.985

    def test_far_outliers_are_all_found_and_equal_ones_are_not(self):
        rng = RNG(14)
        far = detection(rng.standard_normal(100), rng.standard_normal(100) + 50)
        assert (far.auroc.value, far.missed_at_95) == (1, 0)
        assert 0.9 < far.auroc.low < 1 == far.auroc.high  # a hundred examples cannot show certainty
        same = detection(rng.standard_normal(500), rng.standard_normal(500))
        assert same.auroc.low < 0.5 < same.auroc.high
        assert 0.9 < same.missed_at_95 < 0.99

    def test_examples_outside_the_fitted_subspace_stand_out(self):
        """Inliers vary in three directions; outliers in all: the energy outside the top three tells them apart."""
        rng = RNG(15)
        directions = rng.standard_normal((3, 12))
        inside = (rng.standard_normal((300, 3)) @ directions + 0.05 * rng.standard_normal((300, 12))).astype("float32")
        outside = rng.standard_normal((100, 12)).astype("float32")
        model = nfk.energy(lambda p, x: x @ p["w"], {"w": np.ones(12, np.float32)}, fisher="identity")
        embedding = nfk.fit(model, inside[:200], 3)
        parts = [embedding.decompose(X).outside for X in (inside[200:], outside)]
        assert detection(*parts).auroc.value > 0.99


class TestAlignment:
    def test_equal_kernels_align_whatever_the_rotation_and_scale(self):
        rng = RNG(16)
        A = rng.standard_normal((200, 5))
        Q, _ = np.linalg.qr(rng.standard_normal((5, 5)))
        assert alignment(A, 7 * A @ Q).value == pytest.approx(1)
        assert alignment(A, A + 3).value == pytest.approx(1)

    def test_unrelated_features_do_not_align_even_when_there_are_many(self):
        rng = RNG(17)
        found = alignment(rng.standard_normal((100, 400)), rng.standard_normal((100, 400)))
        assert abs(found.value) < 0.1
        assert found.low < 0 < found.high

    def test_it_is_the_formula_of_the_kernels(self):
        """The unbiased HSIC written out with the matrices."""
        rng = RNG(18)
        A, B = rng.standard_normal((60, 4)), rng.standard_normal((60, 3))
        B[:, 0] += A[:, 0]

        def hsic(K, L):
            K, L, n, one = K - np.diag(np.diag(K)), L - np.diag(np.diag(L)), 60, np.ones(60)
            middle = (one @ K @ one) * (one @ L @ one) / ((n - 1) * (n - 2))
            return (np.trace(K @ L) + middle - 2 * (one @ K @ L @ one) / (n - 2)) / (n * (n - 3))

        K, L = A @ A.T, B @ B.T
        assert alignment(A, B).value == pytest.approx(hsic(K, L) / np.sqrt(hsic(K, K) * hsic(L, L)))


class TestTargets:
    E = (RNG(19).standard_normal((500, 6)) * 3.0 ** -np.arange(6)).astype(np.float32)
    values = np.sqrt(np.sum(E**2, axis=0))

    def test_scaled_keeps_the_proportions_and_whitened_makes_them_equal(self):
        scaled = embedding_targets(self.E, self.values, 4)
        assert np.mean(scaled**2) == pytest.approx(1, rel=1e-5)
        np.testing.assert_allclose(scaled / scaled[:, :1], self.E[:, :4] / self.E[:, :1], rtol=1e-4)
        whitened = embedding_targets(self.E, self.values, 4, "whitened")
        np.testing.assert_allclose(np.mean(whitened**2, axis=0), 1, rtol=1e-4)


class TestBadInput:
    X, y = blobs(60)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda X, y: probe(X, y[:-1], X, y), r"labels has length 59, but train holds 60 examples"),
            (lambda X, y: probe(X, y, X, y[:-1]), r"test_labels has length 59, but test holds 60 examples"),
            (lambda X, y: probe(X, y[:, None], X, y), r"labels has shape \(60, 1\)"),
            (lambda X, y: probe(X, y, X[:, :3], y), r"test has 3 features, but train has 6"),
            (lambda X, y: probe(X, np.minimum(y, 2), X, y), r"class .*3.* has no labelled example in labels"),
            (lambda X, y: probe(X, 0 * y, X, 0 * y), r"labels holds one class only"),
            (lambda X, y: probe(X.reshape(60, 2, 3), y, X, y), r"train has shape \(60, 2, 3\).*reshape"),
            (lambda X, y: probe(np.where(X > 9, np.nan, X), y, X, y), r"train\[\d+\] holds NaN or infinity"),
            (lambda X, y: probe(X, y, X, y, loss="hinge"), r"loss='hinge' is unknown: choose 'logistic'"),
            (lambda X, y: probe(X, y, X, y, strengths=[-1.0]), r"strength=-1.0 must be positive"),
            (lambda X, y: probe_by_rank(X, y, X, y, [4, 9]), r"k=9 must be a whole number from 1 to 6: a fit with"),
            (lambda X, y: few_labels(X, y, X, y, [80]), r"budget=80 must be a whole number from 4 to 60"),
            (lambda X, y: few_labels(X, y, X, y, [3]), r"budget=3 must be .* each class needs a label"),
            (lambda X, y: few_labels(X, y, X, y, [56]), r"budget=56 wants 14 examples of class .* but there are"),
            (lambda X, y: kernel_features(X), r"K has shape \(60, 6\), but .* square"),
            (lambda X, y: kernel_features(X @ X.T, X), r"the kernel of new examples has 6 features, but K has 60"),
            (kernel_ridge, r"K has shape \(60, 6\), but .* square"),
            (lambda X, y: feature_ridge(X, y[:5]), r"targets has length 5, but the data holds 60"),
            (lambda X, y: feature_ridge(X, y, outputs=7), r"outputs=7 does not divide the 60 rows"),
            (
                lambda X, y: feature_ridge(X, y, offset=X[:, :1]),
                r"offset has shape \(60, 1\), but the targets have \(60,\)",
            ),
            (lambda X, y: feature_ridge(X, y).predict(X, X[:, :1]), r"offset has shape \(60, 1\)"),
            (lambda X, y: feature_ridge(X, np.ones((20, 3)), outputs=3), r"one row per output: use targets.reshape"),
            (lambda X, y: one_hot(y, [0, 1]), r"class .*2.* is in labels but has no labelled example in classes"),
            (lambda X, y: probe(X, y, X, y, strengths=[]), r"strengths is empty"),
            (lambda X, y: feature_ridge(X, y, ridges=[0.0]), r"ridges=\[0.0\] must be positive"),
            (lambda X, y: feature_ridge(X, y).predict(X[:, :2]), r"rows has 2 features, but the fit has 6"),
            (lambda X, y: invert(X, X[:50]), r"latents has length 50, but embeddings holds 60"),
            (lambda X, y: invert(X, X, held_out=0.01), r"held_out=0.01 of 60 examples leaves too few"),
            (lambda X, y: invert(X, X)(X[:, :4]), r"embeddings has 4 features, but the inversion has 6"),
            (lambda X, y: spectrum([1, 2], 3, 4), r"falling order"),
            (lambda X, y: spectrum([2, 1], 2, 4), r"trace=2 must be positive and at least the sum"),
            (lambda X, y: spectrum([2, 1], 4, 4).share(3), r"k=3 must be a whole number from 1 to 2"),
            (lambda X, y: spectrum([2, 1], 4, 4).share(1, "length"), r"of='length' is unknown: choose 'variance' or"),
            (lambda X, y: spectrum([2, 1], 4, 4).share(1, "squares"), r"not known: use nfk.tasks.kernel_spectrum with"),
            (lambda X, y: spectrum([2, 1], 4, 4, squares=4), r"squares=4 must be at least .* eigenvalues, 5"),
            (lambda X, y: kernel_spectrum(X[:4, :3], 1), r"K has shape \(4, 3\): it must be a square matrix"),
            (lambda X, y: kernel_spectrum(np.eye(3), 3), r"rank=3 must be a whole number from 1 to 2: fewer than"),
            (lambda X, y: spectrum([2, 1], 4, 4).components_for(95), r"share=95 must lie between 0 and 1"),
            (lambda X, y: nearest(X, X, 61), r"count=61 must be a whole number from 1 to 60"),
            (lambda X, y: nearest(X, X[:, :2]), r"queries has 2 features, but reference has 6"),
            (lambda X, y: nearest(X, X, metric="l1"), r"metric='l1' is unknown"),
            (lambda X, y: retrieval(X, y[:9], X, y), r"labels has length 9, but reference holds 60"),
            (lambda X, y: retrieval(X, np.minimum(y, 2), X, y), r"class .*3.* has no labelled example"),
            (lambda X, y: detection([1.0], [1.0, 2.0]), r"inliers has shape \(1,\)"),
            (lambda X, y: detection([1.0, np.nan], [1.0, 2.0]), r"inliers\[1\] is NaN"),
            (lambda X, y: alignment(X, X[:50]), r"second has length 50, but first holds 60"),
            (lambda X, y: alignment(X[:30], X[:30]), r"first holds 30 examples: .* needs 40"),
            (lambda X, y: embedding_targets(X, np.ones(6), 7), r"rank=7 must be a whole number from 1 to 6"),
            (lambda X, y: embedding_targets(X, np.ones(6), 2, "white"), r"kind='white' is unknown"),
            (lambda X, y: embedding_targets(X, np.zeros(6), 2, "whitened"), r"singular value 0 is zero"),
        ],
    )
    def test_a_sentence_each(self, call, message):
        with pytest.raises(ValueError, match=message):
            call(self.X, self.y)

    def test_sparse_features_where_they_are_not_taken_and_nan_in_them(self):
        wide = sparse.lil_matrix(self.X)
        with pytest.raises(TypeError, match="features is sparse, and this needs a dense matrix"):
            feature_ridge(wide, self.y)
        assert retrieval(wide, self.y, wide, self.y, 1, "euclidean").accuracy.value == 1
        wide[7, 2] = np.nan
        with pytest.raises(ValueError, match=r"train\[7\] holds NaN"):
            probe(wide, self.y, wide, self.y)
