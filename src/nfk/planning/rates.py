"""How fast this machine is: a short measurement, made once and kept in the user's cache.

Every figure is a rate of what a fit spends its time on. They rank the ways to run a fit; none of them changes a result.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from threadpoolctl import threadpool_info

from nfk.atomic import write_atomically
from nfk.spaces import HOST, Slab, turned
from nfk.spaces.halves import SLAB_BYTES
from nfk.spaces.pool import workers

WIDTHS = (1, 4, 16, 64, 256)
COARSE_WIDTHS = (16, 48, 96)
COARSE_SLABS = 4
ROWS, COLUMNS = 512, 2**16  # more than any cache holds
MEASUREMENT = 2  # raised where another thing is measured, so that rates of earlier versions are not read
ROUNDS = 3  # of which the best counts: another process on the machine slows some of them


@dataclass(frozen=True)
class Rates:
    """FLOP/s of a network's gradients, of products of rows with a block of `WIDTHS` columns, and of a kernel matrix (as
    if all of it were computed) in float32 and float64; an eigendecomposition's n^3 per second; bytes/s into memory, and
    from and to the disk; FLOP/s of products in bfloat16 with a block of `COARSE_WIDTHS` columns."""

    network: float
    products: tuple[float, ...]
    kernel: float
    kernel_double: float
    eigh: float
    memory: float
    disk_read: float = 0.6e9
    disk_write: float = 0.4e9
    coarse_products: tuple[float, ...] = (1e9, 1e9, 1e9)  # as if there were none

    def product(self, columns: float) -> float:
        """FLOP/s of V M and V' W with that many columns."""
        return float(np.exp(np.interp(np.log(max(columns, 1)), np.log(WIDTHS), np.log(self.products))))

    def coarse(self, columns: float) -> float:
        """FLOP/s of V V' W with V in bfloat16."""
        return float(np.interp(columns, COARSE_WIDTHS, self.coarse_products))


TYPICAL = Rates(  # two cores of a server; bfloat16 pays on some processors alone, which a measurement tells
    20e9, (8e9, 40e9, 110e9, 190e9, 220e9), 450e9, 200e9, 4e9, 2e9, coarse_products=(10e9, 20e9, 30e9)
)  # fmt: skip


@cache
def measured() -> Rates:
    """The rates of this machine: from the cache, else measured within two seconds and put there.

    `NFK_RATES=typical` leaves the measurement out.
    """
    rates = known()
    if rates is None:
        rates = measure()
        keep(_place(), asdict(rates))
    return rates


def known() -> Rates | None:
    """The rates of this machine, where they were measured before: for fits that are too short to wait for it."""
    if os.environ.get("NFK_RATES") == "typical":
        return TYPICAL
    try:
        found = json.loads(_place().read_text())
        lists = {name: tuple(found[name]) for name in ("products", "coarse_products")}
        return Rates(**{**found, **lists})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def keep(place: Path, facts: dict) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, lambda file: _write(file, facts))
    except OSError:
        pass  # a home that cannot be written to: measured again by the next process


def _write(file: Path, facts: dict) -> None:
    file.write_text(json.dumps(facts))


def _place() -> Path:
    """One file for each kind of machine, number of cores and version of what computes."""
    computed_by = np.__version__, jax.__version__, kernels()
    versions = (
        MEASUREMENT,
        ROWS,
        COLUMNS,
        WIDTHS,
        COARSE_WIDTHS,
        platform.processor(),
        _cpu(),
        workers(),
        *computed_by,
    )
    name = hashlib.sha256(repr(versions).encode()).hexdigest()[:16]
    return cached(f"rates-{name}.json")


def cached(name: str) -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "nfk" / name


def kernels() -> str:
    """For which processor numpy's BLAS computes: OPENBLAS_CORETYPE, where it is set, may force slower ones."""
    found = {str(library.get("architecture")) for library in threadpool_info() if library["user_api"] == "blas"}
    return " ".join(sorted(found))


def _cpu() -> str:
    try:
        return next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def measure() -> Rates:
    """Each operation once to warm up, then the best of some."""
    rng = np.random.default_rng(0)
    V = rng.standard_normal((ROWS, COLUMNS), dtype=np.float32)
    some = np.ascontiguousarray(V[:, : COLUMNS // 2]).T  # long enough for several workers to have a share
    kernel, double = (
        2.0 * some.shape[1] * some.size / _seconds(lambda exact=exact: HOST.inner(some, some, exact))
        for exact in (False, True)
    )
    square = rng.standard_normal((300, 300))
    eigh = 300**3 / _seconds(lambda: scipy.linalg.eigh(square + square.T))
    products = rising(_product_rate(V[: ROWS if width <= 64 else ROWS // 2], width) for width in WIDTHS)
    coarse = _coarse_rates(V.ravel()[: COARSE_SLABS * SLAB_BYTES // 4])
    return Rates(
        _network_rate(), products, kernel, double, eigh, V.nbytes / _seconds(V.copy), coarse_products=coarse
    )  # fmt: skip


def rising(rates: Iterable[float]) -> tuple[float, ...]:
    """Each at least as high as those before: wider products are no slower, but for what disturbed a measurement."""
    return tuple(accumulate(rates, max))


def _product_rate(V: np.ndarray, width: int) -> float:
    M = np.ones((V.shape[1], width), np.float32)
    return 4.0 * V.size * width / _seconds(lambda: HOST.product(V.T, HOST.product(V, M)))


def _coarse_rates(numbers: np.ndarray) -> tuple[float, ...]:
    """Of V V' W by slabs in bfloat16, as `spaces.halves` has them."""
    rows = SLAB_BYTES // 4 // 1024
    highs = jax.device_put(numbers.astype(jnp.bfloat16).reshape(COARSE_SLABS, rows, 1024))
    slabs = [Slab(slice(0, 1024), high, high) for high in highs]

    def rate(width: int) -> float:
        columns = turned(np.ones((rows, width), np.float32))
        return 4.0 * numbers.size * width / _seconds(lambda: [slab.coarse_kernel(columns) for slab in slabs])

    return tuple(map(rate, COARSE_WIDTHS))


def _network_rate() -> float:
    """Per-example gradients of a small convolutional network."""
    rng = np.random.default_rng(0)
    kernels = [0.1 * rng.standard_normal(shape, dtype=np.float32) for shape in ((3, 3, 16, 32), (3, 3, 32, 32))]
    images = rng.standard_normal((8, 1, 16, 16, 16), dtype=np.float32)

    def score(kernels: list, image: jax.Array) -> jax.Array:
        for kernel in kernels:
            numbers = ("NHWC", "HWIO", "NHWC")
            image = jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=numbers)
            image = jax.lax.tanh(image)
        return image.sum()

    gradients = jax.jit(jax.vmap(jax.grad(score), in_axes=(None, 0)))
    flops = 3 * 2 * len(images) * 16 * 16 * sum(float(kernel.size) for kernel in kernels)
    return flops / _seconds(lambda: jax.block_until_ready(gradients(kernels, images)))


def _seconds(work: Callable[[], Any]) -> float:
    work()
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
