"""What a family of models has to say of itself to be trained, read as a density, and compared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import jax
import numpy as np
from sklearn.decomposition import PCA

import nfk
from reproduction.data import Split, load

Baselines = dict[str, tuple[Any, ...]]  # name -> features of the training examples, of the test examples


class Family(ABC):
    """A network on a data set: how it is built, trained, measured, and read as a density.

    `examples` turns labelled images into what the network takes. Everything random follows from the seed.
    """

    name: str  # its row in the table of families
    network: str  # in words
    data: str  # a data set of reproduction.data
    rows: int = 5_000  # training examples of the fit and of the probes
    test_rows: int = 5_000

    @property
    def label(self) -> str:
        """The name of its weights and of its folder: unique among all."""
        return f"{self.name}-{self.data}"

    def splits(self, download: bool = False) -> tuple[Split, Split]:
        return load(self.data, "train", download=download), load(self.data, "test", download=download)

    def examples(self, data: Split) -> Any:
        return data.images

    @abstractmethod
    def build(self, seed: int) -> Any:
        """The network, untrained."""

    @abstractmethod
    def train(self, network: Any, train: Split, seed: int, folder: Path | None) -> Any:
        """The trained network."""

    @abstractmethod
    def metric(self, network: Any, test: Split) -> tuple[str, float]:
        """How good the network is at what it was trained for."""

    @abstractmethod
    def model(self, network: Any) -> nfk.Model:
        """The network as a density."""

    @abstractmethod
    def activations(self, network: Any, X: Any) -> np.ndarray:
        """The network's own features: what one would take without a Fisher kernel."""

    def baselines(self, train: Split, test: Split, rank: int, seed: int) -> Baselines:
        """Features that need no network: the pixels, and their principal components."""
        pixels = [data.images.reshape(len(data), -1) for data in (train, test)]
        pca = PCA(rank, random_state=seed).fit(pixels[0])
        return {"pixels": tuple(pixels), "pca": tuple(pca.transform(part) for part in pixels)}

    def samples(self, network: Any, key: jax.Array, count: int) -> np.ndarray | None:
        """Images drawn from the network, where it is generative."""
        return None


def bits(nats: np.ndarray, dimensions: int) -> float:
    """-log2 p(x) per dimension, the mean over examples."""
    return float(-np.mean(np.asarray(nats, np.float64)) / (dimensions * np.log(2)))


def binary(images: np.ndarray) -> np.ndarray:
    """1 where a pixel is brighter than a half."""
    return (images > 0.5).astype(np.float32)


def halved(images: np.ndarray) -> np.ndarray:
    """Means of 2 x 2 squares, rounded to 256 levels: (n, height / 2, width / 2, channels). Both sides must be even."""
    count, height, width, channels = images.shape
    squares = images.reshape(count, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4))
    return np.round(255 * squares).astype(np.float32) / 255
