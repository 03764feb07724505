"""LeNet-5 on MNIST."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

import nfk
from nfk.lab.data import Split
from nfk.lab.families.family import Family
from nfk.lab.networks import LeNet5
from nfk.lab.training import accuracy, in_batches, train_classifier


class Classifier(Family):
    name, network, data = "classifier", "LeNet-5", "mnist"

    def build(self, seed: int) -> LeNet5:
        return LeNet5(rngs=nnx.Rngs(seed))

    def train(self, network: LeNet5, train: Split, seed: int, folder: Path | None) -> Any:
        return train_classifier(network, train, epochs=6, seed=seed, folder=folder, name=self.label)

    def metric(self, network: LeNet5, test: Split) -> tuple[str, float]:
        return "accuracy", accuracy(network, test)

    def model(self, network: LeNet5) -> nfk.Model:
        return nfk.classifier(*nfk.from_nnx(network))

    def activations(self, network: LeNet5, X: np.ndarray) -> np.ndarray:
        return in_batches(network.features, X)
