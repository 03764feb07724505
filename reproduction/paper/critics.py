"""Features of images by a critic (or a VAE): Fisher embeddings and activations; kept as they come.

An embedding is fitted on some training images, then applied to all of them in parts. What is finished is kept, and a
second call goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

import nfk
from reproduction import own, pretrained
from reproduction.data import Split
from reproduction.data import load as load_images
from reproduction.pretrained import Pretrained
from reproduction.tasks.ledger import Ledger


@dataclass(frozen=True)
class Fisher:
    """One Fisher embedding: of which critic, on how many images it is fitted, and what is varied.

    `state` is "trained", "untrained" (fresh weights, moments over the data), or "projected": the Fisher vectors of the
    trained critic on as many random directions.
    """

    critic: str
    rank: int
    fitted: int
    data: str = "cifar10"  # of the images that it is fitted on
    samples: int = 4_096  # generated images for the moments, where there is a generator
    sigmoid: bool = False
    state: str = "trained"
    expectation: str = "model"  # "data" for moments over the training images in place of generated ones
    seed: int = 0
    used: int = 256  # of the components, for embedding
    part: int = 2_500  # images embedded between two savings
    parameters: str = ""  # those that take part, all by default

    @property
    def name(self) -> str:
        score = "sigmoid" if self.sigmoid else "raw"
        chosen = f"-{self.parameters.replace('/', '.')}" if self.parameters else ""
        sizes = f"{self.rank}-{self.fitted}-{self.seed}"
        return f"{self.critic}-{self.data}-{self.state}-{score}-{self.expectation}-{sizes}{chosen}"

    @property
    def network(self) -> Pretrained:
        home = own if self.critic in own.OWN else pretrained
        return home.untrained(self.critic, self.seed + 1000) if self.state == "untrained" else home.load(self.critic)

    @property
    def model(self) -> nfk.Model:
        """Of a VAE that of its bound, whose moments are over the images that it is fitted on."""
        network = self.network
        if network.network.kind == "vae":
            return network.model()
        over = "data" if network.generator is None else self.expectation
        chosen = self.parameters or None
        return network.model(sigmoid=self.sigmoid, samples=self.samples, expectation=over, parameters=chosen)


def few_inputs(network: Pretrained, data: str | None = None, count: int = 32) -> np.ndarray:
    """The first test images, as inputs of the network."""
    return network.inputs(load_images(data or network.network.data, "test").images[:count])


def fitted(fisher: Fisher, ledger: Ledger, train: Split) -> nfk.Embedding:
    """The embedding of a random draw of the training images; saved, and read again by a second call."""
    folder, model = ledger.folder / f"{fisher.name}-basis", fisher.model
    if any(folder.glob("*.json")):
        return nfk.load(folder, model)
    rows = np.random.default_rng(fisher.seed).permutation(len(train))[: fisher.fitted]
    ledger.say(f"{fisher.name}: fitting")
    inputs = fisher.network.inputs(train.images[rows])
    passes = ledger.folder / f"{fisher.name}-passes"
    return nfk.fit(model, inputs, fisher.rank, key=fisher.seed, memory="4GB", save=folder, checkpoint=passes)


def basis(fisher: Fisher, ledger: Ledger, train: Split) -> nfk.Embedding:
    """What embeds: the fit, or random directions in its place, V_x Omega / sqrt(rank)."""
    if fisher.state != "projected":
        return fitted(fisher, ledger, train)
    embedding = fitted(replace(fisher, state="trained"), ledger, train)
    shape = (embedding.model.layout.size, embedding.rank)
    omega = np.random.default_rng(fisher.seed).standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[1]))
    return replace(embedding, right=omega)


def embedded(fisher: Fisher, ledger: Ledger, train: Split, images: np.ndarray, name: str) -> np.ndarray:
    """The embeddings of all images, (n, rank); `name` tells these images from others."""
    made, inputs, kept = [], fisher.network.inputs, {}

    def make(_: Fisher, name: str, start: int, stop: int) -> dict[str, np.ndarray]:
        if not kept:
            kept["embedding"] = basis(fisher, ledger, train).truncated(min(fisher.used, fisher.rank))
        return {"rows": kept["embedding"](inputs(images[start:stop]), memory="2GB")}

    for start in range(0, len(images), fisher.part):
        stop = min(start + fisher.part, len(images))
        arguments = (f"{fisher.name}-{name}-{start}-{stop}", make, fisher, name, start, stop)
        made.append(ledger.arrays(*arguments)["rows"])
    return np.concatenate(made)


def full_kernel(fisher: Fisher, ledger: Ledger, train: Split, few: Split, test: Split) -> dict[str, np.ndarray]:
    """The exact kernel of the full Fisher vectors: "train" (n, n) of a few images, "test" (m, n)."""

    def make(_: Fisher, n: int, m: int) -> dict[str, np.ndarray]:
        embedding, inputs = fitted(fisher, ledger, train).truncated(1), fisher.network.inputs  # its moments alone
        X, X_test = inputs(few.images), inputs(test.images)
        return {"train": embedding.gram(X, memory="4GB"), "test": embedding.gram(X_test, X, memory="4GB")}

    return ledger.arrays(f"{fisher.name}-kernel", make, fisher, len(few), len(test))


def activations(network: Pretrained, images: np.ndarray) -> dict[str, np.ndarray]:
    """What the layers say, by name: each one's means over the pixels, all of these, and what the last layer sees."""
    parts = [
        {
            **{f"layer {place + 1}, means": maps.mean((2, 3)) for place, maps in enumerate(seen)},
            "all layers, means": torch.cat([maps.mean((2, 3)) for maps in seen], 1),
            "last layer, in full": seen[-1].flatten(1),
        }
        for seen in _maps(network, images)
    ]
    return {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]}


def last_weights(network: Pretrained) -> str:
    """The path of the weights that meet what the last layer sees, in its order."""
    return [name for name, _ in network.module.named_parameters() if name.endswith("weight")][-1].replace(".", "/")


def _maps(network: Pretrained, images: np.ndarray, batch: int = 500) -> Iterator[list[torch.Tensor]]:
    """The maps after every nonlinearity, batch by batch."""
    seen: list[torch.Tensor] = []
    layers = [layer for layer in network.module.modules() if isinstance(layer, (nn.LeakyReLU, nn.ReLU))]
    handles = [layer.register_forward_hook(lambda *given: seen.append(given[2])) for layer in layers]
    try:
        for start in range(0, len(images), batch):
            seen.clear()
            network.outputs(network.inputs(images[start : start + batch]))
            yield list(seen)
    finally:
        for handle in handles:
            handle.remove()


def posterior_means(network: Pretrained, images: np.ndarray, batch: int = 500) -> np.ndarray:
    """The latents of a VAE: the means of its posterior."""
    inputs = torch.as_tensor(network.inputs(images))
    with torch.no_grad():
        return torch.cat([network.module.posterior(part)[0] for part in inputs.split(batch)]).numpy()
