"""The fitted thing: k numbers for every example, old or new."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from nfk import identity, packing
from nfk.distributed import Replicas
from nfk.identity import Kind, Shape, Shapes
from nfk.model import Model, require_model
from nfk.notebook import Shown
from nfk.operator.gradients import GradientOperator
from nfk.operator.moments import Moments
from nfk.operator.products import ProductOperator
from nfk.operator.stream import GradientStream
from nfk.operator.together import of_all, own_examples
from nfk.planning import Batches, Engine, Plan, Problem, plan_gram, plan_rows
from nfk.progress import Reporter
from nfk.ranges import grid
from nfk.spaces import Block, Space, default_space, space_for
from nfk.stream import Examples


@dataclass(frozen=True)
class Parts(Shown):
    """V_x = Q e(x) + rest, for every row: the embedding, and |V_x|^2."""

    embedding: Float[np.ndarray, "rows k"]
    total: Float[np.ndarray, " rows"]

    @property
    def inside(self) -> Float[np.ndarray, " rows"]:
        """|e(x)|^2, what the top k components hold of |V_x|^2."""
        return np.sum(self.embedding.astype(np.float64) ** 2, axis=1)

    @property
    def outside(self) -> Float[np.ndarray, " rows"]:
        """|V_x|^2 - |e(x)|^2, the squared length of the rest: large where an example is unlike those of the fit."""
        return np.maximum(self.total - self.inside, 0)

    @property
    def outside_share(self) -> Float[np.ndarray, " rows"]:
        """The rest as a share of |V_x|^2, between 0 and 1; 1 where V_x is zero."""
        return np.divide(self.outside, self.total, out=np.ones_like(self.total), where=self.total > 0)


@dataclass(frozen=True, eq=False)
class Embedding(Shown):
    """e(x) = V_x Q_k with V_x = s * (g(x) - z): call it on examples.

    `left` holds the left vectors of the training examples, so their embedding is `left * singular_values`; `right` is
    Q_k, in `space`. `residuals[i]` bounds the relative error of eigenvalue i; `explained_variance_ratio` is relative to
    the exact trace.
    """

    model: Model
    moments: Moments
    right: Float[Block, "P k"]
    left: Float[np.ndarray, "rows k"]
    singular_values: Float[np.ndarray, " k"]
    residuals: Float[np.ndarray, " k"]
    trace: float
    passes: int
    score_key: jax.Array = field(repr=False)
    kind: Kind
    outputs: int
    canary: list[float] = field(repr=False)
    engine: Engine = "gradients"
    space: Space = field(default_factory=default_space, repr=False)
    plan: Plan | None = field(default=None, repr=False)

    @property
    def rank(self) -> int:
        return len(self.singular_values)

    @property
    def eigenvalues(self) -> Float[np.ndarray, " k"]:
        """Eigenvalues of the kernel matrix over the training examples."""
        return self.singular_values**2

    @property
    def explained_variance_ratio(self) -> Float[np.ndarray, " k"]:
        """Share of the kernel's trace in each component."""
        return self.eigenvalues / self.trace if self.trace > 0 else np.zeros(self.rank)

    @property
    def training(self) -> Float[np.ndarray, "rows k"]:
        """The embedding of the training examples, (rows, k): what calling it on them gives, without a pass."""
        return self.left * self.singular_values.astype(self.left.dtype)

    @property
    def example_shapes(self) -> Shape | Shapes:
        """The shape of one example, or those of a pytree by path."""
        return self.kind.plain

    def __repr__(self) -> str:
        share, bound = self.explained_variance_ratio.sum(), self.residuals.max(initial=0)
        return f"Embedding(rank={self.rank}, explained variance {share:.2%}, residuals <= {bound:.1e}, {self.model!r})"

    def _facts(self) -> dict[str, Any]:
        return {
            "components": self.rank,
            "examples": len(self.left) // self.outputs,
            "explained variance": f"{self.explained_variance_ratio.sum():.2%} of the exact trace",
            "certificate": f"every eigenvalue within {self.residuals.max(initial=0):.1e} of a true one (relative)",
            "passes": self.passes,
            "model": self.model,
        }

    def _curve(self) -> Float[np.ndarray, " k"]:
        return np.cumsum(self.explained_variance_ratio)

    def __call__(
        self, X: Any, *, memory: int | str | None = None, progress: bool | None = None
    ) -> Float[np.ndarray, "rows k"]:
        """e(x) for every example: (n, k), or (n * outputs, k) for an NTK. One gradient and 2 P k operations each.

        Args:
            X: examples like those of the fit: an array, a pytree of arrays, or anything with a length and slices.
            memory: a budget for what is held beside the basis and the data ("500MB"): a chunk of gradients, of at
                most 256 rows or 1 GB. Two thirds of what is free by default.
            progress: a bar on standard error: always, never, or (None) when it is a terminal.
        """
        if len(Examples(X)) == 0:
            return np.zeros((0, self.rank), self.left.dtype)
        examples = self._checked(X)
        plan = plan_rows(self._problem(examples), self.space, memory, self.rank, self.engine)
        with Reporter(progress).running() as reporter:
            reporter.stage("embedding")
            stream, b = self._stream(self._own(examples), plan.batches, reporter), plan.batches
            if self.engine == "products":
                operator = ProductOperator(stream, self.moments, b.products, b.columns)
            else:
                operator = GradientOperator(stream, self.moments, b.chunk, measure=False)
            result = operator.row_space.get(of_all(operator).matmat(self.right))
        finite = np.isfinite(result).all(axis=1)
        if not finite.all():
            bad = int(np.argmin(finite)) // self.outputs
            raise ValueError(f"the gradient of the score at X[{bad}] is NaN or infinite: look at that example")
        return self._scaled(result)

    def decompose(self, X: Any, *, memory: int | str | None = None, progress: bool | None = None) -> Parts:
        """V_x = Q e(x) + rest: the embedding, with the squared length inside and outside the top k components.

        One gradient and 2 P k operations for each example; holds what calling it holds. Arguments as for calling it.

        Args:
            X: examples like those of the fit.
            memory: a budget, as for calling it.
            progress: a bar on standard error: always, never, or (None) when it is a terminal.
        """
        examples = self._checked(X)
        plan = plan_rows(self._problem(examples), self.space, memory, self.rank)
        with Reporter(progress).running() as reporter:
            reporter.stage("embedding")
            stream = self._stream(self._own(examples), plan.batches, reporter)
            operator = of_all(GradientOperator(stream, self.moments, plan.batches.chunk))
            result = operator.row_space.get(operator.matmat(self.right))
        assert not isinstance(operator, ProductOperator)
        assert operator.row_squares is not None
        return Parts(self._scaled(result), operator.row_squares * self.moments.factor**2)

    def gram(
        self, X: Any, Y: Any = None, *, memory: int | str | None = None, progress: bool | None = None
    ) -> Float[np.ndarray, "rowsX rowsY"]:
        """K(x, y) = <V_x, V_y> with the moments of the fit, all P parameters and no approximation: (rows X, rows Y).

        Tile by tile: as many Fisher vectors of X at once as fit in the budget, and one pass over Y for each such tile;
        when all of X fits and Y is None, one pass. 2 P operations per pair.

        Args:
            X: examples like those of the fit.
            Y: examples too; X itself by default.
            memory: a budget for the kernel, a tile of X and a chunk of Y. Two thirds of what is free by default.
            progress: a bar on standard error: always, never, or (None) when it is a terminal.
        """
        first = self._checked(X)
        second, processes = first if Y is None else self._checked(Y, "Y"), self.space.processes
        with Reporter(progress).running() as reporter:
            reporter.stage("kernel")
            work = partial(self._kernel, self._own(first), second, Y is None, memory, reporter)
            found = processes.together(work)
            K = np.concatenate(processes.everyone(found)) if isinstance(processes, Replicas) else found
        K *= self.moments.factor**2
        return K

    def _kernel(
        self, first: Examples, second: Examples, same: bool, memory: int | str | None, reporter: Reporter
    ) -> Float[np.ndarray, "rowsX rowsY"]:
        """<V_x, V_y> as the solver sees them; `same` where the first are among the second."""
        plan = plan_gram(self._problem(first), self._problem(second), self.space, memory)
        K = np.empty((len(first) * self.outputs, len(second) * self.outputs), self.left.dtype)
        outer, inner = (
            GradientOperator(self._stream(examples, plan.batches, reporter), self.moments, chunk)
            for examples, chunk in ((first, plan.tile), (second, plan.batches.chunk))
        )
        for tile, held in outer.chunks():
            columns, among = outer.ranges.places(tile)
            everywhere = self.space.everywhere(held)
            once = same and len(K) == K.shape[1] and tile == slice(0, outer.ranges.each)
            for rows, V in ((tile, held),) if once else inner.chunks():
                whole, there = inner.ranges.places(rows)
                K[grid(columns, whole)] = self.space.kernel(V, everywhere)[there][:, among].T
        return K

    def truncated(self, rank: int) -> Embedding:
        """The first `rank` components alone: what a fit of that rank gives, without another fit. No pass.

        Args:
            rank: how many components to keep.
        """
        if not isinstance(rank, (int, np.integer)) or not 1 <= rank <= self.rank:
            raise ValueError(
                f"rank={rank!r} must be a whole number from 1 to the fitted rank {self.rank}: fit again with a larger "
                "rank for more components"
            )
        kept = slice(0, int(rank))
        return replace(
            self, right=self.space.columns(self.right, kept), left=self.left[:, kept],
            singular_values=self.singular_values[kept], residuals=self.residuals[kept],
        )  # fmt: skip

    def layer_shares(self) -> dict[str, Float[np.ndarray, " k"]]:
        """For each parameter array, its share of the squared length of every component's right vector: (k,) each.

        The shares of a component sum to one: they say in which layers it lives.
        """
        places = self.model.layout.slices.items()
        squares = {name: self.space.norms(self.space.between(self.right, place)) ** 2 for name, place in places}
        total = np.sum(list(squares.values()), axis=0)
        return {name: part / np.where(total > 0, total, 1) for name, part in squares.items()}

    def _stream(self, examples: Examples, batches: Batches, reporter: Reporter) -> GradientStream:
        network, device = self.model.network, self.space.device
        differentiator = network.differentiate(self.score_key, self.outputs, batches.batching, device)
        return GradientStream(differentiator, examples, self.space, batches.gradients, reporter)

    def _own(self, examples: Examples) -> Examples:
        return own_examples(examples, self.space)

    def _problem(self, examples: Examples) -> Problem:
        return Problem.of(self.model, examples)

    def _scaled(self, rows: np.ndarray) -> np.ndarray:
        """Rows as the solver sees them, in the kernel's own scale."""
        return rows if self.moments.factor == 1 else rows * rows.dtype.type(self.moments.factor)

    def _checked(self, X: Any, name: str = "X") -> Examples:
        """Examples of the shapes, and for the network, that it was fitted with."""
        examples = Examples(X, name)
        self.space.processes.together(lambda: self._check(examples))
        return examples

    def _check(self, examples: Examples) -> None:
        examples.check(self.space.own(len(examples)))
        self.kind.check(examples)
        if self.kind.dtype is None:  # so its function could not be tried when it was loaded
            identity.check_canary(self.model, examples.slice(0, 1), self.canary)

    def save(self, folder: str | Path) -> Path:
        """Write the embedding (safetensors and JSON, atomically); the network's weights are not in it.

        Args:
            folder: made if it is not there; an embedding that is there is replaced, whole.
        """
        return packing.write(self, Path(folder))


def load(folder: str | Path, model: Model, *, mesh: Any = None) -> Embedding:
    """Read a saved embedding for the network it was fitted with; with any other, an error names the difference.

    Args:
        folder: where `Embedding.save`, `save=` or `nfk fit` wrote it.
        model: the model of the fit, with the same parameters.
        mesh: the devices that hold the basis and compute embeddings, as for `nfk.fit`; not those of the fit, need be.
    """
    require_model(model)
    return Embedding(model=model, **packing.read(Path(folder), model, space_for(mesh, model.network)))
