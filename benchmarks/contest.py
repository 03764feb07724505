"""One release of the package in a contest with another: waits for a line, runs once, answers with a line of JSON.

`benchmarks.against` starts one such process for each release, with that release on the path. It uses what both have.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import nfk
from benchmarks.critics import WIDE, critic, critic_params, dcgan, dcgan_params

TOL = 1e-3  # the defaults of releases differ
Run = Callable[[], dict[str, Any]]


def fit(images: np.ndarray, count: int, rank: int, **options: Any) -> Run:
    """The critic of 530,017 parameters on `count` images."""
    model = nfk.gan(critic, critic_params(WIDE), expectation="data")

    def run() -> dict[str, Any]:
        fitted = nfk.fit(model, images[:count], rank, key=0, tol=TOL, **options)
        return {"eigenvalues": np.asarray(fitted.eigenvalues, np.float64).tolist(), "passes": fitted.passes}

    return run


def embed(images: np.ndarray, count: int, rank: int) -> Run:
    """New examples through a fitted basis."""
    model = nfk.gan(critic, critic_params(WIDE), expectation="data")
    fitted = nfk.fit(model, images[:count], rank, key=0, tol=0.5)
    return lambda: {"shape": np.shape(fitted(images[count : 2 * count]))}


def streamed(images: np.ndarray, count: int, rank: int) -> Run:
    """The small critic on many images, gradients computed again in each of a fixed number of passes."""
    model = nfk.gan(dcgan, dcgan_params(), expectation="data")
    grey = np.resize(images.mean(axis=3, keepdims=True), (count, 32, 32, 1)).astype(np.float32)
    options: dict[str, Any] = dict(side="parameters", keep=False, tol=1e-12, max_steps=4, memory="2GB", key=0)
    return lambda: {"passes": nfk.fit(model, grey, rank, **options).passes}


CONTESTS: dict[str, Callable[[np.ndarray], Run]] = {
    "fit-128": lambda images: fit(images, 1024, 128),
    "fit-32": lambda images: fit(images, 1024, 32),
    "recomputed-32": lambda images: fit(images, 512, 32, keep=False),
    "embedding-128": lambda images: embed(images, 256, 128),
    "streamed-4096": lambda images: streamed(images, 4096, 32),
    "quick": lambda images: fit(images, 32, 4),
}
EXAMPLES = {"fit-128": 1024, "fit-32": 1024, "recomputed-32": 512, "embedding-128": 256, "streamed-4096": 4096}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def measured(run: Run) -> dict[str, Any]:
    """Processor seconds (wall-clock seconds beside them) and the most memory beyond that at the start."""
    start, most, stop = resident(), [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            most[0] = max(most[0], resident())

    thread = threading.Thread(target=watch)
    thread.start()
    wall, processor = time.perf_counter(), time.process_time()
    found = run()
    spent = {"seconds": time.process_time() - processor, "wall_seconds": time.perf_counter() - wall}
    stop.set()
    thread.join()
    return {**spent, "peak_bytes": max(most[0] - start, 0), **found}


def main(name: str, images: str) -> None:
    warnings.simplefilter("ignore")
    run = CONTESTS[name](np.load(images))
    print(json.dumps({"nfk": nfk.__version__}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(measured(run)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
