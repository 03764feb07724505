"""What a way to run a fit holds: the bytes of its stages in memory, and the batches that fit beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from nfk.distributed import Replicas
from nfk.planning.batches import (
    CHUNK_ROWS,
    LEANEST,
    LEANEST_PRODUCTS,
    MOST_MICROBATCH,
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
from nfk.spaces.halves import SLAB_BYTES
from nfk.spaces.tally import rows_gathered

RUNTIME = "compiled programs and the runtime"
TALL = "parameters x columns"  # how the names of parts end that are blocks of the parameters' side
BFLOAT16_BYTES = 2
SLABS = 4  # that are held while they are multiplied
UNKNOWN_RANK = 64  # components that are reckoned with when a share of variance is asked for


@dataclass(frozen=True)
class Footprint:
    """One way to run one problem, as far as memory goes. `width` is the columns of a block, `capacity` the most columns
    that a basis may have, `tile` the examples whose gradients a kernel matrix holds when not all of them can be kept.
    `shelf`: gradients are computed once and read from the disk in each pass; `mapped`: tall blocks of columns lie in
    memory maps; `rounded`: the basis of a search is stored in bfloat16. `factors`: a kernel matrix comes from the
    factors of layers, which are held in place of gradients. `halved`: gradients are kept in halves, of which the search
    multiplies the first."""

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
    factors: bool = False
    rounded: bool = False
    halved: bool = False

    @property
    def rank(self) -> int:
        """Components that are wanted, or reckoned with."""
        return self.target.rank or min(UNKNOWN_RANK, self.problem.smaller)

    @cached_property
    def kept(self) -> int:
        """Vectors that a full basis restarts from."""
        return min(self.rank + self.options.oversamples, self.problem.smaller)

    def fixed_bytes(self) -> dict[str, int]:
        """What does not depend on the batches, at the stage that needs most."""
        return max(map(self.in_memory, self.stages()), key=lambda parts: sum(parts.values()))

    def in_memory(self, parts: dict[str, int]) -> dict[str, int]:
        return {name: size for name, size in parts.items() if not (self.mapped and name.endswith(TALL))}

    def tall_bytes(self) -> int:
        """Blocks of the parameters' side, at the stage that has most of them."""
        return max(sum(size for name, size in parts.items() if name.endswith(TALL)) for parts in self.stages())

    @cached_property
    def places(self) -> int:
        """Ranges of rows that are worked on at one time: of a mesh, or of processes that have rows of their own."""
        space = self.options.space
        return space.processes.size if isinstance(space.processes, Replicas) else space.parts

    @cached_property
    def share(self) -> Problem:
        """What each range of rows has of the problem."""
        return replace(self.problem, examples=-(-self.problem.examples // self.places))

    @property
    def column_bytes(self) -> float:
        """One column of the parameters' side on a device that has all of its rows: while gradients meet it."""
        return self.problem.column_bytes / self.options.space.shards

    @property
    def resting_bytes(self) -> float:
        """One column of the parameters' side at rest: its part of it on each device."""
        return self.column_bytes / self.options.space.parts

    @property
    def basis_bytes(self) -> float:
        """The basis of the parameters' side at rest. What a rounded one restarts from is not rounded, and is held twice
        while the one before is there."""
        if not self.rounded:
            return self.capacity * self.resting_bytes
        rounded = (self.capacity - self.kept) * BFLOAT16_BYTES / self.problem.itemsize
        return (rounded + 2 * self.kept) * self.resting_bytes

    @property
    def image_bytes(self) -> float:
        """One column of the examples' side on each device."""
        space = self.options.space
        return self.problem.on(space).rows * self.problem.itemsize / space.shards

    def stages(self) -> Iterator[dict[str, int]]:
        """Moments, search, finish: what each of them holds beside the batches, on each device."""
        column, always = self.problem.column_bytes, {RUNTIME: self.problem.runtime_bytes}
        if self.keep:
            always["all gradients"] = self.share.examples * self.share.row_bytes
        sketched = {f"a sketch, {TALL}": int(2 * self.width * self.column_bytes)} if self._sketches else {}
        moments = 9 * column + rows_gathered(int(column)) * column
        yield always | {"moments (mean, Fisher, scale and their sums)": int(moments)} | sketched
        # The network has a copy of the parameters; on a device, or in PyTorch, of mean and scale, too.
        always["mean, Fisher and scale, and the network's own"] = 6 * column
        yield always | {name: int(size) for name, size in self._search_bytes().items()}
        yield always | {name: int(size) for name, size in self._finish_bytes().items()}

    @property
    def _most_chunk(self) -> int:
        """Examples of a chunk, at the most."""
        return min(max(CHUNK_ROWS // self.problem.outputs, MOST_MICROBATCH), self.share.examples)

    @property
    def tile_bytes(self) -> int:
        """Of one example in each range's tile: where there are several, each device meets the tiles of all."""
        copies = 2 if isinstance(self.options.space.processes, Replicas) else 1  # on their way, besides
        return self.problem.row_bytes * (self.places + copies if self.places > 1 else 1)

    def _search_bytes(self) -> Mapping[str, float]:
        p = self.problem
        tangents = {"scaled tangents": 2 * self.width * self.column_bytes} if self.engine == "products" else {}
        if self.method in ("exact", "gram"):
            size = p.rows if self.method == "gram" else p.smaller
            dense = {"all gradients, dense": p.examples * p.row_bytes} if self.engine == "products" else {}
            tile = {"a tile of gradients": self.tile * self.tile_bytes} if self.tile else {}
            if self.method == "gram" and self.keep and self.places > 1:
                tile = {"a chunk of everyone's gradients": self.places * self._most_chunk * p.row_bytes}
            factors = {"factors of all layers": 2 * p.examples * p.factor_bytes} if self.factors else {}
            kernel: dict[str, float] = {"kernel matrix and its eigenvectors": 4 * 8 * size**2}
            return kernel | dense | tile | factors
        if self.method == "power":
            return {f"two blocks, {TALL}": 3 * self.width * self.column_bytes} | tangents
        projected = {"projected matrix": 4 * 8 * self.capacity**2}
        columns = 2 * self.capacity + 4 * self.width
        rows = {"basis, images and work space, rows x columns, float64": columns * p.rows * 8}
        if self.halved:
            return {"slabs of gradients": SLABS * SLAB_BYTES, **rows} | projected
        if self.side == "parameters":
            return {
                f"basis and work space, {TALL}": self.basis_bytes + 3 * self.width * self.column_bytes,
                "images of the basis, rows x columns": (self.capacity + 3 * self.width) * self.image_bytes,
            } | projected | tangents  # fmt: skip
        return (
            {f"a block and its work space, {TALL}": 3 * self.width * self.column_bytes, **rows} | projected | tangents
        )

    def _finish_bytes(self) -> Mapping[str, float]:
        p, count = self.problem, self.target.rank or min(self.capacity or self.problem.smaller, self.problem.smaller)
        left: dict[str, float] = {"left vectors and images": 6 * count * p.rows * 8}
        if self.tile:  # neither a second block of right vectors nor a probe: the kernel certifies
            return {f"right vectors, {TALL}": count * self.column_bytes, "kernel matrix": 2 * 8 * p.rows**2} | left
        parts = {f"right vectors and their certificate, {TALL}": 3 * count * self.column_bytes} | left
        if self.method != "krylov":
            probes = 3 * PROBES if self.method == "gram" else 0
            return parts | {f"probes, {TALL}": probes * self.column_bytes}
        if self.engine == "products":
            parts["scaled tangents"] = 2 * max(count, self.width) * self.column_bytes
        if self.halved:
            return parts | {"slabs of gradients": SLABS * SLAB_BYTES}
        if self.rounded:  # all vectors are certified at once, and the basis is gone
            return parts | {"images of the basis, rows x columns": self.capacity * self.image_bytes}
        parts[f"probes, {TALL}"] = 3 * min(PROBES, self.width) * self.column_bytes
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
        moments, search, finish = map(self.in_memory, self.stages())
        moments, search = moments | self.batch_bytes(batches, True), search | self.batch_bytes(batches.at_tiles)
        return max(moments, search, finish | self.batch_bytes(batches), key=lambda parts: sum(parts.values()))

    def batch_bytes(self, batches: Batches, moments: bool = False) -> dict[str, int]:
        """While the moments are taken, or later: then the network is at rest where gradients are read."""
        p, parts = self.share, {}
        if moments or not self.reads:
            parts = network_bytes(p, batches)
            if self.shelf:
                parts["gradients on their way to the disk"] = batches.gradients * p.row_bytes
        gathers = self._gathers and (not moments or not self.reads or self._sketches)
        return {**parts, **chunk_bytes(p, batches, self.options.space)} if gathers else parts

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
        found, space = self._batches(), self.options.space
        return self._meeting(found) if self.tile and self.places == 1 and space.chunk_copies == 1 else found

    def _meeting(self, batches: Batches) -> Batches:
        """What meets a tile takes the room that right vectors have later."""
        _, search, _ = map(self.in_memory, self.stages())
        spare = self.options.budget - sum((search | self.batch_bytes(batches)).values())
        size = 1 if self.reads else batches.gradients
        more = min(max(spare // self.share.row_bytes, 0), self._most_chunk - batches.chunk) // size * size
        return replace(batches, meeting=batches.chunk + more) if more > 0 else batches

    def _batches(self) -> Batches:
        p, options = self.share, self.options
        if self.reads:
            return self._read_batches()
        spare = options.budget - sum(self.fixed_bytes().values())
        if self.engine == "products":
            return product_batches(p, options.space, options.budget, spare, self.width)
        staged = p.row_bytes if self.shelf else 0
        batches = gradient_batches(p, options.space, options.budget, spare, self._gathers, staged)
        if (
            self.keep and options.space.device is None and not self.halved
        ):  # rows that stand in one array meet a block all at once
            return replace(batches, chunk=-(-p.examples // batches.gradients) * batches.gradients)
        return batches

    def with_whole_microbatches(self) -> Self:
        """Tiles that end where a microbatch does: then an example is in the same one whenever its gradient is computed,
        and rounding, which may depend on the others there, is the same as well."""
        size = self.batches().gradients
        return replace(self, tile=max(self.tile // size * size, min(self.tile, size))) if self.tile else self

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

    @property
    def disk_bytes(self) -> int:
        """What lies on disk."""
        rows = self.problem.examples * self.problem.row_bytes if self.shelf else 0
        return rows + (self.tall_bytes() if self.mapped else 0)
