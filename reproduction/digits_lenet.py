"""Trains the LeNet-5 that comes with the package, on the training digits of `nfk demo`, and writes its weights.

python -m reproduction.digits_lenet
"""

from __future__ import annotations

from pathlib import Path

from flax import nnx

from nfk.demo.lenet import WEIGHTS
from reproduction import weights
from reproduction.data import digits
from reproduction.networks import LeNet5
from reproduction.training import accuracy, train_classifier


def main(output: Path = WEIGHTS, epochs: int = 12, seed: int = 0) -> None:
    train, test = digits(seed)
    network = train_classifier(LeNet5(rngs=nnx.Rngs(seed)), train, epochs=epochs, seed=seed)
    share = accuracy(network, test)
    weights.save(output, network, {"command": "python -m reproduction.digits_lenet", "seed": seed, "accuracy": share})
    print(f"{output}: {share:.1%} on {len(test):,} other digits")


if __name__ == "__main__":
    main()
