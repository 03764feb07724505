"""The sizes that decide everything: of the data, of the network, and of what is asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nfk.model import Cost, Model
from nfk.spaces import Space
from nfk.stream import Examples

# What stays of a compiled gradient, for each operation of the score: code, and what the compiler knows of it. Measured:
# 62 kB in the fit of a VAE of 9,172 operations (75 kB by itself, python -m benchmarks.growth), 62 kB for each further
# example of a ResNet-18 that is written out. Networks of a few hundred operations have 20 to 50 MB, whatever they are.
# Long chains of elementwise operations, which XLA fuses and repeats, may have several times as much.
OPERATION_BYTES = 64 * 2**10
UNCOUNTED_BYTES = 16 * 2**20
HELD_BACK_BYTES = 64 * 2**20  # freed memory that the C library keeps between the passes


@dataclass(frozen=True)
class Problem:
    """A model over a data set."""

    examples: int
    outputs: int
    parameters: int
    itemsize: int
    forward_flops: float
    activation_bytes: int
    patch_bytes: int
    moment_examples: int
    moments_over_data: bool
    trace_known: bool
    why_no_products: str | None
    microbatch: int = 4
    microbatch_bytes: int = Cost.microbatch_bytes
    note: str = ""
    factored: tuple[tuple[int, int, int], ...] = ()  # positions, inputs, outputs of layers whose factors pay
    operations: int = 0  # of the network, as a compiler gets it

    @classmethod
    def of(cls, model: Model, examples: Examples) -> Problem:
        """One trace of the network, nothing run."""
        example = examples.example()
        outputs, P = model.outputs(example), model.layout.size
        cost = model.network.cost(example)
        count = len(examples) if model.moments_over_data else model.samples
        return cls(
            examples=len(examples), outputs=outputs, parameters=P, itemsize=model.layout.dtype.itemsize,
            forward_flops=max(cost.flops, 2.0 * P), activation_bytes=cost.activation_bytes,
            patch_bytes=cost.patch_bytes, moment_examples=count if model.needs_moments else 0,
            moments_over_data=model.moments_over_data,
            trace_known=model.moments_over_data and model.fisher == "diagonal",
            why_no_products=model.network.why_no_products(example), microbatch=cost.microbatch,
            microbatch_bytes=cost.microbatch_bytes, note=model.network.note, operations=cost.operations,
            factored=model.network.factored(example) if model.unscaled else (),
        )  # fmt: skip

    def on(self, space: Space) -> Problem:
        """The part of it that each range of rows has."""
        return replace(self, examples=-(-self.examples // space.parts))

    @property
    def rows(self) -> int:
        return self.examples * self.outputs

    @property
    def smaller(self) -> int:
        """The largest rank that V can have."""
        return min(self.rows, self.parameters)

    @property
    def column_bytes(self) -> int:
        """One column of the parameters' side."""
        return self.parameters * self.itemsize

    @property
    def row_bytes(self) -> int:
        """The gradients of one example."""
        return self.outputs * self.column_bytes

    @property
    def program_bytes(self) -> int:
        """A compiled gradient of the network, with what the compiler keeps of it."""
        return OPERATION_BYTES * self.operations

    @property
    def runtime_bytes(self) -> int:
        """By how much compiled programs and the runtime grow in a fit. A few MB are nobody's budget, and networks that
        count in MB are not charged more than a column for what the C library holds back."""
        return min(HELD_BACK_BYTES, self.column_bytes) + max(self.program_bytes - UNCOUNTED_BYTES, 0)

    @property
    def factor_bytes(self) -> int:
        """The factors of one example's gradients, and the gradients that have none."""
        rest = self.parameters - sum(inputs * outputs for _, inputs, outputs in self.factored)
        layers = sum(positions * (inputs + self.outputs * outputs) for positions, inputs, outputs in self.factored)
        return (self.outputs * rest + layers) * self.itemsize

    @property
    def factor_pair(self) -> tuple[float, float]:
        """Two examples' block of the kernel from factors: multiplications, and inner products that are multiplied."""
        rest, pairs = self.parameters - sum(inputs * outputs for _, inputs, outputs in self.factored), self.outputs**2
        work = sum(positions**2 * (inputs + pairs * outputs) for positions, inputs, outputs in self.factored)
        return float(pairs * rest + work), float(sum(pairs * positions**2 for positions, _, _ in self.factored))

    @property
    def gradient_flops(self) -> float:
        """One example's gradient rows."""
        return self.forward_flops * (1 + 2 * self.outputs)


@dataclass(frozen=True)
class Target:
    """A number of components, or a share of variance to explain."""

    rank: int | None
    variance: float | None

    @classmethod
    def of(cls, rank: int | float, problem: Problem) -> Target:
        if isinstance(rank, (bool, np.bool_)) or not isinstance(rank, (int, float, np.integer, np.floating)):
            raise TypeError(f"rank={rank!r} must be a number of components or a fraction of variance between 0 and 1")
        if isinstance(rank, (float, np.floating)):
            if not 0 < rank < 1:
                raise ValueError(
                    f"rank={rank} is not a fraction: use 0 < rank < 1 for explained variance, or an integer"
                )
            return cls(None, float(rank))
        if rank < 1:
            raise ValueError(f"rank={rank} is not positive: use 1 or more")
        if rank > problem.smaller:
            raise ValueError(f"rank={rank} exceeds min(rows, parameters)={problem.smaller}: lower rank or add examples")
        return cls(int(rank), None)

    def __str__(self) -> str:
        return f"rank {self.rank}" if self.rank is not None else f"as many components as explain {self.variance:.1%}"
