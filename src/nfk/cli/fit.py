"""`nfk fit`: an embedding of a data set by a trained network, in a run folder."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console

from nfk.cli.models import model_named
from nfk.cli.options import DataName, Force, Memory, Method, ModelName, Scratch, Seed, command_line, path_option
from nfk.cli.plan import show_plan
from nfk.cli.ranks import Rank, rank_for
from nfk.cli.reading import Data, Reading, read
from nfk.cli.refusal import place_for, refuse_existing
from nfk.cli.saying import Saying, Spoken, pairs, percent
from nfk.cli.texts import tokenizer_folder
from nfk.cli.words import option
from nfk.embedding import Embedding
from nfk.fitting import fit as fit_embedding
from nfk.fitting import plan
from nfk.runs import Spec, write_run
from nfk.solve import Interrupted


def fit(
    model: ModelName,
    data: DataName,
    /,
    output: Annotated[Path, path_option("The run folder to write.")] = Path("run"),
    rank: Rank = None,
    key: Seed = 0,
    memory: Memory = None,
    scratch: Scratch = None,
    method: Method = "auto",
    tol: Annotated[float, option("A bound on the relative residual of every component.", "NUMBER")] = 1e-2,
    outside: Annotated[bool, option("Leave out the pass that tells unusual examples.")] = True,
    checkpoint: Annotated[
        Path | None,
        option("Keep every finished pass in this folder; killed or interrupted, the same command goes on.", "FOLDER"),
    ] = None,
    dry_run: Annotated[bool, option("Print the plan, its time and its memory, and stop.")] = False,
    force: Force = False,
    reading: Reading = Reading(),  # noqa: B008
    saying: Spoken = Saying(),  # noqa: B008
) -> int:
    """Embed your data with a trained network, into a run folder.

    Example: nfk fit digits-lenet digits --rank 64 --output runs/digits
    """
    options = {
        "rank": rank, "key": key, "memory": memory, "scratch": scratch, "method": method, "tol": tol,
        "checkpoint": checkpoint,
    }  # fmt: skip
    command = command_line(
        "fit", model, data, output=output, no_outside=not outside, **_said(options), **reading.to_dict()
    )
    if not dry_run:
        refuse_existing(output, force)
    network = model_named(model)
    reading = reading.suited_to(network)
    found = read(data, reading, tokenizer_folder(model))
    options["rank"] = rank = rank_for(rank, network, found.examples)
    if dry_run:
        return show_plan(
            plan(network, found.examples, rank, method=method, memory=memory, scratch=scratch, tol=tol), saying
        )
    spec = Spec(model, data, rank, key, command=command, options={"reading": reading.to_dict()})
    work = _Work(output, found, spec, saying)
    started = time.perf_counter()
    with place_for(output):
        try:
            embedding = fit_embedding(network, found.examples, **_asked(options))
        except Interrupted as stop:
            return work.interrupted(stop.result, command)
        squares = _squares(embedding, found) if outside else None
        return work.finished(embedding, squares, time.perf_counter() - started)


def _asked(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _said(options: dict[str, Any]) -> dict[str, Any]:
    """Those that differ from the defaults."""
    standard = {"key": 0, "method": "auto", "tol": 1e-2}
    return {name: value for name, value in options.items() if value != standard.get(name)}


def _squares(embedding: Embedding, data: Data) -> np.ndarray | None:
    """|V_x|^2 of the examples; None where there is no memory for single gradients, or Ctrl-C came first."""
    try:
        return embedding.decompose(data.examples).total
    except (MemoryError, KeyboardInterrupt):
        return None


@dataclass(frozen=True)
class _Work:
    """What becomes of a fit, whole or interrupted."""

    folder: Path
    data: Data
    spec: Spec
    saying: Saying

    def _write(self, embedding: Embedding, squares: np.ndarray | None, **told: Any) -> None:
        spec = Spec(**{**vars(self.spec), **told})
        write_run(self.folder, embedding, spec=spec, labels=self.data.labels, examples=self.data.shown, squares=squares)

    def finished(self, embedding: Embedding, squares: np.ndarray | None, seconds: float) -> int:
        self._write(embedding, squares, seconds=seconds)
        share, worst = float(embedding.explained_variance_ratio.sum()), float(embedding.residuals.max(initial=0))
        facts = {
            "run": self.folder, "rank": embedding.rank, "examples": len(self.data), "explained_variance": share,
            "largest_residual": worst, "passes": embedding.passes, "seconds": seconds,
            "parameters": embedding.model.layout.size,
        }  # fmt: skip
        rows = {
            "examples": f"{len(self.data):,}",
            "components": f"{embedding.rank}, from {embedding.model.layout.size:,} parameters",
            "explained variance": percent(share),
            "certificate": f"every eigenvalue within {100 * worst:.2g} % of a true one",
            "time": f"{seconds:.1f} s, {embedding.passes} passes over the data",
            "run": f"{self.folder}   (next: nfk report {self.folder})",
        }
        self.saying.answer(facts, pairs(rows))
        return 0

    def interrupted(self, embedding: Any, command: str) -> int:
        say = Console(stderr=True, soft_wrap=True).print
        if embedding is None:
            say(f"interrupted before the first step was complete; to go on: {command} --force", highlight=False)
        else:
            self._write(embedding, None, interrupted=True)
            say(
                f"interrupted: {embedding.rank} components are in {self.folder}, with residuals up to "
                f"{embedding.residuals.max():.1e}; use them as they are, or find all of them: {command} --force",
                highlight=False,
            )
        return 130
