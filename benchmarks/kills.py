"""Fits by one process or two, killed at random moments, again and again; and what it costs to be safe from it. JSON.

python -m benchmarks.kills [--kills 24] [--only kills] [--output results/kills.json]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import nfk
from benchmarks.core import environment
from nfk.checkpoint import Checkpoint

SEED = 0
MOMENT_SECONDS = 5.0  # after the last result that a life is to see
SCHEDULED = Path("/proc/thread-self/schedstat")  # of Linux
METHODS = ("krylov", "gram", "power")
Section = Literal["kills", "processes", "cost"]

SCRIPT = """
import sys, numpy as np, jax.numpy as jnp, nfk
X = np.random.default_rng(0).standard_normal((600, 64)).astype(np.float32)
rng = np.random.default_rng(1)
params = [rng.standard_normal(shape).astype(np.float32) / 8 for shape in ((64, 256), (256, 256), (256, 10))]
def network(params, x):
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer)
    return x @ params[-1]
model = nfk.classifier(network, params)
method, checkpoint, output = sys.argv[1:]
fitted = nfk.fit(model, X, 12, method=method, keep=method == "gram", checkpoint=checkpoint or None)
arrays = {name: np.asarray(getattr(fitted, name)) for name in ("right", "left", "eigenvalues", "residuals")}
if fitted.space.processes.is_first:
    np.savez(output, **arrays)
"""


def main(kills: int = 24, examples: int = 1024, only: Section | None = None, output: Path | None = None) -> None:
    """Run all sections and print one JSON object.

    Args:
        kills: how often a process is killed, at the least.
        examples: of the fit whose cost is measured.
        only: run one section.
        output: also write the JSON here; sections that were not run keep what the file had.
    """
    old = json.loads(output.read_text()) if output and output.exists() else {}
    results: dict[str, Any] = {**old, "environment": environment()}
    if only in (None, "kills"):
        results["kills"] = killing(kills, METHODS)
    if only in (None, "processes"):
        results["processes"] = killing(kills // 2, ("krylov", "gram"), processes=2)
    if only in (None, "cost"):
        others = [row for row in old.get("cost", ()) if row["examples"] != examples]
        results["cost"] = [*others, *(cost(keep, examples) for keep in (False, True))]
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


def killing(kills: int, methods: tuple[str, ...], processes: int = 1) -> list[dict[str, Any]]:
    """For each method, fits that are killed until there were enough kills, each followed to its end."""
    rng = np.random.default_rng(SEED)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(SCRIPT)
        for method in methods:
            place = Path(folder) / method
            place.mkdir()
            started = time.perf_counter()
            launch = ["-m", "nfk.launch", "--processes", str(processes)] if processes > 1 else []
            command = [sys.executable, *launch, str(script)]
            subprocess.run([*command, method, "", str(place / "whole")], check=True)
            seconds = time.perf_counter() - started
            row = {"method": method, "processes": processes, "seconds": seconds, "kills": 0, "fits": 0,
                   "fits_to_the_last_bit": 0, "worst_relative_error_of_an_eigenvalue": 0.0}  # fmt: skip
            while row["kills"] < kills / len(methods):
                checkpoint = place / f"run-{row['fits']}"
                row["kills"] += survive([*command, method, str(checkpoint), str(place / "found")], checkpoint, rng)
                row["fits"] += 1
                whole, found = np.load(place / "whole.npz"), np.load(place / "found.npz")
                row["fits_to_the_last_bit"] += all(np.array_equal(whole[name], found[name]) for name in whole)
                error = float(np.abs(found["eigenvalues"] / whole["eigenvalues"] - 1).max())
                row["worst_relative_error_of_an_eigenvalue"] = max(row["worst_relative_error_of_an_eigenvalue"], error)
            rows.append(row)
            print(row, file=sys.stderr)
    return rows


def survive(command: list[str], checkpoint: Path, rng: np.random.Generator) -> int:
    """One fit, killed some results and a moment further in every life, until one comes to its end; the kills."""
    for kills in range(1000):
        process, wanted = subprocess.Popen(command, start_new_session=True), written(checkpoint) + rng.integers(0, 3)
        while process.poll() is None and written(checkpoint) < wanted:
            time.sleep(0.005)
        try:
            assert process.wait(rng.uniform(0, MOMENT_SECONDS)) == 0
            return kills
        except subprocess.TimeoutExpired:
            kill(process, rng)
    raise RuntimeError("no life was long enough")


def written(checkpoint: Path) -> int:
    """Results that the first process has written."""
    return len(list(checkpoint.glob("entry-*.json")))


def kill(process: subprocess.Popen, rng: np.random.Generator) -> None:
    """All processes at once; or, every other time where there are several, one of them, which ends the others."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    if len(children) > 1 and rng.random() < 0.5:
        os.kill(int(rng.choice(children)), signal.SIGKILL)
        assert process.wait(60) != 0
    else:
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def cost(keep: bool, examples: int) -> dict[str, Any]:
    """The share of a fit that writing takes, and how soon a fit that was killed in its last pass is at its end."""
    model, images = critic(examples)
    options: dict[str, Any] = {"method": "krylov", "side": "parameters", "keep": keep}
    nfk.fit(model, images[:64], 8, **options)  # compiles
    with tempfile.TemporaryDirectory() as folder:
        killed = Path(folder) / "killed"
        with timed("begin", "keep", "finish") as writing, left_behind(killed):
            started, used = time.perf_counter(), time.process_time()
            fitted = nfk.fit(model, images, 32, checkpoint=Path(folder) / "whole", **options)
            clock, processor = time.perf_counter() - started, time.process_time() - used
        resumed, last = resumed_seconds(model, images, killed, options)
    spent = writing["seconds"]
    seconds = processor + max(spent - writing["processor"], 0)  # and what it waited for the disk
    return {
        "parameters": model.layout.size, "examples": len(images), "rank": 32, "gradients_kept": keep,
        "passes": fitted.passes, "width": fitted.plan.width, "entries": writing["calls"]["keep"],
        "bytes": writing["bytes"], "seconds": seconds, "seconds_writing": spent,
        "processor_seconds_writing": writing["processor"],
        "share_writing": spent / seconds, "seconds_by_call": writing["by_call"], "seconds_by_the_clock": clock,
        "seconds_resumed": resumed, "seconds_of_the_last_pass": last,
    }  # fmt: skip


