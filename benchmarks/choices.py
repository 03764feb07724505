"""Whether the plan's choice is the fastest way: a dozen small problems, every kind of way timed on each.

    python -m benchmarks.choices            writes results/choices.json

Each way runs once to compile and then `rounds` times, in turn with the others; medians. The file has the machine's
rates and the sizes of every problem, so a test can ask the planner again and look its choice up among the times.
"""

from __future__ import annotations

import json
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import nfk
from nfk.planning import Options, Problem, Way, plan_fit
from nfk.planning.rates import measured
from nfk.stream import Examples

OUTPUT = Path(__file__).resolve().parent.parent / "results" / "choices.json"


@dataclass(frozen=True)
class Case:
    """A model, some data, a rank, and a budget where it is short."""

    name: str
    model: nfk.Model
    X: np.ndarray
    rank: int
    memory: str = "4GB"


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def dense(sizes: tuple[int, ...]) -> tuple[Callable, Any]:
    params = [normal(a, b, seed=b) / a**0.5 for a, b in pairwise(sizes)]

    def apply(params: Any, x: Any) -> Any:
        for w in params[:-1]:
            x = jnp.tanh(x @ w)
        return x @ params[-1]

    return apply, params


def convolutional(channels: tuple[int, ...]) -> tuple[Callable, Any]:
    kernels = [normal(3, 3, a, b, seed=b) / (9 * a) ** 0.5 for a, b in pairwise(channels)]
    params = {"kernels": kernels, "last": normal(channels[-1], 10, seed=1) / channels[-1] ** 0.5}

    def apply(params: Any, image: Any) -> Any:
        image = image[None]
        for kernel in params["kernels"]:
            numbers = ("NHWC", "HWIO", "NHWC")
            image = jnp.tanh(jax.lax.conv_general_dilated(image, kernel, (2, 2), "SAME", dimension_numbers=numbers))
        return image.mean(axis=(0, 1, 2)) @ params["last"]

    return apply, params


def cases() -> list[Case]:
    small, wide, deep = dense((50, 200, 10)), dense((100, 1500, 10)), dense((64, 256, 256, 10))
    convs, large = convolutional((3, 16, 32, 64)), convolutional((3, 32, 64, 128))
    vectors, images = (lambda n, d: normal(n, d, seed=n)), (lambda n: normal(n, 16, 16, 3, seed=n))
    return [
        Case("dense 12,000, N = 300", nfk.classifier(*small), vectors(300, 50), 32),
        Case("dense 12,000, N = 5,000", nfk.classifier(*small), vectors(5000, 50), 32),
        Case("dense 12,000, N = 2,000, k = 128", nfk.classifier(*small), vectors(2000, 50), 128),
        Case("dense 165,000, N = 256", nfk.classifier(*wide), vectors(256, 100), 32),
        Case("dense 165,000, N = 1,000", nfk.classifier(*wide), vectors(1000, 100), 64),
        Case("dense 165,000, N = 1,000, 300 MB", nfk.classifier(*wide), vectors(1000, 100), 32, "300MB"),
        Case("dense 84,000, N = 3,000, k = 16", nfk.classifier(*deep), vectors(3000, 64), 16),
        Case("dense, 10 outputs, N = 400", nfk.network(*small), vectors(400, 50), 32),
        Case("convolutions 24,000, N = 500", nfk.classifier(*convs), images(500), 32),
        Case("convolutions 24,000, N = 3,000", nfk.classifier(*convs), images(3000), 32),
        Case("convolutions 95,000, N = 800", nfk.classifier(*large), images(800), 64),
        Case("convolutions 95,000, N = 800, 150 MB", nfk.classifier(*large), images(800), 32, "150MB"),
    ]


def kind(way: Way) -> dict[str, Any]:
    """The options that lead to a way of this kind."""
    side = {"side": way.side} if way.method == "krylov" else {}
    keep = {"keep": way.keep} if way.engine == "gradients" else {}
    search = {"search": "bfloat16" if way.halved else "full"} if way.keep and way.side == "examples" and side else {}
    return {"method": way.method, "engine": way.engine, **keep, **side, **search}


def seconds(case: Case, options: dict[str, Any]) -> float:
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nfk.ConvergenceWarning)
        nfk.fit(case.model, case.X, case.rank, memory=case.memory, progress=False, **options)
    return time.perf_counter() - started


def examine(case: Case, rounds: int, patience: float) -> dict[str, Any]:
    """Every kind of way on one problem. One that should take `patience` times the best is left out, and named."""
    problem, rates = Problem.of(case.model, Examples(case.X)), measured()
    plan = plan_fit(problem, case.rank, Options(memory=case.memory), rates)
    ways = [plan.way, *plan.others]
    tried = [way for way in ways if way.seconds <= patience * plan.seconds]
    times: list[list[float]] = [[] for _ in tried]
    for number in range(rounds + 1):  # the first compiles
        for way, found in zip(tried, times, strict=True):
            taken = seconds(case, kind(way))
            if number:
                found.append(taken)
    measured_ways = [
        {**kind(way), "expected": way.seconds, "seconds": statistics.median(found)}
        for way, found in zip(tried, times, strict=True)
    ]
    return {
        "name": case.name, "problem": asdict(problem), "rank": case.rank, "memory": case.memory, "ways": measured_ways,
        "left out": [{**kind(way), "expected": way.seconds} for way in ways if way not in tried],
    }  # fmt: skip


def main(rounds: int = 3, patience: float = 20.0, output: Path = OUTPUT) -> None:
    found = {"rates": asdict(measured()), "jax": jax.__version__, "numpy": np.__version__, "cases": []}
    for case in cases():
        found["cases"].append(examine(case, rounds, patience))
        best = min(found["cases"][-1]["ways"], key=lambda way: way["seconds"])
        chosen = found["cases"][-1]["ways"][0]
        print(f"{case.name}: chosen {chosen['seconds']:.2f} s, fastest {best['seconds']:.2f} s ({best})", flush=True)
        output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    tyro.cli(main)
