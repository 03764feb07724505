"""The weights of the two networks trained here, which come with this project."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from nfk.atomic import write_atomically
from reproduction.own.networks import ColourVAE, critic, generator
from reproduction.pretrained.files import WeightsError, fill
from reproduction.pretrained.networks import SIGNED, Network, Pretrained
from reproduction.weights import SHIPPED

_ALL = (
    Network("cifar10-vae", ColourVAE, "cifar10", "vae", SIGNED, 397_700),
    Network("svhn-dcgan-critic", critic, "svhn", "critic", SIGNED, 167_649, partner="svhn-dcgan-generator"),
    Network("svhn-dcgan-generator", generator, "svhn", "generator", SIGNED, 370_624),
)
OWN: Mapping[str, Network] = {network.name: network for network in _ALL}


def load(name: str, folder: Path = SHIPPED) -> Pretrained:
    """The network of that name with its weights, a critic with its generator."""
    found = untrained(name)
    path = folder / f"{name}.safetensors"
    if not path.is_file():
        raise FileNotFoundError(f"there are no weights {path}: train them with `python -m reproduction.own {name}`")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        said = f"{path} is damaged ({error}): restore it, or train it again with `python -m reproduction.own {name}`"
        raise WeightsError(said) from error
    fill(found.module, tensors, name)
    partner = found.network.partner
    return Pretrained(found.network, found.module, load(partner, folder) if partner else None)


def untrained(name: str, seed: int | None = None) -> Pretrained:
    """The same architecture with random weights; no generator."""
    if name not in OWN:
        raise WeightsError(f"{name!r} is no network trained here: choose from {', '.join(OWN)}")
    with torch.random.fork_rng():
        if seed is not None:
            torch.manual_seed(seed)
        return Pretrained(OWN[name], OWN[name].build().eval())


def save(name: str, module: nn.Module, facts: dict[str, Any], folder: Path = SHIPPED) -> Path:
    """Write the weights with the command and the seed that made them."""
    path = folder / f"{name}.safetensors"
    tensors = {key: value.detach().contiguous() for key, value in module.state_dict().items()}
    write_atomically(path, lambda partial: save_file(tensors, partial, metadata={"facts": json.dumps(facts)}))
    return path