def critic(count: int) -> tuple[nfk.Model, np.ndarray]:
    """A convolutional critic of 0.6 million parameters, and random images for it."""
    rng, shapes = np.random.default_rng(SEED), [(3, 32), (32, 64), (64, 64), (64, 128), (128, 128), (128, 256)]
    kernels = [(rng.standard_normal((3, 3, *shape)) / np.sqrt(9 * shape[0])).astype(np.float32) for shape in shapes]
    final = rng.standard_normal(256).astype(np.float32) / 16

    def score(params: Any, image: jax.Array) -> jax.Array:
        hidden = image[None]
        for number, kernel in enumerate(params[:-1]):
            stride = (1 + number % 2,) * 2
            numbers = ("NHWC", "HWIO", "NHWC")
            hidden = jax.lax.conv_general_dilated(hidden, kernel, stride, "SAME", dimension_numbers=numbers)
            hidden = jax.nn.leaky_relu(hidden, 0.2)
        return hidden.mean((0, 1, 2)) @ params[-1]

    images = rng.standard_normal((count, 32, 32, 3)).astype(np.float32)
    return nfk.energy(score, [*map(jnp.asarray, kernels), final]), images


def undisturbed() -> float:
    """Seconds in which this thread ran or waited for the disk; not those in which another program had its core."""
    waited = float(SCHEDULED.read_text().split()[1]) / 1e9 if SCHEDULED.exists() else 0.0
    return time.perf_counter() - waited


@contextmanager
def timed(*names: str) -> Iterator[dict[str, Any]]:
    """Inside these methods of a checkpoint while the block runs: seconds (undisturbed) and those of the processor, the
    bytes of arrays that were to be kept, how often each was called; and when calls ended, by the processor's time."""
    spent: dict[str, Any] = {"seconds": 0.0, "processor": 0.0, "bytes": 0, "ends": []}
    spent |= {"by_call": dict.fromkeys(names, 0.0), "calls": dict.fromkeys(names, 0)}
    originals = {name: getattr(Checkpoint, name) for name in names}

    def watched(name: str, original: Any) -> Any:
        def call(*arguments: Any) -> Any:
            started, used = undisturbed(), time.thread_time()
            result = original(*arguments)
            took = undisturbed() - started
            spent["seconds"] += took
            spent["by_call"][name] += took
            spent["processor"] += time.thread_time() - used
            spent["calls"][name] += 1
            spent["ends"].append(time.process_time())
            if name == "keep":
                spent["bytes"] += sum(array.nbytes for array in arguments[-1])
            return result

        return call

    for name, original in originals.items():
        setattr(Checkpoint, name, watched(name, original))
    try:
        yield spent
    finally:
        for name, original in originals.items():
            setattr(Checkpoint, name, original)


@contextmanager
def left_behind(folder: Path) -> Iterator[None]:
    """When a fit is about to finish, `folder` gets its checkpoint as a kill in its last pass would have left it."""
    finish = Checkpoint.finish

    def copied(self: Checkpoint, *arguments: Any) -> None:
        folder.mkdir()
        last = f"entry-{self.passes - 1:04}"
        for path in self.folder.iterdir():
            if path.is_file() and not path.name.startswith((".", last)):
                os.link(path, folder / path.name)
        finish(self, *arguments)

    Checkpoint.finish = copied
    try:
        yield
    finally:
        Checkpoint.finish = finish


def resumed_seconds(model: nfk.Model, images: np.ndarray, folder: Path, options: dict[str, Any]) -> tuple[float, float]:
    """A fit that was killed in its last pass: processor seconds of the second call, and of its own pass alone."""
    with timed("recall", "keep") as watched:
        started = time.process_time()
        nfk.fit(model, images, 32, checkpoint=folder, **options)
        seconds = time.process_time() - started
    assert watched["calls"]["keep"] == 1
    return seconds, watched["ends"][-1] - watched["ends"][-2]


if __name__ == "__main__":
    tyro.cli(main)
