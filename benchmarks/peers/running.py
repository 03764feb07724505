"""One contestant once: its process, its cores, its neighbours, its budget."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import ROOT, python
from benchmarks.peers.registry import REGISTRY

IMPORTS = 60.0  # seconds beyond the budget for imports and reading the job
ONE_THREAD = {
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}  # fmt: skip
FORCED = (
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
)


@dataclass(frozen=True)
class Condition:
    """On which core (None: all, threads as each likes), and whether a process spins on every core beside it."""

    pin: int | None = None
    busy: bool = False

    @property
    def name(self) -> str:
        return " ".join([*(["one core"] if self.pin is not None else []), "busy" if self.busy else "idle"])

    def command(self, command: list[str]) -> list[str]:
        return command if self.pin is None else ["taskset", "-c", str(self.pin), *command]

    def variables(self) -> dict[str, str]:
        return {} if self.pin is None else ONE_THREAD


def touch(size: int) -> None:
    """Every page of so much memory once, in a process that ends. A virtual machine may get its memory from its host
    when it first uses it, at seconds a gigabyte: whoever comes first would pay for all."""
    program = f"import mmap; m = mmap.mmap(-1, {size}); [m.__setitem__(i, 1) for i in range(0, {size}, 4096)]"
    if size:
        subprocess.run([sys.executable, "-c", program], check=True)


def measure(
    name: str, job: Path, budget: float, condition: Condition, environments: Path, embeddings: Path | None = None
) -> dict[str, Any]:
    """What the contestant printed, with its status: "done", "over budget" or "failed" with the reason."""
    contestant = REGISTRY[name]
    module = f"benchmarks.peers.contestants.{contestant.program}"
    return run(
        contestant.environment,
        [module, str(job), *([str(embeddings)] if embeddings else [])],
        budget + IMPORTS,
        condition,
        environments,
    )


def run(environment: str, module: list[str], limit: float, condition: Condition, environments: Path) -> dict[str, Any]:
    """The last line that `python -m module ...` printed, as a record."""
    command = condition.command([str(python(environment, environments)), "-m", *module])
    paths = [str(ROOT), *([str(ROOT / "src")] if environment == "nfk" else [])]
    # A machine may force slower kernels on some library: here each chooses its own, by the processor.
    free = {name: value for name, value in os.environ.items() if name not in FORCED}
    variables = {**free, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu", **condition.variables()}
    started = time.perf_counter()
    with neighbours(condition), subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return {"status": "over budget", "wall_seconds": time.perf_counter() - started}
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    wall = {"wall_seconds": time.perf_counter() - started}
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        reason = errors.strip().splitlines()[-1] if errors.strip() else f"exit code {process.returncode}"
        return {"status": "failed", "reason": reason[:300], **wall}
    return {"status": "done", **json.loads(lines[-1]), **wall}


@contextmanager
def neighbours(condition: Condition) -> Iterator[None]:
    """A spinning process on every core while the block runs."""
    cores = sorted(os.sched_getaffinity(0)) if condition.busy else []
    spin = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(["taskset", "-c", str(core), *spin]) for core in cores]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
