"""`nfk spectrum`: how many components matter, how exact they are, and where they live."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from rich.console import Group
from rich.text import Text

from nfk.cli.options import Force, RunFolder, path_option
from nfk.cli.refusal import needs, refuse_existing
from nfk.cli.saying import Saying, Spoken, doubling, percent, table, titled
from nfk.runs import Run, read_run
from nfk.tasks import spectrum as spectrum_of


def spectrum(
    run: RunFolder,
    /,
    figure: Annotated[Path | None, path_option("Draw it, too, as a PNG file.")] = None,
    force: Force = False,
    saying: Spoken = Saying(),  # noqa: B008
) -> int:
    """Show how many components matter, and in which layers.

    Example: nfk spectrum runs/digits --figure spectrum.png
    """
    fitted = read_run(run)
    if figure is not None:
        refuse_existing(figure, force)
        _draw(fitted, figure)
    known = spectrum_of(fitted.eigenvalues, fitted.trace, len(fitted.left))
    facts = {
        "run": run, "trace": fitted.trace, "eigenvalues": fitted.eigenvalues, "residuals": fitted.residuals,
        "explained_variance": known.cumulative, "effective_rank": vars(known.effective_rank),
        "layer_shares": fitted.layer_shares,
    }  # fmt: skip
    saying.answer(facts, _table(fitted, known.cumulative))
    return 0


def _table(run: Run, cumulative: np.ndarray) -> Group:
    numbers = ("component", "eigenvalue", "share", "all so far", "error below")
    shown = table(*numbers, "most of it in", right=numbers)
    for k in doubling(run.rank):
        place = k - 1
        layer = max(run.layer_shares, key=lambda name: run.layer_shares[name][place])
        shown.add_row(
            str(k), f"{run.eigenvalues[place]:.4g}", percent(run.explained_variance_ratio[place]),
            percent(cumulative[place]), f"{run.residuals[place]:.1e}",
            Text(f"{layer} ({percent(run.layer_shares[layer][place])})"),
        )  # fmt: skip
    return titled(f"{run.count:,} examples, {run.parameters:,} parameters, {run.rank} components", shown)


def _draw(run: Run, path: Path) -> None:
    try:
        from nfk.demo import figures
    except ImportError as error:
        raise needs("matplotlib", "--figure") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    figures.spectrum(run, path, run.name)
