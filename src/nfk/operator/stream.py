"""Per-example gradients of a data set, a microbatch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from nfk.layout import Layout
from nfk.memory import give_back
from nfk.model import Differentiator
from nfk.progress import Reporter
from nfk.ranges import Ranges
from nfk.spaces import Space, Store
from nfk.stream import Examples, run


@dataclass(frozen=True)
class GradientStream:
    """The gradients of `examples`, `microbatch` of them at once, for blocks that live in `space`."""

    differentiator: Differentiator
    examples: Examples
    space: Space
    microbatch: int
    reporter: Reporter

    @property
    def layout(self) -> Layout:
        return self.differentiator.layout

    @property
    def outputs(self) -> int:
        return self.differentiator.outputs

    @property
    def rows(self) -> int:
        return len(self.examples) * self.outputs

    @property
    def ranges(self) -> Ranges:
        """Of examples."""
        return Ranges.of(len(self.examples), self.space.parts)

    @property
    def row_ranges(self) -> Ranges:
        return Ranges.of(len(self.examples), self.space.parts, self.outputs)

    def begin_pass(self, start: int = 0) -> None:
        """What the compiler and the pass before have freed is not kept beside what this one needs."""
        give_back()
        self.reporter.begin_pass(len(self.examples) - start * self.space.parts)

    def advance(self, examples: int) -> None:
        """So many examples of every range are done."""
        self.reporter.advance(examples * self.space.parts)

    def batches(self, function: Callable, size: int, start: int = 0, stop: int | None = None) -> Iterator[tuple]:
        """`(begin, end, function(batch))` for examples start:stop of every range, `size` of each at a time."""
        ranges = self.ranges
        read = lambda begin, end: self.space.batch(self.examples.read, ranges, begin, end, size)  # noqa: E731
        return run(function, read, start, ranges.each if stop is None else stop, size, self.advance)

    def sweep(self, stop: int | None = None) -> Iterator[tuple[int, int, list]]:
        """All raw gradients once, or those of the first `stop` examples of every range: `(begin, end, leaves)` for
        examples begin:end; further rows are padding."""
        self.begin_pass()
        last = self.ranges.each if stop is None else min(stop, self.ranges.each)
        if self.differentiator.raw:
            yield from self.batches(self.differentiator.gradients, self.microbatch, 0, last)
            return
        zero, one = np.zeros(self.layout.size, self.layout.dtype), np.ones(self.layout.size, self.layout.dtype)
        yield from self.microbatches(self.pieces(zero), self.pieces(one), 0, last)

    def microbatches(
        self, mean: list, scale: list, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, int, list]]:
        """s * (g(x) - z) for examples start:stop, leaf by leaf."""
        return self.batches(lambda batch: self.differentiator.rows(mean, scale, batch), self.microbatch, start, stop)

    def write(self, store: Store, base: int, mean: list, scale: list, start: int, stop: int) -> None:
        """s * (g(x) - z) for examples start:stop into rows of `store` from `base` on, without a copy if both can."""
        if self.differentiator.raw:
            for begin, end, leaves in self.batches(self.differentiator.gradients, self.microbatch, start, stop):
                first, count = base + (begin - start) * self.outputs, (end - begin) * self.outputs
                store.write_normalised(first, leaves, count, mean, scale)
                del leaves  # before the next microbatch is begun: the plan counts two of them
            return
        if not self.differentiator.writes or store.room(base, self.outputs) is None:
            for begin, end, leaves in self.microbatches(mean, scale, start, stop):
                store.write(base + (begin - start) * self.outputs, leaves, (end - begin) * self.outputs)
                del leaves  # before the next microbatch is begun: the plan counts two of them
            return
        for begin, end, batch in self.batches(lambda batch: batch, self.microbatch, start, stop):
            first, count = base + (begin - start) * self.outputs, (end - begin) * self.outputs
            filled = jax.tree.map(lambda leaf, count=end - begin: leaf[:count], batch)  # without the padding
            self.differentiator.rows_into(store.room(first, count), mean, scale, filled)
            store.settle(first, count)

    def pieces(self, vector: np.ndarray) -> list:
        """A vector of length P cut into leaves, where rows are normalised."""
        pieces = self.layout.pieces(vector)
        return pieces if self.differentiator.raw else [self.space.lend(piece) for piece in pieces]

    def check_finite(self, norms: np.ndarray, rows: slice | None = None) -> None:
        """Every gradient is finite, or the error names the first example whose is not: of some rows of every range, or
        of all in the order of the data."""
        ranges = self.row_ranges
        number = np.arange(len(norms)) if rows is None else ranges.index(rows)
        wrong = ~np.isfinite(norms) & (number < ranges.count)
        if wrong.any():
            name, bad = self.examples.name, int(number[np.argmax(wrong)]) // self.outputs
            raise ValueError(
                f"the gradient of the score at {name}[{bad}] is NaN or infinite: look at score(params, {name}[{bad}]), "
                "and at operations such as log(0), sqrt(0) or 0/0 in the network"
            )


class Lengths:
    """The squared lengths of rows of gradients as they pass: checked, and put in order when all have passed.

    What one place has computed is checked at once. Of several places it is fetched at the end of the pass: asking every
    time would make them wait for one another.
    """

    def __init__(self, stream: GradientStream) -> None:
        self._stream, self._space = stream, stream.space
        self._pieces: list[tuple[Any, int]] = []

    def add(self, rows: slice, values: Any) -> None:
        """Those of some rows of every range, which follow those before; values beyond them are padding."""
        count = rows.stop - rows.start
        if self._space.parts == 1:
            values = self._space.collected([(values, count)])
            self._stream.check_finite(values, rows)
        self._pieces.append((values, count))

    def result(self) -> Float[np.ndarray, " rows"]:
        """For every row, in the order of the data."""
        ranges = self._stream.row_ranges
        if self._space.parts == 1:
            return np.concatenate([values for values, _ in self._pieces])
        values = self._space.collected(self._pieces)
        self._stream.check_finite(values[: ranges.count])
        return values[: ranges.count]
