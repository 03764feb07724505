"""What has been measured: single measurements as they come, so that an interrupted run goes on; rows at the end."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
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
    """Measurements of one task by name, each a dict of numbers, in RUNS/TASK/ledger.json."""

    def __init__(self, task: str, runs: Path = RUNS, say: Callable[[str], None] = print) -> None:
        self.folder, self.say = runs / task, say
        self.path = self.folder / "ledger.json"
        self.known: dict[str, dict] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def once(self, name: str, measure: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
        """What was measured under that name, or what `measure(*arguments)` measures now."""
        if name not in self.known:
            started = time.perf_counter()
            self.known[name] = {key: _plain(value) for key, value in measure(*arguments).items()}
            _write(self.path, self.known)
            shown = "  ".join(f"{key} {value:.4g}" for key, value in self.known[name].items() if _is_number(value))
            self.say(f"{name}: {shown}  [{time.perf_counter() - started:.0f} s]")
        return self.known[name]

    def arrays(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, np.ndarray]:
        """Arrays that several measurements share, made once and kept in a file beside the ledger."""
        path = self.folder / f"{name}.npz"
        if not path.exists():
            self.say(f"{name}: computing")
            found = make()
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".part", delete=False) as part:
                np.savez(part, **found)
            os.replace(part.name, path)
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)


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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))
