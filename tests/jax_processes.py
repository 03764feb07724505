"""What every process does in `tests/test_distributed.py`: `jax_processes.py TASK FOLDER`, in one, two or four."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import lives
import numpy as np

import nfk
from nfk.distributed import JAX, Own, own_rows
from nfk.spaces import Mesh
from nfk.spaces.mesh.mesh import Sums
from nfk.spaces.mesh.sharding import SUMS

N = 23  # divisible by nothing


class Watched:
    """Examples that note which of them were read."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.read = array, set()

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: slice) -> np.ndarray:
        self.read |= set(range(*rows.indices(len(self.array))))
        return self.array[rows]


def model(seed: int = 0, **options) -> nfk.Model:
    rng = np.random.default_rng(seed)
    params = {name: rng.standard_normal(shape).astype("float32") for name, shape in (("w", (5, 4)), ("v", (4, 3)))}
    return nfk.classifier(lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], params, **options)


def examples(count: int = N) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, 5)).astype("float32")


def whole(folder: Path) -> None:
    """Moments, fits on both sides, a call, files: what process 0 saw goes into `results-PROCESSES.json`."""
    X, watched = examples(), Watched(examples())
    found = nfk.fit(model(), watched, 3, method="krylov", side="parameters", save=folder / f"run-{jax.process_count()}")
    own = own_rows(N)
    assert watched.read <= set(range(own.start, own.stop)) | {0, N - 1}, watched.read
    other = nfk.fit(model(), Own(X[own], N), 3, method="krylov", side="examples", keep=False)
    results = {
        "values": found.singular_values.tolist(), "training": found.training.tolist(),
        "embedded": found(X[:7]).tolist(), "mean": found.moments.mean.tolist(), "scale": found.moments.scale.tolist(),
        "other": other.training.tolist(),
        "gram": found.gram(X[:4], X).tolist(), "products": nfk.fit(model(), X, 3, engine="products").training.tolist(),
        "loaded": [nfk.load(run, model())(X).tolist() for run in sorted(folder.glob("run-*"))],
        "devices": found.plan.way.options.space.devices, "own": [own.start, own.stop],
    }  # fmt: skip
    (folder / f"results-{jax.process_count()}-{jax.process_index()}.json").write_text(json.dumps(results))


ROWS, COLUMNS, TIMES = 1_000_001, 24, 12  # about 50 MB for each of two: many times what a socket takes at once


def sums(folder: Path) -> None:
    """The one reduction of a pass, with small whole numbers in large blocks: how often it was wrong."""
    space = Mesh.of(jax.devices())
    row = np.arange(space.length(ROWS), dtype=np.float32)[:, None] % 1021 + np.arange(COLUMNS, dtype=np.float32)
    place = jax.sharding.NamedSharding(space.grid.mesh, SUMS)
    each, wrong = len(row) // jax.process_count(), 0
    own = row[jax.process_index() * each :][:each]
    for turn in range(TIMES):
        part = (row + turn + jax.process_index())[None]
        total = jax.make_array_from_callback((jax.process_count(), *row.shape), place, lambda _, part=part: part)
        found = space.summed(Sums(total, (ROWS, COLUMNS))).array.addressable_data(0)
        wrong += not np.array_equal(
            np.asarray(found), jax.process_count() * (own + turn) + sum(range(jax.process_count()))
        )
    (folder / f"sums-{jax.process_count()}-{jax.process_index()}.json").write_text(json.dumps(wrong))


def errors(folder: Path) -> None:
    """Every sentence that a disagreement is told in, one after another: an error in all leaves all able to go on."""
    last = jax.process_index() == jax.process_count() - 1
    told = []
    for attempt in (
        lambda: nfk.fit(model(), examples(N - last), 3),
        lambda: nfk.fit(model(int(last)), examples(), 3),
        lambda: nfk.fit(model(damping=0.1 if last else 1e-3), examples(), 3),
        lambda: nfk.fit(model(), examples(), 3 + last),
        lambda: nfk.fit(model(), np.where(last & (np.arange(N) == N - 1)[:, None], np.nan, examples()), 3),
        lambda: nfk.fit(model(), examples(), 3, mesh=1),
        lambda: Own(examples()[:3], N),
        lambda: nfk.fit(model(), examples(), 3, checkpoint=folder / "of one" if last else None),
        lambda: nfk.fit(model(), examples(), 3, save=None if last else folder / "of the other"),
        lambda: nfk.fit(model(), examples(), 3, mesh=(1, 2) if last else (2, 1)),
    ):
        try:
            attempt()
            told.append("")
        except (ValueError, RuntimeError) as error:
            told.append(str(error))
    (folder / f"errors-{jax.process_index()}.json").write_text(json.dumps(told))


def killed(folder: Path) -> None:
    """The last process is killed in the middle of a fit."""

    class Deadly(Watched):
        def __getitem__(self, rows: slice) -> np.ndarray:
            if jax.process_index() == jax.process_count() - 1 and len(self.read) > 3:
                (folder / "killed").write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(rows)

    nfk.fit(model(), Deadly(examples()), 3, keep=False)


def cut(folder: Path) -> None:
    """In the middle of a fit the last process says so, and waits to be cut off."""
    nfk.distributed.initialize()

    class Waiting(Watched):
        def __getitem__(self, rows: slice) -> np.ndarray:
            if jax.process_index() == jax.process_count() - 1 and len(self.read) > 3:
                (folder / "begun").touch()
                time.sleep(120)
            return super().__getitem__(rows)

    nfk.fit(model(), Waiting(examples()), 3, keep=False)


def checkpoints(folder: Path) -> None:
    """Fits that die and go on, in all ways; what was found goes into `checkpoints-PROCESS.json`."""
    tried = model()
    fit = lambda **more: nfk.fit(tried, examples(), 3, **{"tol": 1e-3, **more})  # noqa: E731
    found = lives.all_of_it(fit, folder, JAX, ("kept", "tiles"))
    columns = lambda **more: fit(**lives.WAYS["kept"], mesh=(1, 2), **more)  # noqa: E731
    found["columns"] = lives.outlived(columns, folder / "columns", JAX)
    found["arrangement"] = [lives.told(lambda: columns(checkpoint=folder / "of several"))]
    (folder / f"checkpoints-{jax.process_index()}.json").write_text(json.dumps(found))


def long(folder: Path) -> None:
    lives.long(model(), examples(), folder, JAX)


def started() -> None:
    """A fit in processes that another program has started: whoever it is, its variables say who takes part."""
    nfk.distributed.initialize()
    found, own = nfk.fit(model(), examples(), 3, method="krylov"), own_rows(N)
    print(json.dumps({"eigenvalues": found.eigenvalues.tolist(), "own": [own.start, own.stop]}))


def started_and_killed(folder: Path) -> None:
    started()
    killed(folder)


TASKS = {
    "whole": whole, "sums": sums, "errors": errors, "killed": killed, "cut": cut, "checkpoints": checkpoints,
    "long": long, "started-and-killed": started_and_killed,
}  # fmt: skip

if __name__ == "__main__":
    started() if sys.argv[1] == "started" else TASKS[sys.argv[1]](Path(sys.argv[2]))
