"""`python -m reproduction NAME [--preset smoke|cpu|paper]`: the experiments, by name; without a name, their list."""

from __future__ import annotations

import sys
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from reproduction.experiments import ALIASES, EXPERIMENTS, Preset, chosen
from reproduction.refusal import Refused


def main(
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = (), /, preset: Preset = "cpu", plan: bool = False
) -> int:
    """Run experiments; each writes its numbers and pictures below results/, and goes on where it was interrupted.

    Args:
        names: of experiments; "tasks" or "all" for several; none for a list of them.
        preset: "smoke" (a minute), "cpu" (two cores, up to hours) or "paper" (the paper's size).
        plan: construct and plan every fit at that size, run it on a few images, and stop.
    """
    try:
        _run(chosen(names, preset, plan), preset, plan)
    except (Refused, FileNotFoundError) as refused:  # also of data and weights, which say what to do
        print(refused, file=sys.stderr)
        return 2
    return 0


def _run(meant: list[str], preset: Preset, plan: bool) -> None:
    console = Console()
    if not meant:
        console.print(_list())
    for name in meant if plan else ():
        EXPERIMENTS[name].rehearse(preset, console.print)
    for name in meant if not plan else ():
        console.print(f"{name}: {EXPERIMENTS[name].start(preset)}", highlight=False)


def _list() -> Table:
    table = Table("experiment", "shows", "presets", box=None)
    for name, experiment in EXPERIMENTS.items():
        table.add_row(name, experiment.shows, ", ".join(experiment.presets))
    for name, several in ALIASES.items():
        table.add_row(name, f"{len(several)} of them, one after the other", "")
    return table


if __name__ == "__main__":
    sys.exit(tyro.cli(main, prog="python -m reproduction"))
