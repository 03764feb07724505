"""`make demo`: a small network on 5,000 real digits, its Fisher embedding, and what it is worth."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import tyro
from flax import nnx
from rich.console import Console
from rich.table import Table
from sklearn.decomposition import PCA

import nfk
from nfk.lab import figures
from nfk.lab.data import Split, digits
from nfk.lab.memory import Peak
from nfk.lab.networks import LeNet5
from nfk.lab.training import accuracy, train_classifier
from nfk.memory import human
from nfk.tasks import Probe, probe


def flat(data: Split) -> np.ndarray:
    return data.images.reshape(len(data), -1)


def share(found: Probe) -> str:
    """The accuracy and its 95 % interval."""
    accuracy = found.accuracy
    return f"{accuracy.value:.1%} ({100 * accuracy.low:.1f} to {100 * accuracy.high:.1f})"


def main(output: Path = Path("demo"), rank: int = 64, epochs: int = 12, seed: int = 0) -> None:
    """Train LeNet-5 on 4,000 digits, fit its Fisher embedding, and compare it with pixels and PCA on 1,000 others.

    Args:
        output: where the figures and the saved embedding go.
        rank: numbers per example.
        epochs: epochs of training.
        seed: of the split, the training and the fit.
    """
    console = Console()
    output.mkdir(parents=True, exist_ok=True)
    train, test = digits(seed)
    started = time.perf_counter()
    with console.status("training LeNet-5 ..."):
        network = train_classifier(LeNet5(rngs=nnx.Rngs(seed)), train, epochs=epochs, seed=seed)
        network_accuracy = accuracy(network, test)
    trained = f"{time.perf_counter() - started:.0f} s of training"
    console.print(f"LeNet-5: {network_accuracy:.1%} on {len(test):,} test digits, {trained}")

    model = nfk.classifier(*nfk.from_nnx(network))
    console.print(str(nfk.plan(model, train.images, rank)), style="dim", highlight=False)
    started = time.perf_counter()
    with Peak() as peak:
        embedding = nfk.fit(model, train.images, rank, key=seed, save=output / "embedding")
    seconds = time.perf_counter() - started

    with console.status("probing ..."):
        embedded = probe(embedding.training, train.labels, embedding(test.images), test.labels)
        pca = PCA(rank, random_state=seed).fit(flat(train))
        reduced = probe(pca.transform(flat(train)), train.labels, pca.transform(flat(test)), test.labels)
        pixels = probe(flat(train), train.labels, flat(test), test.labels)

    table = Table(title=f"Fisher embedding of {len(train):,} digits", title_justify="left", show_header=False)
    table.add_row("numbers per example", f"{embedding.rank} (from {model.layout.size:,} parameters)")
    table.add_row("explained variance", f"{embedding.explained_variance_ratio.sum():.2%} of the exact trace")
    table.add_row("certificate", f"every eigenvalue within {embedding.residuals.max():.1e} of a true one (relative)")
    table.add_row("passes over the data", str(embedding.passes))
    table.add_row("time of the fit", f"{seconds:.1f} s, compilation included")
    table.add_row("peak memory", f"{human(peak.most)} in all, {human(peak.grown)} for the fit")
    table.add_section()
    table.add_row(f"linear probe, Fisher embedding ({rank})", f"[bold]{share(embedded)}")
    table.add_row(f"linear probe, PCA of the pixels ({rank})", share(reduced))
    table.add_row(f"linear probe, raw pixels ({flat(train).shape[1]})", share(pixels))
    table.add_row("the network itself", f"{network_accuracy:.1%}")
    console.print(table)

    title = f"LeNet-5, {len(train):,} MNIST digits"
    made = [
        figures.spectrum(embedding, output / "spectrum.png", title),
        figures.leading_images(embedding.training, train.images, output / "components.png", title),
    ]
    console.print("figures: " + ", ".join(str(path) for path in made), highlight=False)
    console.print(f"embedding: {output / 'embedding'} (nfk.load reads it)", highlight=False)


if __name__ == "__main__":
    tyro.cli(main)
