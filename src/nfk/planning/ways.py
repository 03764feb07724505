"""Every way to run a fit: method, engine, gradients kept or recomputed, side, width; with its memory and its cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

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
from nfk.planning.rates import Rates
from nfk.solve.krylov import PROBES
from nfk.solve.power import ITERATIONS

WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
UNKNOWN_RANK = 64  # components that are reckoned with when a share of variance is asked for
MOST_UNKNOWN = 3000  # columns that such a search may take
TILE_SHARE = 0.77  # of the room for gradients, where not all of them fit
SEARCH = 1.3  # a search takes longer than its products: spectra differ, and small matrices cost time as well
FEW_COLUMNS = 8  # so many tangents take as long as fewer
PASS_SECONDS = 0.002  # of a pass over nothing


@dataclass(frozen=True)
class Way:
    """One way to run one problem. `width` is the columns of a block, `capacity` the most columns that a basis may have,
    `tile` the examples whose gradients a kernel matrix holds when not all of them can be kept."""

    problem: Problem
    target: Target
    options: Options
    rates: Rates
    method: MethodName
    engine: Engine
    keep: bool
    side: SideName = "examples"
    width: int = 0
    capacity: int = 0
    tile: int = 0

    @property
    def rank(self) -> int:
        """Components that are wanted, or reckoned with."""
        return self.target.rank or min(UNKNOWN_RANK, self.problem.smaller)

    @property
    def kept(self) -> int:
        """Vectors that a full basis restarts from."""
        return min(self.rank + self.options.oversamples, self.problem.smaller)

    # --- memory

    def fixed_bytes(self) -> dict[str, int]:
        """What does not depend on the batches, at the stage that needs most."""
        return max(self._stages(), key=lambda parts: sum(parts.values()))

    def _stages(self) -> Iterator[dict[str, int]]:
        """Moments, search, finish: what each of them holds beside the batches."""
        p = self.problem
        column, always = p.column_bytes, {}
        if self.keep:
            always["all gradients"] = p.examples * p.row_bytes
        sketch = self.width if self.method == "krylov" and self.side == "parameters" else 0
        yield always | {"moments (mean, Fisher, scale and their sums)": (9 + 2 * sketch) * column}
        always["mean, Fisher and scale"] = 5 * column
        yield always | self._search_bytes()
        yield always | self._finish_bytes()

    def _search_bytes(self) -> dict[str, int]:
        p = self.problem
        tangents = {"scaled tangents": 2 * self.width * p.column_bytes} if self.engine == "products" else {}
        if self.method in ("exact", "gram"):
            size = p.rows if self.method == "gram" else p.smaller
            dense = {"all gradients, dense": p.examples * p.row_bytes} if self.engine == "products" else {}
            tile = {"a tile of gradients": self.tile * p.row_bytes} if self.tile else {}
            return {"kernel matrix and its eigenvectors": 4 * 8 * size**2} | dense | tile
        if self.method == "power":
            return {"two blocks, parameters x columns": 3 * self.width * p.column_bytes} | tangents
        projected = {"projected matrix": 4 * 8 * self.capacity**2}
        if self.side == "parameters":
            return {
                "basis and work space, parameters x columns": (self.capacity + 3 * self.width) * p.column_bytes,
                "images of the basis, rows x columns": (self.capacity + 3 * self.width) * p.rows * p.itemsize,
            } | projected | tangents  # fmt: skip
        return {
            "a block and its work space, parameters x columns": 3 * self.width * p.column_bytes,
            "basis, images and work space, rows x columns, float64": (2 * self.capacity + 4 * self.width) * p.rows * 8,
        } | projected | tangents  # fmt: skip

    def _finish_bytes(self) -> dict[str, int]:
        p, count = self.problem, self.target.rank or min(self.capacity or self.problem.smaller, self.problem.smaller)
        left = {"left vectors and images": 6 * count * p.rows * 8}
        if self.tile:  # neither a second block of right vectors nor a probe: the kernel certifies
            return {"right vectors": count * p.column_bytes, "kernel matrix": 2 * 8 * p.rows**2} | left
        parts = {"right vectors and their certificate": 3 * count * p.column_bytes} | left
        if self.method != "krylov":
            probes = 3 * PROBES if self.method == "gram" else 0
            return parts | {"probes": probes * p.column_bytes}
        parts["probes"] = 3 * min(PROBES, self.width) * p.column_bytes
        if self.engine == "products":
            parts["scaled tangents"] = 2 * max(count, self.width) * p.column_bytes
        if self.side == "parameters":
            return parts | {
                "basis, parameters x columns": (self.capacity + self.width) * p.column_bytes,
                "images of the basis, rows x columns": self.capacity * p.rows * p.itemsize,
            }
        return parts | {
            "remainder, parameters x columns": self.width * p.column_bytes,
            "basis and images, rows x columns, float64": 2 * self.capacity * p.rows * 8,
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
            return product_batches(p, options.space, options.budget, spare, self.width)
        batches = gradient_batches(p, options.space, options.budget, spare, self._gathers)
        if self.keep and options.space.device is None:  # rows that stand in one array meet a block all at once
            return replace(batches, chunk=-(-p.examples // batches.gradients) * batches.gradients)
        return batches

    def least_bytes(self) -> dict[str, int]:
        """With one example at a time: no budget below this sum can be kept."""
        leanest = LEANEST_PRODUCTS if self.engine == "products" else LEANEST
        return {**self.fixed_bytes(), **self.batch_bytes(leanest)}

    # --- cost

    @property
    def columns(self) -> float:
        """Columns that all blocks of a search have together, as far as one can tell."""
        wanted = min(expected_columns(self.rank, self.width, self.options.tol), self.problem.smaller)
        lost = max(wanted - self.capacity, 0) / max(self.capacity - self.kept, 1)  # each restart takes some of the way
        return max(wanted * (1 + lost), self.width)

    @property
    def steps(self) -> int:
        """Krylov steps to be expected."""
        return math.ceil(self.columns / self.width)

    @property
    def tiles(self) -> int:
        return -(-self.problem.examples // self.tile) if self.tile else 1

    @property
    def sweeps(self) -> float:
        """Expected passes over the rows, without that of the moments."""
        krylov = self.steps + 1 if self.method == "krylov" and self.side == "parameters" else 0
        if self.method == "krylov" and self.side == "examples":
            krylov = 2 * self.steps + 3
        passes = {"power": 2 * ITERATIONS + 2, "exact": 2, "gram": (self.tiles + 1) / 2 + 2, "krylov": krylov}
        return passes[self.method] + self._needs_trace_pass

    @property
    def passes(self) -> int:
        """Expected passes over the rows, with that of the moments."""
        return math.ceil(self.sweeps + (self.problem.moment_examples > 0))

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
            columns = self._columns_met * max(self.width, FEW_COLUMNS) / self.width
            return moments + trace + columns * 5.0 * p.forward_flops * p.examples
        again = (0 if p.moments_over_data else 1) if self.keep else self.sweeps
        return moments + again * p.examples * p.gradient_flops

    @property
    def _columns_met(self) -> float:
        """Columns that V and V' meet, together."""
        if self.method == "krylov":
            return self.columns + min(PROBES, self.width) + (self.rank / 2 if self.side == "examples" else 0)
        return {"power": (ITERATIONS + 1.5) * self.width, "exact": self.problem.rows}.get(
            self.method, self.rank / 2 + PROBES
        )

    @property
    def matrix_flops(self) -> float:
        """Operations on matrices: products of gradients with blocks, orthogonalisation, the kernel matrix."""
        p = self.problem
        kernel = 2.0 * p.rows * p.parameters * min(p.rows, p.smaller) if self.method in ("exact", "gram") else 0.0
        products = 0.0 if self.engine == "products" else 4.0 * p.rows * p.parameters * self._columns_met
        return kernel + products + self._orthogonal_flops

    @property
    def _orthogonal_flops(self) -> float:
        if self.method != "krylov":
            return 0.0
        length = self.problem.parameters if self.side == "parameters" else self.problem.rows
        combined = 2.0 * length * self.columns * self.rank
        return 3.0 * length * self.columns * min(self.columns, self.capacity) + combined

    @property
    def flops(self) -> float:
        return self.network_flops + self.matrix_flops

    @property
    def seconds(self) -> float:
        """Expected time, without compilation."""
        p, rates = self.problem, self.rates
        met = 0.0 if self.engine == "products" else 4.0 * p.rows * p.parameters * self._columns_met
        width = self.rank if self.method in ("gram", "exact") else self.width
        work = (met + self._orthogonal_flops) / rates.product(width) + self._eigh_seconds
        total = self.network_flops / rates.network + work * (SEARCH if self.method == "krylov" else 1)
        if self.method in ("gram", "exact"):
            rate = rates.kernel_double if self.tile or self.method == "exact" else rates.kernel
            total += 2.0 * p.rows * p.parameters * min(p.rows, p.smaller) / rate
        if self.tiles > 1:
            total += 6.0 * p.examples * p.rows * p.parameters / self.batches().chunk / rates.memory
        return total + self._written / rates.memory + self.sweeps * PASS_SECONDS

    @property
    def _written(self) -> float:
        """Bytes of gradients, once or in every pass; of the products engine, of the sum to which each batch adds."""
        p = self.problem
        if self.engine == "products":
            batches = p.examples / max(self.batches().products, 1)
            return 6 * batches * self._columns_met * p.column_bytes
        return (1 if self.keep else self.sweeps) * p.examples * p.row_bytes

    @property
    def _eigh_seconds(self) -> float:
        """Of the kernel matrix, or of the projected matrix at every step."""
        if self.method in ("gram", "exact"):
            return min(self.problem.rows, self.problem.smaller) ** 3 / self.rates.eigh
        size = min(self.columns, self.capacity) if self.method == "krylov" else self.width
        return (self.steps / 4 if self.method == "krylov" else 1) * size**3 / self.rates.eigh


