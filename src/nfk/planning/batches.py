"""How many examples go through the network at once, and how many of their gradients meet a block at once.

Gradients are computed in microbatches that suit the network and gathered into chunks that suit the matrix product. Both
give way to a small budget, down to one example.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nfk.model import Batching
from nfk.planning.problem import Problem
from nfk.spaces import Space

CHUNK_ROWS = 256  # rows of gradients that meet a block at once: at this size BLAS is near its peak
MOST_MICROBATCH = 64
WORKING_BYTES = 24 * 2**20  # of a microbatch in the network: past 32 MiB the C library asks for fresh pages every time
UNROLLED = 4
PRODUCT_BATCH = PRODUCT_COLUMNS = 32


@dataclass(frozen=True)
class Batches:
    """`gradients`: examples whose gradients are computed at once; `chunk`: examples whose gradients meet a block at
    once; `products`, `columns`: examples and columns that a JVP or VJP takes at once (0 without one); `meeting`:
    examples that meet a tile of others at once (0: a chunk). Where rows are cut into ranges, so many of each range; and
    so many columns on each device."""

    gradients: int
    chunk: int
    batching: Batching = "vmap"
    products: int = 0
    columns: int = 0
    meeting: int = 0

    @property
    def at_tiles(self) -> Batches:
        """While tiles are met."""
        return replace(self, chunk=self.meeting or self.chunk)


LEANEST = Batches(1, 1)
LEANEST_PRODUCTS = Batches(1, 1, "vmap", 1, 1)


def network_bytes(p: Problem, batches: Batches) -> dict[str, int]:
    """Two microbatches on their way: activations, gradients leaf by leaf; and tangents where there are products."""
    per_example = example_bytes(p, batches.batching)
    parts = {"network and its gradients, two microbatches": batches.gradients * per_example}
    if batches.batching == "unrolled" and batches.gradients > 1:
        parts["programs of the examples after the first"] = (batches.gradients - 1) * p.program_bytes
    if batches.products:
        tangents = batches.products * 3 * p.activation_bytes * batches.columns + 4 * batches.columns * p.column_bytes
        parts["network, tangents and cotangents"] = tangents
    return parts


def chunk_bytes(p: Problem, batches: Batches, space: Space) -> dict[str, int]:
    """Twice where a place puts the microbatches of a chunk together when all are there."""
    copies = space.chunk_copies if batches.chunk > batches.gradients else 1
    return {"a chunk of gradients": copies * min(batches.chunk, p.examples) * p.row_bytes}


def example_bytes(p: Problem, batching: Batching) -> int:
    """One example in the network: values and their derivatives, its gradients, and patches where there are any."""
    patches = 3 * p.patch_bytes if batching == "patches" else 0
    return 3 * p.outputs * (p.activation_bytes + p.column_bytes) + patches


def suitable_batching(p: Problem, space: Space) -> tuple[Batching, int]:
    """How a microbatch is differentiated, and how many examples suit it: the one place where that is chosen.

    On a CPU patches are the fastest for the critics in `results/gradients.json` and about equal to vmap for LeNet-5, as
    long as they stay off fresh pages; a network too large for that has its examples written out one after another.
    """
    if space.processor != "cpu":
        return "vmap", max(CHUNK_ROWS // p.outputs, 1)
    few = min(max(p.microbatch_bytes // p.row_bytes, p.microbatch), MOST_MICROBATCH)
    if not p.patch_bytes:
        return "vmap", few
    room = WORKING_BYTES // (p.activation_bytes * p.outputs + p.patch_bytes)
    return ("unrolled", UNROLLED) if room < 2 and p.outputs == 1 else ("patches", max(min(few, room), 1))


def gradient_batches(
    p: Problem, space: Space, budget: int, spare: int, chunks: bool = True, beside: int = 0
) -> Batches:
    """The batches that suit the network and the product, within `spare` bytes of a budget.

    Without `chunks` no gradients are gathered: they are all kept, or only looked at as they pass. `beside` are bytes
    of an example in the network that are held besides.
    """
    batching, suitable = suitable_batching(p, space)
    most = max(CHUNK_ROWS // p.outputs, 1)
    suitable = min(suitable, p.examples)
    network = example_bytes(p, batching) + beside + (p.program_bytes if batching == "unrolled" else 0)
    gathered = p.row_bytes if chunks else 0
    microbatch = max(1, min(suitable, budget // 8 // network, spare // (network + gathered)))
    microbatch = _shared(microbatch, space.shards, spare // (network + gathered))
    room = (spare - microbatch * network) // (space.chunk_copies * p.row_bytes) if chunks else most
    chunk = max(min(room, max(most, microbatch)), microbatch) // microbatch * microbatch
    return Batches(microbatch, min(chunk, -(-p.examples // microbatch) * microbatch), batching)


def _shared(microbatch: int, shards: int, most: int) -> int:
    """As many examples for each of the devices that share out a microbatch, which they would fill up: one more for some
    of them, or one less where there is no room."""
    more = -(-microbatch // shards) * shards
    return more if more <= most else max(more - shards, min(microbatch, shards))


def product_batches(p: Problem, space: Space, budget: int, spare: int, width: int) -> Batches:
    """Moments and trace take per-example gradients in this engine too, in microbatches; the products do not."""
    own = gradient_batches(p, space, budget, spare, chunks=False)
    most = min(PRODUCT_COLUMNS, width)
    sizes = [(min(PRODUCT_BATCH, p.examples), most)]
    while sizes[-1] != (1, 1):
        products, columns = sizes[-1]
        sizes.append((max(products // 2, 1), columns) if products > 1 else (1, max(columns // 2, 1)))
    for microbatch in (own.gradients, 1):
        for products, columns in sizes:
            batches = Batches(microbatch, microbatch, own.batching, products, columns)
            if sum({**network_bytes(p, batches), **chunk_bytes(p, batches, space)}.values()) <= spare:
                return batches
    return LEANEST_PRODUCTS
