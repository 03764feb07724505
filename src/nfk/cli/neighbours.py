"""`nfk neighbours`: the nearest examples in the embedding."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import tyro
from rich.table import Table
from rich.text import Text

from nfk.cli.opening import data_like, embedding_of
from nfk.cli.options import Count, OtherData, RunFolder, RunModel
from nfk.cli.reading import Reading
from nfk.cli.refusal import Refused
from nfk.cli.saying import Saying, Spoken, described, table, without_empty
from nfk.cli.words import option
from nfk.runs import Run, read_run
from nfk.tasks import nearest
from nfk.tasks.neighbours import Metric


def neighbours(
    run: RunFolder,
    rows: Annotated[
        tuple[int, ...],
        tyro.conf.Positional,
        option("Examples by their place in the data, from 0; the first by default.", "[ROW ...]"),
    ] = (),
    /,
    query: OtherData = None,
    count: Count = 5,
    metric: Annotated[Metric, option("What near means.")] = "cosine",
    model: RunModel = None,
    reading: Reading = Reading(),  # noqa: B008
    saying: Spoken = Saying(),  # noqa: B008
) -> int:
    """Find the nearest examples.

    Of some examples of the run, or of others (--query).

    Example: nfk neighbours runs/digits 0 17 --count 5
    """
    fitted = read_run(run)
    asked = _rows(rows or (0,), fitted.count if query is None else None)
    if query is None:
        features, names, extra = fitted.features[asked], [_named(fitted, row) for row in asked], 1
    else:
        data = data_like(fitted, query, reading, model)
        asked = _rows(rows or tuple(range(len(data))), len(data))
        features = fitted.as_features(embedding_of(fitted, model)(data.examples))[asked]
        names, extra = [Text(f"{query}[{row}]") for row in asked], 0
    found = nearest(fitted.features, features, min(count + extra, fitted.count), metric)
    lists = [
        _others(near, far, asked[place] if extra else None, count)
        for place, (near, far) in enumerate(zip(found.rows, found.distances, strict=True))
    ]
    facts = [
        {"row": row, "neighbours": [{"row": near, "distance": far, **_label(fitted, near)} for near, far in listed]}
        for row, listed in zip(asked, lists, strict=True)
    ]
    saying.answer({"run": run, "queries": facts}, _table(fitted, names, lists))
    return 0


def _rows(rows: tuple[int, ...], count: int | None) -> list[int]:
    for row in rows:
        if count is not None and not 0 <= row < count:
            raise Refused(f"there is no example {row}: they are counted from 0 to {count - 1}")
    return list(rows)


def _others(rows: np.ndarray, distances: np.ndarray, itself: int | None, count: int) -> list[tuple[int, float]]:
    """Without the example itself, which is its own nearest."""
    pairs = zip(rows.tolist(), distances.tolist(), strict=True)
    return [(row, float(distance)) for row, distance in pairs if row != itself][:count]


def _label(run: Run, row: int) -> dict[str, Any]:
    return {} if run.labels is None else {"label": run.labels[row]}


def _named(run: Run, row: int) -> Text:
    place, label, said = described(run, row)
    return Text("  ").join([part for part in (place, label, said) if part])


def _table(run: Run, names: list[Text], lists: list[list[tuple[int, float]]]) -> Table:
    shown = table("example", "nearest", "label", "text", "distance", right=("nearest", "distance"))
    for name, listed in zip(names, lists, strict=True):
        for place, (row, distance) in enumerate(listed):
            shown.add_row(Text("") if place else name, *described(run, row), f"{distance:.3f}")
    return without_empty(shown)