def expected_columns(rank: int, width: int, tol: float) -> float:
    """Columns of all blocks until `rank` residuals are below `tol`: measured on kernels of trained networks.

    Narrow blocks need fewer columns in more steps.
    """
    at_1e3 = 2.75 * rank + 5 * width / (1 + 0.15 * width / rank)
    eased = 1 - 0.14 * math.log10(min(max(tol, 1e-7), 0.3) / 1e-3)
    return max(at_1e3 * eased, rank + width / 2)


def ways(problem: Problem, target: Target, options: Options, rates: Rates) -> Iterator[Way]:
    """Every way that the options allow."""
    for method in options.methods:
        for engine, keep in _engines(problem, options, method):
            way = Way(problem, target, options, rates, method, engine, keep)
            if method == "krylov":
                yield from _blocks(way)
            elif method == "gram":
                yield from _tiles(way)
            else:
                wide = min((target.rank or UNKNOWN_RANK) + options.oversamples, problem.smaller)
                yield replace(way, width=wide)


def _engines(p: Problem, options: Options, method: MethodName) -> Iterator[tuple[Engine, bool]]:
    """Engines, and whether they keep all gradients."""
    if options.engine in (None, "gradients"):
        keeps = (True,) if method == "exact" else (True, False)
        yield from (("gradients", keep) for keep in keeps if options.keep in (None, keep) or method == "exact")
    allowed = not p.why_no_products and method != "gram" and (options.keep is not True or method == "exact")
    if options.engine in (None, "products") and allowed:
        yield "products", False


