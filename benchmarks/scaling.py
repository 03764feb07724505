"""One point of the scaling curve, in its own process: seconds and peak memory of a streamed fit over N examples.

python -m benchmarks.scaling N RANK
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

import nfk
from benchmarks.critics import dcgan, dcgan_params
from reproduction import data
from reproduction.memory import Peak

STEPS = 4  # the same number of passes for every N


def images(count: int) -> np.ndarray:
    """MNIST padded to 32 x 32; repeated digits where NFK_DATA does not have it."""
    digits = data.mnist("train").images if data.data_folder() is not None else data.digits()[0].images
    return np.pad(np.resize(digits, (count, 28, 28, 1)), ((0, 0), (2, 2), (2, 2), (0, 0)))


def main(count: int, rank: int) -> None:
    X = images(count)
    model = nfk.gan(dcgan, dcgan_params(), expectation="data")
    options = dict(side="parameters", keep=False, tol=1e-12, max_steps=STEPS, memory="2GB", key=0)
    with Peak() as peak:
        fitted = nfk.fit(model, X, rank, **options)
    seconds = []
    for _ in range(1 if count > 4096 else 3):
        started = time.perf_counter()
        nfk.fit(model, X, rank, **options)
        seconds.append(time.perf_counter() - started)
    # A block of images per step, and at the end one in float32 and two in float64 while they are rotated.
    rows_by_columns = (STEPS + 1 + 2 * 2) * count * fitted.plan.width * 4
    print(
        json.dumps({
            "examples": count,
            "seconds": float(np.median(seconds)),
            "passes": fitted.passes,
            "peak_bytes": peak.grown,
            "rows_by_columns_bytes": rows_by_columns,
            "peak_bytes_beyond_rows": peak.grown - rows_by_columns,
            "planned_bytes": fitted.plan.peak_bytes,
        })
    )  # fmt: skip


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore", nfk.ConvergenceWarning)  # the number of steps is fixed, the tolerance is not met
    main(int(sys.argv[1]), int(sys.argv[2]))
