"""Many devices and processes: the speed of two, what travels, what each device holds, every pair of a model and a way.

python -m benchmarks.scale [--only processes] [--output results/scale.json]; the devices are simulated ones of the CPU.
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Literal

import jax
import numpy as np
import tyro

import nfk
from benchmarks.core import environment
from benchmarks.scale_devices import MESHES, memory, traffic
from benchmarks.scale_model import predicted

ROOT = Path(__file__).parents[1]
SECTIONS = ("repeats", "processes", "traffic", "memory", "pairs", "model")
Section = Literal["repeats", "processes", "traffic", "memory", "pairs", "model"]


def main(only: Section | None = None, quick: bool = False, output: Path | None = None) -> None:
    """Run the sections and print one JSON object.

    Args:
        only: run one section.
        quick: of `processes`, a few examples once: whether it runs, not what it takes.
        output: also write the JSON here; sections that were not run keep what the file had.
    """
    results: dict[str, Any] = json.loads(output.read_text()) if output and output.exists() else {}
    results["environment"] = environment()
    sections: dict[str, Callable[[], Any]] = {
        "repeats": repeats, "processes": lambda: processes(quick), "traffic": traffic, "memory": memory,
        "pairs": lambda: pairs(results.get("pairs", {}).get("rows", []), keep_pairs), "model": predicted,
    }  # fmt: skip

    def write() -> None:
        if output:
            output.write_text(json.dumps(results, indent=1) + "\n")

    def keep_pairs(rows: list[dict]) -> None:
        results["pairs"] = {"rows": rows}
        write()

    for name in SECTIONS if only is None else (only,):
        results[name] = sections[name]()
        write()
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


CONTESTANTS = {"one process, host": "host", "one process, mesh": "mesh", "two apart": "mesh", "two processes": "mesh"}
EXAMPLES, FEW, TURNS = {"gradients": 2048, "products": 256}, 16, 1
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "NFK_RATES": "typical", "XLA_FLAGS": ""}


def processes(quick: bool = False) -> dict[str, Any]:
    """Contestants in turn; the first fit of each process compiles and is not counted. `two apart` are two processes
    that know nothing of each other, each with a whole fit on its own core: what the machine has for two at the most.
    Every process has one core and one thread, and all have the plan of the same stated rates."""
    found: dict[str, Any] = {}
    for network, examples in EXAMPLES.items():
        runs: dict[str, list[dict]] = {name: [] for name in CONTESTANTS}
        for _ in range(1 if quick else TURNS):
            for name, place in CONTESTANTS.items():
                runs[name] += _timed(name, [network, place, str(FEW if quick else examples)])
                print(network, name, runs[name][-1]["seconds"], file=sys.stderr, flush=True)
        found[network] = _compared(runs)
    return found


def _compared(runs: dict[str, list[dict]]) -> dict[str, Any]:
    one = "one process, mesh"
    seconds = {name: median(s for run in each for s in run["seconds"]) for name, each in runs.items()}
    example, values = runs["two processes"][0], np.asarray(runs["one process, host"][0]["values"])
    return {
        **{name: example[name] for name in ("parameters", "examples", "rank", "keep")}, "seconds": seconds,
        **{name: {who: each[0][name] for who, each in runs.items()} for name in ("passes", "width", "cores")},
        "speedup": {who: seconds[who] / seconds["two processes"] for who in (one, "one process, host")},
        "most": 2 * seconds[one] / seconds["two apart"],
        "difference": max(float(np.abs(np.asarray(run["values"]) / values - 1).max()) for each in runs.values()
                          for run in each),
    }  # fmt: skip


def _timed(name: str, arguments: list[str]) -> list[dict]:
    """What each process that is told apart has measured. That of one has the first core."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / f"{place}.json" for place in range(2 if name == "two apart" else 1)]
        scripts = [[str(ROOT / "benchmarks" / "scale_fit.py"), *arguments, str(output)] for output in outputs]
        if name == "two processes":
            commands = [[sys.executable, "-m", "nfk.launch", "--processes", "2", *scripts[0]]]
        else:
            pinned = zip(cores * 2, scripts, strict=False)
            commands = [["taskset", "-c", str(core), sys.executable, *script] for core, script in pinned]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        running = [subprocess.Popen(each, env={**os.environ, **ONE_THREAD, "PYTHONPATH": path}) for each in commands]
        if any([process.wait() for process in running]):
            raise RuntimeError(f"{name}: a process of {commands} has failed; its message is above")
        return [json.loads(output.read_text()) for output in outputs]


# --- every pair of a model and a way


def pairs(known: list[dict], keep: Callable[[list[dict]], None]) -> dict[str, Any]:
    """Every model of the tests' registry in every way, on meshes in turn, against one device: the worst differences.
    `known` are rows of a run that was broken off; `keep` is given all rows after each."""
    sys.path.insert(0, str(ROOT / "tests"))
    from registry import CASES
    from test_mesh import WAYS

    rows, wanted = [], [(name, way) for name in CASES for way in WAYS]
    done = {(row["model"], row["way"]): row for row in known} if len(known) < len(wanted) else {}
    for index, (name, way) in enumerate(wanted):
        mesh = MESHES[(index + index // len(WAYS)) % len(MESHES)]  # another one for each model
        found = done.get((name, way)) or _pair(CASES[name](np.dtype(np.float32)), WAYS[way], mesh)
        rows.append({**found, "model": name, "way": way, "mesh": mesh})
        if (name, way) not in done:
            keep(rows)
            print(rows[-1], file=sys.stderr, flush=True)
        if way == list(WAYS)[-1]:
            jax.clear_caches()  # the programs of this model
    return {"rows": rows, **{f"worst_{kind}": max(row[kind] for row in rows) for kind in DIFFERENCES}}


DIFFERENCES = ("eigenvalues", "kernel", "trace", "call")


def _pair(case: Any, way: dict[str, Any], mesh: tuple[int, int]) -> dict[str, float]:
    """Differences relative to the largest number; of a call, from what the fit itself says of its examples."""
    X = jax.tree.map(lambda leaf: leaf[:37], case.X)
    options = {"tol": case.tol, "memory": "200MB", **way}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nfk.ConvergenceWarning)
        alone, shared = (nfk.fit(case.model, X, 4, mesh=devices, **options) for devices in (None, mesh))
    off = lambda one, other: float(np.abs(np.subtract(one, other)).max() / np.abs(other).max())  # noqa: E731
    return {
        "eigenvalues": off(shared.eigenvalues, alone.eigenvalues), "trace": off(shared.trace, alone.trace),
        "kernel": off(shared.training @ shared.training.T, alone.training @ alone.training.T),
        "call": off(shared(X), shared.training),
    }  # fmt: skip


if __name__ == "__main__":
    tyro.cli(main)
