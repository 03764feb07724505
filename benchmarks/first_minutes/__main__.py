"""Live through the first ten minutes and write them down, with times. A step that fails stops it.

python -m benchmarks.first_minutes --output results/first_minutes.json
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from benchmarks.printed import printed

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGES = ("nfk", "jax", "numpy", "torch")


@dataclass(frozen=True)
class Step:
    """Why, the file that is written first, and the command; one of the two may be missing."""

    why: str
    command: str = ""
    file: str = ""


def steps(wheel: str, pinned: str) -> list[Step]:
    extras = f"'./{wheel}[demo,report,torch]'"
    return [
        Step("A fresh environment, and the wheel with the demo, the report and PyTorch.",
             f"python -m venv fresh && fresh/bin/pip install --quiet {' '.join([extras, pinned]).strip()}"),
        Step("What is it about? The demo: 4,000 digits, a small network that comes with the package.", "nfk demo"),
        Step("The same as a page to look at.", "nfk report demo/run --output demo.html"),
        Step("Now a network of our own, in PyTorch, and a function that tells `nfk` about it.", file="mine.py"),
        Step("It is trained for a few seconds, and 2,000 images are kept.", "python train.py", "train.py"),
        Step("Is there anything to mend before the fit?", "nfk doctor mine.py:model images.npy"),
        Step("What would the fit cost?", "nfk fit mine.py:model images.npy --labels labels.npy --dry-run"),
        Step("The fit.", "nfk fit mine.py:model images.npy --labels labels.npy --output runs/mine"),
        Step("How much do its components know of the labels?", "nfk probe runs/mine"),
        Step("Which images are unusual?", "nfk outliers runs/mine --count 5"),
        Step("And all of it as a page: the map, the components, the outliers, the labels to look at again.",
             "nfk report runs/mine --output mine.html"),
        Step("The embedding as a file for other programs.", "nfk embed runs/mine --output mine.npy"),
        Step("The same in Python.", "python use.py", "use.py"),
    ]  # fmt: skip


def main(output: Path | None = None, pinned: str = "") -> None:
    """Run the steps in a folder of their own.

    Args:
        output: a JSON file for the transcript.
        pinned: requirements beside the wheel, such as torch==2.13.0.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        wheel, building = build(folder)
        told = [lived(step, folder) for step in steps(wheel.name, pinned)]
        results = {
            "cores": len(os.sched_getaffinity(0)), "machine": platform.machine(), "python": platform.python_version(),
            "versions": versions(folder), "wheel_kilobytes": round(wheel.stat().st_size / 1000),
            "wheel_seconds": building, "seconds": round(sum(one["seconds"] for one in told), 1), "steps": told,
        }  # fmt: skip
    printed(results, output)


def build(folder: Path) -> tuple[Path, float]:
    """The wheel, as `python -m build` makes it, and the seconds of that."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob("*.whl")), round(time.perf_counter() - started, 1)


def lived(step: Step, folder: Path) -> dict[str, Any]:
    """The step with its file, its seconds and what it printed."""
    source = (HERE / step.file).read_text() if step.file else ""
    (folder / (step.file or "nothing")).write_text(source)
    started = time.perf_counter()
    done = subprocess.run(
        ["bash", "-c", step.command], cwd=folder, env=surroundings(folder), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    seconds = round(time.perf_counter() - started, 1)
    print(f"{seconds:6.1f} s  {step.command}", file=sys.stderr)
    if done.returncode:
        sys.exit(f"{step.command} ended with {done.returncode}:\n{done.stdout}")
    said = "" if "pip install" in step.command else done.stdout.replace(str(folder), ".")
    lines = [line.rstrip() for line in said.strip().splitlines()]
    told = {"why": step.why, "command": step.command, "seconds": seconds, "output": lines}
    return told | ({"file": step.file, "source": source} if source else {})


def surroundings(folder: Path) -> dict[str, str]:
    """As after a login: no settings of ours, no caches, and the fresh environment first in the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NFK_", "PYTHON", "JAX_"))}
    path = f"{folder / 'fresh' / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": path, "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "100"}


def versions(folder: Path) -> dict[str, str]:
    listed = subprocess.run(
        [folder / "fresh" / "bin" / "pip", "list", "--format", "json"], capture_output=True, text=True, check=True
    )
    found = {one["name"]: one["version"] for one in json.loads(listed.stdout)}
    return {name: found[name] for name in PACKAGES}


if __name__ == "__main__":
    tyro.cli(main)
