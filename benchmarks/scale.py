"""Many devices and processes: the speed of two, what travels, what each device holds, every pair of a model and a way.

python -m benchmarks.scale [--only processes] [--output results/scale.json]; the devices are simulated ones of the CPU.
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import nfk
from benchmarks.core import environment
from benchmarks.scale_model import predicted
from nfk.operator.gradients import GradientOperator
from nfk.progress import Reporter
from nfk.solve import Goal, loop
from nfk.solve.krylov import Krylov
from nfk.solve.sides import ParameterSide
from nfk.spaces.mesh import sharding
from nfk.stream import Examples

ROOT = Path(__file__).parents[1]
SECTIONS = ("repeats", "processes", "traffic", "memory", "pairs", "model")
Section = Literal["repeats", "processes", "traffic", "memory", "pairs", "model"]
MESHES = ((2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (4, 2), (1, 8), (2, 4))
COLLECTIVES = "all-gather|all-reduce|reduce-scatter|collective-permute|all-to-all"
BYTES = {"f32": 4, "s32": 4, "u32": 4, "f64": 8, "pred": 1}


def main(only: Section | None = None, output: Path | None = None) -> None:
    """Run the sections and print one JSON object.

    Args:
        only: run one section.
        output: also write the JSON here; sections that were not run keep what the file had.
    """
    results: dict[str, Any] = json.loads(output.read_text()) if output and output.exists() else {}
    results["environment"] = environment()
    sections: dict[str, Callable[[], Any]] = {
        "repeats": repeats, "processes": processes, "traffic": traffic, "memory": memory, "pairs": pairs,
        "model": predicted,
    }  # fmt: skip
    for name in SECTIONS if only is None else (only,):
        results[name] = sections[name]()
        if output:
            output.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


# --- the same fit again and again


REPEATS = {2: 40, 4: 20}  # fits, by the number of processes


def repeats() -> list[dict[str, Any]]:
    """Fits with one key by several processes: how many differ from the first in any bit of their result."""
    rows = []
    for count, times in REPEATS.items():
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "hashes.json"
            script = [str(ROOT / "benchmarks" / "scale_repeats.py"), str(times), str(output)]
            path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
            command = [sys.executable, "-m", "nfk.launch", "--processes", str(count), *script]
            subprocess.run(command, check=True, env={**os.environ, "XLA_FLAGS": "", "PYTHONPATH": path})
            rows.append({"processes": count, **json.loads(output.read_text())})
    return rows


# --- two processes with a core each, against one


def processes() -> dict[str, Any]:
    """Contestants in turn, three times; the first fit of each process compiles and is not counted."""
    contestants = {"one process, host": (1, "host"), "one process, mesh": (1, "mesh"), "two processes": (2, "mesh")}
    found: dict[str, Any] = {}
    for network in ("gradients", "products"):
        runs: dict[str, list[dict]] = {name: [] for name in contestants}
        for _ in range(2):
            for name, (count, place) in contestants.items():
                runs[name].append(_timed(count, network, place))
        seconds = {name: median(s for run in each for s in run["seconds"]) for name, each in runs.items()}
        example = runs["two processes"][0]
        kept = ("parameters", "examples", "rank", "keep", "passes")
        found[network] = {"seconds": seconds, **{name: example[name] for name in kept}}
        found[network]["speedup"] = {
            name: seconds[name] / seconds["two processes"] for name in seconds if name != "two processes"
        }
    return found


def _timed(count: int, network: str, place: str) -> dict:
    """Each process has one core: that of one is core 0."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "seconds.json"
        script = [str(ROOT / "benchmarks" / "scale_fit.py"), network, place, str(output)]
        alone = ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, *script]
        command = alone if count == 1 else [sys.executable, "-m", "nfk.launch", "--processes", str(count), *script]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        subprocess.run(command, check=True, env={**os.environ, "XLA_FLAGS": "", "PYTHONPATH": path})
        return json.loads(output.read_text())


# --- what travels in a pass, and what each device holds


def _problem(parameters: int, examples: int) -> tuple[nfk.Model, np.ndarray]:
    """A network of one hidden layer with about so many parameters."""
    hidden = parameters // 102
    rng = np.random.default_rng(0)
    params = {"in": rng.standard_normal((100, hidden), dtype=np.float32) / 10, "b": np.zeros(hidden, np.float32),
              "out": rng.standard_normal((hidden, 1), dtype=np.float32) / 10}  # fmt: skip
    score = lambda p, x: (jnp.tanh(x @ p["in"] + p["b"]) @ p["out"])[0]  # noqa: E731
    return nfk.energy(score, params), rng.standard_normal((examples, 100), dtype=np.float32)


class Recorder:
    """Programs that run on a mesh while it listens: the bytes that each device receives, by what XLA compiled."""

    def __init__(self) -> None:
        self.received: dict[str, float] = {}
        self._run = sharding.Grid.each
        self._known: dict = {}

    def __enter__(self) -> Recorder:
        def each(grid: Any, function: Callable, ins: Any, outs: Any, /, *arguments: Any, **static: Any) -> Any:
            program = sharding._each(grid.mesh, function, tuple(ins), outs, tuple(static.items()))
            shapes = str(jax.tree.map(jnp.shape, arguments))
            key = (function, shapes, str(static))
            if key not in self._known:
                self._known[key] = received(program.lower(*arguments).compile().as_text())
            self.received[function.__name__] = self.received.get(function.__name__, 0) + self._known[key]
            return self._run(grid, function, ins, outs, *arguments, **static)

        sharding.Grid.each = each
        return self

    def __exit__(self, *error: object) -> None:
        sharding.Grid.each = self._run


