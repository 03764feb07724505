"""`make tasks`: every task on real data. Writes results/tasks/NAME.json (a list of rows) and pictures beside them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from nfk.lab.tasks.ledger import RESULTS, RUNS, Ledger, write_rows

TASKS = ("probe", "few_labels", "distillation", "inversion", "spectrum", "ridge", "outliers", "neighbours")


def main(
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = (), results: Path = RESULTS, runs: Path = RUNS
) -> None:
    """Run the tasks, or some of them.

    Args:
        names: of tasks; all when empty.
        results: where the results files and pictures go.
        runs: where single measurements are kept as they come; a second call goes on from them.
    """
    console = Console()
    unknown = set(names) - set(TASKS)
    if unknown:
        raise SystemExit(f"{sorted(unknown)[0]}: no such task; choose from {', '.join(TASKS)}")
    for name in names or TASKS:
        pictures = results / name
        pictures.mkdir(parents=True, exist_ok=True)
        say = lambda text, name=name: console.print(f"{name} | {text}", highlight=False)  # noqa: E731
        rows = importlib.import_module(f"nfk.lab.tasks.{name}").run(Ledger(name, runs, say), pictures)
        console.print(f"{name}: {write_rows(name, rows, results)}", highlight=False)


if __name__ == "__main__":
    tyro.cli(main, prog="python -m nfk.lab.tasks")
