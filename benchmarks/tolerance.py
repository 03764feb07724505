"""How loose may `tol` be before anything that is done with an embedding notices? JSON in results/tolerance.json.

python -m benchmarks.tolerance [--networks lenet5] [--train 2000] [--test 1000]

For each network the exact kernel of N training and n test examples is computed once. What block Krylov does depends on
it alone, so every fit below runs on rows with exactly these inner products (K = U diag(v) U', rows U sqrt(v)), N
numbers long instead of P: seconds instead of minutes, and the exact embedding is known. Weights are read from
NFK_DATA/pretrained.
"""

from __future__ import annotations

import json
import platform
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import lax

import nfk
from benchmarks.peers import jax_networks, making
from nfk import tasks
from reproduction import data

ROOT = Path(__file__).parents[1]
TOLERANCES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)
RANKS = (32, 128)
SEEDS = 5
NEIGHBOURS = 10


def main(
    networks: tuple[str, ...] = ("lenet5", "wrn-16-2", "dcgan-critic", "vae"),
    train: int = 2000,
    test: int = 1000,
    output: Path = ROOT / "results" / "tolerance.json",
) -> None:
    """Measure and write; networks that are not named keep what the file had.

    Args:
        networks: which of lenet5, wrn-16-2, dcgan-critic, vae.
        train: training examples.
        test: test examples, for the probe and the neighbours.
        output: the results file.
    """
    rows = json.loads(output.read_text())["rows"] if output.exists() else []
    for name in networks:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows = [row for row in rows if row["network"] != name] + compare(name, train, test)
        results = {"environment": environment(), "seeds": SEEDS, "neighbours": NEIGHBOURS, "rows": rows}
        output.write_text(json.dumps(results, indent=1) + "\n")


def environment() -> dict[str, Any]:
    return {"python": platform.python_version(), **{name: version(name) for name in ("jax", "numpy", "nfk")}}


def compare(name: str, train: int, test: int) -> list[dict[str, Any]]:
    """A row for every rank and tolerance: means over the seeds of the start."""
    model, X, labels = NETWORKS[name](train, test)
    kernel = exact_kernel(model, X, train)
    features, new = tasks.kernel_features(kernel[:train], kernel[train:])
    rows = []
    for rank in RANKS:
        truth = Measured(features[:, :rank], new[:, :rank], labels, train)
        for tolerance in TOLERANCES:
            fits = [one_fit(features, new, labels, rank, tolerance, seed, truth) for seed in range(SEEDS)]
            rows.append({
                "network": name, "parameters": model.layout.size, "train": train, "test": test, "rank": rank,
                "tol": tolerance, "exact_probe": truth.accuracy.value,
                "exact_probe_interval": [truth.accuracy.low, truth.accuracy.high],
                **{key: summary([fit[key] for fit in fits]) for key in fits[0]},
            })  # fmt: skip
    return rows


