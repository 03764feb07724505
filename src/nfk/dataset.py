"""A data set as one vector: the diagonal of the Fisher information that a network has of it.

F_j = E_x [(g_j(x) - z_j)^2] over the examples themselves, each gradient squared on its own. It says which weights of
the network a data set exercises; two data sets are near when they exercise the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from nfk.identity import describe
from nfk.model import Model, require_model, split_key
from nfk.operator.moments import estimate
from nfk.operator.stream import GradientStream
from nfk.operator.together import own_examples
from nfk.planning import Problem, plan_rows
from nfk.progress import Reporter
from nfk.spaces import space_for
from nfk.store import Facts
from nfk.stream import Examples


@dataclass(frozen=True)
class DatasetVector:
    """F, of length P, over `count` rows; `slices` says where each parameter array stands in it.

    `network` describes the parameters that it was taken with: vectors of other ones cannot be compared.
    """

    values: np.ndarray
    slices: dict[str, slice]
    count: int
    network: Facts = field(repr=False)

    def by_layer(self) -> dict[str, float]:
        """The mean of F over each parameter array: a short vector, for reading."""
        return {name: float(self.values[place].mean(dtype=np.float64)) for name, place in self.slices.items()}

    def distance(self, other: DatasetVector) -> float:
        """1 - cosine of F / (F + F') and F' / (F + F'): from 0 (the same) to 1; blind to the scale of a weight.

        Symmetric. Weights that neither exercises take no part.
        """
        if self.network != other.network:
            raise ValueError("the two data-set vectors come from different networks: use one network for both")
        both = self.values.astype(np.float64) + other.values
        used = both > 0
        a, b = self.values[used] / both[used], other.values[used] / both[used]
        length = np.linalg.norm(a) * np.linalg.norm(b)
        return float(1 - a @ b / length) if length > 0 else 0.0


def dataset_vector(
    model: Model, X: Any, *, key: int | jax.Array = 0, memory: int | str | None = None, progress: bool | None = None
) -> DatasetVector:
    """The Fisher diagonal of `model` over the examples X. One gradient per example.

    Holds 4 P numbers, up to 8 rows of P (at most 32 MB) and two microbatches of gradients, of some megabytes each or of
    one example. The expectation is
    over X whatever the model says, since X is what is described.

    Args:
        model: what `nfk.classifier`, ... return.
        X: the examples, as for `nfk.fit`.
        key: a seed or a jax key, for the score's own randomness.
        memory: a budget, as for `nfk.fit`.
        progress: a bar on standard error: always, never, or (None) when it is a terminal.
    """
    require_model(model)
    examples = Examples(X)
    examples.check()
    model = replace(model, expectation="data", fisher="diagonal")
    problem, space = Problem.of(model, examples), space_for(None, model.network)
    batches = plan_rows(problem, space, memory).batches
    score_key = split_key(key)[2]
    differentiator = model.network.differentiate(score_key, problem.outputs, batches.batching, space.device)
    with Reporter(progress).running() as reporter:
        reporter.stage("moments")
        own = own_examples(examples, space)
        moments = estimate(GradientStream(differentiator, own, space, batches.gradients, reporter), model)
    return DatasetVector(moments.fisher, model.layout.slices, moments.count, describe(model))
