"""A network of your own, and the function that `nfk` is told about."""

import torch
from torch import nn

import nfk.torch


def network() -> nn.Module:
    first, second = nn.Conv2d(1, 8, 5, stride=2), nn.Conv2d(8, 16, 5, stride=2)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))


def model() -> nfk.Model:
    module = network()
    module.load_state_dict(torch.load("weights.pt"))
    return nfk.torch.classifier(module.eval())
