"""One streamed pass: the mean and the diagonal Fisher information of the gradients, and with them the scale.

mean   z = E[g]                 (0 where not centred)
Fisher F = E[(g - z)^2]         (diagonal)
scale  s = 1/sqrt(F + damping * mean(F)),  s = 0 where F is below 1e-12 * max(F), or rounding error beside E[g^2]

Squares of very small or very large gradients do not fit in float32, so they are taken of `unit * g`, with a power of
two that the first gradients decide; it is 1 for gradients of ordinary size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float

from nfk.distributed import Replicas
from nfk.model import Model
from nfk.operator.stream import GradientStream, Lengths
from nfk.spaces import Block, Space, Store
from nfk.spaces.space import Leaves

DEAD = 1e-12
ROUNDING = 10.0  # a deviation below this many eps of the gradient itself is rounding error
ORDINARY = (2.0**-10, 2.0**10)  # the largest entry of a gradient that needs no unit of its own


@dataclass(frozen=True)
class Moments:
    """V_x = factor * scale * (g(x) - mean), over `count` rows; each array of length P.

    `spread` is (unit * factor)^2 F. What the solver sees are the rows without `factor`, which are of ordinary size.
    """

    mean: Float[np.ndarray, " P"]
    spread: Float[np.ndarray, " P"]
    scale: Float[np.ndarray, " P"]
    count: int
    unit: float = 1.0
    factor: float = 1.0

    @property
    def fisher(self) -> Float[np.ndarray, " P"]:
        """F, the diagonal Fisher information."""
        unit = self.unit * self.factor
        return self.spread if unit == 1 else self.spread / self.spread.dtype.type(unit) ** 2

    @property
    def dead(self) -> int:
        """Parameters whose Fisher information is zero: they take no part."""
        return int((self.scale == 0).sum())

    @property
    def trace(self) -> float:
        """Sum over the averaged rows of |s * (g - z)|^2 = count * sum(s^2 F), exactly, as the solver sees them."""
        relative = self.scale.astype(np.float64) / (self.unit * self.factor)
        return self.count * float(np.sum(relative**2 * self.spread))

    @classmethod
    def trivial(cls, model: Model, unit: float = 1.0) -> Moments:
        """No mean and the identity: the NTK."""
        P, dtype = model.layout.size, model.layout.dtype
        one = np.full(P, unit, dtype)
        return cls(np.zeros(P, dtype), np.ones(P, dtype), one, 0, unit, 1 / unit)

    @classmethod
    def of(cls, model: Model, mean: np.ndarray, squares: np.ndarray, count: int, unit: float = 1.0) -> Moments:
        """From E[unit g] and the sum of squared deviations about it."""
        spread = squares / count if model.centred else squares / count + mean**2
        alive = spread > (ROUNDING * np.finfo(spread.dtype).eps) ** 2 * (spread + (mean**2 if model.centred else 0))
        centre = mean / spread.dtype.type(unit) if model.centred else np.zeros_like(mean)
        if model.fisher == "identity":
            scale = np.where(alive, spread.dtype.type(unit), 0) if model.centred else np.full_like(mean, unit)
            return cls(centre, np.ones_like(spread), scale, count, unit, 1 / unit)
        largest = spread.max(where=alive, initial=0)
        if not largest > 0:
            raise ValueError(
                "every parameter has zero Fisher information: the score does not change with the parameters, or all "
                "examples have one and the same gradient; check that the score depends on params, or use "
                "fisher='identity'"
            )
        alive &= spread >= DEAD * largest
        damped = spread + model.damping * spread.mean(dtype=np.float64).astype(spread.dtype)
        scale = np.where(alive, unit / np.sqrt(np.where(alive, damped, 1)), 0).astype(spread.dtype)
        return cls(centre, spread, scale, count, unit)


class Observer(Protocol):
    """Sees raw gradients while the moments are taken."""

    def write(self, first: int, leaves: Leaves, count: int) -> None: ...


def estimate(stream: GradientStream, model: Model, observers: Sequence[Observer] = ()) -> Moments:
    """One pass of per-example gradients over the examples. Holds 4 P numbers, one microbatch of rows, and
    8 rows of small microbatches (at most 32 MB).

    `observers` see the raw gradients as they pass.
    """
    found = stream.space.processes.together(lambda: _tallied(stream, observers))
    mean, squares, count, unit = united(stream.space, *found)
    return Moments.of(model, mean, squares, count, unit or 1.0)


def _tallied(stream: GradientStream, observers: Sequence[Observer]) -> tuple[np.ndarray, np.ndarray, int, float | None]:
    """Mean, sum of squared deviations and number of the rows of this process, in a unit of their own."""
    tally, unit, lengths = stream.space.tally(stream.layout, stream.row_ranges), None, Lengths(stream)
    for begin, end, leaves in stream.sweep():
        rows = slice(begin * stream.outputs, end * stream.outputs)
        unit = unit or unit_of(stream.space.largest(leaves))
        lengths.add(rows, tally.add(leaves, rows.stop - rows.start, unit or 1.0))
        for observer in observers:
            observer.write(rows.start, leaves, rows.stop - rows.start)
        del leaves  # before the next microbatch is begun: the plan counts two of them
    lengths.result()
    return *tally.result(), unit


def united(
    space: Space, mean: Float[np.ndarray, " P"], squares: Float[np.ndarray, " P"], count: int, unit: float | None
) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"], int, float | None]:
    """Mean, sum of squared deviations, number of rows and their unit, over all processes with rows of their own: two
    sums of length P.

    By Chan's formula, in the smallest of the units: that of the largest gradients."""
    processes = space.processes
    if not isinstance(processes, Replicas):
        return mean, squares, count, unit
    counts, units = zip(*processes.everyone((count, unit)), strict=True)
    common, total = min((one for one in units if one is not None), default=None), sum(counts)
    ratio = mean.dtype.type(0 if unit is None or common is None else common / unit)
    mean, squares, own = mean * ratio, squares * ratio**2, mean.dtype.type(count)
    add = lambda vector: space.get(processes.sum(space.put(vector[:, None])))[:, 0]  # noqa: E731
    whole = add(mean * (own / mean.dtype.type(total)))
    return whole, add(squares + own * (mean - whole) ** 2), total, common


