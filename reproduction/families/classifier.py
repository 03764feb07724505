"""LeNet-5 on MNIST, and a wide residual network on small colour images."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

import nfk
from reproduction.data import Split
from reproduction.families.family import Family, halved
from reproduction.networks import LeNet5, WideResNet
from reproduction.training import accuracy, in_batches, momentum, shift_and_flip, train_classifier


class Classifier(Family):
    name, network, data = "classifier", "LeNet-5", "mnist"

    def build(self, seed: int) -> LeNet5:
        return LeNet5(rngs=nnx.Rngs(seed))

    def train(self, network: LeNet5, train: Split, seed: int, folder: Path | None) -> Any:
        return train_classifier(network, train, epochs=6, seed=seed, folder=folder, name=self.label)

    def metric(self, network: LeNet5, test: Split) -> tuple[str, float]:
        return "accuracy", accuracy(network, test)

    def model(self, network: Any) -> nfk.Model:
        return nfk.classifier(*nfk.from_nnx(network))

    def activations(self, network: Any, X: np.ndarray) -> np.ndarray:
        return in_batches(network.features, X)


class PhotoClassifier(Classifier):
    """WRN-16-2 on CIFAR-10 at half its resolution, from the first 10,000 images: the teacher of the distillations."""

    name, network, data = "classifier", "WRN-16-2, 16 x 16", "cifar10"
    rows, test_rows = 2_000, 2_000
    trained_on, epochs = 10_000, 60

    def build(self, seed: int) -> WideResNet:
        network = WideResNet(16, 2, rngs=nnx.Rngs(seed))
        network.eval()
        return network

    def examples(self, data: Split) -> np.ndarray:
        return halved(data.images)

    def train(self, network: WideResNet, train: Split, seed: int, folder: Path | None) -> Any:
        small = Split(self.examples(train.take(slice(self.trained_on))), train.labels[: self.trained_on])
        return train_classifier(
            network, small, epochs=self.epochs, batch=128, optimizer=momentum, seed=seed, folder=folder,
            augment=partial(shift_and_flip, reach=2), name=self.label,
        )  # fmt: skip

    def metric(self, network: WideResNet, test: Split) -> tuple[str, float]:
        return "accuracy", accuracy(network, Split(self.examples(test), test.labels))
