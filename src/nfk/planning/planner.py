"""The cheapest way that fits in a budget, or an error that says what the leanest one needs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from nfk.memory import at_least, human, parse_memory
from nfk.notebook import Shown
from nfk.planning.batches import Batches, chunk_bytes, gradient_batches, network_bytes, product_batches
from nfk.planning.disk import with_disk
from nfk.planning.footprint import RUNTIME
from nfk.planning.listing import ways, why_not_halved
from nfk.planning.options import Engine, Options, SideName
from nfk.planning.problem import Problem, Target
from nfk.planning.rates import TYPICAL, Rates, known, measured
from nfk.planning.ways import Way
from nfk.spaces import Space
from nfk.spaces.tally import rows_gathered

NEAR = 1.1  # estimates that differ by less are about the same
CLOSE = 4.0  # engines whose estimates differ by less are timed
WORTH_TIMING_SECONDS = 10.0
WORTH_MEASURING_SECONDS = 5.0  # from here on the machine's own rates are worth the two seconds of their measurement
CALL_CHUNK_BYTES = 2**30  # gradients that a call gathers at the most
CALL_FRESH_BYTES = 2**27  # and no more than these where they are rows enough for a product: fresh pages cost time
CALL_ROWS = 64  # a product with the basis then takes 1.2 times as long as with 256, and the call 0.86 times (measured)
CALL_SHARE = 8  # a call of many examples has the time for pages that hold one in so many


@dataclass(frozen=True)
class Plan(Shown):
    """A way to run a fit, its cost and its peak memory. `print` it."""

    way: Way
    batches: Batches
    rival: Plan | None = field(default=None, repr=False)  # the other engine's best plan, where it is about as fast
    others: tuple[Way, ...] = field(default=(), repr=False)  # the best way of every other kind that fits, fastest first

    @property
    def problem(self) -> Problem:
        return self.way.problem

    @property
    def engine(self) -> Engine:
        return self.way.engine

    @property
    def side(self) -> SideName:
        return self.way.side

    @property
    def keep(self) -> bool:
        return self.way.keep

    @property
    def width(self) -> int:
        """Columns of a block."""
        return self.way.width

    @property
    def passes(self) -> int:
        """Expected sweeps over all rows, with the one for the moments."""
        return self.way.passes

    @property
    def flops(self) -> float:
        return self.way.flops

    @property
    def seconds(self) -> float:
        """Expected time, from the rates of this machine; compilation comes on top."""
        return self.way.seconds

    @property
    def budget(self) -> int:
        return self.way.options.budget

    @property
    def parts(self) -> dict[str, int]:
        """Bytes of everything that is held."""
        return self.way.parts(self.batches)

    @property
    def peak_bytes(self) -> int:
        """The sum of all parts: an upper bound, since not all are held at one time."""
        return sum(self.parts.values())

    @property
    def brief(self) -> str:
        """Time and memory in a few words."""
        return f"about {_duration(self.seconds)} and compilation, {human(self.peak_bytes)} at its peak"

    def _facts(self) -> dict[str, str]:
        p, way = self.problem, self.way
        return {
            "of": f"{p.examples:,} examples, {p.rows:,} rows, {p.parameters:,} parameters, {way.target}",
            "method": f"{_words(way)}, {way.engine}, {_where(way)}",
            **({"devices": devices} if (devices := way.options.space.devices) else {}),
            "passes": f"about {self.passes}, {self.flops:.1e} FLOP",
            "time": f"about {_duration(self.seconds)}, and compilation",
            "memory": f"{human(self.peak_bytes)} at its peak, budget {human(self.budget)}",
        }

    def __str__(self) -> str:
        p, way = self.problem, self.way
        devices = way.options.space.devices
        each = " on each device" if devices else ""
        how = "" if self.batches.batching == "vmap" else f", {self.batches.batching}"
        met = f", {self.batches.meeting} against a tile" if self.batches.meeting else ""
        lines = [
            f"Plan: {p.examples:,} examples, {p.rows:,} rows, {p.parameters:,} parameters, {way.target}",
            *([f"  network   {p.note}"] if p.note else []),
            f"  method    {_words(way)}",
            f"  engine    {way.engine}{' (close: both will be timed)' if self.rival else ''}, {_where(way)}",
            *([f"  devices   {devices}"] if devices else []),
            f"  batches   {self.batches.gradients} examples through the network{how}, "
            f"{self.batches.chunk} against the basis{met}",
            f"  passes    about {self.passes}, {self.flops:.1e} FLOP",
            f"  time      about {_duration(self.seconds)}, and compilation",
            *(f"    or {_duration(other.seconds):>12}  {_words(other)}, {_where(other)}" for other in self.others[:4]),
            f"  memory    {human(self.peak_bytes)} at its peak{each}, budget {human(self.budget)}",
        ]
        lines += [f"    {human(size):>10}  {name}" for name, size in self.parts.items() if size]
        return "\n".join(lines + _disk_lines(way))


def _disk_lines(way: Way) -> list[str]:
    """What lies where on disk, and how long reading and writing it takes."""
    if not way.disk_bytes or way.options.disk is None:
        return []
    share, rates = _duration(way.disk_seconds), way.rates
    return [
        f"  disk      {human(way.disk_bytes)} in {way.options.disk.folder}, {share} of the time "
        f"(read at {human(rates.disk_read)}/s, written at {human(rates.disk_write)}/s)"
    ]


def _words(way: Way) -> str:
    """The method of a way, in words."""
    if way.method in ("gram", "exact"):
        return f"{way.method}, the {way.problem.rows:,} x {way.problem.rows:,} kernel matrix"
    if way.method == "power":
        return f"power, blocks of {way.width} columns"
    return f"krylov, on the {way.side}' side, blocks of {way.width} columns"


def _where(way: Way) -> str:
    stored = " in bfloat16" * way.rounded + " in memory maps" * way.mapped
    return _gradients(way) + (f", basis{stored}" if stored else "")


def _gradients(way: Way) -> str:
    if way.factors:
        return "from factors of layers, gradients only for the basis"
    if way.tile:
        read = "read from the disk, " if way.shelf else ""
        return f"gradients {read}of {way.tile:,} examples held at a time"
    if way.shelf:
        return "gradients kept on disk"
    products = "by JVP and VJP" if way.engine == "products" else "gradients recomputed in each pass"
    kept = "gradients kept in memory" + ", search in bfloat16" * way.halved
    return kept if way.keep else products


def plan_fit(problem: Problem, rank: int | float, options: Options, rates: Rates | None = None) -> Plan:
    """The cheapest way that fits in the budget, or a `MemoryError` that says what to change.

    At the `rates` given, or at those of this machine. A short fit does not wait until they are measured: it takes
    typical ones where they are not known yet.
    """
    target = Target.of(rank, problem)
    if target.variance is not None and options.method == "power":
        raise ValueError(f"rank={rank} is a fraction, but method='power' needs a number of components")
    if options.engine == "products" and problem.why_no_products:
        raise ValueError(f"engine='products' is not possible here: {problem.why_no_products}; use engine='gradients'")
    if options.search == "bfloat16" and (lacking := why_not_halved(problem, target)):
        raise ValueError(f"search='bfloat16' {lacking}: leave out search")
    fitting = _fitting(problem, target, options, rates or known() or TYPICAL)
    best = _best(fitting)
    if rates is None and best.seconds > WORTH_MEASURING_SECONDS:
        fitting = _fitting(problem, target, options, _rates(options, fitting))
        best = _best(fitting)
    best = best.with_whole_microbatches()
    rival = _rival(best, fitting)
    others = _best_of_each_kind([way for way in fitting if _kind(way) != _kind(best)])
    return Plan(best, best.batches(), None if rival is None else Plan(rival, rival.batches()), others)


def _best(fitting: list[Way]) -> Way:
    """The fastest. Where gradients are computed again and again, what they cost is the least certain of all: of ways of
    its kind that are about as fast, the one with the fewest passes."""
    fastest = min(fitting, key=lambda way: way.seconds)
    if fastest.keep or fastest.shelf:
        return fastest
    near = [way for way in fitting if _kind(way) == _kind(fastest) and way.seconds < NEAR * fastest.seconds]
    return min([fastest, *near], key=lambda way: (way.passes, way.seconds))


def _fitting(problem: Problem, target: Target, options: Options, rates: Rates) -> list[Way]:
    """The ways that fit in the budget; where none does, an error says what the leanest needs."""
    possible = [(sum(way.least_bytes().values()), way) for way in ways(problem, target, options, rates)]
    within = [way for least, way in possible if least <= options.budget]
    fitting = [way for way in within if way.disk_bytes <= options.disk_budget]
    if not fitting:
        if within:
            raise MemoryError(_no_room_on_disk(min(within, key=lambda way: way.disk_bytes)))
        raise MemoryError(_too_large(min(possible, key=lambda pair: pair[0])[1]))
    return fitting


def _rates(options: Options, fitting: list[Way]) -> Rates:
    """Of this machine; of its disk too, where there is a way that uses it."""
    disk = options.disk if any(way.disk_bytes for way in fitting) else None
    return measured() if disk is None else with_disk(measured(), disk)


def _kind(way: Way) -> tuple:
    return way.method, way.engine, way.keep, way.shelf, way.mapped, way.rounded, way.side, way.factors, way.halved


def _best_of_each_kind(found: list[Way]) -> tuple[Way, ...]:
    best: dict[tuple, Way] = {}
    for way in sorted(found, key=lambda way: way.seconds):
        best.setdefault(_kind(way), way)
    return tuple(best.values())


def _rival(best: Way, fitting: list[Way]) -> Way | None:
    """The best way of the other engine, where it is about as fast and the fit long enough for a trial of both."""
    others = [way for way in fitting if way.engine != best.engine and way.method == best.method]
    if not others or best.seconds < WORTH_TIMING_SECONDS:
        return None
    rival = min(others, key=lambda way: way.seconds)
    return rival if rival.seconds < CLOSE * best.seconds else None


def _no_room_on_disk(way: Way) -> str:
    options, least = way.options, at_least(way.disk_bytes)
    assert options.disk is not None
    kind = options.disk.in_memory
    room = f"is kept in memory ({kind}), no disk" if kind else f"has {human(options.disk_budget)} for it"
    asked, remedy = f"keep='disk' takes {least} at the least", "Name"
    if options.keep != "disk":
        asked = f"memory={human(options.budget)} is too little without a disk, and the leanest way takes {least} there"
        remedy = "Raise memory, or name"
    return f"{asked}, but scratch={str(options.disk.folder)!r} {room}. {remedy} a folder on a larger disk, scratch=..."


def _too_large(way: Way) -> str:
    parts = way.least_bytes()
    rank = "" if way.target.rank is None else f", lower rank={way.target.rank}"
    return (
        f"memory={human(way.options.budget)} is too little: the leanest way needs {at_least(sum(parts.values()))}, "
        f"most of it for {max(parts, key=lambda part: parts[part])}. Raise memory{rank}, or let fewer of the "
        f"{way.problem.parameters:,} parameters take part with parameters=..."
    )


@dataclass(frozen=True)
class RowPlan:
    """How rows of V are computed for a call, an exact kernel or a data-set vector; `tile` examples of X are held."""

    batches: Batches
    parts: dict[str, int]
    tile: int = 0

    @property
    def peak_bytes(self) -> int:
        return sum(self.parts.values())


def plan_rows(
    p: Problem, space: Space, memory: int | str | None, columns: int = 0, engine: Engine = "gradients"
) -> RowPlan:
    """One pass over the rows, against a basis of `columns` columns, or none (0): nothing is gathered then."""
    budget, p = parse_memory(memory, space.free_bytes), p.on(space)
    parts = {"mean and scale": 4 * p.column_bytes, "the result": 2 * p.rows * columns * p.itemsize}
    parts[RUNTIME] = p.runtime_bytes
    if not columns:
        parts["rows that the moments take in together"] = rows_gathered(p.column_bytes) * p.column_bytes
    if space.parts > 1:
        parts["the basis, gathered"] = columns * p.column_bytes // space.shards
    if engine == "products":
        parts["scaled tangents"] = 2 * columns * p.column_bytes // space.shards
    spare = budget - sum(parts.values())
    if engine == "products":
        batches = product_batches(p, space, budget, spare, columns)
    else:
        enough = max(CALL_FRESH_BYTES // p.row_bytes, CALL_ROWS // p.outputs, p.examples // CALL_SHARE)
        most = max(min(enough, CALL_CHUNK_BYTES // p.row_bytes), 1)
        batches = gradient_batches(p, space, budget, spare, chunks=columns > 0)
        batches = replace(batches, chunk=max(min(batches.chunk, most // batches.gradients * batches.gradients),
                                             batches.gradients))  # fmt: skip
    parts |= network_bytes(p, batches) | (chunk_bytes(p, batches, space) if columns else {})
    if sum(parts.values()) > budget:
        raise MemoryError(
            f"memory={human(budget)} is too little: one example at a time needs {at_least(sum(parts.values()))}, most "
            f"of it for {max(parts, key=lambda part: parts[part])}. Raise memory, or pass fewer examples at a time"
        )
    return RowPlan(batches, parts)


def plan_gram(first: Problem, second: Problem, space: Space, memory: int | str | None) -> RowPlan:
    """Tiles of Fisher vectors of the first set, as many as fit beside the kernel and a chunk of the second."""
    budget, item = parse_memory(memory, space.free_bytes), first.itemsize
    example = first.row_bytes * (space.parts + 1 if space.parts > 1 else 1)
    pairs = f"{first.rows:,} x {second.rows:,}"
    kernel = {
        f"the {pairs} kernel": first.rows * second.rows * item,
        "mean and scale": 4 * first.column_bytes,
        RUNTIME: first.runtime_bytes,
    }
    first, second = first.on(space), second.on(space)
    one = Batches(1, 1)
    # Beside its Fisher vector, an example of the tile has a column of the kernel that is being made.
    tile_bytes = example + second.rows * first.outputs * item
    least = sum((kernel | network_bytes(second, one) | chunk_bytes(second, one, space)).values()) + tile_bytes
    if budget < least:
        raise ValueError(
            f"memory={human(budget)} does not hold the {pairs} kernel and a tile of Fisher "
            f"vectors: give at least {at_least(least)}, or fewer examples"
        )
    spare = budget - sum(kernel.values())
    larger = first if first.examples > second.examples else second
    batches = gradient_batches(larger, space, budget, spare - tile_bytes)
    most = max(CALL_CHUNK_BYTES // example // batches.gradients * batches.gradients, batches.gradients)
    half = max((spare // 2 - batches.gradients * 3 * (example + first.activation_bytes)) // example, 1)
    chunk = max(min(batches.chunk, most, half // batches.gradients * batches.gradients), batches.gradients)
    batches = replace(batches, chunk=chunk)
    parts = kernel | network_bytes(second, batches) | chunk_bytes(second, batches, space)
    tile = int(min((budget - sum(parts.values())) // tile_bytes, first.examples))
    return RowPlan(batches, parts | {"a tile of Fisher vectors": tile * tile_bytes}, tile)


def _duration(seconds: float) -> str:
    """0.4 -> 'a second', 95 -> '95 s', 4000 -> '1 h 7 min'."""
    if seconds < 1:
        return "a second"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
