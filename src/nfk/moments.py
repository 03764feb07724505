"""One streamed pass: the mean and the diagonal Fisher information of the gradients, and with them the scale.

mean   z = E[g]                 (0 where not centred)
Fisher F = E[(g - z)^2]         (diagonal)
scale  s = 1/sqrt(F + damping * mean(F)),  s = 0 where F is below 1e-12 * max(F)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nfk.blocks import SLAB, add_product
from nfk.gradients import Differentiator
from nfk.layout import Layout
from nfk.models import Model
from nfk.progress import Reporter
from nfk.stream import Examples, run

DEAD = 1e-12


@dataclass(frozen=True)
class Moments:
    """z, F and s, each of length P; `count` rows were averaged."""

    mean: np.ndarray
    fisher: np.ndarray
    scale: np.ndarray
    count: int

    @property
    def dead(self) -> int:
        """Parameters whose Fisher information is zero: they take no part."""
        return int((self.scale == 0).sum())

    @classmethod
    def trivial(cls, model: Model) -> Moments:
        """No mean and the identity: the NTK."""
        P, dtype = model.layout.size, model.layout.dtype
        return cls(np.zeros(P, dtype), np.ones(P, dtype), np.ones(P, dtype), 0)

    @classmethod
    def of(cls, model: Model, mean: np.ndarray, squares: np.ndarray, count: int) -> Moments:
        """From E[g] and the sum of squared deviations about it."""
        fisher = squares / count if model.centred else squares / count + mean**2
        mean = mean if model.centred else np.zeros_like(mean)
        if model.fisher == "identity":
            return cls(mean, np.ones_like(fisher), np.ones_like(fisher), count)
        largest = fisher.max()
        if not largest > 0:
            raise ValueError(
                "every parameter has zero Fisher information: the score does not change with the parameters, or all "
                "examples have one and the same gradient; check that the score depends on params, or use "
                "fisher='identity'"
            )
        alive = fisher >= DEAD * largest
        damped = fisher + model.damping * fisher.mean(dtype=np.float64).astype(fisher.dtype)
        scale = np.where(alive, 1 / np.sqrt(np.where(alive, damped, 1)), 0).astype(fisher.dtype)
        return cls(mean, fisher, scale, count)

    @property
    def trace(self) -> float:
        """Sum over the averaged rows of |s * (g - z)|^2 = count * sum(s^2 F), exactly."""
        return self.count * float(np.sum(self.scale.astype(np.float64) ** 2 * self.fisher))


@jax.jit
def _merge(count: jax.Array, mean: list, squares: list, rows: list, valid: jax.Array) -> tuple:
    """Chan's update of (count, mean, sum of squared deviations) by the first `valid` rows; and every row's |g|^2.

    E[g^2] - E[g]^2 would lose all digits of a small variance in float32.
    """
    rows = [jnp.concatenate(leaf) if isinstance(leaf, (list, tuple)) else leaf for leaf in rows]
    inside = (jnp.arange(len(rows[0])) < valid).astype(valid.dtype)
    total = count + valid
    new_mean, new_squares = [], []
    for z, m2, leaf in zip(mean, squares, rows, strict=True):
        # Sums over rows as products with a vector: XLA's reduction over the first axis is ten times slower on a CPU.
        part = inside @ leaf / valid
        spread = inside @ (leaf - part) ** 2
        shift = part - z
        new_mean.append(z + shift * (valid / total))
        new_squares.append(m2 + spread + shift**2 * (count * (valid / total)))
    return total, new_mean, new_squares, sum(jnp.sum(leaf**2, axis=1) for leaf in rows)


def estimate(
    differentiator: Differentiator,
    examples: Examples,
    microbatch: int,
    reporter: Reporter,
    keep: np.ndarray | None = None,
    sketch: Sketch | None = None,
) -> Moments:
    """One pass of per-example gradients over `examples`. Holds 4 P numbers and one microbatch of rows.

    `keep`, an array of (rows, P), receives the raw gradients as they pass; `sketch` sees them too.
    """
    layout, outputs = differentiator.layout, differentiator.outputs
    zero = layout.pieces(jnp.zeros(layout.size, layout.dtype))
    one = layout.pieces(jnp.ones(layout.size, layout.dtype))
    state = (jnp.zeros((), layout.dtype), zero, zero)
    reporter.begin_pass("moments", len(examples))
    batches = run(lambda batch: differentiator.rows(zero, one, batch), examples, 0, len(examples), microbatch, reporter)
    for begin, end, rows in batches:
        *state, norms = _merge(*state, rows, jnp.asarray((end - begin) * outputs, layout.dtype))
        check_rows(norms, begin, end, outputs, examples.name)
        if keep is not None:
            write_rows(keep[begin * outputs : end * outputs], rows, layout)
        if sketch is not None:
            sketch.add(rows, (end - begin) * outputs)
    count, mean, squares = state
    join = lambda pieces: np.concatenate([np.asarray(piece) for piece in pieces])  # noqa: E731
    return Moments.of(differentiator.model, join(mean), join(squares), int(count))


class Sketch:
    """J' Omega for a Gaussian Omega, gathered while the moments are taken: a start for the SVD that costs no pass.

    Holds `chunk` rows of gradients (none where all are `kept`) and the block itself, P x width.
    """

    def __init__(
        self, layout: Layout, width: int, chunk: int, seed: np.random.Generator, kept: np.ndarray | None = None
    ) -> None:
        self._layout, self._seed, self._kept, self._chunk = layout, seed, kept, chunk
        self._buffer = np.empty((chunk, layout.size), layout.dtype) if kept is None else kept[:chunk]
        self._begin = self._filled = 0
        self._total = np.zeros((layout.size, width), layout.dtype)
        self._sums = np.zeros(width)

    def add(self, rows: list, count: int) -> None:
        """Rows as they come; where they are kept, they stand in their place already."""
        if self._filled + count > len(self._buffer):
            self._flush()
        if self._kept is None:
            write_rows(self._buffer[self._filled : self._filled + count], rows, self._layout)
        self._filled += count

    def _flush(self) -> None:
        omega = self._seed.standard_normal((self._filled, self._total.shape[1]), dtype=self._layout.dtype)
        add_product(self._total, self._buffer[: self._filled].T, omega)
        self._sums += omega.sum(axis=0, dtype=np.float64)
        if self._kept is not None:
            self._begin += self._filled
            self._buffer = self._kept[self._begin : self._begin + self._chunk]
        self._filled = 0

    def block(self, moments: Moments) -> np.ndarray:
        """V' Omega = s * (J' Omega - z (1' Omega))."""
        self._flush()
        del self._buffer
        for start in range(0, len(self._total), SLAB):
            place = slice(start, start + SLAB)
            self._total[place] -= np.outer(moments.mean[place], self._sums)
            self._total[place] *= moments.scale[place, None]
        return self._total


def check_rows(norms: Any, begin: int, end: int, outputs: int, name: str) -> None:
    """Every gradient is finite, or the error names the first example whose is not."""
    finite = np.isfinite(np.asarray(norms)[: (end - begin) * outputs])
    if not finite.all():
        bad = begin + int(np.argmin(finite)) // outputs
        raise ValueError(
            f"the gradient of the score at {name}[{bad}] is NaN or infinite: look at score(params, {name}[{bad}]), "
            "and at operations such as log(0), sqrt(0) or 0/0 in the network"
        )


def write_rows(target: np.ndarray, rows: list, layout: Layout) -> None:
    """Copy rows, leaf by leaf, into their columns of `target`; rows beyond it are padding."""
    for place, leaf in zip(layout.slices.values(), rows, strict=True):
        if isinstance(leaf, (list, tuple)):
            per_example = np.shape(leaf[0])[0]
            for index, part in enumerate(leaf):
                if index * per_example < len(target):
                    target[index * per_example : (index + 1) * per_example, place] = part
        else:
            target[:, place] = np.asarray(leaf)[: len(target)]
