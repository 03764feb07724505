"""From a plan to V: the stream of gradients, their moments, and the operator that the plan names."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import jax

from nfk import identity
from nfk.distributed import Replicas
from nfk.model import Model
from nfk.operator.factors import FactorOperator
from nfk.operator.gradients import GradientOperator
from nfk.operator.halves import HalvedOperator
from nfk.operator.moments import Moments, Sketch, estimate, unit_of
from nfk.operator.products import ProductOperator
from nfk.operator.stream import GradientStream
from nfk.operator.together import of_all, own_examples
from nfk.planning import Options, Plan
from nfk.progress import Reporter
from nfk.solve.operator import Operator
from nfk.spaces import Block, Halves, Mapped, Scratch, Shelf, Space, Store
from nfk.stream import Examples, Generated

Start = Block | None  # for the search to begin with


@dataclass(frozen=True)
class Assembly:
    """What V is made of: a model, its examples, how the plan runs them, and the randomness of the fit."""

    model: Model
    examples: Examples
    plan: Plan
    options: Options
    seed: Sequence[int]
    sample_key: jax.Array
    score_key: jax.Array
    reporter: Reporter

    @cached_property
    def space(self) -> Space:
        """Where tall blocks live: as the options say, or in memory maps where the plan says so."""
        mapped, parameters = self.plan.way.mapped, self.plan.problem.parameters
        return Mapped(self._disk, parameters) if mapped else self.options.space

    def operator(self, known: tuple[Moments, Start] | None = None) -> tuple[Operator, tuple[Moments, Start]]:
        """V, its moments, and a start for the search where the pass of the moments gave one.

        Args:
            known: moments and start as an earlier run of the same fit took them; None takes them now, in a pass.
        """
        stream = self._stream()
        kept, shelf = self._room(stream), self._shelf(stream)
        filled = (kept or shelf) if self.model.moments_over_data else None
        if known is None:
            known = self._take_moments(stream, filled)
        elif filled is not None:
            self.space.processes.together(lambda: self._fill(filled, stream))
        return self._operator(stream, known[0], kept, shelf), known

    def _operator(self, stream: GradientStream, moments: Moments, kept: Store | None, shelf: Shelf | None) -> Operator:
        b, way = self.plan.batches, self.plan.way
        if way.engine == "products":
            known = moments.trace if self.plan.problem.trace_known else None
            return of_all(ProductOperator(stream, moments, b.products, b.columns, known), known)
        if way.factors:
            return FactorOperator(stream, moments, b.chunk, self.model.centred)
        filled = self.model.moments_over_data
        if isinstance(kept, Halves):
            return HalvedOperator(stream, moments, b.chunk, kept, filled)
        tiles = {"tile": way.tile, "meeting": b.meeting}
        return of_all(GradientOperator(stream, moments, b.chunk, kept, filled, shelf=shelf, **tiles))

    def trial(self) -> float:
        """Seconds of a fused pass over the first chunk, for one example and column, when all is compiled."""
        first = Examples(self.examples.slice(0, min(len(self.examples), self.plan.batches.chunk)), self.examples.name)
        stream = replace(self, examples=first, reporter=Reporter(show=False))._stream()
        moments, b, width = Moments.trivial(self.model), self.plan.batches, self.plan.width
        if self.plan.engine == "products":
            operator = ProductOperator(stream, moments, b.products, b.columns)
        else:
            operator = GradientOperator(stream, moments, b.chunk)
        operator.fused(stream.space.random(self.seed, stream.layout.size, width, stream.layout.dtype))
        started = time.perf_counter()
        operator.fused(stream.space.random(self.seed, stream.layout.size, width, stream.layout.dtype))
        return (time.perf_counter() - started) / (len(first) * width)

    def _stream(self) -> GradientStream:
        space, batches = self.space, self.plan.batches
        outputs = self.plan.problem.outputs
        differentiator = self.model.network.differentiate(self.score_key, outputs, batches.batching, space.device)
        own = own_examples(self.examples, space)
        return GradientStream(differentiator, own, space, batches.gradients, self.reporter)

    @property
    def _disk(self) -> Scratch:
        return self.options.disk or Scratch.of(None)

    def _room(self, stream: GradientStream) -> Store | None:
        if self.plan.way.halved:
            return Halves(stream.rows, stream.layout)
        return stream.space.row_space(stream.outputs).store(stream.rows, stream.layout) if self.plan.keep else None

    def _shelf(self, stream: GradientStream) -> Shelf | None:
        return Shelf(self._disk, stream.rows, stream.layout) if self.plan.way.shelf else None

    def _fill(self, kept: Store | Shelf, stream: GradientStream) -> None:
        """The gradients again, where only the moments of an earlier run are left."""
        self.reporter.stage("gradients")
        for begin, end, leaves in stream.sweep():
            kept.write(begin * stream.outputs, leaves, (end - begin) * stream.outputs)

    # --- the moments

    def _take_moments(self, stream: GradientStream, kept: Store | Shelf | None) -> tuple[Moments, Start]:
        """The moments, in a pass that also fills `kept` with raw gradients and makes a start for the search."""
        model = self.model
        if not model.needs_moments:
            return Moments.trivial(model, self._first_unit(stream)), None
        over = stream if model.moments_over_data else self._generated(stream)
        sketch = self._sketch(over, None if isinstance(kept, Shelf) else kept)
        self.reporter.stage("moments")
        moments = estimate(over, model, [observer for observer in (kept, sketch) if observer is not None])
        return moments, None if sketch is None else sketch.block(moments)

    def _first_unit(self, stream: GradientStream) -> float:
        """Where no pass of moments sees the gradients, the first microbatch decides their unit."""
        _, _, leaves = next(replace(stream, reporter=Reporter(show=False)).sweep(stream.microbatch))
        units = stream.space.processes.everyone(unit_of(stream.space.largest(leaves)))
        return min((one for one in units if one is not None), default=1.0)

    def _generated(self, stream: GradientStream) -> GradientStream:
        samples = Examples(Generated(self.model.sample, self.sample_key, self.model.samples), name="sample")
        identity.check_samples(samples, self.examples)
        return replace(stream, examples=own_examples(samples, stream.space))

    def _sketch(self, stream: GradientStream, kept: Store | None) -> Sketch | None:
        plan = self.plan
        if plan.engine != "gradients" or plan.side != "parameters" or plan.way.method != "krylov":
            return None
        if isinstance(stream.space.processes, Replicas):
            return None  # a start that each process has whole is drawn at random
        return Sketch(stream, self.seed, plan.width, plan.batches.chunk * stream.outputs, kept)


def faster(first: Assembly, second: Assembly) -> Plan:
    """The plan whose trial took less time for one example and column."""
    best = first if first.trial() <= second.trial() else second
    return replace(best.plan, rival=None)
