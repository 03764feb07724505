"""scikit-learn's contract."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from registry import mlp, mlp_params, vectors
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import nfk
from nfk.sklearn import FisherEmbedding

X = vectors(np.float32, 6, count=60)
y = (X[:, 0] * X[:, 1] > 0).astype(int)
MODEL = nfk.classifier(mlp, mlp_params(np.float32, 6, 8, 4))


def test_transform_of_the_training_data_is_fit_transform():
    estimator = FisherEmbedding(MODEL, n_components=5)
    fitted = estimator.fit_transform(X)
    np.testing.assert_allclose(estimator.transform(X), fitted, atol=2e-4 * np.abs(fitted).max())
    assert fitted.shape == (60, 5)
    assert estimator.n_components_ == 5
    np.testing.assert_allclose(estimator.singular_values_, estimator.embedding_.singular_values)


def test_clone_shares_the_model_and_copies_the_options():
    estimator = FisherEmbedding(MODEL, n_components=3, tol=1e-2)
    copy = clone(estimator)
    assert copy is not estimator
    assert copy.get_params() == estimator.get_params()
    assert copy.model is MODEL


def test_pipeline_and_grid_search():
    pipeline = make_pipeline(FisherEmbedding(MODEL, n_components=4), LogisticRegression())
    search = GridSearchCV(pipeline, {"fisherembedding__n_components": [2, 6]}, cv=2).fit(X, y)
    assert search.best_params_["fisherembedding__n_components"] in (2, 6)
    assert search.predict(X).shape == (60,)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_feature_names_and_pandas_output():
    frame = FisherEmbedding(MODEL, n_components=2).set_output(transform="pandas").fit_transform(X)
    assert list(frame.columns) == ["fisherembedding0", "fisherembedding1"]
    assert len(frame) == 60


def test_a_fraction_of_variance():
    estimator = FisherEmbedding(MODEL, n_components=0.8).fit(X)
    assert estimator.explained_variance_ratio_.sum() >= 0.8
    assert estimator.transform(X[:3]).shape == (3, estimator.n_components_)


def test_an_ntk_has_its_outputs_side_by_side():
    network = nfk.network(mlp, mlp_params(np.float32, 6, 8, 3))
    estimator = FisherEmbedding(network, n_components=4).fit(X)
    assert estimator.transform(X).shape == (60, 12)
    assert len(estimator.get_feature_names_out()) == 12
    np.testing.assert_array_equal(estimator.transform(X)[0, :4], estimator.embedding_(X)[0])


def test_a_fitted_pipeline_is_pickled():
    estimator = FisherEmbedding(MODEL, n_components=3, random_state=None).fit(X)
    again = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_allclose(again.transform(X), estimator.transform(X), rtol=1e-6)


def test_bad_use_is_told():
    with pytest.raises(NotFittedError):
        FisherEmbedding(MODEL).transform(X)
    with pytest.raises(TypeError, match="model is a dict: pass what nfk.classifier"):
        FisherEmbedding({}).fit(X)


def test_a_folder_for_what_does_not_fit_in_memory(tmp_path):
    with pytest.raises(OSError, match="scratch='.*nowhere' cannot be written"):
        FisherEmbedding(MODEL, 3, scratch=tmp_path / "nowhere").fit(X)
