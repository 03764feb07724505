"""Per-example gradients of a data set, a microbatch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from nfk.layout import Layout
from nfk.model import Differentiator
from nfk.progress import Reporter
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

    def sweep(self) -> Iterator[tuple[int, int, list]]:
        """All raw gradients once: `(begin, end, leaves)` for examples begin:end; further rows are padding."""
        self.reporter.begin_pass(len(self.examples))
        zero, one = np.zeros(self.layout.size, self.layout.dtype), np.ones(self.layout.size, self.layout.dtype)
        yield from self.microbatches(self.pieces(zero), self.pieces(one), 0, len(self.examples))

    def microbatches(self, mean: list, scale: list, start: int, stop: int) -> Iterator[tuple[int, int, list]]:
        """s * (g(x) - z) for examples start:stop, leaf by leaf."""
        compute = lambda batch: self.differentiator.rows(mean, scale, batch)  # noqa: E731
        return run(compute, self.examples, start, stop, self.microbatch, self.reporter)

    def write(self, store: Store, base: int, mean: list, scale: list, start: int, stop: int) -> None:
        """s * (g(x) - z) for examples start:stop into rows of `store` from `base` on, without a copy if both can."""
        room = store.room(base, (stop - start) * self.outputs)
        if room is None or not self.differentiator.writes:
            for begin, end, leaves in self.microbatches(mean, scale, start, stop):
                store.write(base + (begin - start) * self.outputs, leaves, (end - begin) * self.outputs)
                del leaves  # before the next microbatch is begun: the plan counts two of them
            return
        for begin, end, batch in run(lambda batch: batch, self.examples, start, stop, self.microbatch, self.reporter):
            place = room[(begin - start) * self.outputs : (end - start) * self.outputs]
            filled = jax.tree.map(lambda leaf, count=end - begin: leaf[:count], batch)  # without the padding
            self.differentiator.rows_into(place, mean, scale, filled)

    def pieces(self, vector: np.ndarray) -> list:
        """A vector of length P cut into leaves, where the derivatives are computed."""
        return [self.space.lend(piece) for piece in self.layout.pieces(vector)]

    def check_finite(self, norms: Any, begin: int, end: int) -> None:
        """Every gradient is finite, or the error names the first example whose is not."""
        finite = np.isfinite(np.asarray(norms)[: (end - begin) * self.outputs])
        if not finite.all():
            name, bad = self.examples.name, begin + int(np.argmin(finite)) // self.outputs
            raise ValueError(
                f"the gradient of the score at {name}[{bad}] is NaN or infinite: look at score(params, {name}[{bad}]), "
                "and at operations such as log(0), sqrt(0) or 0/0 in the network"
            )
