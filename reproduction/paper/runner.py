"""One experiment at one size: measurements kept as they come, rows in results/NAME.json, pictures in results/NAME/.

The size "cpu" writes below results/; any other below runs/PRESET/, so that a trial never touches the figures.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

import nfk
from nfk.tasks import Estimate
from reproduction.results import write_json
from reproduction.tasks.ledger import Ledger, Row

RESULTS, RUNS = Path("results"), Path("runs")
PACKAGES = ("jax", "torch", "numpy", "scipy", "scikit-learn", "flax")


def run_experiment(name: str, preset: str, results: Path = RESULTS, runs: Path = RUNS) -> Path:
    """The results file of the experiment. Single measurements are kept in `runs`: a second call goes on from them."""
    module = importlib.import_module(f"reproduction.paper.{name.replace('-', '_')}")
    settings, console = module.PRESETS[preset], Console()
    place = results if preset == "cpu" else runs / preset
    pictures = place / name
    pictures.mkdir(parents=True, exist_ok=True)
    say = lambda text: console.print(f"{name} | {text}", highlight=False)  # noqa: E731
    rows = module.run(Ledger(name, runs / preset / "ledgers", say), pictures, settings)
    return write_json(place / f"{name}.json", content(name, preset, settings, list(module.SMALLER), rows))


def content(name: str, preset: str, settings: Any, smaller: list[str], rows: list[Row]) -> dict[str, Any]:
    """A results file: what was run, with which settings and versions, and its rows."""
    versions = {package: importlib.metadata.version(package) for package in PACKAGES} | {"nfk": nfk.__version__}
    return {
        "experiment": name, "command": f"python -m reproduction {name} --preset {preset}", "preset": preset,
        "settings": asdict(settings), "smaller": smaller if preset == "cpu" else [],
        "versions": versions, "python": platform.python_version(), "cores": os.cpu_count(), "rows": rows,
    }  # fmt: skip


def single(method: str, estimate: Estimate, *, metric: str, **facts: Any) -> Row:
    """A row of one measurement: its value and its 95 % interval."""
    return {
        "method": method, "metric": metric, "value": estimate.value, "low": estimate.low, "high": estimate.high, **facts
    }  # fmt: skip
