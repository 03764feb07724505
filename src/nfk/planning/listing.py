"""Every way to run a fit that the options allow, for the planner to choose from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from nfk.planning.batches import LEANEST
from nfk.planning.footprint import UNKNOWN_RANK
from nfk.planning.options import Engine, MethodName, Options
from nfk.planning.problem import Problem, Target
from nfk.planning.rates import COARSE_WIDTHS, Rates
from nfk.planning.ways import Way, expected_columns
from nfk.spaces import HOST

WIDTHS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 256)
MOST_UNKNOWN = 3000  # columns that a search may take when a share of variance is asked for
TILE_SHARE = 0.77  # of the room for gradients, where not all of them fit
TILE_COUNTS = 3  # numbers of tiles to choose from, the fewest that fit and up
READ_TILE_SHARE = 0.5  # the same, where the rest are read from the disk: larger chunks meet a mapped basis less often
MAPPED_SHARE = 0.25  # of the budget: blocks that are smaller are left in memory, and as they are
HALVED_BYTES = 4  # of a number that has two halves
COARSE_TOL = 5e-3  # for smaller residuals a coarse search may have to be repeated with all digits
ROUNDED_TOL = 1e-3  # for smaller residuals a basis in bfloat16 may take more steps than are counted


def ways(problem: Problem, target: Target, options: Options, rates: Rates) -> Iterator[Way]:
    """Every way that the options allow; where tall blocks take much of the budget, also with a basis in bfloat16, and
    with tall blocks in memory maps."""
    for plain in _ways(problem, target, options, rates):
        for way in _stored(plain):
            yield way
            blocks = way.engine == "gradients" and way.method in ("krylov", "gram") and not way.factors
            if options.disk is not None and blocks and way.tall_bytes() > MAPPED_SHARE * options.budget:
                yield replace(way, mapped=True)


def _stored(way: Way) -> Iterator[Way]:
    """With all as it is, with gradients in halves, and with a rounded basis."""
    options = way.options
    if "bfloat16" not in (options.basis, options.search):
        yield way
    if _can_be_halved(way):
        yield replace(way, halved=True)
    if not options.rounds or options.basis == "full" or way.method != "krylov" or way.side != "parameters":
        return
    large = way.tall_bytes() > MAPPED_SHARE * options.budget
    if options.basis == "bfloat16" or (large and options.tol >= ROUNDED_TOL):
        yield replace(way, rounded=True)


def _can_be_halved(way: Way) -> bool:
    options = way.options
    if not (way.keep and way.method == "krylov" and way.side == "examples") or why_not_halved(way.problem, way.target):
        return False
    if way.width not in COARSE_WIDTHS and way.problem.smaller > COARSE_WIDTHS[0]:
        return False
    if options.search is not None or not options.halves or options.basis == "bfloat16":
        return options.search == "bfloat16"
    return options.tol >= COARSE_TOL


def why_not_halved(problem: Problem, target: Target) -> str:
    """What a search in bfloat16 lacks, if anything."""
    if problem.itemsize != HALVED_BYTES:
        return "needs gradients in float32"
    return "" if target.rank else "needs a number of components, not a fraction of variance"


def _ways(problem: Problem, target: Target, options: Options, rates: Rates) -> Iterator[Way]:
    for method in options.methods:
        for engine, keep, shelf in _engines(problem, options, method):
            way = Way(problem, target, options, rates, method, engine, keep, shelf=shelf)
            if method == "krylov":
                yield from _blocks(way)
            elif method == "gram":
                yield from _tiles(way)
            else:
                wide = min((target.rank or UNKNOWN_RANK) + options.oversamples, problem.smaller)
                yield replace(way, width=wide)


def _engines(p: Problem, options: Options, method: MethodName) -> Iterator[tuple[Engine, bool, bool]]:
    """Engines, and whether they keep all gradients in memory, or on disk."""
    if options.engine in (None, "gradients"):
        keeps = (True,) if method == "exact" else (True, False)
        for keep in keeps:
            if options.keep in (None, keep) or method == "exact":
                yield "gradients", keep, False
        if method != "exact" and _worth_a_shelf(p, options):
            yield "gradients", False, True
    allowed = not p.why_no_products and method != "gram" and (not options.keep or method == "exact")
    if options.engine in (None, "products") and allowed:
        yield "products", False, False


def _worth_a_shelf(p: Problem, options: Options) -> bool:
    """Where it is asked for; or where the gradients are too many for the memory."""
    if options.disk is None or options.keep not in (None, "disk"):
        return False
    size = p.examples * p.row_bytes
    return options.keep == "disk" or size > options.budget / 2


def _tiles(way: Way) -> Iterator[Way]:
    """All gradients kept; or few tiles, or some more of them and larger chunks; or the factors of layers."""
    options = way.options
    if options.side is not None and options.method == "auto":
        return
    if way.keep:
        yield way
        return
    if way.problem.factored and options.space is HOST and not way.shelf:
        yield replace(way, factors=True)
    _, search, _ = map(way.in_memory, way.stages())
    room = options.budget - sum(search.values()) - sum(way.batch_bytes(LEANEST).values())
    # The rest is for a chunk of the later rows: what they meet is turned into float64 for every chunk.
    share, examples = READ_TILE_SHARE if way.reads else TILE_SHARE, way.share.examples
    most, some = (int(min(max(part * room // way.tile_bytes, 1), examples)) for part in (1, share))
    fewest = -(-examples // most)
    for tile in sorted({some, *(-(-examples // count) for count in range(fewest, fewest + TILE_COUNTS))}):
        yield replace(way, tile=tile)


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
