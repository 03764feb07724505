"""One experiment at one size: measurements kept as they come, rows in results/NAME.json, pictures in results/NAME/.

The size "cpu" writes below results/; any other below runs/PRESET/, so that a trial never touches the figures. Stopped
by Ctrl-C, an experiment that gives its rows one by one writes those that it has, and says that there are more.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
from collections.abc import Iterable
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
    rows, stopped = _all_or_some(module.run(Ledger(name, runs / preset / "ledgers", say), pictures, settings))
    made = content(name, preset, settings, list(module.SMALLER), rows)
    path = write_json(place / f"{name}.json", made | ({"unfinished": True} if stopped else {}))
    if stopped is not None:
        say(f"stopped; {path} has {len(rows)} rows, and the same command goes on")
        raise stopped
    return path


def _all_or_some(given: Iterable[Row]) -> tuple[list[Row], KeyboardInterrupt | None]:
    """The rows, and the Ctrl-C that ended them early."""
    rows: list[Row] = []
    try:
        for row in given:
            rows.append(row)
    except KeyboardInterrupt as stopped:
        return rows, stopped
    return rows, None


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
