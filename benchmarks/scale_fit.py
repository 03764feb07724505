"""One timed fit for `benchmarks.scale`, in one process or in each of several.

`scale_fit.py NETWORK PLACE EXAMPLES OUTPUT`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import nfk
from benchmarks.critics import WIDE, critic, critic_params
from nfk import distributed

ROUNDS = 1  # beside the one that compiles
RNG_SHAPE = ((784, 512), (512, 256), (256, 10))


def mlp(params: list, x: jax.Array) -> jax.Array:
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer)
    return x @ params[-1]


def problem(network: str, examples: int) -> tuple[nfk.Model, np.ndarray, dict]:
    """A convolutional critic whose gradients are computed again in every pass; a network of dense layers whose
    gradients are kept, so that products are what is left."""
    rng = np.random.default_rng(0)
    if network == "gradients":
        model = nfk.energy(lambda params, x: critic(params, x).sum(), critic_params(WIDE))
        options = {"keep": False, "method": "krylov", "side": "parameters"}
        return model, rng.standard_normal((examples, 32, 32, 3), dtype=np.float32), {"rank": 8, **options}
    params = [rng.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[0]) for shape in RNG_SHAPE]
    options = {"keep": True, "method": "krylov", "side": "parameters"}
    X = rng.standard_normal((examples, 784), dtype=np.float32)
    return nfk.classifier(mlp, params), X, {"rank": min(64, examples // 2), **options}


def main(network: str, place: str, examples: int, output: Path) -> None:
    model, X, options = problem(network, examples)
    mesh = None if place == "host" else jax.device_count()
    seconds = []
    for _ in range(ROUNDS + 1):
        started = time.perf_counter()
        fitted = nfk.fit(model, X, mesh=mesh, memory="2GB", tol=1e-2, progress=False, **options)
        seconds.append(time.perf_counter() - started)
    cores = distributed.JAX.everyone(sorted(os.sched_getaffinity(0)))  # of every process
    if jax.process_index() == 0:
        facts = {"seconds": seconds[1:], "passes": fitted.passes, "values": fitted.eigenvalues[:4].tolist()}
        facts |= {"width": fitted.plan.width, "cores": cores, "parameters": model.layout.size, "examples": len(X)}
        output.write_text(json.dumps({**facts, **options}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
