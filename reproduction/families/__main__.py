"""`make families`: train what is not trained yet, embed real data with every family, and compare.

Writes results/families.json (a row per network) and pictures of samples and spectra beside it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from rich.console import Console

import nfk
from nfk.sampling import Langevin
from nfk.tasks import probe
from reproduction import figures
from reproduction.families import FAMILIES, Family
from reproduction.families.trained import RUNS, ship, trained
from reproduction.results import write_json

SHARES, PROBED = (1, 10, 100), 64
OUTPUT = Path("results/families.json")


def explained(embedding: nfk.Embedding) -> dict[str, float]:
    share = np.cumsum(embedding.explained_variance_ratio)
    return {str(k): float(share[min(k, len(share)) - 1]) for k in SHARES}


def slug(family: Family) -> str:
    """The row's name as the beginning of a file name."""
    return "-".join(re.findall(r"\w+", f"{family.name} {family.network} {family.data}")).lower()


def examine(family: Family, network: Any, seed: int, pictures: Path, say: Any, rows: list[dict]) -> dict[str, Any]:
    """One row: the network's worth, the spectrum of its kernel, and linear probes of everything it is compared with.

    What needs no network (the pixels, their principal components) is not probed again if `rows` have it already.
    """
    train, test = family.splits()
    metric, value = family.metric(network, test)
    say(f"{family.label}: {metric} {value:.4g}")
    train, test = train.take(slice(family.rows)), test.take(slice(family.test_rows))
    X, X_test = family.examples(train), family.examples(test)
    features = {"activations": tuple(family.activations(network, part) for part in (X, X_test))}
    row = {
        "family": family.name, "network": family.network, "data": family.data, "parameters": 0, "seed": seed,
        "metric": metric, "value": value, "examples": len(train), "test_examples": len(test),
    }  # fmt: skip
    for name, current in (("nfk", network), ("untrained", family.build(seed + 1000))):
        model = family.model(current)
        row["parameters"] = model.layout.size
        started = time.perf_counter()
        embedding = nfk.fit(model, X, max(SHARES), key=seed)
        seconds = time.perf_counter() - started
        features[name] = embedding.training[:, :PROBED], embedding(X_test)[:, :PROBED]
        if name == "nfk":
            row |= {"explained_variance": explained(embedding), "seconds_fit": seconds, "passes": embedding.passes}
            row["worst_residual"] = float(embedding.residuals.max())
            if isinstance(model.sample, Langevin):
                row["chain_outside"] = model.sample.diagnose(key=seed).share_outside
            figures.spectrum(embedding, pictures / f"{slug(family)}-spectrum.png", f"{family.network}, {family.data}")
        else:
            row["explained_variance_untrained"] = explained(embedding)
    known = _known(row, rows)
    features |= {} if known else family.baselines(train, test, PROBED, seed)
    accuracies = {name: probe(a, train.labels, b, test.labels).accuracy for name, (a, b) in features.items()}
    row["probe"] = known | {name: accuracy.value for name, accuracy in accuracies.items()}
    samples = family.samples(network, jax.random.key(seed), 64)
    if samples is not None:
        figures.grid(samples, pictures / f"{slug(family)}-samples.png", f"samples: {family.network}, {family.data}")
    say(f"{family.label}: " + ", ".join(f"{name} {score:.3f}" for name, score in row["probe"].items()))
    return row


def _known(row: dict, rows: list[dict]) -> dict[str, float]:
    """The probes of a row over the same examples; those that need a network will be written over."""
    same = ("data", "examples", "test_examples", "seed")
    return next((dict(other["probe"]) for other in rows if all(other[name] == row[name] for name in same)), {})


def main(
    only: tuple[str, ...] = (),
    output: Path = OUTPUT,
    runs: Path = RUNS,
    seed: int = 0,
    download: bool = False,
    retrain: bool = False,
    train_only: bool = False,
    shipped: bool = False,
) -> None:
    """Train and compare every family of models.

    Args:
        only: labels of families (gan-mnist, ...); all when empty. Rows of the others are kept in the output.
        output: the results file.
        runs: where trainings keep their checkpoints, logs and weights.
        seed: of the networks, the trainings and the fits.
        download: fetch data sets that are not there, from their original sources.
        retrain: pass over the weights that come with the package; an unfinished run is resumed.
        train_only: stop after the training.
        shipped: copy the weights of the run into the package.
    """
    console = Console()
    labels = [family.label for family in FAMILIES]
    unknown = set(only) - set(labels)
    if unknown:
        raise SystemExit(f"--only {sorted(unknown)[0]}: no such family; choose from {', '.join(dict.fromkeys(labels))}")
    chosen = [family for family in FAMILIES if not only or family.label in only]
    pictures = output.with_suffix("")
    pictures.mkdir(parents=True, exist_ok=True)
    for family in chosen:
        network, facts = trained(family, seed, runs, download=download, retrain=retrain)
        if shipped:
            console.print(f"{family.label}: {ship(family, runs)}", highlight=False)
        if not train_only:
            row = examine(family, network, seed, pictures, console.print, _read(output))
            _write(output, row | {"seconds_training": facts["seconds_training"]})


def _read(output: Path) -> list[dict]:
    return json.loads(output.read_text())["rows"] if output.exists() else []


def _write(output: Path, row: dict) -> None:
    """Put the row in its place among those of the file."""
    rows = {(row["family"], row["network"], row["data"]): row for row in [*_read(output), row]}
    order = [(family.name, family.network, family.data) for family in FAMILIES]
    names = ("jax", "jaxlib", "flax", "optax", "flowjax", "blackjax", "numpy", "scikit-learn")
    content = {
        "command": "make families",
        "versions": {name: importlib.metadata.version(name) for name in names} | {"nfk": nfk.__version__},
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "rows": [rows[key] for key in order if key in rows],
    }
    write_json(output, content)


if __name__ == "__main__":
    tyro.cli(main, prog="python -m reproduction.families")