def _tiles(way: Way) -> Iterator[Way]:
    """All gradients kept, or as large a tile as the budget has room for."""
    p, options = way.problem, way.options
    if options.side is not None and options.method == "auto":
        return
    if way.keep:
        yield way
        return
    _, search, _ = way._stages()
    room = options.budget - sum(search.values()) - sum(way.batch_bytes(LEANEST).values())
    # The rest is for a chunk of the later rows: what they meet is turned into float64 for every chunk.
    yield replace(way, tile=int(min(max(TILE_SHARE * room // p.row_bytes, 1), p.examples)))


def _blocks(way: Way) -> Iterator[Way]:
    """Krylov on either side, with blocks of every width, and bases that hold all of a search or restart."""
    rank, smaller = way.rank, way.problem.smaller
    wide = [rank + way.options.oversamples, 2 * rank, 3 * rank] if way.target.rank else []
    for width in sorted({min(width, smaller) for width in (*WIDTHS, *wide) if width <= 3 * rank + 64}):
        for side in ("parameters", "examples"):
            if way.options.side in (None, side):
                for capacity in _capacities(replace(way, width=width)):
                    yield replace(way, side=side, width=width, capacity=min(capacity, smaller + width))


def _capacities(way: Way) -> tuple[int, ...]:
    least, width = way.kept + 2 * way.width, way.width
    if way.target.rank is None:
        return tuple(max(columns, least) for columns in (MOST_UNKNOWN, MOST_UNKNOWN // 2, 1000, 500, 250))
    whole = math.ceil(1.3 * expected_columns(way.rank, width, way.options.tol)) + 2 * width
    return whole, max(whole // 2, least), least
