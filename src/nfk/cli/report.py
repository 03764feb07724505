"""`nfk report`: one page about one run or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from nfk.cli.options import Force, path_option
from nfk.cli.refusal import Refused, refuse_existing
from nfk.cli.saying import Saying, Spoken
from nfk.cli.words import option


def report(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, option("Folders that nfk fit wrote.", "RUN [RUN ...]")],
    /,
    output: Annotated[Path, path_option("The page to write.")] = Path("report.html"),
    force: Force = False,
    saying: Spoken = Saying(),  # noqa: B008
) -> int:
    """Write one HTML page about one run or several.

    It opens in any browser, also without a connection.

    Example: nfk report runs/digits --output digits.html
    """
    from nfk.report import write_report

    if not runs:
        raise Refused("name one run folder at least: nfk report RUN")
    refuse_existing(output, force)
    path = write_report(runs, output)
    saying.answer({"output": path}, f"{path}: open it in a browser")
    return 0