def exact_kernel(model: nfk.Model, X: np.ndarray, train: int) -> np.ndarray:
    """K of all examples with the training ones; the loose fit is there for its moments."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nfk.ConvergenceWarning)
        moments = nfk.fit(model, X[:train], 8, tol=0.5, max_steps=1, method="krylov", progress=False)
    return moments.gram(X, X[:train], progress=False).astype(np.float64)


class Measured:
    """What is done with an embedding: a probe, neighbours, the share of variance."""

    def __init__(self, train: np.ndarray, new: np.ndarray, labels: np.ndarray, count: int) -> None:
        probe = tasks.probe(train, labels[:count], new, labels[count:])
        self.accuracy, self.correct = probe.accuracy, probe.correct
        self.nearest = tasks.nearest(train, new, NEIGHBOURS).rows
        self.eigenvalues = np.square(train, dtype=np.float64).sum(axis=0)


def one_fit(
    features: np.ndarray, new: np.ndarray, labels: np.ndarray, rank: int, tolerance: float, seed: int, truth: Measured
) -> dict[str, float]:
    """One Krylov fit of that tolerance beside the exact embedding."""
    linear = nfk.density(_inner, np.zeros(features.shape[1], np.float32), fisher="identity", expectation="data")
    rows = features.astype(np.float32)
    fitted = nfk.fit(linear, rows, rank, key=seed, method="krylov", tol=tolerance, progress=False)
    found = Measured(fitted.training, fitted(new.astype(np.float32)), labels, len(features))
    shared = [len(set(a) & set(b)) / NEIGHBOURS for a, b in zip(found.nearest, truth.nearest, strict=True)]
    return {
        "probe": found.accuracy.value,
        "probe_change": found.accuracy.value - truth.accuracy.value,
        "answers_changed": float(np.mean(found.correct != truth.correct)),
        "neighbours_shared": float(np.mean(shared)),
        "variance_lost": float(1 - fitted.eigenvalues.sum() / truth.eigenvalues.sum()),
        "worst_eigenvalue_error": float(np.max(np.abs(fitted.eigenvalues / truth.eigenvalues - 1))),
        "certificate": float(fitted.residuals.max()),
        "passes": float(fitted.passes),
    }


def _inner(params: jax.Array, row: jax.Array) -> jax.Array:
    return row @ params


def summary(values: list[float]) -> dict[str, float]:
    """Mean over the seeds, and the least and the largest."""
    return {"mean": float(np.mean(values)), "least": float(np.min(values)), "most": float(np.max(values))}


# --- the networks: trained by others

Problem = tuple[nfk.Model, np.ndarray, np.ndarray]


def of_peers(name: str) -> Callable[[int, int], Problem]:
    """A classifier of the comparison with other ways; score = logsumexp of the logits, moments over the data."""

    def build(train: int, test: int) -> Problem:
        job, _ = making.make(name, train, {})
        X, labels = _both(making.NETWORKS[name].examples, train, test)
        model = nfk.classifier(jax_networks.apply(job), jax_networks.params(job))
        return model, np.ascontiguousarray(np.moveaxis(X, 1, -1)), labels

    return build


def dcgan_critic(train: int, test: int) -> Problem:
    """Four strided convolutions with batch norm in eval mode; moments over the data."""
    tensors = making.pretrained("cifar10-dcgan-critic")
    statistics = {key: leaf for key, leaf in tensors.items() if "running" in key}
    params = {key: leaf for key, leaf in tensors.items() if "running" not in key and "tracked" not in key}

    def critic(params: dict, image: jax.Array) -> jax.Array:
        hidden = image[None]
        for layer in (0, 2, 5, 8):
            hidden = lax.conv_general_dilated(hidden, params[f"model.{layer}.weight"], (2, 2), [(1, 1), (1, 1)])
            hidden = hidden + params[f"model.{layer}.bias"][:, None, None]
            if layer:
                hidden = _batch_norm(params, statistics, f"model.{layer + 1}", hidden)
            hidden = jax.nn.leaky_relu(hidden, 0.2)
        return (params["model.12.weight"] @ hidden.reshape(-1) + params["model.12.bias"])[0]

    return nfk.gan(critic, params, expectation="data"), *_both(making.cifar10_symmetric, train, test)


def _batch_norm(params: dict, statistics: dict, name: str, hidden: jax.Array) -> jax.Array:
    column = lambda vector: vector[:, None, None]  # noqa: E731
    deviation = column(np.sqrt(statistics[f"{name}.running_var"] + 1e-5))
    normal = (hidden - column(statistics[f"{name}.running_mean"])) / deviation
    return normal * column(params[f"{name}.weight"]) + column(params[f"{name}.bias"])


def vae(train: int, test: int) -> Problem:
    """784-400-(20, 20)-400-784 with Bernoulli pixels: the ELBO in nats."""
    params = making.pretrained("mnist-vae")

    def elbo(params: dict, image: jax.Array, key: jax.Array) -> jax.Array:
        dense = lambda name, hidden: params[f"{name}.weight"] @ hidden + params[f"{name}.bias"]  # noqa: E731
        hidden = jax.nn.relu(dense("fc1", image))
        mean, log_variance = dense("fc21", hidden), dense("fc22", hidden)
        z = mean + jnp.exp(log_variance / 2) * jax.random.normal(key, mean.shape)
        logits = dense("fc4", jax.nn.relu(dense("fc3", z)))
        likelihood = jnp.sum(image * logits - jax.nn.softplus(logits))
        return likelihood + 0.5 * jnp.sum(1 + log_variance - mean**2 - jnp.exp(log_variance))

    def digits(split: str) -> tuple[np.ndarray, np.ndarray]:
        found = data.mnist(split).take(slice(0, 20_000))
        return found.images.reshape(len(found), -1), found.labels

    return nfk.vae(elbo, params), *_both(digits, train, test)


def _both(examples: Callable, train: int, test: int) -> tuple[np.ndarray, np.ndarray]:
    """Training examples, then test examples; and their labels."""
    parts = [tuple(array[:count] for array in examples(split)) for split, count in (("train", train), ("test", test))]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


NETWORKS: dict[str, Callable[[int, int], Problem]] = {
    "lenet5": of_peers("lenet5"), "wrn-16-2": of_peers("wrn-16-2"), "dcgan-critic": dcgan_critic, "vae": vae,
}  # fmt: skip


if __name__ == "__main__":
    tyro.cli(main)
