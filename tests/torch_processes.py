"""What each of several processes of torch.distributed does in tests: torch_processes.py TASK FOLDER RANK SIZE."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest import mock

import lives
import numpy as np
import torch
import torch.distributed as dist
from test_torch import PAIRS, three

import nfk
import nfk.torch
from nfk.torch.processes import TorchProcesses

WAYS = {
    "parameters' side": {"side": "parameters"}, "recomputed": {"keep": False}, "examples' side": {"side": "examples"},
    "products": {"engine": "products"}, "power": {"method": "power", "tol": 1e-2}, "gram": {"method": "gram"},
    "tiles": {"method": "gram", "keep": False}, "exact": {"method": "exact"},
    "exact products": {"method": "exact", "engine": "products"},
}  # fmt: skip
CASES = [
    *(("gan", way) for way in WAYS), ("classifier", "recomputed"), ("vae", "products"), ("network", "examples' side"),
    ("network", "gram"), ("network", "tiles"), ("network", "exact"),
]  # fmt: skip


class Counted:
    """Examples that remember which of them were read."""

    def __init__(self, data: np.ndarray) -> None:
        self.data, self.read = data, np.zeros(len(data), bool)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, rows: slice) -> np.ndarray:
        self.read[rows] = True
        return self.data[rows]


def told(work) -> np.ndarray:
    try:
        work()
    except Exception as error:
        return np.array(f"{type(error).__name__}: {error}")
    return np.array("nothing")


def results(folder: Path, rank: int) -> dict[str, np.ndarray]:
    found = {}
    for name, way in CASES:
        model, _, data = PAIRS[name](group=dist.group.WORLD)
        data = data[:23]  # which cannot be shared out evenly
        with mock.patch("nfk.planning.listing.TILE_SHARE", 0):  # an example at a time: one process has one more
            embedding = nfk.fit(model, data, 4, **{"tol": 1e-3, **WAYS[way]})
        found |= {f"{name}, {way}": embedding.eigenvalues, f"{name}, {way}, rows": embedding(data)}
    counted = Counted(data)
    embedding = nfk.fit(model, counted, 4, tol=1e-3)
    found["read"] = counted.read
    found["gram"], found["total"] = embedding.gram(data), embedding.decompose(data).total
    found["fisher"] = nfk.dataset_vector(model, data).values
    embedding.save(folder / "saved")
    return found | mistakes(model, data, folder, rank)


def root(module, x):
    return torch.sqrt((module(x) ** 2).sum() * (x[0] < 100))


def mistakes(model: nfk.Model, data: np.ndarray, folder: Path, rank: int) -> dict[str, np.ndarray]:
    steep, bad = nfk.torch.density(three, root, group=dist.group.WORLD), data.copy()
    bad[20, 0] = 1000  # an example of the last process, whose gradient is not finite
    return {
        "error, gradient": told(lambda: nfk.fit(steep, bad, 3)),
        "error, length": told(lambda: nfk.fit(model, data[: 23 - rank], 3)),
        "error, rank": told(lambda: nfk.fit(model, data, 3 + rank)),
        "error, tiles": told(lambda: nfk.fit(steep, bad, 3, method="gram", keep=False)),
        "error, few": told(lambda: nfk.fit(model, data[:2], 1)),
    }


def checkpoints(folder: Path, rank: int) -> None:
    """Fits that die and go on, in all ways; what was found goes into `checkpoints-RANK.json`."""
    model, _, data = PAIRS["network"](group=dist.group.WORLD)
    fit = lambda **more: nfk.fit(model, data[:23], 3, **{"tol": 1e-3, **more})  # noqa: E731
    found = lives.all_of_it(fit, folder, TorchProcesses.of(dist.group.WORLD), list(lives.WAYS))
    kept = lambda **more: fit(**lives.WAYS["kept"], **more)  # noqa: E731
    found["disks"] = lives.outlived(kept, folder / f"disk of {rank}", TorchProcesses.of(dist.group.WORLD))
    (folder / f"checkpoints-{rank}.json").write_text(json.dumps(found))


def main(task: str, folder: str, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    if task == "checkpoints":
        checkpoints(Path(folder), rank)
    elif task == "long":
        model, _, data = PAIRS["network"](group=dist.group.WORLD)
        lives.long(model, data[:23], Path(folder), TorchProcesses.of(dist.group.WORLD))
    else:
        np.savez(Path(folder) / f"{rank}.npz", **results(Path(folder), rank))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
