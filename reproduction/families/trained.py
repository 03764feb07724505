"""A family's trained network: shipped with the package, found in the folder of runs, or trained now."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from pathlib import Path
from typing import Any

from reproduction import weights
from reproduction.families.family import Family

RUNS = Path("runs")
SHIPPED_BYTES = 2_000_000


def trained(
    family: Family, seed: int = 0, runs: Path = RUNS, *, download: bool = False, retrain: bool = False
) -> tuple[Any, dict[str, Any]]:
    """`(network, facts)`: its weights where there are any, else a training that can be interrupted and resumed.

    `retrain` passes over the weights that come with the package.
    """
    folder = runs / (family.label if seed == 0 else f"{family.label}-{seed}")
    path = folder / "weights.safetensors"
    shipped = weights.shipped(family.label) if seed == 0 and not retrain else None
    if shipped is not None or path.exists():
        return weights.load(shipped or path, family.build(seed))
    network = family.train(family.build(seed), family.splits(download)[0], seed, folder)
    facts = {
        "command": f"python -m reproduction.families --only {family.label} --retrain", "seed": seed,
        "seconds_training": _seconds(folder), "network": family.network, "data": family.data,
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "flax", "optax")},
    }  # fmt: skip
    weights.save(path, network, facts)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return network, facts


def ship(family: Family, runs: Path = RUNS) -> Path:
    """Copy the weights of a run into the package, if they are small enough to come with it."""
    path = runs / family.label / "weights.safetensors"
    size = path.stat().st_size
    if size > SHIPPED_BYTES:
        raise ValueError(f"{path} has {size:,} bytes, but weights that are shipped have at most {SHIPPED_BYTES:,}")
    target = weights.SHIPPED / f"{family.label}.safetensors"
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(path, target)
    return target


def _seconds(folder: Path) -> float:
    return json.loads((folder / "log.jsonl").read_text().splitlines()[-1])["seconds"]
