"""Data and gradients larger than memory: what a fit holds as the data grow, and whether reading beats computing again.

python -m benchmarks.scale_data [--only memory|disk] [--output results/scale_data.json]

Seconds are of one process on one core (pin it: `taskset -c 0`), contestants in turn; memory is what the process has of
its own (RssAnon), since pages of files belong to the files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import tyro

import nfk
from benchmarks.large_basis import OwnMemory
from benchmarks.printed import environment, printed
from benchmarks.scale_examples import images, wide_resnet
from nfk.spaces import Shelf

SEED, BUDGET = 0, 100 * 2**20
TIMES = (1, 3, 10)  # of the budget, as examples
FEATURES = 4096
ROUNDS = 2


Section = Literal["memory", "disk", "wrn-16-2", "dense"]


def main(only: Section | None = None, times: int | None = None, output: Path | None = None) -> None:
    """Run both sections and print one JSON object.

    Args:
        only: run one section, or one network of the second.
        times: one point of the first section, as its processes run it: data so many times the budget.
        output: also write the JSON here; a section that was not run keeps what the file had.
    """
    if times is not None:
        print(json.dumps(held(times)))
        return
    results = json.loads(output.read_text()) if output and output.exists() else {}
    results["environment"] = environment(SEED, "jax", "numpy")
    if only in (None, "memory"):
        results["memory"] = {"budget_bytes": BUDGET, "rows": [in_a_process(times) for times in TIMES]}
    for name in NETWORKS:
        if only in (None, "disk", name):
            results["disk"] = {**results.get("disk", {}), name: compared(name)}
            printed(results, output)
    printed(results, output)


def in_a_process(times: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scale_data", "--times", str(times)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])


def held(times: int) -> dict[str, Any]:
    """What a fit over `.npy` shards holds beyond what the process had before."""
    with tempfile.TemporaryDirectory() as folder:
        size = _shards(Path(folder), times * BUDGET)
        model, X = _small_network(), nfk.from_npy_shards(folder)
        options: dict[str, Any] = {"memory": BUDGET, "method": "krylov", "keep": False, "key": SEED}
        nfk.fit(model, X[:2048], 4, **options)  # the runtime and the compiler have their own memory by now
        with OwnMemory() as memory:
            fitted = nfk.fit(model, X, 4, **options)
    return {
        "data_bytes": size, "examples": len(X), "passes": fitted.passes, "own_bytes": memory.most - memory.start,
        "planned_bytes": fitted.plan.peak_bytes,
    }  # fmt: skip


def _shards(folder: Path, size: int) -> int:
    rng, rows = np.random.default_rng(SEED), 1024
    for number in range(-(-size // (rows * FEATURES * 4))):
        np.save(folder / f"{number:04}.npy", rng.standard_normal((rows, FEATURES), dtype=np.float32))
    return sum(path.stat().st_size for path in folder.iterdir())


def _small_network() -> nfk.Model:
    rng = np.random.default_rng(SEED)
    first = (rng.standard_normal((FEATURES, 32)) / 64).astype(np.float32)  # not a parameter: gradients are short
    params = {"w": (rng.standard_normal((32, 8)) / 4).astype(np.float32), "v": np.ones((8, 3), np.float32)}
    return nfk.classifier(lambda p, x: jnp.tanh(jnp.tanh(x @ first) @ p["w"]) @ p["v"], params)


def wide(count: int) -> tuple[nfk.Model, np.ndarray]:
    return wide_resnet(), images(count)


def dense(count: int) -> tuple[nfk.Model, np.ndarray]:
    """A network that uses each weight once: a gradient costs little more than writing it."""
    rng = np.random.default_rng(SEED)
    shapes = {"u": (256, 1024), "v": (1024, 1024), "w": (1024, 10)}
    params = {name: (rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32) for name, shape in shapes.items()}
    network = lambda p, x: jnp.tanh(jnp.tanh(x @ p["u"]) @ p["v"]) @ p["w"]  # noqa: E731
    return nfk.classifier(network, params), rng.standard_normal((count, 256), dtype=np.float32)


NETWORKS: dict[str, tuple[str, Callable[[int], tuple[nfk.Model, np.ndarray]], int]] = {
    "wrn-16-2": ("WRN-16-2, CIFAR-10", wide, 384),
    "dense": ("two hidden layers of 1,024, random inputs", dense, 256),
}


def compared(name: str) -> dict[str, Any]:
    """Seconds of the same fit with gradients computed in each pass, and read from the disk; what the plan takes."""
    title, build, count = NETWORKS[name]
    model, X = build(count)
    options: dict[str, Any] = {"rank": 16, "method": "krylov", "side": "parameters", "engine": "gradients"}
    options["memory"] = int(0.75 * count * model.layout.size * 4)
    ways: dict[str, tuple[Any, Callable]] = {
        "computed": (False, _as_it_is), "read": ("disk", _as_it_is), "read_from_the_disk_itself": ("disk", _uncached),
    }  # fmt: skip
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    nfk.fit(model, X[:64], key=SEED, keep=False, **options)  # compiles
    for _ in range(ROUNDS):
        for way, (keep, around) in ways.items():
            with around():
                started = time.perf_counter()
                fitted = nfk.fit(model, X, key=SEED, keep=keep, **options)
                seconds[way].append(time.perf_counter() - started)
    plans = {keep: nfk.plan(model, X, keep=keep, **options) for keep in (False, "disk")}
    return {
        "network": title, "parameters": model.layout.size, "examples": count, "rank": 16, "passes": fitted.passes,
        "gradient_bytes": count * model.layout.size * 4, "memory": options["memory"],
        "seconds": {way: float(np.median(found)) for way, found in seconds.items()},
        "planned_seconds": {"computed": plans[False].seconds, "read": plans["disk"].seconds},
        "the_plan_takes": "read" if nfk.plan(model, X, **options).way.shelf else "computed",
        "disk_read_rate": plans["disk"].way.rates.disk_read, "disk_write_rate": plans["disk"].way.rates.disk_write,
    }  # fmt: skip


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


@contextmanager
def _uncached() -> Iterator[None]:
    """Nothing of the file stays in the system's memory: as it is where the gradients are far more than that."""
    normalise, read = Shelf.normalise, Shelf.read

    def written(self: Shelf, *moments: Any) -> None:
        os.fsync(self._file.fileno())
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        normalise(self, *moments)

    def forgotten(self: Shelf, rows: slice, into: np.ndarray) -> None:
        read(self, rows, into)
        os.posix_fadvise(self._file.fileno(), rows.start * self._row_bytes, into.nbytes, os.POSIX_FADV_DONTNEED)

    Shelf.normalise, Shelf.read = written, forgotten
    try:
        yield
    finally:
        Shelf.normalise, Shelf.read = normalise, read


if __name__ == "__main__":
    tyro.cli(main)
