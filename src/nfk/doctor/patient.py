"""A network and a few examples, with the derivatives as a fit would take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from nfk.model import Differentiator, Model, split_key
from nfk.operator.moments import Moments
from nfk.operator.stream import GradientStream
from nfk.planning import Plan, Problem
from nfk.progress import Reporter
from nfk.spaces import HOST, Space
from nfk.stream import Examples

BATCH = 8  # examples through the network at once, at the most
NAMED = 5  # examples that a finding names


@dataclass(frozen=True)
class Sample:
    """Some examples and their places in X."""

    batch: Any
    places: Sequence[int]
    name: str

    def __len__(self) -> int:
        return len(self.places)

    def taken(self, indices: Sequence[int]) -> Sample:
        chosen = list(indices)
        batch = jax.tree.map(lambda leaf: leaf[chosen], self.batch)
        return replace(self, batch=batch, places=[self.places[index] for index in chosen])

    def named(self, indices: Sequence[int]) -> str:
        """'X[3], X[17] and 4 more'."""
        first = ", ".join(f"{self.name}[{self.places[index]}]" for index in indices[:NAMED])
        return first if len(indices) <= NAMED else f"{first} and {len(indices) - NAMED} more"


@dataclass(frozen=True)
class Patient:
    """A network, some examples, and the derivatives as a fit would take them."""

    model: Model
    sample: Sample
    differentiator: Differentiator
    space: Space
    batch: int
    key: jax.Array

    @classmethod
    def of(cls, model: Model, sample: Sample, problem: Problem, plan: Plan | None, key: Any) -> Patient:
        space = model.network.space or HOST
        batching, batch = (plan.batches.batching, plan.batches.gradients) if plan else ("vmap", BATCH)
        differentiator = model.network.differentiate(split_key(key)[2], problem.outputs, batching, space.device)
        batch = min(max(batch, 2), BATCH, len(sample))
        return cls(model, sample, differentiator, space, batch, key)

    @property
    def eps(self) -> float:
        return float(np.finfo(self.model.layout.dtype).eps)

    @property
    def outputs(self) -> int:
        return self.differentiator.outputs

    @property
    def groups(self) -> list[list[int]]:
        """Every example once, in batches of one size: the last begins anew from the first example."""
        count = len(self.sample)
        return [[(start + i) % count for i in range(self.batch)] for start in range(0, count, self.batch)]

    def pieces(self, vector: np.ndarray) -> list:
        return self.stream().pieces(vector)

    def rows(self, indices: Sequence[int], moments: Moments | None = None) -> Float[np.ndarray, "n outputs P"]:
        """s * (g(x) - z) of these examples in one batch, raw gradients without `moments`."""
        layout = self.model.layout
        mean = np.zeros(layout.size, layout.dtype) if moments is None else moments.mean
        scale = np.ones(layout.size, layout.dtype) if moments is None else moments.scale
        batch = self.sample.taken(indices).batch
        leaves = self.differentiator.rows(self.pieces(mean), self.pieces(scale), batch)
        whole = [np.concatenate(leaf) if isinstance(leaf, (list, tuple)) else self.space.get(leaf) for leaf in leaves]
        return np.concatenate(whole, axis=1).reshape(len(indices), self.outputs, layout.size)

    def only(self, indices: Sequence[int]) -> Patient:
        """The same with some of the examples."""
        return replace(self, sample=self.sample.taken(indices), batch=min(self.batch, len(indices)))

    def stream(self) -> GradientStream:
        examples = Examples(self.sample.batch, self.sample.name)
        return GradientStream(self.differentiator, examples, self.space, self.batch, Reporter(show=False))


def squares_of(rows: np.ndarray) -> Float[np.ndarray, " n"]:
    """|row|^2 for every example, summed in float64."""
    flat = rows.reshape(len(rows), int(np.prod(rows.shape[1:])))  # there may be none at all
    return np.einsum("ij,ij->i", flat, flat, dtype=np.float64)
