"""Twenty-two networks that others trained, by name: how each is built, what its inputs are, and what its score is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import nfk.torch
from reproduction.pretrained import gans, wide_resnets
from reproduction.pretrained.files import Tensors, WeightsError, fill, read
from reproduction.pretrained.flow import Flow
from reproduction.pretrained.pixelcnn import PixelCNN
from reproduction.pretrained.resnets import ResNet, SmallResNet
from reproduction.pretrained.small import VAE, EnergyModel, LeNet5
from reproduction.pretrained.wide_resnets import WideResNet

Kind = Literal["classifier", "critic", "generator", "vae", "energy", "flow", "autoregressive"]


@dataclass(frozen=True)
class Pixels:
    """How images in [0, 1] become inputs: resized, then (x - mean) / std for each channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    side: int | None = None

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """(n, height, width, channels) -> (n, channels, height, width), float32."""
        made = np.moveaxis(np.asarray(images, np.float32), -1, 1)
        if self.side is not None and made.shape[-1] != self.side:
            made = F.interpolate(torch.tensor(made), size=(self.side, self.side), mode="bilinear").numpy()
        mean, std = (np.asarray(given, np.float32)[:, None, None] for given in (self.mean, self.std))
        return np.ascontiguousarray((made - mean) / std)

    def images(self, inputs: np.ndarray) -> np.ndarray:
        """Back to [0, 1] and channels last, at the size of the inputs."""
        mean, std = (np.asarray(given, np.float32)[:, None, None] for given in (self.mean, self.std))
        return np.moveaxis(np.clip(np.asarray(inputs) * std + mean, 0, 1), 1, -1)


@dataclass(frozen=True)
class Network:
    """One of the table: `build()` makes the module, with random weights; `partner` is the generator of a critic."""

    name: str
    build: Callable[[], nn.Module]
    data: str
    kind: Kind
    pixels: Pixels
    parameters: int
    partner: str | None = None
    renamed: Callable[[str], str] | None = None


@dataclass(frozen=True)
class Pretrained:
    """A module in eval mode with its weights, and all that is known of it."""

    network: Network
    module: nn.Module
    generator: Pretrained | None = None

    @property
    def name(self) -> str:
        return self.network.name

    def inputs(self, images: np.ndarray) -> np.ndarray:
        """Images in [0, 1], channels last, as `module` wants them."""
        return self.network.pixels(images)

    def sample(self, seed: int, n: int) -> np.ndarray:
        """`n` images of the generator, as inputs of the critic: (n, channels, height, width) in [-1, 1]."""
        source = self if self.network.kind == "generator" else self.generator
        if source is None:
            raise ValueError(f"{self.name} has no generator: pass expectation='data', for moments over the data")
        z = torch.randn(n, source.module.latents, generator=torch.Generator().manual_seed(seed % 2**63))
        with torch.no_grad():
            return torch.cat([source.module(part) for part in z.split(500)]).numpy()

    def outputs(self, inputs: np.ndarray, *noise: np.ndarray, batch: int = 500) -> np.ndarray:
        """`module` of all inputs (and noise), batch by batch."""
        parts = zip(*(torch.as_tensor(given).split(batch) for given in (inputs, *noise)), strict=True)
        with torch.no_grad():
            return torch.cat([self.module(*part) for part in parts]).numpy()

    def model(self, **options: Any) -> nfk.Model:
        """Its Fisher kernel's model, through `nfk.torch`; `options` are those of the family's constructor there."""
        return MODELS[self.network.kind](self, options)


def _critic(found: Pretrained, options: dict) -> nfk.Model:
    if found.generator is not None and options.get("expectation") != "data":
        options.setdefault("sample", found.sample)
    elif found.generator is None:
        options.setdefault("expectation", "data")
    return nfk.torch.gan(found.module, **options)


def _generator(found: Pretrained, options: dict) -> nfk.Model:
    raise ValueError(f"{found.name} is a generator and has no score of its own: use the model of its critic")


def _minus_energy(module: nn.Module, x: Tensor) -> Tensor:
    return -module(x[None]).squeeze()


def _elbo(module: nn.Module, x: Tensor, noise: Tensor) -> Tensor:
    return module(x[None], noise[None])[0]


def _dequantised(module: nn.Module, x: Tensor, noise: Tensor) -> Tensor:
    """The normals as uniform noise."""
    return module(x[None], torch.special.ndtr(noise).clamp(0, 1 - 1e-6)[None])[0]


def _log_prob(module: nn.Module, x: Tensor) -> Tensor:
    return module(x[None])[0]


MODELS: Mapping[Kind, Callable[[Pretrained, dict], nfk.Model]] = {
    "classifier": lambda found, options: nfk.torch.classifier(found.module, **options),
    "critic": _critic,
    "generator": _generator,
    "vae": lambda found, options: nfk.torch.vae(found.module, _elbo, noise=(found.module.LATENTS,), **options),
    "energy": lambda found, options: nfk.torch.energy(found.module, _minus_energy, **options),
    "flow": lambda found, options: nfk.torch.vae(found.module, _dequantised, noise=(1, 28, 28), **options),
    "autoregressive": lambda found, options: nfk.torch.density(found.module, _log_prob, **options),
}

