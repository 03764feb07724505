"""The eigenvalues that every contestant is held to: each gradient on its own, in float64, by plain autograd.

python -m benchmarks.peers.oracle JOB.npz OUTPUT.npz

Up to 4,096 examples also the eigenvalues of gradients that were taken in float32, with all else in float64: where a
unit of the network stands within rounding of its kink, its derivative jumps, and no solver in float32 can do better.

Rows are kept in float64 where they fit in half of the memory. Where they do not, they are rounded to float32 after they
were normalised (a relative 3e-8 of an entry, at random), in a file where memory does not do. Products are float64 up to
4,096 examples, beyond it float32 over 1,024 parameters at a time, summed in float64.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from scipy.linalg import blas, eigh

from benchmarks.peers import job as jobs
from benchmarks.peers import torch_networks
from benchmarks.peers.job import DEAD, Job
from benchmarks.peers.machine import free_bytes

TOP = 128
LARGEST_IN_FLOAT64 = 4096
SLAB = {np.float64: 16_384, np.float32: 1024}  # parameters at a time


def main(source: Path, output: Path) -> None:
    job = jobs.read(source)
    found = {"exact": top(gram(job, torch.float64))}
    if len(job.examples) <= LARGEST_IN_FLOAT64:
        found["rounded"] = top(gram(job, torch.float32))
    partial = output.with_suffix(".partial.npz")
    np.savez(partial, **found)
    partial.replace(output)


def top(K: np.ndarray) -> np.ndarray:
    """The largest eigenvalues, largest first."""
    last = len(K) - 1
    wanted = (max(0, last + 1 - TOP), last)
    return eigh(K, lower=True, eigvals_only=True, overwrite_a=True, subset_by_index=wanted)[::-1]


def gram(job: Job, precision: torch.dtype) -> np.ndarray:
    """The lower triangle of K, from gradients in that precision."""
    N, P = len(job.examples), job.parameters
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        V = _rows(job, precision, Path(folder))
        product, kind = (blas.dsyrk, np.float64) if N <= LARGEST_IN_FLOAT64 else (blas.ssyrk, np.float32)
        K = np.zeros((N, N), order="F")
        for start in range(0, P, SLAB[kind]):
            slab = np.asarray(V[:, start : start + SLAB[kind]], kind)
            K += product(1.0, slab.T, trans=1, lower=1)
        return K


def _rows(job: Job, precision: torch.dtype, folder: Path) -> np.ndarray:
    """V: in float64, or in float32, or in a file, as it fits."""
    N, P, half = len(job.examples), job.parameters, free_bytes() / 2
    if half > 8 * N * P:
        V = np.empty((N, P))
        for index, row in enumerate(gradients(job, job.examples, precision)):
            V[index] = row
        over = V if job.samples is None else gradients(job, job.samples, precision)
        mean, scale = moments(job, over)
        V -= mean
        V *= scale
        return V
    mean, scale = moments(job, gradients(job, job.examples if job.samples is None else job.samples, precision))
    in_memory = half > 4 * N * P
    V = np.empty((N, P), np.float32) if in_memory else np.memmap(folder / "rows", np.float32, "w+", shape=(N, P))
    for index, row in enumerate(gradients(job, job.examples, precision)):
        V[index] = (row - mean) * scale
    return V


def gradients(job: Job, examples: np.ndarray, precision: torch.dtype) -> Iterator[np.ndarray]:
    """g(x), one after another, as float64."""
    network = torch_networks.module(job).to(precision)
    tensors = list(network.parameters())
    kind = precision if examples.dtype == np.float32 else torch.int64
    for example in torch.from_numpy(examples):
        score = torch_networks.scores(job.settings.family, network(example[None].to(kind)))[0]
        found = torch.autograd.grad(score, tensors)
        yield torch.cat([leaf.flatten() for leaf in found]).double().numpy()


def moments(job: Job, rows: Iterator[np.ndarray] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """z and s, by Welford's update."""
    mean, squares = np.zeros(job.parameters), np.zeros(job.parameters)
    if not job.kernel_is_fisher:
        return mean, np.ones(job.parameters)
    count = 0
    for count, row in enumerate(rows, 1):
        shift = row - mean
        mean += shift / count
        squares += shift * (row - mean)
    F = squares / count if job.settings.centred else squares / count + mean**2
    mean = mean if job.settings.centred else np.zeros_like(mean)
    alive = DEAD * F.max() <= F
    return mean, np.where(alive, 1 / np.sqrt(np.where(alive, F + job.settings.damping * F.mean(), 1)), 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
