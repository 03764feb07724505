"""A run again with its network: what the commands need that look at other examples than those of the fit."""

from __future__ import annotations

from dataclasses import replace

from nfk.cli.models import model_named
from nfk.cli.reading import Data, Reading, read
from nfk.cli.refusal import NoLabels, Refused
from nfk.cli.texts import tokenizer_folder
from nfk.embedding import Embedding, load
from nfk.runs import Run


def embedding_of(run: Run, model: str | None) -> Embedding:
    """The embedding of the run, with the network that it was fitted with."""
    return load(run.folder, model_named(_model_name(run, model)))


def data_like(run: Run, name: str, reading: Reading, model: str | None = None) -> Data:
    """Other data, read as those of the run were, but for what is said now."""
    before = Reading.from_dict(run.spec.options.get("reading", {}))
    # A file of labels, and a number of examples, belong to the data of the fit.
    kept = replace(before, limit=None, labels=None if before.labels and "." in before.labels else before.labels)
    named = model or run.spec.model
    said, tokenizer = replace(kept, **reading.to_dict()), tokenizer_folder(named) if named else None
    try:
        return read(name, said, tokenizer)
    except NoLabels:
        if reading.labels is not None:
            raise
        return read(name, replace(said, labels=None), tokenizer)  # new data need not have what the fit's had


def _model_name(run: Run, model: str | None) -> str:
    if model or run.spec.model:
        return model or run.spec.model
    raise Refused(f"{run.folder} does not say which network it was fitted with: name it with --model")
