"""What the plan's cost model says of machines that are not here: the code that plans a fit, at stated rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from nfk.memory import parse_memory
from nfk.planning import Options, Problem, plan_fit
from nfk.planning.rates import TYPICAL, Rates
from nfk.spaces import Host

# Of one accelerator, as stated by makers of 80 GB cards and about halved: nothing of it was measured here.
NETWORK, PRODUCTS, MEMORY, DEVICE_BYTES = 60e12, 60e12, 50e9, 80e9
RANK, USED = 128, 0.8
NETWORKS = {
    "5.9 million (a convolutional network, each weight used 100 times an image)": (5_900_000, 100),
    "124 million (a language model, 512 tokens)": (124_000_000, 512),
    "7 billion (a language model, 512 tokens)": (7_000_000_000, 512),
}
EXAMPLES, DEVICES = (10**6, 10**9), (8, 512)


@dataclass(frozen=True)
class Imagined(Host):
    """So many accelerators."""

    parts: int = 1
    shards: int = 1
    chunk_copies: int = 2
    processor: str = "gpu"
    devices: str = "imagined"
    device: Any = "imagined"

    def free_bytes(self) -> int:
        return int(DEVICE_BYTES)


def rates() -> Rates:
    """`memory` is the rate of what travels between devices, which is the slower of the two."""
    return replace(TYPICAL, network=NETWORK, products=(PRODUCTS / 16, PRODUCTS / 4, PRODUCTS, PRODUCTS, PRODUCTS),
                   kernel=PRODUCTS, kernel_double=PRODUCTS / 2, memory=MEMORY)  # fmt: skip


def predicted() -> list[dict]:
    return [
        {"network": name, "parameters": parameters, "examples": examples, "devices": devices,
         **_best(parameters, reuse, examples, devices)}
        for name, (parameters, reuse) in NETWORKS.items() for examples in EXAMPLES for devices in DEVICES
    ]  # fmt: skip


def _best(parameters: int, reuse: int, examples: int, devices: int) -> dict:
    """The fastest plan over all ways to share the devices out; or what the leanest would need, and for what."""
    found: list[tuple] = []
    least: list[tuple[str, str]] = []
    for shards in (2**i for i in range(devices.bit_length())):
        budget, space = int(USED * DEVICE_BYTES), Imagined(devices // shards, shards)
        options = Options("krylov", "gradients", "parameters", False, budget, space=space, scratch=False)
        try:
            plan = plan_fit(_problem(parameters, reuse, examples), RANK, options, rates())
            found.append((plan.seconds, shards, plan))
        except MemoryError as error:
            needs, most = str(error).split("needs ")[1].split(". ")[0].split(", most of it for ")
            least.append((needs, most))
    if not found:
        return {"least": min(least, key=lambda pair: parse_memory(pair[0], int))}
    seconds, shards, plan = min(found, key=lambda each: each[0])
    return {"seconds": seconds, "shards": shards, "bytes": plan.peak_bytes, "passes": plan.passes, "width": plan.width,
            "traffic": plan.way.traffic}  # fmt: skip


def _problem(parameters: int, reuse: int, examples: int) -> Problem:
    return Problem(
        examples=examples, outputs=1, parameters=parameters, itemsize=4, forward_flops=2.0 * parameters * reuse,
        activation_bytes=8 * reuse * int(parameters**0.5), patch_bytes=0, moment_examples=examples,
        moments_over_data=True, trace_known=True, why_no_products=None,
    )  # fmt: skip
