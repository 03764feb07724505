"""One task on real data: its measurements kept as they come, its rows in results/tasks/NAME.json, pictures beside."""

from __future__ import annotations

import importlib
from pathlib import Path

from rich.console import Console

from reproduction.tasks.ledger import RESULTS, RUNS, Ledger, write_rows


def run_task(name: str, results: Path = RESULTS, runs: Path = RUNS) -> Path:
    """The results file of the task. Single measurements are kept in `runs`: a second call goes on from them."""
    console = Console()
    pictures = results / name
    pictures.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(name, runs, lambda text: console.print(f"{name} | {text}", highlight=False))
    rows = importlib.import_module(f"reproduction.tasks.{name}").run(ledger, pictures)
    return write_rows(name, rows, results)