def received(text: str) -> float:
    """Bytes that a device receives in the collectives of a compiled program."""
    total = 0.0
    for line in text.splitlines():
        match = re.search(
            r"= (\(?[\w\[\],{}\s/*=]+?\)?) (all-gather|all-reduce|reduce-scatter|collective-permute|all-to-all)\(", line
        )
        if not match:
            continue
        size = sum(_bytes(kind, dims) for kind, dims in re.findall(r"(\w+)\[([\d,]*)\]", match[1]))
        group = re.search(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\])", line)
        members = 2 if group is None else int(group[2] or len(group[1].split(",")))
        share = {"all-gather": (members - 1) / members, "all-reduce": 2 * (members - 1) / members,
                 "reduce-scatter": members - 1, "all-to-all": (members - 1) / members}  # fmt: skip
        total += size * share.get(match[2], 1.0)
    return total


def _bytes(kind: str, dims: str) -> int:
    return BYTES.get(kind, 4) * int(np.prod([int(d) for d in dims.split(",") if d] or [1]))


def traffic() -> list[dict]:
    """A fused pass over gradients that are computed again: what the blocks and the gradients move, and the rest."""
    model, X = _problem(40_000, 512)
    rows = []
    for mesh in MESHES:
        fitted = nfk.fit(model, X, 16, mesh=mesh, keep=False, method="krylov", side="parameters", memory="1GB")
        operator, width = _operator(fitted, X), 16
        block = fitted.space.random([1], fitted.right.shape[0], width, np.dtype(np.float32))
        operator.fused(block)
        with Recorder() as recorder:
            operator.fused(block)
        way = replace(fitted.plan.way, width=width)
        found = sum(recorder.received.values())
        rows.append({"mesh": mesh, "received": found, "predicted": way.traffic, "parts": recorder.received})
    return rows


def _operator(fitted: nfk.Embedding, X: np.ndarray) -> Any:
    batches = fitted.plan.batches
    stream = fitted._stream(Examples(X), batches, Reporter(show=False))
    return GradientOperator(stream, fitted.moments, batches.chunk, measure=False)


def memory() -> list[dict]:
    """The most that blocks take on a device in a search of one width, sampled after every program, by basis shards."""
    model, X = _problem(100_000, 64)
    rows = []
    for shards in (1, 2, 4, 8):
        fitted = nfk.fit(model, X, 4, mesh=(1, shards), keep=False, method="krylov", side="parameters", memory="2GB")
        rows.append({"shards": shards, **_peak(_operator(fitted, X))})
    return rows


def _peak(operator: Any) -> dict[str, float]:
    """Of blocks of P rows, and of everything, on the first device: 32 vectors from a basis of 192 columns at the most,
    in blocks of 32."""
    peak, run = {"blocks": 0.0, "all": 0.0}, sharding.Grid.each

    def each(grid: Any, *arguments: Any, **static: Any) -> Any:
        found = run(grid, *arguments, **static)
        live = [array for array in jax.live_arrays() if not array.is_deleted()]
        blocks = [array for array in live if array.ndim == 2 and array.shape[0] == operator.shape[1]]
        for name, arrays in (("blocks", blocks), ("all", live)):
            peak[name] = max(peak[name], sum(map(_on_first, arrays)))
        return found

    goal = Goal(32, None, 1e-6, operator.trace, 32)
    sharding.Grid.each = each
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", nfk.ConvergenceWarning)  # five steps are enough to see what is held
            loop(Krylov(ParameterSide(operator), goal, [0], 32, 192, 32, most_steps=5), Quiet())
    finally:
        sharding.Grid.each = run
    return peak


class Quiet:
    def stage(self, label: str) -> None: ...
    def finished(self, state: object, note: str) -> None: ...


def _on_first(array: jax.Array) -> int:
    first = jax.devices()[0]
    return sum(shard.data.nbytes for shard in array.addressable_shards if shard.device == first)


# --- every pair of a model and a way


def pairs() -> dict[str, Any]:
    """Every model of the tests' registry in every way, on meshes in turn, against one device: the worst differences."""
    sys.path.insert(0, str(ROOT / "tests"))
    from registry import CASES
    from test_mesh import WAYS

    rows = []
    for index, (name, way) in enumerate((name, way) for name in CASES for way in WAYS):
        case, mesh = CASES[name](np.dtype(np.float32)), MESHES[index % len(MESHES)]
        X = jax.tree.map(lambda leaf: leaf[:37], case.X)
        options = {"tol": case.tol, "memory": "200MB", **WAYS[way]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", nfk.ConvergenceWarning)
            alone, shared = (nfk.fit(case.model, X, 4, mesh=devices, **options) for devices in (None, mesh))
        difference = np.abs(shared.eigenvalues - alone.eigenvalues).max() / alone.eigenvalues[0]
        kernel = alone.training @ alone.training.T
        other = np.abs(shared.training @ shared.training.T - kernel).max() / np.abs(kernel).max()
        rows.append({"model": name, "way": way, "mesh": mesh, "eigenvalues": difference, "kernel": float(other)})
        print(rows[-1], file=sys.stderr, flush=True)
    return {"rows": rows, "worst": max(max(row["eigenvalues"], row["kernel"]) for row in rows)}


if __name__ == "__main__":
    tyro.cli(main)
