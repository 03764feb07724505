"""Products of kept gradients with narrow blocks, V M and V' Z: the host's way, XLA's, and V V' W of their first halves,
in bfloat16; square matrices beside them.

taskset -c 0 env OPENBLAS_NUM_THREADS=1 python -m benchmarks.products [--output results/products.json]

GFLOP/s of processor time, the best of three, everything compiled; and what a gigabyte of fresh memory costs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from benchmarks.peers.machine import facts as machine
from benchmarks.peers.machine import processor
from benchmarks.printed import environment, printed
from nfk.layout import Layout
from nfk.planning.rates import kernels
from nfk.spaces import Halves, turned
from nfk.spaces.host import HOST, fresh

SEED = 0
WIDTHS = (16, 32, 48, 64, 96, 128)
SQUARE = 2048
BATCH = 16


def main(examples: int = 1024, parameters: int = 613_761, output: Path | None = None) -> None:
    """Measure and print one JSON object.

    Args:
        examples: rows of V.
        parameters: its columns.
        output: also write the JSON here.
    """
    rng = np.random.default_rng(SEED)
    started = time.process_time()
    V = fresh((examples, parameters), np.dtype(np.float32))
    V[:] = rng.standard_normal(parameters, dtype=np.float32)
    touched = (time.process_time() - started) / (V.nbytes / 2**30)
    square = rng.standard_normal((SQUARE, SQUARE), dtype=np.float32)
    halves = Halves(examples, Layout.of({"all": np.zeros(parameters, np.float32)}, None))
    for start in range(0, examples, BATCH):
        halves.write(start, [V[start : start + BATCH]], len(V[start : start + BATCH]))
    rows = [row(V, halves, width, rng) for width in WIDTHS]
    before = json.loads(output.read_text()) if output and output.exists() else {}
    found = {
        "environment": environment(SEED, "jax", "numpy") | machine() | {"kernels": kernels()},
        "examples": examples, "parameters": parameters, "seconds_of_a_fresh_gigabyte": touched,
        "square": rate(lambda: square @ square, 2.0 * SQUARE**3), "rows": rows,
    }  # fmt: skip
    printed({**before, processor(): found}, output)


def row(V: np.ndarray, halves: Halves, width: int, rng: np.random.Generator) -> dict[str, Any]:
    """GFLOP/s with blocks of so many columns."""
    M, Z = (rng.standard_normal((length, width), dtype=np.float32) for length in V.shape[::-1])
    forward, back = jax.jit(lambda V, M: V @ M), jax.jit(lambda V, Z: Z.T @ V)
    flops, columns = 2.0 * V.size * width, turned(Z)
    return {
        "width": width,
        "V M": rate(lambda: HOST.product(V, M), flops), "V' Z": rate(lambda: HOST.product(V.T, Z), flops),
        "V M by XLA": rate(lambda: forward(V, M).block_until_ready(), flops),
        "Z' V by XLA": rate(lambda: back(V, Z).block_until_ready(), flops),
        "V V' W in bfloat16, by slabs": rate(lambda: [slab.coarse_kernel(columns) for slab in halves.slabs], 2 * flops),
    }  # fmt: skip


def rate(work: Callable[[], Any], flops: float) -> float:
    """GFLOP/s of processor time, the best of three after one that warms up."""
    work()
    seconds = []
    for _ in range(3):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return flops / min(seconds) / 1e9


if __name__ == "__main__":
    tyro.cli(main)
