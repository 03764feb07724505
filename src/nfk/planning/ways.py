"""Every way to run a fit: method, engine, gradients kept or recomputed, side, width; with its memory and its cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nfk.planning.batches import (
    CHUNK_ROWS,
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

TALL = "parameters x columns"  # how the names of parts end that are blocks of the parameters' side
UNKNOWN_RANK = 64  # components that are reckoned with when a share of variance is asked for
SEARCH = 1.3  # a search takes longer than its products: spectra differ, and small matrices cost time as well
FEW_COLUMNS = 8  # so many tangents take as long as fewer
PASS_SECONDS = 0.002  # of a pass over nothing


@dataclass(frozen=True)
class Way:
    """One way to run one problem. `width` is the columns of a block, `capacity` the most columns that a basis may have,
    `tile` the examples whose gradients a kernel matrix holds when not all of them can be kept. `shelf`: gradients are
    computed once and read from the disk in each pass; `mapped`: tall blocks of columns lie in memory maps."""

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
    shelf: bool = False
    mapped: bool = False

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
        return max(map(self.in_memory, self.stages()), key=lambda parts: sum(parts.values()))

    def in_memory(self, parts: dict[str, int]) -> dict[str, int]:
        return {name: size for name, size in parts.items() if not (self.mapped and name.endswith(TALL))}

    def tall_bytes(self) -> int:
        """Blocks of the parameters' side, at the stage that has most of them."""
        return max(sum(size for name, size in parts.items() if name.endswith(TALL)) for parts in self.stages())

    @property
    def share(self) -> Problem:
        """What each range of rows has of the problem."""
        return self.problem.on(self.options.space)

    @property
    def column_bytes(self) -> float:
        """One column of the parameters' side on a device that has all of its rows: while gradients meet it."""
        return self.problem.column_bytes / self.options.space.shards

    @property
    def resting_bytes(self) -> float:
        """One column of the parameters' side at rest: its part of it on each device."""
        return self.column_bytes / self.options.space.parts

    @property
    def image_bytes(self) -> float:
        """One column of the examples' side on each device."""
        return self.share.rows * self.problem.itemsize / self.options.space.shards

    def stages(self) -> Iterator[dict[str, int]]:
        """Moments, search, finish: what each of them holds beside the batches, on each device."""
        column, always = self.problem.column_bytes, {}
        if self.keep:
            always["all gradients"] = self.share.examples * self.share.row_bytes
        sketched = {f"a sketch, {TALL}": int(2 * self.width * self.column_bytes)} if self._sketches else {}
        yield always | {"moments (mean, Fisher, scale and their sums)": 9 * column} | sketched
        always["mean, Fisher and scale"] = 5 * column
        yield always | {name: int(size) for name, size in self._search_bytes().items()}
        yield always | {name: int(size) for name, size in self._finish_bytes().items()}

    @property
    def tile_bytes(self) -> int:
        """Of one example in each range's tile: where there are several, each device meets the tiles of all."""
        parts = self.options.space.parts
        return self.problem.row_bytes * (parts + 1 if parts > 1 else 1)

    def _search_bytes(self) -> dict[str, float]:
        p = self.problem
        tangents = {"scaled tangents": 2 * self.width * self.column_bytes} if self.engine == "products" else {}
        if self.method in ("exact", "gram"):
            size = p.rows if self.method == "gram" else p.smaller
            dense = {"all gradients, dense": p.examples * p.row_bytes} if self.engine == "products" else {}
            tile = {"a tile of gradients": self.tile * self.tile_bytes} if self.tile else {}
            kernel: dict[str, float] = {"kernel matrix and its eigenvectors": 4 * 8 * size**2}
            return kernel | dense | tile
        if self.method == "power":
            return {f"two blocks, {TALL}": 3 * self.width * self.column_bytes} | tangents
        projected = {"projected matrix": 4 * 8 * self.capacity**2}
        if self.side == "parameters":
            return {
                f"basis and work space, {TALL}":
                    self.capacity * self.resting_bytes + 3 * self.width * self.column_bytes,
                "images of the basis, rows x columns": (self.capacity + 3 * self.width) * self.image_bytes,
            } | projected | tangents  # fmt: skip
        return {
            f"a block and its work space, {TALL}": 3 * self.width * self.column_bytes,
            "basis, images and work space, rows x columns, float64": (2 * self.capacity + 4 * self.width) * p.rows * 8,
        } | projected | tangents  # fmt: skip

    def _finish_bytes(self) -> dict[str, float]:
        p, count = self.problem, self.target.rank or min(self.capacity or self.problem.smaller, self.problem.smaller)
        left: dict[str, float] = {"left vectors and images": 6 * count * p.rows * 8}
        if self.tile:  # neither a second block of right vectors nor a probe: the kernel certifies
            return {f"right vectors, {TALL}": count * self.column_bytes, "kernel matrix": 2 * 8 * p.rows**2} | left
        parts = {f"right vectors and their certificate, {TALL}": 3 * count * self.column_bytes} | left
        if self.method != "krylov":
            probes = 3 * PROBES if self.method == "gram" else 0
            return parts | {f"probes, {TALL}": probes * self.column_bytes}
        parts[f"probes, {TALL}"] = 3 * min(PROBES, self.width) * self.column_bytes
        if self.engine == "products":
            parts["scaled tangents"] = 2 * max(count, self.width) * self.column_bytes
        if self.side == "parameters":
            return parts | {
                f"basis, {TALL}": (self.capacity + self.width) * self.resting_bytes,
                "images of the basis, rows x columns": self.capacity * self.image_bytes,
            }
        return parts | {
            f"remainder, {TALL}": self.width * self.column_bytes,
            "basis and images, rows x columns, float64": 2 * self.capacity * p.rows * 8,
        }

    def parts(self, batches: Batches) -> dict[str, int]:
        """All that is held with these batches, at the stage that needs most."""
        moments, *later = map(self.in_memory, self.stages())
        stages = [moments | self.batch_bytes(batches, True), *(part | self.batch_bytes(batches) for part in later)]
        return max(stages, key=lambda parts: sum(parts.values()))

    def batch_bytes(self, batches: Batches, moments: bool = False) -> dict[str, int]:
        """While the moments are taken, or later: then the network is at rest where gradients are read."""
        p, parts = self.share, {}
        if moments or not self.reads:
            parts = network_bytes(p, batches)
            if self.shelf:
                parts["gradients on their way to the disk"] = batches.gradients * p.row_bytes
        gathers = self._gathers and (not moments or not self.reads or self._sketches)
        return {**parts, **chunk_bytes(p, batches)} if gathers else parts

    @property
    def reads(self) -> bool:
        """Whether all gradients are on disk when the search begins."""
        return self.shelf and self.problem.moments_over_data

    @property
    def _sketches(self) -> bool:
        """Whether a start for the search is made while the moments are taken."""
        return self.method == "krylov" and self.side == "parameters"

    @property
    def _gathers(self) -> bool:
        """Whether gradients are gathered in a chunk of their own, or go where they stay at once."""
        return self.engine == "products" or not self.keep

    def batches(self) -> Batches:
        """The batches that suit best within the budget."""
        p, options = self.share, self.options
        if self.reads:
            return self._read_batches()
        spare = options.budget - sum(self.fixed_bytes().values())
        if self.engine == "products":
            return product_batches(p, options.space, options.budget, spare, self.width)
        staged = p.row_bytes if self.shelf else 0
        batches = gradient_batches(p, options.space, options.budget, spare, self._gathers, staged)
        if self.keep and options.space.device is None:  # rows that stand in one array meet a block all at once
            return replace(batches, chunk=-(-p.examples // batches.gradients) * batches.gradients)
        return batches

    def _read_batches(self) -> Batches:
        """Chunks may take what the network took before."""
        p, options = self.problem, self.options
        spare, *later = (options.budget - sum(self.in_memory(parts).values()) for parts in self.stages())
        batches = gradient_batches(p, options.space, options.budget, spare, self._sketches, p.row_bytes)
        most = batches.chunk if self._sketches else max(CHUNK_ROWS // p.outputs, 1)
        return replace(batches, chunk=max(min(min(later) // p.row_bytes, most, p.examples), 1))

    def least_bytes(self) -> dict[str, int]:
        """With one example at a time: no budget below this sum can be kept."""
        leanest = LEANEST_PRODUCTS if self.engine == "products" else LEANEST
        return self.parts(leanest)

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
        return -(-self.share.examples // self.tile) if self.tile else 1

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
        again = (0 if p.moments_over_data else 1) if self.keep or self.shelf else self.sweeps
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
        """Expected time, without compilation: what the devices share out, and what each of them waits for."""
        devices = self.options.space.parts * self.options.space.shards
        shared = self._computing + self._written / self.rates.memory
        each = self.sweeps * (PASS_SECONDS + self.traffic / self.rates.memory)
        return shared / devices + self._alone + each + self.disk_seconds

    @property
    def _computing(self) -> float:
        """Seconds of one device for the network, for products and for a kernel matrix."""
        p, rates = self.problem, self.rates
        met = 0.0 if self.engine == "products" else 4.0 * p.rows * p.parameters * self._columns_met
        width = self.rank if self.method in ("gram", "exact") else self.width
        work = (met + self._orthogonal_flops) / rates.product(width)
        total = self.network_flops / rates.network + work * self._search
        if self.method in ("gram", "exact"):
            rate = rates.kernel_double if self.tile or self.method == "exact" else rates.kernel
            total += 2.0 * p.rows * p.parameters * min(p.rows, p.smaller) / rate
        if self.tiles > 1:
            total += 6.0 * p.examples * p.rows * p.parameters / self.batches().chunk / rates.memory
        return total

    @property
    def _search(self) -> float:
        return SEARCH if self.method == "krylov" else 1.0

    @property
    def _alone(self) -> float:
        """Seconds of the small matrices, on the host."""
        return self._eigh_seconds * self._search

    @property
    def traffic(self) -> float:
        """Bytes that each device receives in a fused pass: the block is gathered along the data axis and its image
        reduced; along the basis axis, gradients that were computed by others."""
        space, p = self.options.space, self.problem
        blocks = 2 * (space.parts - 1) * (self.width or self.rank) * self.resting_bytes
        gradients = 0.0 if self.keep or self.engine == "products" else self.share.examples * p.row_bytes
        return blocks + (space.shards - 1) / space.shards * gradients

    @property
    def disk_bytes(self) -> int:
        """What lies on disk."""
        rows = self.problem.examples * self.problem.row_bytes if self.shelf else 0
        return rows + (self.tall_bytes() if self.mapped else 0)

    @property
    def disk_seconds(self) -> float:
        """Of reading and writing: all gradients once to the disk, and from there in each pass; tall blocks whenever
        something is done with them, as if nothing of them stayed in memory."""
        p, rates = self.problem, self.rates
        rows = p.examples * p.row_bytes if self.shelf else 0
        seconds = rows / rates.disk_write + self.sweeps * rows / rates.disk_read
        if not self.mapped:
            return seconds
        moved = self._columns_moved * p.column_bytes
        return seconds + moved * (2 / 3 / rates.disk_read + 1 / 3 / rates.disk_write)

    @property
    def _columns_moved(self) -> float:
        """Columns of tall blocks that are read or written: three for each that a chunk of rows meets, those of the
        basis that a block is made orthogonal to, and the right vectors while they are certified."""
        chunks = math.ceil(self.problem.examples / self.batches().chunk)
        steps, basis = (self.steps, min(self.columns, self.capacity) / 2) if self.method == "krylov" else (0, 0)
        orthogonal = steps * (11 * basis + 12 * self.width) if self.side == "parameters" else 0
        return 3 * chunks * (self._columns_met + self.rank) + orthogonal + 12 * self.rank

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
