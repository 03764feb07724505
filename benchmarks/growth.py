"""By how much a process grows when the gradient of a network is compiled: what the plan counts for it.

python -m benchmarks.growth [--networks lenet5 ... vae] [--output results/growth.json]

Each network has a process of its own. Its gradient is compiled as a fit would do it and run once; what the process has
of its own then (RssAnon of Linux, after freed memory was given back), beyond what it had before, stays for good.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

import nfk
from benchmarks.own_memory import _status
from benchmarks.peers.machine import facts as machine
from benchmarks.printed import environment, printed
from nfk.identity import canary
from nfk.memory import give_back
from nfk.model import Batching
from nfk.model.in_jax import traceable

OUTPUT = Path(__file__).resolve().parent.parent / "results" / "growth.json"
CASES: dict[str, tuple[str, Batching, int]] = {
    "lenet5": ("lenet5", "patches", 16), "critic": ("critic", "patches", 8), "wrn-16-2": ("wrn-16-2", "patches", 4),
    "transformer": ("transformer", "vmap", 4), "resnet-18": ("resnet-18", "unrolled", 1),
    "resnet-18 x 4": ("resnet-18", "unrolled", 4), "vae": ("vae", "unrolled", 1),
}  # fmt: skip


def network(name: str) -> tuple[nfk.Model, np.ndarray]:
    if name == "vae":
        from benchmarks.large_basis import vae

        return vae(4)
    from benchmarks.peers import jax_networks, making

    job, _ = making.make(name, 64, {})
    return nfk.energy(jax_networks.score(job), jax_networks.params(job)), jax_networks.examples(job)


def measured(name: str) -> dict[str, Any]:
    """In this process."""
    of, batching, count = CASES[name]
    model, X = network(of)
    compiled = traceable(model).differentiate(jax.random.key(0), 1, batching)
    cost = model.network.cost(X[0])
    before = _kept()
    canary(model, X[:1])
    jax.block_until_ready(compiled.gradients(X[:count]))
    grown = _kept() - before
    operations = cost.operations * (count if batching == "unrolled" else 1)
    return {"operations": operations, "batching": batching, "examples": count, "grown_bytes": grown}


def _kept() -> int:
    gc.collect()
    give_back()
    return _status()[0]


def main(networks: tuple[str, ...] = tuple(CASES), output: Path | None = None, one: str | None = None) -> None:
    """Measure the networks, each in a process of its own.

    Args:
        networks: which of them.
        output: also write the JSON here.
        one: measure this one in this process and print it.
    """
    if one is not None:
        print(json.dumps(measured(one)))
        return
    command = [sys.executable, "-m", "benchmarks.growth", "--one"]
    run = partial(subprocess.run, check=True, stdout=subprocess.PIPE, text=True)
    rows = {name: json.loads(run([*command, name]).stdout.splitlines()[-1]) for name in networks}
    printed({"environment": environment(0, "jax", "numpy") | machine(), "rows": rows}, output)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    tyro.cli(main)
