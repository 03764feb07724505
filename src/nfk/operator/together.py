"""V over several processes, each of which has an operator over its own rows.

    V  M = the rows of all processes, one after another
    V' W = the sum over the processes: the one reduction of a pass
    V V' = a tile of every process at a time, which all of them hold, met by the later rows of each

Blocks of P rows and of N rows are whole, and the same, in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from nfk.distributed import Replicas
from nfk.operator.gradients import GradientOperator
from nfk.operator.products import ProductOperator
from nfk.spaces import Block, Space
from nfk.stream import Examples

Result = TypeVar("Result")
Tile = tuple[slice, Block]


@dataclass(frozen=True)
class Part:
    """The examples start:stop of a source that has slices: those that this process reads."""

    source: Any
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, rows: slice) -> Any:
        start, stop, _ = rows.indices(len(self))
        return self.source[self.start + start : self.start + stop]


def own_examples(examples: Examples, space: Space) -> Examples:
    """Those that this process has an operator over: all of them, but where each has its own rows alone."""
    if not isinstance(space.processes, Replicas):
        return examples
    own = space.own(len(examples))
    part = examples.slice(own.start, own.stop) if examples.is_tree else Part(examples.source, own.start, own.stop)
    return Examples(part, f"{examples.name}[{own.start}:{own.stop}]")


def of_all(
    operator: GradientOperator | ProductOperator, trace: float | None = None
) -> GradientOperator | ProductOperator | Together:
    """An operator over all rows, from one over those of this process; `trace` is that of all rows, if known."""
    processes = operator.space.processes
    return Together(operator, processes, trace) if isinstance(processes, Replicas) else operator


class Together:
    """The operator of all processes; costs and memory are those of one over its own rows."""

    def __init__(self, own: GradientOperator | ProductOperator, processes: Replicas, trace: float | None) -> None:
        self.own, self.processes = own, processes
        self.space, self.row_space = own.space, own.row_space
        counts = processes.everyone(own.shape[0])
        self._start = sum(counts[: processes.rank])
        self._place = slice(self._start, self._start + own.shape[0])
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
        """Half of the products: two rows meet in the process of the later one, where their tiles are not one."""
        own = self.own
        assert isinstance(own, GradientOperator)
        K, tiles = np.zeros((own.shape[0], self.shape[0])), own.tiles()
        while (turn := self._turn(tiles)) is not None:
            self._together(lambda turn=turn: self._meet(K, *turn, double))
        self._together(lambda: own.measured(K[:, self._place].diagonal()))
        self.passes = max(self.processes.everyone(self.passes))
        whole = np.concatenate(self.processes.everyone(K))
        missing = whole == 0
        whole[missing] = whole.T[missing]
        return whole

    def _turn(self, tiles: Iterator[Tile]) -> tuple[Tile, np.ndarray, Block] | None:
        """The next tile of this process, of no rows where it has had its last; which rows of the whole stand in those
        of all processes; and these rows themselves. None where nobody has another."""
        nothing = slice(0, 0), self.space.zeros(0, self.shape[1], self.dtype)
        tile, held = self._together(lambda: next(tiles, nothing))
        rows = np.concatenate(self.processes.everyone(self._start + np.arange(tile.start, tile.stop)))
        return ((tile, held), rows, self.processes.stacked(held)) if len(rows) else None

    def _meet(self, K: np.ndarray, own: Tile, columns: np.ndarray, everywhere: Block, double: bool) -> None:
        """What the rows of this process, from its tile on, have in common with everyone's."""
        assert isinstance(self.own, GradientOperator)
        if len(own[1]) == 0:
            return
        for rows, V in chain([own], self.own.after(own[0])):
            K[rows, columns] = self.space.kernel(V, everywhere, double)

    def dense(self) -> Float[np.ndarray, "rows P"]:
        rows = self._together(lambda: self.space.put(self.own.dense()))
        return self.space.get(self.processes.stacked(rows))

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
        return self.processes.together(work)
