"""Every way to run a fit: engine, gradients kept or recomputed, side, blocks, columns; with its memory and its cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nfk.planning.batches import (
    LEANEST,
    LEANEST_PRODUCTS,
    Batches,
    chunk_bytes,
    gradient_batches,
    network_bytes,
    product_batches,
)
from nfk.planning.options import Engine, MethodName, Options, SideName
from nfk.planning.problem import Problem, Target
from nfk.solve.power import ITERATIONS

EXPECTED_STEPS = 6
MOST_BLOCKS = 12
FEWEST_BLOCKS = 4
FIRST_WIDTH = 64  # block width when the rank is a fraction of variance, so not known
NETWORK_RATE, MATRIX_RATE = 30e9, 150e9  # FLOP/s on two CPU cores


@dataclass(frozen=True)
class Way:
    """One way to run one problem. `capacity` is the most columns a basis may have, `group` the columns of P numbers
    that are alive at a time on the examples' side (None for all)."""

    problem: Problem
    target: Target
    options: Options
    method: MethodName
    engine: Engine
    keep: bool
    side: SideName
    width: int
    blocks: int
    group: int | None = None

    @property
    def capacity(self) -> int:
        return self.blocks * self.width

    # --- memory

    def fixed_bytes(self) -> dict[str, int]:
        """What does not depend on the batches."""
        p = self.problem
        parts = {"moments (mean, Fisher, scale and their sums)": 9 * p.column_bytes, **self._solver_bytes()}
        if self.engine == "products":
            parts["scaled tangents"] = 2 * (self.group or self.width) * p.column_bytes
        if self.keep:
            parts["all gradients"] = p.examples * p.row_bytes
        return parts

    def _solver_bytes(self) -> dict[str, int]:
        p, wide = self.problem, self.width * self.problem.column_bytes
        if self.method in ("exact", "gram"):
            count = self.target.rank or p.smaller
            size = p.smaller if self.method == "exact" else p.rows
            dense = p.examples * p.row_bytes if self.engine == "products" else 0
            return {
                "Gram matrix and its eigenvectors": 4 * 8 * size**2,
                "both sides": 3 * count * (p.column_bytes + 8 * p.rows) + dense,
            }
        found = self.blocks if self.target.rank is None else 1  # a share of variance may take all of the basis
        projected = {"projected matrix": 4 * 8 * self.capacity**2}
        if self.side == "parameters":
            return {
                f"basis: {self.blocks} blocks and work space, parameters x columns": (self.blocks + 3 + found) * wide,
                "images of the basis, rows x columns": (self.blocks + 6 * found) * self.width * p.rows * p.itemsize,
                **projected,
            }
        work = 2 * found * wide if self.group is None else found * wide + 2 * self.group * p.column_bytes
        final = found * (self.target.rank or self.width) * p.column_bytes
        tall = (2 * self.blocks + 4 * found) * self.width * p.rows * 8
        return {
            "right vectors and work space, parameters x columns": work + final,
            f"basis: {self.blocks} blocks, images and work space, rows x columns, float64": tall,
            **projected,
        }

    def batch_bytes(self, batches: Batches) -> dict[str, int]:
        parts = network_bytes(self.problem, batches)
        return parts if not self._gathers else {**parts, **chunk_bytes(self.problem, batches)}

    @property
    def _gathers(self) -> bool:
        """Whether gradients are gathered in a chunk of their own, or go where they stay at once."""
        return self.engine == "products" or not self.keep

    def batches(self) -> Batches:
        """The batches that suit best within the budget."""
        p, options = self.problem, self.options
        spare = options.budget - sum(self.fixed_bytes().values())
        if self.engine == "products":
            return product_batches(p, options.space, options.budget, spare, self.group or self.width)
        return gradient_batches(p, options.space, options.budget, spare, self._gathers)

    def least_bytes(self) -> dict[str, int]:
        """With one example at a time: no budget below this sum can be kept."""
        leanest = LEANEST_PRODUCTS if self.engine == "products" else LEANEST
        return {**self.fixed_bytes(), **self.batch_bytes(leanest)}

    # --- cost

    @property
    def steps(self) -> int:
        """Krylov steps to be expected."""
        return min(EXPECTED_STEPS, -(-self.problem.smaller // self.width))

    @property
    def sweeps(self) -> int:
        """Expected passes over the rows, without that of the moments."""
        groups = 1 if self.group is None else -(-self.width // self.group)
        krylov = self.steps + 1 if self.side == "parameters" else (2 * self.steps + 2) * groups
        passes = {"power": 2 * ITERATIONS + 2, "exact": 2, "gram": 3, "krylov": krylov}[self.method]
        return passes + self._needs_trace_pass

    @property
    def passes(self) -> int:
        """Expected passes over the rows, with that of the moments."""
        return self.sweeps + (self.problem.moment_examples > 0)

    @property
    def _needs_trace_pass(self) -> bool:
        """The products engine forms no gradient, so the trace takes a pass unless the moments have given it."""
        return self.engine == "products" and not self.problem.trace_known

    @property
    def network_flops(self) -> float:
        """Operations of the network: gradients, or products with tangents and cotangents."""
        p = self.problem
        moments = p.moment_examples * p.gradient_flops
        if self.engine == "products":
            trace = p.examples * p.gradient_flops if self._needs_trace_pass else 0
            return moments + trace + self._products * 5.0 * self._columns * p.forward_flops * p.examples
        again = (0 if p.moments_over_data else 1) if self.keep else self.sweeps
        return moments + again * p.examples * p.gradient_flops

    @property
    def matrix_flops(self) -> float:
        """Operations on matrices: products of gradients with blocks, orthogonalisation, the Gram matrix."""
        p = self.problem
        if self.method == "exact":
            return 2.0 * p.rows * p.parameters * p.smaller
        if self.method == "gram":  # half of a product, the eigenvectors, the basis and its certificate
            count = self.target.rank or p.smaller
            return 1.0 * p.rows * p.parameters * (p.rows + 6 * count) + 10.0 * p.rows**3
        length = p.parameters if self.side == "parameters" else p.rows
        orthogonal = 4.0 * length * self.width**2 * self.steps * (self.steps + 1)
        products = 0 if self.engine == "products" else self._products * 4.0 * p.rows * p.parameters * self.width
        return products + orthogonal

    @property
    def _products(self) -> int:
        """How often V and V' meet a block, together."""
        return {"krylov": self.steps + 1, "power": ITERATIONS + 1}.get(self.method, 1)

    @property
    def _columns(self) -> int:
        """Columns of such a block; the dense baseline asks for every row of V."""
        return self.problem.rows if self.method == "exact" else self.width

    @property
    def flops(self) -> float:
        return self.network_flops + self.matrix_flops

    @property
    def seconds(self) -> float:
        """A guess from typical rates of two CPU cores; good for comparing ways."""
        return self.network_flops / NETWORK_RATE + self.matrix_flops / MATRIX_RATE


def ways(problem: Problem, target: Target, options: Options) -> Iterator[Way]:
    """Every way that the options allow."""
    width = min((target.rank or FIRST_WIDTH) + options.oversamples, problem.smaller)
    for method in ("krylov", "gram") if options.method == "auto" else (options.method,):
        for engine, keep in _engines(problem, options, method):
            for side, blocks, group in _sides(problem, target, options, method, width):
                yield Way(problem, target, options, method, engine, keep, side, width, blocks, group)


def _engines(p: Problem, options: Options, method: MethodName) -> Iterator[tuple[Engine, bool]]:
    """Engines, and whether they keep all gradients: the Gram matrix needs them kept."""
    if options.engine in (None, "gradients"):
        yield from (("gradients", keep) for keep in _keeps(options, method))
    allowed = not p.why_no_products and method != "gram" and (options.keep is not True or method == "exact")
    if options.engine in (None, "products") and allowed:
        yield "products", False


def _keeps(options: Options, method: MethodName) -> Iterator[bool]:
    if method == "exact":
        yield True
    elif method == "gram":
        yield from (True,) if options.keep is not False else ()
    else:
        yield from (keep for keep in (True, False) if options.keep in (None, keep))


def _sides(
    p: Problem, target: Target, options: Options, method: MethodName, width: int
) -> Iterator[tuple[SideName, int, int | None]]:
    if method != "krylov":
        if method != "gram" or options.side is None or options.method == "gram":
            yield "examples", 1, None
        return
    if options.side != "examples":
        needed = -(-p.smaller // width) + 1
        most = max(FEWEST_BLOCKS, min(MOST_BLOCKS if target.variance is None else 4 * MOST_BLOCKS, needed))
        for blocks in (most, *range(most - 1, FEWEST_BLOCKS, -2), FEWEST_BLOCKS):
            yield "parameters", blocks, None
    if options.side != "parameters":
        for group in (None, *(columns for columns in (64, 32, 16, 8, 4, 2, 1) if columns < width)):
            yield "examples", MOST_BLOCKS, group
