"""The PyTorch bridge against the same network in JAX, as JSON: per-example gradients, a fit, and new embeddings.

taskset -c 0 python -m benchmarks.bridges [--quick] [--output results/bridges.json]

Pinned to one core, and in seconds of the processor's time: the two frameworks wait in different ways for a second core
that others use, which says nothing about either.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import tyro
from torch import nn

import nfk
import nfk.torch
from benchmarks.printed import environment, printed
from nfk.progress import Reporter
from nfk.stream import Examples

SEED = 0
RANK = 32


def main(quick: bool = False, output: Path | None = None) -> None:
    """Run the comparison and print one JSON object.

    Args:
        quick: a small version, in seconds; its figures are not those of the documentation.
        output: also write the JSON here.
    """
    results = {
        "environment": {**environment(SEED, "jax", "numpy", "torch"), "torch_threads": torch.get_num_threads()},
        "quick": quick,
        "rows": [compare(*row, quick) for row in NETWORKS],
    }
    printed(results, output)


class Critic(nn.Module):
    """A convolutional discriminator: 3x3 and strided 4x4 kernels in turn, a linear head of one output or several."""

    def __init__(self, widths: tuple[int, ...], channels: int, side: int, outputs: int) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        inputs = (channels, *widths[:-1])
        sizes = [3 + index % 2 for index in range(len(widths))]
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, size, stride=size - 2, padding=1) for a, b, size in zip(inputs, widths, sizes, strict=True)
        )
        self.head = nn.Linear(widths[-1] * (side // 2 ** (len(widths) // 2)) ** 2, outputs)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            images = nn.functional.leaky_relu(conv(images), 0.2)
        return self.head(images.flatten(1))


def critic(params: dict, image: jax.Array) -> jax.Array:
    """The same in JAX, with its channels last, which XLA prefers."""
    hidden = jnp.moveaxis(image, 0, -1)[None]
    for index in range(len(params["convs"])):
        layer, stride = params["convs"][str(index)], 1 + index % 2
        hidden = jax.lax.conv_general_dilated(
            hidden, layer["weight"], (stride, stride), [(1, 1), (1, 1)], dimension_numbers=("NHWC", "OIHW", "NHWC")
        )
        hidden = jax.nn.leaky_relu(hidden + layer["bias"], 0.2)
    return params["head"]["weight"] @ jnp.moveaxis(hidden[0], -1, 0).reshape(-1) + params["head"]["bias"]


NETWORKS: list[tuple[str, dict[str, Any], int]] = [
    ("discriminator", {"widths": (32, 64, 64, 112, 112, 128), "channels": 3, "side": 32, "outputs": 1}, 256),
    ("small convolutional classifier", {"widths": (8, 16), "channels": 1, "side": 28, "outputs": 10}, 1024),
]


def compare(name: str, shape: dict[str, Any], count: int, quick: bool) -> dict[str, Any]:
    """Medians of alternated runs; `ratio` is torch over JAX."""
    module, count = Critic(**shape).eval(), 32 if quick else count
    images = np.random.default_rng(SEED).standard_normal((2 * count, shape["channels"], shape["side"], shape["side"]))
    X, new = np.split(images.astype(np.float32), 2)
    params = nfk.torch.arrays(module)
    if shape["outputs"] == 1:
        models = {
            "torch": nfk.torch.gan(module, expectation="data"),
            "jax": nfk.gan(lambda p, x: critic(p, x)[0], params, expectation="data"),
        }
    else:
        models = {"torch": nfk.torch.classifier(module), "jax": nfk.classifier(critic, params)}
    rank = 8 if quick else RANK
    fitted = {kind: nfk.fit(model, X, rank, key=SEED) for kind, model in models.items()}
    rounds = 3 if quick else 5
    gap = np.abs(fitted["torch"].eigenvalues / fitted["jax"].eigenvalues - 1).max()
    return {
        "network": name, "parameters": models["jax"].layout.size, "examples": count, "rank": rank,
        "worst_relative_difference_of_eigenvalues": float(gap),
        "microbatch": {kind: embedding.plan.batches.gradients for kind, embedding in fitted.items()},
        "gradients": alternate({kind: one_pass(embedding, X) for kind, embedding in fitted.items()}, rounds),
        "fit": alternate({kind: lambda m=m: nfk.fit(m, X, rank, key=SEED) for kind, m in models.items()}, rounds),
        "embedding": alternate({kind: lambda e=e: e(new) for kind, e in fitted.items()}, rounds),
    }  # fmt: skip


def one_pass(embedding: nfk.Embedding, X: np.ndarray) -> Callable[[], Any]:
    """All per-example gradients of X, in the batches of the plan, normalised."""
    batches, moments = embedding.plan.batches, embedding.moments
    stream = embedding._stream(Examples(X), batches, Reporter(show=False))
    mean, scale = stream.pieces(moments.mean), stream.pieces(moments.scale)
    store = embedding.space.store(batches.gradients * embedding.outputs, embedding.model.layout)

    def run() -> None:
        for start in range(0, len(X), batches.gradients):
            stream.write(store, 0, mean, scale, start, min(start + batches.gradients, len(X)))

    return run


def alternate(contestants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median processor seconds of each, run in turn."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            started = time.process_time()
            run()
            times[name].append(time.process_time() - started)
    seconds = {name: float(np.median(values)) for name, values in times.items()}
    return {**seconds, "ratio": seconds["torch"] / seconds["jax"]}


if __name__ == "__main__":
    tyro.cli(main)
