"""This version beside an earlier release, taken from git: run in turn, on one core, one thread each.

`python -m benchmarks.against --only fit-32 --output results/core.json`: a contest at a time, about five minutes each.
What is measured: processor seconds of a run with everything compiled (the first of several is left out, and told
apart), the most memory beyond that at its start, and the worst error of the eigenvalues against the float64 Gram matrix
of the same float32 rows.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import nfk
from benchmarks.contest import CONTESTS, EXAMPLES, TOL
from benchmarks.critics import WIDE, critic, critic_params
from reproduction import data

ROOT = Path(__file__).parents[1]
RELEASES = {"0.3.0": "37e3203"}
NOW = "now"


class Contestant:
    """A release in a process of its own."""

    def __init__(self, source: Path, contest: str, images: Path, cache: Path) -> None:
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        path = os.pathsep.join([str(source), str(ROOT)])
        environment = {**os.environ, **threads, "PYTHONPATH": path, "JAX_COMPILATION_CACHE_DIR": str(cache)}
        command = [sys.executable, "-m", "benchmarks.contest", contest, str(images)]
        pipes: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cache)
        self._process = subprocess.Popen(command, env=environment, **pipes)
        self.version = self._answer()["nfk"]

    def run(self) -> dict[str, Any]:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a contestant ended with status {self._process.wait()}: its error is above")
        return json.loads(line)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def source_of(release: str, folder: Path) -> Path:
    """`src` of a release, unpacked from git."""
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", RELEASES[release], "src"], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def contest(name: str, release: str, rounds: int, images: np.ndarray) -> dict[str, Any]:
    """Both in turn, `rounds` times; the medians of all runs but the first of each."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        np.save(folder / "images.npy", images)
        sources = {release: source_of(release, folder), NOW: ROOT / "src"}
        both = {label: Contestant(path, name, folder / "images.npy", folder) for label, path in sources.items()}
        runs: dict[str, list[dict]] = {label: [] for label in both}
        for _ in range(rounds):
            for label, contestant in both.items():
                runs[label].append(contestant.run())
        versions = {label: contestant.version for label, contestant in both.items()}
        for contestant in both.values():
            contestant.close()
    exact = _exact(name, images, runs[NOW][0])
    rows = {label: _summary(versions[label], found, exact) for label, found in runs.items()}
    ratio = rows[NOW]["seconds"] / rows[release]["seconds"]
    return {"rounds": rounds, "tol": TOL, "examples": EXAMPLES.get(name, 32), **rows, "ratio": ratio}


def _summary(version: str, runs: list[dict], exact: np.ndarray | None) -> dict[str, Any]:
    median = lambda name: float(np.median([run[name] for run in runs[1:] or runs]))  # noqa: E731
    found = {"nfk": version, **{name: median(name) for name in ("seconds", "wall_seconds")}}
    found |= {"first_seconds": runs[0]["seconds"], "peak_bytes": int(max(run["peak_bytes"] for run in runs))}
    if "passes" in runs[-1]:
        found["passes"] = runs[-1]["passes"]
    if exact is not None:
        found["worst_relative_error"] = float(np.max(np.abs(np.array(runs[-1]["eigenvalues"]) / np.asarray(exact) - 1)))
    return found


def _exact(name: str, images: np.ndarray, run: dict) -> np.ndarray | None:
    """The eigenvalues of the float64 Gram matrix, where the contest has eigenvalues."""
    if "eigenvalues" not in run:
        return None
    model = nfk.gan(critic, critic_params(WIDE), expectation="data")
    rows, rank = images[: EXAMPLES.get(name, 32)], len(run["eigenvalues"])
    return nfk.fit(model, rows, rank, method="exact").eigenvalues


def main(
    only: tuple[str, ...] = ("fit-128", "fit-32", "recomputed-32", "embedding-128", "streamed-4096"),
    release: str = "0.3.0",
    rounds: int = 3,
    output: Path | None = None,
) -> None:
    """Run contests and print them as JSON.

    Args:
        only: the contests to run; `quick` is one that takes seconds.
        release: the earlier release.
        rounds: runs of each; the first is left out of the median.
        output: results/core.json: the contests are put under "against" there, beside what it has.
    """
    if unknown := [name for name in only if name not in CONTESTS]:
        raise SystemExit(f"{unknown[0]!r} is no contest: there are {', '.join(CONTESTS)}")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, which the contestants inherit
    images = 2 * data.cifar10("train").images[:2048] - 1
    for name in only:
        found = contest(name, release, rounds, images)
        print(json.dumps({name: found}, indent=1), flush=True)
        if output is not None:
            results = json.loads(output.read_text())
            results.setdefault("against", {}).setdefault(release, {})[name] = found
            output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    tyro.cli(main, prog="python -m benchmarks.against")
