"""`nfk probe`: how much a linear classifier reads out of the embedding."""

from __future__ import annotations

import numpy as np
from rich.console import Group

from nfk.cli.opening import data_like, embedding_of
from nfk.cli.options import OtherData, RunFolder, RunModel, Seed
from nfk.cli.reading import Reading
from nfk.cli.refusal import Refused
from nfk.cli.saying import Saying, Spoken, doubling, percent, table, titled
from nfk.runs import Run, read_run
from nfk.tasks import Probe, probe_by_rank
from nfk.tasks.probing import held_out_rows

Sets = tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]  # features and labels, to train and to test


def probe(
    run: RunFolder,
    /,
    test: OtherData = None,
    model: RunModel = None,
    key: Seed = 0,
    reading: Reading = Reading(),  # noqa: B008
    saying: Spoken = Saying(),  # noqa: B008
) -> int:
    """Test how well a linear classifier reads the labels.

    It is tested on examples that it has not seen. Without --test, a fifth of the examples of the run is held out; the
    components have seen them, but not their labels.

    Example: nfk probe runs/digits --test digits-test
    """
    fitted = read_run(run)
    if fitted.labels is None:
        raise Refused(f"{run} has no labels: fit again with --labels, or with data that have them")
    sets = _held_out(fitted.features, fitted.labels, key) if test is None else _tested(fitted, test, model, reading)
    widths = [fitted.outputs * k for k in doubling(fitted.rank)]
    found = probe_by_rank(*sets, widths, seed=key)
    by_rank = {width // fitted.outputs: one for width, one in found.items()}
    facts = {"run": run, "tested": len(sets[3]), "accuracy": {str(k): _facts(one) for k, one in by_rank.items()}}
    saying.answer(facts, _table(by_rank, len(sets[3]), "held out" if test is None else test))
    return 0


def _held_out(features: np.ndarray, labels: np.ndarray, seed: int) -> Sets:
    kept, held = held_out_rows(labels, 0.2, seed)
    return features[kept], labels[kept], features[held], labels[held]


def _tested(run: Run, test: str, model: str | None, reading: Reading) -> Sets:
    data = data_like(run, test, reading, model)
    if data.labels is None:
        raise Refused(f"{test} has no labels to compare with: name them with --labels")
    rows = embedding_of(run, model)(data.examples)
    return run.features, run.labels, run.as_features(rows), data.labels


def _facts(found: Probe) -> dict[str, float]:
    accuracy = found.accuracy
    return {"value": accuracy.value, "low": accuracy.low, "high": accuracy.high}


def _table(found: dict[int, Probe], tested: int, where: str) -> Group:
    columns = ("components", "right", "95 % interval")
    shown = table(*columns, right=columns)
    for k, one in found.items():
        accuracy = one.accuracy
        shown.add_row(str(k), percent(accuracy.value), f"{percent(accuracy.low)} to {percent(accuracy.high)}")
    return titled(f"linear probe, {tested:,} examples ({where})", shown)
