"""V over several processes, each of which has an operator over its own rows.

    V  M = the rows of all processes, one after another
    V' W = the sum over the processes: the one reduction of a pass

Blocks of P rows and of N rows are whole, and the same, in every process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from jaxtyping import Float

from nfk.operator.gradients import GradientOperator
from nfk.operator.products import ProductOperator
from nfk.spaces import Block
from nfk.spaces.processes import Own, Processes, own_range, together
from nfk.stream import Examples

Result = TypeVar("Result")


def own_examples(examples: Examples, processes: Processes | None) -> Examples:
    """Those that this process reads; all of them where there is one process."""
    if processes is None:
        return examples
    start, stop = own_range(len(examples), processes)
    part = examples.slice(start, stop) if examples.is_tree else Own(examples.source, start, stop)
    return Examples(part, f"{examples.name}[{start}:{stop}]")


def of_all(
    operator: GradientOperator | ProductOperator, trace: float | None = None
) -> GradientOperator | ProductOperator | Together:
    """An operator over all rows, from one over those of this process; `trace` is that of all rows, if known."""
    processes = operator.space.processes
    return operator if processes is None else Together(operator, processes, trace)


class Together:
    """The operator of all processes; costs and memory are those of one over its own rows."""

    def __init__(self, own: GradientOperator | ProductOperator, processes: Processes, trace: float | None) -> None:
        self.own, self.processes = own, processes
        self.space, self.row_space = own.space, own.row_space
        counts = processes.everyone(own.shape[0])
        start = sum(counts[: processes.rank])
        self._place = slice(start, start + own.shape[0])
        self.shape, self.dtype = (sum(counts), own.shape[1]), own.dtype
        self._trace = trace
        self._row_squares: np.ndarray | None = None

    @property
    def passes(self) -> int:
        return self.own.passes

    @passes.setter
    def passes(self, count: int) -> None:
        self.own.passes = count

    def matmat(self, block: Float[Block, "P U"]) -> Float[Block, "rows U"]:
        return self.processes.stacked(self._together(lambda: self.own.matmat(block)))

    def rmatmat(self, weights: Float[Block, "rows U"]) -> Float[Block, "P U"]:
        return self.processes.sum(self._together(lambda: self.own.rmatmat(weights[self._place])))

    def fused(self, block: Float[Block, "P U"]) -> tuple[Float[Block, "rows U"], Float[Block, "P U"]]:
        rows, total = self._together(lambda: self.own.fused(block))
        return self.processes.stacked(rows), self.processes.sum(total)

    def images(self, block: Float[Block, "P U"]) -> Float[np.ndarray, "rows U"]:
        return np.concatenate(self.processes.everyone(self._together(lambda: self.own.images(block))))

    def gram(self, double: bool = False) -> Float[np.ndarray, "rows rows"]:
        raise NotImplementedError("the kernel matrix needs the rows of all processes in one")

    def dense(self) -> Float[np.ndarray, "rows P"]:
        raise NotImplementedError("V needs the rows of all processes in one")

    def trace(self) -> float:
        if self._trace is None:
            self._trace = float(sum(self.processes.everyone(self._together(self.own.trace))))
        return self._trace

    @property
    def row_squares(self) -> Float[np.ndarray, " rows"] | None:
        """Of all rows, when a pass has measured them."""
        if self._row_squares is None and isinstance(self.own, GradientOperator) and self.own.row_squares is not None:
            self._row_squares = np.concatenate(self.processes.everyone(self.own.row_squares))
        return self._row_squares

    def _together(self, work: Callable[[], Result]) -> Result:
        return together(self.processes, work)
