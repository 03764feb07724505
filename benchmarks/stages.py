"""Where the seconds of a fit go: a network of the comparison, through JAX and through PyTorch, beside the script.

python -m benchmarks.stages [--network critic --examples 1024 --rank 128 --output results/stages.json]

Run it pinned to one core. A profile of Python functions, whose seconds are summed up by part; it makes a fit a little
slower than it is.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import time
from pathlib import Path
from typing import Any

import tyro

from benchmarks.peers import making
from benchmarks.peers.machine import processor
from benchmarks.peers.measure import Stopwatch
from benchmarks.printed import environment
from benchmarks.report_tasks import head
from nfk.planning.rates import kernels

OUTPUT = Path(__file__).resolve().parent.parent / "results" / "stages.json"
PARTS = {  # functions of the library, by the end of their file and their name: seconds with all that they call
    "rates of the machine": ("planning/rates.py", "measured"),
    "plan": ("planning/planner.py", "plan_fit"),
    "moments": ("operator/moments.py", "estimate"),
    "gradients into their places": ("operator/stream.py", "write"),
    "kernel matrix, basis: inner products": ("spaces/host.py", "inner"),
    "products with blocks": ("spaces/host.py", "product"),
    "taken apart into halves": ("spaces/halves.py", "settle"),
    "search in bfloat16": ("operator/halves.py", "coarse_kernel"),
    "V M with both halves": ("operator/halves.py", "matmat"),
    "V' W with both halves": ("operator/halves.py", "rmatmat"),
    "eigh": ("linalg/_decomp.py", "eigh"),
    "compilation, in moments or gradients": ("_src/compiler.py", "backend_compile_and_load"),
}


def profile(prepare: Any, job: Any) -> dict[str, Any]:
    """Seconds of a fit, and of its parts."""
    solve, profiler, started = prepare(job), cProfile.Profile(), time.perf_counter()
    answer = profiler.runcall(solve, Stopwatch())
    seconds = time.perf_counter() - started
    calls = pstats.Stats(profiler).stats.items()  # pyright: ignore[reportAttributeAccessIssue]
    parts = {
        part: max((entry[3] for (file, _, name), entry in calls if file.endswith(end) and name == function), default=0)
        for part, (end, function) in PARTS.items()
    }
    return {"seconds": seconds, "parts": parts, "plan": answer.facts["plan"]}


def main(network: str = "critic", examples: int = 1024, rank: int = 128, output: Path = OUTPUT) -> None:
    """Profile both ways in, and time the script's stages.

    Args:
        network: one of those of `benchmarks.peers`.
        examples: N.
        rank: k.
        output: the results file; other sizes in it are kept.
    """
    from benchmarks.peers.contestants import nfk_jax, nfk_torch, script  # they need torch, the table does not

    job, _ = making.make(network, examples, {"kernel": "fisher", "rank": rank, "budget_seconds": 600.0})
    solve, watch = script.prepare(job), Stopwatch()
    solve(watch)
    row = {
        "network": network, "processor": processor(), "examples": examples, "rank": rank, "kernels": kernels(),
        "environment": environment(0, "jax", "numpy", "torch"),
        "script": {"seconds": watch.seconds, "parts": watch.stages},
        "nfk": profile(nfk_jax.prepare, job), "nfk, PyTorch module": profile(nfk_torch.prepare, job),
    }  # fmt: skip
    found = json.loads(output.read_text()) if output.exists() else []
    found = [old for old in found if _job(old) != _job(row)] + [row]
    output.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


def _job(row: dict) -> tuple:
    return tuple(row[name] for name in ("processor", "network", "examples", "rank"))


def table(rows: list[dict]) -> str:
    """results/stages.json in the documentation."""
    if not rows:
        return "Not measured yet: `python -m benchmarks.stages`.\n"
    lines = head("processor", "network, N, k", "who", "seconds", "of which")
    for row in sorted(rows, key=_job):
        for name in ("script", "nfk", "nfk, PyTorch module"):
            parts = [f"{part} {seconds:.1f}" for part, seconds in row[name]["parts"].items() if seconds >= 0.05]
            who = "PyTorch script" if name == "script" else name
            job = f"{row['processor']} | {row['network']}, {row['examples']:,}, {row['rank']}"
            lines.append(f"| {job} | {who} | {row[name]['seconds']:.1f} | {', '.join(parts)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    tyro.cli(main)
