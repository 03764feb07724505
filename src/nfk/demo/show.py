"""The demo: a small trained network, the Fisher embedding of 4,000 real digits, and what it is worth."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.decomposition import PCA

from nfk.demo.digits import Digits, digits
from nfk.demo.lenet import digits_lenet, logits, params
from nfk.embedding import Embedding
from nfk.fitting import fit, plan
from nfk.memory import human
from nfk.runs import Spec, write_run
from nfk.tasks import Probe, probe


@dataclass(frozen=True)
class Worth:
    """Linear probes of the same digits, each feature with as many numbers as the embedding, but the pixels."""

    embedded: Probe
    pca: Probe
    pixels: Probe
    network: float


@dataclass(frozen=True)
class Shown:
    """What the demo found, and where it was written."""

    embedding: Embedding
    worth: Worth
    seconds: float
    run: Path
    figures: list[Path]


def show(output: Path = Path("demo"), rank: int = 64, seed: int = 0, console: Console | None = None) -> Shown:
    """Fit the Fisher embedding of a trained LeNet-5 on 4,000 digits; compare it with pixels and PCA on 1,000 others.

    Args:
        output: where the figures and the run go.
        rank: numbers per example.
        seed: of the fit and of PCA. The network and the split are always the same.
        console: where it is told; standard output by default.
    """
    pictures, console = _pictures(), console or Console()
    say = partial(console.print, highlight=False, soft_wrap=True)
    output.mkdir(parents=True, exist_ok=True)
    model, (train, test) = digits_lenet(), digits()
    forecast = plan(model, train.images, rank).brief
    say(f"A LeNet-5 with {model.layout.size:,} weights was trained on {len(train):,} real digits.")
    say(f"nfk reads {rank} numbers for each digit from the gradients of all weights: {forecast}.")
    started = time.perf_counter()
    embedding = fit(model, train.images, rank, key=seed)
    seconds = time.perf_counter() - started
    with console.status("looking for unusual digits ..."):
        run = _kept(output / "run", embedding, train, Spec("digits-lenet", "digits", rank, seed, seconds, "nfk demo"))
    with console.status("probing ..."):
        worth = measure(embedding, train, test, seed)
    console.print(_table(embedding, worth, seconds))
    title = f"LeNet-5, {len(train):,} MNIST digits"
    spectrum = pictures.spectrum(embedding, output / "spectrum.png", title)
    images = pictures.leading_images(embedding.training, train.images, output / "components.png", title)
    say(f"figures  {spectrum}, {images}")
    say(f"next     nfk report {run}: a page to look at")
    say("         nfk fit FILE.py:FACTORY DATA: your own network, your own data")
    return Shown(embedding, worth, seconds, run, [spectrum, images])


def _kept(folder: Path, embedding: Embedding, train: Digits, spec: Spec) -> Path:
    """The run, with the digits to look at and what tells the unusual ones."""
    pixels = np.round(255 * train.images).astype(np.uint8)
    squares = embedding.decompose(train.images).total
    return write_run(folder, embedding, spec=spec, labels=train.labels, examples=pixels, squares=squares)


def _pictures() -> ModuleType:
    """The figures' module, asked for before the work."""
    try:
        from nfk.demo import figures
    except ImportError as error:
        raise ImportError("the figures of the demo need matplotlib: pip install 'nfk[demo]'") from error
    return figures


def measure(embedding: Embedding, train: Digits, test: Digits, seed: int) -> Worth:
    flat_train, flat_test = (part.images.reshape(len(part), -1) for part in (train, test))
    pca = PCA(embedding.rank, random_state=seed).fit(flat_train)
    guesses = np.argmax(logits(params(), jnp.asarray(test.images)), axis=1)
    return Worth(
        embedded=probe(embedding.training, train.labels, embedding(test.images), test.labels),
        pca=probe(pca.transform(flat_train), train.labels, pca.transform(flat_test), test.labels),
        pixels=probe(flat_train, train.labels, flat_test, test.labels),
        network=float(np.mean(guesses == test.labels)),
    )


def _table(embedding: Embedding, worth: Worth, seconds: float) -> Table:
    rank, title = embedding.rank, f"Fisher embedding of {len(embedding.left):,} digits"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_row("numbers per example", f"{rank} (from {embedding.model.layout.size:,} parameters)")
    table.add_row("explained variance", f"{100 * embedding.explained_variance_ratio.sum():.1f} %")
    table.add_row("certificate", f"eigenvalues within {100 * embedding.residuals.max():.2g} %")
    table.add_row("passes over the data", str(embedding.passes))
    table.add_row("time of the fit", f"{seconds:.1f} s, compilation included")
    if (most := _most_memory()) is not None:
        table.add_row("most memory of the program", human(most))
    table.add_section()
    table.add_row(f"linear probe, Fisher embedding ({rank})", f"[bold]{_share(worth.embedded)}")
    table.add_row(f"linear probe, PCA of the pixels ({rank})", _share(worth.pca))
    table.add_row("linear probe, all pixels (784)", _share(worth.pixels))
    table.add_row("the network itself", f"{100 * worth.network:.1f} %")
    return table


def _share(found: Probe) -> str:
    """The accuracy and its 95 % interval."""
    accuracy = found.accuracy
    return f"{100 * accuracy.value:.1f} % ({100 * accuracy.low:.1f} to {100 * accuracy.high:.1f})"


def _most_memory() -> int | None:
    """Bytes, the most that this process has held; unknown on Windows."""
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
