"""Every way to run a fit: method, engine, gradients kept or recomputed, side, width; with its memory and its cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from nfk.planning.footprint import Footprint
from nfk.solve.krylov import PROBES
from nfk.solve.power import ITERATIONS

SEARCH = 1.3  # a search takes longer than its products: spectra differ, and small matrices cost time as well
THIN = 64  # columns of a product that runs as fast as those of factors
FEW_COLUMNS = 8  # so many tangents take as long as fewer
HALVING = 1  # times that all gradients are read or written more, where they are kept in halves
PASS_SECONDS = 0.002  # of a pass over nothing
WEIGHTS_READ = 5  # times that a microbatch reads P numbers: the parameters for y, dx and dw, the mean, the scale
MORE_PROGRAMS = 0.5  # seconds to compile what other ways have not: a search in bfloat16, or the factors of layers


@dataclass(frozen=True)
class Way(Footprint):
    """One way to run one problem: what it holds, and the operations, passes and seconds that it takes."""

    @cached_property
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

    @cached_property
    def sweeps(self) -> float:
        """Expected passes over the rows, without that of the moments."""
        krylov = self.steps + 1 + self.rounded if self.method == "krylov" and self.side == "parameters" else 0
        if self.method == "krylov" and self.side == "examples":
            krylov = self.steps + 2 if self.halved else 2 * self.steps + 3
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
        gradients = self.gradients_taken * p.gradient_flops
        if self.engine == "products":
            columns = self._columns_met * max(self.width, FEW_COLUMNS) / self.width
            return gradients + columns * 5.0 * p.forward_flops * p.examples
        return gradients

    @property
    def gradients_taken(self) -> float:
        """Of how many examples, each as often as it is taken."""
        p = self.problem
        if self.engine == "products":
            return p.moment_examples + p.examples * self._needs_trace_pass
        again = (0 if p.moments_over_data else 1) if self.keep or self.shelf else self.sweeps
        return p.moment_examples + again * p.examples

    @property
    def _columns_met(self) -> float:
        """Columns that V and V' meet, together."""
        if self.rounded or self.halved:
            return self.columns + 1.5 * self.rank
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
        kernel = 2.0 * p.examples**2 * p.factor_pair[0] if self.factors else kernel
        products = 0.0 if self.engine == "products" else 4.0 * p.rows * p.parameters * self._columns_met
        return kernel + products + self._orthogonal_flops

    @property
    def _orthogonal_flops(self) -> float:
        if self.method != "krylov":
            return 0.0
        length = self.problem.parameters if self.side == "parameters" else self.problem.rows
        combined = 2.0 * length * self.columns * self.rank
        products = 4.0 if self.rounded else 3.0  # the metric is one more
        return products * length * self.columns * min(self.columns, self.capacity) + combined

    @property
    def flops(self) -> float:
        return self.network_flops + self.matrix_flops

    @cached_property
    def seconds(self) -> float:
        """Expected time, without the compilation that all ways have: what the devices share out, and what each of them
        waits for."""
        devices = self.places * self.options.space.shards
        shared = self._computing + self._written / self.rates.memory
        each = self.sweeps * (PASS_SECONDS + self.traffic / self.rates.memory) + self._passing_seconds
        compiling = MORE_PROGRAMS * (self.halved + self.factors)
        return shared / devices + self._alone + each + self.disk_seconds + compiling

    @property
    def _computing(self) -> float:
        """Seconds of one device for the network, for products and for a kernel matrix."""
        p, rates = self.problem, self.rates
        met = 0.0 if self.engine == "products" else 4.0 * p.rows * p.parameters * self._columns_met
        width = self.rank if self.method in ("gram", "exact") else self.width
        work = (met + self._orthogonal_flops) / (rates.coarse(width) if self.halved else rates.product(width))
        reading = WEIGHTS_READ * p.column_bytes * self.gradients_taken / self.batches().gradients / rates.memory
        total = self.network_flops / rates.network + reading + work * self._search
        if self.halved:  # the certificate is exact, and what is kept is taken apart and put together
            exact = 4.0 * p.rows * p.parameters * self.rank
            total += exact / rates.product(self.rank) - exact / rates.coarse(width) * self._search
            total += HALVING * p.rows * p.column_bytes / rates.memory
        if self.factors:
            total += self._factor_seconds
        elif self.method in ("gram", "exact"):
            rate = rates.kernel_double if self.tile or self.method == "exact" else rates.kernel
            total += 2.0 * p.rows * p.parameters * min(p.rows, p.smaller) / rate
        if self.tiles > 1:
            total += 6.0 * p.examples * p.rows * p.parameters / self.batches().at_tiles.chunk / rates.memory
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
        blocks = 2 * (self.places - 1) / self.places * (self.width or self.rank) * self.column_bytes
        if self.keep or self.engine == "products" or space.shards == 1:
            return blocks
        size = self.batches().gradients
        each = -(-size // space.shards)  # of a microbatch on each device, with padding: all of it travels
        return blocks + -(-self.share.examples // size) * (space.shards - 1) * each * p.row_bytes

    def passing(self, before: float) -> float:
        """Bytes that each device receives while a block is made orthogonal to `before` columns, and is divided out of
        them after its pass: along the basis axis all columns pass by, those before three times, its own six times."""
        shards = self.options.space.shards
        return (3 * before + 6 * self.width) * (shards - 1) * self.resting_bytes

    @property
    def _passing_seconds(self) -> float:
        if self.method != "krylov" or self.side != "parameters":
            return 0.0
        return self.steps * self.passing(min(self.columns, self.capacity) / 2) / self.rates.memory

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
    def _factor_seconds(self) -> float:
        """Half of all pairs: thin products, and what they give, multiplied once and summed up."""
        flops, products = self.problem.factor_pair
        pairs = self.problem.examples**2 / 2
        return pairs * (2 * flops / self.rates.product(THIN) + 4 * self.problem.itemsize * products / self.rates.memory)

    @property
    def _written(self) -> float:
        """Bytes of gradients, once or in every pass; of the products engine, of the sum to which each batch adds."""
        p = self.problem
        if self.engine == "products":
            batches = p.examples / max(self.batches().products, 1)
            return 6 * batches * self._columns_met * p.column_bytes
        return (1 if self.keep else self.sweeps - self.factors) * p.examples * p.row_bytes

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
