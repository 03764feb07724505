"""What the commands print: a table for people, one JSON object for scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console, RenderableType
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


def pairs(rows: Mapping[str, str], title: str = "") -> Table:
    """Names and values side by side."""
    table = Table(show_header=False, box=None, title=title or None, title_justify="left", pad_edge=False)
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


def warn(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(f"warning: {text}", style="yellow", highlight=False, markup=False)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def percent(share: float | np.floating) -> str:
    return f"{100 * float(share):.1f} %"


def described(run: Run, row: int) -> Text:
    """An example of a run in a table: its place, its label and, where it is one, the beginning of its text."""
    label = "" if run.labels is None else f"  {run.labels[row]}"
    said = f"  {run.examples[row][:60]}" if isinstance(run.examples, list) else ""
    return Text(f"{row}{label}{said}")


def doubling(rank: int) -> list[int]:
    """1, 2, 4, ... and the rank itself."""
    return sorted({2**power for power in range(int(np.log2(rank)) + 1)} | {rank})
