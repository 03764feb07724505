"""What the commands print: a table for people, one JSON object for scripts."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from nfk.cli.words import option
from nfk.runs import Run


@dataclass(frozen=True)
class Saying:
    """What is printed."""

    as_json: Annotated[bool, option("Print one JSON object, for scripts.", name="json")] = False

    def answer(self, facts: Mapping[str, Any], shown: RenderableType) -> None:
        """The answer of a command on standard output; all else goes to standard error."""
        if self.as_json:
            print(json.dumps(facts, default=_plain))
        else:
            Console(soft_wrap=isinstance(shown, str)).print(shown, highlight=False, markup=False)


Spoken = Annotated[Saying, tyro.conf.arg(name="")]  # without a group of its own in the help


def table(*columns: str, right: Collection[str] = ()) -> Table:
    """A plain table; the columns named in `right` hold numbers."""
    made = Table(box=None, pad_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left")
    return made


def without_empty(made: Table) -> Table:
    """The table without columns that hold nothing."""
    made.columns = [column for column in made.columns if any(str(cell) for cell in column.cells)]
    return made


def titled(title: str, body: Table) -> Group:
    """A table under a line of its own, which may be wider than it."""
    return Group(Text(title, style="bold"), body)


def pairs(rows: Mapping[str, str]) -> Table:
    """Names and values side by side."""
    made = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows.items():
        made.add_row(name, Text(value))
    return made


def warn(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(f"warning: {text}", style="yellow", highlight=False, markup=False)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def percent(share: float | np.floating) -> str:
    return f"{100 * float(share):.1f} %"


def described(run: Run, row: int) -> tuple[Text, ...]:
    """An example of a run in a table: its place, its label, the beginning of its text."""
    label = "" if run.labels is None else str(run.labels[row])
    said = run.examples[row][:60] if isinstance(run.examples, list) else ""
    return Text(str(row)), Text(label), Text(said)


def doubling(rank: int) -> list[int]:
    """1, 2, 4, ... and the rank itself."""
    return sorted({2**power for power in range(int(np.log2(rank)) + 1)} | {rank})
