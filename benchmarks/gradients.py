"""Per-example gradients in every way, against a plain batch gradient, as JSON: what the plan's choice rests on.

taskset -c 0 python -m benchmarks.gradients [--quick] [--networks critic lenet] [--output results/gradients.json]

Pinned to one core, and in milliseconds of the processor's time for one example; the contestants are run in turn. How
gradients reach the array where they stay is measured too: leaf by leaf, or as one array of all leaves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from flax import nnx

import nfk
from benchmarks.printed import environment, printed
from nfk.model import Model, split_key
from nfk.planning.batches import UNROLLED, suitable_batching
from nfk.planning.problem import Problem
from nfk.spaces import HOST
from nfk.stream import Examples
from reproduction.networks.classifiers import LeNet5
from reproduction.networks.gans import DCGANCritic
from reproduction.networks.vaes import ConvVAE
from reproduction.networks.wide_resnet import WideResNet

SEED = 0
BATCHES = (4, 8, 16, 32, 64)
MOST_BYTES = 2 * 2**30  # gradients of one batch


def main(quick: bool = False, networks: tuple[str, ...] = (), output: Path | None = None) -> None:
    """Run the comparison and print one JSON object.

    Args:
        quick: batches of 4 and 8 only, and fewer rounds.
        networks: only these.
        output: also write the JSON here.
    """
    chosen = [name for name in NETWORKS if not networks or name in networks]
    results = {
        "environment": environment(SEED, "jax", "numpy", "flax"),
        "quick": quick,
        "networks": [measure(name, quick) for name in chosen],
    }
    printed(results, output)


def measure(name: str, quick: bool) -> dict[str, Any]:
    model, shape = NETWORKS[name]()
    images = np.random.default_rng(SEED).random((max(BATCHES), *shape), dtype=np.float32)
    batching, microbatch = suitable_batching(Problem.of(model, Examples(images)), HOST)
    most = max(MOST_BYTES // (4 * model.layout.size), 4)
    batches = [size for size in (BATCHES[:2] if quick else BATCHES) if size <= most]
    contestants = {}
    for size in batches:
        contestants |= {f"{way}, {size}": run for way, run in ways(model, images[:size]).items()}
    contestants |= {f"the plan: {batching}, {microbatch}": rows(model, images[:microbatch], batching)}
    contestants |= {f"unrolled, {UNROLLED}": rows(model, images[:UNROLLED], "unrolled")}
    return {
        "network": name, "parameters": model.layout.size,
        "ms_per_example": alternate(contestants, 3 if quick else 7),
        "ms_per_example_with_writing": alternate(written(model, images[:microbatch], batching), 3 if quick else 7),
    }  # fmt: skip


def ways(model: Model, X: np.ndarray) -> dict[str, tuple[int, Callable]]:
    return {"plain": plain(model, X), "vmap": rows(model, X, "vmap"), "patches": rows(model, X, "patches")}


def plain(model: Model, X: np.ndarray) -> tuple[int, Callable[[], Any]]:
    """The sum of all gradients: what a step of training computes."""
    key, network = split_key(0)[2], model.network
    total = lambda params, X: jax.vmap(lambda x: network.score_of(params, x, key))(X).sum()  # noqa: E731
    gradient = jax.jit(jax.grad(total))
    return len(X), lambda: jax.block_until_ready(gradient(model.params, X))


def rows(model: Model, X: np.ndarray, batching: Any) -> tuple[int, Callable[[], Any]]:
    """g(x), one row per example, as the engine computes them."""
    differentiator = model.network.differentiate(split_key(0)[2], 1, batching)
    return len(X), lambda: jax.block_until_ready(differentiator.gradients(X))


def written(model: Model, X: np.ndarray, batching: Any) -> dict[str, tuple[int, Callable[[], Any]]]:
    """The same, and its way into one array: normalised leaf by leaf, or joined by XLA and copied once."""
    size, compute = rows(model, X, batching)
    store = HOST.store(size, model.layout)
    zero, one = (model.layout.pieces(np.full(model.layout.size, value, np.float32)) for value in (0, 1))
    join = jax.jit(lambda leaves: jnp.concatenate(leaves, axis=1))

    def leaf_by_leaf() -> None:
        store.write_normalised(0, compute(), size, zero, one)

    def joined() -> None:
        leaves = [jnp.concatenate(leaf) if isinstance(leaf, list) else leaf for leaf in compute()]
        store.array[:] = np.asarray(join(leaves))

    return {"not written": (size, compute), "leaf by leaf": (size, leaf_by_leaf), "joined": (size, joined)}


def alternate(contestants: dict[str, tuple[int, Callable[[], Any]]], rounds: int) -> dict[str, float]:
    """Median processor milliseconds for one example, the contestants in turn."""
    for _, run in contestants.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, (size, run) in contestants.items():
            repeats = max(1, 16 // size)
            started = time.process_time()
            for _ in range(repeats):
                run()
            times[name].append((time.process_time() - started) / (size * repeats))
    return {name: round(1000 * float(np.median(values)), 4) for name, values in times.items()}


def of_module(module: nnx.Module, score: Callable, shape: tuple[int, ...]) -> tuple[Model, tuple[int, ...]]:
    """`score(module, image)`, differentiated in the module's parameters alone."""
    module.eval()
    graph, params, others = nnx.split(module, nnx.Param, ...)
    return nfk.density(lambda params, x: score(nnx.merge(graph, params, others), x), params), shape


