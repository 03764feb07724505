"""What a fit will do and cost, before it runs: engine, chunk, gradients kept or recomputed, side, passes, FLOPs, bytes.

The budget counts everything a fit allocates beyond the data, the parameters and the runtime itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import jax
import numpy as np

from nfk.memory import human, parse_memory
from nfk.models import Model
from nfk.stream import Examples

EXPECTED_STEPS = 6
MOST_BLOCKS = 12
FEWEST_BLOCKS = 4
FIRST_WIDTH = 64  # block width when the rank is a fraction of variance, so not known
CHUNK_ROWS = 256  # rows of gradients that meet a block at once: at this size BLAS is near its peak
MICROBATCH_BYTES = 4 * 2**20  # gradients of a microbatch: small enough to stay in cache and off fresh pages
UNROLL_FROM = 100_000  # parameters from which convolutions are unrolled on a CPU
NETWORK_RATE, MATRIX_RATE = 30e9, 150e9  # FLOP/s; only their ratio matters
CLOSE = 4.0  # engines whose estimates differ by less are timed
WORTH_TIMING_SECONDS = 10.0
FEWER_PASSES = 1.5  # the parameters' side reads the gradients half as often: preferred unless it costs this much more

Engine = Literal["gradients", "products"]
Method = Literal["krylov", "power", "exact"]
Side = Literal["parameters", "examples"]


@dataclass(frozen=True)
class Problem:
    """The sizes that decide everything."""

    examples: int
    outputs: int
    parameters: int
    itemsize: int
    forward_flops: float
    activation_bytes: int
    unroll: bool
    rank: int | None
    variance: float | None
    oversamples: int
    method: Method
    moment_examples: int
    moments_over_data: bool
    trace_known: bool
    on_host: bool

    @property
    def rows(self) -> int:
        return self.examples * self.outputs

    @property
    def width(self) -> int:
        """U, the columns of a block."""
        wanted = FIRST_WIDTH if self.rank is None else self.rank
        return min(wanted + self.oversamples, self.rows, self.parameters)

    @property
    def column_bytes(self) -> int:
        return self.parameters * self.itemsize

    @property
    def gradient_flops(self) -> float:
        """One example's gradient rows."""
        return self.forward_flops * (1 + 2 * self.outputs)


