"""scikit-learn's contract around `nfk.fit`: for Pipeline, GridSearchCV, clone and set_output."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from nfk.fitting import fit
from nfk.model import Model
from nfk.planning import Engine, MethodName, ScratchFolder


class FisherEmbedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Embed examples by the top eigenfunctions of a model's Fisher kernel.

    `n_components` is a number, or a fraction of variance to explain. An NTK with several outputs gives
    `outputs * n_components` features per example. Options are those of `nfk.fit` of the same names; after `fit`,
    `embedding_` is the `nfk.Embedding`.

        make_pipeline(FisherEmbedding(model, n_components=64), LogisticRegression())

    Args:
        model: what `nfk.classifier`, `nfk.torch.classifier`, ... return.
        n_components: a number of components, or a fraction of variance to explain.
        random_state: a seed, or numpy's `RandomState`.
        method: as for `nfk.fit`.
        engine: as for `nfk.fit`.
        memory: a budget that is kept, as for `nfk.fit`.
        scratch: a folder for what does not fit in memory, as for `nfk.fit`.
        tol: a bound on every component's relative residual.
        progress: a bar on standard error: always, never, or (None) when it is a terminal.
    """

    method: MethodName
    engine: Engine | None
    scratch: ScratchFolder | None

    def __init__(
        self,
        model: Model,
        n_components: int | float = 128,
        *,
        random_state: int | np.random.RandomState | None = 0,
        method: MethodName = "auto",
        engine: Engine | None = None,
        memory: int | str | None = None,
        scratch: ScratchFolder | None = None,
        tol: float = 1e-2,
        progress: bool | None = None,
    ) -> None:
        self.model = model
        self.n_components = n_components
        self.random_state = random_state
        self.method = method
        self.engine = engine
        self.memory = memory
        self.scratch = scratch
        self.tol = tol
        self.progress = progress

    def fit(self, X: Any, y: Any = None) -> FisherEmbedding:
        """Find the eigenfunctions over X; y is ignored. About 8 passes over the gradients.

        Args:
            X: the examples, as for `nfk.fit`.
            y: ignored.
        """
        self._fit(X)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> np.ndarray:
        """The same numbers as `fit(X).transform(X)`, without the pass that `transform` makes.

        Args:
            X: the examples, as for `nfk.fit`.
            y: ignored.
        """
        self._fit(X)
        return self._per_example(self.embedding_.training)

    def transform(self, X: Any) -> np.ndarray:
        """e(x) for every example, one row each. One gradient per example.

        Args:
            X: examples like those of the fit.
        """
        check_is_fitted(self, "embedding_")
        return self._per_example(self.embedding_(X, progress=self.progress))

    def _fit(self, X: Any) -> None:
        if not isinstance(self.model, Model):
            raise TypeError(f"model is a {type(self.model).__name__}: pass what nfk.classifier, nfk.gan, ... return")
        self.embedding_ = fit(
            self.model, X, self.n_components, key=self._seed(), method=self.method, engine=self.engine,
            memory=self.memory, scratch=self.scratch, tol=self.tol, progress=self.progress,
        )  # fmt: skip
        if np.ndim(X) == 2:
            self.n_features_in_ = np.shape(X)[1]
        self.n_components_ = self.embedding_.rank
        self.singular_values_ = self.embedding_.singular_values
        self.explained_variance_ratio_ = self.embedding_.explained_variance_ratio
        self._n_features_out = self.embedding_.rank * self.embedding_.outputs

    def _seed(self) -> int:
        if isinstance(self.random_state, (int, np.integer)):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _per_example(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(-1, self._n_features_out)
