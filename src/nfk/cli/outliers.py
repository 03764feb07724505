"""`nfk outliers`: the examples that the components explain least."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from rich.console import Group
from rich.text import Text

from nfk.cli.opening import data_like, embedding_of
from nfk.cli.options import Count, Memory, OtherData, RunFolder, RunModel
from nfk.cli.reading import Reading
from nfk.cli.refusal import Refused
from nfk.cli.saying import Saying, Spoken, described, percent, table, titled, without_empty
from nfk.cli.words import option
from nfk.runs import Run, read_run


def outliers(
    run: RunFolder,
    /,
    data: OtherData = None,
    count: Count = 10,
    above: Annotated[
        float | None, option("List all above this share (0.9, say); the exit code is 1 if there are any.", "SHARE")
    ] = None,
    model: RunModel = None,
    memory: Memory = None,
    reading: Reading = Reading(),  # noqa: B008
    saying: Spoken = Saying(),  # noqa: B008
) -> int:
    """List the most unusual examples.

    Of these, the components leave out the largest share.

    Example: nfk outliers runs/digits --count 20
    """
    fitted = read_run(run)
    if data is None:
        if fitted.outside_share is None:
            raise Refused(f"{run} was fitted without the pass that tells unusual examples: name data with --data")
        shares = fitted.outside_share
    else:
        found = data_like(fitted, data, reading, model)
        shares = embedding_of(fitted, model).decompose(found.examples, memory=memory).outside_share
    shares = shares.reshape(-1, fitted.outputs).max(axis=1)
    order = np.argsort(-shares, kind="stable")
    listed = order[:count] if above is None else order[shares[order] > above]
    facts = {
        "run": run, "examples": len(shares), "median_share": float(np.median(shares)),
        "outliers": [{"row": row, "outside_share": shares[row]} for row in listed],
    }  # fmt: skip
    saying.answer(facts, _table(fitted, shares, listed, data))
    return int(above is not None and len(listed) > 0)


def _table(run: Run, shares: np.ndarray, listed: np.ndarray, data: str | None) -> Group:
    shown = table("example", "label", "text", "outside", right=("example", "outside"))
    for row in listed.tolist():
        known = described(run, row) if data is None else (Text(f"{data}[{row}]"), Text(""), Text(""))
        shown.add_row(*known, percent(float(shares[row])))
    half = percent(float(np.median(shares)))
    return titled(f"outside: the share that {run.rank} components leave out (median {half})", without_empty(shown))