@dataclass(frozen=True)
class Plan:
    """A way to run a fit, its cost and its peak memory. `print` it."""

    problem: Problem
    budget: int
    engine: Engine
    keep: bool
    side: Side
    blocks: int
    columns: int | None
    microbatch: int
    chunk: int
    unrolled: bool
    group: int = 0  # columns that the products engine takes at once
    rival: Plan | None = field(default=None, repr=False)  # the other engine's best plan, where it is about as fast
    parts: dict[str, int] = field(default_factory=dict)

    @property
    def peak_bytes(self) -> int:
        """The sum of all parts: an upper bound, since not all are held at one time."""
        return sum(self.parts.values())

    @property
    def steps(self) -> int:
        """Krylov steps to be expected."""
        full = -(-min(self.problem.rows, self.problem.parameters) // self.problem.width)
        return min(EXPECTED_STEPS, full)

    @cached_property
    def passes(self) -> int:
        """Expected sweeps over all rows, with the one for the moments."""
        groups = 1 if self.columns is None else -(-self.problem.width // self.columns)
        sweeps = {
            "power": 22,
            "exact": 2,
            "krylov": self.steps + 1 if self.side == "parameters" else (2 * self.steps + 2) * groups,
        }[self.problem.method]
        return sweeps + (self.problem.moment_examples > 0) + self._needs_trace_pass

    @property
    def _needs_trace_pass(self) -> bool:
        """The products engine forms no gradient, so the trace takes a pass unless the moments have given it."""
        return self.engine == "products" and not self.problem.trace_known

    @cached_property
    def flops(self) -> float:
        """Operations in all: the network's gradients, the matrix products, the orthogonalisation."""
        p = self.problem
        sweeps = self.passes - (p.moment_examples > 0)
        moments = p.moment_examples * p.gradient_flops
        if p.method == "exact":
            return moments + 2 * p.examples * p.gradient_flops + 2.0 * p.rows * p.parameters * min(p.rows, p.parameters)
        if self.engine == "products":
            return moments + self._product_flops
        again = (0 if p.moments_over_data else 1) if self.keep else sweeps
        products = self.steps + 1 if p.method == "krylov" else 11
        matrix = products * 4.0 * p.rows * p.parameters * p.width
        return moments + again * p.examples * p.gradient_flops + matrix + self._orthogonalisation()

    @property
    def _product_flops(self) -> float:
        """A JVP is about two forward passes and a VJP three; both for every column and step."""
        p = self.problem
        steps = self.steps + 1 if p.method == "krylov" else 11
        trace = p.examples * p.gradient_flops if self._needs_trace_pass else 0
        return trace + steps * 5.0 * p.width * p.forward_flops * p.examples

    def _orthogonalisation(self) -> float:
        p = self.problem
        length = p.parameters if self.side == "parameters" else p.rows
        return 4.0 * length * p.width**2 * self.steps * (self.steps + 1)

    @cached_property
    def seconds(self) -> float:
        """A rough guess for two CPU cores; good for comparing plans."""
        p = self.problem
        sweeps = self.passes - (p.moment_examples > 0)
        network = p.moment_examples * p.gradient_flops
        if self.engine == "products" and p.method != "exact":
            return (network + self._product_flops) / NETWORK_RATE
        again = (0 if p.moments_over_data else 1) if self.keep else sweeps
        network += again * p.examples * p.gradient_flops
        return network / NETWORK_RATE + max(self.flops - network, 0) / MATRIX_RATE

    def __str__(self) -> str:
        p = self.problem
        rank = f"rank {p.rank}" if p.rank is not None else f"as many components as explain {p.variance:.1%}"
        where = "kept in memory" if self.keep else "recomputed in each pass"
        columns = "all" if self.columns is None else f"{self.columns} at a time"
        lines = [
            f"Plan: {p.examples:,} examples, {p.rows:,} rows, {p.parameters:,} parameters, {rank}",
            f"  method    {p.method}, on the {self.side}' side, blocks of {p.width} columns ({columns})",
            f"  engine    {self.engine}{' (close: both will be timed)' if self.rival else ''}, {where}",
            f"  batches   {self.microbatch} examples through the network{', unrolled' if self.unrolled else ''}, "
            f"{self.chunk} against the basis",
            f"  passes    about {self.passes}, {self.flops:.1e} FLOP",
            f"  memory    {human(self.peak_bytes)} at its peak, budget {human(self.budget)}",
        ]
        lines += [f"    {human(size):>10}  {name}" for name, size in self.parts.items() if size]
        return "\n".join(lines)


def make_plan(
    model: Model,
    examples: Examples,
    rank: int | float,
    *,
    method: Method = "krylov",
    engine: Engine | None = None,
    side: Side | None = None,
    keep: bool | None = None,
    memory: int | str | None = None,
    oversamples: int = 10,
    on_host: bool | None = None,
) -> Plan:
    """The cheapest way that fits in `memory`, or a `MemoryError` that says what to change."""
    if method not in ("krylov", "power", "exact"):
        raise ValueError(f"method={method!r} is unknown: choose 'krylov', 'power' or 'exact'")
    if engine not in (None, "gradients", "products"):
        raise ValueError(f"engine={engine!r} is unknown: choose 'gradients' or 'products', or None to let it be chosen")
    if side not in (None, "parameters", "examples"):
        raise ValueError(f"side={side!r} is unknown: choose 'parameters' or 'examples', or None to let it be chosen")
    problem = describe(model, examples, rank, method, oversamples, on_host)
    budget = parse_memory(memory, problem.on_host)
    possible = [plan for plan in _candidates(problem, budget) if method != "krylov" or side in (None, plan.side)]
    possible = [plan for plan in possible if method == "exact" or keep in (None, plan.keep)]
    candidates = [plan for plan in possible if plan.peak_bytes <= budget]
    mine = [plan for plan in candidates if engine in (None, plan.engine)]
    if not mine:
        raise MemoryError(_too_large(problem, budget, [plan for plan in possible if engine in (None, plan.engine)]))
    best = min(mine, key=lambda plan: plan.seconds * (1 if plan.side == "parameters" else FEWER_PASSES))
    rivals = [plan for plan in mine if plan.engine != best.engine]
    if not rivals or best.seconds < WORTH_TIMING_SECONDS:
        return best
    rival = min(rivals, key=lambda plan: plan.seconds)
    return replace(best, rival=rival) if rival.seconds < CLOSE * best.seconds else best


def describe(
    model: Model, examples: Examples, rank: int | float, method: Method, oversamples: int, on_host: bool | None
) -> Problem:
    """Sizes and costs of the problem; checks `rank`."""
    example = examples.example()
    outputs = model.outputs(example)
    rows, P = len(examples) * outputs, model.layout.size
    count, variance = parse_rank(rank, rows, P)
    if variance is not None and method == "power":
        raise ValueError(f"rank={rank} is a fraction, but method='power' needs a number of components")
    cost = model.cost(example)
    over_data = model.needs_moments and model.expectation == "data"
    return Problem(
        examples=len(examples), outputs=outputs, parameters=P, itemsize=model.layout.dtype.itemsize,
        forward_flops=max(cost.flops, 2.0 * P), activation_bytes=cost.activation_bytes, unroll=cost.unroll,
        rank=count, variance=variance, oversamples=oversamples, method=method,
        moment_examples=0 if not model.needs_moments else len(examples) if over_data else model.samples,
        moments_over_data=over_data, trace_known=over_data and model.fisher == "diagonal",
        on_host=jax.default_backend() == "cpu" if on_host is None else on_host,
    )  # fmt: skip


def parse_rank(rank: int | float, rows: int, parameters: int) -> tuple[int | None, float | None]:
    """`(count, None)` or `(None, fraction of variance)`."""
    if isinstance(rank, (bool, np.bool_)) or not isinstance(rank, (int, float, np.integer, np.floating)):
        raise TypeError(f"rank={rank!r} must be a number of components or a fraction of variance between 0 and 1")
    limit = min(rows, parameters)
    if isinstance(rank, (float, np.floating)):
        if not 0 < rank < 1:
            raise ValueError(f"rank={rank} is not a fraction: use 0 < rank < 1 for explained variance, or an integer")
        return None, float(rank)
    if rank < 1:
        raise ValueError(f"rank={rank} is not positive: use 1 or more")
    if rank > limit:
        raise ValueError(f"rank={rank} exceeds min(rows, parameters)={limit}: lower rank or add examples")
    return int(rank), None


def _candidates(p: Problem, budget: int) -> list[Plan]:
    """Every way to run the problem, with its memory; those over budget are for the caller to drop."""
    if p.method == "exact":
        return [_gradient_plan(p, budget, keep=True, side="examples", blocks=1, columns=None)]
    if p.method == "power":
        plans = [_gradient_plan(p, budget, keep, "examples", 1, None) for keep in (True, False)]
        return [*plans, _product_plan(p, budget, "examples", 1, None)]
    plans = []
    for blocks in (_most_blocks(p), *range(_most_blocks(p) - 1, FEWEST_BLOCKS - 1, -2)):
        plans += [_gradient_plan(p, budget, keep, "parameters", blocks, None) for keep in (True, False)]
        plans.append(_product_plan(p, budget, "parameters", blocks, None))
    for columns in (None, *(c for c in (64, 32, 16, 8, 4, 2, 1) if c < p.width)):
        plans += [_gradient_plan(p, budget, keep, "examples", MOST_BLOCKS, columns) for keep in (True, False)]
        plans.append(_product_plan(p, budget, "examples", MOST_BLOCKS, columns))
    return plans


def _most_blocks(p: Problem) -> int:
    needed = -(-min(p.rows, p.parameters) // p.width)
    return max(FEWEST_BLOCKS, min(MOST_BLOCKS if p.variance is None else 4 * MOST_BLOCKS, needed + 1))


def _microbatch(p: Problem, budget: int, unrolled: bool) -> int:
    """Examples whose gradients are computed at once."""
    row = p.outputs * p.column_bytes
    suitable = 4 if unrolled else int(np.clip(MICROBATCH_BYTES // row, 4, 64))
    fitting = int(budget / 8 / (3 * p.activation_bytes * p.outputs + 3 * row))
    return max(1, min(suitable if p.on_host else CHUNK_ROWS, fitting, p.examples))


def _common_parts(p: Problem, microbatch: int) -> dict[str, int]:
    per_example = 3 * p.outputs * (p.activation_bytes + p.column_bytes)
    return {
        "moments (mean, Fisher, scale and their sums)": 9 * p.column_bytes,
        "network and its gradients, two microbatches": microbatch * per_example,
    }


def _gradient_plan(p: Problem, budget: int, keep: bool, side: Side, blocks: int, columns: int | None) -> Plan:
    row = p.outputs * p.column_bytes
    unrolled = p.on_host and p.unroll and p.parameters >= UNROLL_FROM and p.outputs == 1
    microbatch = _microbatch(p, budget, unrolled)
    parts = {**_common_parts(p, microbatch), **_block_parts(p, side, blocks, columns)}
    if keep:
        parts["all gradients"] = p.examples * row
    spare = budget - sum(parts.values())
    chunk = int(np.clip(spare // row if spare > 0 else 1, microbatch, max(microbatch, -(-CHUNK_ROWS // p.outputs))))
    chunk = min(chunk, -(-p.examples // microbatch) * microbatch)
    if not (keep and p.moments_over_data):
        parts["a chunk of gradients"] = min(chunk, p.examples) * row
    return Plan(p, budget, "gradients", keep, side, blocks, columns, microbatch, chunk, unrolled, parts=parts)


def _product_plan(p: Problem, budget: int, side: Side, blocks: int, columns: int | None) -> Plan:
    """Moments and trace take per-example gradients in this engine too, in microbatches; the products do not."""
    chunk, group = min(32, p.examples), min(columns or 32, 32, p.width)
    microbatch = _microbatch(p, budget, unrolled=False)
    parts = {
        **_common_parts(p, microbatch),
        "a microbatch of gradients": microbatch * p.outputs * p.column_bytes,
        "network, tangents and cotangents": chunk * 3 * p.activation_bytes * group + 4 * group * p.column_bytes,
        "scaled tangents": 2 * (columns or p.width) * p.column_bytes,
        **_block_parts(p, side, blocks, columns),
    }
    return Plan(p, budget, "products", False, side, blocks, columns, microbatch, chunk, False, group, parts=parts)


def _block_parts(p: Problem, side: Side, blocks: int, columns: int | None) -> dict[str, int]:
    wide = p.width * p.column_bytes
    tall = p.width * p.rows
    if p.method == "exact":
        count = min(p.rank or min(p.rows, p.parameters), p.rows, p.parameters)
        smaller = min(p.rows, p.parameters)
        return {
            "Gram matrix and its eigenvectors": 4 * 8 * smaller**2,
            "both sides": 3 * count * (p.column_bytes + 8 * p.rows),
        }
    found = blocks if p.rank is None else 1  # a share of variance may take every vector of the basis
    if side == "parameters":
        return {
            f"basis: {blocks} blocks and work space, parameters x columns": (blocks + 3 + found) * wide,
            "images of the basis, rows x columns": (blocks + 6 * found) * tall * p.itemsize,
            "projected matrix": 4 * 8 * (blocks * p.width) ** 2,
        }
    work = 2 * found * wide if columns is None else found * wide + 2 * columns * p.column_bytes
    final = found * (p.rank or p.width) * p.column_bytes
    return {
        "right vectors and work space, parameters x columns": work + final,
        f"basis: {blocks} blocks, images and work space, rows x columns, float64": (2 * blocks + 4 * found) * tall * 8,
        "projected matrix": 4 * 8 * (blocks * p.width) ** 2,
    }


def _too_large(p: Problem, budget: int, plans: list[Plan]) -> str:
    least = min(plans, key=lambda plan: plan.peak_bytes)
    rank = "" if p.rank is None else f", lower rank={p.rank}"
    largest = max(least.parts, key=lambda part: least.parts[part])
    return (
        f"memory={human(budget)} is too little: the leanest way needs {human(least.peak_bytes)}, most of it for "
        f"{largest}. Raise memory{rank}, or let fewer of the {p.parameters:,} parameters take part with parameters=..."
    )
