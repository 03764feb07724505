"""What has been measured: single measurements as they come, so that an interrupted run goes on; rows at the end."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import nfk
from nfk.tasks import repeated

RUNS, RESULTS = Path("runs/tasks"), Path("results/tasks")
PACKAGES = ("jax", "flax", "optax", "numpy", "scikit-learn")
Row = dict[str, Any]


class Ledger:
    """Measurements of one task by name, each a dict of numbers, in RUNS/TASK/ledger.json.

    Each is kept with its settings: the constants of the module that measures it, and the plain arguments. Where those
    have changed since, it is measured again.
    """

    def __init__(self, task: str, runs: Path = RUNS, say: Callable[[str], None] = print) -> None:
        self.folder, self.say = runs / task, say
        self.path = self.folder / "ledger.json"
        self.known: dict[str, dict] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def once(self, name: str, measure: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
        """What was measured under that name, or what `measure(*arguments)` measures now."""
        settings = settings_of(measure, arguments)
        if name not in self.known or self.known[name]["settings"] != settings:
            started = time.perf_counter()
            found = {key: _plain(value) for key, value in measure(*arguments).items()}
            self.known[name] = {"settings": settings, "found": found}
            _write(self.path, self.known)
            shown = "  ".join(f"{key} {value:.4g}" for key, value in found.items() if isinstance(value, (int, float)))
            self.say(f"{name}: {shown}  [{time.perf_counter() - started:.0f} s]")
        return self.known[name]["found"]

    def arrays(self, name: str, make: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, np.ndarray]:
        """Arrays that several measurements share, made once and kept in a file beside the ledger."""
        path, settings = self.folder / f"{name}.npz", json.dumps(settings_of(make, arguments))
        if path.exists():
            with np.load(path, allow_pickle=False) as archive:
                if "settings" in archive and str(archive["settings"]) == settings:
                    return {key: archive[key] for key in archive.files if key != "settings"}
        self.say(f"{name}: computing")
        found = {key: np.asarray(value) for key, value in make(*arguments).items()}
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".part", delete=False) as part:
            np.savez(part, settings=np.array(settings), **found)  # pyright: ignore[reportArgumentType]
        os.replace(part.name, path)
        return found


def settings_of(function: Callable, arguments: tuple) -> dict[str, Any]:
    """What a measurement depends on, as far as numbers and words tell: sizes, ranks, grids (but not how many seeds)."""
    names = vars(sys.modules[function.__module__])
    constants = {name: value for name, value in names.items() if name.isupper() and name != "SEEDS" and _simple(value)}
    return json.loads(json.dumps({**constants, "arguments": [value for value in arguments if _simple(value)]}))


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
    path = results / f"{task}.json"
    _write(path, [{**line, "made_by": made_by} for line in rows])
    return path


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(temporary, path)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