SIGNED = Pixels((0.5,), (0.5,))
UNIT, BYTES = Pixels((0.0,), (1.0,)), Pixels((0.0,), (1 / 255,))
LENET = Pixels((0.1307,), (0.3081,), side=32)
MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_A, CIFAR_B = Pixels(MEAN, (0.247, 0.243, 0.261)), Pixels(MEAN, (0.2023, 0.1994, 0.2010))
SVHN = Pixels((0.4377, 0.4438, 0.4728), (0.198, 0.201, 0.197))
IMAGENET = Pixels((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SMALL = Pixels((0.49139968, 0.48215841, 0.44653091), (0.24703223, 0.24348513, 0.26158784))


def _wide(depth: int, width: int, source: str, parameters: int, data: str = "cifar10") -> Network:
    pixels = SVHN if data == "svhn" else {"a": CIFAR_A, "b": CIFAR_B}[source]
    renamed = wide_resnets.renamed if source == "b" else None
    name, build = f"{data}-wrn-{depth}-{width}-{source}", partial(WideResNet, depth, width)
    return Network(name, build, data, "classifier", pixels, parameters, renamed=renamed)


_ALL = (
    _wide(16, 2, "a", 691_674), _wide(40, 1, "a", 563_930), _wide(16, 1, "a", 175_066),
    _wide(16, 2, "b", 691_674), _wide(40, 1, "b", 563_930), _wide(16, 1, "b", 175_066),
    _wide(16, 2, "a", 691_674, "svhn"),
    Network("cifar10-resnet56", partial(ResNet, 56), "cifar10", "classifier", IMAGENET, 853_018),
    Network("cifar10-resnet20", partial(ResNet, 20), "cifar10", "classifier", IMAGENET, 269_722),
    Network("cifar10-resnet-small", SmallResNet, "cifar10", "classifier", SMALL, 272_378),
    Network("cifar10-dcgan-critic", gans.colour_critic, "cifar10", "critic", SIGNED, 692_065,
            partner="cifar10-dcgan-generator"),
    Network("cifar10-dcgan-generator", gans.colour_generator, "cifar10", "generator", SIGNED, 370_624),
    Network("cifar10-dcgan-critic-wide", gans.wide_colour_critic, "cifar10", "critic", SIGNED, 663_745),
    Network("mnist-wgan-gp-critic", gans.wasserstein_critic, "mnist", "critic", SIGNED, 134_721,
            partner="mnist-wgan-gp-generator"),
    Network("mnist-wgan-gp-generator", gans.wasserstein_generator, "mnist", "generator", SIGNED, 747_841),
    Network("mnist-gan-critic", gans.digit_critic, "mnist", "critic", SIGNED, 165_729, partner="mnist-gan-generator"),
    Network("mnist-gan-generator", gans.digit_generator, "mnist", "generator", SIGNED, 765_633),
    Network("mnist-vae", VAE, "mnist", "vae", UNIT, 652_824),
    Network("mnist-lenet5", LeNet5, "mnist", "classifier", LENET, 61_706),
    Network("mnist-energy", EnergyModel, "mnist", "energy", SIGNED, 76_993),
    Network("mnist-flow", Flow, "mnist", "flow", BYTES, 556_312),
    Network("mnist-pixelcnn", PixelCNN, "mnist", "autoregressive", SIGNED, 852_160),
)  # fmt: skip
NETWORKS: Mapping[str, Network] = {network.name: network for network in _ALL}


def load(name: str, *, download: bool = False) -> Pretrained:
    """The network of that name with its weights, a critic with its generator; `download` fetches what is not here.

    Args:
        name: one of `NETWORKS`.
        download: fetch weights that are neither in NFK_DATA/pretrained nor in the cache.
    """
    found = untrained(name)
    tensors, renamed = read(name, download=download), found.network.renamed
    fill(found.module, _named(tensors, renamed), name)
    partner = found.network.partner
    return Pretrained(found.network, found.module, load(partner, download=download) if partner else None)


def untrained(name: str, seed: int | None = None) -> Pretrained:
    """The same architecture with random weights, torch's usual ones; no generator."""
    network = known(name)
    with torch.random.fork_rng():
        if seed is not None:
            torch.manual_seed(seed)
        module = network.build().eval()
    return Pretrained(network, module)


def known(name: str) -> Network:
    """The network of that name; any other name is refused with the list of them."""
    if name not in NETWORKS:
        raise WeightsError(f"{name!r} is no network that others trained: choose from {', '.join(NETWORKS)}")
    return NETWORKS[name]


def _named(tensors: Tensors, renamed: Callable[[str], str] | None) -> Tensors:
    return {renamed(name) if renamed else name: value for name, value in tensors.items()}
