"""`nfk embed`: embeddings as files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from nfk.cli import writing
from nfk.cli.opening import data_like, embedding_of
from nfk.cli.options import Force, Memory, RunFolder, RunModel, path_option
from nfk.cli.reading import Reading
from nfk.cli.refusal import refuse_existing
from nfk.cli.saying import Saying, Spoken
from nfk.cli.words import option
from nfk.runs import read_run


def embed(
    run: RunFolder,
    data: Annotated[
        str | None,
        tyro.conf.Positional,
        option("New data, read as those of the fit were; those of the fit by default.", "[DATA]"),
    ] = None,
    /,
    *,
    output: Annotated[Path, path_option(f"{writing.KINDS[0].upper()}{writing.KINDS[1:]}.")],
    model: RunModel = None,
    memory: Memory = None,
    force: Force = False,
    reading: Reading = Reading(),  # noqa: B008
    saying: Spoken = Saying(),  # noqa: B008
) -> int:
    """Write the embedding to a file, of new data too.

    Example: nfk embed runs/digits digits-test --output digits-test.parquet
    """
    writing.check(output)
    refuse_existing(output, force)
    fitted = read_run(run)
    if data is None:
        rows, labels, shown = fitted.features, fitted.labels, fitted.examples
    else:
        found = data_like(fitted, data, reading, model)
        rows = embedding_of(fitted, model)(found.examples, memory=memory)
        rows, labels, shown = fitted.as_features(rows), found.labels, found.shown
    texts = shown if isinstance(shown, list) else None
    writing.write(output, rows, labels, texts)
    facts = {"output": output, "examples": len(rows), "numbers": rows.shape[1]}
    saying.answer(facts, f"{output}: {len(rows):,} examples, {rows.shape[1]} numbers each")
    return 0
