"""What has been measured: single measurements as they come, so that an interrupted run goes on; rows at the end."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import nfk
from nfk.atomic import write_atomically
from nfk.tasks import repeated
from reproduction.results import write_json

RUNS, RESULTS = Path("runs/tasks"), Path("results/tasks")
PACKAGES = ("jax", "flax", "optax", "numpy", "scikit-learn")
Row = dict[str, Any]
Measure = Callable[..., dict[str, Any]]


class Ledger:
    """Measurements of one task by name, each a dict of numbers, in RUNS/TASK/ledger.json.

    `measure(settings, *arguments)` makes one. It is kept with its settings, a dataclass of numbers, words and tuples of
    them, and with those arguments that are such too; where one of these has changed since, it is measured again. Other
    arguments (arrays, networks) must follow from the settings and the name.
    """

    def __init__(self, task: str, runs: Path = RUNS, say: Callable[[str], None] = print) -> None:
        self.folder, self.say = runs / task, say
        self.path = self.folder / "ledger.json"
        self.known: dict[str, dict] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def once(self, name: str, measure: Measure, settings: Any, *arguments: Any) -> dict[str, Any]:
        """What was measured under that name with these settings, or what `measure` finds now."""
        recorded = recorded_settings(settings, arguments)
        if name not in self.known or self.known[name]["settings"] != recorded:
            started = time.perf_counter()
            found = {key: _plain(value) for key, value in measure(settings, *arguments).items()}
            self.known[name] = {"settings": recorded, "found": found}
            write_json(self.path, self.known)
            shown = "  ".join(f"{key} {value:.4g}" for key, value in found.items() if isinstance(value, (int, float)))
            self.say(f"{name}: {shown}  [{time.perf_counter() - started:.0f} s]")
        return self.known[name]["found"]

    def arrays(self, name: str, make: Measure, settings: Any, *arguments: Any) -> dict[str, np.ndarray]:
        """Arrays that several measurements share, made once and kept in a file beside the ledger."""
        path, recorded = self.folder / f"{name}.npz", json.dumps(recorded_settings(settings, arguments))
        if path.exists():
            with np.load(path, allow_pickle=False) as archive:
                if "settings" in archive and str(archive["settings"]) == recorded:
                    return {key: archive[key] for key in archive.files if key != "settings"}
        self.say(f"{name}: computing")
        found = {key: np.asarray(value) for key, value in make(settings, *arguments).items()}
        content: dict[str, Any] = {"settings": np.array(recorded), **found}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda partial: np.savez(partial, **content))
        return found


def recorded_settings(settings: Any, arguments: tuple) -> dict[str, Any]:
    """All fields of the settings and the plain arguments, as JSON gives them back."""
    return json.loads(json.dumps({**asdict(settings), "arguments": [value for value in arguments if _simple(value)]}))


def _simple(value: Any) -> bool:
    return isinstance(value, (int, float, str)) or (isinstance(value, tuple) and all(map(_simple, value)))


def row(method: str, values: Iterable[float], *, metric: str, **facts: Any) -> Row:
    """A row of a results file: the method, the mean over seeds, the spread, how many."""
    several = repeated(values)
    return {
        "method": method, "metric": metric, "mean": several.mean, "spread": several.spread,
        "seeds": len(several.values), "values": list(several.values), **facts,
    }  # fmt: skip


def write_rows(task: str, rows: list[Row], results: Path = RESULTS) -> Path:
    """results/tasks/TASK.json: the rows, each with what it was made by."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    made_by = f"make tasks; nfk {nfk.__version__}, {versions}, python {platform.python_version()}"
    return write_json(results / f"{task}.json", [{**line, "made_by": made_by} for line in rows])


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