def log_evidence(module: Any, image: jax.Array) -> jax.Array:
    return jax.nn.logsumexp(module(image[None])[0])


def critic() -> tuple[Model, tuple[int, ...]]:
    """Six convolutions of widths 32 to 128, 3 x 3 and strided 4 x 4 in turn, and a linear head: 613,761 parameters."""
    from benchmarks.critics import critic as score
    from benchmarks.critics import critic_params

    return nfk.density(score, critic_params((32, 64, 64, 128, 128, 128))), (32, 32, 3)


class ResNet18(nnx.Module):
    """The residual network of 18 layers in its form for 32 x 32 images: 11.2 million parameters."""

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.conv, self.norm = _conv(3, 64, 3, 1, rngs), nnx.BatchNorm(64, rngs=rngs)
        plan = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
        self.blocks = nnx.List([ResidualBlock(*block, rngs) for block in (*plan, (512, 512, 1))])
        self.dense = nnx.Linear(512, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        hidden = nnx.relu(self.norm(self.conv(images)))
        for block in self.blocks:
            hidden = block(hidden)
        return self.dense(hidden.mean((1, 2)))


class ResidualBlock(nnx.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, rngs: nnx.Rngs) -> None:
        self.first, self.second = _conv(inputs, outputs, 3, stride, rngs), _conv(outputs, outputs, 3, 1, rngs)
        self.norms = nnx.List([nnx.BatchNorm(outputs, rngs=rngs) for _ in range(2)])
        self.shortcut = _conv(inputs, outputs, 1, stride, rngs) if inputs != outputs else None

    def __call__(self, hidden: jax.Array) -> jax.Array:
        branch = self.norms[1](self.second(nnx.relu(self.norms[0](self.first(hidden)))))
        return nnx.relu(branch + (hidden if self.shortcut is None else self.shortcut(hidden)))


def _conv(inputs: int, outputs: int, size: int, stride: int, rngs: nnx.Rngs) -> nnx.Conv:
    return nnx.Conv(inputs, outputs, (size, size), stride, padding=size // 2, use_bias=False, rngs=rngs)


NETWORKS: dict[str, Callable[[], tuple[Model, tuple[int, ...]]]] = {
    "LeNet-5": lambda: of_module(LeNet5(rngs=nnx.Rngs(SEED)), log_evidence, (28, 28, 1)),
    "DCGAN critic": lambda: of_module(DCGANCritic(rngs=nnx.Rngs(SEED)), lambda m, x: m(x[None])[0], (28, 28, 1)),
    "convolutional VAE": lambda: of_module(
        ConvVAE(rngs=nnx.Rngs(SEED)), lambda m, x: m.elbo(x[None], jax.random.key(0))[0], (28, 28, 1)
    ),
    "critic": critic,
    "WRN-16-2": lambda: of_module(WideResNet(16, 2, rngs=nnx.Rngs(SEED)), log_evidence, (32, 32, 3)),
    "ResNet-18": lambda: of_module(ResNet18(rngs=nnx.Rngs(SEED)), log_evidence, (32, 32, 3)),
}


if __name__ == "__main__":
    tyro.cli(main)
