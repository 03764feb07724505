"""`python -m reproduction.own cifar10-vae svhn-dcgan-critic`: train these networks, and keep their weights."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

from reproduction.data import load
from reproduction.own.training import train_gan, train_vae
from reproduction.own.weights import OWN, save
from reproduction.weights import SHIPPED

STEPS = {"cifar10-vae": 6_000, "svhn-dcgan-critic": 6_000}
TRAININGS = {"cifar10-vae": train_vae, "svhn-dcgan-critic": train_gan}
RUNS = Path("runs/own")


def main(
    names: Annotated[tuple[Literal["cifar10-vae", "svhn-dcgan-critic"], ...], tyro.conf.Positional],
    steps: int | None = None,
    seed: int = 0,
    folder: Path = SHIPPED,
    threads: int = 1,
    compiled: bool = True,
) -> int:
    """Train networks one after the other; an interrupted training goes on from its checkpoint in runs/own.

    Args:
        names: which.
        steps: of training; 6,000 by default.
        seed: of weights, batches and noise.
        folder: where the weights are written.
        threads: of torch.
        compiled: compile the VAE, which needs a C++ compiler.
    """
    torch.set_num_threads(threads)
    for name in names:
        started, total = time.perf_counter(), steps or STEPS[name]
        images = torch.as_tensor(OWN[name].pixels(load(OWN[name].data).images))
        options = dict(steps=total, seed=seed, folder=RUNS / f"{name}-{total}", compiled=compiled)
        for part, module in TRAININGS[name](images, say=lambda text: print(text, flush=True), **options).items():
            command = f"python -m reproduction.own {name} --steps {total} --seed {seed}"
            facts = {"command": command, "steps": total, "seed": seed, "seconds": time.perf_counter() - started}
            print(save(part, module, facts, folder))
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main, prog="python -m reproduction.own"))
