"""One point of the scaling curve, in its own process: seconds and peak memory of a streamed fit over N examples.

python -m benchmarks.scaling N RANK
"""

from __future__ import annotations

import json
import sys
import time

import jax
import numpy as np

import nfk
from reproduction import data
from reproduction.memory import Peak

STEPS = 4  # the same number of passes for every N


def images(count: int) -> np.ndarray:
    """MNIST padded to 32 x 32; repeated digits where NFK_DATA does not have it."""
    digits = data.mnist("train").images if data.data_folder() is not None else data.digits()[0].images
    return np.pad(np.resize(digits, (count, 28, 28, 1)), ((0, 0), (2, 2), (2, 2), (0, 0)))


def critic_params() -> list[dict[str, np.ndarray]]:
    """The DCGAN discriminator with 16,871 parameters: three strided 4x4 convolutions and a linear head."""
    rng = np.random.default_rng(0)
    shapes = [(4, 4, 1, 10), (4, 4, 10, 20), (4, 4, 20, 40), (640, 1)]
    kernels = [rng.standard_normal(shape, dtype=np.float32) / np.sqrt(np.prod(shape[:-1])) for shape in shapes]
    return [{"kernel": w.astype(np.float32), "bias": np.zeros(w.shape[-1], np.float32)} for w in kernels]


def critic(params: list, image: jax.Array) -> jax.Array:
    hidden = image[None]
    for layer in params[:-1]:
        hidden = jax.lax.conv_general_dilated(
            hidden, layer["kernel"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        hidden = jax.nn.leaky_relu(hidden + layer["bias"], 0.2)
    return (hidden.reshape(-1) @ params[-1]["kernel"] + params[-1]["bias"])[0]


def main(count: int, rank: int) -> None:
    X = images(count)
    model = nfk.gan(critic, critic_params(), expectation="data")
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
