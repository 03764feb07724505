"""The fitted thing: k numbers for every example, old or new; saved, loaded, and tied to its network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nfk import files
from nfk.blocks import placed
from nfk.features import GradientFeatures, ProductFeatures
from nfk.gradients import Differentiator
from nfk.memory import human, parse_memory
from nfk.models import Model
from nfk.moments import Moments
from nfk.planning import CHUNK_ROWS, Plan
from nfk.progress import Reporter
from nfk.stream import Examples
from nfk.svd import SVD

CHUNK_BYTES = 2**30


@dataclass(frozen=True)
class Parts:
    """V_x = Q e(x) + rest, for every row: the embedding, and |V_x|^2."""

    embedding: np.ndarray
    total: np.ndarray

    @property
    def inside(self) -> np.ndarray:
        """|e(x)|^2, what the top k components hold of |V_x|^2."""
        return np.sum(self.embedding.astype(np.float64) ** 2, axis=1)

    @property
    def outside(self) -> np.ndarray:
        """|V_x|^2 - |e(x)|^2, the squared length of the rest: large where an example is unlike those of the fit."""
        return np.maximum(self.total - self.inside, 0)

    @property
    def outside_share(self) -> np.ndarray:
        """The rest as a share of |V_x|^2, between 0 and 1; 1 where V_x is zero."""
        return np.divide(self.outside, self.total, out=np.ones_like(self.total), where=self.total > 0)


@dataclass(frozen=True, eq=False)
class Embedding:
    """e(x) = V_x Q_k with V_x = s * (g(x) - z): call it on examples.

    `left` holds the left vectors of the training examples, so their embedding is `left * singular_values`.
    `residuals[i]` bounds the relative error of eigenvalue i; `explained_variance_ratio` is relative to the exact trace.
    """

    model: Model
    moments: Moments
    right: Any
    left: np.ndarray
    singular_values: np.ndarray
    residuals: np.ndarray
    trace: float
    passes: int
    score_key: jax.Array
    example_shapes: Any
    outputs: int
    engine: str = "gradients"
    unrolled: bool = False
    microbatch: int = 32
    plan: Plan | None = field(default=None, repr=False)
    probe: list[float] = field(default_factory=list, repr=False)
    checked: bool = field(default=True, repr=False)

    @classmethod
    def from_svd(
        cls,
        svd: SVD,
        model: Model,
        moments: Moments,
        key: jax.Array,
        examples: Examples,
        plan: Plan,
        probe: list[float],
    ) -> Embedding:
        return cls(
            model=model, moments=moments, right=svd.right, left=svd.left, singular_values=svd.singular_values,
            residuals=svd.residuals, trace=svd.trace, passes=svd.passes + (moments.count > 0), score_key=key,
            example_shapes=example_shapes(examples), outputs=plan.problem.outputs, engine=plan.engine,
            unrolled=plan.unrolled, microbatch=plan.microbatch, plan=plan, probe=probe,
        )  # fmt: skip

    @property
    def rank(self) -> int:
        return len(self.singular_values)

    @property
    def eigenvalues(self) -> np.ndarray:
        """Eigenvalues of the kernel matrix over the training examples."""
        return self.singular_values**2

    @property
    def explained_variance_ratio(self) -> np.ndarray:
        """Share of the kernel's trace in each component."""
        return self.eigenvalues / self.trace if self.trace > 0 else np.zeros(self.rank)

    @property
    def training(self) -> np.ndarray:
        """The embedding of the training examples, (rows, k): what calling it on them gives, without a pass."""
        return self.left * self.singular_values.astype(self.left.dtype)

    def __repr__(self) -> str:
        share, bound = self.explained_variance_ratio.sum(), self.residuals.max(initial=0)
        return f"Embedding(rank={self.rank}, explained variance {share:.2%}, residuals <= {bound:.1e}, {self.model!r})"

    @cached_property
    def _differentiator(self) -> Differentiator:
        return self.model.differentiate(self.score_key, self.outputs, self.unrolled)

    def __call__(self, X: Any, *, progress: bool | None = None) -> np.ndarray:
        """e(x) for every example: (n, k), or (n * outputs, k) for an NTK. One gradient and 2 P k operations each.

        Holds a chunk of gradients (at most 256 rows or 1 GB) beside the basis.
        """
        if len(Examples(X)) == 0:
            return np.zeros((0, self.rank), self.left.dtype)
        examples = self._checked(X)
        reporter = Reporter(progress)
        with reporter.running():
            result = self._features(examples, reporter).matmat(self.right)
        finite = np.isfinite(result).all(axis=1)
        if not finite.all():
            bad = int(np.argmin(finite)) // self.outputs
            raise ValueError(f"the gradient of the score at X[{bad}] is NaN or infinite: look at that example")
        return result

    def truncated(self, rank: int) -> Embedding:
        """The first `rank` components alone: what a fit of that rank gives, without another fit. No pass."""
        if not isinstance(rank, (int, np.integer)) or not 1 <= rank <= self.rank:
            raise ValueError(
                f"rank={rank!r} must be a whole number from 1 to the fitted rank {self.rank}: fit again with a larger "
                "rank for more components"
            )
        kept = slice(int(rank))
        right = placed(self.right[:, kept], isinstance(self.right, np.ndarray))
        return replace(
            self, right=right, left=self.left[:, kept], singular_values=self.singular_values[kept],
            residuals=self.residuals[kept],
        )  # fmt: skip

    def decompose(self, X: Any, *, progress: bool | None = None) -> Parts:
        """V_x = Q e(x) + rest: the embedding, with the squared length inside and outside the top k components.

        One gradient and 2 P k operations for each example; holds what calling it holds.
        """
        reporter = Reporter(progress)
        with reporter.running():
            features = self._gradients(self._checked(X), reporter, True, on_host=isinstance(self.right, np.ndarray))
            rows = features.matmat(self.right)
        assert features.row_norms is not None
        return Parts(rows, features.row_norms)

    def gram(
        self, X: Any, Y: Any = None, *, memory: int | str | None = None, progress: bool | None = None
    ) -> np.ndarray:
        """K(x, y) = <V_x, V_y> with the moments of the fit, all P parameters and no approximation: (rows X, rows Y).

        Tile by tile: as many Fisher vectors of X at once as fit in `memory` (half of what is free by default), and
        one pass over Y for each such tile; when all of X fits and Y is None, one pass. 2 P operations per pair, on the
        host.
        """
        first = self._checked(X)
        second = first if Y is None else self._checked(Y, "Y")
        tile = self._rows_within(memory, len(first) * self.outputs, len(second) * self.outputs)
        reporter = Reporter(progress)
        with reporter.running():
            outer = self._gradients(first, reporter, True, on_host=True, chunk=tile)
            if Y is None and tile >= len(first):
                return next(V @ V.T for _, V in outer.chunks())
            inner = self._gradients(second, reporter, True, on_host=True)
            parts = [inner.matmat(V.T).T for _, V in outer.chunks()]
        return np.concatenate(parts)

    def _rows_within(self, memory: int | str | None, rows: int, columns: int) -> int:
        """How many examples of X have Fisher vectors that fit in the budget, beside the result and a chunk of Y."""
        budget, item = parse_memory(memory), self.model.layout.dtype.itemsize
        example = self.outputs * self.model.layout.size * item
        microbatch = self._fitting_microbatch(True, max(rows, columns) // self.outputs)
        fixed = 2 * rows * columns * item + (self._chunk(microbatch) + 2 * microbatch) * example
        if budget < fixed + example:
            raise ValueError(
                f"memory={human(budget)} does not hold the {rows:,} x {columns:,} kernel and a tile of Fisher vectors: "
                f"give at least {human(fixed + example)}, or fewer examples"
            )
        return int(min((budget - fixed) // example, rows // self.outputs))

    def layer_shares(self) -> dict[str, np.ndarray]:
        """For each parameter array, its share of the squared length of every component's right vector: (k,) each.

        The shares of a component sum to one: they say in which layers it lives.
        """
        squares = {
            name: np.sum(np.asarray(self.right[place], np.float64) ** 2, axis=0)
            for name, place in self.model.layout.slices.items()
        }
        total = np.sum(list(squares.values()), axis=0)
        return {name: part / np.where(total > 0, total, 1) for name, part in squares.items()}

    def _checked(self, X: Any, name: str = "X") -> Examples:
        """Examples of the shapes, and for the network, that it was fitted with."""
        examples = Examples(X, name)
        examples.check()
        self._check_shapes(examples)
        self._check_probe(examples)
        return examples

    def _fitting_microbatch(self, on_host: bool, count: int) -> int:
        return min(self.microbatch, 64 if on_host else CHUNK_ROWS, 1 << (count - 1).bit_length())

    def _chunk(self, microbatch: int) -> int:
        """Examples whose Fisher vectors are held at a time: 256 rows or 1 GB at most, but a microbatch at least."""
        example = self.outputs * self.model.layout.size * self.model.layout.dtype.itemsize
        return max(microbatch, min(CHUNK_ROWS // self.outputs, CHUNK_BYTES // example))

    def _gradients(
        self, examples: Examples, reporter: Reporter, measure_rows: bool, *, on_host: bool, chunk: int | None = None
    ) -> GradientFeatures:
        microbatch = self._fitting_microbatch(on_host, len(examples))
        features = GradientFeatures(
            self._differentiator, examples, self.moments, microbatch=microbatch, on_host=on_host, reporter=reporter,
            chunk=chunk or self._chunk(microbatch), measure_rows=measure_rows,
        )  # fmt: skip
        features.label("embedding" if chunk is None else "kernel")
        return features

    def _features(self, examples: Examples, reporter: Reporter) -> GradientFeatures | ProductFeatures:
        on_host = isinstance(self.right, np.ndarray)
        if self.engine != "products":
            return self._gradients(examples, reporter, False, on_host=on_host)
        features = ProductFeatures(
            self._differentiator, examples, self.moments, columns=min(32, self.rank), on_host=on_host,
            microbatch=self._fitting_microbatch(on_host, len(examples)), reporter=reporter,
        )  # fmt: skip
        features.label("embedding")
        return features

    def _check_shapes(self, examples: Examples) -> None:
        shapes = example_shapes(examples)
        if shapes != self.example_shapes:
            raise ValueError(
                f"{examples.name} holds examples of shape {shapes}, but this embedding was fitted on "
                f"{self.example_shapes}: reshape {examples.name} so that its first axis runs over the examples"
            )

    def _check_probe(self, examples: Examples) -> None:
        """A loaded basis meets the function it was fitted with: equal parameters do not make an equal network."""
        if self.checked:
            return
        now = probe_score(self.model, examples)
        if not np.allclose(now, self.probe, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise ValueError(
                "this embedding was fitted with another network: with the same parameters, the score of a fixed "
                f"example was {self.probe[0]:.6g} and is {now[0]:.6g} now; pass the function it was fitted with"
            )
        object.__setattr__(self, "checked", True)  # once is enough

    def save(self, folder: str | Path) -> Path:
        """Write the embedding (safetensors and JSON, atomically); the network's weights are not in it."""
        tensors = {
            "right": np.asarray(self.right), "left": self.left, "singular_values": self.singular_values,
            "residuals": self.residuals, "mean": self.moments.mean, "fisher": self.moments.fisher,
            "scale": self.moments.scale, "key": np.asarray(jax.random.key_data(self.score_key)),
        }  # fmt: skip
        facts = {
            "trace": self.trace, "passes": self.passes, "count": self.moments.count, "outputs": self.outputs,
            "example_shapes": _as_json(self.example_shapes), "engine": self.engine, "unrolled": self.unrolled,
            "microbatch": self.microbatch, "probe": self.probe, "key_impl": str(jax.random.key_impl(self.score_key)),
            "model": files.describe_model(self.model),
        }  # fmt: skip
        return files.write(Path(folder), tensors, facts)


def load(folder: str | Path, model: Model) -> Embedding:
    """Read a saved embedding for the network it was fitted with; with any other, an error names the difference."""
    tensors, facts = files.read(Path(folder))
    files.check_model(facts["model"], model, folder)
    on_host = jax.default_backend() == "cpu"
    moments = Moments(tensors["mean"], tensors["fisher"], tensors["scale"], facts["count"])
    return Embedding(
        model=model, moments=moments, right=tensors["right"] if on_host else jnp.asarray(tensors["right"]),
        left=tensors["left"], singular_values=tensors["singular_values"], residuals=tensors["residuals"],
        trace=facts["trace"], passes=facts["passes"],
        score_key=jax.random.wrap_key_data(jnp.asarray(tensors["key"]), impl=facts["key_impl"]),
        example_shapes=_from_json(facts["example_shapes"]), outputs=facts["outputs"], engine=facts["engine"],
        unrolled=facts["unrolled"] and on_host, microbatch=facts["microbatch"], probe=facts["probe"],
        checked=False,
    )  # fmt: skip


def example_shapes(examples: Examples) -> Any:
    """The shape of one example, as a tuple, or a dict from path to tuple for a pytree."""
    flat = jax.tree_util.tree_flatten_with_path(examples.slice(0, 1))[0]
    shapes = {jax.tree_util.keystr(path): tuple(np.shape(leaf)[1:]) for path, leaf in flat}
    return shapes[""] if list(shapes) == [""] else shapes


def probe_score(model: Model, examples: Examples) -> list[float]:
    """The score of a fixed pseudo-random example: a fingerprint of the function beside that of its parameters."""
    rng = np.random.default_rng(0)

    def draw(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)[0]
        if np.issubdtype(leaf.dtype, np.integer) or leaf.dtype == bool:
            return rng.integers(0, 2, leaf.shape).astype(leaf.dtype)  # 0 and 1 are tokens of every vocabulary
        return rng.standard_normal(leaf.shape).astype(leaf.dtype)

    example = jax.tree.map(draw, examples.slice(0, 1))
    return np.asarray(model.evaluate(example, jax.random.key(0)), np.float64).reshape(-1).tolist()


def _as_json(shapes: Any) -> Any:
    return {key: list(shape) for key, shape in shapes.items()} if isinstance(shapes, dict) else list(shapes)


def _from_json(shapes: Any) -> Any:
    return {key: tuple(shape) for key, shape in shapes.items()} if isinstance(shapes, dict) else tuple(shapes)
