"""Several processes that run the same program, each on its own rows: what they must be able to do together.

Every process passes the same source and reads only its own rows of it. Results are the same in every process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from nfk.spaces.space import Block, Space

Result = TypeVar("Result")


class Processes(Protocol):
    """A number of processes, of which this one is `rank`. Each method is called by all of them together."""

    rank: int
    size: int

    def sum(self, block: Block) -> Block:
        """The sum of all processes' blocks; gives up the memory of `block`."""
        ...

    def stacked(self, rows: Block) -> Block:
        """The rows of all processes, one process after another."""
        ...

    def everyone(self, value: Any) -> list[Any]:
        """A small value of every process."""
        ...


@dataclass(frozen=True)
class Own:
    """The examples start:stop of a source that has slices: those that this process reads."""

    source: Any
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, rows: slice) -> Any:
        start, stop, _ = rows.indices(len(self))
        return self.source[self.start + start : self.start + stop]


def own_range(count: int, processes: Processes) -> tuple[int, int]:
    """A run of consecutive examples for each process, of lengths that differ by one at the most: where it begins and
    ends."""
    if count < processes.size:
        raise ValueError(f"{count} examples are too few for {processes.size} processes: each needs one; use fewer")
    start, stop = (count * part // processes.size for part in (processes.rank, processes.rank + 1))
    return start, stop


def together(processes: Processes, work: Callable[[], Result]) -> Result:
    """What this process has computed, when all have come so far; an error of one is an error of all, and names it."""
    error, result = None, None
    try:
        result = work()
    except Exception as caught:
        error = caught
    told = processes.everyone(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    for rank, text in enumerate(told):
        if text is not None:
            raise RuntimeError(f"process {rank} of {processes.size} failed, so this one stops too: {text}")
    return result  # pyright: ignore[reportReturnType]


def united(
    space: Space, mean: Float[np.ndarray, " P"], squares: Float[np.ndarray, " P"], count: int, unit: float | None
) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"], int, float | None]:
    """Mean, sum of squared deviations, number of rows and their unit, over all processes: two sums of length P.

    By Chan's formula, in the smallest of the units: that of the largest gradients."""
    processes = space.processes
    if processes is None:
        return mean, squares, count, unit
    counts, units = zip(*processes.everyone((count, unit)), strict=True)
    common, total = min((one for one in units if one is not None), default=None), sum(counts)
    ratio = mean.dtype.type(0 if unit is None or common is None else common / unit)
    mean, squares, own = mean * ratio, squares * ratio**2, mean.dtype.type(count)
    add = lambda vector: space.get(processes.sum(space.put(vector[:, None])))[:, 0]  # noqa: E731
    whole = add(mean * (own / mean.dtype.type(total)))
    return whole, add(squares + own * (mean - whole) ** 2), total, common