def unit_of(largest: float) -> float | None:
    """A power of two that brings the largest entry near one, 1 where it is of ordinary size, None where it is zero."""
    if largest == 0:
        return None
    if not np.isfinite(largest) or ORDINARY[0] <= largest <= ORDINARY[1]:
        return 1.0
    return float(np.clip(2.0 ** -np.round(np.log2(largest)), 2.0**-120, 2.0**120))


class Sketch:
    """J' Omega for a Gaussian Omega, gathered while the moments are taken: a start for the SVD that costs no pass.

    Holds `chunk` rows of gradients (none where all are `kept`) and the block itself, P x width.
    """

    def __init__(
        self, stream: GradientStream, seed: Sequence[int], width: int, chunk: int, kept: Store | None = None
    ) -> None:
        layout = stream.layout
        self._space, self._ranges = stream.space, stream.row_ranges
        self._seed, self._chunk, self._kept, self._dtype = seed, chunk, kept, layout.dtype
        self._rows = self._space.store(chunk, layout) if kept is None else kept
        self._begin = self._filled = 0
        self._width, self._total, self._sums = width, None, None

    def write(self, first: int, leaves: Leaves, count: int) -> None:
        """Rows as they come; where they are kept, they stand in their place already."""
        if self._filled + count > self._chunk:
            self._flush()
        if self._kept is None:
            self._rows.write(self._filled, leaves, count)
        self._filled += count

    def _flush(self) -> None:
        first = 0 if self._kept is None else self._begin
        block = self._rows.block(slice(first, first + self._filled))
        rows = slice(self._begin, self._begin + self._filled)
        omega = self._space.normals(self._seed, self._ranges, rows, self._width, self._dtype)
        self._total = self._space.outer(self._total, block, omega)
        self._sums = self._space.add_sums(self._sums, omega)
        self._begin, self._filled = self._begin + self._filled, 0
        if self._kept is None:
            self._rows.clear()

    def block(self, moments: Moments) -> Float[Block, "P width"]:
        """V' Omega = s * (J' Omega - z (1' Omega))."""
        if self._filled:
            self._flush()
        del self._rows
        sums = self._space.sums_of(self._sums)[: self._width]
        return self._space.normalise(self._space.summed(self._total), moments.scale, moments.mean, sums)
